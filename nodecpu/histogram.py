"""How values are spread over buckets (pure): plain numbers, so that observing costs next to nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts of values up to each bound, and beyond the last; ``bounds`` rise."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Take in a value: it belongs to the first bound that is not below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
