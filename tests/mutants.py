"""Do the tests bite? Changes the code of the decisions in small ways, one at a time, and runs the tests (make mutants).

    python -m tests.mutants [--sample N] [--seed S] [--near] [MODULE ...]

A change that no test notices is a survivor: a line of output, to be read. Some cannot be noticed, because they change
nothing that matters; the others miss a test. Each change runs in a process of its own that has the changed text in
place of the module; nothing on disk is touched.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tests.support import ROOT

TIMEOUT_S = 120.0

_SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the module, where it is and what it does, and the module's whole text with it."""

    module: str
    line: int
    what: str
    text: str


def modules() -> list[str]:
    """Return the modules whose tests are to bite."""
    policy = sorted(path.stem for path in (ROOT / "nodecpu" / "policy").glob("[a-z]*.py"))
    return [
        *(f"nodecpu.policy.{name}" for name in policy),
        *(f"nodecpu.dra.{n}" for n in ("claims", "devices", "opaque")),
    ]


def mutants(module: str) -> Iterator[Mutant]:
    """Yield every change of a module."""
    tree = ast.parse(_path(module).read_text())
    for number, node in enumerate(_candidates(tree)):
        changed = copy.deepcopy(tree)
        target = _candidates(changed)[number]
        before = ast.unparse(node)
        _change(target)
        yield Mutant(
            module=module,
            line=getattr(node, "lineno", 0),
            what=f"{before} -> {ast.unparse(target)}",
            text=ast.unparse(ast.fix_missing_locations(changed)),
        )


def _path(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def _candidates(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes that can be changed, always in the same order; what only makes up messages is left out."""
    found: list[ast.AST] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert | ast.AnnAssign):
            continue
        if _is_changeable(node):
            found.append(node)
        pending += [child for child in ast.iter_child_nodes(node) if not _is_annotation(node, child)][::-1]
    return found


def _is_annotation(parent: ast.AST, child: ast.AST) -> bool:
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        return child is parent.returns
    return isinstance(parent, ast.arg)


def _is_changeable(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return len(node.ops) == 1 and type(node.ops[0]) in _SWAPS
    if isinstance(node, ast.BoolOp):
        return True
    if isinstance(node, ast.BinOp):
        return type(node.op) in _SWAPS
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _NAMES
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _change(node: ast.AST) -> None:
    if isinstance(node, ast.Compare):
        node.ops = [_SWAPS[type(node.ops[0])]()]  # type: ignore[list-item]
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
        node.operand = ast.Call(func=ast.Name(id="bool", ctx=ast.Load()), args=[node.operand], keywords=[])
    elif isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        node.func.id = _NAMES[node.func.id]
    elif isinstance(node, ast.Constant):
        node.value = (not node.value) if isinstance(node.value, bool) else int(str(node.value)) + 1


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a given text."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, name: str, path: object, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load the module, if it is the one."""
        del path, target
        if name != self._mutant.module:
            return None
        return importlib.util.spec_from_file_location(name, _path(name), loader=self)

    def create_module(self, spec: ModuleSpec) -> None:
        """Have it made as always."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed text."""
        exec(compile(self._mutant.text, str(_path(self._mutant.module)), "exec"), module.__dict__)


_ELSEWHERE = {
    "nodecpu.policy.rearrange": ("unit/test_reconfigure.py",),
    "nodecpu.policy.export": ("unit/test_export.py",),
    "nodecpu.policy.pull": ("unit/test_attraction.py", "unit/test_locality.py"),
}
"""Tests of modules that are not where the others' are."""


def _tests(module: str, *, near: bool) -> list[str]:
    """Return the tests that are to notice, the nearest first; ``near``: these alone, if there are any."""
    room, stem = module.split(".")[1:]
    nearest = [ROOT / "tests" / "unit" / room / f"test_{stem}.py", ROOT / "tests" / "property" / f"test_{stem}.py"]
    further = [ROOT / "tests" / "unit" / room, ROOT / "tests" / "property" / "test_policy.py"]
    elsewhere = [ROOT / "tests" / name for name in _ELSEWHERE.get(module, ())]
    own = [str(path) for path in (*nearest, *elsewhere) if path.exists()]
    return own if own and near else [*own, *(str(path) for path in further if path.exists())]


def survives(mutant: Mutant, *, near: bool = False) -> bool:
    """Return whether the tests pass with a change; tests that hang or crash have noticed it."""
    child = os.fork()
    if child == 0:
        os._exit(_run(mutant, _tests(mutant.module, near=near)))
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _run(mutant: Mutant, tests: Sequence[str]) -> int:
    import pytest  # noqa: PLC0415 - loaded before in the parent; nothing of ours may be

    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    sys.meta_path.insert(0, _Finder(mutant))
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        return int(pytest.main(arguments))
    except BaseException:  # noqa: BLE001 - whatever it is, it was noticed
        return 1


def main(arguments: Sequence[str]) -> int:
    """Try changes and print the survivors; 1 if fewer than 85 of a hundred were noticed."""
    import pytest  # noqa: F401, PLC0415

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sample", type=int, default=0, help="so many changes of each module, chosen by the seed; 0: all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--near", action="store_true", help="run only the tests of the module itself: quick, and too strict"
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="as in nodecpu.policy.picker; none: all")
    options = parser.parse_args(arguments)
    tried = noticed = 0
    for module in options.modules or modules():
        if not survives(
            Mutant(module=module, line=0, what="nothing", text=_path(module).read_text()), near=options.near
        ):
            raise SystemExit(f"{module}: its tests fail without a change")
        found = list(mutants(module))
        if options.sample:
            found = random.Random(options.seed).sample(found, min(options.sample, len(found)))
        left = []
        for mutant in found:
            if survives(mutant, near=options.near):
                left.append(mutant)
                sys.stdout.write(f"  {_path(module).relative_to(ROOT)}:{mutant.line}: {mutant.what}\n")
                sys.stdout.flush()
        tried, noticed = tried + len(found), noticed + len(found) - len(left)
        sys.stdout.write(f"{module}: {len(found) - len(left)} of {len(found)} noticed\n")
        sys.stdout.flush()
    sys.stdout.write(f"together: {noticed} of {tried} noticed\n")
    return 0 if 100 * noticed >= 85 * tried else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
