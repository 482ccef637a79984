"""What holds for every topology, whatever the files said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.topology.model import Group, MemoryKind, Topology


def check_topology(topology: Topology) -> None:
    """Assert the invariants that the model promises."""
    assert topology.online
    assert list(topology.cpus) == list(topology.online)
    assert topology.isolated <= topology.online
    for level in (topology.packages, topology.dies, topology.cores):
        assert union(group.cpus for group in level) == topology.online
    for level in (topology.packages, topology.dies, topology.clusters, topology.cores, topology.l2, topology.l3):
        _check_level(level, topology.online)
    _check_nested(topology.cores, topology.dies)
    _check_nested(topology.dies, topology.packages)
    _check_cpus(topology)
    _check_nodes(topology)


def _check_level(level: Sequence[Group], online: CpuSet) -> None:
    seen = NO_CPUS
    for group in level:
        assert group.cpus
        assert group.cpus <= online
        assert group.cpus.isdisjoint(seen)
        seen |= group.cpus
    assert len({group.label for group in level}) == len(level)
    assert [group.cpus.first() for group in level] == sorted(group.cpus.first() for group in level)


def _check_nested(parts: Iterable[Group], wholes: Sequence[Group]) -> None:
    for part in parts:
        assert sum(part.cpus <= whole.cpus for whole in wholes) == 1


def _check_cpus(topology: Topology) -> None:
    for cpu, facts in topology.cpus.items():
        assert facts.id == cpu
        assert cpu in _group(topology.packages, f"{facts.package}").cpus
        assert cpu in _group(topology.dies, f"{facts.package}/{facts.die}").cpus
        assert cpu in _group(topology.cores, f"{facts.package}/{facts.die}/{facts.core}").cpus
        assert cpu in topology.numa_node(facts.numa).cpus
        if facts.l3_id is not None:
            assert cpu in _group(topology.l3, f"{facts.l3_id}").cpus
        if facts.cluster is not None:
            assert cpu in _group(topology.clusters, f"{facts.package}/{facts.cluster}").cpus


def _group(level: Iterable[Group], label: str) -> Group:
    return next(group for group in level if group.label == label)


def _check_nodes(topology: Topology) -> None:
    ids = [node.id for node in topology.numa]
    assert ids == sorted(set(ids))
    assert union(node.cpus for node in topology.numa) == topology.online
    assert sum(len(node.cpus) for node in topology.numa) == len(topology.online)
    some_memory = any(node.kind is not MemoryKind.NONE for node in topology.numa)
    for node in topology.numa:
        assert topology.numa_node(node.home).cpus
        assert list(node.distances) == ids
        if node.cpus:
            assert node.home == node.id
        if some_memory:
            assert node.memory
            assert all(topology.numa_node(n).kind is not MemoryKind.NONE for n in node.memory)
        if node.kind is not MemoryKind.NONE:
            assert node.id in node.memory
