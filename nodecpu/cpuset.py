"""Immutable sets of small ids held as the bits of one int (pure).

A kernel list such as ``0-3,8`` is the only text form. Two kinds exist so that CPUs and memory nodes cannot be mixed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, Self, final

MAX_ID: Final = 65535
"""Largest id taken from text: far above any kernel's CPU limit, small enough that a hostile list stays cheap."""

_MAX_TEXT: Final = 1 << 18
_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)


class _BitSet:
    """A set of non-negative ids; ordered by nothing, iterated in rising order, hashed by its mask."""

    __slots__ = ("mask",)
    mask: int

    def __init__(self, ids: Iterable[int] = ()) -> None:
        mask = 0
        for i in ids:
            if i < 0:
                raise ValueError(f"negative id {i}")
            mask |= 1 << i
        object.__setattr__(self, "mask", mask)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return (type(self).from_mask, (self.mask,))

    @classmethod
    def from_mask(cls, mask: int) -> Self:
        """Return the set whose ids are the one bits of ``mask`` (≥ 0)."""
        new = object.__new__(cls)
        object.__setattr__(new, "mask", mask)
        return new

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the set written in the kernel's list form; empty text is the empty set.

        White space around the list and around its parts is allowed, overlaps and any order too.
        Raises ValueError, with the offending part, for anything else, and for ids above MAX_ID.
        """
        if len(text) > _MAX_TEXT:
            raise ValueError(f"list of {len(text)} characters is too long")
        mask = 0
        text = text.strip()
        if not text:
            return cls.from_mask(0)
        for part in text.split(","):
            found = _RANGE.fullmatch(part.strip())
            if found is None:
                raise ValueError(f"not a range of ids: {part[:40]!r}")
            low = int(found[1])
            high = low if found[2] is None else int(found[2])
            if high < low or high > MAX_ID:
                raise ValueError(f"range out of order or too large: {part[:40]!r}")
            mask |= ((1 << (high - low + 1)) - 1) << low
        return cls.from_mask(mask)

    def __and__(self, other: Self) -> Self:
        return self.from_mask(self.mask & other.mask)

    def __or__(self, other: Self) -> Self:
        return self.from_mask(self.mask | other.mask)

    def __sub__(self, other: Self) -> Self:
        return self.from_mask(self.mask & ~other.mask)

    def __xor__(self, other: Self) -> Self:
        return self.from_mask(self.mask ^ other.mask)

    def __le__(self, other: Self) -> bool:
        return not self.mask & ~other.mask

    def __ge__(self, other: Self) -> bool:
        return not other.mask & ~self.mask

    def isdisjoint(self, other: Self) -> bool:
        """Return whether no id is in both."""
        return not self.mask & other.mask

    def __bool__(self) -> bool:
        return self.mask != 0

    def __len__(self) -> int:
        return self.mask.bit_count()

    def __contains__(self, i: int) -> bool:
        return i >= 0 and bool(self.mask >> i & 1)

    def __iter__(self) -> Iterator[int]:
        mask = self.mask
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    def first(self) -> int:
        """Return the lowest id; ValueError if the set is empty."""
        if not self.mask:
            raise ValueError("empty set has no first id")
        return (self.mask & -self.mask).bit_length() - 1

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.mask == self.mask

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.mask))

    def __str__(self) -> str:
        parts: list[str] = []
        mask, base = self.mask, 0
        while mask:
            skip = (mask & -mask).bit_length() - 1
            mask >>= skip
            base += skip
            run = (~mask & (mask + 1)).bit_length() - 1
            parts.append(str(base) if run == 1 else f"{base}-{base + run - 1}")
            mask >>= run
            base += run
        return ",".join(parts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.parse({str(self)!r})"


@final
class CpuSet(_BitSet):
    """A set of logical CPU numbers."""

    __slots__ = ()


@final
class NodeSet(_BitSet):
    """A set of NUMA node numbers, as ``cpuset.mems`` takes them."""

    __slots__ = ()


NO_CPUS: Final = CpuSet()
NO_NODES: Final = NodeSet()


def union(sets: Iterable[CpuSet]) -> CpuSet:
    """Return the union of CPU sets, the empty set of none."""
    mask = 0
    for one in sets:
        mask |= one.mask
    return CpuSet.from_mask(mask)
