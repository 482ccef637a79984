"""The books: sums that follow changes, and violations that are found when something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_CPUS, NO_NODES, CpuSet, NodeSet
from nodecpu.ids import ContainerID, PodUID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant, Group, Link
from nodecpu.policy.ledger import Ledger, gives_way, violations
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import Pool
from tests.unit.policy.given import claim, claim_uid, cpus, create, prepare, release, remove
from tests.unit.policy.machines import Books, books

WEB = (PodUID("pod-web"), "shop", "web", "app")


def pool(node: Books, name: str) -> Pool:
    found = node.ledger.tree.named(name)
    assert found is not None
    return found


def needs(ledger: Ledger) -> dict[str, int]:
    return {each.name: need for each in ledger.tree.pools if (need := ledger.need_mcpu(each))}


def test_apply_returns_the_cpus_that_changed_hands_between_granted_and_free() -> None:
    """G9."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    assert node.ledger.apply(Change(put_claims=(replace(grant, released=True),))) == NO_CPUS
    assert node.ledger.apply(Change(drop_claims=(grant.uid,))) == cpus("4-5")
    assert node.ledger.apply(Change(drop_claims=(grant.uid,))) == NO_CPUS


def test_grants_of_one_change_may_hand_cpus_to_one_another() -> None:
    """C6: a claim that is allocated anew."""
    node = books()
    old = prepare(node, claim(1, (1, 2)))
    own = create(node, mcpu=2000)
    flipped = node.ledger.apply(
        Change(
            drop_claims=(old.uid,),
            put_claims=(replace(old, uid=claim_uid(2), results=(replace(old.results[0], cpus=own.exclusive),)),),
            put_containers=(replace(own, exclusive=old.cpus),),
        )
    )
    assert flipped == NO_CPUS
    assert violations(node.ledger) == []


def test_needs_are_counted_in_a_pool_and_all_above_it() -> None:
    """P3."""
    node = books()
    one = create(node, "a", mcpu=300, qos=QoS.BURSTABLE)
    socket = node.ledger.tree.pools[pool(node, one.pool).ancestors[1]]
    assert needs(node.ledger) == dict.fromkeys(["root", socket.name, one.pool], 300)
    two, three = create(node, "b"), create(node, "c")
    assert node.ledger.need_mcpu(node.ledger.tree.root) == 301
    remove(node, one, two)
    assert needs(node.ledger).get(three.pool) == 1
    assert node.ledger.need_mcpu(node.ledger.tree.root) == 1
    remove(node, three)
    assert needs(node.ledger) == {}


def test_putting_a_grant_again_replaces_it() -> None:
    """Each change can be repeated."""
    node = books()
    grant = create(node, mcpu=300, qos=QoS.BURSTABLE)
    for portion in (300, 700):
        node.ledger.apply(Change(put_containers=(replace(grant, portion_mcpu=portion),)))
        assert node.ledger.need_mcpu(node.ledger.tree.root) == portion
    assert list(node.ledger.sharers(pool(node, grant.pool))) == [grant.id]
    assert violations(node.ledger) == []


def test_sharers_are_counted_by_kind() -> None:
    """S."""
    node = books(levels=())
    for i in range(3):
        create(node, f"bare-{i}")
    create(node, "asking", mcpu=100, qos=QoS.BURSTABLE)
    top = node.ledger.tree.root
    assert (node.ledger.count_sharers(bare=True)[top.index], node.ledger.count_sharers(bare=False)[top.index]) == (3, 1)
    assert (node.ledger.bare(top), node.ledger.portions_mcpu(top)) == (3, 100)


