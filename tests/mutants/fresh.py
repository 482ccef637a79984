"""Tries a change in a process that loads everything anew: for what acts when the module is loaded."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from tests.mutants.changes import Mutant, path_of, tree_of, unchanged
from tests.mutants.children import Trial, outcomes
from tests.mutants.tests import OPTIONS, VALUES, further, nearest


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module with a change."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load the module, if it is the one."""
        del path, target
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, path_of(name), loader=self)

    def create_module(self, spec: ModuleSpec) -> None:
        """Have it made as always."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed tree."""
        exec(compile(tree_of(self._mutant), str(path_of(self._mutant.module)), "exec"), module.__dict__)


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
    sys.meta_path.insert(0, _Finder(mutant))
    stages = [[VALUES], [path for path in nearest(mutant.module) if path != VALUES]]
    if not near:
        stages.append(further(mutant.module))
    return all(pytest.main([*OPTIONS, *map(str, stage)]) == pytest.ExitCode.OK for stage in stages if stage)
