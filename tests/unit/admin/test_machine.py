"""The machine as shown: every online CPU once, whatever way its levels cross (T2, T3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodecpu.admin.machine import machine_of
from nodecpu.admin.state import Machine
from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.topology.model import Group, MemoryKind, NumaNode, Topology


def groups(*lists: str) -> tuple[Group, ...]:
    return tuple(Group(id=i, label=str(i), cpus=CpuSet.parse(cpus)) for i, cpus in enumerate(lists))


def numa(node: int, cpus: str, *, home: int | None = None) -> NumaNode:
    kind = MemoryKind.DRAM if cpus else MemoryKind.CXL
    return NumaNode(
        id=node,
        cpus=CpuSet.parse(cpus),
        kind=kind,
        size_bytes=1 << 30,
        home=node if home is None else home,
        memory=NodeSet([node]),
        distances={},
    )


def topology(
    *, packages: tuple[Group, ...], cores: tuple[Group, ...], l3: tuple[Group, ...], nodes: tuple[NumaNode, ...]
) -> Topology:
    online = CpuSet(cpu for group in packages for cpu in group.cpus)
    return Topology(
        online=online,
        isolated=CpuSet(),
        cpus={},
        packages=packages,
        dies=packages,
        clusters=(),
        cores=cores,
        l2=(),
        l3=l3,
        numa=nodes,
    )


def shown(machine: Machine) -> list[int]:
    """Return every CPU as often as it is shown."""
    caches = [cache for s in machine.sockets for n in s.numa for cache in n.caches]
    return [cpu for cache in caches for core in cache.cores for cpu in CpuSet.parse(core.cpus)]


def test_levels_nest_and_memory_nodes_stand_apart() -> None:
    machine = machine_of(
        topology(
            packages=groups("0-3", "4-7"),
            cores=groups("0-1", "2-3", "4-5", "6-7"),
            l3=groups("0-3", "4-7"),
            nodes=(numa(0, "0-3"), numa(1, "4-7"), numa(2, "", home=1)),
        )
    )
    assert [[n.id for n in s.numa] for s in machine.sockets] == [[0], [1]]
    assert [core.cpus for core in machine.sockets[1].numa[0].caches[0].cores] == ["4-5", "6-7"]
    assert [(m.id, m.memory, m.home) for m in machine.memory_nodes] == [(2, "cxl", 1)]


def test_one_node_over_two_sockets_is_shown_in_both() -> None:
    machine = machine_of(
        topology(packages=groups("0-1", "2-3"), cores=groups("0", "1", "2", "3"), l3=(), nodes=(numa(0, "0-3"),))
    )
    assert [[n.id for n in s.numa] for s in machine.sockets] == [[0], [0]]
    assert shown(machine) == [0, 1, 2, 3]


def test_cores_outside_of_any_cache_are_shown_without_a_label() -> None:
    machine = machine_of(
        topology(packages=groups("0-3"), cores=groups("0-1", "2-3"), l3=groups("0-1"), nodes=(numa(0, "0-3"),))
    )
    assert [(cache.label, len(cache.cores)) for cache in machine.sockets[0].numa[0].caches] == [("0", 1), ("", 1)]


@given(data=st.data())
def test_every_online_cpu_is_shown_once_however_the_levels_cross(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 24))

    def level() -> tuple[Group, ...]:
        where = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
        parts = (CpuSet(cpu for cpu in range(count) if where[cpu] == part) for part in range(5))
        return tuple(Group(id=i, label=str(i), cpus=cpus) for i, cpus in enumerate(parts) if cpus)

    nodes = tuple(numa(g.id, str(g.cpus)) for g in level())
    machine = machine_of(topology(packages=level(), cores=level(), l3=level()[1:], nodes=nodes))
    assert sorted(shown(machine)) == list(range(count))
