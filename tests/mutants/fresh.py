"""Tries a change in a process that loads everything anew: for what acts when the module is loaded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from tests.mutants.changes import Mutant, unchanged
from tests.mutants.children import Trial, outcomes
from tests.mutants.loading import load_changed
from tests.mutants.tests import OPTIONS, VALUES, further, nearest


def tried(found: Sequence[Mutant], jobs: int, *, near: bool) -> Iterator[tuple[Mutant, bool]]:
    """Yield of each change whether it survives."""
    for module in dict.fromkeys(mutant.module for mutant in found):
        start = time.monotonic()
        [(_, is_well)] = outcomes(iter([_trial(unchanged(module), 600, near=near)]), 1)
        if not is_well:
            raise SystemExit(f"{module}: its tests fail without a change")
        cpu_s = 3 * (time.monotonic() - start) + 5
        yield from outcomes((_trial(one, cpu_s, near=near) for one in found if one.module == module), jobs)


def _trial(mutant: Mutant, cpu_s: float, *, near: bool) -> Trial[Mutant]:
    return Trial(key=mutant, run=lambda: _passes(mutant, near=near), cpu_s=cpu_s)


def _passes(mutant: Mutant, *, near: bool) -> bool:
    load_changed(mutant)
    stages = [[VALUES], [path for path in nearest(mutant.module) if path != VALUES]]
    if not near:
        stages.append(further(mutant.module))
    return all(pytest.main([*OPTIONS, *map(str, stage)]) == pytest.ExitCode.OK for stage in stages if stage)
