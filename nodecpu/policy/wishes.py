"""Picking with wishes: whole cores, spread over cores, nodes or caches, all in one cache (pure; K2, C10).

A wish narrows the free set or splits the amount over groups; which CPUs are taken then is the picker's choice. What
cannot be had is dropped, the least of it, and named, so that the caller can refuse it or record it. Nothing here grows
faster than the number of groups (K3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from nodecpu.cpuset import CpuSet
from nodecpu.policy.picker import Unit, pick


class Spread(Enum):
    """What CPUs are distributed over; the values are the words of configuration and claims."""

    CORES = "cores"
    """One thread of as many cores as possible."""
    NUMA = "numa"
    """Evenly over the fewest NUMA nodes that hold them."""
    L3 = "l3"
    """Evenly over as many L3 caches as possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """How CPUs are to be picked beside K1. ``strict``: one that cannot be met is an error, not a compromise."""

    full_cores: bool = False
    spread: Spread | None = None
    same_l3: bool = False
    strict: bool = False

    @property
    def conflict(self) -> str:
        """What of it contradicts itself, in words; empty if nothing does."""
        if self.full_cores and self.spread is Spread.CORES:
            return "whole cores and one thread of each core exclude each other"
        if self.same_l3 and self.spread in (Spread.L3, Spread.NUMA):
            return "CPUs cannot share an L3 cache and be spread over several"
        return ""


NO_WISHES = Wishes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Picked:
    """CPUs, and the wishes that could not be met, in words."""

    cpus: CpuSet
    missed: tuple[str, ...] = ()


def pick_by(machine: Unit, free: CpuSet, count: int, wishes: Wishes) -> Picked | None:
    """Return ``count`` CPUs of ``free``, or None if it has fewer; without wishes what ``pick`` returns."""
    available = free.mask & machine.mask
    if count > available.bit_count():
        return None
    for left, missed in _weaker(wishes):
        taken = _pick(machine, available, count, left)
        if taken is not None:
            return Picked(cpus=CpuSet.from_mask(taken), missed=missed)
    raise AssertionError("with a spread alone there is always an answer")


def whole_cores(machine: Unit, cpus: CpuSet) -> CpuSet:
    """Return those of the CPUs whose core is among them with all its threads."""
    return CpuSet.from_mask(_whole(machine, cpus.mask))


def _weaker(wishes: Wishes) -> Iterator[tuple[Wishes, tuple[str, ...]]]:
    """Yield the wishes, then fewer and fewer of them, each time with the words for those left out.

    A spread is never left out: where it is the only wish it can always be had.
    """
    for full, same in ((True, True), (True, False), (False, True), (False, False)):
        if (full and not wishes.full_cores) or (same and not wishes.same_l3):
            continue
        dropped = ((wishes.full_cores and not full, "full cores"), (wishes.same_l3 and not same, "one L3 cache"))
        kept = replace(wishes, full_cores=full, same_l3=same)
        yield kept, tuple(words for is_dropped, words in dropped if is_dropped)


def _pick(machine: Unit, free: int, count: int, wishes: Wishes) -> int | None:
    full = wishes.full_cores
    if full:
        free = _whole(machine, free)
    if wishes.conflict or free.bit_count() < count:
        return None
    if not count:
        return 0
    if wishes.same_l3:
        inside = _parts(machine.layout.l3, free)
        return _in_one(machine, inside, count, full=full, spread=wishes.spread is Spread.CORES)
    if wishes.spread is Spread.CORES:
        return _over_cores(machine, free, count)
    if wishes.spread is Spread.NUMA:
        return _over_nodes(machine, free, count, full=full)
    if wishes.spread is Spread.L3:
        parts = _with_rest(_parts(machine.layout.l3, free), free)
        return _over(machine, parts, count, full=full)
    return _take(machine, free, count, full=full)


def _whole(machine: Unit, free: int) -> int:
    return _either([core for core in machine.layout.cores if core & free == core])


