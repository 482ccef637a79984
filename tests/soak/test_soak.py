"""A short soak; ``make soak`` plays a million events. What it found stays here as a stream of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.soak.events import Event, stream
from tests.soak.run import fails, shorten, soak

FOUND = {
    "claim released and allocated anew while a container holds it": [
        Event("prepare", 808, 18605, 62309),
        Event("create_holder", 59557, 53376, 46532),
        Event("unprepare", 55793, 61452, 60752),
        Event("prepare", 33421, 25923, 3218),
    ],
    "all reserved CPUs claimed before they were reserved": [
        Event("prepare", 26396, 14236, 27359),
        Event("create", 12753, 19942, 52553),
        Event("other_reserved", 52115, 34762, 28765),
        Event("synchronize", 64554, 56845, 18496),
        Event("audit", 21387, 23626, 2900),
    ],
    "spec not written, its row not taken back, and others have its CPUs when the daemon is killed": [
        Event("disk_fails", 1, 1, 0),
        Event("prepare", 1, 1, 1),
        *(Event("create", number, 4, 0) for number in range(7)),
        Event("kill", 0, 0, 0),
    ],
    "refused, its row left behind, unprepared, and allocated anew while the API server is away": [
        Event("disk_fails", 60667, 13429, 57682),
        Event("prepare", 28043, 23061, 42460),
        Event("api_away", 58934, 5858, 30956),
        Event("unprepare", 1597, 34360, 29855),
        Event("reboot", 35001, 5801, 36784),
        Event("prepare", 9325, 14456, 14103),
    ],
    "restarted after a pod of another namespace has named the UID of its own": [
        Event("prepare", 60955, 36015, 11020),
        Event("prepare", 55029, 37496, 15314),
        Event("create_holder", 31625, 35106, 46653),
        Event("create", 49145, 62005, 63511),
        Event("create_holder", 55575, 8925, 51604),
        Event("prepare", 42628, 61532, 54776),
        Event("restart_container", 8857, 50291, 53551),
    ],
}


def test_everything_that_can_happen_to_a_node_in_any_order_breaks_nothing() -> None:
    """R1, R2, R3, R7, T7, C5, C6, C11, C12, L4, G9, G11, U34, U35, U37, U39, U48, U51, U78."""
    report = soak(10_000, seed=1)
    assert report.events.total() == 10_000
    assert report.files[-1] == report.files[0]


@pytest.mark.parametrize("events", FOUND.values(), ids=FOUND)
def test_what_was_found_once_stays_mended(events: list[Event]) -> None:
    """C6, R1, R3."""
    assert fails(events) is None


def test_equal_seeds_give_equal_streams() -> None:
    assert stream(3, 5, 100) == stream(3, 5, 100) != stream(3, 6, 100)


@dataclass
class Player:
    """A life that fails alike whenever two events of one kind were played, and otherwise in another way."""

    played: int = 0
    streams: list[int] = field(default_factory=list)

    def fails(self, events: list[Event]) -> tuple[int, str] | None:
        self.streams.append(len(events))
        at = [number for number, event in enumerate(events) if event.kind == "drift"]
        return (at[1], "Broken: container c1 moved") if len(at) > 1 else None


def test_failing_stream_is_made_as_short_as_it_can_be() -> None:
    events = [event for event in stream(1, 0, 400) if event.kind != "drift"]
    events[50:50] = [Event("drift", 1, 1, 1)]
    events[200:200] = [Event("drift", 2, 2, 2)]
    player = Player()
    assert [event.a for event in shorten(events, "Broken: container c77 moved", fails=player.fails)] == [1, 2]
