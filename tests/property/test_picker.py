"""The picker against the optimum found by looking at every subset of small machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet, union
from nodecpu.policy.picker import Unit, build_units, pick
from nodecpu.topology.model import Group, Topology
from tests.bench.placement import churn, group_tree, least_costs
from tests.unit.policy.machines import N4C16, Shape, build_topology
from tests.unit.policy.plainpicker import plain_take

SMALL = {
    "2 sockets of 3 cores": Shape(sockets=2, cores=3),
    "2 nodes of 3 cores": Shape(nodes=2, cores=3),
    "3 caches of 2 cores": Shape(cores=6, l3_cores=2),
    "4 nodes of 3 single-threaded cores": Shape(sockets=2, nodes=2, cores=3, threads=1),
    "3 cores of 4 threads": Shape(cores=3, threads=4),
}
UNEVEN = {
    "caches of uneven cores": Shape(nodes=2, cores=4, l3_cores=2, single_cores=(1, 2, 5, 7)),
    "nodes of uneven cores": Shape(nodes=2, cores=2, threads=4, single_cores=(1, 3)),
}
ALL = st.sampled_from([*SMALL.values(), *UNEVEN.values(), N4C16])


def group(text: str) -> Group:
    return Group(id=0, label=text, cpus=CpuSet.parse(text))


def of_cores(*texts: str) -> Topology:
    """Return a machine of one node with these cores."""
    cores = tuple(map(group, texts))
    topology = build_topology(Shape(cores=len(union(core.cpus for core in cores)), threads=1))
    return replace(topology, cores=cores, clusters=(), l2=())


@cache
def built(shape: Shape) -> tuple[Topology, Unit]:
    topology = build_topology(shape)
    return topology, build_units(topology)


def spans(topology: Topology, cpus: CpuSet) -> tuple[int, int, int]:
    """Return how many NUMA nodes, L3 groups and cores these CPUs touch."""
    levels: Sequence[Sequence[CpuSet]] = (
        [node.cpus for node in topology.numa],
        [cache.cpus for cache in topology.l3],
        [core.cpus for core in topology.cores],
    )
    nodes, caches, cores = (sum(not cpus.isdisjoint(group) for group in level) for level in levels)
    return nodes, caches, cores


@pytest.mark.parametrize("shape", SMALL.values(), ids=list(SMALL))
def test_empty_machine_is_never_spanned_wider_than_any_subset_would(shape: Shape) -> None:
    """K1, quality "Placement": nodes, caches and cores are each the least possible."""
    topology, machine = built(shape)
    for count in range(1, len(topology.online) + 1):
        cpus = pick(machine, topology.online, count)
        assert cpus is not None
        least = [min(level) for level in zip(*every_span(topology, topology.online, count), strict=True)]
        assert list(spans(topology, cpus)) == least, f"{count} CPUs: {cpus}"


@pytest.mark.parametrize("shape", UNEVEN.values(), ids=list(UNEVEN))
def test_uneven_cores_do_not_widen_the_span_of_nodes_and_caches(shape: Shape) -> None:
    """K1: how many cores it takes is then a matter of which ones."""
    topology, machine = built(shape)
    for count in range(1, len(topology.online) + 1):
        cpus = pick(machine, topology.online, count)
        assert cpus is not None
        least = [min(level) for level in zip(*every_span(topology, topology.online, count), strict=True)]
        assert list(spans(topology, cpus))[:2] == least[:2], f"{count} CPUs: {cpus}"


def every_span(topology: Topology, free: CpuSet, count: int) -> list[tuple[int, int, int]]:
    return [spans(topology, CpuSet(subset)) for subset in combinations(free, count)]


@given(ALL, st.data())
def test_pick_is_within_the_free_set_has_the_asked_size_and_is_always_the_same(
    shape: Shape, data: st.DataObject
) -> None:
    """K1, C2: whatever was asked before."""
    topology, machine = built(shape)
    free = CpuSet(data.draw(st.sets(st.integers(0, len(topology.online) + 1))))
    count = data.draw(st.integers(0, len(topology.online)))
    cpus = pick(machine, free, count)
    if count > len(free & topology.online):
        assert cpus is None
        return
    assert cpus is not None
    assert len(cpus) == count
    assert cpus <= free & topology.online
    assert pick(build_units(topology), free, count) == cpus


@settings(max_examples=60)
@given(ALL, st.data())
def test_request_that_fits_one_unit_stays_in_one(shape: Shape, data: st.DataObject) -> None:
    """K1: on any free set, one node, cache or core is enough whenever it can be."""
    topology, machine = built(shape)
    free = CpuSet(data.draw(st.sets(st.sampled_from(sorted(topology.online)), min_size=1)))
    count = data.draw(st.integers(1, len(free)))
    cpus = pick(machine, free, count)
    assert cpus is not None
    groups = [*(n.cpus for n in topology.numa), *(g.cpus for g in topology.l3), *(g.cpus for g in topology.cores)]
    holding = [group for group in groups if len(group & free) >= count]
    if holding:
        least = min(len(group) for group in holding)
        assert any(cpus <= group for group in holding if len(group) == least)


@settings(max_examples=60)
@given(st.sampled_from(list(SMALL.values())), st.data())
def test_two_threads_are_one_core_whenever_a_whole_core_is_free(shape: Shape, data: st.DataObject) -> None:
    """K1, U1: a request of whole cores breaks none while its home has enough whole ones."""
    topology, machine = built(shape)
    threads = max(len(core.cpus) for core in topology.cores)
    whole = [core.cpus for core in topology.cores if len(core.cpus) == threads]
    kept = data.draw(st.lists(st.sampled_from(whole), min_size=1, unique=True))
    free = CpuSet(data.draw(st.sets(st.sampled_from(sorted(topology.online)))))
    for core in kept:
        free |= core
    cpus = pick(machine, free, threads)
    assert cpus in whole


DIVIDED = [
    *(SMALL[name] for name in ("2 sockets of 3 cores", "2 nodes of 3 cores", "4 nodes of 3 single-threaded cores")),
    *(N4C16, Shape(nodes=3), Shape(nodes=2, cores=4, l3_cores=2), Shape(sockets=2, nodes=3, cores=1)),
]


@settings(max_examples=150)
@given(st.sampled_from(DIVIDED), st.data())
def test_request_that_no_group_holds_is_divided_as_well_as_can_be(shape: Shape, data: st.DataObject) -> None:
    """K1, quality "Placement": nodes, then caches, then cores, then broken ones left; against every subset.

    Within a socket that holds it, if one does.
    """
    topology, machine = built(shape)
    free = CpuSet(data.draw(st.sets(st.sampled_from(sorted(topology.online)), min_size=2, max_size=10)))
    most = max(len(group & free) for group in (*(n.cpus for n in topology.numa), *(g.cpus for g in topology.l3)))
    assume(most < len(free))
    count = data.draw(st.integers(most + 1, len(free)))
    cpus = pick(machine, free, count)
    assert cpus is not None
    sockets = [free & package.cpus for package in topology.packages if len(free & package.cpus) >= count] or [free]
    rooms = [room for room in sockets if cpus <= room]
    assert rooms
    best = min(rank(topology, room, CpuSet(some)) for room in sockets for some in combinations(room, count))
    assert rank(topology, rooms[0], cpus) == best


def test_a_socket_that_holds_a_request_is_preferred_to_fewer_nodes_in_two() -> None:
    """K1: the smallest unit first."""
    _, machine = built(Shape(sockets=2, nodes=3, cores=1))
    assert pick(machine, CpuSet.parse("0-2,4,6-7"), 4) == CpuSet.parse("0-2,4")
    assert pick(machine, CpuSet.parse("0-2,4,6-7"), 5) == CpuSet.parse("0-2,6-7")


def test_a_single_cpu_breaks_no_core_while_another_is_broken() -> None:
    """K1: whatever was asked before, at the first request too."""
    assert pick(build_units(build_topology(N4C16)), CpuSet.parse("0,4-5"), 1) == CpuSet.parse("0")


@settings(max_examples=60)
@given(st.sampled_from([Shape(cores=3, threads=4), Shape(nodes=2, cores=2, threads=8)]), st.data())
def test_less_than_a_core_breaks_none_while_a_broken_one_holds_it(shape: Shape, data: st.DataObject) -> None:
    """K1: also where cores have many threads; of such cores that one is taken that is left with the least."""
    topology, machine = built(shape)
    cores = [core.cpus for core in topology.cores]
    free = CpuSet(data.draw(st.sets(st.sampled_from(sorted(topology.online)), min_size=1)))
    broken = [free & core for core in cores if free & core != core]
    most = max((len(core) for core in broken), default=0)
    assume(most)
    count = data.draw(st.integers(1, most))
    cpus = pick(machine, free, count)
    assert cpus is not None
    (core,) = (core for core in broken if cpus <= core)
    assert len(core) == min(len(one) for one in broken if len(one) >= count)


CHOICES = {
    "a rest of less than a core comes from a broken one": (Shape(nodes=3, cores=2), "2-3,6-7,9,11", 3, "2-3,9"),
    "whole cores that are just enough": (Shape(nodes=4, cores=2), "2-4,6-7,10,12-13", 6, "2-3,6-7,12-13"),
    "whole cores that are just enough but for a rest": (Shape(nodes=4, cores=2), "3,5-6,8-9,12-13", 5, "3,8-9,12-13"),
    "broken cores that are just enough": (Shape(nodes=3, cores=2), "0-2,6-11", 5, "2,8-11"),
    "of nodes with as much those with fewer caches": (
        Shape(nodes=3, cores=4, l3_cores=2),
        "0,6,13-14,21-22",
        4,
        "13-14,21-22",
    ),
    "of nodes that are divided by cores alone": (Shape(nodes=4, cores=2), "1,4-6,8-10,12-14", 7, "4-6,8-9,12-13"),
    "of more sockets than are tried, that with the least": (
        Shape(sockets=5, nodes=2, cores=6, threads=1),
        "0-3,6-9,12-15,18-21,24-27,30-33,36-39,42-45,48-54",
        7,
        "48-54",
    ),
}


@pytest.mark.parametrize(("shape", "free", "count", "expected"), CHOICES.values(), ids=CHOICES)
def test_division_among_groups_takes(shape: Shape, free: str, count: int, expected: str) -> None:
    """K1: what touches the fewest groups and breaks the fewest cores."""
    _, machine = built(shape)
    assert pick(machine, CpuSet.parse(free), count) == CpuSet.parse(expected)


def test_last_of_several_clusters_is_taken_in_whole_cores() -> None:
    """K1: also where two clusters have just what is left to take."""
    topology, _ = built(Shape(cores=9))
    machine = build_units(replace(topology, clusters=(group("0-5"), group("6-11"), group("12-17"))))
    assert pick(machine, CpuSet.parse("0,2,4,6,8,12-13"), 5) == CpuSet.parse("0,2,4,12-13")


def rank(topology: Topology, room: CpuSet, cpus: CpuSet) -> tuple[int, ...]:
    """Return what a division touches, and how many cores it leaves broken."""
    left = [room - cpus & core.cpus for core in topology.cores]
    broken = sum(bool(some) and some != core.cpus for some, core in zip(left, topology.cores, strict=True))
    return *spans(topology, cpus), broken


@settings(max_examples=60)
@given(ALL, st.data())
def test_the_bench_counts_the_least_groups_as_looking_at_every_subset_does(shape: Shape, data: st.DataObject) -> None:
    """Quality "Placement": the optimum that the figures are taken against."""
    topology, _ = built(shape)
    free = CpuSet(data.draw(st.sets(st.sampled_from(sorted(topology.online)), min_size=1, max_size=9)))
    count = data.draw(st.integers(1, len(free)))
    assert least_costs(group_tree(topology), free.mask, count)[count] == min(every_span(topology, free, count))


@pytest.mark.parametrize("load", [0.6, 0.9])
def test_under_churn_requests_touch_the_fewest_nodes_caches_and_cores(load: float) -> None:
    """K1, quality "Placement": 99 of a hundred requests, on 2 sockets of 2 nodes with 3 caches each."""
    topology = build_topology(Shape(sockets=2, nodes=2, cores=6, l3_cores=2))
    score = churn(topology, (1, 2, 3, 4, 6, 8, 12), load, 400)
    assert score.joint >= 0.99 * score.requests


ODD = [
    build_topology(Shape(sockets=2, nodes=2, cores=2, threads=4, single_cores=(1, 6))),
    build_topology(Shape(nodes=2, cores=6, threads=2, l3_cores=3, single_cores=(1, 4, 5, 8))),
    build_topology(Shape(sockets=2, cores=4, threads=3, single_cores=(0, 5, 6))),
    replace(built(N4C16)[0], clusters=(group("0-3"), group("4-15"))),
    of_cores("0-2", "3", "4-7", "8-9", "10-13", "14", "15-16"),
    of_cores("0,8", "1,9", "2,10", "3", "4", "5,11", "6-7"),
]


@settings(max_examples=200)
@given(
    st.sampled_from([*SMALL.values(), *UNEVEN.values(), N4C16]).map(build_topology) | st.sampled_from(ODD), st.data()
)
def test_census_and_memory_are_shortcuts_to_what_the_rules_say(topology: Topology, data: st.DataObject) -> None:
    """K1, K3: the smallest unit that holds a request, in whole cores, with the least, in the fullest surroundings."""
    units = build_units(topology)
    threads = max(len(core.cpus) for core in topology.cores)
    some_cpus = st.sets(st.sampled_from(sorted(topology.online)), min_size=1).map(CpuSet)
    pick(units, data.draw(some_cpus), 1)
    kept = data.draw(st.lists(st.sampled_from([core.cpus for core in topology.cores]), max_size=5))
    free = data.draw(some_cpus) | union(kept)
    count = data.draw(st.integers(1, len(free)))
    expected = plain_take(units, free.mask, count, threads)
    if expected is not None:
        assert pick(units, free, count) == CpuSet.from_mask(expected)


@st.composite
def cut_machines(draw: st.DrawFn) -> Topology:
    """Return a machine whose caches or nodes may cut through its cores, or leave CPUs out."""
    topology = build_topology(draw(st.sampled_from([N4C16, Shape(nodes=2, cores=3, threads=4), Shape(cores=6)])))
    owners = draw(st.lists(st.integers(0, 3), min_size=len(topology.online), max_size=len(topology.online)))
    pieces = [CpuSet(cpu for cpu, owner in zip(topology.online, owners, strict=True) if owner == i) for i in range(3)]
    groups = tuple(Group(id=i, label=str(i), cpus=piece) for i, piece in enumerate(pieces) if piece)
    if draw(st.booleans()):
        return replace(topology, l3=groups)
    nodes = [replace(topology.numa[0], id=one.id, home=one.id, cpus=one.cpus) for one in groups]
    return replace(topology, numa=tuple(nodes) or topology.numa)


@given(cut_machines(), st.data())
def test_impossible_machines_can_be_picked_from(topology: Topology, data: st.DataObject) -> None:
    """T2, K1: virtual machines have cores on two nodes; whatever is told, the amount is picked, the same each time."""
    units = build_units(topology)
    pending = [units]
    for unit in pending:
        pending += unit.children
        assert not unit.children or sum(child.size for child in unit.children) == unit.size
        assert all(child.mask & unit.mask == child.mask for child in unit.children)
    free = data.draw(st.sets(st.sampled_from(sorted(topology.online)), min_size=1).map(CpuSet))
    for count in range(1, len(free) + 1):
        cpus = pick(units, free, count)
        assert cpus is not None
        assert cpus <= free
        assert len(cpus) == count
        assert pick(build_units(topology), free, count) == cpus


@pytest.mark.parametrize("shape", [*SMALL.values(), *UNEVEN.values(), N4C16])
def test_bits_of_a_census_tell_kind_and_amounts_apart(shape: Shape) -> None:
    """K3: fields do not overlap, and those of units that are divided among groups are known as such."""
    _, machine = built(shape)
    layout, units = machine.layout, [machine]
    for unit in units:
        units += unit.children
    seen = 0
    for kind in sorted({unit.kind for unit in units}):
        field = layout.field(kind)
        assert field & seen == 0
        assert field > seen, "larger units come later"
        assert field & layout.crossing == (field if kind[1] else 0)
        seen |= field
        told = {}
        for free in range(kind[0] + 1):
            for whole in range(free + 1):
                bits = layout.bits_of(kind, free, whole)
                assert bits & field == bits
                assert (bits & layout.whole).bit_count() == 1
                is_mixed = not whole if kind[0] <= layout.threads else free - whole >= layout.threads - 1
                assert (bits & layout.mixed).bit_count() == is_mixed
                assert bits & layout.mixed & layout.whole == 0
                told[bits & ~layout.mixed] = free, whole
        assert len(told) == (kind[0] + 1) * (kind[0] + 2) // 2
    assert layout.crossing == sum(layout.field(unit.kind) for unit in {one.kind: one for one in machine.wide}.values())
