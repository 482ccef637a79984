"""What may be sliced off, and who moves when a claim takes the room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet
from nodecpu.errors import NoCapacity
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.ledger import violations
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import Pool
from nodecpu.policy.room import capacity_mcpu, isolated_for, make_room, slice_counts, sliceable, spare_mcpu, survey
from nodecpu.policy.rules import Mirrored, Rules
from tests.unit.policy.drawn import drawn_books
from tests.unit.policy.given import claim, cpus, create, mems_of, prepare, release, runs_on
from tests.unit.policy.machines import N4C16, Books, Shape, books


def shared_in(node: Books, pool: str, pod: str, mcpu: int | None = None) -> ContainerGrant:
    """Create a shared container and put it into a pool."""
    grant = create(node, pod, mcpu=mcpu, qos=None if mcpu is None else QoS.BURSTABLE)
    found = node.ledger.tree.named(pool)
    assert found is not None
    moved = replace(grant, pool=pool, mems=found.mems)
    node.ledger.apply(Change(put_containers=(moved,)))
    return moved


def where(node: Books, grant: ContainerGrant) -> tuple[str, str]:
    """Return a container's pool and CPUs now."""
    return node.ledger.containers[grant.id].pool, str(runs_on(node, grant))


def test_shared_container_is_lifted_to_socket_then_root_then_reserved_cpus() -> None:
    """C14, P3: the issue's case; its memory follows, never an empty cpuset."""
    node = books()
    shared = shared_in(node, "numa 1", "web")
    seen = [where(node, shared)]
    for number, wanted in enumerate([(1, 4), (0, 4), (2, 4), (3, 3)]):
        prepare(node, claim(number, wanted))
        seen.append(where(node, shared))
    assert seen == [
        ("numa 1", "4-7"),
        ("socket 0", "0-3"),
        ("root", "8-14"),
        ("root", "12-14"),
        ("root", "15"),
    ]
    assert mems_of(node, shared) == "0-3"
    assert violations(node.ledger) == []


def test_last_prepare_is_refused_in_refuse_mode_and_changes_nothing() -> None:
    """C14."""
    node = books(rules=Rules(fallback_reserved=False))
    shared = shared_in(node, "numa 3", "web")
    for number in range(3):
        prepare(node, claim(number, (number, 4)))
    with pytest.raises(NoCapacity, match="would leave 0 for shared containers, which keep 1"):
        prepare(node, claim(3, (3, 3)))
    assert where(node, shared) == ("numa 3", "12-14")


@pytest.mark.parametrize(
    ("reserved", "fallback", "min_shared", "least"),
    [
        pytest.param("15", True, -1, 0, id="reserved take over"),
        pytest.param("15", False, -1, 1, id="refuse mode"),
        pytest.param("", True, -1, 1, id="no reserved CPUs"),
        pytest.param("", True, 0, 1, id="no reserved CPUs and none kept out of what is published"),
        pytest.param("15", True, 3, 3, id="configured"),
    ],
)
def test_least_shared_cpus_are_kept(reserved: str, min_shared: int, least: int, *, fallback: bool) -> None:
    """C14."""
    rules = Rules(fallback_reserved=fallback, min_shared=min_shared)
    node = books(Shape(cores=8), reserved=reserved, rules=rules)
    total = len(node.usable.grantable)
    if least:
        with pytest.raises(NoCapacity, match=f"would leave {least - 1} for shared containers, which keep {least}"):
            prepare(node, claim(1, (0, total - least + 1)))
    assert len(prepare(node, claim(2, (0, total - least))).cpus) == total - least


def test_containers_without_a_request_are_lifted_first_then_the_smaller_portions() -> None:
    """C14: only as many as have to."""
    node = books()
    bare = shared_in(node, "numa 1", "bare")
    small = shared_in(node, "numa 1", "small", 500)
    large = shared_in(node, "numa 1", "large", 1500)
    prepare(node, claim(1, (1, 2)))
    assert [where(node, one)[0] for one in (bare, small, large)] == ["socket 0", "numa 1", "numa 1"]
    prepare(node, claim(2, (1, 1)))
    assert [where(node, one)[0] for one in (bare, small, large)] == ["socket 0", "socket 0", "socket 0"]


