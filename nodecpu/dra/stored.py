"""Which slices are stored, as far as is known: from lists, from a watch and from the answers to our own writes (pure).

The three overtake each other: a list may be older than the answer to a write that came meanwhile, an answer older than
what the watch told. What is newer counts, and a slice that is gone does not come back. Source: KEP-5504, resource
versions compare as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nodecpu.dra.slices import Slice

_REMEMBERED: Final = 256
"""Slices that are gone, by UID: an answer to our own write that comes late must not raise one from the dead."""


class StoredSlices:
    """The slices of one driver on one node, by name; nothing is known before the first list."""

    def __init__(self) -> None:
        self._known: dict[str, Slice] | None = None
        self._gone: dict[str, None] = {}
        self._written: set[str] = set()

    @property
    def is_known(self) -> bool:
        """Return whether all have been listed once."""
        return self._known is not None

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Return all there are; none before the first list."""
        return tuple((self._known or {}).values())

    def listing(self) -> None:
        """Take it that all are asked for now."""
        self._written.clear()

    def listed(self, slices: Iterable[Slice], version: str) -> None:
        """Take all there were at a resource version; what was written since they were asked for may be newer.

        All else counts as listed, whatever its version: a server that was set back counts anew from a lower one.
        """
        fresh = {one.name: one for one in slices if one.uid not in self._gone}
        for name, known in (self._known or {}).items():
            past = fresh[name].resource_version if name in fresh else version
            if name in self._written and is_newer(known.resource_version, past):
                fresh[name] = known
        self._known = fresh

    def changed(self, one: Slice) -> bool:
        """Take a slice that was told to be there; return whether that is news."""
        return self._known is not None and self._take(one)

    def deleted(self, one: Slice) -> bool:
        """Take it that a slice is gone; return whether that is news."""
        if self._known is None or self._is_behind(one):
            return False
        if (known := self._known.get(one.name)) is not None and known.uid == one.uid:
            del self._known[one.name]
        self._gone[one.uid] = None
        if len(self._gone) > _REMEMBERED:
            del self._gone[next(iter(self._gone))]
        return True

    def written(self, one: Slice) -> bool:
        """Take the answer to a write of ours; return whether the slice is still there.

        Somebody may have been so quick that the watch told of the deletion before the answer came.
        """
        assert self._known is not None  # nothing is written before the first list
        self._written.add(one.name)
        self._take(one)
        return one.uid not in self._gone

    def _take(self, one: Slice) -> bool:
        assert self._known is not None
        if one.uid in self._gone or self._is_behind(one):
            return False
        self._known[one.name] = one
        return True

    def _is_behind(self, one: Slice) -> bool:
        known = (self._known or {}).get(one.name)
        return known is not None and known.uid == one.uid and is_newer(known.resource_version, one.resource_version)


def is_newer(version: str, other: str) -> bool:
    """Return whether a resource version is above another; False for what is no number."""
    try:
        return int(version) > int(other)
    except ValueError:
        return False
