"""Discovery of random machines: it finds what was generated, and stays sound when files are lost or spoilt."""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet
from nodecpu.lab.machine import Machine, Memory, parse_machine, write_machine
from nodecpu.topology.model import CoreType, Group, MemoryKind, NumaNode, Topology
from nodecpu.topology.sysfs import read_topology
from tests.unit.topology.builder import MEMORY_DIR
from tests.unit.topology.invariants import check_topology

ONLINE = "sys/devices/system/cpu/online"


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    def count(most: int) -> int:
        return draw(st.integers(1, most))

    sockets, nodes, cores, threads = count(2), count(3), count(3), count(2)
    text = f"{sockets} sockets, {nodes} nodes, {cores} cores, {threads} threads"
    divisors = [d for d in range(1, nodes * cores + 1) if nodes * cores % d == 0]
    text += f", {draw(st.sampled_from(divisors))} dies, l3 {draw(st.sampled_from([*divisors, 'none']))}"
    text += f", numbering {draw(st.sampled_from(['adjacent', 'linux', 'interleaved']))}"
    text += f", efficient {draw(st.integers(0, cores))}, cpu-step {count(3)}, node-step {count(9)}"
    if draw(st.booleans()):
        text += f", cluster {draw(st.sampled_from(divisors))}"
    for kind in draw(st.lists(st.sampled_from(["hbm", "pmem", "cxl", "other"]), max_size=3)):
        text += f", memory-only {count(2)} {kind}"
    plain = parse_machine(text)
    some_cpus = st.frozensets(st.sampled_from([cpu.id for cpu in plain.cpus]), min_size=1)
    offline, isolated = CpuSet(draw(some_cpus)), CpuSet(draw(some_cpus))
    bare = draw(st.frozensets(st.sampled_from([node.id for node in plain.nodes])))
    if draw(st.booleans()):
        text += f", isolated {isolated}"
    if draw(st.booleans()) and offline != plain.present:
        text += f", offline {offline}"
    return parse_machine(f"{text}, no-memory {','.join(map(str, sorted(bare)))}" if bare else text)


def read(machine: Machine) -> Topology:
    with tempfile.TemporaryDirectory(dir=MEMORY_DIR) as name:
        write_machine(machine, Path(name))
        return read_topology(Path(name))


def expected(members: Iterable[tuple[Hashable, int]], online: CpuSet) -> list[CpuSet]:
    """Return the online members gathered by key, by lowest CPU; those whose key is None are in no group."""
    groups: dict[Hashable, list[int]] = {}
    for key, cpu in members:
        if cpu in online and key is not None:
            groups.setdefault(key, []).append(cpu)
    return sorted(map(CpuSet, groups.values()), key=CpuSet.first)


def found(groups: Iterable[Group | NumaNode]) -> list[CpuSet]:
    return sorted((group.cpus for group in groups if group.cpus), key=CpuSet.first)


@settings(max_examples=60)
@given(machines())
def test_what_was_generated_is_what_is_found(machine: Machine) -> None:
    """T1 to T4: groups of each level, nodes and their memory, isolated CPUs and core types."""
    topology = read(machine)
    check_topology(topology)
    online, cpus = machine.online, machine.cpus
    assert topology.online == online
    assert topology.isolated == machine.isolated & online
    assert found(topology.packages) == expected(((c.socket, c.id) for c in cpus), online)
    assert found(topology.dies) == expected((((c.socket, c.die), c.id) for c in cpus), online)
    assert found(topology.cores) == expected((((c.socket, c.core), c.id) for c in cpus), online)
    assert found(topology.l2) == expected(((c.l2, c.id) for c in cpus), online)
    assert found(topology.l3) == expected(((c.l3, c.id) for c in cpus), online)
    assert found(topology.numa) == expected(((c.node, c.id) for c in cpus), online)
    clusters = (((c.socket, c.cluster) if c.cluster is not None else None, c.id) for c in cpus)
    assert found(topology.clusters) == expected(clusters, online)
    if len({c.efficient for c in cpus if c.id in online}) == 2:
        types = {c.id: CoreType.EFFICIENT if c.efficient else CoreType.PERFORMANCE for c in cpus}
        assert {c.id: c.core_type for c in topology.cpus.values()} == {c: types[c] for c in online}
    check_memory(topology, machine)


def check_memory(topology: Topology, machine: Machine) -> None:
    """Assert kinds, sizes and distances; a node without memory borrows from the nearest that has some."""
    kinds = {node.id: MemoryKind(node.kind.value) for node in machine.nodes}
    for node, made in zip(topology.numa, machine.nodes, strict=True):
        assert node.distances == {other.id: machine.distance(made, other) for other in machine.nodes}
        assert node.size_bytes == made.size_bytes
        nearest = [other for other in topology.numa if other.kind is not MemoryKind.NONE]
        if made.size_bytes == 0:
            assert node.kind is MemoryKind.NONE
            best = min((node.distances[o.id], o.id) for o in nearest) if nearest else (10, node.id)
            assert list(node.memory) == [best[1]]
        elif node.cpus:
            assert node.kind is MemoryKind.DRAM
        elif made.kind is not Memory.DRAM:  # ordinary memory whose CPUs are all offline is of unknown kind
            assert node.kind is kinds[node.id]


@settings(max_examples=40)
@given(machines(), st.data())
def test_lost_and_spoilt_files_leave_a_sound_topology(machine: Machine, data: st.DataObject) -> None:
    """T1: any files but the online list."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DIR) as name:
        root = Path(name)
        write_machine(machine, root)
        files = sorted(path for path in root.rglob("*") if path.is_file() and path != root / ONLINE)
        for path in data.draw(st.lists(st.sampled_from(files), max_size=40)):
            content = data.draw(
                st.none() | st.sampled_from([b"(null)\n", b"-1", b"0-3\n", b"1,2"]) | st.binary(max_size=9)
            )
            path.unlink(missing_ok=True) if content is None else path.write_bytes(content)
        topology = read_topology(root)
        check_topology(topology)
        assert topology.online == machine.online
        assert topology == read_topology(root), "equal files, equal topology"
