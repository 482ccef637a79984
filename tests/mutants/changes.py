"""The small changes that are tried: what can be changed in a module, and the module's tree with one change."""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

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
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change: the module, where it is and what it does; ``number`` counts the changes of a module.

    ``where`` is the function or class that it is in (a method with its class), empty at the top. ``in_body``: it acts
    when that function is called; else when the module is loaded.
    """

    module: str
    where: str
    in_body: bool
    line: int
    what: str
    number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    node: ast.AST
    where: str = ""
    in_body: bool = False


def modules() -> list[str]:
    """Return the modules whose tests are to bite."""
    policy = sorted(path.stem for path in (ROOT / "nodecpu" / "policy").glob("[a-z]*.py"))
    return [
        *(f"nodecpu.policy.{name}" for name in policy),
        *(f"nodecpu.dra.{n}" for n in ("claims", "devices", "opaque")),
    ]


def path_of(module: str) -> Path:
    """Return a module's file."""
    return ROOT / (module.replace(".", "/") + ".py")


def mutants(module: str) -> list[Mutant]:
    """Return every change of a module."""
    return [
        Mutant(
            module=module,
            where=place.where,
            in_body=place.in_body,
            line=getattr(place.node, "lineno", 0),
            what=f"{ast.unparse(place.node)} -> {ast.unparse(_changed(copy.deepcopy(place.node)))}",
            number=number,
        )
        for number, place in enumerate(_candidates(ast.parse(path_of(module).read_text())))
    ]


def unchanged(module: str) -> Mutant:
    """Return the change that is none."""
    return Mutant(module=module, where="", in_body=False, line=0, what="nothing", number=None)


def tree_of(mutant: Mutant) -> ast.Module:
    """Return the module's tree with the change."""
    tree = ast.parse(path_of(mutant.module).read_text())
    if mutant.number is not None:
        _changed(_candidates(tree)[mutant.number].node)
    return ast.fix_missing_locations(tree)


def _candidates(tree: ast.AST) -> list[_Place]:
    """Return what can be changed, always in the same order; what only makes up messages is left out."""
    found: list[_Place] = []
    pending = [_Place(node=tree)]
    while pending:
        place = pending.pop()
        node = place.node
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            continue
        if _is_changeable(node):
            found.append(place)
        if isinstance(node, ast.keyword) and _is_changeable(node):
            continue
        pending += [_below(place, child) for child in ast.iter_child_nodes(node) if not _is_annotation(node, child)][
            ::-1
        ]
    return found


def _below(place: _Place, child: ast.AST) -> _Place:
    parent = place.node
    if place.in_body or not isinstance(parent, _Function | ast.ClassDef):
        return _Place(node=child, where=place.where, in_body=place.in_body)
    where = f"{place.where}.{parent.name}".lstrip(".")
    return _Place(node=child, where=where, in_body=isinstance(parent, _Function) and child in parent.body)


def _is_annotation(parent: ast.AST, child: ast.AST) -> bool:
    if isinstance(parent, _Function):
        return child is parent.returns
    return isinstance(parent, ast.arg) or (isinstance(parent, ast.AnnAssign) and child is parent.annotation)


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
    if isinstance(node, ast.keyword):
        return _is_number(node.value)
    return _is_number(node)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _changed(node: ast.AST) -> ast.AST:
    """Change a node and return it."""
    if isinstance(node, ast.keyword):
        _changed(node.value)
    elif isinstance(node, ast.Compare):
        node.ops = [_SWAPS[type(node.ops[0])]()]  # type: ignore[list-item]  # the table's pairs are of one kind
    elif isinstance(node, ast.BoolOp | ast.BinOp):
        node.op = _SWAPS[type(node.op)]()  # type: ignore[assignment]  # likewise
    elif isinstance(node, ast.UnaryOp):
        node.op = ast.UAdd()
        node.operand = ast.Call(func=ast.Name(id="bool", ctx=ast.Load()), args=[node.operand], keywords=[])
    elif isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        node.func.id = _NAMES[node.func.id]
    elif isinstance(node, ast.Constant):
        node.value = (not node.value) if isinstance(node.value, bool) else int(str(node.value)) + 1
    return node
