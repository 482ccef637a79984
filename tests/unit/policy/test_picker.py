"""Which CPUs are picked: alignment first, then the least fragmentation, always the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.policy.picker import build_units, pick
from nodecpu.topology.model import Group
from tests.unit.policy.machines import N4C16, Shape, build_topology

CACHES = Shape(nodes=2, cores=8, threads=2, l3_cores=4)
"""One socket, nodes 0-15 and 16-31, caches of 8 CPUs each, cores of 2."""


def picked(shape: Shape, free: str, count: int) -> str | None:
    """Return what is picked, as text."""
    cpus = pick(build_units(build_topology(shape)), CpuSet.parse(free), count)
    return None if cpus is None else str(cpus)


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        pytest.param("0-15", 2, "0-1", id="two threads of one core"),
        pytest.param("1-15", 2, "2-3", id="a whole core rather than two halves"),
        pytest.param("1-15", 1, "1", id="one CPU fills a broken core"),
        pytest.param("0,2-15", 3, "0,2-3", id="a whole core and a broken one"),
        pytest.param("0-15", 4, "0-3", id="a node"),
        pytest.param("0-7,12-15", 4, "12-15", id="a node in the fuller socket"),
        pytest.param("2-15", 4, "4-7", id="a whole node rather than parts of two"),
        pytest.param("0-6,8-15", 3, "4-6", id="best fit: the node with the least free that holds it"),
        pytest.param("0-15", 6, "0-5", id="a socket"),
        pytest.param("2-15", 6, "2-7", id="the socket with the least free that holds it"),
        pytest.param("0-3,6-15", 5, "0-3,6", id="the whole node and a part of the broken one"),
        pytest.param("0,2,4,6", 2, "0,2", id="no whole core: one node still"),
        pytest.param("0-15", 16, "0-15", id="everything"),
        pytest.param("3,9", 2, "3,9", id="all that is free"),
        pytest.param("0-15", 0, "", id="nothing asked"),
        pytest.param("", 0, "", id="nothing asked of nothing"),
        pytest.param("0-3", 5, None, id="more than is free"),
        pytest.param("0-1,99", 3, None, id="CPUs that the machine does not have"),
    ],
)
def test_pick_on_n4c16(free: str, count: int, expected: str | None) -> None:
    """K1."""
    assert picked(N4C16, free, count) == expected


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        pytest.param("0-31", 8, "0-7", id="a whole cache"),
        pytest.param("2-31", 8, "8-15", id="a whole cache in the fuller node"),
        pytest.param("0-31", 10, "0-9", id="a whole cache and a core of the next"),
        pytest.param("0-11,16-31", 10, "0-9", id="the node with the least free that holds it"),
        pytest.param("6-7,10-31", 2, "6-7", id="the cache with the least free that has a whole core"),
        pytest.param("0-31", 18, "0-17", id="a whole node and a core of the other"),
        pytest.param("0-5,8-15", 9, "0,8-15", id="the largest free part whole, the rest from the other"),
    ],
)
def test_pick_with_caches(free: str, count: int, expected: str) -> None:
    """K1."""
    assert picked(CACHES, free, count) == expected


def test_core_beside_single_threaded_ones_is_kept_whole() -> None:
    """K1: a node whose only core of two threads stands beside cores of one (a sibling is offline, or small cores)."""
    shape = Shape(cores=3, threads=2, single_cores=(0, 2))
    assert picked(shape, "0-3", 2) == "1-2"
    assert picked(shape, "0-3", 1) == "0"
    assert picked(shape, "0-3", 3) == "0-2"


@pytest.mark.parametrize(
    ("free", "count", "expected"),
    [
        pytest.param("0,4,8,12", 3, "0,4,8", id="one of each of three nodes"),
        pytest.param("0-1,4,8,12-13", 3, "0-1,4", id="two of one and one of another"),
        pytest.param("0-1,4-5,8-11", 3, "8-10", id="a core has enough"),
        pytest.param("0-1,4-5,8-9,12", 7, "0-1,4-5,8-9,12", id="all there are"),
    ],
)
def test_fewer_cpus_than_a_core_has_threads_can_come_from_several_nodes(free: str, count: int, expected: str) -> None:
    """K1: cores of four threads, each a node of its own, none with enough free and none wholly free."""
    assert picked(Shape(nodes=4, cores=1, threads=4), free, count) == expected


def test_siblings_come_from_the_topology_never_from_numbering() -> None:
    """T2: threads numbered half a machine apart, as most servers have them."""
    topology = build_topology(Shape(cores=4, threads=1))
    cores = tuple(Group(id=i, label=str(i), cpus=CpuSet([i, i + 2])) for i in range(2))
    machine = build_units(replace(topology, cores=cores, clusters=(), l2=cores))
    assert pick(machine, CpuSet.parse("0-3"), 2) == CpuSet([0, 2])
    assert pick(machine, CpuSet.parse("1-3"), 2) == CpuSet([1, 3])


def test_machine_of_one_cpu_can_be_picked_from() -> None:
    """T1: no SMT, no caches, one node."""
    assert picked(Shape(cores=1, threads=1), "0", 1) == "0"


def test_answer_does_not_depend_on_what_was_asked_before() -> None:
    """K1: equal inputs give equal CPUs, whatever the machine remembers."""
    used, topology = build_units(build_topology(CACHES)), build_topology(CACHES)
    free = CpuSet.parse("0-31")
    for count in (1, 2, 3, 5, 1, 4, 2, 2, 1):
        taken = pick(used, free, count)
        assert taken == pick(build_units(topology), free, count)
        assert taken is not None
        free -= taken
        pick(used, CpuSet.parse("3,5,17-20"), 2)


def test_nodes_whose_caches_are_known_in_part_are_divided_all_the_same() -> None:
    """T1, K1: of four nodes of five CPUs only a few CPUs have a cache that is told."""
    topology = build_topology(Shape(sockets=2, nodes=2, cores=5, threads=1))
    caches = tuple(Group(id=i, label=str(i), cpus=CpuSet.parse(text)) for i, text in enumerate(("9", "16", "14")))
    machine = build_units(replace(topology, l3=caches))
    assert pick(machine, CpuSet.parse("1,3-4,8-9,11-12,14,16,18-19"), 9) is not None


def test_units_of_one_size_need_not_all_have_nodes_inside() -> None:
    """K1: a socket of one node beside one of two, as large: the one that holds a request alone is as good a home."""
    topology = build_topology(Shape(sockets=2, nodes=2, cores=2))
    first, second, third, fourth = topology.numa
    wide = replace(third, cpus=third.cpus | fourth.cpus)
    machine = build_units(replace(topology, numa=(first, second, wide), l3=(Group(id=0, label="0", cpus=wide.cpus),)))
    for free, count in (("0-15", 5), ("0-2,4-6,8-15", 5), ("8-15", 7), ("1,3,5,7,9,11,13,15", 3)):
        found = pick(machine, CpuSet.parse(free), count)
        assert found is not None
        assert len(found) == count
    assert pick(machine, CpuSet.parse("0-1,4-5,8-13"), 6) == CpuSet.parse("8-13")
