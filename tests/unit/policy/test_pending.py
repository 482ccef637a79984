"""What is still to reach a container: sent is not applied, and told is told once (R7)."""

from __future__ import annotations

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.ids import ContainerID
from nodecpu.policy.pending import Pending, Seen
from nodecpu.policy.plan import Placement, Update

ONE = ContainerID("one")
OLD = Placement(cpus=CpuSet.parse("0-3"), mems=NodeSet.parse("0"))
NEW = Placement(cpus=CpuSet.parse("2-3"), mems=NodeSet.parse("0"))
OTHER_MEMORY = Placement(cpus=OLD.cpus, mems=NodeSet.parse("1"))


def seen(placement: Placement) -> Seen:
    return Seen(cpus=placement.cpus, mems=placement.mems)


def update(placement: Placement) -> Update:
    return Update(container_id=ONE, placement=placement)


def test_an_update_is_due_until_it_was_seen() -> None:
    pending = Pending()
    pending.see(ONE, seen(OLD), OLD)
    pending.want(update(NEW))
    for _ in range(2):
        assert pending.due() == (update(NEW),)
        pending.replied()
    assert not pending.see(ONE, seen(OLD), NEW)
    assert pending.due() == (update(NEW),)
    assert pending.see(ONE, seen(NEW), NEW)
    assert pending.due() == ()


def test_a_wish_that_a_reply_has_carried_is_to_be_looked_at_until_it_changes() -> None:
    """R7."""
    pending = Pending()
    pending.want(update(NEW))
    assert list(pending.carried) == []
    pending.replied()
    pending.want(update(NEW))
    assert list(pending.carried) == [ONE]
    pending.want(update(OTHER_MEMORY))
    assert list(pending.carried) == []
    pending.replied()
    pending.see(ONE, seen(OTHER_MEMORY), OTHER_MEMORY)
    assert list(pending.carried) == []


def test_what_is_wanted_when_there_is_hurry_is_urgent_while_it_is_wanted() -> None:
    """G9: what comes of a container that was judged late."""
    pending = Pending()
    pending.see(ONE, seen(OLD), OLD)
    pending.want(update(NEW))
    assert not pending.is_urgent(ONE)
    pending.hurry()
    assert pending.is_urgent(ONE)
    pending.want(update(OLD))
    assert not pending.is_urgent(ONE)
    pending.want(update(NEW))
    assert not pending.is_urgent(ONE)  # another wish, though of the same container
    assert not pending.see(ONE, seen(OLD), NEW)
    pending.hurry()
    assert pending.see(ONE, seen(NEW), NEW)
    assert not pending.is_urgent(ONE)


def test_what_was_written_past_the_runtime_is_told_once() -> None:
    pending = Pending()
    pending.see(ONE, seen(NEW), NEW)
    pending.repeat(ONE, NEW)
    assert pending.due() == (update(NEW),)
    pending.replied()
    assert pending.due() == ()


def test_what_a_container_is_created_with_is_not_due() -> None:
    pending = Pending()
    pending.create(ONE, NEW)
    pending.want(update(NEW))
    assert pending.is_open
    assert pending.due() == ()
    assert pending.see(ONE, seen(NEW), NEW)
    assert not pending.is_open


def test_a_container_that_is_to_move_before_it_started_is_told() -> None:
    pending = Pending()
    pending.create(ONE, OLD)
    pending.want(update(NEW))
    assert pending.due() == (update(NEW),)


def test_other_memory_alone_is_a_difference() -> None:
    pending = Pending()
    pending.see(ONE, seen(OLD), OLD)
    pending.want(update(OTHER_MEMORY))
    assert pending.due() == (update(OTHER_MEMORY),)


def test_nothing_is_due_to_the_container_that_the_request_is_about_or_to_one_that_is_gone() -> None:
    pending = Pending()
    pending.want(update(NEW))
    assert pending.due(besides=ONE) == ()
    pending.forget(ONE)
    assert not pending.is_open


def test_a_creation_answers_what_was_due_to_the_same_container() -> None:
    pending = Pending()
    pending.want(update(OLD))
    pending.create(ONE, NEW)
    assert pending.due() == ()