def test_lift_goes_to_the_nearest_ancestor_that_covers_it() -> None:
    """C14."""
    node = books()
    shared_in(node, "socket 0", "full", 4500)
    moved = shared_in(node, "numa 1", "moved", 2500)
    prepare(node, claim(1, (1, 2)))
    assert where(node, moved)[0] == "root"
    assert "lifted from numa 1 to root to make room" in node.ledger.containers[moved.id].reason


def test_release_gives_the_cpus_back_to_those_who_stayed() -> None:
    """C12."""
    node = books()
    stayed = shared_in(node, "numa 1", "web")
    grant = prepare(node, claim(1, (1, 2)))
    assert where(node, stayed) == ("numa 1", "6-7")
    release(node, grant)
    assert where(node, stayed) == ("numa 1", "4-7")


def test_lifted_holder_keeps_its_claims_memory() -> None:
    """G5: wherever its shared portion goes."""
    node = books(rules=Rules(mirrored=Mirrored.NEVER))
    grant = prepare(node, claim(1, (1, 2)))
    holder = create(node, claims=[grant], mcpu=500, qos=QoS.BURSTABLE)
    assert where(node, holder) == ("numa 1", "4-7")
    prepare(node, claim(2, (1, 2)))
    assert where(node, holder) == ("socket 0", "0-5")
    assert mems_of(node, holder) == "1"


def test_memory_that_is_not_pinned_stays_so_when_lifted() -> None:
    """M1."""
    node = books(rules=Rules(pin_memory=False))
    shared = create(node)
    prepare(node, claim(1, (0, 4), (1, 4)))
    prepare(node, claim(2, (2, 4)))
    prepare(node, claim(3, (3, 3)))
    assert mems_of(node, shared) == ""


def test_overcommitted_root_lifts_nobody() -> None:
    """G16."""
    node = books()
    shared = shared_in(node, "root", "huge", 50_000)
    prepare(node, claim(1, (1, 4)))
    assert where(node, shared)[0] == "root"


def test_restored_books_over_smaller_pools_are_settled() -> None:
    """R1: nothing is taken, but a pool no longer covers its containers."""
    node = books()
    for i in range(3):
        grant = create(node, f"web-{i}", mcpu=2000, qos=QoS.BURSTABLE)
        node.ledger.apply(Change(put_containers=(replace(grant, pool="numa 1"),)))
    moved = make_room(node.ledger)
    assert [(grant.id, grant.pool) for grant in moved] == [("web-0-app", "socket 0")]
    node.ledger.apply(Change(put_containers=moved))
    assert make_room(node.ledger) == ()


def test_slices_leave_what_shared_containers_asked_for() -> None:
    """P3: in the pool, in the pools below, and in those above."""
    node = books()
    shared_in(node, "numa 1", "one", 1500)
    assert sizes(node) == {"numa 0": 4, "numa 1": 2, "numa 2": 4, "numa 3": 3, "socket 0": 6, "socket 1": 7, "root": 13}
    shared_in(node, "socket 0", "two", 4000)
    assert sizes(node) == {"numa 0": 2, "numa 1": 2, "numa 2": 4, "numa 3": 3, "socket 0": 2, "socket 1": 7, "root": 9}
    shared_in(node, "root", "three", 8000)
    assert sizes(node) == dict.fromkeys(sizes(node), 1)


def test_pool_with_containers_without_a_request_keeps_a_cpu() -> None:
    """P3."""
    node = books()
    shared_in(node, "numa 1", "bare")
    assert sizes(node)["numa 1"] == 3


def test_slices_are_whole_cores_where_they_can_be() -> None:
    """K1."""
    node = books()
    shared_in(node, "numa 1", "one", 1500)
    found = node.ledger.tree.named("numa 1")
    assert found is not None
    assert sliceable(node.ledger, node.machine.units, found) == cpus("4-5")


def test_held_cpus_count_as_granted() -> None:
    """C5."""
    node = books()
    node.ledger.hold(claim(1).uid, cpus("4-6"))
    found = node.ledger.tree.named("numa 1")
    assert found is not None
    assert (capacity_mcpu(node.ledger, found), sizes(node)["numa 1"]) == (1000, 1)


def test_spare_capacity_is_the_least_up_to_the_root() -> None:
    """P3, G16: the root itself may be over-committed by what fits nowhere else."""
    node = books(replace(N4C16, isolated="0"))
    shared_in(node, "socket 0", "two", 6500)
    shared_in(node, "root", "huge", 50_000)
    spare = {pool.name: spare_mcpu(node.ledger, pool) for pool in node.ledger.tree.pools}
    assert (spare["numa 0"], spare["numa 1"], spare["socket 0"], spare["numa 2"]) == (500, 500, 500, 4000)
    assert spare["root"] < 0


