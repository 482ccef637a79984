"""Performance and efficient cores, and what else is told per core."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.topology.model import CoreType, Topology
from tests.unit.topology.builder import SysfsBuilder


def of_kind(topology: Topology, kind: CoreType) -> str:
    return str(CpuSet(cpu.id for cpu in topology.cpus.values() if cpu.core_type is kind))


def two_kinds(tmp_path: Path, name: str, first: int, second: int) -> Topology:
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.each("0-1", name, first)
    tree.each("2-3", name, second)
    return tree.read()


def test_the_kernels_hybrid_lists_go_first(tmp_path: Path) -> None:
    """T4: even where capacities say otherwise; a CPU in both performs, a CPU in none is of the standard kind."""
    tree = SysfsBuilder(tmp_path, "0-5")
    tree.each("0-5", "cpu_capacity", 1024)
    tree.file("sys/devices/cpu_core/cpus", "0-1,8")
    tree.file("sys/devices/cpu_atom/cpus", "1-3")
    tree.file("sys/devices/cpu_lowpower/cpus", "4")
    topology = tree.read()
    assert of_kind(topology, CoreType.PERFORMANCE) == "0-1"
    assert of_kind(topology, CoreType.EFFICIENT) == "2-4"
    assert of_kind(topology, CoreType.STANDARD) == "5"


@pytest.mark.parametrize("name", ["cpu_core", "cpu_atom"])
def test_one_hybrid_list_alone_is_a_uniform_machine(tmp_path: Path, name: str) -> None:
    """T4: a machine of efficient cores only has nothing to tell apart."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.file(f"sys/devices/{name}/cpus", "0-3")
    assert of_kind(tree.read(), CoreType.STANDARD) == "0-3"


@pytest.mark.parametrize(
    ("name", "strong", "weak"),
    [
        pytest.param("cpu_capacity", 1024, 446, id="capacity"),
        pytest.param("cpufreq/cpuinfo_max_freq", 5200000, 3900000, id="top frequency"),
        pytest.param("cpufreq/base_frequency", 1900000, 1400000, id="base frequency"),
    ],
)
def test_clearly_weaker_cores_are_efficient(tmp_path: Path, name: str, strong: int, weak: int) -> None:
    """T4."""
    topology = two_kinds(tmp_path, name, strong, weak)
    assert of_kind(topology, CoreType.PERFORMANCE) == "0-1"
    assert of_kind(topology, CoreType.EFFICIENT) == "2-3"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        pytest.param("cpu_capacity", 1024, 980, id="capacity"),
        pytest.param("cpufreq/cpuinfo_max_freq", 4500000, 4300000, id="top frequency"),
        pytest.param("cpufreq/cpuinfo_max_freq", 5880000, 5200000, id="preferred cores"),
    ],
)
def test_favoured_cores_are_not_another_kind(tmp_path: Path, name: str, first: int, second: int) -> None:
    """T4: some percent more turbo do not make the rest efficient cores."""
    assert of_kind(two_kinds(tmp_path, name, first, second), CoreType.STANDARD) == "0-3"


def test_a_raised_base_frequency_alone_is_not_another_kind(tmp_path: Path) -> None:
    """T4: SST-BF gives some cores of a server a higher base frequency, the top one being the same."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.each("0-3", "cpufreq/cpuinfo_max_freq", 3600000)
    tree.each("0-1", "cpufreq/base_frequency", 2800000)
    tree.each("2-3", "cpufreq/base_frequency", 2100000)
    topology = tree.read()
    assert of_kind(topology, CoreType.STANDARD) == "0-3"
    assert [cpu.base_khz for cpu in topology.cpus.values()] == [2800000, 2800000, 2100000, 2100000]


def test_speed_facts_are_told_per_core_and_hold_for_its_threads(tmp_path: Path) -> None:
    """T4."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.group("core", "0-1", 0)
    tree.group("core", "2-3", 1)
    tree.each("0-3", "cpufreq/cpuinfo_max_freq", 3600000)
    tree.each("0-1", "cpufreq/energy_performance_preference", "performance")
    tree.each("2-3", "cpufreq/energy_performance_preference", "power")
    cpus = tree.read().cpus
    assert [cpu.epp for cpu in cpus.values()] == ["performance", "performance", "power", "power"]
    assert (cpus[1].max_khz, cpus[1].base_khz, cpus[1].capacity) == (3600000, None, None)
