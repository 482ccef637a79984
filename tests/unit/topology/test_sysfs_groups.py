"""Levels come from the kernel's lists and are partitions, whatever numbers stand beside them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.topology.files import KernelFiles
from nodecpu.topology.model import Group
from nodecpu.topology.sysfs import topology_of
from tests.unit.topology.builder import CPU, SysfsBuilder
from tests.unit.topology.invariants import check_topology


def shown(groups: Iterable[Group]) -> list[str]:
    return [f"{group.label}: {group.cpus}" for group in groups]


def test_threads_of_a_core_come_from_the_list_not_from_numbers(tmp_path: Path) -> None:
    """T2."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.group("package", "0-3", 0)
    tree.group("core", "0,3", 0)
    tree.group("core", "1-2", 1)
    topology = tree.read()
    assert shown(topology.cores) == ["0/0/0: 0,3", "0/0/1: 1-2"]
    assert topology.has_smt


def test_older_names_serve_where_the_newer_are_missing(tmp_path: Path) -> None:
    """T1: kernels before 5.2 have core_siblings_list and thread_siblings_list only."""
    tree = SysfsBuilder(tmp_path, "0-7")
    for cpus in ("0-3", "4-7"):
        tree.each(cpus, "topology/core_siblings_list", cpus)
    for cpus in ("0-1", "2-3", "4-5", "6-7"):
        tree.each(cpus, "topology/thread_siblings_list", cpus)
    topology = tree.read()
    assert [str(g.cpus) for g in topology.packages] == ["0-3", "4-7"]
    assert [str(g.cpus) for g in topology.cores] == ["0-1", "2-3", "4-5", "6-7"]


def test_masks_serve_where_all_lists_are_missing(tmp_path: Path) -> None:
    """T1."""
    tree = SysfsBuilder(tmp_path, "0-1,32-33")
    tree.each("0,32", "topology/core_siblings", "00000001,00000001")
    tree.each("1,33", "topology/core_siblings", "00000002,00000002")
    tree.each("0,32", "topology/thread_siblings", "00000001,00000001")
    tree.each("0-1,32-33", "cache/index3/level", 3)
    tree.each("0-1,32-33", "cache/index3/shared_cpu_map", "00000003,00000003")
    topology = tree.read()
    assert [str(g.cpus) for g in topology.packages] == ["0,32", "1,33"]
    assert [str(g.cpus) for g in topology.cores] == ["0,32", "1", "33"]
    assert [str(g.cpus) for g in topology.l3] == ["0-1,32-33"]


