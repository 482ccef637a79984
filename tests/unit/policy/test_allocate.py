"""What claims and containers get: the cases of machine n4c16 with CPU 15 reserved, and the rules behind them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_CPUS, NO_NODES
from nodecpu.errors import BadRequest, NoCapacity
from nodecpu.ids import ContainerID
from nodecpu.policy.claims import claim_grant, same_allocation
from nodecpu.policy.facts import AllocatedClaim, AllocationResult, QoS
from nodecpu.policy.grants import Group
from nodecpu.policy.ledger import violations
from nodecpu.policy.plan import Change
from nodecpu.policy.rules import Mirrored, Rules
from tests.unit.policy.given import NODE, claim, cpus, create, mems_of, prepare, release, remove, runs_on
from tests.unit.policy.machines import N4C16, Shape, books

# Claims


def test_claim_for_all_of_a_node_gets_everything_but_the_reserved_cpu() -> None:
    """C2, T5."""
    assert prepare(books(), claim(1, (3, 3))).cpus == cpus("12-14")


def test_claims_of_two_get_a_core_each_until_the_node_is_full_and_again_after_a_release() -> None:
    """C2, C8, K1."""
    node = books()
    first = prepare(node, claim(1, (1, 2)))
    second = prepare(node, claim(2, (1, 2)))
    assert (first.cpus, second.cpus) == (cpus("4-5"), cpus("6-7"))
    with pytest.raises(NoCapacity, match=r"claim shop/claim-3, request r0: 2 CPUs asked of cpudevnuma001, 0 free"):
        prepare(node, claim(3, (1, 2)))
    release(node, first)
    assert prepare(node, claim(3, (1, 2))).cpus == cpus("4-5")
    assert violations(node.ledger) == []


def test_results_of_one_claim_are_disjoint_and_kept_apart() -> None:
    """C3."""
    grant = prepare(books(), claim(1, (0, 2), (2, 1), (0, 1)))
    assert [str(result.cpus) for result in grant.results] == ["0-1", "8", "2"]
    assert grant.cpus == cpus("0-2,8")
    assert grant.cdi_ids == tuple(f"dra.cpu/cpu=claim-{grant.uid}-{i}" for i in range(3))


def test_claim_is_all_or_nothing() -> None:
    """C3."""
    node = books()
    prepare(node, claim(1, (2, 4)))
    with pytest.raises(NoCapacity, match="request r1: 1 CPUs asked of cpudevnuma002, 0 free"):
        prepare(node, claim(2, (0, 2), (2, 1)))
    assert node.ledger.free(node.usable.all) == cpus("0-7,12-15")


def test_amounts_on_one_device_add_up() -> None:
    """C3."""
    with pytest.raises(NoCapacity, match="request r1: 2 CPUs asked of cpudevnuma001, 1 free"):
        prepare(books(), claim(1, (1, 3), (1, 2)))


@pytest.mark.parametrize(
    ("node", "count", "words"),
    [
        pytest.param(7, 1, "there is no device cpudevnuma007 on this node", id="unknown device"),
        pytest.param(3, 4, r"4 CPUs asked of cpudevnuma003, which has 3 \(12-14\)", id="more than it can ever give"),
    ],
)
def test_what_no_retry_can_help_is_a_bad_request(node: int, count: int, words: str) -> None:
    """C1."""
    with pytest.raises(BadRequest, match=words):
        prepare(books(), claim(1, (node, count)))


def test_admin_access_takes_no_cpu_and_is_answered_with_a_device() -> None:
    """C13."""
    node = books()
    watching = AllocationResult(request="see", pool=NODE, device="cpudevnuma001", cpus=0, admin_access=True)
    wanted = claim(1, (1, 2))
    grant = prepare(node, replace(wanted, results=(watching, *wanted.results)))
    assert grant.cpus == cpus("4-5")
    assert grant.results[0].cpus == NO_CPUS
    assert len(grant.cdi_ids) == 2


def test_held_cpus_are_out_of_reach_of_other_prepares() -> None:
    """C5."""
    node = books()
    first = claim_grant(node.ledger, node.machine, node.rules, claim(1, (1, 2)))
    node.ledger.hold(first.uid, first.cpus)
    assert prepare(node, claim(2, (1, 2))).cpus == cpus("6-7")
    node.ledger.unhold(first.uid)
    assert prepare(node, claim(3, (1, 2))).cpus == cpus("4-5")


def test_refusal_says_the_same_words_on_each_retry() -> None:
    """Style 2.6."""
    node = books()
    prepare(node, claim(1, (1, 3)))
    said = set()
    for _ in range(2):
        with pytest.raises(NoCapacity) as caught:
            prepare(node, claim(2, (1, 2)))
        said.add(str(caught.value))
    assert len(said) == 1


def test_same_allocation_notices_another_device_amount_or_order() -> None:
    """C6."""
    made = prepare(books(), claim(1, (0, 2), (2, 1)))
    assert same_allocation(made, claim(1, (0, 2), (2, 1)))
    assert not same_allocation(made, claim(1, (0, 2), (3, 1)))
    assert not same_allocation(made, claim(1, (0, 1), (2, 1)))
    assert not same_allocation(made, claim(1, (0, 2)))


def test_claim_that_leaves_no_shared_cpu_is_refused_without_reserved_fallback() -> None:
    """C14: the reason names the claim."""
    node = books(rules=Rules(fallback_reserved=False))
    prepare(node, claim(1, (0, 4), (1, 4), (2, 4)))
    with pytest.raises(NoCapacity, match=r"claim shop/claim-2: taking CPUs 12-14 would leave 0 for shared containers"):
        prepare(node, claim(2, (3, 3)))
    assert prepare(node, claim(3, (3, 2))).cpus == cpus("12-13")


def test_claim_may_take_the_last_ordinary_cpu_where_reserved_ones_take_over() -> None:
    """C14."""
    node = books()
    prepare(node, claim(1, (0, 4), (1, 4), (2, 4), (3, 3)))
    assert runs_on(node, create(node)) == cpus("15")


def test_claim_takes_isolated_cpus_of_its_device_as_well() -> None:
    """C2."""
    node = books(replace(N4C16, isolated="6-7"))
    assert prepare(node, claim(1, (1, 4))).cpus == cpus("4-7")


# Containers without a claim


def test_best_effort_container_avoids_and_gives_up_claimed_cpus_and_gets_them_back() -> None:
    """G9, C14: the container stays in its pool as long as one CPU is left there."""
    node = books(levels=())  # one pool: the place is not the question here
    shared = create(node)
    assert runs_on(node, shared) == cpus("0-14")
    taken = prepare(node, claim(1, (1, 2)))
    assert runs_on(node, shared) == cpus("0-3,6-14")
    release(node, taken)
    assert runs_on(node, shared) == cpus("0-14")


def test_guaranteed_whole_cpus_are_exclusive_and_never_in_a_shared_set() -> None:
    """G1 multi, P3."""
    node = books()
    own = create(node, "db", mcpu=2000)
    assert (own.group, len(own.exclusive), own.uses_shared) == (Group.MULTI, 2, False)
    others = [create(node, f"web-{i}") for i in range(8)]
    assert all(runs_on(node, other).isdisjoint(own.exclusive) for other in others)
    assert runs_on(node, own) == own.exclusive


def test_guaranteed_fraction_between_one_and_two_is_one_exclusive_and_a_portion() -> None:
    """G1 mixed."""
    node = books()
    own = create(node, "db", mcpu=1500)
    assert (own.group, len(own.exclusive), own.portion_mcpu, own.uses_shared) == (Group.MIXED, 1, 500, True)
    assert own.exclusive <= runs_on(node, own)
    assert len(runs_on(node, own)) > 1


def test_shares_are_left_to_the_runtime_without_a_claim() -> None:
    """G6."""
    assert create(books(), mcpu=100, qos=QoS.BURSTABLE).shares is None


def test_exclusive_cpus_are_refused_when_shared_requests_need_them() -> None:
    """P3, U32."""
    node = books(Shape(sockets=1, nodes=1, cores=2, threads=2), reserved="")
    create(node, "web", mcpu=2500, qos=QoS.BURSTABLE)
    assert create(node, "one", mcpu=1000).exclusive
    with pytest.raises(NoCapacity, match="container shop/two/app: 1 exclusive CPUs asked, 0 can be spared"):
        create(node, "two", mcpu=1000)


def test_shared_container_is_not_refused_for_lack_of_millicpus() -> None:
    """G16."""
    node = books()
    for i in range(20):
        create(node, f"web-{i}", mcpu=2500, qos=QoS.BURSTABLE)
    assert violations(node.ledger) == []


def test_shared_container_is_refused_when_no_cpu_is_left_at_all() -> None:
    """G16: a node without reserved CPUs whose books were filled by other means."""
    node = books(reserved="")
    node.ledger.apply(
        Change(put_claims=(claim_grant(node.ledger, node.machine, Rules(), claim(1, (0, 4), (1, 4), (2, 4), (3, 3))),))
    )
    whole = claim(2, (3, 1))
    made = replace(
        claim_grant(books(reserved="").ledger, node.machine, Rules(), whole),
    )
    last = replace(made.results[0], cpus=cpus("15"))
    node.ledger.apply(Change(put_claims=(replace(made, results=(last,)),)))
    with pytest.raises(NoCapacity, match="container shop/web/app: no CPU is left for shared containers"):
        create(node)


def test_reserved_namespace_runs_on_reserved_cpus_with_all_memory() -> None:
    """G1 reserved."""
    node = books()
    system = create(node, "dns", namespace="kube-system", mcpu=100, qos=QoS.BURSTABLE)
    assert (system.group, runs_on(node, system), mems_of(node, system)) == (Group.RESERVED, cpus("15"), "0-3")


def test_reserved_namespace_is_shared_without_reserved_cpus() -> None:
    """T5."""
    node = books(reserved="")
    assert create(node, "dns", namespace="kube-system").group is Group.SHARED


def test_isolated_cpus_serve_exclusive_requests_and_nobody_else() -> None:
    """G10."""
    node = books(replace(N4C16, isolated="4-7"))
    own = create(node, "db", mcpu=2000)
    assert own.exclusive == cpus("4-5")
    assert mems_of(node, own) == "1"
    shared = [create(node, f"web-{i}") for i in range(6)]
    assert all(runs_on(node, one).isdisjoint(cpus("4-7")) for one in shared)


def test_isolated_cpus_are_not_used_for_a_part_of_a_request() -> None:
    """G10: only where they cover the whole exclusive part."""
    node = books(replace(N4C16, isolated="6-7"))
    assert create(node, "db", mcpu=3000).exclusive.isdisjoint(cpus("6-7"))


def test_memory_is_left_alone_when_not_pinned() -> None:
    """M1."""
    node = books(rules=Rules(pin_memory=False))
    grant = prepare(node, claim(1, (2, 2)))
    assert create(node, claims=[grant]).mems == NO_NODES
    assert create(node, "other").mems == NO_NODES


# Claim holders


def test_holder_without_a_request_runs_on_its_claim_alone_with_its_nodes_memory() -> None:
    """G2, G5, M1; both containers that share the claim."""
    node = books()
    grant = prepare(node, claim(1, (2, 2)))
    one = create(node, claims=[grant], name="one")
    two = create(node, claims=[grant], name="two")
    for holder in (one, two):
        assert holder.group is Group.CLAIMED
        assert (runs_on(node, holder), mems_of(node, holder)) == (cpus("8-9"), "2")


def test_holder_of_several_claims_runs_on_their_union_with_the_memory_of_the_pool_that_holds_them() -> None:
    """G2, G5."""
    node = books()
    a, b = prepare(node, claim(1, (2, 2))), prepare(node, claim(2, (3, 1)))
    holder = create(node, claims=[a, b])
    assert (runs_on(node, holder), mems_of(node, holder), holder.pool) == (cpus("8-9,14"), "2-3", "socket 1")


def test_holder_with_a_small_request_has_shared_cpus_of_the_claims_pool_beside() -> None:
    """G3, G5, G13 auto."""
    node = books()
    grant = prepare(node, claim(1, (2, 2)))
    holder = create(node, claims=[grant], mcpu=100, qos=QoS.BURSTABLE)
    assert (runs_on(node, holder), mems_of(node, holder), holder.pool) == (cpus("8-11"), "2", "numa 2")
    assert holder.shares == 102


def test_holder_that_mirrors_its_claim_runs_on_the_claim_alone() -> None:
    """G13: the community driver's README example, 8 requested and limited with a claim of 8."""
    node = books()
    grant = prepare(node, claim(1, (1, 4), (2, 4)))
    holder = create(node, claims=[grant], mcpu=8000)
    assert (holder.group, runs_on(node, holder)) == (Group.CLAIMED, cpus("4-11"))
    assert holder.shares == 8192


