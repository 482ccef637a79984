"""Pools: which levels exist, what they hold, whose memory they have."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import NO_CPUS, CpuSet, NodeSet
from nodecpu.policy.pools import ALL_LEVELS, Level, Pool, PoolTree, build_pools
from nodecpu.policy.usable import Usable, usable_cpus
from nodecpu.topology.model import Group, MemoryKind, NumaNode, Topology
from tests.unit.policy.machines import MEMORY_BYTES, N4C16, Shape, books, build_topology


def pools(shape: Shape = N4C16, *, reserved: str = "", levels: tuple[Level, ...] = ALL_LEVELS) -> PoolTree:
    return books(shape, reserved=reserved, levels=levels).ledger.tree


def all_usable(topology: Topology) -> Usable:
    return Usable(reserved=NO_CPUS, isolated=NO_CPUS, sharable=topology.online)


def names(tree: PoolTree) -> list[str]:
    return ["  " * pool.depth + pool.name for pool in tree.pools]


def pool(tree: PoolTree, name: str) -> Pool:
    found = tree.named(name)
    assert found is not None
    return found


def test_two_sockets_have_a_root_above_them() -> None:
    """P1."""
    assert names(pools()) == [
        "root",
        "  socket 0",
        "    numa 0",
        "    numa 1",
        "  socket 1",
        "    numa 2",
        "    numa 3",
    ]


def test_one_socket_is_the_top_itself() -> None:
    """P1."""
    assert names(pools(Shape(nodes=2))) == ["socket 0", "  numa 0", "  numa 1"]


def test_caches_below_a_node_are_pools() -> None:
    """P1."""
    assert names(pools(Shape(cores=4, l3_cores=2))) == ["socket 0", "  l3 0", "  l3 1"]


def test_levels_can_be_chosen_and_flat_is_the_root_alone() -> None:
    """P1."""
    assert names(pools(levels=(Level.SOCKET,))) == ["root", "  socket 0", "  socket 1"]
    assert names(pools(levels=())) == ["root"]


def test_labels_keep_dies_of_different_packages_apart() -> None:
    """T2: die ids repeat per package."""
    topology = build_topology(N4C16)
    dies = tuple(Group(id=i % 2, label=f"{i // 2}/{i % 2}", cpus=node.cpus) for i, node in enumerate(topology.numa))
    tree = build_pools(replace(topology, dies=dies), all_usable(topology))
    assert [p.name for p in tree.pools if p.depth == 2] == ["die 0/0", "die 0/1", "die 1/0", "die 1/1"]


def test_cpus_of_a_pool_are_reserved_isolated_or_sharable() -> None:
    """P2, T5."""
    tree = books(replace(N4C16, isolated="7,14-15"), reserved="15").ledger.tree
    for each in tree.pools:
        assert each.reserved | each.isolated | each.sharable == each.cpus
        assert len(each.reserved) + len(each.isolated) + len(each.sharable) == len(each.cpus)
    top = tree.root
    assert (str(top.reserved), str(top.isolated), str(top.sharable)) == ("15", "7,14", "0-6,8-13")


def test_only_usable_cpus_are_in_pools() -> None:
    """T5: available cuts a node away, its level with it."""
    tree = books(reserved="", available="0-5").ledger.tree
    assert names(tree) == ["socket 0", "  numa 0", "  numa 1"]
    assert [str(each.cpus) for each in tree.pools] == ["0-5", "0-3", "4-5"]


def test_kubepods_cpuset_cuts_too_and_reserved_beats_isolated() -> None:
    """T5."""
    usable = usable_cpus(
        online=CpuSet.parse("0-7"),
        isolated=CpuSet.parse("6-7"),
        available=CpuSet.parse("1-9"),
        kubepods=CpuSet.parse("0-6"),
        reserved=CpuSet.parse("0,6"),
    )
    assert (str(usable.reserved), str(usable.isolated), str(usable.sharable)) == ("6", "", "1-5")
    assert str(usable.grantable) == "1-5"


def test_memory_is_that_of_the_pools_nodes_and_the_root_has_all() -> None:
    """P2, M1."""
    tree = pools()
    assert {each.name: str(each.mems) for each in tree.pools} == {
        "root": "0-3",
        "socket 0": "0-1",
        "numa 0": "0",
        "numa 1": "1",
        "socket 1": "2-3",
        "numa 2": "2",
        "numa 3": "3",
    }


def test_memory_of_other_kinds_serves_only_where_there_is_no_dram() -> None:
    """P2, T3, M1: node 4 is HBM near node 0; node 1 has none and borrows from node 0; node 2 has HBM alone."""
    topology = build_topology(N4C16)
    hbm = NumaNode(id=4, cpus=NO_CPUS, kind=MemoryKind.HBM, size_bytes=1, home=0, memory=NodeSet([4]), distances={})
    nodes = list(topology.numa)
    nodes[1] = replace(nodes[1], kind=MemoryKind.NONE, size_bytes=0, memory=NodeSet([0]))
    nodes[2] = replace(nodes[2], kind=MemoryKind.HBM)
    tree = build_pools(replace(topology, numa=(*nodes, hbm)), all_usable(topology))
    assert [str(pool(tree, f"numa {i}").mems) for i in range(4)] == ["0", "0", "2", "3"]


@pytest.mark.parametrize(
    ("cpus", "name"),
    [("8-9", "numa 2"), ("8,12", "socket 1"), ("0,15", "root"), ("12-15", "numa 3"), ("", "root"), ("0,99", "root")],
)
def test_holding_is_the_deepest_pool_with_all_of_them(cpus: str, name: str) -> None:
    """G5."""
    assert pools().holding(CpuSet.parse(cpus)).name == name


def test_zone_is_the_memory_of_the_kinds_wanted_or_what_is_usual() -> None:
    """P2, M1: where there is none of these kinds."""
    topology = build_topology(N4C16)
    hbm = NumaNode(id=4, cpus=NO_CPUS, kind=MemoryKind.HBM, size_bytes=7, home=0, memory=NodeSet([4]), distances={})
    tree = build_pools(replace(topology, numa=(*topology.numa, hbm)), all_usable(topology))
    near, far = pool(tree, "numa 0"), pool(tree, "numa 1")
    both = (MemoryKind.HBM, MemoryKind.DRAM)
    assert [str(near.zone(kinds)) for kinds in ((), (MemoryKind.HBM,), both, (MemoryKind.PMEM,))] == [
        "0",
        "4",
        "0,4",
        "0",
    ]
    assert [str(far.zone(kinds)) for kinds in ((), (MemoryKind.HBM,), both)] == ["1", "1", "1"]
    for _ in range(2):
        assert [tree.size_of(NodeSet(nodes)) for nodes in ((), (0,), (1, 4), (0, 9))] == [
            0,
            MEMORY_BYTES,
            MEMORY_BYTES + 7,
            MEMORY_BYTES,
        ]


def test_what_is_present_is_what_is_online_where_that_is_told() -> None:
    """T6: CPUs and memory that are gone."""
    topology = build_topology(N4C16)
    told = build_pools(topology, replace(all_usable(topology), online=CpuSet.parse("0-13")))
    for tree, left in ((told, "12-13"), (pools(), "12-15")):
        assert str(tree.present(CpuSet.parse("12-15"))) == left
        assert str(tree.present(CpuSet.parse("2-3"))) == "2-3"
        assert str(tree.present_memory(NodeSet([1, 3]))) == "1,3"
        assert str(tree.present_memory(NodeSet([1, 9]))) == "1"
    nothing = PoolTree(told.pools, told.usable)
    assert str(nothing.present_memory(NodeSet([1, 9]))) == "1,9"
    untold = PoolTree(told.pools, replace(told.usable, online=None))
    assert str(untold.present(CpuSet.parse("12-15,99"))) == "12-15,99"


@pytest.mark.parametrize(
    ("cpus", "seen"), [("0-3", "0,2"), ("1-3", "1-2"), ("5,7-9", "5,7-8"), ("0-15", "0,2,4,6,8,10,12,14"), ("", "")]
)
def test_one_thread_of_each_core_is_the_lowest_of_those_given(cpus: str, seen: str) -> None:
    """A: hide-hyperthreads."""
    assert str(pools().one_thread_each(CpuSet.parse(cpus))) == seen
    single = pools(Shape(cores=3, single_cores=(1,)))
    assert str(single.one_thread_each(CpuSet.parse("1-4"))) == "1-3"


@given(st.permutations(range(24)), st.sets(st.integers(0, 23)), st.sets(st.integers(0, 23)))
def test_one_thread_of_each_core_is_the_lowest_however_cpus_are_numbered(
    order: list[int], ends: set[int], cpus: set[int]
) -> None:
    """A: cores of any size, whose CPUs have any numbers."""
    cuts = [0, *sorted(ends - {0}), len(order)]
    cores = [CpuSet(order[start:end]) for start, end in pairwise(cuts)]
    tree = PoolTree(pools().pools, pools().usable, cores)
    lowest = [(core & CpuSet(cpus)).first() for core in cores if core & CpuSet(cpus)]
    assert tree.one_thread_each(CpuSet(cpus)) == CpuSet(lowest)


def test_upwards_leads_from_a_pool_to_the_root() -> None:
    tree = pools()
    assert [each.name for each in tree.upwards(pool(tree, "numa 3"))] == ["numa 3", "socket 1", "root"]


def test_unknown_names_are_none() -> None:
    """R1: a pool that is no longer there."""
    assert pools().named("numa 9") is None
