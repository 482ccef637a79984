"""Which CPUs to take out of a free set (pure; K1, K3).

The machine is a tree of units (package, die, NUMA node, L3, cluster, L2, core). A request goes into the smallest unit
that holds it; of several such units first into those that hold it in whole cores, then into the one with the least free
(best fit), then into the fullest surroundings, then into the lowest numbers. Where several units are needed, the
largest free ones are taken whole and the rest goes best fit into one more, so that the fewest units are touched and the
fewest broken.

Theory of operation: a unit's *census* tells what occurs in the units at and below it. Sizes of units are few, so it is
one int: each size, the smallest lowest, has three fields, and bit ``n`` of a field stands for a unit of that size with

- mixed: ``n`` CPUs in wholly free cores, and enough free ones in broken cores for what of a request is not a core,
- whole: ``n`` CPUs in wholly free cores,
- free: ``n`` free CPUs of any kind.

So the lowest census bit that serves a request names its best home, which is found by walking down from the top past the
children that have that bit. A census depends on nothing but the free CPUs inside the unit, so each unit remembers its
last one: only what changed is counted again. The memory saves time and never changes an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from nodecpu.cpuset import CpuSet
from nodecpu.policy.tree import Named, build_tree
from nodecpu.topology.model import Topology


@final
class _Layout:
    """Where the fields of a census are. ``threads`` is the size of the largest core.

    ``cores``, ``l3`` and ``numa`` are the masks of these groups, which the tree of units may have merged or left out.
    """

    __slots__ = ("_bases", "_homes", "cores", "l3", "mixed", "numa", "threads", "whole")

    def __init__(self, sizes: Iterable[int], topology: Topology) -> None:
        self.cores = tuple(core.cpus.mask for core in topology.cores)
        self.l3 = tuple(cache.cpus.mask for cache in topology.l3)
        self.numa = tuple(node.cpus.mask for node in topology.numa if node.cpus)
        self.threads = max(core.bit_count() for core in self.cores)
        self.mixed = self.whole = 0
        self._bases: dict[int, int] = {}
        self._homes: dict[int, int] = {}
        base = 0
        for size in sorted(sizes):
            self._bases[size] = base
            self.mixed |= _bits(base, 0, size)
            self.whole |= _bits(base + size + 1, 0, size)
            base += 3 * (size + 1)

    def bits_of(self, size: int, free: int, whole: int) -> int:
        """Return the census bits of a unit with so many CPUs free and in wholly free cores."""
        base, step = self._bases[size], size + 1
        bits = 1 << (base + step + whole) | 1 << (base + 2 * step + free)
        return bits | 1 << (base + whole) if free - whole >= self.threads - 1 else bits

    def homes(self, count: int) -> int:
        """Return the census bits of units that hold a request, the better the lower."""
        if count not in self._homes:
            rest = count % self.threads
            bits = 0
            for size, base in self._bases.items():
                if size >= count:
                    step = size + 1
                    bits |= _bits(base, count - rest, size) if rest else 0
                    bits |= _bits(base + step, count, size) | _bits(base + 2 * step, count, size)
            self._homes[count] = bits
        return self._homes[count]


@dataclass(slots=True)
class _Census:
    """What a unit holds with ``free``: the bits of it and all below, its own among them, and CPUs in whole cores."""

    free: int = 0
    bits: int = 0
    own: int = 0
    whole: int = 0


@final
class Unit:
    """A node of the tree: the mask of its CPUs and its children, which partition it; none: single CPUs below."""

    __slots__ = ("_around", "_last", "children", "layout", "mask", "size")

    def __init__(self, mask: int, children: tuple[Unit, ...], layout: _Layout) -> None:
        self.mask = mask
        self.size = mask.bit_count()
        self.children = children
        self.layout = layout
        self._last = _Census()
        self._around: dict[int, tuple[int, ...]] = {}

    def parts(self, free: int) -> list[tuple[Unit, int]]:
        """Return the children that have CPUs free, with these."""
        return [(child, part) for child in self.children if (part := free & child.mask)]

    def census(self, free: int) -> _Census:
        """Return the census for ``free``, which is within the unit and not empty."""
        if self._last.free == free:
            return self._last
        bits, whole = 0, free if free == self.mask else 0
        for child, part in self.parts(free):
            below = child.census(part)
            bits |= below.bits
            whole |= below.whole
        own = self.layout.bits_of(self.size, free.bit_count(), whole.bit_count())
        self._last = _Census(free, bits | own, own, whole)
        self._around.clear()
        return self._last

    def around(self, free: int, home: int) -> tuple[int, ...]:
        """Return how many CPUs are free around the best unit of a census bit, from the inside out up to this unit."""
        census = self.census(free)
        if home & census.own:
            return ()
        if home not in self._around:
            below = (child.around(part, home) for child, part in self.parts(free) if child.census(part).bits & home)
            self._around[home] = (*min(below), free.bit_count())
        return self._around[home]


def build_units(topology: Topology) -> Unit:
    """Return the tree of units of a machine (its online CPUs)."""
    levels: list[tuple[str, list[CpuSet]]] = [
        ("package", [g.cpus for g in topology.packages]),
        ("die", [g.cpus for g in topology.dies]),
        ("numa", [n.cpus for n in topology.numa]),
        ("l3", [g.cpus for g in topology.l3]),
        ("cluster", [g.cpus for g in topology.clusters]),
        ("l2", [g.cpus for g in topology.l2]),
        # Cores of one thread too: beside cores of more they keep those whole.
        ("core", [g.cpus for g in topology.cores]),
    ]
    named = [
        Named(rank=rank, kind=kind, label="", cpus=cpus)
        for rank, (kind, groups) in enumerate(levels)
        for cpus in groups
    ]
    nodes = build_tree([Named(rank=-1, kind="machine", label="", cpus=topology.online), *named])
    layout = _Layout({len(node.cpus) for node in nodes}, topology)
    units: dict[int, Unit] = {}
    for node in reversed(nodes):  # children before parents
        units[node.index] = Unit(node.cpus.mask, tuple(units[i] for i in node.children), layout)
    return units[0]


def pick(machine: Unit, free: CpuSet, count: int) -> CpuSet | None:
    """Return ``count`` CPUs (≥ 0) of ``free``, or None if it has fewer. Equal inputs give equal CPUs."""
    available = free.mask & machine.mask
    if count > available.bit_count():
        return None
    return CpuSet.from_mask(_take(machine, available, count))


def _take(unit: Unit, free: int, count: int) -> int:
    """Return the mask of ``count`` CPUs of ``free``, which is within the unit and has at least that many."""
    if count in (0, free.bit_count()):
        return free if count else 0
    home = _lowest_bit(unit.census(free).bits & unit.layout.homes(count))
    while not home & unit.census(free).own:
        towards = [one for one in unit.parts(free) if one[0].census(one[1]).bits & home]
        unit, free = min(towards, key=lambda one: one[0].around(one[1], home))
    whole = unit.census(free).whole
    if home & unit.layout.mixed:
        rest = count % unit.layout.threads
        return _take_across(unit, whole, count - rest) | _take_across(unit, free & ~whole, rest)
    return _take_across(unit, whole if home & unit.layout.whole else free, count)


def _take_across(unit: Unit, free: int, count: int) -> int:
    """Return the mask of ``count`` CPUs of ``free`` from as few children of the unit as can be."""
    if count in (0, free.bit_count()):
        return free if count else 0
    if not unit.children:
        return _lowest_bits(free, count)
    # The largest free child first; of equals the whole before the broken, then the lowest numbers.
    left = [(part.bit_count(), child, part) for child, part in unit.parts(free)]
    left.sort(key=lambda one: (-one[0], one[1].size))
    taken = 0
    while (room := left[0][0]) < count:
        taken |= left.pop(0)[2]
        count -= room
    homes = unit.layout.homes(count)
    fitting = [
        (_lowest_bit(child.census(part).bits & homes), child, part) for room, child, part in left if room >= count
    ]
    _, child, part = min(fitting, key=lambda one: (one[0], one[1].around(one[2], one[0])))
    return taken | _take(child, part, count)


def _bits(base: int, first: int, last: int) -> int:
    """Return the bits of a field from one place to another, both included."""
    return ((1 << (last - first + 1)) - 1) << (base + first)


def _lowest_bit(bits: int) -> int:
    return bits & -bits


def _lowest_bits(bits: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        low = _lowest_bit(bits)
        taken |= low
        bits ^= low
    return taken
