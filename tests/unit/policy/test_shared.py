"""Shared CPUs of a pool, and whose cpuset a change concerns."""

from __future__ import annotations

from dataclasses import replace

from nodecpu.cpuset import CpuSet
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant, Group, Link
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import build_pools
from nodecpu.policy.rules import Mirrored, Rules
from nodecpu.policy.shared import placement, shared_cpus, shared_updates
from tests.unit.policy.drawn import container_in
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


def test_reserved_holder_runs_on_reserved_and_claimed_cpus_and_others_on_their_claims_alone() -> None:
    """G2, G3, G4: whatever pool the grant is in, and whatever happens to the shared CPUs."""
    node = books(reserved="14-15")
    link = Link(claim_uid=claim(1).uid, cpus=prepare(node, claim(1, (1, 2))).cpus)
    holder = replace(create(node), links=(link,))
    for group, uses_shared, seen in (
        (Group.RESERVED, False, "4-5,14-15"),
        (Group.CLAIMED, False, "4-5"),
        (Group.SHARED, True, "0-13"),
    ):
        where = placement(node.ledger, replace(holder, group=group, uses_shared=uses_shared, pool="root"))
        assert where is not None
        assert where.cpus == cpus(seen)
        if group is not Group.SHARED:
            inner = placement(node.ledger, replace(holder, group=group, uses_shared=False, pool="numa 2"))
            assert inner is not None
            assert inner.cpus == where.cpus


def test_reserved_holder_follows_the_reserved_cpus_and_keeps_its_claim() -> None:
    """G4, R3: it is told when a claim from before they were reserved takes or gives one."""
    node = books(reserved="14-15")
    taken = prepare(node, claim(1, (1, 2), namespace="kube-system"))
    holder = create(node, "dns", namespace="kube-system", claims=[taken], mcpu=100, qos=QoS.BURSTABLE)
    alone = create(node, "bare", namespace="kube-system", claims=[taken])
    assert (runs_on(node, holder), runs_on(node, alone)) == (cpus("4-5,14-15"), cpus("4-5"))
    old = replace(prepare(node, claim(2, (2, 1))), uid=claim(3).uid)
    old = replace(old, results=(replace(old.results[0], cpus=cpus("14")),))
    assert told(node, Change(put_claims=(old,))) == {holder.id: "4-5,15"}
    assert told(node, Change(drop_claims=(old.uid,))) == {holder.id: "4-5,14-15"}


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


def test_container_that_hides_threads_sees_one_of_each_core() -> None:
    """A, G7: hide-hyperthreads; of its own and of its shared CPUs alike."""
    node = books()
    mixed = create(node, "mixed", mcpu=1500)
    assert (str(mixed.exclusive), mixed.pool) == ("8", "numa 2")
    assert runs_on(node, mixed) == cpus("8-11")
    for grant, seen in ((mixed, "8,10"), (replace(mixed, exclusive=cpus("8-9"), uses_shared=False), "8")):
        where = placement(node.ledger, replace(grant, hides_threads=True))
        assert where is not None
        assert where.cpus == cpus(seen)


def test_quota_comes_with_its_period_and_none_with_none() -> None:
    """G14."""
    node = books()
    for quota_us, period_us in ((None, None), (-1, 100_000), (0, 100_000), (5000, 100_000)):
        where = placement(node.ledger, replace(create(node, f"web{quota_us}"), quota_us=quota_us))
        assert where is not None
        assert (where.quota_us, where.period_us) == (quota_us, period_us)


def test_reserved_group_is_told_when_its_cpus_change_and_when_it_has_none_of_its_own() -> None:
    """R3: a claim from before they were reserved holds them; then the group runs on what is free."""
    node = books(reserved="14-15")
    system = create(node, "dns", namespace="kube-system")
    shared = in_pool(create(node, "web"), node, "numa 2")
    elsewhere = prepare(node, claim(1, (0, 2)))
    release(node, elsewhere)
    assert told(node, Change(put_claims=(elsewhere,))) == {}, "its CPUs are nobody's business"
    one, other = (replace(prepare(node, claim(i, (1, 1))), uid=claim(10 + i).uid) for i in (2, 3))
    one = replace(one, results=(replace(one.results[0], cpus=cpus("14")),))
    other = replace(other, results=(replace(other.results[0], cpus=cpus("15")),))
    assert told(node, Change(put_claims=(one,))) == {system.id: "15"}
    assert told(node, Change(put_claims=(other,))) == {system.id: "2-3,6-13"}
    assert told(node, Change(drop_claims=(elsewhere.uid,))) == {system.id: "0-3,6-13"}
    assert runs_on(node, shared) == cpus("8-11")
    assert told(node, Change(drop_claims=(other.uid,))) == {system.id: "15"}


def test_container_runs_on_what_is_left_of_its_own_cpus_and_on_shared_ones_when_nothing_is() -> None:
    """T6: CPUs that went offline stay its own."""
    made = books(available="0-7,10-15")
    online = replace(made.usable, online=cpus("0-7,10-15"))
    node = replace(made, ledger=Ledger(build_pools(made.topology, online)))
    own = container_in("root", exclusive="8-9")
    link = Link(claim_uid=claim(1).uid, cpus=cpus("8-9"))
    holder = replace(container_in("root"), group=Group.CLAIMED, uses_shared=False, links=(link,))
    part = replace(own, exclusive=cpus("9-10"))
    assert [str(where.cpus) for one in (own, holder, part) if (where := placement(node.ledger, one))] == [
        "0-7,10-14",
        "0-7,10-14",
        "10",
    ]
    assert placement(node.ledger, replace(holder, links=())) is None
