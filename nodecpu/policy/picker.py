"""Which CPUs to take out of a free set (pure; K1, K3).

The machine is a tree of units (package, die, NUMA node, L3, cluster, L2, core, CPU). A request goes into the smallest
unit that holds it; of several such units into the one with the least free (best fit), then into the one whose
surroundings are the fullest, then into the lowest numbers. Where several units are needed, the largest free ones are
taken whole and the rest goes best fit into one more, so that the fewest units are touched and the fewest broken. Each
step looks at every unit once: linear in units, never a search over subsets.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodecpu.cpuset import CpuSet
from nodecpu.policy.tree import Named, build_tree
from nodecpu.topology.model import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A node of the tree: the mask of its CPUs, how many there are, its children; no children: single CPUs below."""

    mask: int
    size: int
    children: tuple[Unit, ...]


def build_units(topology: Topology) -> Unit:
    """Return the tree of units of a machine (its online CPUs)."""
    levels: list[tuple[str, list[CpuSet]]] = [
        ("package", [g.cpus for g in topology.packages]),
        ("die", [g.cpus for g in topology.dies]),
        ("numa", [n.cpus for n in topology.numa]),
        ("l3", [g.cpus for g in topology.l3]),
        ("cluster", [g.cpus for g in topology.clusters]),
        ("l2", [g.cpus for g in topology.l2]),
        ("core", [g.cpus for g in topology.cores]),
    ]
    named = [
        Named(rank=rank, kind=kind, label="", cpus=cpus)
        for rank, (kind, groups) in enumerate(levels)
        for cpus in groups
        if len(cpus) > 1
    ]
    nodes = build_tree([Named(rank=-1, kind="machine", label="", cpus=topology.online), *named])
    units: dict[int, Unit] = {}
    for node in reversed(nodes):  # children before parents
        below = [units[i] for i in node.children]
        covered = 0
        for unit in below:
            covered |= unit.mask
        # CPUs in no child (a core without siblings beside others with) are units of their own.
        below += [Unit(mask=1 << cpu, size=1, children=()) for cpu in CpuSet.from_mask(node.cpus.mask & ~covered)]
        below.sort(key=lambda u: u.mask & -u.mask)
        units[node.index] = Unit(mask=node.cpus.mask, size=len(node.cpus), children=tuple(below))
    return units[0]


def pick(machine: Unit, free: CpuSet, count: int) -> CpuSet | None:
    """Return ``count`` CPUs of ``free``, or None if it has fewer. Equal inputs give equal CPUs."""
    available = free.mask & machine.mask
    if count > available.bit_count():
        return None
    return CpuSet.from_mask(_take(machine, available, count))


def _take(unit: Unit, free: int, count: int) -> int:
    """Return the mask of ``count`` CPUs of ``free`` within the unit, which has at least that many free."""
    free &= unit.mask
    if count == free.bit_count():
        return free
    if count <= 0:
        return 0
    home = _smallest_home(unit, free, count)
    if home is not unit:
        return _take(home, free, count)
    taken = 0
    left = list(unit.children)
    while count:
        # The largest free child first; of equals the whole before the broken, then the lowest numbers.
        fitting = [u for u in left if (u.mask & free).bit_count() >= count]
        if fitting:
            best = min(fitting, key=lambda u: (_home_size(u, free, count), (u.mask & free).bit_count()))
            return taken | _take(best, free, count)
        best = max(left, key=lambda u: ((u.mask & free).bit_count(), -u.size))
        part = best.mask & free
        taken |= part
        count -= part.bit_count()
        left.remove(best)
    return taken


def _home_size(unit: Unit, free: int, count: int) -> int:
    return _smallest_home(unit, free, count).size


def _smallest_home(unit: Unit, free: int, count: int) -> Unit:
    """Return the best unit at or below ``unit`` (which holds the request) that still holds it whole.

    Ordered by size, then free CPUs in it, then free CPUs around it from the inside out; the first of equals.
    """
    best: tuple[tuple[int, ...], Unit] = ((unit.size, (unit.mask & free).bit_count()), unit)
    stack: list[tuple[Unit, tuple[int, ...]]] = [(unit, ())]
    while stack:
        here, outside = stack.pop()
        around = ((here.mask & free).bit_count(), *outside)
        for child in reversed(here.children):
            room = (child.mask & free).bit_count()
            if room >= count:
                stack.append((child, around))
        if here is not unit:
            key = (here.size, *around)
            if key < best[0]:
                best = (key, here)
    return best[1]
