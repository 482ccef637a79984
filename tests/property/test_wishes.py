"""Picking with wishes agrees with trying every subset of small machines (K2, C10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet
from nodecpu.policy.picker import Unit, build_units, pick
from nodecpu.policy.wishes import NO_WISHES, Picked, Spread, Wishes, pick_by
from nodecpu.topology.model import Topology
from tests.unit.policy.machines import Shape, build_topology

SHAPES = (
    Shape(nodes=2, cores=2, threads=2),
    Shape(sockets=2, nodes=2, cores=1, threads=2),
    Shape(cores=5, threads=2, l3_cores=2),
    Shape(nodes=2, cores=3, threads=2, single_cores=(1, 3), l3_cores=2),
    Shape(sockets=2, nodes=1, cores=4, threads=1, l3_cores=2),
    Shape(nodes=3, cores=2, threads=1),
)
MACHINES: Sequence[tuple[Topology, Unit]] = [(t, build_units(t)) for t in map(build_topology, SHAPES)]

Groups = Sequence[CpuSet]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Topology, Unit, CpuSet, int]:
    topology, machine = draw(st.sampled_from(MACHINES))
    free = CpuSet(draw(st.lists(st.sampled_from(sorted(topology.online)), min_size=1, unique=True)))
    if draw(st.booleans()):
        free = topology.online
    return topology, machine, free, draw(st.integers(0, len(free)))


def subsets(cpus: CpuSet, count: int) -> Iterator[CpuSet]:
    return (CpuSet(one) for one in combinations(sorted(cpus), count))


def touched(cpus: CpuSet, groups: Groups) -> list[int]:
    """Return how many CPUs lie in each group that has any, rising."""
    return sorted(len(group & cpus) for group in groups if not group.isdisjoint(cpus))


def cores_of(topology: Topology) -> Groups:
    return [core.cpus for core in topology.cores]


def nodes_of(topology: Topology) -> Groups:
    return [node.cpus for node in topology.numa]


def caches_of(topology: Topology) -> Groups:
    return [cache.cpus for cache in topology.l3]


def is_whole(topology: Topology, cpus: CpuSet) -> bool:
    return all(core <= cpus or core.isdisjoint(cpus) for core in cores_of(topology))


def in_one_cache(topology: Topology, cpus: CpuSet) -> bool:
    return not cpus or any(cpus <= cache for cache in caches_of(topology))


def answer(case: tuple[Topology, Unit, CpuSet, int], wishes: Wishes) -> Picked:
    _, machine, free, count = case
    found = pick_by(machine, free, count, wishes)
    assert found is not None
    assert found == pick_by(machine, free, count, wishes)
    assert found.cpus <= free
    assert len(found.cpus) == count
    return found


def agrees(case: tuple[Topology, Unit, CpuSet, int], found: Picked, holds: Callable[[CpuSet], bool]) -> None:
    """Assert that the wish is met exactly if any choice at all could meet it."""
    _, _, free, count = case
    assert holds(found.cpus) is not bool(found.missed)
    assert holds(found.cpus) is any(holds(one) for one in subsets(free, count))


@given(cases())
def test_without_wishes_the_picker_decides(case: tuple[Topology, Unit, CpuSet, int]) -> None:
    """K1."""
    _, machine, free, count = case
    assert answer(case, NO_WISHES) == Picked(cpus=pick(machine, free, count) or CpuSet())


@given(cases())
def test_full_cores_are_found_whenever_there_are_any(case: tuple[Topology, Unit, CpuSet, int]) -> None:
    """K2."""
    topology = case[0]
    agrees(case, answer(case, Wishes(full_cores=True)), lambda cpus: is_whole(topology, cpus))


@given(cases())
def test_one_cache_is_found_whenever_one_has_room(case: tuple[Topology, Unit, CpuSet, int]) -> None:
    """K2, C10."""
    topology = case[0]
    agrees(case, answer(case, Wishes(same_l3=True)), lambda cpus: in_one_cache(topology, cpus))


@given(cases())
def test_full_cores_of_one_cache_are_found_whenever_there_are_any(case: tuple[Topology, Unit, CpuSet, int]) -> None:
    """K2, C10."""
    topology = case[0]
    found = answer(case, Wishes(full_cores=True, same_l3=True))
    agrees(case, found, lambda cpus: is_whole(topology, cpus) and in_one_cache(topology, cpus))


@given(cases())
def test_spread_over_cores_touches_as_many_as_can_be(case: tuple[Topology, Unit, CpuSet, int]) -> None:
    """K2."""
    topology, _, free, count = case
    cores = cores_of(topology)
    found = answer(case, Wishes(spread=Spread.CORES)).cpus
    assert len(touched(found, cores)) == min(count, len(touched(free, cores)))


def evenness(amounts: list[int]) -> tuple[int, ...]:
    """Return what is smaller the more even the amounts are: the largest first."""
    return tuple(sorted(amounts, reverse=True))


@given(cases())
def test_spread_over_nodes_is_even_over_the_fewest(case: tuple[Topology, Unit, CpuSet, int]) -> None:
    """K2."""
    topology, _, free, count = case
    nodes = nodes_of(topology)
    found = touched(answer(case, Wishes(spread=Spread.NUMA)).cpus, nodes)
    least = min((len(touched(one, nodes)), evenness(touched(one, nodes))) for one in subsets(free, count))
    assert (len(found), evenness(found)) == least


@given(cases())
def test_spread_over_caches_is_even_over_as_many_as_can_be(case: tuple[Topology, Unit, CpuSet, int]) -> None:
    """C10."""
    topology, _, free, count = case
    caches = caches_of(topology)
    found = touched(answer(case, Wishes(spread=Spread.L3)).cpus, caches)
    assert evenness(found) == min(evenness(touched(one, caches)) for one in subsets(free, count))


@given(cases(), st.booleans(), st.sampled_from([None, *Spread]), st.booleans())
def test_whatever_is_wished_the_amount_is_picked(
    case: tuple[Topology, Unit, CpuSet, int],
    full: bool,  # noqa: FBT001 - drawn
    spread: Spread | None,
    same: bool,  # noqa: FBT001 - drawn
) -> None:
    """K2: also of wishes that contradict each other; more than is free is None."""
    wishes = Wishes(full_cores=full, spread=spread, same_l3=same)
    found = answer(case, wishes)
    if "full cores" not in found.missed and full:
        assert is_whole(case[0], found.cpus)
    _, machine, free, _ = case
    assert pick_by(machine, free, len(free) + 1, wishes) is None
