"""The topology as the tree that is shown (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nodecpu.admin.state import Cache, Core, Machine, MemoryNode, Numa, Socket
from nodecpu.cpuset import CpuSet, union
from nodecpu.topology.model import Group, Topology


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
    l3, cores = _inside(topology.l3, within), _inside(topology.cores, within)
    for node in topology.numa:
        cpus = node.cpus & within
        if cpus:
            yield Numa(
                id=node.id,
                memory=node.kind.value,
                memory_bytes=node.size_bytes,
                caches=tuple(_caches(_inside(l3, cpus), _inside(cores, cpus), cpus)),
            )


def _caches(l3: Sequence[Group], cores: Sequence[Group], within: CpuSet) -> Iterator[Cache]:
    for group in l3:
        yield Cache(label=group.label, cores=_cores(cores, group.cpus & within))
    if rest := within - union(group.cpus for group in l3):
        yield Cache(label="", cores=_cores(cores, rest))


def _cores(cores: Sequence[Group], within: CpuSet) -> tuple[Core, ...]:
    return tuple(Core(label=core.label, cpus=str(core.cpus & within)) for core in _inside(cores, within))


def _inside(groups: Iterable[Group], within: CpuSet) -> Sequence[Group]:
    """Return the groups with CPUs there: what a level holds is looked for among those of the level above alone."""
    return [group for group in groups if group.cpus & within]
