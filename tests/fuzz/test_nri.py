"""A part of the long fuzz loop of ``tests.fuzz.nri``, and the recordings as its starting points."""

from __future__ import annotations

from tests.fuzz import nri
from tests.nri_wire import TO_PLUGIN, recording


def test_mutated_frames_give_events_or_typed_errors() -> None:
    outcomes = nri.run(40_000, 1, [])
    for expected in ("reply", "Request", "Response", "Refused", "Ignored", "PeerProtocolError", "CallError"):
        assert outcomes[expected] > 50, outcomes


def test_mutated_recordings_give_events_or_typed_errors() -> None:
    streams = [one.stream(TO_PLUGIN) for one in recording("nri-crio-1.37dev-pin.json")]
    outcomes = nri.run(500, 2, [stream[:60_000] for stream in streams])
    assert outcomes["reply"] > 500, outcomes
