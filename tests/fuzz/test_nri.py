"""A part of the long fuzz loop of ``tests.fuzz.nri``, with recordings as starting points too; memory under a flood."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import repeat
from struct import pack

import pytest

from nodecpu.errors import PeerProtocolError
from nodecpu.nri.mux import MAX_PAYLOAD, PLUGIN_CONN, Mux
from nodecpu.nri.ttrpc import MAX_DATA, Ttrpc
from tests.fuzz import nri
from tests.nri_wire import TO_PLUGIN, recording

CHUNK = bytes(1024)
FLOOD = 5 * MAX_PAYLOAD // len(CHUNK)
"""Reads of a flood: more than may ever be stored."""


def test_mutated_frames_give_events_or_typed_errors() -> None:
    outcomes = nri.run(40_000, 1, [])
    for expected in ("reply", "Request", "Response", "Refused", "Ignored", "PeerProtocolError", "CallError"):
        assert outcomes[expected] > 50, outcomes


def test_mutated_recordings_give_events_or_typed_errors() -> None:
    streams = [one.stream(TO_PLUGIN) for one in recording("nri-crio-1.37dev-pin.json")]
    outcomes = nri.run(500, 2, [stream[:60_000] for stream in streams])
    assert outcomes["reply"] > 500, outcomes


def _take(mux: Mux, codec: Ttrpc, read: bytes) -> None:
    mux.receive(read)
    while (frame := mux.next_event()) is not None:
        codec.receive(frame.payload)
        while codec.next_event() is not None:
            pass


def _peak(work: Callable[[], None]) -> int:
    """Return how many bytes were allocated at once while ``work`` ran."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("announced", [MAX_DATA, MAX_PAYLOAD, MAX_PAYLOAD + 1, (1 << 32) - 1])
def test_announced_lengths_take_no_memory_before_their_bytes_come(announced: int) -> None:
    """A hundred trunks that announce megabytes and send fifty bytes."""
    starts = (pack(">II", PLUGIN_CONN, announced), pack(">IIII", PLUGIN_CONN, 60, announced, 1))
    trunks = [(Mux(), Ttrpc()) for _ in range(100)]

    def work() -> None:
        for number, (mux, codec) in enumerate(trunks):
            with contextlib.suppress(PeerProtocolError):
                _take(mux, codec, starts[number % 2] + bytes(50))

    assert _peak(work) < 4096 * len(trunks)


LONGEST = pack(">IIBB", MAX_DATA, 1, 9, 0) + bytes(MAX_DATA)
"""A message as long as may be, of an unknown type."""


def _parts(data: bytes) -> Iterator[bytes]:
    return (data[at : at + len(CHUNK)] for at in range(0, len(data), len(CHUNK)))


FLOODS = {
    "a frame as long as may be, again and again": [*_parts((pack(">II", PLUGIN_CONN, MAX_PAYLOAD) + LONGEST) * 4)],
    "a message as long as may be, in frames, again and again": [
        pack(">II", PLUGIN_CONN, len(part)) + part for part in _parts(LONGEST * 4)
    ],
    "a frame too long": [pack(">II", PLUGIN_CONN, MAX_PAYLOAD + 1), *repeat(CHUNK, FLOOD)],
    "a frame far too long": [pack(">II", PLUGIN_CONN, (1 << 32) - 1), *repeat(CHUNK, FLOOD)],
    "a message too long, in frames": [
        pack(">II", PLUGIN_CONN, 10) + pack(">IIBB", MAX_DATA + 1, 1, 1, 0),
        *repeat(pack(">II", PLUGIN_CONN, len(CHUNK)) + CHUNK, FLOOD),
    ],
    "for nobody": [pack(">II", 77, MAX_PAYLOAD), *repeat(CHUNK, 4096)],
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_fragments_is_kept_up_to_the_limit_only(flood: list[bytes]) -> None:
    """What is kept is one frame and one message at the most, and while they grow or are handed out a copy of each."""
    mux, codec = Mux(), Ttrpc()

    def work() -> None:
        with contextlib.suppress(PeerProtocolError):
            for read in flood:
                _take(mux, codec, read)
                assert mux.buffered < 8 + MAX_PAYLOAD
                assert codec.buffered < 10 + MAX_DATA

    assert _peak(work) < 3.5 * MAX_PAYLOAD
