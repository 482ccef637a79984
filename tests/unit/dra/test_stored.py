"""What is known to be stored, whatever overtakes what: lists, the watch, and answers to our own writes (D4)."""

from __future__ import annotations

import pytest

from nodecpu.dra.slices import Slice
from nodecpu.dra.stored import StoredSlices


def at(version: int | str, name: str = "a", *, uid: str = "") -> Slice:
    return Slice(name=name, uid=uid or f"uid-{name}", resource_version=str(version), pool="n", generation=1, spec={})


def known(stored: StoredSlices) -> dict[str, str]:
    return {one.name: one.resource_version for one in stored.slices}


def listed(*slices: Slice, version: int = 10) -> StoredSlices:
    stored = StoredSlices()
    stored.listing()
    stored.listed(slices, str(version))
    return stored


def test_nothing_is_known_before_the_first_list() -> None:
    stored = StoredSlices()
    assert not stored.is_known
    assert not stored.changed(at(5))
    assert not stored.deleted(at(5))
    assert stored.slices == ()
    assert listed(at(5)).is_known


def test_event_that_is_behind_an_answer_is_no_news() -> None:
    stored = listed(at(5))
    assert stored.written(at(12))
    assert not stored.changed(at(11))
    assert not stored.deleted(at(11))
    assert known(stored) == {"a": "12"}
    assert stored.changed(at(13))
    assert known(stored) == {"a": "13"}


def test_answer_that_is_behind_the_watch_changes_nothing() -> None:
    """Somebody changed the slice after us, and the watch told it first."""
    stored = listed(at(5))
    assert stored.changed(at(13))
    assert stored.written(at(12))
    assert known(stored) == {"a": "13"}


def test_slice_that_is_gone_does_not_come_back() -> None:
    """By a late answer, a late event or a late list; another one of its name does."""
    stored = listed(at(5))
    assert stored.deleted(at(11))
    assert not stored.written(at(10))
    assert not stored.changed(at(9))
    stored.listing()
    stored.listed([at(9)], "10")
    assert known(stored) == {}
    assert stored.changed(at(12, uid="other"))
    assert known(stored) == {"a": "12"}


def test_another_slice_of_the_name_counts_whatever_its_version_and_outlives_the_end_of_the_first() -> None:
    """A server that was set back may have given the name again; the end of the one before is told late."""
    stored = listed(at(5))
    assert stored.changed(at(3, uid="other"))
    assert stored.deleted(at(4))
    assert known(stored) == {"a": "3"}


@pytest.mark.parametrize("was", [(), (at(5),)], ids=["created", "replaced"])
def test_list_that_is_older_than_an_answer_does_not_undo_it(was: tuple[Slice, ...]) -> None:
    """The write was answered while the list was under way."""
    stored = listed(*was)
    stored.listing()
    stored.written(at(12))
    stored.listed(was, "11")
    assert known(stored) == {"a": "12"}


@pytest.mark.parametrize("now", [(), (at(13),)], ids=["deleted since", "changed since"])
def test_list_that_is_newer_than_an_answer_counts(now: tuple[Slice, ...]) -> None:
    stored = listed(at(5))
    stored.listing()
    stored.written(at(12))
    stored.listed(now, "14")
    assert known(stored) == {one.name: one.resource_version for one in now}


@pytest.mark.parametrize("version", ["3", "none"])
def test_list_of_a_server_that_was_set_back_counts(version: str) -> None:
    """A backup was restored: its versions are lower than those that were told before, or are no numbers."""
    stored = listed()
    stored.written(at(12))
    stored.written(at(13, "b"))
    stored.listing()
    stored.listed([at(2, "b")], version)
    assert known(stored) == {"b": "2"}


def test_what_is_remembered_is_bounded() -> None:
    stored = listed()
    for number in range(2000):
        assert stored.deleted(at(number, uid=f"uid-{number}"))
    assert len(stored._gone) <= 256
