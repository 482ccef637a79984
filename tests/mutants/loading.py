"""Has modules loaded otherwise than they are written: with a change, or with a mark in every function."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Collection
from importlib.machinery import ModuleSpec
from types import ModuleType

from tests.mutants.changes import Mutant, path_of, tree_of

Name = tuple[str, str]
"""A module and a function in it, a method with its class."""

_MARK = "_mark_of_mutants_"


def load_changed(mutant: Mutant) -> None:
    """Have a module loaded with a change from now on."""

    def fill(module: ModuleType) -> None:
        _run(tree_of(mutant), module)

    sys.meta_path.insert(0, _Finder([mutant.module], fill))


def load_marked(modules: Collection[str], calls: set[Name]) -> None:
    """Have modules loaded, from now on, so that their functions enter themselves in ``calls`` when they are called."""

    def fill(module: ModuleType) -> None:
        name = module.__name__
        tree = ast.parse(path_of(name).read_text())
        _mark(tree, "")
        module.__dict__[_MARK] = lambda where: calls.add((name, where))
        _run(ast.fix_missing_locations(tree), module)

    sys.meta_path.insert(0, _Finder(modules, fill))


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Has some modules filled by a function."""

    def __init__(self, modules: Collection[str], fill: Callable[[ModuleType], None]) -> None:
        self._modules = modules
        self._fill = fill

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
        """Fill it."""
        self._fill(module)


def _run(tree: ast.Module, module: ModuleType) -> None:
    exec(compile(tree, str(path_of(module.__name__)), "exec"), module.__dict__)


def _mark(parent: ast.Module | ast.ClassDef, where: str) -> None:
    for node in parent.body:
        if isinstance(node, ast.ClassDef):
            _mark(node, f"{where}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_told = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            node.body[int(is_told) : int(is_told)] = ast.parse(f"{_MARK}({where + node.name!r})").body
