"""Flat mode: the community driver's behaviour for claims and the one shared pool (P1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.errors import ClaimConflict
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import Group
from nodecpu.policy.rules import Mirrored, Rules, Sharing
from tests.unit.policy.given import claim, create, mems_of, prepare, release, runs_on
from tests.unit.policy.machines import Books, Shape, books

FLAT = Rules(is_flat=True, pin_memory=False)


def node(rules: Rules = FLAT, reserved: str = "15") -> Books:
    return books(rules=rules, reserved=reserved, levels=())


def test_there_is_one_pool() -> None:
    """P1."""
    assert [pool.name for pool in node().ledger.tree.pools] == ["root"]


@pytest.mark.parametrize(
    ("qos", "mcpu", "namespace"),
    [
        (QoS.BEST_EFFORT, None, "shop"),
        (QoS.BURSTABLE, 500, "shop"),
        (QoS.GUARANTEED, 2000, "shop"),
        (QoS.GUARANTEED, 1500, "shop"),
        (QoS.GUARANTEED, 1000, "kube-system"),
        (QoS.BEST_EFFORT, None, "kube-system"),
    ],
)
def test_whoever_has_no_claim_shares_all_that_is_neither_reserved_nor_claimed(
    qos: QoS, mcpu: int | None, namespace: str
) -> None:
    """P1: no exclusive CPUs without a claim, no reserved group, and no memory is set."""
    made = node()
    grant = create(made, "a", mcpu=mcpu, qos=qos, namespace=namespace)
    assert grant.group is Group.SHARED
    assert str(runs_on(made, grant)) == "0-14"
    assert mems_of(made, grant) == ""
    held = prepare(made, claim(1, (1, 4), (3, 2)))
    assert str(runs_on(made, grant)) == "0-3,8-11,14"
    release(made, held)
    assert str(runs_on(made, grant)) == "0-14"


@pytest.mark.parametrize("mcpu", [None, 1, 500, 2000, 4000, 8000, 9500])
@pytest.mark.parametrize("mirrored", list(Mirrored))
def test_holder_runs_on_its_claims_alone_whatever_it_requests(mcpu: int | None, mirrored: Mirrored) -> None:
    """P1: a request is accounting only, as in the community driver's README (claim and request of 8)."""
    made = node(replace(FLAT, mirrored=mirrored, mapping_published=mirrored is Mirrored.NEVER))
    held = prepare(made, claim(1, (0, 4), (1, 4)))
    grant = create(made, "a", mcpu=mcpu, claims=[held], limit_mcpu=mcpu)
    assert str(runs_on(made, grant)) == "0-7"
    assert not grant.exclusive


def test_two_claims_of_a_container_are_its_union() -> None:
    """G2, P1."""
    made = node()
    first, second = prepare(made, claim(1, (0, 2))), prepare(made, claim(2, (3, 2)))
    grant = create(made, "a", claims=[first, second])
    assert str(runs_on(made, grant)) == "0-1,12-13"


def test_holder_in_kube_system_is_like_any_other() -> None:
    """P1."""
    made = node()
    held = prepare(made, claim(1, (0, 2), namespace="kube-system"))
    grant = create(made, "a", mcpu=100, claims=[held], namespace="kube-system", qos=QoS.BURSTABLE)
    assert str(runs_on(made, grant)) == "0-1"


def test_holders_are_not_rewritten_when_the_shared_pool_changes() -> None:
    """P1, G8."""
    made = node()
    grant = create(made, "a", claims=[prepare(made, claim(1, (0, 2)))])
    prepare(made, claim(2, (0, 2)))
    assert str(runs_on(made, grant)) == "0-1"


def test_one_claim_for_one_container_where_that_is_configured() -> None:
    """P1, L3: the community driver's one-to-one rule."""
    made = node(replace(FLAT, sharing=Sharing.CONTAINER))
    held = prepare(made, claim(1, (0, 2)))
    create(made, "a", claims=[held])
    with pytest.raises(ClaimConflict):
        create(made, "b", claims=[held])
    with pytest.raises(ClaimConflict):
        create(made, "a", name="second", claims=[held])


def test_shared_pool_that_is_claimed_whole_falls_back_to_reserved_cpus() -> None:
    """P1, C14: never an empty cpuset, which a runtime would take for no limit."""
    made = node()
    grant = create(made, "a")
    prepare(made, claim(1, (0, 4), (1, 4), (2, 4), (3, 3)))
    assert str(runs_on(made, grant)) == "15"


def test_amounts_come_from_the_device_two_threads_of_a_core_together() -> None:
    """P1, C2: as in topology-aware mode, although there is one pool."""
    made = node()
    assert str(prepare(made, claim(1, (2, 3))).cpus) == "8-10"
    assert str(prepare(made, claim(2, (2, 1))).cpus) == "11"


def test_isolated_cpus_are_for_claims_only() -> None:
    """G10: the one difference, since the kernel balances no load over isolated CPUs."""
    made = books(Shape(nodes=2, isolated="2-3"), rules=FLAT, reserved="", levels=())
    grant = create(made, "a", mcpu=2000)
    assert str(runs_on(made, grant)) == "0-1,4-7"
    assert str(prepare(made, claim(1, (0, 4))).cpus) == "0-3"
