"""Machines from text: what the words mean, and which texts are refused with what words."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import ConfigError
from nodecpu.lab.machine import Machine, Memory, parse_machine, write_machine
from nodecpu.topology.sysfs import read_topology


def cores(machine: Machine) -> list[str]:
    keys = dict.fromkeys((cpu.socket, cpu.core) for cpu in machine.cpus)
    return [str(CpuSet(cpu.id for cpu in machine.cpus if (cpu.socket, cpu.core) == key)) for key in keys]


def nodes(machine: Machine) -> dict[int, str]:
    return {n.id: str(CpuSet(cpu.id for cpu in machine.cpus if cpu.node == n.id)) for n in machine.nodes}


def test_n4c16_is_the_example_machine() -> None:
    """Two sockets, four nodes of four CPUs, two threads per core with adjacent numbers."""
    machine = parse_machine("n4c16")
    assert machine == parse_machine("2 sockets, 2 nodes, 2 cores, 2 threads").__class__(
        text="n4c16", cpus=machine.cpus, nodes=machine.nodes, isolated=CpuSet(), offline=CpuSet()
    )
    assert nodes(machine) == {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}
    assert cores(machine) == ["0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"]
    first = machine.nodes[0]
    assert [machine.distance(first, other) for other in machine.nodes] == [10, 12, 21, 21]


@pytest.mark.parametrize(
    ("numbering", "expected_cores", "expected_nodes"),
    [
        pytest.param("adjacent", ["0-1", "2-3", "4-5", "6-7"], {0: "0-3", 1: "4-7"}, id="threads side by side"),
        pytest.param("linux", ["0,4", "1,5", "2,6", "3,7"], {0: "0-1,4-5", 1: "2-3,6-7"}, id="second threads behind"),
        pytest.param("interleaved", ["0,4", "1,5", "2,6", "3,7"], {0: "0,2,4,6", 1: "1,3,5,7"}, id="nodes in turn"),
    ],
)
def test_numbering(numbering: str, expected_cores: list[str], expected_nodes: dict[int, str]) -> None:
    machine = parse_machine(f"2 nodes, 2 cores, 2 threads, numbering {numbering}")
    assert cores(machine) == expected_cores
    assert nodes(machine) == expected_nodes


def test_steps_make_ids_sparse() -> None:
    machine = parse_machine("2 sockets, 1 node, 2 cores, cpu-step 4, node-step 8")
    assert nodes(machine) == {0: "0,4", 8: "8,12"}


def test_a_list_may_hold_commas() -> None:
    machine = parse_machine("8 cores, isolated 2-3,6, offline 5,7, memory 512M")
    assert (str(machine.isolated), str(machine.offline), str(machine.online)) == ("2-3,6", "5,7", "0-4,6")
    assert machine.nodes[0].size_bytes == 512 << 20


def test_efficient_cores_have_one_thread_and_come_last_in_their_node() -> None:
    machine = parse_machine("2 nodes, 3 cores, 2 threads, efficient 2, cluster 3")
    assert cores(machine) == ["0-1", "2", "3", "4-5", "6", "7"]
    assert CpuSet(cpu.id for cpu in machine.cpus if cpu.efficient) == CpuSet.parse("2-3,6-7")


def test_memory_only_nodes_are_dealt_to_the_nodes_in_turn() -> None:
    machine = parse_machine("2 sockets, 1 cores, memory-only 3 cxl 8G, memory-only 1 hbm, no-memory 1")
    assert [(n.id, n.home, n.kind, n.size_bytes >> 30) for n in machine.nodes] == [
        (0, 0, Memory.DRAM, 4),
        (1, 1, Memory.DRAM, 0),
        (2, 0, Memory.CXL, 8),
        (3, 1, Memory.CXL, 8),
        (4, 0, Memory.CXL, 8),
        (5, 0, Memory.HBM, 4),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "'' is not understood", id="nothing"),
        pytest.param("2 sockets,, 1 nodes", "'' is not understood", id="an empty part"),
        pytest.param("2 boxes", "'boxes' is not one of sockets, dies, nodes, cores, threads", id="unknown count"),
        pytest.param("speed 3", "'speed 3' is not understood", id="unknown option"),
        pytest.param("0 cores", "'cores 0' needs a whole number of at least 1", id="no cores"),
        pytest.param("2 cores, 3 cores", "'3 cores' is said twice", id="said twice"),
        pytest.param("3 cores, 2 dies", "'dies 2' does not divide the 3 cores of a socket", id="uneven dies"),
        pytest.param("4 cores, l3 3", "'l3 3' does not divide the 4 cores", id="uneven caches"),
        pytest.param("l3", "'l3' needs a whole number", id="an option without value"),
        pytest.param("2 cores, efficient 3", "'efficient 3' is more than the 2 cores", id="too many efficient"),
        pytest.param("2 cores, isolated 2-3", "'isolated 2-3' names CPUs that are not there: 2-3", id="absent CPUs"),
        pytest.param("2 cores, isolated x", "'isolated x' is not a list", id="not a list"),
        pytest.param("2 cores, isolated", "'isolated' needs a list", id="no list"),
        pytest.param("2 cores, offline 0-1", "'offline' leaves no CPU online", id="nothing online"),
        pytest.param("numbering random", "'numbering random' is none of", id="unknown numbering"),
        pytest.param("memory 4", "'memory 4' is not a size", id="a size without unit"),
        pytest.param("memory-only 1 flash", "'memory-only 1 flash' is not a count, one of", id="unknown memory"),
        pytest.param("no-memory 4", "'no-memory 4' names nodes that are not there: 4", id="absent nodes"),
        pytest.param("64 sockets, 64 nodes, 64 cores", "too large", id="too large"),
        pytest.param("2 nodes, node-step 99999", "node numbers above 65535", id="node numbers too large"),
    ],
)
def test_a_bad_text_is_refused_naming_the_part(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_machine(text)
    assert problem in caught.value.message
    assert "2 sockets" in caught.value.hint


def test_offline_cpus_lose_their_directories_and_their_places_in_lists(tmp_path: Path) -> None:
    """T1: as the kernel does."""
    write_machine(parse_machine("2 cores, 2 threads, offline 1"), tmp_path)
    base = tmp_path / "sys/devices/system/cpu"
    assert (base / "cpu1/online").read_text() == "0\n"
    assert not (base / "cpu1/topology").exists()
    assert (base / "cpu0/topology/core_cpus_list").read_text() == "0\n"
    assert (base / "online").read_text() == "0,2-3\n"


def test_a_machine_of_4096_cpus_and_64_nodes_can_be_described() -> None:
    """K3."""
    machine = parse_machine("2 sockets, 32 nodes, 32 cores, 2 threads")
    assert (len(machine.cpus), len(machine.nodes)) == (4096, 64)


def test_the_boot_id_is_written(tmp_path: Path) -> None:
    """T7."""
    machine = parse_machine("1 cores")
    write_machine(machine, tmp_path)
    assert (tmp_path / "proc/sys/kernel/random/boot_id").read_text().strip() == machine.boot_id
    assert len(read_topology(tmp_path).online) == 1
