"""Exclusive CPUs of containers: isolated ones, full cores, hidden threads, memory left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_CPUS, NO_NODES
from nodecpu.errors import NoCapacity
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import Group
from nodecpu.policy.ledger import violations
from nodecpu.policy.rules import Mirrored, Rules
from nodecpu.policy.shared import placement
from nodecpu.policy.wishes import Spread, Wishes
from tests.unit.policy.given import claim, cpus, create, prepare, release, remove, runs_on
from tests.unit.policy.machines import N4C16, books

ISOLATED = replace(N4C16, isolated="4-7")


def test_required_isolated_cpus_are_had_or_the_container_is_refused() -> None:
    """G10."""
    node = books(ISOLATED)
    required = {"require-isolated-cpus/pod": "true"}
    assert create(node, "a", mcpu=3000, annotations=required).exclusive == cpus("4-6")
    with pytest.raises(NoCapacity, match=r"container shop/b/app: 2 isolated CPUs required, 1 are free"):
        create(node, "b", mcpu=2000, annotations=required)
    assert create(node, "c", mcpu=2000).exclusive.isdisjoint(cpus("4-7"))
    assert violations(node.ledger) == []


def test_isolated_cpus_may_be_declined() -> None:
    """G10: prefer-isolated-cpus."""
    own = create(books(ISOLATED), mcpu=2000, annotations={"prefer-isolated-cpus": "false"})
    assert own.exclusive.isdisjoint(cpus("4-7"))


def test_required_isolation_of_a_shared_container_means_nothing() -> None:
    """G10: they are for exclusive use only."""
    node = books(ISOLATED)
    shared = create(node, mcpu=500, annotations={"require-isolated-cpus": "true"})
    assert shared.group is Group.SHARED
    assert runs_on(node, shared).isdisjoint(cpus("4-7"))


def test_three_cpus_with_hidden_hyperthreads_are_two_threads_of_two_cores() -> None:
    """G7."""
    node = books()
    own = create(node, mcpu=3000, annotations={"hide-hyperthreads/pod": "true"})
    assert own.exclusive == cpus("8-10")
    assert runs_on(node, own) == cpus("8,10")
    others = [create(node, f"web-{i}") for i in range(8)]
    assert all(runs_on(node, other).isdisjoint(own.exclusive) for other in others)


def test_hidden_hyperthreads_of_shared_and_reserved_containers() -> None:
    """G7: for containers without a claim all they run on."""
    node = books(reserved="14-15", levels=())
    hidden = {"hide-hyperthreads": "true"}
    shared = create(node, "a", annotations=hidden)
    assert runs_on(node, shared) == cpus("0,2,4,6,8,10,12")
    taken = prepare(node, claim(1, (0, 1)))
    assert runs_on(node, shared) == cpus("1,2,4,6,8,10,12")
    release(node, taken)
    system = create(node, "dns", namespace="kube-system", mcpu=100, qos=QoS.BURSTABLE, annotations=hidden)
    assert runs_on(node, system) == cpus("14")


def test_hidden_hyperthreads_never_concern_claimed_cpus() -> None:
    """G7: of a holder, its own exclusive CPUs only; what it shares neither."""
    node = books(rules=Rules(mirrored=Mirrored.NEVER))
    taken = prepare(node, claim(1, (1, 2)))
    own = create(node, mcpu=2000, claims=[taken], annotations={"hide-hyperthreads": "true"})
    assert own.exclusive == cpus("6-7")
    assert runs_on(node, own) == cpus("4-6")
    assert own.shares == 3 * 1024  # G6: for the CPUs it runs on
    mixed = create(node, "mixed", mcpu=500, claims=[taken], annotations={"hide-hyperthreads": "true"})
    pool = node.ledger.pool_of(mixed)
    assert runs_on(node, mixed) == taken.cpus | node.ledger.free(pool.sharable)


def test_preserved_memory_is_left_alone() -> None:
    """M1: memory.preserve."""
    node = books()
    kept = create(node, "agent", namespace="kube-system", mcpu=100, annotations={"memory.preserve": "true"})
    assert kept.mems == NO_NODES
    assert runs_on(node, kept) == cpus("15")


def test_preserved_container_has_no_place_of_ours_and_holds_its_claim() -> None:
    """G1, G8, L4."""
    node = books()
    taken = prepare(node, claim(1, (1, 2), namespace="kube-system"))
    kept = create(node, "agent", namespace="kube-system", claims=[taken], annotations={"cpu.preserve": "true"})
    assert placement(node.ledger, kept) is None
    assert [holder.id for holder in node.ledger.holders(taken.uid)] == [kept.id]
    assert (kept.shares, kept.quota_us) == (None, None)
    remove(node, kept)
    assert node.ledger.holders(taken.uid) == ()


def test_full_cores_only_refuses_parts_of_a_core() -> None:
    """K2."""
    node = books(rules=Rules(wishes=Wishes(full_cores=True)))
    assert create(node, "a", mcpu=2000).exclusive == cpus("8-9")
    with pytest.raises(NoCapacity, match="3 exclusive CPUs asked, which cannot be had as full cores"):
        create(node, "b", mcpu=3000)
    with pytest.raises(NoCapacity, match="13 exclusive CPUs asked, which cannot be had as full cores"):
        create(node, "c", mcpu=13_000)
    with pytest.raises(NoCapacity, match=r"14 exclusive CPUs asked, 13 can be spared \(free: 0-7,10-14\)"):
        create(node, "d", mcpu=14_000)


def test_a_wish_that_cannot_be_met_is_a_compromise_on_record() -> None:
    """K2."""
    node = books(rules=Rules(wishes=Wishes(spread=Spread.CORES)))
    own = create(node, "a", mcpu=2000)
    assert own.exclusive == cpus("8,10")
    same = books(rules=Rules(wishes=Wishes(same_l3=True)))
    wide = create(same, "a", mcpu=6000)
    assert len(wide.exclusive) == 6
    assert "without one L3 cache" in wide.reason


def test_opted_in_fraction_is_exclusive_and_shared() -> None:
    """G1: prefer-shared-cpus "false"."""
    node = books()
    own = create(node, mcpu=2500, annotations={"prefer-shared-cpus": "false"})
    assert (len(own.exclusive), own.portion_mcpu, own.uses_shared) == (2, 500, True)
    assert own.exclusive <= runs_on(node, own)
    assert len(runs_on(node, own)) > 2


def test_nothing_exclusive_of_one_who_opted_out() -> None:
    """G1: prefer-shared-cpus "true"."""
    assert create(books(), mcpu=4000, annotations={"prefer-shared-cpus/container.app": "true"}).exclusive == NO_CPUS
