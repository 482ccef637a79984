"""Picking with wishes agrees with trying every subset of small machines (K2, C10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, combinations, product

from hypothesis import given, settings
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet, union
from nodecpu.policy.picker import Unit, build_units, pick
from nodecpu.policy.wishes import NO_WISHES, Picked, Spread, Wishes, pick_by
from nodecpu.topology.model import Group, Topology
from tests.unit.policy.machines import Shape, build_topology

SHAPES = (
    Shape(nodes=2, cores=2, threads=2),
    Shape(sockets=2, nodes=2, cores=1, threads=2),
    Shape(cores=5, threads=2, l3_cores=2),
    Shape(nodes=2, cores=3, threads=2, single_cores=(1, 3), l3_cores=2),
    Shape(sockets=2, nodes=1, cores=4, threads=1, l3_cores=2),
    Shape(nodes=3, cores=2, threads=1),
)


def of_cores(*sizes: int) -> Topology:
    """Return a machine of one node whose cores have so many threads: siblings can be offline, small cores have one."""
    topology = build_topology(Shape(cores=sum(sizes), threads=1))
    ends = [*accumulate(sizes)]
    cores = tuple(
        Group(id=i, label=str(i), cpus=CpuSet(range(end - size, end)))
        for i, (size, end) in enumerate(zip(sizes, ends, strict=True))
    )
    return replace(topology, cores=cores, clusters=(), l2=cores)


MIXED = (of_cores(4, 2, 2, 1), of_cores(3, 2, 2), of_cores(4, 1, 1, 2), of_cores(3, 4, 2, 3))


def of_caches(*caches: str) -> Topology:
    """Return n4c16's kind of machine, two nodes of four CPUs, with these L3 caches: they may cross nodes or be few."""
    topology = build_topology(Shape(nodes=2, cores=2, threads=2))
    l3 = tuple(Group(id=i, label=str(i), cpus=CpuSet.parse(text)) for i, text in enumerate(caches))
    return replace(topology, l3=l3)


ODD = (of_caches("0-1,4-5", "2-3,6-7"), of_caches("0-1,4-7", "2-3"), of_caches("0-5"), of_caches())
MACHINES: Sequence[tuple[Topology, Unit]] = [(t, build_units(t)) for t in (*map(build_topology, SHAPES), *MIXED, *ODD)]

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


@given(st.sampled_from(MIXED), st.data())
def test_most_large_cores_are_taken_where_the_picker_would_break_one(topology: Topology, data: st.DataObject) -> None:
    """K2: of cores that differ in size."""
    machine = build_units(topology)
    cores = data.draw(st.lists(st.sampled_from(cores_of(topology)), min_size=2, unique=True))
    free = union(cores)
    count = data.draw(st.integers(1, len(free)))
    found = pick_by(machine, free, count, Wishes(full_cores=True))
    plain = pick(machine, free, count)
    assert found is not None
    assert plain is not None
    if is_whole(topology, plain):
        assert found.cpus == plain
    elif not found.missed:
        choices = [one for n in range(1, len(cores) + 1) for one in combinations(cores, n) if len(union(one)) == count]
        assert sizes(found.cpus, topology) == max(sorted((len(c) for c in one), reverse=True) for one in choices)


def sizes(cpus: CpuSet, topology: Topology) -> list[int]:
    """Return the sizes of the cores that these CPUs are, the largest first."""
    return sorted((len(core) for core in cores_of(topology) if core <= cpus), reverse=True)


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


WIDE = [build_topology(Shape(sockets=s, nodes=n, cores=c)) for s, n, c in ((2, 3, 2), (3, 2, 2), (1, 4, 3), (4, 2, 1))]


@st.composite
def rooms(draw: st.DrawFn, topology: Topology) -> tuple[CpuSet, int]:
    """Return CPUs free, most nodes having a few, and an amount of them."""
    parts = [draw(st.just(node) | st.sets(st.sampled_from(sorted(node))).map(CpuSet)) for node in nodes_of(topology)]
    free = union(parts) or topology.online
    return free, draw(st.integers(1, len(free)))


