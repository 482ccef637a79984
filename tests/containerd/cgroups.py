"""Reads what the kernel really enforces: cpusets of cgroups, v1 and v2, and every write made to them."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from nodecpu.cpuset import CpuSet, NodeSet

_IN_MODIFY = 0x2
_IN_NONBLOCK = os.O_NONBLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """The mounted hierarchies: ``cpuset`` is the one that holds cpusets, ``roots`` are all of them."""

    cpuset: Path
    roots: tuple[Path, ...]
    unified: bool

    def cpus_file(self, cgroup: str) -> Path:
        """Return the file that a runtime writes."""
        return self.cpuset / cgroup.lstrip("/") / "cpuset.cpus"

    def cpus(self, cgroup: str) -> CpuSet:
        """Return the CPUs that tasks of the cgroup may run on."""
        return CpuSet.parse(self._read(cgroup, "cpuset.cpus.effective" if self.unified else "cpuset.effective_cpus"))

    def mems(self, cgroup: str) -> NodeSet:
        """Return the memory nodes of the cgroup."""
        return NodeSet.parse(self._read(cgroup, "cpuset.mems.effective" if self.unified else "cpuset.effective_mems"))

    def quota_us(self, cgroup: str) -> int:
        """Return the CFS quota of each 100 ms, -1 for none."""
        place = self._cpu(cgroup)
        if self.unified:
            quota = (place / "cpu.max").read_text().split()[0]
            return -1 if quota == "max" else int(quota)
        return int((place / "cpu.cfs_quota_us").read_text())

    def limit(self, cgroup: str, quota_us: int) -> None:
        """Set a CFS quota of each 100 ms, as the kubelet does to a pod."""
        place = self._cpu(cgroup)
        (place / ("cpu.max" if self.unified else "cpu.cfs_quota_us")).write_text(str(quota_us))

    def _cpu(self, cgroup: str) -> Path:
        root = self.cpuset if self.unified else next(one for one in self.roots if (one / "cpu.shares").exists())
        return root / cgroup.lstrip("/")

    def remove(self, cgroup: str, *, timeout_s: float = 0.0) -> None:
        """Remove the cgroup and all below it from every hierarchy.

        Tasks that were killed may take a moment to leave: they are waited for; OSError if they are still there then.
        """
        end = time.monotonic() + timeout_s
        for root in self.roots:
            for directory, _, _ in os.walk(root / cgroup.lstrip("/"), topdown=False):
                while not _removed(Path(directory), is_last_try=time.monotonic() >= end):
                    time.sleep(0.01)

    def exists(self, cgroup: str) -> bool:
        """Tell whether any hierarchy has the cgroup."""
        return any((root / cgroup.lstrip("/")).exists() for root in self.roots)

    def _read(self, cgroup: str, name: str) -> str:
        return (self.cpuset / cgroup.lstrip("/") / name).read_text()


def _removed(directory: Path, *, is_last_try: bool) -> bool:
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY or is_last_try:
            raise
        return False
    return True


def find_cgroups() -> Cgroups | None:
    """Return this machine's hierarchies, None if none has cpusets. Source: proc(5), mountinfo."""
    v1: list[tuple[Path, set[str]]] = []
    v2: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        mount = Path(left.split(" ")[4])
        if kind == "cgroup":
            v1.append((mount, set(options.split(","))))
        elif kind == "cgroup2":
            v2.append(mount)
    roots = (*(mount for mount, _ in v1), *v2)
    for mount, options_of in v1:
        if "cpuset" in options_of:
            return Cgroups(cpuset=mount, roots=roots, unified=False)
    for mount in v2:
        if "cpuset" in (mount / "cgroup.controllers").read_text().split():
            return Cgroups(cpuset=mount, roots=roots, unified=True)
    return None


class WriteWatch:
    """Sees every write to the given files, also one that leaves the value as it was. Source: inotify(7)."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(_IN_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        for file in files:
            if self._libc.inotify_add_watch(self._fd, os.fsencode(file), _IN_MODIFY) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(file))

    def __enter__(self) -> WriteWatch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def written(self) -> bool:
        """Tell whether a write was seen since the last question."""
        try:
            return bool(os.read(self._fd, 65536))
        except BlockingIOError:
            return False
