"""Tries changes of functions where the tests are collected already: the changed code takes the old one's place.

All modules are loaded with a mark at the start of every function, so that it is known which tests call it: no other can
notice its change. A function that is called while tests are loaded has left its traces: it is for tests.mutants.fresh.
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

from tests.mutants.changes import Mutant, path_of, tree_of
from tests.mutants.children import Trial, allow_cpu, outcomes
from tests.mutants.tests import OPTIONS, further, nearest

_MARK = "_mark_of_mutants_"
_Name = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watched:
    """What one test does: how long it takes and which functions it calls."""

    item: pytest.Item
    seconds: float
    calls: frozenset[_Name]


class _Marker(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads modules with a mark in every function."""

    def __init__(self, modules: Sequence[str], calls: set[_Name]) -> None:
        self._modules = modules
        self._calls = calls

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load a module, if it is one of them."""
        del path, target
        if name not in self._modules:
            return None
        return importlib.util.spec_from_file_location(name, path_of(name), loader=self)

    def create_module(self, spec: ModuleSpec) -> None:
        """Have it made as always."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the tree with marks."""
        name = module.__name__
        tree = ast.parse(path_of(name).read_text())
        _mark(tree, "")
        module.__dict__[_MARK] = lambda where: self._calls.add((name, where))
        exec(compile(ast.fix_missing_locations(tree), str(path_of(name)), "exec"), module.__dict__)


def _mark(parent: ast.Module | ast.ClassDef, where: str) -> None:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            _mark(node, f"{where}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_told = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            node.body[int(is_told) : int(is_told)] = ast.parse(f"{_MARK}({where + node.name!r})").body


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A plugin of pytest that runs the tests for each change instead of once, and writes down what comes of it."""

    mutants: Sequence[Mutant]
    jobs: int
    near: bool
    calls: set[_Name]
    answers: int
    watched: list[_Watched] = field(default_factory=list)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run them."""
        at_load = frozenset(self.calls)
        gc.collect()
        gc.freeze()
        self.watched.extend(self._watch(session))
        placed: list[int] = []
        for number, mutant in enumerate(self.mutants):
            if not mutant.in_body or (mutant.module, mutant.where) in at_load or _function(mutant) is None:
                self._answer(number, "fresh")
            else:
                placed.append(number)
        for number, is_well in outcomes((self._trial(session, number) for number in placed), self.jobs):
            self._answer(number, "survived" if is_well else "noticed")
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
        own, others = nearest(mutant.module), further(mutant.module)
        callers = [one for one in self.watched if (mutant.module, mutant.where) in one.calls]
        chosen = sorted((one for one in callers if one.item.path in own), key=lambda one: one.seconds)
        if not self.near:
            chosen += sorted((one for one in callers if one.item.path in others), key=lambda one: one.seconds)
        return Trial(key=number, run=lambda: self._run(session, mutant, chosen), cpu_s=5)

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
    calls: set[_Name] = set()
    tried = tuple(dict.fromkeys(mutant.module for mutant in mutants))
    sys.meta_path.insert(0, _Marker(tried, calls))
    paths = dict.fromkeys(path for module in tried for path in (*nearest(module), *(() if near else further(module))))
    loop = _Loop(mutants=mutants, jobs=jobs, near=near, calls=calls, answers=answers)
    return int(pytest.main([*OPTIONS, *map(str, paths)], plugins=[loop]))
