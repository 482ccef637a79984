"""Reads and raises CFS quotas in the cgroup tree (thin shell; G14, E1; v1 and v2).

Quotas are microseconds per 100 ms whatever period a file has; below 0 stands for none.
Source: kernel documents cgroup-v2 ("cpu.max") and sched-bwc (cpu.cfs_quota_us).
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Final

from nodecpu.enforce.cgroups import relative_directory

PERIOD_US: Final = 100_000
NO_QUOTA: Final = -1

_V1_PLACES: Final = ("cpu,cpuacct", "cpu")


class Cover(Enum):
    """How it stands with a pod's quota."""

    ENOUGH = "enough"
    RAISED = "raised"
    TOO_LOW = "too low"


class CpuQuotas:
    """The cpu controller's files below one mount point; which version it is, is looked at once."""

    def __init__(self, root: Path) -> None:
        self._unified = (root / "cgroup.controllers").exists()
        places = (root / name for name in _V1_PLACES)
        self._base = root if self._unified else next((p for p in places if p.is_dir()), root / "cpu")

    def cover_pod(self, cgroups_path: str, need_us: int, *, lift: bool) -> Cover:
        """Return whether the pod of a container has at least this quota, after raising it if ``lift``."""
        place = self._place(cgroups_path)
        if place is None:
            return Cover.ENOUGH
        have = self._read(place.parent)
        if have is None or have < 0 or have >= need_us:
            return Cover.ENOUGH
        if lift and self._write(place.parent, need_us):
            return Cover.RAISED
        return Cover.TOO_LOW

    def cover_container(self, cgroups_path: str, need_us: int) -> Cover:
        """Return whether a container has at least this quota, after raising it."""
        place = self._place(cgroups_path)
        have = None if place is None else self._read(place)
        if place is None or have is None or have < 0 or 0 <= need_us <= have:
            return Cover.ENOUGH
        return Cover.RAISED if self._write(place, need_us) else Cover.TOO_LOW

    def chain(self, cgroups_path: str) -> Iterator[tuple[str, int]]:
        """Yield each cgroup from a container up to kubepods with its quota; those without are left out."""
        relative = relative_directory(cgroups_path)
        if relative is None:
            return
        for part in (relative, *relative.parents):
            if part.name and (have := self._read(self._base / part)) is not None and have >= 0:
                yield f"/{part}", have

    def _place(self, cgroups_path: str) -> Path | None:
        relative = relative_directory(cgroups_path)
        return None if relative is None else self._base / relative

    def _read(self, place: Path) -> int | None:
        """Return a cgroup's quota; None if it cannot be read."""
        try:
            if self._unified:
                quota, period = (place / "cpu.max").read_text().split()
            else:
                quota = (place / "cpu.cfs_quota_us").read_text()
                period = (place / "cpu.cfs_period_us").read_text()
            return NO_QUOTA if quota == "max" or int(quota) < 0 else int(quota) * PERIOD_US // int(period)
        except (OSError, ValueError, ZeroDivisionError):
            return None

    def _write(self, place: Path, quota_us: int) -> bool:
        try:
            if self._unified:
                (place / "cpu.max").write_text(f"{'max' if quota_us < 0 else quota_us} {PERIOD_US}")
                return True
            period_us = int((place / "cpu.cfs_period_us").read_text())
            quota = quota_us if quota_us < 0 else -(-quota_us * period_us // PERIOD_US)
            (place / "cpu.cfs_quota_us").write_text(str(quota))
        except (OSError, ValueError):
            return False
        return True