def _either(masks: Sequence[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _parts(groups: Sequence[int], free: int) -> list[int]:
    """Return what is free of each group that has a free CPU."""
    return [part for group in groups if (part := group & free)]


def _with_rest(parts: list[int], free: int) -> list[int]:
    rest = free & ~_either(parts)
    return [*parts, rest] if rest else parts


def _take(machine: Unit, free: int, count: int, *, full: bool) -> int | None:
    """Return CPUs as the picker chooses; with ``full``, where ``free`` is whole cores, only whole ones."""
    taken = _plain(machine, free, count)
    if taken is None or not full or _whole(machine, taken) == taken:
        return taken
    return _of_mixed_cores(machine, free, count)


def _plain(machine: Unit, free: int, count: int) -> int | None:
    taken = pick(machine, CpuSet.from_mask(free), count)
    return None if taken is None else taken.mask


def _of_mixed_cores(machine: Unit, free: int, count: int) -> int | None:
    """Return whole cores from a machine whose cores differ in size: as many large ones as the amount allows."""
    sizes = sorted({core.bit_count() for core in machine.layout.cores}, reverse=True)
    stock = [
        (size, _either([c for c in machine.layout.cores if c & free == c and c.bit_count() == size])) for size in sizes
    ]
    amounts = _amounts([(size, part.bit_count() // size) for size, part in stock], count)
    if amounts is None:
        return None
    taken = [_plain(machine, part, size * number) for (size, part), number in zip(stock, amounts, strict=True)]
    return _either([part for part in taken if part is not None])


def _amounts(stock: Sequence[tuple[int, int]], count: int) -> tuple[int, ...] | None:
    """Return how many cores of each size make up ``count``, the most of the larger first; None if none do.

    ``stock`` are the sizes and how many there are of each. A table of what is reachable, so that it takes no longer
    than sizes times CPUs.
    """
    reachable: dict[int, tuple[int, ...]] = {0: ()}
    for size, most in stock:
        further: dict[int, tuple[int, ...]] = {}
        for total, numbers in reachable.items():
            for number in range(min(most, (count - total) // size) + 1):
                reached = total + size * number
                further[reached] = max(further.get(reached, ()), (*numbers, number))
        reachable = further
    return reachable.get(count)


def _in_one(machine: Unit, parts: Sequence[int], count: int, *, full: bool, spread: bool = False) -> int | None:
    """Return CPUs from one of the parts: where the picker goes, else from the smallest with enough; None if none."""

    def take(free: int) -> int | None:
        return _over_cores(machine, free, count) if spread else _take(machine, free, count, full=full)

    taken = take(_either(parts))
    if taken is not None and any(taken & ~part == 0 for part in parts):
        return taken
    # A group that crosses the picker's units, or one that only has room for the whole amount in another way.
    found = [(part.bit_count(), part, inside) for part in parts if (inside := take(part)) is not None]
    return min(found)[2] if found else None


def _over_cores(machine: Unit, free: int, count: int) -> int | None:
    """Return one thread of as many cores as possible, then the others' threads."""
    first = _either([part & -part for core in machine.layout.cores if (part := core & free)])
    most = min(count, first.bit_count())
    taken, rest = _plain(machine, first, most), _plain(machine, free & ~first, count - most)
    return None if taken is None or rest is None else taken | rest


def _over_nodes(machine: Unit, free: int, count: int, *, full: bool) -> int | None:
    """Return CPUs spread evenly over the fewest NUMA nodes that hold them, near each other where there is a choice."""
    parts = _with_rest(_parts(machine.layout.numa, free), free)
    parts.sort(key=lambda part: (-part.bit_count(), part & -part))
    number, room = 0, 0
    while room < count:
        room += parts[number].bit_count()
        number += 1
    if number <= 1:
        return _in_one(machine, parts, count, full=full)
    return _over(machine, _near(machine, parts, number, count, full=full), count, full=full)


def _near(machine: Unit, parts: Sequence[int], number: int, count: int, *, full: bool) -> list[int]:
    """Return ``number`` of the parts that hold an even share each: of the smallest unit with so many of them.

    Where there are none, the largest parts: no others hold it as evenly.
    """
    step = machine.layout.threads if full else 1
    share = -(-count // (number * step)) * step
    enough = [part for part in parts if part.bit_count() >= share]
    best: list[int] | None = None
    unit: Unit | None = machine
    while unit is not None:
        within = [part for part in enough if part & ~unit.mask == 0]
        if len(within) < number:
            break
        best = sorted(within, key=lambda part: (part.bit_count(), part & -part))[:number]
        # Into the child that has enough of them, the one with the fewest if there are several.
        inner = [(sum(p & ~child.mask == 0 for p in within), child.mask, child) for child in unit.children]
        inner = [one for one in inner if one[0] >= number]
        unit = min(inner, key=lambda one: (one[0], one[1]))[2] if inner else None
    return best if best is not None else list(parts[:number])


def _over(machine: Unit, parts: Sequence[int], count: int, *, full: bool) -> int | None:
    """Return CPUs of the parts in amounts as even as their sizes allow, the first ones bearing what is odd."""
    step = machine.layout.threads if full else 1
    whole, odd = divmod(count, step)
    rooms = [part.bit_count() // step for part in parts]
    if sum(rooms) < whole:
        return None
    amounts = [number * step for number in _evenly(rooms, whole)]
    taken = 0
    for part, amount in zip(parts, amounts, strict=True):
        # What is odd is a small core's: it is where one of the parts has such a core.
        got = _take(machine, part, amount + odd, full=full)
        if got is None:
            got = _take(machine, part, amount, full=full)
        else:
            odd = 0
        if got is None:
            return None
        taken |= got
    return None if odd else taken


def _evenly(rooms: Sequence[int], count: int) -> list[int]:
    """Return amounts within ``rooms`` whose sum is ``count``, as even as can be; the sum of the rooms is enough."""
    amounts = list(rooms)
    open_rooms = sorted(range(len(rooms)), key=lambda i: rooms[i])
    for place, i in enumerate(open_rooms):
        left = len(open_rooms) - place
        amounts[i] = min(rooms[i], count // left)
        count -= amounts[i]
    # What a floor left over went to the largest rooms, one each: move it to the earliest parts that have room.
    return _to_the_front(amounts, rooms)


def _to_the_front(amounts: list[int], rooms: Sequence[int]) -> list[int]:
    top = max(amounts)
    high = sum(amount == top for amount in amounts)
    able = [i for i, room in enumerate(rooms) if room >= top]
    for place, i in enumerate(able):
        amounts[i] = top if place < high else top - 1
    return amounts