def test_holder_without_a_portion_is_not_a_container_that_its_pool_counts() -> None:
    """G6, G8."""
    node = books()
    grant = prepare(node, claim(1, (2, 2)))
    create(node, claims=[grant])
    assert all(not node.ledger.sharers(pool) for pool in node.ledger.tree.pools)


def test_holders_own_exclusive_cpus_come_from_the_claims_pool() -> None:
    """G3, G5."""
    node = books(rules=Rules(mirrored=Mirrored.NEVER))
    grant = prepare(node, claim(1, (2, 2)))
    holder = create(node, claims=[grant], mcpu=2000)
    assert (holder.exclusive, runs_on(node, holder), holder.shares) == (cpus("10-11"), cpus("8-11"), 4096)


def test_what_the_claims_pool_cannot_serve_comes_from_the_nearest_ancestor_and_is_recorded() -> None:
    """G5."""
    node = books(rules=Rules(mirrored=Mirrored.NEVER))
    grant = prepare(node, claim(1, (2, 4)))
    exclusive = create(node, "a", claims=[grant], mcpu=2000)
    shared = create(node, "b", claims=[grant], mcpu=500, qos=QoS.BURSTABLE)
    assert exclusive.exclusive == cpus("12-13")
    assert mems_of(node, exclusive) == "2"
    assert "exclusive CPUs of numa 3, numa 2 has none to spare" in exclusive.reason
    assert (shared.pool, runs_on(node, shared), mems_of(node, shared)) == ("socket 1", cpus("8-11,14"), "2")
    assert "shared CPUs of socket 1, numa 2 has none to spare" in shared.reason


