"""Reads and writes the cpusets of containers in the cgroup tree (thin shell; v1 and v2, systemd and cgroupfs names).

Source: interfaces 6.3; systemd's slice naming (``a-b.slice`` lies below ``a.slice``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.failpoints import reach

_CHUNK: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What a cgroup's processes really run on."""

    cpus: CpuSet
    mems: NodeSet


class Cgroups:
    """The cpuset hierarchy below one mount point, which is looked at once: v2 has ``cgroup.controllers`` at its top."""

    def __init__(self, root: Path) -> None:
        unified = (root / "cgroup.controllers").exists()
        self._base = root if unified else root / "cpuset"
        self._top = str(self._base)
        self._effective = ("cpuset.cpus.effective", "cpuset.mems.effective")
        if not unified:
            self._effective = ("cpuset.effective_cpus", "cpuset.effective_mems")

    def effective(self, cgroups_path: str) -> Effective | None:
        """Return a container's effective sets; None if its cgroup is gone, not made yet, or has no cpuset."""
        where = self._directory(cgroups_path)
        if where is None:
            return None
        cpus, mems = self._effective
        try:
            found = Effective(cpus=CpuSet.parse(_read(f"{where}/{cpus}")), mems=NodeSet.parse(_read(f"{where}/{mems}")))
        except (OSError, ValueError):
            return None
        return found if found.cpus else None  # processes run somewhere: no CPU at all is no answer

    def is_populated(self, cgroups_path: str) -> bool:
        """Return whether a container's cgroup is there and has processes (it or a cgroup below it)."""
        where = self._directory(cgroups_path)
        return where is not None and any(has_processes(directory) for directory, _, _ in os.walk(where))

    def configured(self, cgroups_path: str) -> CpuSet | None:
        """Return the CPUs that are set in a container's cgroup, whether they have effect or not; None: unreadable."""
        where = self._directory(cgroups_path)
        try:
            return None if where is None else CpuSet.parse(_read(f"{where}/cpuset.cpus"))
        except (OSError, ValueError):
            return None

    def write(self, cgroups_path: str, cpus: CpuSet, mems: NodeSet) -> bool:
        """Write a container's cpuset; an empty set is left alone. Returns whether the kernel took it."""
        where = self._directory(cgroups_path)
        if where is None:
            return False
        try:
            reach("cgroup-write")
            # Memory first: with a wider set of CPUs a task may allocate at once.
            if mems:
                Path(where, "cpuset.mems").write_text(str(mems))
            reach("cgroup-mems-written")
            if cpus:
                Path(where, "cpuset.cpus").write_text(str(cpus))
            reach("cgroup-written")
        except OSError:
            return False
        return True

    def kubepods(self) -> CpuSet | None:
        """Return the CPUs that all pods are confined to (T5); None where nothing tells."""
        for name in ("kubepods.slice", "kubepods"):
            try:
                cpus = CpuSet.parse((self._base / name / self._effective[0]).read_text())
            except (OSError, ValueError):
                continue
            return cpus or None
        return None

    @property
    def base(self) -> Path:
        """The top of the cpuset hierarchy."""
        return self._base

    def _directory(self, cgroups_path: str) -> str | None:
        """Return the directory for a runtime's cgroups_path: ``slice:prefix:id`` of systemd, or a plain path."""
        where = _relative(cgroups_path)
        return None if where is None else f"{self._top}/{where}"


def relative_directory(cgroups_path: str) -> PurePosixPath | None:
    """Return the place of a container's cgroup below a hierarchy's mount point; None if the path names none."""
    where = _relative(cgroups_path)
    return None if where is None else PurePosixPath(where)


def _relative(cgroups_path: str) -> str | None:
    if not cgroups_path or ".." in cgroups_path.split("/"):
        return None
    parts = cgroups_path.split(":")
    if len(parts) != 3:
        return cgroups_path.lstrip("/")
    parent, prefix, name = parts
    unit = f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
    if not parent.endswith(".slice"):
        return f"{parent.lstrip('/')}/{unit}".lstrip("/")
    steps = parent.rpartition("/")[2].removesuffix(".slice").split("-")
    slices = ["-".join(steps[:count]) + ".slice" for count in range(1, len(steps) + 1)]
    return "/".join((*slices, unit))


# By plain calls and texts, here and where directories are named: every synchronisation and every walk of the audit
# reads each container's files. pathlib takes ten times as long, and interns each part of a path, for which the
# interpreter's table of such strings grows by a megabyte in the end.
def _read(path: str) -> str:
    """Return the text of a small file; raises OSError and ValueError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = b""
        while part := os.read(fd, _CHUNK):
            text += part
    finally:
        os.close(fd)
    return text.decode()


def has_processes(directory: str) -> bool:
    """Return whether a cgroup has processes, itself or below; those below are not told of by v1."""
    try:
        return "populated 1" in _read(f"{directory}/cgroup.events")
    except (OSError, ValueError):
        pass  # v1 has no such file
    try:
        return bool(_read(f"{directory}/cgroup.procs").strip())
    except (OSError, ValueError):
        return False
