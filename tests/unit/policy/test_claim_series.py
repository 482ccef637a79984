"""The series that gave CPUs to claims, sentence by sentence; the one that pins their holders is beside it.

Each test quotes what it holds, as settled at the end of the discussion: where a claim would over-commit shared
containers these are lifted now (C14). Machine n4c16, CPU 15 reserved. What is said of reconfiguration and of variables
is held by ``unit/test_reconfigure.py`` and ``unit/dra/test_cdi.py``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_CPUS
from nodecpu.errors import NoCapacity
from nodecpu.ids import ContainerID
from nodecpu.policy.facts import QoS
from nodecpu.policy.ledger import violations
from nodecpu.policy.plan import Change
from tests.unit.policy.given import claim, cpus, create, prepare, release, runs_on
from tests.unit.policy.machines import N4C16, Books, books


@pytest.fixture
def node() -> Books:
    return books()


def test_each_result_names_a_node_and_consumes_some_of_it(node: Books) -> None:
    """C1, C2: "AllocateClaim decodes that into a number of CPUs per node." """
    taken = prepare(node, claim(1, (1, 2), (2, 3)))
    assert [len(result.cpus) for result in taken.results] == [2, 3]
    assert taken.results[0].cpus <= cpus("4-7")
    assert taken.results[1].cpus <= cpus("8-11")


def test_cpus_are_picked_out_of_isolated_and_sharable_less_reserved() -> None:
    """C2, T5: "out of the node's free, grantable CPUs, isolated plus sharable less reserved"."""
    node = books(replace(N4C16, isolated="4-5"))
    assert prepare(node, claim(1, (1, 4))).cpus == cpus("4-7")
    assert prepare(node, claim(2, (3, 3))).cpus == cpus("12-14")


def test_two_cpus_are_the_threads_of_one_core(node: Books) -> None:
    """C2, K1: "the two threads of one core, not one thread of each of two cores"."""
    prepare(node, claim(1, (1, 1)))
    assert prepare(node, claim(2, (1, 2))).cpus == cpus("6-7")


def test_several_results_on_one_node_are_disjoint_all_or_nothing(node: Books) -> None:
    """C3: "if one result cannot be filled, nothing stays claimed"."""
    first, second = prepare(node, claim(1, (1, 2), (1, 2))).results
    assert first.cpus.isdisjoint(second.cpus)
    with pytest.raises(NoCapacity):
        prepare(node, claim(2, (2, 2), (1, 1)))
    assert list(node.ledger.claims) == [claim(1).uid]
    assert node.ledger.free(cpus("8-11")) == cpus("8-11")


def test_released_cpus_are_free_and_a_second_release_is_no_error(node: Books) -> None:
    """C6, C12: "the kubelet may unprepare a claim more than once"."""
    taken = prepare(node, claim(1, (1, 4)))
    for _ in range(2):
        release(node, taken)
        assert node.ledger.free(cpus("4-7")) == cpus("4-7")


def test_grant_of_a_claim_has_no_shared_portion_and_no_memory(node: Books) -> None:
    """C4: "exclusive CPUs [...] with no shared portion and no memory"."""
    prepare(node, claim(1, (1, 2)))
    assert {node.ledger.need_mcpu(pool) for pool in node.ledger.tree.pools} == {0}
    assert dict(node.ledger.memory) == {}


def test_claimed_cpus_go_to_no_other_grant_while_the_claim_lives(node: Books) -> None:
    """C4, G9: "the NRI path cannot hand claimed CPUs to an exclusive or shared grant"."""
    taken = [prepare(node, claim(number, (number, 3))) for number in range(4)]
    claimed = cpus("0-2,4-6,8-10,12-14")
    own = create(node, "own", mcpu=1000)
    shared = create(node, "shared", mcpu=100, qos=QoS.BURSTABLE)
    assert own.exclusive
    assert own.exclusive.isdisjoint(claimed)
    assert runs_on(node, shared).isdisjoint(claimed)
    release(node, *taken)
    assert node.ledger.grantable(claimed) == claimed


def test_claims_and_containers_of_one_id_are_kept_apart(node: Books) -> None:
    """C4: "Claim UIDs and container IDs stay separate keyspaces"."""
    taken = prepare(node, claim(1, (1, 2)))
    own = replace(create(node, "own", mcpu=1000), id=ContainerID(taken.uid))
    node.ledger.apply(Change(put_containers=(own,), drop_containers=(create(node, "own", mcpu=1000).id,)))
    assert node.ledger.claims[taken.uid].cpus == taken.cpus
    assert node.ledger.containers[own.id].exclusive == own.exclusive
    release(node, taken)
    assert own.id in node.ledger.containers


def test_shared_containers_are_lifted_where_a_claim_would_leave_them_too_little(node: Books) -> None:
    """C5, C14: of "a little over one CPU's worth of shared capacity" two CPUs can be claimed: the others make room."""
    for number in range(4):
        create(node, f"pod-{number}", mcpu=2900, qos=QoS.BURSTABLE)
    assert prepare(node, claim(1, (1, 2))).cpus == cpus("4-5")
    assert violations(node.ledger) == []


def test_shared_containers_move_off_claimed_cpus_and_back(node: Books) -> None:
    """G9, C12: "shared containers move off claimed CPUs and back onto released ones"."""
    shared = create(node, "shared")
    before = runs_on(node, shared)
    taken = prepare(node, claim(1, *((number, 2) for number in range(4))))
    assert runs_on(node, node.ledger.containers[shared.id]).isdisjoint(taken.cpus)
    release(node, taken)
    assert runs_on(node, node.ledger.containers[shared.id]) >= before


def test_the_example_of_the_verification(node: Books) -> None:
    """C2, C8: "A claim for all of node 3 gets 12-14. Two 2-CPU claims on node 1 get one core each" and what follows."""
    assert prepare(node, claim(1, (3, 3))).cpus == cpus("12-14")
    first, second = prepare(node, claim(2, (1, 2))), prepare(node, claim(3, (1, 2)))
    assert (first.cpus, second.cpus) == (cpus("4-5"), cpus("6-7"))
    with pytest.raises(NoCapacity):
        prepare(node, claim(4, (1, 2)))
    release(node, first)
    assert prepare(node, claim(4, (1, 2))).cpus == cpus("4-5")
    assert node.ledger.grantable(cpus("4-7")) == NO_CPUS