def test_holders_are_known_until_their_last_container_is_gone() -> None:
    """C12, L4."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    one, two = create(node, "a", claims=[grant]), create(node, "b", claims=[grant])
    assert [holder.id for holder in node.ledger.holders(grant.uid)] == [one.id, two.id]
    remove(node, one)
    assert [holder.id for holder in node.ledger.holders(grant.uid)] == [two.id]
    remove(node, two)
    assert node.ledger.holders(grant.uid) == ()


def test_latest_container_of_a_name_is_found_and_a_late_removal_of_the_old_one_changes_nothing() -> None:
    """G11, U35."""
    node = books()
    old = create(node)
    new = replace(old, id=ContainerID("web-app-2"))
    node.ledger.apply(Change(put_containers=(new,)))
    assert node.ledger.named(*WEB) == new
    remove(node, old)
    assert node.ledger.named(*WEB) == new
    remove(node, new)
    assert node.ledger.named(*WEB) is None


def test_container_of_a_pod_that_names_the_uid_of_another_is_not_taken_for_its_own() -> None:
    """G11: nor does it hide it, whichever of them is written to last."""
    node = books()
    own = create(node)
    other = replace(own, id=ContainerID("other"), namespace="kube-system")
    node.ledger.apply(Change(put_containers=(other,)))
    assert node.ledger.named(*WEB) == own
    remove(node, other)
    assert node.ledger.named(*WEB) == own


def test_holds_keep_cpus_from_grants_but_not_from_shared_containers() -> None:
    """C5: nothing outside sees a hold."""
    node = books()
    node.ledger.hold(claim_uid(1), cpus("4-5"))
    node.ledger.hold(claim_uid(2), cpus("6"))
    everything = node.usable.all
    assert node.ledger.grantable(everything) == everything - cpus("4-6")
    assert node.ledger.free(everything) == everything
    node.ledger.unhold(claim_uid(1))
    node.ledger.unhold(claim_uid(1))
    assert node.ledger.grantable(everything) == everything - cpus("6")


def test_owner_is_the_claim_or_container_that_has_the_cpu_exclusively() -> None:
    node = books()
    grant, own = prepare(node, claim(1, (1, 2))), create(node, mcpu=2000)
    assert node.ledger.owner(4) == grant
    assert node.ledger.owner(own.exclusive.first()) == own
    assert node.ledger.owner(15) is None


def test_moved_claim_keeps_its_place_in_the_books_but_no_cpus() -> None:
    """T7: they are picked anew at the next prepare."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    node.ledger.apply(Change(put_claims=(replace(grant, moved=True),)))
    assert prepare(node, claim(2, (1, 4))).cpus == cpus("4-7")
    assert violations(node.ledger) == []
    release(node, grant)
    assert node.ledger.free(node.usable.all) == node.usable.all - cpus("4-7")


def stolen(node: Books, grant: ContainerGrant) -> Change:
    return Change(put_containers=(replace(grant, id=ContainerID("thief"), exclusive=cpus("4"), group=Group.MULTI),))


def unlinked(node: Books, grant: ContainerGrant) -> Change:
    del node
    return Change(put_containers=(replace(grant, links=(Link(claim_uid=claim_uid(9), cpus=cpus("4")),)),))


def overlinked(node: Books, grant: ContainerGrant) -> Change:
    del node
    return Change(put_containers=(replace(grant, links=(Link(claim_uid=claim_uid(1), cpus=cpus("4-6")),)),))


def bare_handed(node: Books, grant: ContainerGrant) -> Change:
    del node
    return Change(put_containers=(replace(grant, group=Group.MIXED, exclusive=NO_CPUS),))


def homeless(node: Books, grant: ContainerGrant) -> Change:
    del node
    return Change(put_containers=(replace(grant, pool="numa 9", uses_shared=True),))


