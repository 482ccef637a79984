"""Containers whose books were lost keep what they run on, where it can have been theirs (R1, R2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import NodeSet
from nodecpu.policy.grants import ContainerGrant, Group, Link
from nodecpu.policy.pending import Seen
from nodecpu.policy.plan import Change
from nodecpu.policy.rebuilt import as_it_runs
from tests.unit.policy.drawn import container_in
from tests.unit.policy.given import claim, claim_uid, cpus
from tests.unit.policy.machines import Books, books

NEW = replace(container_in("numa 2", exclusive="8-9"), mems=NodeSet([2]))
"""What was decided anew for a container whose books were lost: n4c16, CPU 15 reserved."""


def busy() -> Books:
    """Return a node on which a container owns 0-1 and a prepare under way holds 2-3."""
    node = books()
    node.ledger.apply(Change(put_containers=(container_in("numa 0", 7, exclusive="0-1"),)))
    node.ledger.hold(claim(1).uid, cpus("2-3"))
    return node


def found(grant: ContainerGrant, seen: str, mems: str = "1") -> ContainerGrant:
    return as_it_runs(busy().ledger, grant, Seen(cpus=cpus(seen), mems=NodeSet.parse(mems)))


def test_as_many_free_cpus_are_what_it_was_given() -> None:
    """R1: with the pool and the memory that go with them."""
    assert found(NEW, "4-5") == replace(NEW, exclusive=cpus("4-5"), pool="numa 1", mems=NodeSet([1]))
    assert found(NEW, "4,8", "") == replace(NEW, exclusive=cpus("4,8"), pool="root")
    assert found(NEW, "8-9") == replace(NEW, mems=NodeSet([1]))


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param("0-15", id="never pinned"),
        pytest.param("4-6", id="more"),
        pytest.param("4", id="fewer"),
        pytest.param("", id="none"),
        pytest.param("1,4", id="one of another container"),
        pytest.param("3-4", id="one that a prepare holds"),
        pytest.param("14-15", id="a reserved one"),
        pytest.param("14,99", id="one that is not there"),
    ],
)
def test_what_cannot_have_been_its_own_is_not_taken(seen: str) -> None:
    """R1, R2: it gets what was picked."""
    assert found(NEW, seen) == NEW


def test_what_cannot_be_told_apart_is_not_taken() -> None:
    """R2: of CPUs of its own and shared ones together nobody knows which were which."""
    mixed = replace(NEW, group=Group.MIXED, exclusive=cpus("8"), portion_mcpu=500, uses_shared=True)
    assert found(mixed, "4") == mixed
    shared = container_in("numa 1")
    assert found(shared, "4-5") == shared
    assert found(shared, "") == shared
    alone = replace(shared, group=Group.CLAIMED, uses_shared=False)
    assert found(alone, "") == alone


def test_claimed_cpus_are_not_its_own() -> None:
    """R1, G5: its pool is that of both together."""
    holder = replace(NEW, links=(Link(claim_uid=claim_uid(1), cpus=cpus("4-5")),))
    assert found(holder, "4-7") == replace(holder, exclusive=cpus("6-7"), pool="numa 1", mems=NodeSet([1]))
    assert found(holder, "4-5,12-13").pool == "root"
    assert found(holder, "4-5") == holder
