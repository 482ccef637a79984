"""Shared CPUs of a pool, and whose cpuset a change concerns."""

from __future__ import annotations

from dataclasses import replace

from nodecpu.cpuset import CpuSet
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.plan import Change
from nodecpu.policy.rules import Mirrored, Rules
from nodecpu.policy.shared import placement, shared_cpus, shared_updates
from tests.unit.policy.given import claim, cpus, create, prepare, release, runs_on
from tests.unit.policy.machines import N4C16, Books, books


def told(node: Books, change: Change) -> dict[str, str]:
    """Apply a change; return whom it concerns and where they run then."""
    flipped = node.ledger.apply(change)
    return {u.container_id: str(u.placement.cpus) for u in shared_updates(node.ledger, change, flipped)}


def shared_of(node: Books, name: str) -> CpuSet:
    pool = node.ledger.tree.named(name)
    assert pool is not None
    return shared_cpus(node.ledger, pool)


def in_pool(grant: ContainerGrant, node: Books, pool: str) -> ContainerGrant:
    """Move a shared grant into a pool."""
    moved = replace(grant, pool=pool)
    node.ledger.apply(Change(put_containers=(moved,)))
    return moved


def test_shared_cpus_are_the_pools_free_sharable_ones() -> None:
    """P3, G10: neither reserved nor isolated nor granted."""
    node = books(replace(N4C16, isolated="12"))
    prepare(node, claim(1, (2, 2)))
    assert [str(shared_of(node, name)) for name in ("numa 3", "numa 2", "socket 1")] == [
        "13-14",
        "10-11",
        "10-11,13-14",
    ]


def test_pool_without_free_cpus_runs_on_the_nearest_ancestors_and_at_last_on_reserved_ones() -> None:
    """C14: never an empty cpuset."""
    node = books()
    prepare(node, claim(1, (1, 4)))
    assert shared_of(node, "numa 1") == cpus("0-3")
    prepare(node, claim(2, (0, 4)))
    assert shared_of(node, "numa 1") == cpus("8-14")
    prepare(node, claim(3, (2, 4), (3, 3)))
    assert shared_of(node, "numa 1") == cpus("15")


def test_claim_concerns_only_sharers_of_pools_with_its_cpus() -> None:
    """Only differences travel; a container in another node is not told anything."""
    node = books()
    here, there = in_pool(create(node, "here"), node, "numa 1"), in_pool(create(node, "there"), node, "numa 2")
    above = in_pool(create(node, "above"), node, "root")
    grant = prepare(node, claim(1, (1, 2)))
    release(node, grant)
    assert told(node, Change(put_claims=(grant,))) == {here.id: "6-7", above.id: "0-3,6-14"}
    assert told(node, Change(drop_claims=(grant.uid,))) == {here.id: "4-7", above.id: "0-14"}
    assert runs_on(node, there) == cpus("8-11")


def test_holders_without_a_shared_portion_are_never_told() -> None:
    """G8."""
    node = books(rules=Rules(mirrored=Mirrored.NEVER))
    grant = prepare(node, claim(1, (1, 1)))
    create(node, "alone", claims=[grant])
    follower = create(node, "portion", claims=[grant], mcpu=500, qos=QoS.BURSTABLE)
    other = prepare(node, claim(2, (1, 1)))
    release(node, other)
    assert told(node, Change(put_claims=(other,))) == {follower.id: "4,6-7"}


def test_pool_that_borrows_follows_changes_of_its_ancestors() -> None:
    """C14, G9."""
    node = books()
    borrower = create(node)
    prepare(node, claim(1, (1, 4)))
    borrower = in_pool(borrower, node, "numa 1")
    other = prepare(node, claim(2, (0, 2)))
    release(node, other)
    assert told(node, Change(put_claims=(other,))) == {borrower.id: "2-3"}


def test_containers_that_a_change_puts_are_told_once_and_without_any_cpu_changing_hands() -> None:
    """C14: a lifted container's pool is another."""
    node = books()
    grant = create(node)
    assert told(node, Change(put_containers=(replace(grant, pool="socket 0"),))) == {grant.id: "0-7"}
    own = create(node, "db", mcpu=2000)
    assert told(node, Change(put_containers=(own,))) == {own.id: str(own.exclusive)}


def test_container_that_is_not_ours_to_set_has_no_placement() -> None:
    """G17, preserve."""
    node = books()
    ignored = replace(create(node), group=Group.IGNORED, uses_shared=False)
    assert placement(node.ledger, ignored) is None
    assert told(node, Change(put_containers=(ignored,))) == {}


def test_grant_without_any_cpu_has_no_placement_rather_than_an_empty_one() -> None:
    """Never an empty cpuset on the wire."""
    node = books()
    assert placement(node.ledger, replace(create(node), group=Group.CLAIMED, uses_shared=False)) is None
