"""Which NUMA node a device or a file system is close to, by sysfs and by the kubelet (thin reader, shell; S).

Nothing here can hang: sysfs and mountinfo are read, the files themselves are never touched. What is not told is None.
Source: sysfs-bus-pci (numa_node), proc(5) on mountinfo.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from nodecpu.cpuset import CpuSet, union
from nodecpu.dra.podresources import GivenDevice
from nodecpu.ids import SandboxID
from nodecpu.policy.annotations import HintSource
from nodecpu.policy.facts import Container
from nodecpu.policy.pull import Hint
from nodecpu.topology.model import Topology

_DEVICE_NUMBERS: Final = re.compile("[0-9]{1,9}:[0-9]{1,9}")
MAX_LOOKED_AT: Final = 64
"""A container that is given more devices than this is given all there are, and is close to none."""

MAX_MOUNTS: Final = 512
"""With more mounts than this they are not looked at: the runtime waits meanwhile."""

MAX_PATTERNS: Final = 64
MAX_PATTERN: Final = 1024
"""Paths that an annotation may list, each asterisk counted as one more, and the length of one: each is held against
every mount and device.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Whose locality counts: by source, and by patterns of paths. What is denied counts only if it is allowed too."""

    sources: frozenset[HintSource]
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def counts(self, path: str) -> bool:
        """Return whether a path counts. An allow list alone leaves out all others."""
        if any(_is_under(path, pattern) for pattern in self.allow):
            return True
        if self.allow and not self.deny:
            return False
        return not any(_is_under(path, pattern) for pattern in self.deny)


def patterns(text: str | None) -> tuple[str, ...]:
    """Return the paths of a list: separated by commas or on lines of their own, with or without hyphens before.

    Raises ValueError for more than is sensible: whoever writes annotations must not hold up everybody else.
    """
    parts = (text or "").replace(",", "\n").splitlines()
    found = tuple(path for part in parts if (path := part.strip().removeprefix("-").strip()))
    count = sum(1 + path.count("*") for path in found)
    if count > MAX_PATTERNS or any(len(path) > MAX_PATTERN for path in found):
        raise ValueError(
            f"{count} paths and asterisks, at most {MAX_PATTERNS} are read, paths of at most {MAX_PATTERN} characters"
        )
    return found


Given = Callable[[SandboxID, str], Iterable[GivenDevice]]
"""Returns the devices that the kubelet gave to a container of a sandbox."""


def _nothing(_sandbox_id: SandboxID, _container: str) -> tuple[GivenDevice, ...]:
    return ()


class Locality:
    """What devices and mounts of containers are close to."""

    def __init__(self, root: Path, topology: Topology, given: Given = _nothing) -> None:
        """``root`` is the directory that holds ``sys`` and ``proc``; ``given`` knows what the kubelet gave."""
        self._root = root
        self._given = given
        self._cpus: Mapping[int, CpuSet] = {node.id: node.cpus for node in topology.numa if node.cpus}

    def hints(self, container: Container, wanted: Wanted) -> tuple[Hint, ...]:
        """Return a hint for each device and mount that is close to NUMA nodes, in the order they are given.

        Devices that the kubelet gave come last, by the name of their resource.
        """
        found: list[Hint] = []
        devices = container.devices if HintSource.DEVICES in wanted.sources else ()
        if len(devices) <= MAX_LOOKED_AT:
            for device in devices:
                if wanted.counts(device.path):
                    kind = "block" if device.kind == "b" else "char"
                    found += self._hint(device.path, f"{kind}/{device.major}:{device.minor}")
        if HintSource.MOUNTS in wanted.sources and len(container.mounts) <= MAX_MOUNTS:
            paths = [path for path in container.mounts if wanted.counts(path)]
            mounts = self._mounts() if paths else {}
            for path in paths:
                if (numbers := _mounted(path, mounts)) is not None:
                    found += self._hint(path, f"block/{numbers}")
        if HintSource.POD_RESOURCES in wanted.sources:
            for given in self._given(container.sandbox_id, container.name):
                cpus = union(self._cpus[node] for node in given.nodes if node in self._cpus)
                if cpus and wanted.counts(given.resource):
                    found.append(Hint(source=given.resource, cpus=cpus))
        return tuple(found)

    def _hint(self, path: str, device: str) -> list[Hint]:
        cpus = self._near(device)
        return [] if cpus is None else [Hint(source=path, cpus=cpus)]

    def _near(self, device: str) -> CpuSet | None:
        """Return the CPUs of the NUMA node that a device, or what it is attached to, is on."""
        top = (self._root / "sys" / "devices").resolve()
        place = (self._root / "sys" / "dev" / device).resolve()
        while top in place.parents:
            try:
                node = int((place / "numa_node").read_text())
            except (OSError, ValueError):
                place = place.parent
                continue
            return self._cpus.get(node)
        return None

    def _mounts(self) -> Mapping[str, str]:
        """Return the device numbers of what is mounted, by mount point; of several at one point the latest counts."""
        try:
            text = (self._root / "proc" / "self" / "mountinfo").read_text(errors="replace")
        except OSError:
            return {}
        fields = (line.split(" ", 5) for line in text.splitlines())
        whole = (one for one in fields if len(one) == 6 and _DEVICE_NUMBERS.fullmatch(one[2]))
        return {one[4].replace("\\040", " "): one[2] for one in whole}


def _mounted(path: str, mounts: Mapping[str, str]) -> str | None:
    """Return the numbers of the device that a path is on: of the innermost mount point above it.

    By going up from it: a node has thousands of mounts, a few for each container.
    """
    if not path.startswith("/"):
        return None
    while path and path not in mounts:
        path = path.rpartition("/")[0]
    return mounts.get(path or "/")


def _is_under(path: str, pattern: str) -> bool:
    """Return whether a path is the pattern's, below it, or matches it as a shell would."""
    plain = pattern.rstrip("/")
    return path == plain or path.startswith(plain + "/") or fnmatchcase(path, pattern)
