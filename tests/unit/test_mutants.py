"""The tool that changes the decisions to see whether tests notice: what it explains is still there."""

from __future__ import annotations

from tests.mutants.changes import modules, mutants
from tests.mutants.explained import EXPLAINED


def test_explained_changes_can_still_be_made() -> None:
    """A reason without its code is stale: remove it, or write what the code says now."""
    assert set(EXPLAINED) <= set(modules())
    for module, explained in EXPLAINED.items():
        there = {(mutant.where, mutant.what) for mutant in mutants(module)}
        assert [one for one in explained if (one.where, one.what) not in there] == []