def test_core_ids_repeated_per_package_and_die_stay_different_cores(tmp_path: Path) -> None:
    """T2: core identity is (package, die, core id)."""
    tree = SysfsBuilder(tmp_path, "0-7")
    for package, cpus in ((3, "0-3"), (7, "4-7")):
        tree.group("package", cpus, package)
    for cpus in ("0-1", "2-3", "4-5", "6-7"):
        tree.group("die", cpus, int(cpus[0]) // 2 % 2)
        for cpu in cpus.split("-"):
            tree.group("core", cpu, int(cpu) % 2)
    topology = tree.read()
    assert shown(topology.dies) == ["3/0: 0-1", "3/1: 2-3", "7/0: 4-5", "7/1: 6-7"]
    assert len({group.label for group in topology.cores}) == 8
    assert shown(topology.cores)[5] == "7/0/1: 5"


def test_unknown_and_repeated_ids_are_replaced_by_free_numbers(tmp_path: Path) -> None:
    """T2: s390 says -1 for each package; some ARM kernels number every core 0."""
    tree = SysfsBuilder(tmp_path, "0-5")
    tree.group("package", "0-1", -1)
    tree.group("package", "2-3", -1)
    tree.group("package", "4-5", 2)
    for cpu in range(6):
        tree.group("core", str(cpu), 0)
    topology = tree.read()
    assert shown(topology.packages) == ["0: 0-1", "3: 2-3", "2: 4-5"]
    assert shown(topology.cores) == ["0/0/0: 0", "0/0/1: 1", "3/0/0: 2", "3/0/3: 3", "2/0/0: 4", "2/0/5: 5"]


@pytest.mark.parametrize("die", [pytest.param("-1", id="negative"), pytest.param("(null)", id="odd")])
def test_die_lists_without_a_die_id_are_place_holders(tmp_path: Path, die: str) -> None:
    """T2: ARM kernels list each CPU as a die of its own and say -1."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.group("package", "0-3", 36)
    for cpu in "0123":
        tree.each(cpu, "topology/die_cpus_list", cpu)
    tree.each("0-3", "topology/die_id", die)
    assert shown(tree.read().dies) == ["36/0: 0-3"]


def test_a_die_that_cuts_a_core_is_not_believed(tmp_path: Path) -> None:
    """T2: two threads of a core stay together."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.group("package", "0-3", 0)
    tree.group("core", "0-1", 0)
    tree.group("core", "2-3", 1)
    for cpu in "0123":
        tree.group("die", cpu, int(cpu))
    topology = tree.read()
    assert shown(topology.dies) == ["0/0: 0-3"]
    assert [str(g.cpus) for g in topology.cores] == ["0-1", "2-3"]


def test_a_core_list_that_reaches_into_another_package_is_cut(tmp_path: Path) -> None:
    """T2."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.group("package", "0-1", 0)
    tree.group("package", "2-3", 1)
    tree.group("core", "0-3", 0)
    assert [str(g.cpus) for g in tree.read().cores] == ["0-1", "2-3"]


def test_of_two_lists_that_overlap_the_lower_cpus_holds(tmp_path: Path) -> None:
    """T2."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.each("0", "topology/core_cpus_list", "0-2")
    tree.each("1-3", "topology/core_cpus_list", "1-3")
    topology = tree.read()
    assert [str(g.cpus) for g in topology.cores] == ["0-2", "3"]
    check_topology(topology)


def test_offline_cpus_are_cut_from_every_list_and_their_directories_are_not_missed(tmp_path: Path) -> None:
    """T1: an offline CPU has no topology directory, and recorded lists still name it."""
    tree = SysfsBuilder(tmp_path, "1-2,4")
    for level in ("package", "die"):
        tree.each("1-2,4", f"topology/{level}_cpus_list", "0-5")
    tree.each("1-2,4", "topology/die_id", 0)
    tree.each("1", "topology/core_cpus_list", "0-1")
    tree.each("4", "topology/core_cpus_list", "4-5")
    tree.each("1-2,4", "cache/index3/level", 3)
    tree.each("1-2,4", "cache/index3/shared_cpu_list", "0-5")
    tree.node(0, "0-5")
    tree.file(f"{CPU}/isolated", "0,2,5")
    topology = tree.read()
    assert str(topology.packages[0].cpus) == str(topology.l3[0].cpus) == str(topology.numa[0].cpus) == "1-2,4"
    assert [str(g.cpus) for g in topology.cores] == ["1", "2", "4"]
    assert str(topology.isolated) == "2"


def test_cpus_without_any_list_make_up_one_package_and_a_core_each(tmp_path: Path) -> None:
    """T1."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.group("package", "1-2", 4)
    topology = tree.read()
    assert shown(topology.packages) == ["0: 0,3", "4: 1-2"]
    assert len(topology.cores) == 4


def test_clusters_are_known_by_a_valid_id_only(tmp_path: Path) -> None:
    """T4: 65535 and -1 mean no clusters."""
    tree = SysfsBuilder(tmp_path, "0-7")
    tree.group("package", "0-3", 0)
    tree.group("package", "4-7", 1)
    tree.group("cluster", "0-1", 40)
    tree.group("cluster", "2-3", 48)
    tree.group("cluster", "4-7", 65535)
    topology = tree.read()
    assert shown(topology.clusters) == ["0/40: 0-1", "0/48: 2-3"]
    assert [cpu.cluster for cpu in topology.cpus.values()] == [40, 40, 48, 48, None, None, None, None]


def test_caches_are_found_under_any_index_and_may_leave_cpus_out(tmp_path: Path) -> None:
    """T1, T4."""
    tree = SysfsBuilder(tmp_path, "0-5")
    tree.cache(2, "0-1", 5, index=1)
    tree.cache(3, "0-3", index=2)
    tree.cache(2, "4-5", 5)
    topology = tree.read()
    assert shown(topology.l2) == ["5: 0-1", "4: 4-5"]
    assert shown(topology.l3) == ["0: 0-3"]
    assert [cpu.l3_id for cpu in topology.cpus.values()] == [0, 0, 0, 0, None, None]


def test_a_cache_may_span_packages(tmp_path: Path) -> None:
    """T2: recorded on a phone; nothing is cut for it."""
    tree = SysfsBuilder(tmp_path, "0-3")
    tree.group("package", "0-1", 0)
    tree.group("package", "2-3", 1)
    tree.cache(3, "0-3", 0)
    assert shown(tree.read().l3) == ["0: 0-3"]


def opens(tmp_path: Path, text: str) -> int:
    root = tmp_path / text.replace(" ", "")
    write_machine(parse_machine(text), root)
    with KernelFiles(root) as files:
        topology_of(files)
    return files.opens


def test_the_number_of_files_opened_grows_with_groups_not_with_cpus(tmp_path: Path) -> None:
    """T1: one list serves all CPUs of a group."""
    single = opens(tmp_path, "2 sockets, 2 nodes, 1 core, 1 thread")
    assert opens(tmp_path, "2 sockets, 2 nodes, 1 core, 8 threads") == single
    wide = opens(tmp_path, "2 sockets, 2 nodes, 3 cores, 8 threads")
    assert wide - single == 5 * 8, "a core costs its list and id, and level, list and id of its cache"
