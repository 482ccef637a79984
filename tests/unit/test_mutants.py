"""The tool that changes the decisions to see whether tests notice: its changes are changes, its reasons hold."""

from __future__ import annotations

import ast

from tests.mutants.changes import modules, mutants, tree_of, unchanged
from tests.mutants.explained import EXPLAINED


def test_every_change_changes_one_place() -> None:
    """Each is another text, and only in the function or class that it names."""
    module = "nodecpu.policy.figures"
    before = ast.unparse(tree_of(unchanged(module))).splitlines()
    texts = set()
    for mutant in mutants(module):
        after = ast.unparse(tree_of(mutant)).splitlines()
        changed = [line for line, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        assert len(changed) == 1, mutant
        within = [line for line in before[: changed[0]] if line.startswith(("def ", "class "))]
        assert f" {mutant.where}(" in within[-1] if mutant.where else not within
        texts.add(tuple(after))
    assert len(texts) == len(mutants(module))


def test_explained_changes_can_still_be_made() -> None:
    """A reason without its code is stale: remove it, or write what the code says now."""
    assert set(EXPLAINED) <= set(modules())
    for module, explained in EXPLAINED.items():
        there = {(mutant.where, mutant.what) for mutant in mutants(module)}
        assert [one for one in explained if (one.where, one.what) not in there] == []
