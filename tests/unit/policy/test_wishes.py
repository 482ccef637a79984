"""What wishes make of a pick, in examples; tests/property/test_wishes.py compares them with every choice there is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import CpuSet, union
from nodecpu.errors import NoCapacity
from nodecpu.policy.picker import Unit, build_units
from nodecpu.policy.rules import Rules
from nodecpu.policy.wishes import Picked, Spread, Wishes, pick_by, whole_cores
from nodecpu.topology.model import Group
from tests.unit.policy.given import cpus, create
from tests.unit.policy.machines import N4C16, Shape, books, build_topology

CACHES = Shape(sockets=2, nodes=1, cores=8, threads=2, l3_cores=2)
"""Sockets 0-15 and 16-31, L3 caches of 4 CPUs each."""
HYBRID = Shape(cores=6, threads=2, single_cores=(2, 3, 4, 5))
"""Cores 0-1 and 2-3, and four of one thread: 4 to 7."""


@pytest.mark.parametrize(
    ("shape", "free", "count", "wishes", "expected"),
    [
        pytest.param(N4C16, "1-15", 4, Wishes(full_cores=True), "4-7", id="whole cores of a whole node"),
        pytest.param(N4C16, "1-3,5-7", 4, Wishes(full_cores=True), "2-3,6-7", id="whole cores of two nodes"),
        pytest.param(HYBRID, "1-7", 3, Wishes(full_cores=True), "2-4", id="a large and a small core"),
        pytest.param(HYBRID, "3-7", 3, Wishes(full_cores=True), "4-6", id="three small cores are full ones"),
        pytest.param(N4C16, "0-15", 3, Wishes(spread=Spread.CORES), "0,2,4", id="one thread of three cores"),
        pytest.param(N4C16, "0-3", 3, Wishes(spread=Spread.CORES), "0-2", id="second threads when cores run out"),
        pytest.param(N4C16, "0-15", 4, Wishes(spread=Spread.NUMA), "0-3", id="one node is enough"),
        pytest.param(N4C16, "0-15", 6, Wishes(spread=Spread.NUMA), "0-2,4-6", id="three of each of two"),
        pytest.param(
            N4C16, "0-15", 6, Wishes(spread=Spread.NUMA, full_cores=True), "0-5", id="even in cores, not in CPUs"
        ),
        pytest.param(N4C16, "0-3,8-15", 6, Wishes(spread=Spread.NUMA), "8-10,12-14", id="nodes of one socket"),
        pytest.param(
            Shape(sockets=2, nodes=3),
            "0-19",
            6,
            Wishes(spread=Spread.NUMA),
            "12-14,16-18",
            id="of a socket of just two",
        ),
        pytest.param(CACHES, "0-31", 4, Wishes(spread=Spread.L3), "0,4,8,12", id="a CPU of each of four caches"),
        pytest.param(
            CACHES, "0-15", 6, Wishes(spread=Spread.L3, full_cores=True), "0-1,4-5,8-9", id="a core of each cache"
        ),
        pytest.param(CACHES, "0-1,5-7,9-12", 3, Wishes(same_l3=True), "5-7", id="the first cache with room"),
    ],
)
def test_wishes(shape: Shape, free: str, count: int, wishes: Wishes, expected: str) -> None:
    """K2, C10."""
    picked = pick_by(build_units(build_topology(shape)), CpuSet.parse(free), count, wishes)
    assert picked is not None
    assert picked.missed == ()
    assert str(picked.cpus) == expected


def test_what_is_dropped_is_named_and_is_the_least() -> None:
    """C10: the amount first, then whole cores, then one cache, the spread last."""
    machine = build_units(build_topology(CACHES))

    def missed(free: str, count: int, wishes: Wishes) -> tuple[str, ...]:
        picked = pick_by(machine, CpuSet.parse(free), count, wishes)
        assert picked is not None
        return picked.missed

    assert missed("0-31", 6, Wishes(full_cores=True, same_l3=True)) == ("one L3 cache",)
    assert missed("0-31", 3, Wishes(full_cores=True, same_l3=True)) == ("full cores",)
    assert missed("0-31", 5, Wishes(full_cores=True, same_l3=True)) == ("full cores", "one L3 cache")
    assert missed("0-31", 3, Wishes(full_cores=True, spread=Spread.CORES)) == ("full cores",)
    assert missed("0-31", 3, Wishes(same_l3=True, spread=Spread.NUMA)) == ("one L3 cache",)


def test_too_few_full_cores_to_spread_over_nodes_are_no_full_cores() -> None:
    """K2: found by chance."""
    picked = pick_by(
        build_units(build_topology(N4C16)), CpuSet.parse("1,4-5"), 3, Wishes(full_cores=True, spread=Spread.NUMA)
    )
    assert picked == Picked(cpus=cpus("1,4-5"), missed=("full cores",))


def test_whole_cores_have_all_their_threads() -> None:
    machine = build_units(build_topology(HYBRID))
    assert str(whole_cores(machine, CpuSet.parse("1-5"))) == "2-5"


@pytest.mark.parametrize("spread", [None, *Spread])
def test_large_machines_are_ordinary(spread: Spread | None) -> None:
    """K3: 4096 CPUs on 64 nodes, half of them free."""
    machine = build_units(build_topology(Shape(sockets=8, nodes=8, cores=32, threads=2, l3_cores=8)))
    free = CpuSet(range(0, 4096)) - CpuSet(range(0, 4096, 7))
    picked = pick_by(machine, free, 1500, Wishes(spread=spread, full_cores=spread is not Spread.CORES))
    assert picked is not None
    assert len(picked.cpus) == 1500


def test_containers_get_full_cores_or_are_refused() -> None:
    """K2, G1."""
    node = books(rules=Rules(wishes=Wishes(full_cores=True)))
    assert create(node, "a", mcpu=2000).exclusive == cpus("8-9")
    with pytest.raises(NoCapacity, match="full cores"):
        create(node, "b", mcpu=3000)
    with pytest.raises(NoCapacity, match="full cores"):
        create(node, "c", mcpu=1000)


def test_exclusive_cpus_of_containers_are_spread_as_configured() -> None:
    """K2, G1."""
    node = books(rules=Rules(wishes=Wishes(spread=Spread.NUMA)))
    assert create(node, "a", mcpu=6000).exclusive == cpus("0-2,4-6")
    spread = books(CACHES, rules=Rules(wishes=Wishes(spread=Spread.CORES)))
    given = create(spread, "a", mcpu=2000).exclusive
    assert len(whole_cores(spread.machine.units, given)) == 0


def crossing() -> Unit:
    """Return a machine whose two caches cross its two nodes: 0-1,4-5 and 2-3,6-7 over 0-3 and 4-7."""
    topology = build_topology(Shape(nodes=2))
    caches = tuple(Group(id=i, label=str(i), cpus=cpus(text)) for i, text in enumerate(("0-1,4-5", "2-3,6-7")))
    return build_units(replace(topology, l3=caches))


@pytest.mark.parametrize(
    ("free", "count", "wishes", "expected", "missed"),
    [
        pytest.param("0-7", 4, Wishes(same_l3=True), "0-1,4-5", (), id="the picker would take a node"),
        pytest.param("0-3,6-7", 3, Wishes(same_l3=True), "2-3,6", (), id="the only one with enough"),
        pytest.param("0-5,7", 3, Wishes(same_l3=True), "2-3,7", (), id="the smallest with enough"),
        pytest.param(
            "0-2,4,6", 3, Wishes(same_l3=True, full_cores=True), "0-1,4", ("full cores",), id="no whole cores in it"
        ),
        pytest.param("0-1,3-4,6", 3, Wishes(same_l3=True, spread=Spread.CORES), "0-1,4", (), id="threads of one cache"),
        pytest.param("0,2,4,7", 3, Wishes(same_l3=True, spread=Spread.CORES), "0,2,4", ("one L3 cache",), id="of none"),
    ],
)
def test_one_cache_on_a_machine_whose_caches_cross_its_nodes(
    free: str, count: int, wishes: Wishes, expected: str, missed: tuple[str, ...]
) -> None:
    """K2, C10: such a cache is no unit of the picker's."""
    assert pick_by(crossing(), cpus(free), count, wishes) == Picked(cpus=cpus(expected), missed=missed)


