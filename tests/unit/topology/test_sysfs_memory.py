"""NUMA nodes: which exist, whose CPUs they have, what their memory is and who uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodecpu.topology.memory import MemorySigns, memory_kind
from nodecpu.topology.model import MemoryKind
from tests.unit.topology.builder import NODE, SysfsBuilder
from tests.unit.topology.invariants import check_topology


def test_only_online_nodes_exist(tmp_path: Path) -> None:
    """T3: ids are names and may have gaps."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.nodes_online("0,8")
    tree.node(0, "0-1", "10 40")
    tree.node(8, "2-3", "40 10")
    tree.node(9, "")
    topology = tree.read()
    assert [(n.id, str(n.cpus), n.distances) for n in topology.numa] == [
        (0, "0-1", {0: 10, 8: 40}),
        (8, "2-3", {0: 40, 8: 10}),
    ]
    assert [cpu.numa for cpu in topology.cpus.values()] == [0, 0, 8, 8]


def test_without_the_online_list_the_directories_tell_the_nodes(tmp_path: Path) -> None:
    """T1, T3."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.file(f"{NODE}/node2/cpumap", "00000003")
    tree.file(f"{NODE}/node11/cpumap", "0000000c")
    assert [(n.id, str(n.cpus), n.size_bytes) for n in tree.read().numa] == [(2, "0-1", 0), (11, "2-3", 0)]


def test_a_cpu_in_two_nodes_belongs_to_the_lower(tmp_path: Path) -> None:
    """T2, T3."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.node(0, "0-2")
    tree.node(1, "1-3")
    topology = tree.read()
    check_topology(topology)
    assert [str(n.cpus) for n in topology.numa] == ["0-2", "3"]


def test_a_cpu_in_no_node_joins_one_of_its_package(tmp_path: Path) -> None:
    """T3: so with CPUs of a node that is offline."""
    tree = SysfsBuilder(tmp_path, "0-5")
    tree.group("package", "0-1", 0)
    tree.group("package", "2-3", 1)
    tree.group("package", "4-5", 2)
    tree.node(0, "0-1")
    tree.node(1, "2")
    topology = tree.read()
    check_topology(topology)
    assert [str(n.cpus) for n in topology.numa] == ["0-1,4-5", "2-3"]


def test_nodes_without_memory_borrow_the_nearest_and_ties_go_to_the_lower_id(tmp_path: Path) -> None:
    """T3."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.node(0, "0", "10 20 30 20")
    tree.node(1, "1", "20 10 15 15", memory_kb=0)
    tree.node(2, "2", "30 15 10 30")
    tree.node(3, "3", "20 15 30 10")
    node = tree.read().numa_node(1)
    assert (str(node.cpus), node.kind, str(node.memory)) == ("1", MemoryKind.NONE, "2")


def test_the_list_of_nodes_with_memory_goes_before_the_sizes(tmp_path: Path) -> None:
    """T3."""
    tree = SysfsBuilder(tmp_path, "0-1")
    tree.file(f"{NODE}/has_memory", "0")
    tree.node(0, "0")
    tree.node(1, "1")
    assert [str(n.memory) for n in tree.read().numa] == ["0", "0"]


def test_memory_without_cpus_is_at_home_where_the_cpus_reach_it_soonest(tmp_path: Path) -> None:
    """T3: distances need not be symmetric; the row of the node that does the reaching counts."""
    tree = SysfsBuilder(tmp_path, "0-1")
    tree.node(0, "0", "10 20 40 30")
    tree.node(1, "1", "20 10 30 30")
    tree.node(2, "", "11 99 10 99")
    tree.node(3, "", "99 11 99 10")
    topology = tree.read()
    check_topology(topology)
    assert [(n.id, n.home, str(n.memory)) for n in topology.numa] == [
        (0, 0, "0"),
        (1, 1, "1"),
        (2, 1, "2"),
        (3, 0, "3"),
    ]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        pytest.param("21 17 10", {1: 17, 2: 10}, id="a row over all possible nodes"),
        pytest.param("17 10", {1: 17, 2: 10}, id="a row over the online ones"),
        pytest.param("17", {1: 20, 2: 10}, id="too short"),
        pytest.param("a b", {1: 20, 2: 10}, id="words"),
        pytest.param(f"{'9' * 5000} 10", {1: 20, 2: 10}, id="a number longer than Python reads"),
        pytest.param("", {1: 20, 2: 10}, id="missing"),
    ],
)
def test_distances_are_matched_by_the_list_of_nodes(tmp_path: Path, row: str, found: dict[int, int]) -> None:
    """T3: 10 and 20 are the kernel's defaults."""
    tree = SysfsBuilder(tmp_path, "0-1")
    tree.nodes_online("1-2")
    tree.file(f"{NODE}/possible", "0-2")
    tree.node(1, "0")
    tree.node(2, "1", row)
    assert tree.read().numa_node(2).distances == found


