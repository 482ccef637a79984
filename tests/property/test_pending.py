"""What is still to reach containers, against a plain account of what was said of each (R7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.ids import ContainerID
from nodecpu.policy.pending import Pending, Seen, fulfils
from nodecpu.policy.plan import Placement, Update

IDS = [ContainerID(name) for name in ("a", "b", "c")]
SEEN = [
    Seen(cpus=CpuSet.parse(cpus), mems=NodeSet.parse(mems)) for cpus, mems in (("0-3", "0"), ("0-3", "1"), ("2", "0"))
]
PLACES = [
    *(Placement(cpus=one.cpus, mems=one.mems) for one in SEEN),
    Placement(cpus=SEEN[0].cpus, mems=NodeSet()),
    Placement(cpus=SEEN[0].cpus, mems=SEEN[0].mems, shares=2),
]


@dataclass
class Account:
    """One container: what was seen of it, its wish, and how far that has come."""

    seen: Seen | None = None
    wish: Placement | None = None
    is_new: bool = False
    is_carried: bool = False
    untold: Placement | None = None


@dataclass
class Accounts:
    """All containers, in the words of the module."""

    of: dict[ContainerID, Account] = field(default_factory=lambda: {one: Account() for one in IDS})

    def create(self, one: ContainerID, place: Placement) -> None:
        self.of[one].wish, self.of[one].is_new = place, True

    def want(self, one: ContainerID, place: Placement) -> None:
        mine = self.of[one]
        if mine.is_new and mine.wish == place:
            return
        is_other = mine.is_new or mine.wish != place
        mine.is_new = False
        if mine.seen is not None and runs(mine.seen, place):
            mine.wish = None
        elif is_other:
            mine.wish, mine.is_carried = place, False

    def see(self, one: ContainerID, seen: Seen, place: Placement | None) -> bool:
        mine = self.of[one]
        mine.seen, mine.is_new = seen, False
        mine.wish = place if place is not None and not runs(seen, place) else None
        return mine.wish is None

    def replied(self) -> None:
        for mine in self.of.values():
            mine.untold, mine.is_carried = None, mine.wish is not None and not mine.is_new

    def settle(self, one: ContainerID) -> None:
        mine = self.of[one]
        if mine.wish is not None:
            mine.seen, mine.wish, mine.is_new = Seen(cpus=mine.wish.cpus, mems=mine.wish.mems), None, False

    def forget(self, one: ContainerID) -> None:
        self.of[one] = Account(is_carried=self.of[one].is_carried)

    def due(self, besides: ContainerID | None) -> list[Update]:
        found = []
        for one, mine in self.of.items():
            place = mine.wish if mine.wish is not None and not mine.is_new else mine.untold
            if place is not None and one != besides:
                found.append(Update(container_id=one, placement=place))
        return found


def runs(seen: Seen, place: Placement) -> bool:
    """Return whether a container runs where it should: its memory matters where we set it."""
    return seen.cpus == place.cpus and place.mems in (seen.mems, NodeSet())


Step = Callable[[Pending, Accounts], None]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    one, place, seen = draw(st.sampled_from(IDS)), draw(st.sampled_from(PLACES)), draw(st.sampled_from(SEEN))
    known = draw(st.sampled_from([None, *PLACES]))

    def want(pending: Pending, accounts: Accounts) -> None:
        pending.want(Update(container_id=one, placement=place))
        accounts.want(one, place)

    def see(pending: Pending, accounts: Accounts) -> None:
        assert pending.see(one, seen, known) == accounts.see(one, seen, known)

    def create(pending: Pending, accounts: Accounts) -> None:
        pending.create(one, place)
        accounts.create(one, place)

    def repeat(pending: Pending, accounts: Accounts) -> None:
        pending.repeat(one, place)
        accounts.of[one].untold = place

    def replied(pending: Pending, accounts: Accounts) -> None:
        pending.replied()
        accounts.replied()

    def settle(pending: Pending, accounts: Accounts) -> None:
        pending.settle(one)
        accounts.settle(one)

    def forget(pending: Pending, accounts: Accounts) -> None:
        pending.forget(one)
        accounts.forget(one)

    chosen: Step = draw(st.sampled_from([want, want, see, see, create, replied, repeat, settle, forget]))
    return chosen


@given(st.lists(steps(), max_size=12))
def test_wishes_are_those_of_an_account_of_every_container(story: list[Step]) -> None:
    """R7: sent is not applied, told is told once, what is being created is not due."""
    pending, accounts = Pending(), Accounts()
    for step in story:
        step(pending, accounts)
        wishes = {one: mine.wish for one, mine in accounts.of.items() if mine.wish is not None}
        assert dict(pending.open) == wishes
        assert {one: wish for one in accounts.of if (wish := pending.wish(one)) is not None} == wishes
        assert pending.is_open == bool(wishes)
        told = {
            one for one, mine in accounts.of.items() if mine.wish is not None and not mine.is_new and mine.is_carried
        }
        assert list(pending.carried) == sorted(told)
        for besides in (None, *IDS):
            assert list(pending.due(besides=besides)) == accounts.due(besides)
        for one, mine in accounts.of.items():
            assert pending.seen(one) == mine.seen


@given(st.sampled_from([None, *SEEN]), st.sampled_from(PLACES))
def test_wish_is_fulfilled_by_what_was_seen_and_by_nothing_else(seen: Seen | None, place: Placement) -> None:
    """R7: what nobody has seen is not so."""
    assert fulfils(seen, place) == (seen is not None and runs(seen, place))
