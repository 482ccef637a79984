"""The last refusals, kept for whoever asks why something does not run: few, in memory, equal ones counted together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

from nodecpu.errors import NodeCpuError

MOST: Final = 64
"""How many are kept; the one that was met longest ago goes first."""

Kind = Literal["claim", "container", "resize"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What was refused and why. ``name`` is ``namespace/claim`` or ``namespace/pod/container``, ``uid`` the claim's or
    pod's. ``count`` equal refusals, the last at ``last_s`` (seconds since 1970).
    """

    kind: Kind
    name: str
    uid: str
    code: str
    message: str
    hint: str
    last_s: float
    count: int = 1


class Refusals:
    """The last refusals by what was refused and why."""

    __slots__ = ("_kept", "_most", "_now")

    def __init__(self, now: Callable[[], float] = time.time, most: int = MOST) -> None:
        self._now = now
        self._most = most
        self._kept: dict[tuple[str, str, str, str], Refused] = {}

    def note(self, err: NodeCpuError, kind: Kind, name: str, uid: str) -> None:
        """Take in a refusal."""
        key = (kind, name, uid, err.message)
        before = self._kept.pop(key, None)
        now = self._now()
        self._kept[key] = (
            Refused(kind=kind, name=name, uid=uid, code=err.code, message=err.message, hint=err.hint, last_s=now)
            if before is None
            else replace(before, count=before.count + 1, last_s=now)
        )
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    @property
    def all(self) -> tuple[Refused, ...]:
        """Those that are kept, the latest last."""
        return tuple(self._kept.values())
