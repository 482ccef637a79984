"""What the runtime at the other end can do (pure).

A runtime from NRI 0.12 on tells its NRI version. An older one tells its own name and version only, which a table maps
to the NRI module it was built with. Everything here is "at least": when in doubt the runtime counts as older, so that
a fault it may have is avoided and a feature it may lack is not relied on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from nodecpu.proto import nri_pb2

Release = tuple[int, int, int]

_VERSION: Final = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(.*)", re.ASCII | re.DOTALL)
_PRERELEASE: Final = re.compile(r"[-~.]?(?:alpha|beta|rc|dev|pre)|-\d", re.ASCII | re.IGNORECASE)
"""What comes before the release it names: ``-rc.1``, ``~beta2``, ``-0.20260718101112-55afaa2`` and ``-70-g301026e58``.
A vendor's suffix (``+unknown``, ``~ds1``, ``-k3s1``) comes after it."""

DEADLOCK_FIX: Final[Release] = (0, 12, 1)
"""First NRI whose runtimes survive an UpdateContainers of ours during a request. Source: containerd/nri pull 301."""

_MORE_EVENTS: Final[Release] = (0, 10, 0)
"""First NRI that knows events 12 to 14; an older one drops a plugin that asks for them. Source: api.proto, Event."""

_SCHEDULES: Final[Release] = (0, 11, 0)
"""First NRI that sets both scheduling policy and I/O priority of a container. Source: api.proto; interfaces.md 1.9."""

_OLD_LAST: Final = nri_pb2.REMOVE_CONTAINER

CONTAINERD_SHOWS_CDI: Final[Release] = (2, 3, 0)
"""First containerd that fills Container.CDI_devices. Source: containerd internal/cri/nri; interfaces.md 1.10."""

# First release of a runtime to the NRI module from there on, rising. A module that is itself a prerelease counts as the
# release before. Source: the runtimes' go.mod files; interfaces.md 1.12.
_CONTAINERD: Final[tuple[tuple[Release, Release], ...]] = (
    ((1, 7, 0), (0, 3, 0)),
    ((1, 7, 7), (0, 4, 0)),
    ((1, 7, 14), (0, 6, 0)),
    ((1, 7, 16), (0, 6, 1)),
    ((1, 7, 26), (0, 8, 0)),
    ((2, 0, 0), (0, 8, 0)),
    ((2, 1, 0), (0, 8, 0)),
    ((2, 2, 0), (0, 10, 0)),
    ((2, 2, 1), (0, 11, 0)),
    ((2, 3, 0), (0, 12, 0)),
    ((2, 4, 0), (0, 12, 1)),
)
_CRIO: Final[tuple[tuple[Release, Release], ...]] = (
    ((1, 26, 0), (0, 2, 0)),
    ((1, 26, 2), (0, 3, 0)),
    ((1, 27, 0), (0, 3, 0)),
    ((1, 28, 0), (0, 3, 0)),
    ((1, 29, 0), (0, 5, 0)),
    ((1, 29, 2), (0, 6, 0)),
    ((1, 30, 0), (0, 6, 0)),
    ((1, 31, 0), (0, 6, 1)),
    ((1, 32, 0), (0, 9, 0)),
    ((1, 33, 0), (0, 9, 0)),
    ((1, 34, 0), (0, 10, 0)),
    ((1, 35, 0), (0, 11, 0)),
    ((1, 36, 0), (0, 11, 0)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeVersion:
    """The runtime as it introduced itself.

    ``nri`` is the NRI release it has at least, None if unknown. ``shows_cdi``: containers come with their CDI device
    names. ``safe_unsolicited``: it may be sent updates that answer no request. ``schedules``: it sets scheduling
    policies and I/O priorities.
    """

    name: str
    version: str
    nri: Release | None
    shows_cdi: bool
    safe_unsolicited: bool
    schedules: bool = False


def runtime_version(name: str, version: str, nri_version: str) -> RuntimeVersion:
    """Return what the three fields of a ConfigureRequest tell; ``nri_version`` is empty before NRI 0.12.

    Source: api.proto, ConfigureRequest fields 2, 3 and 6.
    """
    nri = _told_nri(nri_version) or _nri_of(name, version)
    return RuntimeVersion(
        name=name,
        version=version,
        nri=nri,
        shows_cdi=name == "containerd" and (_release(version) or (0, 0, 0)) >= CONTAINERD_SHOWS_CDI,
        safe_unsolicited=nri is not None and nri >= DEADLOCK_FIX,
        schedules=nri is not None and nri >= _SCHEDULES,
    )


def event_mask(nri: Release | None, events: Iterable[nri_pb2.Event.ValueType]) -> int:
    """Return the subscription to those of ``events`` that a runtime with NRI ``nri`` is sure to know.

    Never 0 for a mask without known events, since 0 subscribes to everything: ValueError then.
    """
    last = nri_pb2.LAST - 1 if nri is not None and nri >= _MORE_EVENTS else _OLD_LAST
    mask = sum(1 << (event - 1) for event in set(events) if nri_pb2.UNKNOWN < event <= last)
    if not mask:
        raise ValueError("a subscription needs an event that the runtime knows")
    return mask


def _told_nri(text: str) -> Release | None:
    release = _release(text)  # "", "(devel)": no version at all
    return release if release is not None and release > (0, 0, 0) else None  # "0.0.0-unknown"


def _nri_of(name: str, version: str) -> Release | None:
    """Look the module up among the releases of the same minor version; a later patch release has it at least."""
    table = {"containerd": _CONTAINERD, "cri-o": _CRIO}.get(name, ())
    release = _release(version)
    if release is None:
        return None
    found = [nri for first, nri in table if first[:2] == release[:2] and first <= release]
    return found[-1] if found else None


def _release(text: str) -> Release | None:
    """Return the newest release that ``text`` surely contains; a prerelease contains the one before only."""
    match = _VERSION.fullmatch(text.strip())
    if match is None:
        return None
    major, minor, patch = int(match[1]), int(match[2]), int(match[3] or 0)
    if _PRERELEASE.match(match[4]) is None:
        return (major, minor, patch)
    if patch:
        return (major, minor, patch - 1)
    return (major, minor - 1, 0) if minor else (major, 0, 0)
