"""Sets of CPUs as a tree by inclusion (pure): the one builder behind pools and behind the picker's units.

Levels come from set inclusion, never from ids: a set that equals one already there adds nothing and is left out, one
that crosses another (has some of its CPUs but not all, and is not contained) cannot be part of a tree and is left out
too, the larger one winning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nodecpu.cpuset import CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A candidate: its kind (rank 0 is the uppermost level), label and CPUs."""

    rank: int
    kind: str
    label: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeNode:
    """A set with its place: indexes into the tuple it came in, parents before children; the first is the root."""

    index: int
    kind: str
    label: str
    cpus: CpuSet
    parent: int | None
    children: tuple[int, ...]
    depth: int


def build_tree(candidates: Iterable[Named]) -> tuple[TreeNode, ...]:
    """Return the nodes of the tree, the root first, children in rising order of their lowest CPU.

    One of the candidates has to hold all the others' CPUs. Empty sets are left out. Of equal sets the one with the
    lowest rank stays. A node that would be its parent's only child is left out: it tells nothing apart.
    """
    order = sorted((c for c in candidates if c.cpus), key=lambda c: (-len(c.cpus), c.rank, c.cpus.first()))
    kept: list[Named] = []
    parents: list[int | None] = []
    innermost: dict[int, int] = {}  # CPU -> the smallest set so far that has it, as an index into kept
    for one in order:
        owners = {innermost.get(cpu) for cpu in one.cpus}
        if len(owners) > 1:
            continue  # crosses a set that is at least as large
        parent = owners.pop()
        if parent is not None and one.cpus == kept[parent].cpus:
            continue
        innermost.update(dict.fromkeys(one.cpus, len(kept)))
        kept.append(one)
        parents.append(parent)
    return _numbered(kept, parents)


def _numbered(kept: list[Named], parents: list[int | None]) -> tuple[TreeNode, ...]:
    children: dict[int, list[int]] = {}
    for index, parent in enumerate(parents):
        if parent is not None:
            children.setdefault(parent, []).append(index)
    for below in children.values():
        below.sort(key=lambda i: kept[i].cpus.first())
    order: list[tuple[int, int | None, int]] = []  # (index in kept, new parent, depth), depth first

    def visit(old: int, parent: int | None, depth: int) -> None:
        here = len(order)
        order.append((old, parent, depth))
        for child in _branches(old, children):
            visit(child, here, depth + 1)

    if kept:
        visit(0, None, 0)
    below_new: dict[int, list[int]] = {}
    for here, (_, parent, _) in enumerate(order):
        if parent is not None:
            below_new.setdefault(parent, []).append(here)
    return tuple(
        TreeNode(
            index=here,
            kind=kept[old].kind,
            label=kept[old].label,
            cpus=kept[old].cpus,
            parent=parent,
            children=tuple(below_new.get(here, ())),
            depth=depth,
        )
        for here, (old, parent, depth) in enumerate(order)
    )


def _branches(index: int, children: dict[int, list[int]]) -> list[int]:
    """Return the children that tell CPUs apart: an only child is replaced by its own children."""
    below = children.get(index, [])
    while len(below) == 1:
        below = children.get(below[0], [])
    return below
