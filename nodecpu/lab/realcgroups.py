"""Real processes in the kernel's own cpuset cgroups below one group of ours (root; cgroup v1 or v2).

A container is a process that sleeps. Paths are below the hierarchy's top and begin with our group's. What others
write is not counted here: the kernel tells nobody.
Source: cpuset(7), kernel documents cgroup-v1/cpusets and cgroup-v2.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from pathlib import Path
from typing import Final

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.lab.cgroups import CgroupError, Effective

_FILES: Final = ("cpuset.cpus", "cpuset.mems")
_PATIENCE_S: Final = 5.0


class RealCgroups:
    """Our group and everything below it; ``mount`` is where cgroups are mounted."""

    def __init__(self, group: str, *, mount: Path = Path("/sys/fs/cgroup")) -> None:
        self.group = group
        self._is_v2 = (mount / "cgroup.controllers").exists()
        self._base = mount if self._is_v2 else mount / "cpuset"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._writes: dict[str, int] = {}

    def open(self) -> None:
        """Make our group. CgroupError if this host does not let us."""
        try:
            self.make(self.group)
        except OSError as error:
            raise CgroupError(f"no cpuset cgroups can be made here: {error}") from error

    def close(self) -> None:
        """End all processes and remove all groups."""
        for path in tuple(self._processes):
            self.kill(path)
        for directory, _, _ in os.walk(self._place(self.group), topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()

    def make(self, path: str) -> None:
        """Make a group and its parents, each with all that its parent may use."""
        place = self._base
        for part in path.strip("/").split("/"):
            parent, place = place, place / part
            if self._is_v2:
                (parent / "cgroup.subtree_control").write_text("+cpuset")
            with contextlib.suppress(FileExistsError):
                place.mkdir()
            if not self._is_v2:  # a v1 group takes no processes before both are set
                for name in _FILES:
                    if not (place / name).read_text().strip():
                        (place / name).write_text((parent / name).read_text())

    def create(self, path: str, cpus: str = "", mems: str = "") -> int:
        """Make a group with a cpuset, then a sleeping process in it; return its process id. Raises CgroupError."""
        self.make(path)
        self.write_cpuset(path, cpus, mems)
        process = subprocess.Popen(
            ["sleep", "infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._processes[path] = process
        (self._place(path) / "cgroup.procs").write_text(str(process.pid))
        return process.pid

    def write_cpuset(self, path: str, cpus: str, mems: str) -> None:
        """Write both files, leaving out what is empty. CgroupError if the kernel refuses."""
        for name, value in zip(_FILES, (cpus, mems), strict=True):
            try:
                if value:
                    (self._place(path) / name).write_text(value)
            except OSError as error:
                raise CgroupError(f"write {path}/{name}: {value}: {error.strerror}") from error
        if cpus:
            self._writes[path] = self._writes.get(path, 0) + 1

    def write_quota(self, path: str, quota_us: int, period_us: int) -> None:
        """Do nothing: only cpusets are real here."""

    def cpus_allowed_by_quota(self, path: str) -> float | None:
        """Return None: only cpusets are real here."""
        del path
        return None

    def kill(self, path: str) -> None:
        """End the processes of a group and of those below it, and remove them; nothing if it is not there."""
        for inner in [one for one in self._processes if one == path or one.startswith(f"{path}/")]:
            process = self._processes.pop(inner)
            process.kill()
            process.wait(_PATIENCE_S)
        deadline = time.monotonic() + _PATIENCE_S
        for directory, _, _ in os.walk(self._place(path), topdown=False):
            while time.monotonic() < deadline:  # a group is busy for a moment after its last process
                try:
                    Path(directory).rmdir()
                except OSError:
                    time.sleep(0.01)
                    continue
                break

    def effective(self, path: str) -> Effective | None:
        """Return what the kernel says of the process in a group, None if there is none."""
        process = self._processes.get(path)
        if process is None:
            return None
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            return None
        lines = dict(line.partition(":")[::2] for line in status.splitlines())
        return Effective(cpus=CpuSet.parse(lines["Cpus_allowed_list"]), mems=NodeSet.parse(lines["Mems_allowed_list"]))

    def writes(self, path: str) -> int:
        """Return how often the runtime wrote the CPUs of a group."""
        return self._writes.get(path, 0)

    def _place(self, path: str) -> Path:
        return self._base / path.strip("/")
