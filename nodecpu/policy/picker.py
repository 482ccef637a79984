"""Which CPUs to take out of a free set (pure; K1, K3).

The machine is a tree of units (package, die, NUMA node, L3, cluster, L2, core). A request goes into the smallest unit
that holds it; of several such units first into those that hold it in whole cores, then into the one with the least free
(best fit), then into the fullest surroundings, then into the lowest numbers. Where several units are needed, the
largest free ones are taken whole and the rest goes best fit into one more, so that the fewest units are touched and the
fewest broken. Where these are NUMA nodes or L3 groups, whatever lies between them and the home does not count, and the
last two are chosen so that the fewest L3 groups and cores are touched as well.

Theory of operation: a unit's *census* tells what occurs in the units at and below it. Sizes of units are few, so it is
one int: each size, the smallest lowest, has three fields, and bit ``n`` of a field stands for a unit of that size with

- mixed: ``n`` CPUs in wholly free cores, and enough free ones in broken cores for what of a request is not a core; of
  units no larger than the largest core: ``n`` free CPUs, and none of them in a wholly free core,
- whole: ``n`` CPUs in wholly free cores,
- free: ``n`` free CPUs of any kind.

So the lowest census bit that serves a request names its best home, which is found by walking down from the top past the
children that have that bit. A census depends on nothing but the free CPUs inside the unit, so each unit remembers its
last two, of all that is free and of whole cores alone: only what changed is counted again. The memory saves time and
never changes an answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, final

from nodecpu.cpuset import CpuSet, union
from nodecpu.policy.tree import Named, TreeNode, build_tree
from nodecpu.topology.model import Topology

_UNITS: Final = 4
"""So many units, those with the least free, are tried as the home of a request that none of their groups holds."""

_FIRST: Final = 8
"""So many groups, the largest, are tried as the first of the last two."""


@final
class _Layout:
    """Where the fields of a census are. ``threads`` is the size of the largest core.

    ``cores``, ``l3`` and ``numa`` are the masks of these groups, which the tree of units may have merged or left out.
    ``crossing`` are the fields of units that are divided among groups; of one size they come after the others.
    """

    __slots__ = ("_bases", "_homes", "cores", "crossing", "l3", "mixed", "numa", "threads", "whole")

    def __init__(self, topology: Topology) -> None:
        self.cores = tuple(core.cpus.mask for core in topology.cores)
        self.l3 = tuple(cache.cpus.mask for cache in topology.l3)
        self.numa = tuple(node.cpus.mask for node in topology.numa if node.cpus)
        self.threads = max(core.bit_count() for core in self.cores)
        self.mixed = self.whole = self.crossing = 0
        self._bases: dict[tuple[int, bool], int] = {}
        self._homes: dict[int, int] = {}

    def number(self, kinds: Iterable[tuple[int, bool]]) -> None:
        """Give fields to kinds of units: the size, and whether it is divided among groups."""
        base = 0
        for size, has_groups in sorted(kinds):
            self._bases[size, has_groups] = base
            self.mixed |= _bits(base, 0, size)
            self.whole |= _bits(base + size + 1, 0, size)
            end = base + 3 * (size + 1)
            self.crossing |= _bits(base, 0, end - base - 1) if has_groups else 0
            base = end

    def bits_of(self, kind: tuple[int, bool], free: int, whole: int) -> int:
        """Return the census bits of a unit with so many CPUs free and in wholly free cores."""
        base, step = self._bases[kind], kind[0] + 1
        bits = 1 << (base + step + whole) | 1 << (base + 2 * step + free)
        if kind[0] <= self.threads:
            return bits if whole else bits | 1 << (base + free)
        return bits | 1 << (base + whole) if free - whole >= self.threads - 1 else bits

    def levels(self, mask: int) -> tuple[tuple[int, ...], ...]:
        """Return the NUMA nodes, the L3 groups and the cores inside a mask."""
        return tuple(tuple(one for one in level if one & mask == one) for level in (self.numa, self.l3, self.cores))

    def field(self, kind: tuple[int, bool]) -> int:
        """Return all census bits of a kind of units."""
        return _bits(self._bases[kind], 0, 3 * (kind[0] + 1) - 1)

    def homes(self, count: int) -> int:
        """Return the census bits of units that hold a request, the better the lower."""
        if count not in self._homes:
            rest = count % self.threads
            bits = 0
            for (size, _), base in self._bases.items():
                if size >= count:
                    step = size + 1
                    least = count if size <= self.threads else count - rest
                    bits |= _bits(base, least, size) if rest else 0
                    bits |= _bits(base + step, count, size) | _bits(base + 2 * step, count, size)
            self._homes[count] = bits
        return self._homes[count]


@dataclass(slots=True)
class _Census:
    """What a unit holds with ``free``: the bits of it and all below, its own among them, and CPUs in whole cores.

    ``around`` remembers what lies around the best units inside, by census bit.
    """

    free: int = 0
    bits: int = 0
    own: int = 0
    whole: int = 0
    around: dict[int, tuple[int, ...]] = field(default_factory=dict)


@final
class Unit:
    """A node of the tree: the mask of its CPUs and its children, which partition it; none: single CPUs below.

    ``groups`` are the units that a request is divided among which none of them holds: the NUMA nodes inside, else the
    L3 groups; a unit without any is divided among its children. ``wide`` are the units from here down with groups.
    ``levels``, of these and of their groups alone: the masks of NUMA nodes, of L3 groups and of cores inside.
    """

    __slots__ = ("_before", "_last", "children", "groups", "kind", "layout", "levels", "mask", "size", "wide")

    def __init__(self, mask: int, children: tuple[Unit, ...], layout: _Layout) -> None:
        self.mask = mask
        self.size = mask.bit_count()
        self.children = children
        self.layout = layout
        self.levels: tuple[tuple[int, ...], ...] = ()
        self.groups = self._inside(layout.numa) or self._inside(layout.l3)
        for unit in (self, *self.groups) if self.groups else ():
            unit.levels = unit.levels or layout.levels(unit.mask)
        below = tuple(unit for child in children for unit in child.wide)
        self.wide: tuple[Unit, ...] = (self, *below) if self.groups else below
        self.kind = (self.size, bool(self.groups))
        self._last, self._before = _Census(), _Census()

    def _inside(self, level: tuple[int, ...]) -> tuple[Unit, ...]:
        """Return the units of a level inside, if they make up this one."""
        found: list[Unit] = []
        pending = list(self.children)
        while pending:
            unit = pending.pop(0)
            if unit.mask in level:
                found.append(unit)
            else:
                pending += unit.children
        return tuple(found) if sum(unit.size for unit in found) == self.size else ()

    def parts(self, free: int) -> list[tuple[Unit, int]]:
        """Return the children that have CPUs free, with these."""
        return [(child, part) for child in self.children if (part := free & child.mask)]

    def census(self, free: int) -> _Census:
        """Return the census for ``free``, which is within the unit and not empty."""
        if self._last.free == free:
            return self._last
        self._last, self._before = self._before, self._last
        if self._last.free == free:
            return self._last
        bits, whole = 0, free if free == self.mask else 0
        for child in self.children:
            if part := free & child.mask:
                below = child.census(part)
                bits |= below.bits
                whole |= below.whole
        own = self.layout.bits_of(self.kind, free.bit_count(), whole.bit_count())
        self._last = _Census(free, bits | own, own, whole)
        return self._last

    def around(self, free: int, home: int) -> tuple[int, ...]:
        """Return how many CPUs are free around the best unit of a census bit, from the inside out up to this unit."""
        census = self.census(free)
        if home & census.own:
            return ()
        if home not in census.around:
            below = (child.around(part, home) for child, part in self.parts(free) if child.census(part).bits & home)
            census.around[home] = (*min(below), free.bit_count())
        return census.around[home]


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
    nodes = _partitioned([Named(rank=-1, kind="machine", label="", cpus=topology.online), *named], topology)
    layout = _Layout(topology)
    units: dict[int, Unit] = {}
    for node in reversed(nodes):  # children before parents
        units[node.index] = Unit(node.cpus.mask, tuple(units[i] for i in node.children), layout)
    layout.number({unit.kind for unit in units.values()})
    return units[0]


def _partitioned(candidates: list[Named], topology: Topology) -> tuple[TreeNode, ...]:
    """Return the tree of units in which children make up their parent.

    A core that a larger group cuts through is not in the tree (T2: threads of a core on two nodes, as some virtual
    machines have them): what is left of it beside the units there are is a unit of its own.
    """
    for cuts in ([core.cpus for core in topology.cores], [CpuSet([cpu]) for cpu in topology.online]):
        nodes = build_tree(candidates)
        odd = [node.cpus - union(nodes[i].cpus for i in node.children) for node in nodes if node.children]
        pieces = [rest & cut for rest in odd if rest for cut in cuts]
        if not pieces:
            return nodes
        candidates = [*candidates, *(Named(rank=len(candidates), kind="core", label="", cpus=one) for one in pieces)]
    return build_tree(candidates)


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
    census = unit.census(free)
    home = _lowest_bit(census.bits & unit.layout.homes(count))
    if home & unit.layout.crossing:
        return _take_crossing(unit, home, free, count)
    while not home & census.own:
        towards = [one for one in unit.parts(free) if one[0].census(one[1]).bits & home]
        unit, free = _fullest_around(towards, home)
        census = unit.census(free)
    whole = census.whole
    if home & unit.layout.mixed:
        rest = count % unit.layout.threads
        return _take_across(unit, whole, count - rest) | _take_across(unit, free & ~whole, rest)
    return _take_across(unit, whole if home & unit.layout.whole else free, count)


def _fullest_around(some: list[tuple[Unit, int]], home: int) -> tuple[Unit, int]:
    """Return which of some units, each with its free CPUs, has the best of a census bit in the fullest surroundings."""
    first, part = some[0]
    if home & first.census(part).own:
        return some[0]  # nothing lies around a unit that is the best itself
    return min(some, key=lambda one: one[0].around(one[1], home))


def _take_crossing(machine: Unit, home: int, free: int, count: int) -> int:
    """Return the mask of ``count`` CPUs in a unit of the home's size whose groups do not hold them alone.

    That unit is taken in which they touch the fewest groups; of equals the one with the least free.
    """
    layout = machine.layout
    wide = [(unit, free & unit.mask) for unit in machine.wide if home & layout.field(unit.kind)]
    fitting = [(unit, part) for unit, part in wide if part.bit_count() >= count]
    if len(fitting) > _UNITS:
        fitting.sort(key=lambda one: _groups_touched(one[0], one[1], count))
    ways = [(unit, part, taken) for unit, part in fitting[:_UNITS] for taken in _divisions(unit, part, count)]
    return ways[0][-1] if len(ways) == 1 else min(_rank(*way) for way in ways)[-1]


def _groups_touched(unit: Unit, free: int, count: int) -> tuple[int, int, int]:
    """Return how few of its groups hold a request, and what is free; of equals the one with the least free is first."""
    rooms = _sums((group.mask for group in unit.groups), free)
    return bisect_left(rooms, count), rooms[-1], free


def _rank(unit: Unit, free: int, taken: int) -> tuple[int, ...]:
    """Return what orders divisions of a unit, the better the lower; its last number is the division itself."""
    touched = (sum(bool(one & taken) for one in level) for level in unit.levels)
    left = free & ~taken
    broken = sum(left & core not in (0, core) for core in unit.levels[2])
    return *touched, broken, free.bit_count(), free, taken


def _divisions(unit: Unit, free: int, count: int) -> Iterator[int]:
    """Yield ``count`` CPUs of all that is free, of whole cores alone, and of these with broken ones for the rest."""
    yield _divide(unit, free, count)
    whole = unit.census(free).whole
    if whole.bit_count() >= count:
        yield _divide(unit, whole, count)
    rest = count % unit.layout.threads
    if 0 < rest < count and count - rest <= whole.bit_count() and rest <= (free & ~whole).bit_count():
        yield _divide(unit, whole, count - rest) | _take(unit, free & ~whole, rest)


@final
class _Share:
    """A group's free CPUs, and how few L3 groups and cores a number of them takes."""

    __slots__ = ("_cores", "_l3", "free", "room", "unit")

    def __init__(self, unit: Unit, free: int) -> None:
        self.unit = unit
        self.free = free
        self.room = free.bit_count()
        self._l3, self._cores = (_sums(level, free) for level in unit.levels[1:])

    @property
    def steps(self) -> list[int]:
        """How many CPUs its fullest L3 group has free, its two fullest, and so on; then the same of its cores."""
        return self._l3 + self._cores

    def costs(self, count: int) -> tuple[int, int]:
        """Return how many L3 groups and how many cores ``count`` CPUs touch at least, beside the first of each."""
        return bisect_left(self._l3, count), bisect_left(self._cores, count)