def test_holders_exclusive_cpus_are_not_counted_again_for_its_own_portion() -> None:
    """P3, G5: the last free CPU of the pool cannot be exclusive and serve the portion as well."""
    node = books(rules=Rules(mirrored=Mirrored.NEVER))
    grant = prepare(node, claim(1, (2, 3)))
    holder = create(node, claims=[grant], mcpu=1500)
    assert (holder.exclusive, holder.pool) == (cpus("11"), "socket 1")
    assert runs_on(node, holder) == cpus("8-14")


def test_reserved_holder_with_a_request_runs_on_reserved_and_claimed_cpus() -> None:
    """G4, G5: it stays in the root, memory too."""
    node = books()
    grant = prepare(node, claim(1, (2, 2), namespace="kube-system"))
    holder = create(node, "dns", namespace="kube-system", claims=[grant], mcpu=100, qos=QoS.BURSTABLE)
    assert (holder.group, runs_on(node, holder)) == (Group.RESERVED, cpus("8-9,15"))
    assert (holder.pool, mems_of(node, holder)) == ("root", "0-3")


def test_reserved_holder_without_a_request_runs_on_the_claim_alone() -> None:
    """G4."""
    node = books()
    grant = prepare(node, claim(1, (2, 2), namespace="kube-system"))
    holder = create(node, "dns", namespace="kube-system", claims=[grant])
    assert (holder.group, runs_on(node, holder)) == (Group.CLAIMED, cpus("8-9"))


