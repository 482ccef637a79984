"""Notices that the machine has changed under us: CPUs off and on line, memory nodes that come late (shell; T6).

Looked for by three short files and the cpuset of kubepods, before each walk of the audit; a kernel tells it by uevents
too, but their socket family is closed to the daemon. Only on a change is the machine read anew, on a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from nodecpu.arrangement import Arrangement
from nodecpu.cpuset import CpuSet
from nodecpu.errors import NodeCpuError
from nodecpu.log import kv
from nodecpu.reconfigure import adapt
from nodecpu.service import Service
from nodecpu.topology.files import KernelFiles
from nodecpu.topology.model import Topology
from nodecpu.topology.sysfs import read_topology

_LOG = logging.getLogger(__name__)

_ONLINE: Final = "sys/devices/system/cpu/online"
_NODES: Final = ("sys/devices/system/node/online", "sys/devices/system/node/has_memory")


class Kubepods(Protocol):
    """Tells what all pods are confined to."""

    def kubepods(self) -> CpuSet | None:
        """Return the CPUs; None where nothing tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What tells a machine from what it was before, in short."""

    online: CpuSet | None
    nodes: tuple[str | None, ...]
    kubepods: CpuSet | None


class Hotplug:
    """The machine as it was last read, and whoever has to know of another one."""

    def __init__(
        self,
        root: Path,
        cgroups: Kubepods,
        topology: Topology,
        *,
        arrange: Callable[[Topology, CpuSet | None], Arrangement],
        taken: Callable[[Arrangement], None],
    ) -> None:
        """``arrange`` makes of a machine what the configuration wants, ``taken`` hears of it once the books have it."""
        self.topology = topology
        self._root = root
        self._cgroups = cgroups
        self._arrange = arrange
        self._taken = taken
        self._signs = self._look()

    async def look(self, service: Service) -> bool:
        """Take another machine into the books if it is another one; return whether. What fails is tried again."""
        try:
            signs = self._look()
            if signs == self._signs and signs.online == self.topology.online:
                return False
            topology = await asyncio.to_thread(read_topology, self._root)
            arranged = self._arrange(topology, signs.kubepods)
            if topology == self.topology and arranged.usable == service.books.ledger.tree.usable:
                self._signs = signs
                return False
            adapt(service, arranged)
        except NodeCpuError as err:
            kv(_LOG, logging.ERROR, "the machine has changed, and the books cannot follow", err=err)
            return False
        before, self.topology, self._signs = self.topology, topology, signs
        _tell(before, topology, arranged)
        self._taken(arranged)
        return True

    def _look(self) -> Signs:
        with KernelFiles(self._root) as files:
            nodes = tuple(files.text(path) for path in _NODES)
            return Signs(online=files.cpus(_ONLINE), nodes=nodes, kubepods=self._cgroups.kubepods())


def _tell(before: Topology, now: Topology, arranged: Arrangement) -> None:
    gone, come = before.online - now.online, now.online - before.online
    words = [f"{verb} {cpus}" for verb, cpus in (("offline", gone), ("online", come)) if cpus]
    nodes = {node.id for node in before.numa}, {node.id for node in now.numa}
    words += [f"memory nodes {sorted(nodes[0])} -> {sorted(nodes[1])}"] if nodes[0] != nodes[1] else []
    level = logging.WARNING if gone else logging.INFO
    state = ", ".join(words) or "sizes or limits"
    kv(_LOG, level, "the machine has changed, the books follow", state=state, cpus=arranged.usable.all)
