"""The picker once more, by its rules alone: no census in bits and nothing remembered, so slow, and easy to read (K1).

Only requests that one unit without NUMA nodes and L3 groups inside holds: what is divided among these is measured
against the optimum instead (tests/property/test_picker.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from nodecpu.policy.picker import Unit

Grade = tuple[int, bool, int, int]
"""The size of a unit, whether it is divided among groups, how it holds CPUs, and how many.

How: 0: whole cores and enough broken ones beside, in units no larger than a core broken ones alone; 1: whole cores;
2: any.
"""


def plain_take(unit: Unit, free: int, count: int, threads: int) -> int | None:
    """Return the mask of ``count`` CPUs of ``free``, which is within the unit and has as many; None: not for this.

    ``threads`` is the size of the largest core.
    """
    if count in (0, free.bit_count()):
        return free if count else 0
    wanted = _best(unit, free, count, threads)
    while wanted not in _own(unit, free, threads):
        towards = [one for one in unit.parts(free) if wanted in _all(*one, threads)]
        unit, free = min(towards, key=lambda one: _around(one[0], one[1], wanted, threads))
    if unit.wide:
        return None
    whole = _whole(unit, free)
    if wanted[2] == 0:
        rest = count % threads
        return _across(unit, whole, count - rest, threads) | _across(unit, free & ~whole, rest, threads)
    return _across(unit, whole if wanted[2] == 1 else free, count, threads)


def _whole(unit: Unit, free: int) -> int:
    """Return the CPUs of wholly free cores (units without children are cores)."""
    if not unit.children:
        return free if free == unit.mask else 0
    return sum(_whole(child, part) for child, part in unit.parts(free))


def _own(unit: Unit, free: int, threads: int) -> set[Grade]:
    whole, every = _whole(unit, free).bit_count(), free.bit_count()
    kind = unit.size, bool(unit.groups)
    found = {(*kind, 1, whole), (*kind, 2, every)}
    if unit.size <= threads:
        return found if whole else found | {(*kind, 0, every)}
    return found | {(*kind, 0, whole)} if every - whole >= threads - 1 else found


def _all(unit: Unit, free: int, threads: int) -> set[Grade]:
    return _own(unit, free, threads).union(*(_all(child, part, threads) for child, part in unit.parts(free)))


def _best(unit: Unit, free: int, count: int, threads: int) -> Grade:
    """Return the smallest unit's way to hold a request: of equals in whole cores, then with the least."""
    rest = count % threads
    return min(_serving(_all(unit, free, threads), count, rest, threads))


def _serving(grades: set[Grade], count: int, rest: int, threads: int) -> Iterator[Grade]:
    for size, is_divided, way, number in grades:
        least = count - rest if way == 0 and size > threads else count
        if size >= count and number >= least and (way or rest):
            yield size, is_divided, way, number


def _around(unit: Unit, free: int, wanted: Grade, threads: int) -> tuple[int, ...]:
    """Return how many CPUs are free around the fullest of such places, from the inside out."""
    if wanted in _own(unit, free, threads):
        return ()
    below = [_around(*one, wanted, threads) for one in unit.parts(free) if wanted in _all(*one, threads)]
    return (*min(below), free.bit_count())


def _across(unit: Unit, free: int, count: int, threads: int) -> int:
    """Return CPUs of as few children as can be: the largest whole, the rest where it fits best."""
    if count in (0, free.bit_count()):
        return free if count else 0
    if not unit.children:
        return sum(1 << cpu for cpu in [cpu for cpu in range(free.bit_length()) if free >> cpu & 1][:count])
    left = sorted(unit.parts(free), key=lambda one: (-one[1].bit_count(), one[0].size))
    taken = 0
    while left[0][1].bit_count() < count:
        taken |= left[0][1]
        count -= left.pop(0)[1].bit_count()
    fitting = [(*one, _best(*one, count, threads)) for one in left if one[1].bit_count() >= count]
    child, part, _ = min(fitting, key=lambda one: (one[2], _around(one[0], one[1], one[2], threads)))
    rest = plain_take(child, part, count, threads)
    assert rest is not None
    return taken | rest
