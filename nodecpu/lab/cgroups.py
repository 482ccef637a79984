"""A model of the cgroup v2 tree in plain files, as far as cpusets, CPU weight and quota and process lists go.

A runtime writes through ``write_cpuset``, which counts; anybody else writes the files. ``refresh`` plays the kernel: it
makes the ``.effective`` files what is written, cut by the parent and never empty, and counts foreign writes.
Source: kernel document cgroup-v2, "Cpuset Interface Files".
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nodecpu.cpuset import CpuSet, NodeSet

_CPUS: Final = "cpuset.cpus"
_MEMS: Final = "cpuset.mems"
_QUOTA: Final = "cpu.max"
_PASSED_ON: Final = "cgroup.subtree_control"
_CONTROLLERS: Final = "cpuset cpu io memory pids"
_FILES: Final = {
    _CPUS: "",
    _MEMS: "",
    "cpu.weight": "100",
    _QUOTA: "max 100000",
    "cgroup.procs": "",
    _PASSED_ON: _CONTROLLERS,
    "cgroup.events": "populated 0\nfrozen 0",
}


class CgroupError(Exception):
    """The kernel would have refused the write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """What processes of a cgroup may use."""

    cpus: CpuSet
    mems: NodeSet


class Cgroups(Protocol):
    """Where containers' processes live: the model below, or the kernel's own tree."""

    def create(self, path: str, cpus: str = "", mems: str = "") -> int:
        """Make the cgroup with a cpuset, then a process in it; return the process id. CgroupError as with writing."""

    def write_cpuset(self, path: str, cpus: str, mems: str) -> None:
        """Write both files as a runtime does, leaving out what is empty; CgroupError if the kernel refuses."""

    def write_quota(self, path: str, quota_us: int, period_us: int) -> None:
        """Write a CFS quota, below 1 for none; nothing if the cgroup is not there."""

    def kill(self, path: str) -> None:
        """End the processes of a cgroup and remove it; nothing if it is not there."""

    def effective(self, path: str) -> Effective | None:
        """Return what the cgroup's processes may use now, None if it is not there."""


def slice_path(slice_name: str) -> str:
    """Return the directory of a systemd slice: ``a-b.slice`` lies in ``a.slice``. Source: systemd.slice(5)."""
    parts = slice_name.removesuffix(".slice").split("-")
    return "/" + "/".join("-".join(parts[: n + 1]) + ".slice" for n in range(len(parts)))


def directory(cgroups_path: str) -> str:
    """Return the directory that a runtime's ``cgroups_path`` means, in either form.

    ``kubepods-burstable-podX.slice:cri-containerd:ID`` is systemd's, ``/kubepods/burstable/podX/ID`` cgroupfs's.
    """
    slice_name, found, rest = cgroups_path.partition(":")
    if not found:
        return cgroups_path
    prefix, _, container_id = rest.partition(":")
    return f"{slice_path(slice_name)}/{prefix}-{container_id}.scope"