def test_caches_with_too_little_count_as_surroundings() -> None:
    """K1, K2: the picker decides among the caches that have enough, and keeps emptier surroundings for others."""
    machine = build_units(build_topology(CACHES))
    assert pick_by(machine, cpus("0-3,8-9,20-23"), 4, Wishes(same_l3=True)) == Picked(cpus=cpus("20-23"))


def of_cores(*texts: str) -> Unit:
    """Return a machine of one node with these cores: siblings may be offline."""
    topology = build_topology(Shape(cores=len(union(map(cpus, texts))), threads=1))
    cores = tuple(Group(id=i, label=str(i), cpus=cpus(text)) for i, text in enumerate(texts))
    return build_units(replace(topology, cores=cores, clusters=(), l2=cores))


def test_whole_cores_of_several_sizes_are_the_largest_that_make_up_the_amount() -> None:
    """K2: where the picker would break one. 4 and 2 and 2 make 8, as do 3 and 3 and 2; 2 and 1 make 3, as 1 thrice."""
    machine = of_cores("0-3", "4-6", "7-9", "10-11", "12-13", "14")
    assert pick_by(machine, cpus("0-13"), 8, Wishes(full_cores=True)) == Picked(cpus=cpus("0-3,10-13"))
    assert pick_by(machine, cpus("0-3,7-9"), 5, Wishes(full_cores=True)) == Picked(
        cpus=cpus("0-3,7"), missed=("full cores",)
    )
    small = of_cores("0", "1-2", "3", "4-7", "8-9", "10")
    picked = pick_by(small, cpus("0-10"), 3, Wishes(full_cores=True))
    assert picked == Picked(cpus=cpus("0-2"))


