"""The topology as the tree that is shown (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from nodecpu.admin.state import Cache, Core, Machine, MemoryNode, Numa, Socket
from nodecpu.cpuset import CpuSet, union
from nodecpu.topology.model import Topology


def machine_of(topology: Topology) -> Machine:
    """Return the machine: each level is cut by the one above it, so every online CPU stands in it exactly once."""
    return Machine(
        online=str(topology.online),
        sockets=tuple(
            Socket(label=package.label, numa=tuple(_numa(topology, package.cpus))) for package in topology.packages
        ),
        memory_nodes=tuple(
            MemoryNode(id=node.id, memory=node.kind.value, memory_bytes=node.size_bytes, home=node.home)
            for node in topology.numa
            if not node.cpus
        ),
    )


def _numa(topology: Topology, within: CpuSet) -> Iterator[Numa]:
    for node in topology.numa:
        cpus = node.cpus & within
        if cpus:
            yield Numa(
                id=node.id,
                memory=node.kind.value,
                memory_bytes=node.size_bytes,
                caches=tuple(_caches(topology, cpus)),
            )


def _caches(topology: Topology, within: CpuSet) -> Iterator[Cache]:
    for group in topology.l3:
        if cores := _cores(topology, group.cpus & within):
            yield Cache(label=group.label, cores=cores)
    if cores := _cores(topology, within - union(group.cpus for group in topology.l3)):
        yield Cache(label="", cores=cores)


def _cores(topology: Topology, within: CpuSet) -> tuple[Core, ...]:
    if not within:
        return ()
    return tuple(Core(label=core.label, cpus=str(core.cpus & within)) for core in topology.cores if core.cpus & within)