class ModelCgroups:
    """The tree below one directory; the root has all CPUs and memory nodes of the machine."""

    def __init__(self, root: Path, *, cpus: CpuSet, mems: NodeSet) -> None:
        self.root = root
        self._all = Effective(cpus=cpus, mems=mems)
        self._online = cpus
        self._pid = 100000
        self._seen: dict[tuple[str, str], int] = {}
        self._writes: dict[str, int] = {}
        self._foreign: dict[str, int] = {}

    def open(self) -> None:
        """Make the root and the kubepods group, as the kubelet does."""
        self.root.mkdir(parents=True, exist_ok=True)
        for name in ("cgroup.controllers", _PASSED_ON):
            (self.root / name).write_text(f"{_CONTROLLERS}\n")
        self._write_effective(self.root, self._all)

    def set_online(self, cpus: CpuSet) -> None:
        """Let these CPUs be online: as with the kernel, offline ones may be written but are not effective."""
        self._online = cpus
        self._write_effective(self.root, self._present)
        self.refresh()

    def close(self) -> None:
        """Do nothing: the files go with the directory."""

    def make(self, path: str, cpus: str = "", mems: str = "") -> None:
        """Make a cgroup and its parents, without processes. It never has another cpuset than this."""
        place = self.root
        names = path.strip("/").split("/")
        for depth, part in enumerate(names, start=1):
            place /= part
            if not place.exists():
                place.mkdir()
                own = {_CPUS: cpus, _MEMS: mems} if depth == len(names) else {}
                for name, content in (_FILES | own).items():
                    (place / name).write_text(content + "\n")
                self._remember(place)
        self.refresh()

    def create(self, path: str, cpus: str = "", mems: str = "") -> int:
        """Make the cgroup with a process in it; return the (invented) process id."""
        self._check(path, cpus, mems)
        self.make(path, cpus, mems)
        if cpus:
            self._writes[path] = self._writes.get(path, 0) + 1
        self._pid += 1
        place = self._place(path)
        (place / "cgroup.procs").write_text(f"{self._pid}\n")
        self._populate(place)
        return self._pid

    def _check(self, path: str, cpus: str, mems: str) -> None:
        if cpus and not CpuSet.parse(cpus) <= self._all.cpus:
            raise CgroupError(f"write {path}/{_CPUS}: {cpus}: numerical result out of range")
        if mems and not NodeSet.parse(mems) <= self._all.mems:
            raise CgroupError(f"write {path}/{_MEMS}: {mems}: numerical result out of range")

    def write_cpuset(self, path: str, cpus: str, mems: str) -> None:
        """Write the cpuset files as a runtime does: empty means not written."""
        self._check(path, cpus, mems)
        place = self._place(path)
        if not place.is_dir():
            raise CgroupError(f"write {path}/{_CPUS}: no such file or directory")
        for name, value in ((_CPUS, cpus), (_MEMS, mems)):
            if value:
                (place / name).write_text(value + "\n")
                self._seen[path, name] = (place / name).stat().st_mtime_ns
        if cpus:
            self._writes[path] = self._writes.get(path, 0) + 1
        self.refresh()

    def write_quota(self, path: str, quota_us: int, period_us: int) -> None:
        """Write ``cpu.max`` as a runtime or the kubelet does."""
        file = self._place(path) / _QUOTA
        if file.exists():
            file.write_text(f"{quota_us if quota_us > 0 else 'max'} {period_us}\n")

    def cpus_allowed_by_quota(self, path: str) -> float | None:
        """Return how many CPUs of time the tightest ``cpu.max`` leaves up to the root; None for no limit."""
        place, found = self._place(path), []
        while place != self.root:
            quota, period = (place / _QUOTA).read_text().split()
            if quota != "max":
                found.append(int(quota) / int(period))
            place = place.parent
        return min(found, default=None)

    def kill(self, path: str) -> None:
        """End the processes of a cgroup and remove it."""
        place = self._place(path)
        if place.is_dir():
            shutil.rmtree(place)
            self._populate(place.parent)

    def effective(self, path: str) -> Effective | None:
        """Return what the cgroup's processes may use, after playing the kernel once."""
        self.refresh()
        place = self._place(path)
        if not place.is_dir():
            return None
        return Effective(
            cpus=CpuSet.parse((place / f"{_CPUS}.effective").read_text()),
            mems=NodeSet.parse((place / f"{_MEMS}.effective").read_text()),
        )

    def configured(self, path: str) -> tuple[str, str]:
        """Return what is written in the two cpuset files of a cgroup."""
        place = self._place(path)
        return (place / _CPUS).read_text().strip(), (place / _MEMS).read_text().strip()

    def writes(self, path: str) -> int:
        """Return how often ``cpuset.cpus`` of a cgroup was written, by the runtime or by others."""
        self.refresh()
        return self.writes_noticed(path)

    def writes_noticed(self, path: str) -> int:
        """Return what ``writes`` does, as of the last refresh."""
        return self._writes.get(path, 0) + self._foreign.get(path, 0)

    def foreign_writes(self, path: str) -> int:
        """Return how often others than the runtime wrote it, as far as ``refresh`` came between."""
        self.refresh()
        return self.foreign_noticed(path)

    def foreign_noticed(self, path: str) -> int:
        """Return what ``foreign_writes`` does, as of the last refresh."""
        return self._foreign.get(path, 0)

    def refresh(self) -> None:
        """Play the kernel over the whole tree: effective sets follow what is written."""
        self._refresh(self.root, self._present)

    @property
    def _present(self) -> Effective:
        return Effective(cpus=self._all.cpus & self._online, mems=self._all.mems)

    def _refresh(self, place: Path, effective: Effective) -> None:
        for child in _directories(place):
            try:
                below = self._cut(child, effective)
                self._notice(child)  # after it is read: what is effective has been counted
                self._write_effective(child, below)
            except FileNotFoundError:
                continue  # removed meanwhile
            self._refresh(child, below)

    def _cut(self, place: Path, parent: Effective) -> Effective:
        cpus = CpuSet.parse((place / _CPUS).read_text()) & parent.cpus
        mems = NodeSet.parse((place / _MEMS).read_text()) & parent.mems
        return Effective(cpus=cpus or parent.cpus, mems=mems or parent.mems)

    def _write_effective(self, place: Path, effective: Effective) -> None:
        for name, value in ((_CPUS, str(effective.cpus)), (_MEMS, str(effective.mems))):
            file, written = place / f"{name}.effective", place / name
            # As with the kernel, what others write is effective at once, not when we come to look.
            is_as_written = written.exists() and written.read_text().strip() == value
            if is_as_written == file.is_symlink() and file.exists() and file.read_text().strip() == value:
                continue
            whole = file.with_suffix(".new")  # nobody reads half of a kernel's file
            whole.unlink(missing_ok=True)
            if is_as_written:
                whole.symlink_to(name)
            else:
                whole.write_text(value + "\n")
            whole.replace(file)

    def _notice(self, place: Path) -> None:
        path = "/" + str(place.relative_to(self.root))
        for name in (_CPUS, _MEMS):
            when = (place / name).stat().st_mtime_ns
            if self._seen.get((path, name)) == when:
                continue
            self._seen[path, name] = when
            if name == _CPUS:
                self._foreign[path] = self._foreign.get(path, 0) + 1

    def _remember(self, place: Path) -> None:
        path = "/" + str(place.relative_to(self.root))
        for name in (_CPUS, _MEMS):
            self._seen[path, name] = (place / name).stat().st_mtime_ns

    def _populate(self, place: Path) -> None:
        """Let a group and those above it say whether a process is in them or below."""
        while place != self.root:
            own = bool((place / "cgroup.procs").read_text().strip())
            populated = own or any(_populated(child) for child in _directories(place))
            (place / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
            place = place.parent

    def _place(self, path: str) -> Path:
        return self.root / path.strip("/")


def _directories(place: Path) -> Iterator[Path]:
    yield from sorted(child for child in place.iterdir() if child.is_dir())


def _populated(place: Path) -> bool:
    return (place / "cgroup.events").read_text().startswith("populated 1")