def twice(node: Books, grant: ContainerGrant) -> Change:
    del grant
    first = node.ledger.claims[claim_uid(1)]
    return Change(put_claims=(replace(first, results=(*first.results, *first.results)),))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        pytest.param(stolen, f"CPU 4 belongs to claim {claim_uid(1)} and to container thief", id="two owners"),
        pytest.param(unlinked, f"linked to claim {claim_uid(9)}, which is not in the books", id="unknown claim"),
        pytest.param(overlinked, "is linked to 4-6, its claim has 4-5", id="more than the claim"),
        pytest.param(bare_handed, "should have CPUs of its own", id="nothing of its own"),
        pytest.param(homeless, "is in pool numa 9, which is not there", id="unknown pool"),
        pytest.param(twice, f"claim {claim_uid(1)} gives 4-5 twice", id="two results with the same CPUs"),
    ],
)
def test_violations_are_found(wrong: Callable[[Books, ContainerGrant], Change], words: str) -> None:
    """C4: books that are wrong say so."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    holder = create(node, claims=[grant])
    assert violations(node.ledger) == []
    node.ledger.apply(wrong(node, holder))
    assert any(words in found for found in violations(node.ledger))


def test_two_containers_of_one_claim_may_be_linked_to_all_of_it() -> None:
    """L2, C4: a link lies within its claim, and may be the whole."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    create(node, "a", claims=[grant])
    create(node, "b", claims=[grant])
    assert violations(node.ledger) == []


class Wrong(Ledger):
    """Books that have lost count in one place; ``where`` says in which."""

    where = ""

    def free(self, cpus: CpuSet) -> CpuSet:
        """Return one CPU too many or too few."""
        free = super().free(cpus)
        return {"more free": free | cpus, "less free": free - CpuSet([0])}.get(self.where, free)

    def need_mcpu(self, pool: Pool) -> int:
        """Return too much of the root."""
        return super().need_mcpu(pool) + (self.where == "need" and pool.depth == 0)

    def sharers(self, pool: Pool) -> Mapping[ContainerID, ContainerGrant]:
        """Return nobody, or one too many."""
        found = dict(super().sharers(pool))
        if self.where == "lost":
            return {}
        return found | {ContainerID("new"): one for one in found.values() if self.where == "gained"}

    @property
    def memory(self) -> Mapping[tuple[int, bool], int]:
        """Return a byte more than there is."""
        return {key: count + (self.where == "memory") for key, count in super().memory.items()}

    def memory_within(self, nodes: NodeSet, *, stays: bool = False) -> int:
        """Return a byte more than there is of one kind in one node."""
        in_one = str(nodes) == "2"
        return super().memory_within(nodes, stays=stays) + (in_one and self.where == ("stays" if stays else "all"))


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("", None),
        ("more free", "granted but counted free: 4-5"),
        ("less free", "free but counted as granted: 0"),
        ("need", "pool root counts 2 m, its containers need 1 m"),
        ("lost", "pool numa 2 has lost or gained containers"),
        ("gained", "pool numa 2 has lost or gained containers"),
        ("memory", "memory counted is not that of the containers"),
        ("stays", "memory counted in nodes 2 is not that of the containers"),
        ("all", "memory counted in nodes 2 is not that of the containers"),
    ],
)
def test_wrong_sums_are_found(where: str, words: str | None) -> None:
    """C4: books are recounted from the grants alone."""
    node = books()
    prepare(node, claim(1, (1, 2)))
    create(node, memory_bytes=1 << 30, qos=QoS.BURSTABLE)
    wrong = Wrong(node.ledger.tree)
    wrong.apply(
        Change(put_claims=tuple(node.ledger.claims.values()), put_containers=tuple(node.ledger.containers.values()))
    )
    wrong.where = where
    assert violations(wrong) == ([] if words is None else [words])


def test_who_gives_way_for_a_guaranteed_containers_memory() -> None:
    """M1: Burstable ones with memory and a place of ours for it, and no claim."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    plain = create(node, memory_bytes=1 << 30, mcpu=100, qos=QoS.BURSTABLE)
    assert gives_way(plain) is True
    assert gives_way(replace(plain, qos=QoS.GUARANTEED)) is False
    assert gives_way(replace(plain, qos=QoS.BEST_EFFORT)) is False
    assert gives_way(replace(plain, links=(Link(claim_uid=grant.uid, cpus=grant.cpus),))) is False
    assert gives_way(replace(plain, memory_bytes=0)) is False
    assert gives_way(replace(plain, mems=NO_NODES)) is False  # left alone: what the runtime gave stays
