"""When to stop writing a cpuset that somebody else keeps changing (E1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import NO_NODES, CpuSet
from nodecpu.ids import ContainerID
from nodecpu.policy.fights import MOST, PAUSE_S, WINDOW_S, Fights
from nodecpu.policy.plan import Placement

ONE, TWO = ContainerID("c1"), ContainerID("c2")
WANTED = Placement(cpus=CpuSet.parse("4-5"), mems=NO_NODES)
OTHER = Placement(cpus=CpuSet.parse("6-7"), mems=NO_NODES)


def fought(rounds: int, *, apart_s: float = 1.0) -> tuple[Fights, float]:
    """Return the fights after so many rounds of one container, and the time of the last."""
    fights, now = Fights(), 0.0
    for _ in range(rounds):
        now += apart_s
        assert fights.may_write(ONE, WANTED, now)
        fights.wrote(ONE, WANTED, now)
    return fights, now


def test_so_many_rounds_within_the_window_are_the_last() -> None:
    """E1."""
    fights, now = fought(MOST - 1)
    assert list(fights.given_up) == []
    assert fights.wrote(ONE, WANTED, now)
    assert list(fights.given_up) == [ONE]
    assert not fights.may_write(ONE, WANTED, now + PAUSE_S - 1)
    assert fights.may_write(TWO, WANTED, now)


def test_the_tenth_round_within_ten_minutes_is_the_last() -> None:
    """E1: a round of just ten minutes ago does not count any more."""
    fights = Fights()
    assert [fights.wrote(ONE, WANTED, 1000.0 + number) for number in range(10)] == [False] * 9 + [True]
    fights = Fights()
    assert [fights.wrote(ONE, WANTED, 1000.0) for _ in range(9)] == [False] * 9
    assert not fights.wrote(ONE, WANTED, 1600.0)


def test_rounds_far_apart_are_no_fight() -> None:
    assert fought(5 * MOST, apart_s=WINDOW_S / 5)[0].given_up == ()


def test_after_a_pause_it_is_tried_again_from_the_start() -> None:
    fights, now = fought(MOST)
    later = now + PAUSE_S
    assert fights.may_write(ONE, WANTED, later)
    assert not fights.wrote(ONE, WANTED, later)
    assert list(fights.given_up) == []


def test_another_wish_of_the_books_is_another_fight() -> None:
    fights, now = fought(MOST)
    assert fights.may_write(ONE, OTHER, now)
    assert not fights.wrote(ONE, OTHER, now)


def test_container_that_is_right_after_all_is_told_once() -> None:
    fights, _ = fought(MOST)
    assert fights.settle(ONE)
    assert not fights.settle(ONE)
    assert not fought(MOST - 1)[0].settle(ONE)


def test_container_whose_last_round_holds_is_not_shown_as_given_up_and_not_written_to_again() -> None:
    """E1: the pause is for who writes in turn, however slowly; the status is for what is wrong now."""
    fights, now = fought(MOST)
    fights.found(ONE, is_right=True)
    assert list(fights.given_up) == []
    assert not fights.may_write(ONE, WANTED, now + PAUSE_S - 1)
    fights.found(ONE, is_right=False)
    assert list(fights.given_up) == [ONE]
    fights.found(TWO, is_right=False)
    assert list(fights.given_up) == [ONE]


def test_container_that_was_right_between_two_rounds_is_shown_as_given_up_after_the_last() -> None:
    """E1: how it was found counts from then on."""
    fights, now = fought(MOST - 1)
    fights.found(ONE, is_right=True)
    assert fights.wrote(ONE, WANTED, now)
    assert list(fights.given_up) == [ONE]


def test_containers_that_are_gone_and_pauses_that_are_over_are_forgotten() -> None:
    fights, now = fought(MOST)
    fights.keep(frozenset({ONE}), now + 1)
    assert list(fights.given_up) == [ONE]
    fights.keep(frozenset({ONE}), now + PAUSE_S)
    assert list(fights.given_up) == []
    fights, now = fought(MOST)
    fights.keep(frozenset({TWO}), now)
    assert list(fights.given_up) == []


def test_pause_goes_on_for_who_was_right_in_between() -> None:
    """E1: replies carry the wish all the same, and the other one comes again after each of them."""
    fights, now = fought(MOST)
    assert fights.settle(ONE)
    assert list(fights.given_up) == []
    fights.found(ONE, is_right=False)
    assert list(fights.given_up) == [ONE]
    assert not fights.may_write(ONE, WANTED, now + PAUSE_S - 1)
    assert fights.settle(ONE)
    assert fights.may_write(ONE, WANTED, now + PAUSE_S)


@given(rounds=st.lists(st.tuples(st.floats(0, 2 * PAUSE_S), st.booleans()), max_size=60))
def test_never_more_rounds_within_a_window_than_there_may_be(rounds: list[tuple[float, bool]]) -> None:
    """E1: whatever the rhythm of the other one, and of replies that carry the wish."""
    fights, now, written = Fights(), 0.0, []
    for gap, is_settled in rounds:
        now += gap
        if is_settled:
            fights.settle(ONE)
        if fights.may_write(ONE, WANTED, now):
            fights.wrote(ONE, WANTED, now)
            written.append(now)
    for start in written:
        assert sum(start <= at < start + WINDOW_S for at in written) <= MOST