def _sums(level: Iterable[int], free: int) -> list[int]:
    """Return how many CPUs are free in the fullest group of a level, in the two fullest, and so on."""
    rooms = sorted(((one & free).bit_count() for one in level), reverse=True)
    return list(accumulate(room for room in rooms if room))


def _divide(unit: Unit, free: int, count: int) -> int:
    """Return the mask of ``count`` CPUs of ``free`` from as few of the unit's groups as can be.

    All but two groups are the largest, taken whole. The last two are those that touch the fewest groups below, the
    first of them giving all that it has in some of its L3 groups or cores; of equals the one that is left with the
    least, then the lowest.
    """
    left = [_Share(group, part) for group in unit.groups if (part := free & group.mask)]
    left.sort(key=lambda one: (-one.room, one.unit.size))
    taken = 0
    while left[0].room < count and left[0].room + left[1].room < count:
        taken |= left[0].free
        count -= left.pop(0).room
    if left[0].room >= count:
        fitting = [(one.costs(count), one.room, place) for place, one in enumerate(left) if one.room >= count]
        last = left[min(fitting)[2]]
        return taken | _take(last.unit, last.free, count)
    *_, less, place, other = min(_last_two(left, count))
    one, two = left[place], left[other]
    return taken | _take(one.unit, one.free, -less) | _take(two.unit, two.free, count + less)


def _last_two(left: list[_Share], count: int) -> Iterator[tuple[int, ...]]:
    """Yield each way to divide a request between two groups: its rank, the better the lower, and at its end less than
    nought what the first gives, and the places of both.
    """
    for place, one in enumerate(left[:_FIRST]):
        for some in set(one.steps):
            rest = count - some
            if rest <= 0:
                continue
            l3, cores = one.costs(some)
            for other, two in enumerate(left):
                if other != place and rest <= two.room:
                    more_l3, more_cores = two.costs(rest)
                    yield l3 + more_l3, cores + more_cores, two.room, -some, place, other


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
    fitting = [(child, part) for room, child, part in left if room >= count]
    found = [_lowest_bit(child.census(part).bits & homes) for child, part in fitting]
    home = min(found)
    child, part = _fullest_around([one for one, bit in zip(fitting, found, strict=True) if bit == home], home)
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
