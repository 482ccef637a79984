"""The books over other pools, case by case (R3); tests/unit/test_reconfigure.py plays it on a whole node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_NODES, CpuSet, NodeSet
from nodecpu.errors import ClaimConflict, NoCapacity
from nodecpu.ids import ContainerID
from nodecpu.policy.annotations import NO_PREFERENCES, Preferences
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ClaimGrant, ContainerGrant, Group, ResultGrant
from nodecpu.policy.ledger import violations
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import Level, PoolTree, build_pools
from nodecpu.policy.rearrange import Asked, Rearranged, adapted, rearranged
from nodecpu.policy.requests import Request
from nodecpu.policy.rules import Rules
from tests.unit.policy.drawn import container_in
from tests.unit.policy.given import claim, claim_uid, cpus, create, prepare
from tests.unit.policy.machines import Books, books

# n4c16: node 0 = 0-3, node 1 = 4-7, node 2 = 8-11, node 3 = 12-15; CPU 15 reserved.


def tree(reserved: str = "15", available: str | None = None, levels: tuple[Level, ...] | None = None) -> PoolTree:
    made = books(reserved=reserved, available=available) if levels is None else books(reserved=reserved, levels=levels)
    return made.ledger.tree


def request(grant: ContainerGrant, preferences: Preferences = NO_PREFERENCES) -> Request:
    """Return what a container asked for, to have been given this."""
    return Request(
        group=grant.group,
        qos=grant.qos,
        exclusive=len(grant.exclusive),
        portion_mcpu=grant.portion_mcpu,
        uses_shared=grant.uses_shared,
        told_mcpu=grant.told_mcpu,
        limit_mcpu=grant.limit_mcpu,
        memory_bytes=grant.memory_bytes,
        preferences=preferences,
        reason="by test",
    )


def arranged(
    node: Books, new: PoolTree, *now: tuple[ContainerGrant, Request], rules: Rules | None = None, known: bool = True
) -> Rearranged:
    """Return the new books; ``now`` are the wishes that are not what they were."""
    asked: dict[ContainerID, Asked] = {}
    for grant in node.ledger.containers.values():
        asked[grant.id] = Asked(before=request(grant), now=request(grant))
    for grant, wish in now:
        asked[grant.id] = Asked(before=request(grant), now=wish)
    found = rearranged(node.ledger, new, node.machine, rules or node.rules, asked if known else {})
    assert violations(found.ledger) == []
    return found


def changes(found: Rearranged) -> Mapping[str, str]:
    """Return who has other CPUs or another pool now, and what."""
    return {grant.pod: f"{grant.pool}: {grant.exclusive}" for grant in found.changed}


def test_same_pools_and_wishes_change_nothing() -> None:
    """R3: nothing moves that need not, claims and holds are taken over."""
    node = books()
    taken = prepare(node, claim(1, (1, 2)))
    for i, mcpu in enumerate((None, 500, 1500, 2000)):
        create(node, f"p{i}", mcpu=mcpu)
    create(node, "holder", claims=[taken])
    create(node, "dns", namespace="kube-system", mcpu=100)
    node.ledger.hold(claim_uid(2), cpus("0-1"))
    found = arranged(node, tree())
    assert found.changed == ()
    assert dict(found.ledger.claims) == {taken.uid: taken}
    assert dict(found.ledger.holds) == {claim_uid(2): cpus("0-1")}
    assert dict(found.ledger.containers) == dict(node.ledger.containers)


def test_only_those_whose_cpus_are_taken_away_are_decided_anew() -> None:
    """R3, G8."""
    node = books()
    one, other = create(node, "one", mcpu=2000), create(node, "other", mcpu=2000)
    assert (str(one.exclusive), str(other.exclusive)) == ("8-9", "4-5")
    found = arranged(node, tree(reserved="4,15"))
    assert set(changes(found)) == {"other"}
    assert len(found.ledger.containers[other.id].exclusive) == 2


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        pytest.param({"exclusive": 1}, True, id="fewer CPUs"),
        pytest.param({"portion_mcpu": 300, "uses_shared": True}, True, id="a shared portion"),
        pytest.param({"uses_shared": True}, True, id="shared CPUs without a portion"),
        pytest.param({"group": Group.MIXED}, True, id="another group"),
        pytest.param({"told_mcpu": 7, "limit_mcpu": 9, "reason": "other"}, False, id="other words for the same"),
        pytest.param({"preferences": Preferences(pick_by_hints=True)}, False, id="another way of picking"),
    ],
)
def test_other_wish_is_decided_anew_and_another_way_to_pick_is_not(change: dict[str, object], *, moves: bool) -> None:
    """R3: how CPUs are picked moves nobody."""
    node = books()
    create(node, "first", mcpu=4000)
    grant = create(node, "grant", mcpu=2000)
    wish = replace(request(grant), **change)  # type: ignore[arg-type]  # fields by name
    new = arranged(node, tree(), (grant, wish)).ledger.containers[grant.id]
    assert (new.reason != grant.reason) == moves
    assert (len(new.exclusive), new.portion_mcpu, new.uses_shared, new.group) == (
        wish.exclusive,
        wish.portion_mcpu,
        wish.uses_shared,
        wish.group,
    )


def test_container_whose_pool_is_gone_is_decided_anew() -> None:
    """R3, P1."""
    node = books()
    shared = create(node, "web", mcpu=500, qos=QoS.BURSTABLE)
    assert shared.pool == "numa 2"
    assert changes(arranged(node, tree(levels=(Level.SOCKET,)))) == {"web": "socket 0: "}


def test_unknown_wishes_leave_what_there_is_in_the_root_if_its_pool_is_gone() -> None:
    """R3: before the runtime has told of them."""
    node = books()
    own, shared = create(node, "own", mcpu=2000), create(node, "web", mcpu=500, qos=QoS.BURSTABLE)
    assert arranged(node, tree(), known=False).changed == ()
    found = arranged(node, tree(levels=()), known=False)
    assert changes(found) == {"own": "root: 8-9", "web": "root: "}
    assert found.ledger.containers[own.id] == replace(own, pool="root")
    assert found.ledger.containers[shared.id] == replace(shared, pool="root")
    with pytest.raises(
        NoCapacity, match="container shop/own/app: the configuration takes its CPUs 8, and what it asks"
    ):
        arranged(node, tree(reserved="8,15"), known=False)


def test_largest_are_decided_first_exclusive_before_shared() -> None:
    """R3: so that they still find whole pools; of equals the first by id. All of their pools are gone."""
    node = books()
    own = [container_in("numa 0", i, exclusive=text) for i, text in enumerate(("0", "1-2", "3-5", "6-9"))]
    shared = [container_in("numa 1", 10 + i, portion_mcpu=mcpu) for i, mcpu in enumerate((100, 400, 400, 900))]
    node.ledger.apply(Change(put_containers=(*shared, *own)))
    new = arranged(node, tree(levels=(Level.SOCKET,))).ledger.containers.values()
    assert [f"{grant.pod} {grant.pool}: {grant.exclusive}".rstrip() for grant in new] == [
        "pod-3 socket 0: 0-3",
        "pod-2 socket 1: 12-14",
        "pod-1 socket 1: 8-9",
        "pod-0 socket 0: 4",
        "pod-13 socket 0:",
        "pod-11 socket 1:",
        "pod-12 socket 0:",
        "pod-10 socket 1:",
    ]


@pytest.mark.parametrize(
    ("had", "pin", "preferences", "group", "has"),
    [
        pytest.param("2", False, NO_PREFERENCES, None, "", id="not pinned any more"),
        pytest.param("", True, NO_PREFERENCES, None, "2", id="pinned now"),
        pytest.param("2-3", True, NO_PREFERENCES, None, "2-3", id="widened stays"),
        pytest.param("", True, Preferences(preserve_memory=True), None, "", id="left alone by annotation"),
        pytest.param("2", True, Preferences(preserve_memory=True), None, "2", id="as it was"),
        pytest.param("", True, NO_PREFERENCES, Group.IGNORED, "", id="left alone"),
    ],
)
def test_memory_follows_the_new_rules_where_it_is_ours_to_set(
    had: str, preferences: Preferences, group: Group | None, has: str, *, pin: bool
) -> None:
    """R3, M1."""
    node = books()
    grant = create(node, "web", mcpu=500, qos=QoS.BURSTABLE)
    old = replace(grant, mems=NodeSet.parse(had), group=group or grant.group, uses_shared=group is None)
    node.ledger.apply(Change(put_containers=(old,)))
    found = arranged(node, tree(), (old, request(old, preferences)), rules=Rules(pin_memory=pin))
    assert str(found.ledger.containers[grant.id].mems) == has


def test_holders_memory_is_its_claims_when_it_is_pinned() -> None:
    """R3, G5."""
    node = books()
    taken = prepare(node, claim(1, (1, 2)))
    holder = replace(create(node, "holder", claims=[taken]), mems=NO_NODES, pool="root")
    node.ledger.apply(Change(put_containers=(holder,)))
    assert str(arranged(node, tree()).ledger.containers[holder.id].mems) == "1"


def test_hidden_threads_follow_the_wish() -> None:
    """R3, A."""
    node = books()
    grant = create(node, "own", mcpu=2000)
    hiding = request(grant, Preferences(hide_hyperthreads=True))
    new = arranged(node, tree(), (grant, hiding)).ledger.containers[grant.id]
    assert (new.exclusive, new.hides_threads) == (grant.exclusive, True)


def held(number: int, name: str, on: str, *, moved: bool = False) -> ClaimGrant:
    result = ResultGrant(request="r", pool="node-a", device="cpudevnuma000", cpus=cpus(on))
    return ClaimGrant(uid=claim_uid(number), namespace="shop", name=name, results=(result,), moved=moved)


def test_claims_that_would_lose_cpus_are_named_in_order_those_moved_already_are_not() -> None:
    """R3, T7: a claim whose CPUs are to be picked anew loses nothing."""
    node = books()
    grants = (held(1, "b", "4-5"), held(2, "a", "6-9"), held(3, "c", "10", moved=True), held(4, "d", "11"))
    node.ledger.apply(Change(put_claims=grants))
    node.ledger.hold(claim_uid(9), cpus("0-1"))
    with pytest.raises(
        ClaimConflict,
        match=r"takes CPUs from 3 claims: shop/a \(8-9\), shop/b \(5\), one being prepared \(0\) \(",
    ):
        arranged(node, tree(reserved="0,5,8-10,15"))
    assert arranged(node, tree(reserved="10,15")).changed == ()
    # What could not be given before either is not taken now.
    node.ledger.apply(Change(put_claims=(held(5, "e", "15"),)))
    assert arranged(node, tree()).changed == ()


def test_configuration_that_leaves_no_shared_cpu_is_refused_if_one_needs_it() -> None:
    """R3, C14."""
    node = books(reserved="")
    node.ledger.apply(Change(put_claims=(held(1, "a", "0-3"),)))
    own = replace(create(node, "own", mcpu=4000), pool="root")
    assert own.exclusive == cpus("12-15")
    node.ledger.apply(Change(put_containers=(own,)))
    small = tree(reserved="", available="0-3,12-15")
    assert arranged(node, small).changed == ()
    create(node, "web")
    with pytest.raises(NoCapacity, match="leaves no CPU for shared containers"):
        rearranged(node.ledger, small, node.machine, node.rules, {})


def test_smaller_pools_lift_whom_they_no_longer_cover() -> None:
    """R3, P3: the pool is still there, with fewer CPUs."""
    node = books()
    shared = create(node, "web", mcpu=3500, qos=QoS.BURSTABLE)
    assert shared.pool == "numa 2"
    found = arranged(node, tree(reserved="8,15"))
    assert changes(found) == {"web": "socket 1: "}
    assert found.ledger.tree.usable.all == CpuSet(range(16))


def without_cpus(text: str, reserved: str = "15") -> PoolTree:
    """Return the pools of the machine from which CPUs are gone."""
    made = books(available=str(cpus("0-15") - cpus(text)), reserved=reserved)
    online = replace(made.usable, online=cpus("0-15") - cpus(text))
    return build_pools(made.topology, online)


def adapt(node: Books, new: PoolTree, *known: ContainerGrant) -> Mapping[str, str]:
    """Return who has other CPUs or another pool over a machine that has changed; ``known``: whose wishes are."""
    asked = {grant.id: request(grant) for grant in known}
    found = adapted(node.ledger, new, node.machine, node.rules, asked)
    before = node.ledger.containers
    assert {grant.id for grant in found.changed} == {i for i, g in found.ledger.containers.items() if before[i] != g}
    assert dict(found.ledger.claims) == dict(node.ledger.claims)
    assert dict(found.ledger.holds) == dict(node.ledger.holds)
    return changes(found)


def test_machine_that_is_as_it_was_changes_nothing() -> None:
    """T6."""
    node = books()
    prepare(node, claim(1, (1, 2)))
    node.ledger.hold(claim_uid(2), cpus("0-1"))
    own = create(node, "own", mcpu=2000)
    create(node, "web", mcpu=500, qos=QoS.BURSTABLE)
    assert adapt(node, without_cpus(""), own) == {}


def test_container_keeps_what_is_left_of_its_own_cpus_and_gets_others_only_for_none() -> None:
    """T6: also what is gone stays its own, for when it returns."""
    node = books()
    own = create(node, "own", mcpu=2000)
    assert own.exclusive == cpus("8-9")
    assert adapt(node, without_cpus("8"), own) == {}
    assert adapt(node, without_cpus("8-9"), own) == {"own": "numa 1: 4-5"}
    assert adapt(node, without_cpus("8-9")) == {}, "nobody knows what it asks for"


def test_container_for_which_there_is_nothing_keeps_what_is_gone() -> None:
    """T6: the machine does not ask, nobody is refused."""
    node = books(reserved="")
    own, other = create(node, "own", mcpu=4000), create(node, "other", mcpu=1000)
    assert (str(own.exclusive), len(other.exclusive)) == ("12-15", 1)
    gone = cpus("0-15") - other.exclusive - cpus("0-1")
    assert adapt(node, without_cpus(str(gone), reserved=""), own, other).keys() <= {"other", "own"}
    kept = adapted(node.ledger, without_cpus(str(gone), reserved=""), node.machine, node.rules, {own.id: request(own)})
    assert kept.ledger.containers[own.id].exclusive == own.exclusive


def test_container_without_cpus_of_its_own_is_left_in_its_pool_or_in_the_root() -> None:
    """T6: a pool may go with its CPUs."""
    node = books()
    web = create(node, "web", mcpu=500, qos=QoS.BURSTABLE)
    assert web.pool == "numa 2"
    assert adapt(node, without_cpus("9"), web) == {}
    assert adapt(node, without_cpus("8-11"), web) == {"web": "root: "}
