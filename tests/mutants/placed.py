"""Tries changes of functions where the tests are collected already: the changed code takes the old one's place.

All modules are loaded with a mark at the start of every function, so that it is known which tests call it: no other can
notice its change. A function that is called while tests are loaded has left its traces: it is for tests.mutants.fresh.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutants.changes import Mutant, tree_of, unchanged
from tests.mutants.children import Trial, allow_cpu, outcomes
from tests.mutants.loading import Name, load_changed, load_marked
from tests.mutants.tests import OPTIONS, VALUES, further, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """What one test does: how long it takes and which functions it calls."""

    item: pytest.Item
    seconds: float
    calls: frozenset[Name]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A plugin of pytest that runs the tests for each change instead of once, and writes down what comes of it."""

    mutants: Sequence[Mutant]
    jobs: int
    near: bool
    calls: set[Name]
    answers: int
    watched: list[_Watched] = field(default_factory=list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run them."""
        at_load = frozenset(self.calls)
        gc.collect()
        gc.freeze()
        self.watched.extend(self._watch(session))
        self._check_form(session)
        placed: list[int] = []
        for number, mutant in enumerate(self.mutants):
            if mutant.in_body and ((mutant.module, mutant.where) in at_load or _function(mutant) is None):
                self._answer(number, "fresh")
            else:
                placed.append(number)
        for number, is_well in outcomes((self._trial(session, number) for number in placed), self.jobs):
            survives = "survived" if self.mutants[number].in_body else "fresh"
            self._answer(number, survives if is_well else "noticed")
        return True

    def _answer(self, number: int, word: str) -> None:
        os.write(self.answers, f"{number} {word}\n".encode())

    def _watch(self, session: pytest.Session) -> list[_Watched]:
        """Run every test unchanged, in a child, and learn what it does."""
        with tempfile.NamedTemporaryFile() as told:
            path = Path(told.name)
            [(_, is_well)] = outcomes(iter([Trial(key=0, run=lambda: self._tells(session, path), cpu_s=1200)]), 1)
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        if not is_well:
            failed = session.items[len(rows)].nodeid
            raise SystemExit(f"{failed} fails without a change")
        return [
            _Watched(item=item, seconds=seconds, calls=frozenset((module, where) for module, where in calls))
            for item, (seconds, calls) in zip(session.items, rows, strict=True)
        ]

    def _tells(self, session: pytest.Session, path: Path) -> bool:
        with path.open("w") as told:
            for number, item in enumerate(session.items):
                self.calls.clear()
                start = time.process_time()
                if not _passes(session, item, session.items[number + 1 : number + 2]):
                    return False
                told.write(json.dumps([time.process_time() - start, sorted(self.calls)]) + "\n")
                told.flush()
        return True

    def _trial(self, session: pytest.Session, number: int) -> Trial[int]:
        mutant = self.mutants[number]
        if not mutant.in_body:
            return Trial(key=number, run=lambda: self._has_form(session, mutant), cpu_s=10)
        own, others = nearest(mutant.module), further(mutant.module)
        callers = [one for one in self.watched if (mutant.module, mutant.where) in one.calls]
        chosen = sorted((one for one in callers if one.item.path in own), key=lambda one: one.seconds)
        if not self.near:
            chosen += sorted((one for one in callers if one.item.path in others), key=lambda one: one.seconds)
        return Trial(key=number, run=lambda: self._run(session, mutant, chosen), cpu_s=5)

    def _check_form(self, session: pytest.Session) -> None:
        modules = dict.fromkeys(mutant.module for mutant in self.mutants)
        trials = (
            Trial(key=nothing, run=partial(self._has_form, session, nothing), cpu_s=10)
            for nothing in map(unchanged, modules)
        )
        for nothing, is_well in outcomes(trials, self.jobs):
            if not is_well:
                raise SystemExit(f"{nothing.module}: it cannot be loaded once more")

    def _has_form(self, session: pytest.Session, mutant: Mutant) -> bool:
        """Return whether the values of a changed module have the form that values have: it is loaded by the test."""
        load_changed(mutant)
        sys.modules.pop(mutant.module, None)
        form = [item for item in session.items if item.path == VALUES and item.name.endswith(f"[{mutant.module}]")]
        return all(_passes(session, item, ()) for item in form)

    def _run(self, session: pytest.Session, mutant: Mutant, chosen: Sequence[_Watched]) -> bool:
        _place(mutant)
        for number, one in enumerate(chosen):
            allow_cpu(4 * one.seconds + 2)
            if not _passes(session, one.item, [other.item for other in chosen[number + 1 : number + 2]]):
                return False
        return True


def _passes(session: pytest.Session, item: pytest.Item, following: Sequence[pytest.Item]) -> bool:
    item.config.hook.pytest_runtest_protocol(item=item, nextitem=next(iter(following), None))
    return not session.testsfailed


def _function(mutant: Mutant) -> FunctionType | None:
    """Return the function that a change is in; None if it cannot be told."""
    found: object = sys.modules.get(mutant.module)
    for name in mutant.where.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found) if callable(found) else None
    is_it = isinstance(found, FunctionType) and found.__qualname__ == mutant.where
    return found if isinstance(found, FunctionType) and is_it else None


def _place(mutant: Mutant) -> None:
    function = _function(mutant)
    codes = [code for code in _codes(compile(tree_of(mutant), "<mutant>", "exec")) if code.co_qualname == mutant.where]
    assert function is not None
    [function.__code__] = codes


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def run(mutants: Sequence[Mutant], jobs: int, answers: int, *, near: bool) -> int:
    """Run pytest for the changes and write a line for each: its number, and noticed, survived or fresh."""
    calls: set[Name] = set()
    tried = tuple(dict.fromkeys(mutant.module for mutant in mutants))
    load_marked(tried, calls)
    paths = dict.fromkeys(path for module in tried for path in (*nearest(module), *(() if near else further(module))))
    loop = _Loop(mutants=mutants, jobs=jobs, near=near, calls=calls, answers=answers)
    return int(pytest.main([*OPTIONS, *map(str, paths)], plugins=[loop]))