def sizes(node: Books) -> dict[str, int]:
    """Return how many CPUs could be sliced off in each pool."""
    return {p.name: len(sliceable(node.ledger, node.machine.units, p)) for p in node.ledger.tree.pools}


@given(drawn_books())
def test_survey_tells_of_every_pool_what_looking_at_it_alone_tells(node: Books) -> None:
    """P3: one pass over all pools, by the same rules."""
    seen, slices = survey(node.ledger), slice_counts(node.ledger)
    for pool in node.ledger.tree.pools:
        assert seen.capacity_mcpu[pool.index] == capacity_mcpu(node.ledger, pool)
        assert seen.spare_mcpu[pool.index] == spare_mcpu(node.ledger, pool)
        assert slices[pool.index] == len(sliceable(node.ledger, node.machine.units, pool))


@given(drawn_books())
def test_slice_takes_no_pool_below_what_its_containers_asked_for(node: Books) -> None:
    """P3: pools below and above included; one that has too little already gives nothing."""
    ledger = node.ledger
    for pool in ledger.tree.pools:
        slices = sliceable(ledger, node.machine.units, pool)
        assert slices <= ledger.grantable(pool.sharable)
        for other in ledger.tree.pools:
            if not slices.isdisjoint(other.cpus):
                assert capacity_mcpu(ledger, other, slices) >= 0


@pytest.mark.parametrize(
    ("count", "wanted", "served"), [(2, True, "0-1"), (3, True, ""), (1, True, "0-1"), (2, False, "")]
)
def test_isolated_cpus_serve_all_of_an_exclusive_part_or_none(count: int, served: str, *, wanted: bool) -> None:
    """G10."""
    node = books(replace(N4C16, isolated="0-2,4"))
    node.ledger.hold(claim(1).uid, cpus("2"))
    found = node.ledger.tree.named("numa 0")
    assert found is not None
    assert isolated_for(node.ledger, found, count, wanted=wanted) == cpus(served)


@pytest.mark.parametrize(("portion", "stays"), [(998, True), (999, True), (1000, False)])
def test_pool_covers_a_container_without_a_request_by_a_thousandth(portion: int, *, stays: bool) -> None:
    """P3, C14: one that asked for nothing keeps a CPU, and no more than that."""
    node = books()
    bare = shared_in(node, "numa 1", "bare")
    shared_in(node, "numa 1", "portion", portion)
    moved = make_room(node.ledger, cpus("4-6"))
    assert [grant.id for grant in moved] == ([] if stays else [bare.id])


def settled(node: Books, taking: CpuSet) -> dict[str, str]:
    """Return who is lifted to where: one after the other, the books counted anew after each."""
    ledger = node.ledger.copy()
    moved: dict[str, str] = {}

    def covers(pool: Pool) -> bool:
        return ledger.need_mcpu(pool) <= 1000 * len(ledger.free(pool.sharable) - taking)

    for pool in sorted(ledger.tree.pools[1:], key=lambda p: -p.index):
        while not covers(pool) and ledger.sharers(pool):
            one = min(ledger.sharers(pool).values(), key=lambda g: (g.portion_mcpu, g.id))
            above = [p for p in ledger.tree.upwards(pool) if p is not pool]
            target = next((p for p in above if covers(p)), ledger.tree.root)
            ledger.apply(Change(put_containers=(replace(one, pool=target.name),)))
            moved[one.id] = target.name
    return moved


@given(drawn_books(), st.sets(st.integers(0, 15)))
def test_lifts_are_those_of_lifting_one_after_the_other(node: Books, taken: set[int]) -> None:
    """C14, P3, G16: deepest pools first, in each the smallest portions, only while it does not cover its containers."""
    taking = node.ledger.free(node.usable.sharable) & CpuSet(taken)
    moved = make_room(node.ledger, taking)
    assert {grant.id: grant.pool for grant in moved} == settled(node, taking)
    for grant in moved:
        before = node.ledger.containers[grant.id]
        assert replace(grant, pool=before.pool, mems=before.mems, reason=before.reason) == before
        assert before.mems <= grant.mems or not before.mems
