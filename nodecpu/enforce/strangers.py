"""Finds containers below kubepods that the books do not know (thin shell; E1, U58).

A runtime may tell nothing of a container that was created while we registered. Its cgroup is there all the same: a
group in a pod's group, with processes, that bears neither the id of a container nor that of a sandbox of ours. One look
may come between a cgroup and its event, so only what two looks in a row have found counts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from nodecpu.enforce.cgroups import has_processes

_TOPS: Final = ("kubepods.slice", "kubepods")
_POD: Final = re.compile(r"(?:kubepods-(?:besteffort-|burstable-)?)?pod[0-9A-Za-z_.-]+?(?:\.slice)?", re.ASCII)
_UNIT: Final = re.compile(r"(?:[A-Za-z0-9]+-)*?([0-9A-Za-z_.]+?)(?:\.scope|\.service)?", re.ASCII)
_LONG_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
"""The ids of containerd and CRI-O."""

_MOST: Final = 10_000
"""Groups looked at in one go; a node has a few hundred."""


class Strangers:
    """Looks below one cpuset hierarchy."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._last: frozenset[str] = frozenset()

    def look(self, known: Collection[str]) -> tuple[str, ...]:
        """Return the places of the containers that nobody knows, as of this look and the one before; blocking."""
        found = frozenset(place for place, name in self._groups() if not _is_known(name, known))
        both, self._last = found & self._last, found
        return tuple(sorted(both))

    def _groups(self) -> Iterator[tuple[str, str]]:
        """Yield the groups in pods' groups that have processes: place below the hierarchy, and name."""
        count, base = 0, str(self._base)
        for top in _TOPS:
            for directory, names, _ in os.walk(f"{base}/{top}"):
                if _POD.fullmatch(directory.rpartition("/")[2]) is None:
                    continue
                for name in sorted(names):
                    count += 1
                    if count > _MOST:
                        return
                    if has_processes(f"{directory}/{name}"):
                        yield f"{directory.removeprefix(base)}/{name}", name
                names.clear()  # what is in a container is its own affair


def _is_known(name: str, known: Collection[str]) -> bool:
    long = _LONG_ID.search(name)
    if long is not None:
        return long[0] in known
    plain = _UNIT.fullmatch(name)
    return name in known or (plain is not None and plain[1] in known)