def test_small_core_is_where_one_of_the_caches_has_one() -> None:
    """C10, K2: two large cores in one cache, a large and a small one in the other."""
    shape = Shape(cores=4, threads=2, l3_cores=2, single_cores=(3,))
    machine = build_units(build_topology(shape))
    wishes = Wishes(full_cores=True, spread=Spread.L3)
    assert pick_by(machine, cpus("0-6"), 5, wishes) == Picked(cpus=cpus("0-1,4-6"))
    assert pick_by(machine, cpus("0-6"), 7, wishes) == Picked(cpus=cpus("0-6"))
    assert pick_by(machine, cpus("0-6"), 3, wishes) == Picked(cpus=cpus("0-1,6"))
    first = build_units(build_topology(replace(shape, single_cores=(1,))))
    assert pick_by(first, cpus("0-6"), 5, wishes) == Picked(cpus=cpus("0-4"))


def test_cores_that_caches_cut_through_are_not_full_cores_of_either() -> None:
    """T2, K2: as some virtual machines tell it; what was wished is dropped, never the amount."""
    topology = build_topology(Shape(cores=4))
    caches = tuple(Group(id=i, label=str(i), cpus=cpus(text)) for i, text in enumerate(("0-2", "3-7")))
    machine = build_units(replace(topology, l3=caches))
    for count in range(1, 9):
        picked = pick_by(machine, cpus("0-7"), count, Wishes(full_cores=True, spread=Spread.L3))
        assert picked is not None
        assert len(picked.cpus) == count
    even = pick_by(machine, cpus("0-7"), 4, Wishes(full_cores=True, spread=Spread.L3))
    assert even == Picked(cpus=cpus("0-1,4-5"))