def nodes_by_rule(topology: Topology, free: CpuSet, count: int, step: int = 1) -> list[CpuSet]:
    """Return what is free of the nodes to spread over, in the order in which they bear what is odd.

    ``step``: shares are multiples of it.
    """
    parts = sorted((node & free for node in nodes_of(topology)), key=lambda part: -len(part))
    number = next(n for n in range(1, len(parts) + 1) if sum(map(len, parts[:n])) >= count)
    enough = [part for part in parts if len(part) >= -(-count // (number * step)) * step]
    if len(enough) < number:
        return parts[:number]
    packages = [[part for part in enough if part <= package.cpus] for package in topology.packages]
    inside = min((few for few in packages if len(few) >= number), key=len, default=enough)
    return sorted(inside, key=lambda part: (len(part), part.first()))[:number]


def evenly(rooms: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the amounts of ``count`` that are the most even, what is odd in front: of all that there are."""
    choices = [one for one in product(*(range(room + 1) for room in rooms)) if sum(one) == count]
    least = min(evenness([*one]) for one in choices)
    return max(one for one in choices if evenness([*one]) == least)


@settings(max_examples=200)
@given(st.sampled_from(WIDE), st.data())
def test_nodes_are_of_one_socket_where_that_has_enough_and_the_first_bear_what_is_odd(
    topology: Topology, data: st.DataObject
) -> None:
    """K2: of several sockets the one with the fewest such nodes, of these the smallest that have an even share."""
    machine = build_units(topology)
    free, count = data.draw(rooms(topology))
    found = pick_by(machine, free, count, Wishes(spread=Spread.NUMA))
    assert found is not None
    parts = nodes_by_rule(topology, free, count)
    if len(parts) == 1:
        plain = pick(machine, free, count)
        assert plain is not None
        assert len(touched(found.cpus, nodes_of(topology))) == 1
        assert found.cpus == plain or len(touched(plain, nodes_of(topology))) > 1
        return
    amounts = evenly([len(part) for part in parts], count)
    taken = [pick(machine, part, amount) for part, amount in zip(parts, amounts, strict=True)]
    assert [found.cpus & part for part in parts] == taken


@settings(max_examples=200)
@given(st.sampled_from(WIDE), st.data())
def test_whole_cores_are_spread_over_nodes_as_such(topology: Topology, data: st.DataObject) -> None:
    """K2: the same rule, in cores."""
    machine = build_units(topology)
    free, count = data.draw(rooms(topology))
    whole = union(core for core in cores_of(topology) if core <= free)
    found = pick_by(machine, free, count, Wishes(spread=Spread.NUMA, full_cores=True))
    assert found is not None
    assert (found.missed == ()) == (count % 2 == 0 and count <= len(whole))
    if found.missed:
        return
    parts = nodes_by_rule(topology, whole, count, 2)
    assert is_whole(topology, found.cpus)
    if len(parts) == 1:
        assert len(touched(found.cpus, nodes_of(topology))) == 1
        return
    amounts = evenly([len(part) // 2 for part in parts], count // 2)
    assert [len(found.cpus & part) // 2 for part in parts] == [*amounts]


@given(cases())
def test_of_caches_the_first_bear_what_is_odd_and_whole_cores_are_spread_as_such(
    case: tuple[Topology, Unit, CpuSet, int],
) -> None:
    """C10."""
    topology, _, free, count = case
    caches = caches_of(topology)
    parts = [part for part in (*(cache & free for cache in caches), free - union(caches)) if part]
    found = answer(case, Wishes(spread=Spread.L3)).cpus
    assert [len(found & part) for part in parts] == [*evenly([len(part) for part in parts], count)]
    threads = {len(core) for core in cores_of(topology)}
    whole = [union(core for core in cores_of(topology) if core <= part) for part in parts]
    [step] = threads if len(threads) == 1 else [0]
    if step and count % step == 0 and sum(map(len, whole)) >= count:
        full = answer(case, Wishes(spread=Spread.L3, full_cores=True))
        assert full.missed == ()
        whole = [part for part in whole if part]
        expected = evenly([len(part) // step for part in whole], count // step)
        assert [len(full.cpus & part) // step for part in whole] == [*expected]


@given(cases())
def test_spread_over_caches_is_even_over_as_many_as_can_be(case: tuple[Topology, Unit, CpuSet, int]) -> None:
    """C10: CPUs without a known cache are one more place."""
    topology, _, free, count = case
    caches = caches_of(topology)
    caches = [*caches, topology.online - union(caches)]
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
    assert set(found.missed) <= {"full cores", "one L3 cache"}
    if "full cores" not in found.missed and full:
        assert is_whole(case[0], found.cpus)
    _, machine, free, _ = case
    assert pick_by(machine, free, len(free) + 1, wishes) is None