def memory_only(tmp_path: Path) -> SysfsBuilder:
    tree = SysfsBuilder(tmp_path, "0")
    tree.node(0, "0", "10 20")
    tree.node(1, "", "20 10")
    return tree


@pytest.mark.parametrize(
    ("bus", "driver", "kind"),
    [
        pytest.param("nd", "kmem", MemoryKind.PMEM, id="persistent memory used as memory"),
        pytest.param("cxl", "kmem", MemoryKind.CXL, id="memory behind CXL"),
        pytest.param("cxl", "device_dax", MemoryKind.OTHER, id="a device not used as memory"),
        pytest.param("platform", "kmem", MemoryKind.OTHER, id="a bus that tells nothing"),
    ],
)
def test_device_memory_is_known_by_its_bus(tmp_path: Path, bus: str, driver: str, kind: MemoryKind) -> None:
    """T3, M1."""
    tree = memory_only(tmp_path)
    tree.file("sys/devices/x/region0/dax0.0/target_node", "1")
    tree.link("sys/devices/x/region0/subsystem", f"sys/bus/{bus}")
    tree.link("sys/devices/x/region0/dax0.0/driver", f"sys/bus/dax/drivers/{driver}")
    tree.link("sys/bus/dax/devices/dax0.0", "sys/devices/x/region0/dax0.0")
    assert tree.read().numa_node(1).kind is kind


@pytest.mark.parametrize(
    ("speed", "kind"),
    [
        pytest.param("200001", MemoryKind.HBM, id="more than ordinary memory's"),
        pytest.param("200000", MemoryKind.OTHER, id="the same"),
        pytest.param("0", MemoryKind.OTHER, id="not told"),
    ],
)
def test_bandwidth_above_ordinary_memory_is_hbm(tmp_path: Path, speed: str, kind: MemoryKind) -> None:
    """T3."""
    tree = memory_only(tmp_path)
    tree.file(f"{NODE}/node0/access0/initiators/read_bandwidth", "200000")
    tree.file(f"{NODE}/node1/access0/initiators/read_bandwidth", speed)
    assert tree.read().numa_node(1).kind is kind


@pytest.mark.parametrize(
    ("tier", "kind"),
    [
        pytest.param(2, MemoryKind.HBM, id="a faster tier"),
        pytest.param(4, MemoryKind.OTHER, id="the same tier"),
        pytest.param(22, MemoryKind.OTHER, id="a slower tier may be CXL or PMEM"),
    ],
)
def test_a_faster_tier_than_ordinary_memory_is_hbm(tmp_path: Path, tier: int, kind: MemoryKind) -> None:
    """T3."""
    tree = memory_only(tmp_path)
    base = "sys/devices/virtual/memory_tiering"
    tree.file(f"{base}/memory_tier4/nodelist", "0")
    tree.file(f"{base}/memory_tier{tier}/nodelist", "0-1" if tier == 4 else "1")
    assert tree.read().numa_node(1).kind is kind


def test_memory_with_no_sign_at_all_is_not_guessed() -> None:
    """T3: larger than ordinary nodes is not a sign."""
    assert memory_kind(MemorySigns(), [MemorySigns(bandwidth=1, tier=1)]) is MemoryKind.OTHER
    assert memory_kind(MemorySigns(bandwidth=9, tier=1), []) is MemoryKind.OTHER