@pytest.mark.parametrize(
    ("mcpu", "shares"),
    [pytest.param(10, 10, id="small"), pytest.param(1, 2, id="kernel's least")],
)
def test_holders_shares_follow_its_portion_within_the_kernels_range(mcpu: int, shares: int) -> None:
    """G6."""
    node = books(rules=Rules(token_request_mcpu=0))
    grant = prepare(node, claim(1, (2, 2)))
    assert create(node, claims=[grant], mcpu=mcpu, qos=QoS.BURSTABLE).shares == shares


def test_shares_of_a_huge_claim_are_cut_to_the_kernels_range() -> None:
    """G6: 262144 is the largest figure the kernel takes."""
    node = books(Shape(cores=300, threads=1), reserved="")
    grant = prepare(node, claim(1, (0, 299)))
    assert create(node, claims=[grant]).shares == 262144


def test_released_container_gives_everything_back() -> None:
    """G11."""
    node = books()
    one, two = create(node, "a", mcpu=2000), create(node, "b", mcpu=1500)
    remove(node, one, two)
    assert node.ledger.free(node.usable.all) == node.usable.all
    assert all(node.ledger.need_mcpu(pool) == 0 for pool in node.ledger.tree.pools)


def test_empty_claim_of_ours_takes_nothing() -> None:
    """C1."""
    node = books()
    nothing = AllocatedClaim(uid=claim(1).uid, namespace="shop", name="none", results=())
    assert prepare(node, nothing).cpus == NO_CPUS


def test_container_without_a_request_needs_the_last_thousandth_of_a_pool() -> None:
    """S, G5: a pool with one to spare is home, one with none is not."""
    for asked, is_home in ((999, True), (1000, False)):
        node = books(Shape(sockets=1, nodes=2, cores=1, threads=1), reserved="")
        first = create(node, "a", mcpu=asked, qos=QoS.BURSTABLE, name="a")
        filler = replace(first, id=ContainerID("filler"), pool="numa 1")
        node.ledger.apply(Change(put_containers=(replace(first, pool="numa 0"), filler)))
        assert create(node, "b").pool.startswith("numa") is is_home
