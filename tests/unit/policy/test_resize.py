"""In-place resize: claimed CPUs stay, own ones grow and shrink where they are (G12)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.errors import NoCapacity
from nodecpu.policy.allocate import resized_grant
from nodecpu.policy.annotations import NO_PREFERENCES, Preferences
from nodecpu.policy.facts import QoS, Resources
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.ledger import violations
from nodecpu.policy.plan import Change
from nodecpu.policy.requests import Told, request_of
from nodecpu.policy.resize import Resize
from nodecpu.policy.resize import resize as decided
from nodecpu.policy.rules import Mirrored, Rules
from nodecpu.policy.wishes import Wishes
from tests.unit.policy.given import claim, container, cpus, create, pod_spec, prepare, runs_on, sandbox
from tests.unit.policy.machines import N4C16, Books, Shape, books

SMALL = Shape(sockets=1, nodes=1, cores=4, threads=2)


def resize(
    node: Books, grant: ContainerGrant, mcpu: int, limit: int | None = None, preferences: Preferences = NO_PREFERENCES
) -> ContainerGrant:
    """Resize a container as the service does; return its new grant."""
    told = Told(mcpu=mcpu, limit_mcpu=limit, qos=grant.qos, may_own=grant.qos is QoS.GUARANTEED)
    box, made = sandbox(grant.pod), container(grant.name, pod=grant.pod)
    asked = request_of(node.rules, box, made, None, grant.claimed, reserved=True, preferences=preferences, told=told)
    new = resized_grant(node.ledger, node.machine, node.rules, grant, asked)
    node.ledger.apply(Change(put_containers=(new,)))
    assert violations(node.ledger) == []
    return new


def test_exclusive_cpus_grow_beside_those_there_are() -> None:
    """G12."""
    node = books()
    own = create(node, mcpu=2000)
    assert own.exclusive == cpus("8-9")
    grown = resize(node, own, 4000)
    assert (grown.exclusive, grown.group) == (cpus("8-11"), Group.MULTI)
    assert "resized in place" in grown.reason


def test_exclusive_cpus_shrink_to_the_best_part_of_them() -> None:
    """G12, K1: whole cores are kept."""
    node = books()
    own = create(node, mcpu=4000)
    kept = resize(node, own, 2000)
    assert kept.exclusive == cpus("8-9")
    assert node.ledger.grantable(cpus("10-11")) == cpus("10-11")


def test_a_pool_that_is_full_lends_from_the_next_above() -> None:
    """G12, G5."""
    node = books()
    own = create(node, mcpu=4000)
    grown = resize(node, own, 6000)
    assert own.exclusive <= grown.exclusive
    assert len(grown.exclusive) == 6
    assert grown.exclusive <= cpus("8-14")  # the same socket
    assert grown.mems == own.mems


def test_growth_that_is_not_there_is_refused_with_the_reason_and_changes_nothing() -> None:
    """G12."""
    node = books(SMALL, reserved="0")
    own = create(node, "db", mcpu=4000)
    create(node, "web", mcpu=2500, qos=QoS.BURSTABLE)
    with pytest.raises(
        NoCapacity, match=r"container shop/\w+/app cannot go from 4 to 6 exclusive CPUs in place: .*asked"
    ):
        resize(node, own, 6000)
    assert node.ledger.containers[own.id] == own


@pytest.mark.parametrize(
    ("before", "after", "group", "exclusive", "portion"),
    [
        pytest.param(500, 2000, Group.MULTI, 2, 0, id="shared to exclusive"),
        pytest.param(2000, 500, Group.SHARED, 0, 500, id="exclusive to shared"),
        pytest.param(1500, 1000, Group.MIXED, 1, 0, id="portion away"),
        pytest.param(1000, 1500, Group.MIXED, 1, 500, id="portion there"),
        pytest.param(2000, 1500, Group.MIXED, 1, 500, id="multi to mixed"),
        pytest.param(2000, 2500, Group.SHARED, 0, 2500, id="fraction of two or more"),
        pytest.param(300, 700, Group.SHARED, 0, 700, id="shared grows"),
    ],
)
def test_groups_change_with_the_amount(before: int, after: int, group: Group, exclusive: int, portion: int) -> None:
    """G12, G1."""
    node = books()
    grant = create(node, mcpu=before, qos=QoS.GUARANTEED)
    new = resize(node, grant, after)
    assert (new.group, len(new.exclusive), new.portion_mcpu) == (group, exclusive, portion)
    assert new.uses_shared == (group is Group.SHARED or portion > 0)
    assert (new.told_mcpu, new.links) == (after, ())


def test_claimed_cpus_stay_and_the_rest_follows() -> None:
    """G12, L4."""
    node = books(rules=Rules(mirrored=Mirrored.NEVER))
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, mcpu=1000, limit_mcpu=1000, claims=[taken])
    grown = resize(node, holder, 2500, 2500, Preferences(prefer_shared=False))
    assert grown.claimed == cpus("4-5")
    assert (len(grown.exclusive), grown.portion_mcpu, grown.quota_us) == (2, 500, 450_000)
    assert holder.exclusive <= grown.exclusive
    assert taken.cpus <= runs_on(node, grown)


def test_shared_container_is_never_refused() -> None:
    """G12, G16: it goes to the nearest pool that covers it."""
    node = books()
    shared = create(node, mcpu=500, qos=QoS.BURSTABLE)
    grown = resize(node, shared, 5000)
    assert (shared.pool, grown.pool) == ("numa 2", "socket 1")
    assert resize(node, grown, 90_000).pool == "root"


def test_isolated_cpus_grow_by_isolated_ones_or_not_at_all() -> None:
    """G12, G10: they are never mixed with others."""
    node = books(replace(N4C16, isolated="4-7"))
    own = create(node, mcpu=3000)
    assert own.exclusive == cpus("4-6")
    assert resize(node, own, 4000).exclusive == cpus("4-7")
    with pytest.raises(NoCapacity, match="1 isolated CPUs required, 0 are free"):
        resize(node, node.ledger.containers[own.id], 5000)


def test_its_own_portion_makes_room_for_its_own_cpus() -> None:
    """G12, P3: what it shares now is not in its way."""
    node = books(SMALL, reserved="0")
    mixed = create(node, mcpu=6900, qos=QoS.BURSTABLE)
    grant = replace(mixed, qos=QoS.GUARANTEED)
    node.ledger.apply(Change(put_containers=(grant,)))
    assert len(resize(node, grant, 6000).exclusive) == 6


def test_new_books_leave_the_old_ones_alone() -> None:
    """A decision changes nothing."""
    node = books()
    own = create(node, mcpu=2000)
    prepared = claim(1, (0, 2))
    node.ledger.hold(prepared.uid, cpus("0-1"))
    other = node.ledger.without(own)
    assert other.containers == {}
    assert other.grantable(cpus("0-15")) == cpus("2-7,10-15")
    assert node.ledger.grantable(cpus("0-15")) == cpus("2-7,10-15")
    assert list(node.ledger.containers) == [own.id]


def updated(node: Books, grant: ContainerGrant, wanted: Resources, mcpu: int | None = None) -> ContainerGrant | None:
    """Return what an update makes of a container whose spec says ``mcpu``, by default what it has."""
    spec = pod_spec(grant.pod, qos=grant.qos, mcpu=grant.told_mcpu if mcpu is None else mcpu)
    spec = replace(spec, containers={"app": replace(spec.containers["app"], limit_mcpu=grant.limit_mcpu)})
    update = Resize(
        sandbox=sandbox(grant.pod),
        container=container(pod=grant.pod),
        spec=spec,
        preferences=NO_PREFERENCES,
        wanted=wanted,
    )
    return decided(node.ledger, node.machine, node.rules, grant, update)


def test_update_that_asks_for_nothing_new_is_none() -> None:
    """G12: whatever the spec says by now."""
    node = books()
    own = create(node, mcpu=2000, limit_mcpu=2000, memory_bytes=1 << 30)
    same = Resources(shares=2048, quota_us=200_000, period_us=100_000, memory_limit_bytes=1 << 30)
    assert updated(node, own, Resources()) is None
    assert updated(node, own, same) is None
    assert updated(node, own, same, mcpu=4000) is None


def test_update_of_a_container_that_is_left_alone_is_none() -> None:
    """G12, G17."""
    node = books()
    ignored = replace(create(node, mcpu=2000), group=Group.IGNORED)
    assert updated(node, ignored, Resources(shares=4096, memory_limit_bytes=5)) is None


@pytest.mark.parametrize(("limit", "counted"), [(2 << 30, 2 << 30), (1, 1), (0, 0), (-1, 0), (None, 1 << 30)])
def test_update_says_what_a_container_counts_for_in_its_memory(limit: int | None, counted: int) -> None:
    """G12, M1: -1 is none; its CPUs stay."""
    node = books()
    own = create(node, mcpu=2000, memory_bytes=1 << 30)
    new = updated(node, own, Resources(memory_limit_bytes=limit))
    assert new == (None if limit is None else replace(own, memory_bytes=counted))
    grown = updated(node, own, Resources(shares=4096, memory_limit_bytes=limit), mcpu=4000)
    assert grown is not None
    assert (len(grown.exclusive), grown.memory_bytes) == (4, counted)


def test_update_of_the_limit_alone_is_a_change() -> None:
    """G12, G14."""
    node = books()
    shared = create(node, mcpu=500, limit_mcpu=1000, qos=QoS.BURSTABLE)
    new = updated(node, shared, Resources(quota_us=200_000, period_us=100_000))
    assert new is not None
    assert (new.limit_mcpu, new.told_mcpu, new.pool) == (2000, 500, shared.pool)


def test_what_stays_as_it_is_is_not_judged_anew() -> None:
    """G12, R3: a node that gives full cores only since a reload leaves the parts it gave before."""
    node = books()
    own = create(node, mcpu=3000)
    stricter = replace(node, rules=Rules(wishes=Wishes(full_cores=True)))
    same = resize(stricter, own, 3000, 3000)
    assert (same.exclusive, same.limit_mcpu) == (own.exclusive, 3000)
    with pytest.raises(NoCapacity, match="1 of CPUs 8-10 are no full cores"):
        resize(stricter, same, 1000)
    assert resize(stricter, same, 2000).exclusive == cpus("8-9")
