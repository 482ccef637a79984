"""Small frozen machines as ``Topology`` values, and books over them, built in code without a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nodecpu.cpuset import NO_CPUS, CpuSet, NodeSet
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.machine import Machine
from nodecpu.policy.picker import build_units
from nodecpu.policy.pools import ALL_LEVELS, Level, build_pools
from nodecpu.policy.rules import Rules
from nodecpu.policy.usable import Usable, usable_cpus
from nodecpu.topology.model import Cpu, Group, MemoryKind, NumaNode, Topology

MEMORY_BYTES = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A regular machine: counts per level above; CPUs are numbered core by core, threads adjacent.

    ``l3_cores`` cores share an L3 cache (0: all cores of a node). ``single_cores`` names cores, counted over the
    machine, that have one thread only. ``isolated`` is a CPU list. ``step`` lies between one CPU's id and the next.
    """

    sockets: int = 1
    nodes: int = 1
    cores: int = 2
    threads: int = 2
    l3_cores: int = 0
    single_cores: tuple[int, ...] = ()
    isolated: str = ""
    step: int = 1


N4C16 = Shape(sockets=2, nodes=2, cores=2, threads=2)
"""The example machine of the rules: node 0 = 0-3, node 1 = 4-7, node 2 = 8-11, node 3 = 12-15."""


def build_topology(shape: Shape) -> Topology:
    """Return the machine of that shape, each node with DRAM of its own."""
    cpus: dict[int, Cpu] = {}
    packages: list[Group] = []
    cores: list[Group] = []
    caches: list[Group] = []
    nodes: list[Group] = []
    first, step = 0, shape.step
    for socket in range(shape.sockets):
        start_of_socket = first
        for _ in range(shape.nodes):
            node, start_of_node, cache = len(nodes), first, first
            for core in range(shape.cores):
                threads = 1 if len(cores) in shape.single_cores else shape.threads
                for cpu in range(first, first + threads * step, step):
                    cpus[cpu] = Cpu(id=cpu, package=socket, die=0, core=len(cores), l3_id=len(caches), numa=node)
                cores.append(_group(len(cores), f"{socket}/0/{len(cores)}", first, first + threads * step, step))
                first += threads * step
                if core + 1 == shape.cores or (shape.l3_cores and (core + 1) % shape.l3_cores == 0):
                    caches.append(_group(len(caches), str(len(caches)), cache, first, step))
                    cache = first
            nodes.append(_group(node, str(node), start_of_node, first, step))
        packages.append(_group(socket, str(socket), start_of_socket, first, step))
    return Topology(
        online=CpuSet(cpus),
        isolated=CpuSet.parse(shape.isolated),
        cpus=cpus,
        packages=tuple(packages),
        dies=tuple(Group(id=0, label=f"{p.id}/0", cpus=p.cpus) for p in packages),
        clusters=tuple(cores),
        cores=tuple(cores),
        l2=tuple(cores),
        l3=tuple(caches),
        numa=tuple(_node(node, nodes) for node in nodes),
    )


def _group(group_id: int, label: str, first: int, end: int, step: int) -> Group:
    return Group(id=group_id, label=label, cpus=CpuSet(range(first, end, step)))


def _node(node: Group, nodes: Sequence[Group]) -> NumaNode:
    return NumaNode(
        id=node.id,
        cpus=node.cpus,
        kind=MemoryKind.DRAM,
        size_bytes=MEMORY_BYTES,
        home=node.id,
        memory=NodeSet([node.id]),
        distances={other.id: 10 if other.id == node.id else 20 for other in nodes},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """A machine with empty books over it, and what decisions need beside."""

    topology: Topology
    usable: Usable
    ledger: Ledger
    machine: Machine
    rules: Rules


def numa_devices(topology: Topology) -> Mapping[str, CpuSet]:
    """Return the CPUs of each NUMA node under its device's name (D1)."""
    return {f"cpudevnuma{node.id:03d}": node.cpus for node in topology.numa if node.cpus}


def books(
    shape: Shape = N4C16,
    *,
    reserved: str = "15",
    available: str | None = None,
    rules: Rules | None = None,
    levels: Sequence[Level] = ALL_LEVELS,
) -> Books:
    """Return empty books over a machine; by default n4c16 with CPU 15 reserved."""
    topology = build_topology(shape)
    usable = usable_cpus(
        online=topology.online,
        isolated=topology.isolated,
        available=None if available is None else CpuSet.parse(available),
        kubepods=None,
        reserved=CpuSet.parse(reserved) if reserved else NO_CPUS,
    )
    return Books(
        topology=topology,
        usable=usable,
        ledger=Ledger(build_pools(topology, usable, levels)),
        machine=Machine(units=build_units(topology), devices=numa_devices(topology)),
        rules=rules or Rules(),
    )
