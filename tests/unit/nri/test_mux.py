"""Frames of the trunk: cut and joined as NRI's peers need them (interfaces.md 1.2)."""

from __future__ import annotations

from struct import pack

import pytest

from nodecpu.errors import LocalProtocolError, PeerProtocolError
from nodecpu.nri.mux import MAX_PAYLOAD, MAX_SINGLE_FRAME, Mux
from tests.nri_wire import frames


def _frame(conn: int, payload: bytes) -> bytes:
    return pack(">II", conn, len(payload)) + payload


def _events(mux: Mux, *reads: bytes) -> list[tuple[int, bytes]]:
    found = []
    for data in reads:
        mux.receive(data)
        while (frame := mux.next_event()) is not None:
            found.append((frame.conn, bytes(frame.payload)))
    return found


@pytest.mark.parametrize("size", [1, 4095, MAX_SINGLE_FRAME])
def test_message_up_to_4096_bytes_is_one_frame(size: int) -> None:
    message = bytes(size)
    assert Mux().send(1, message) == _frame(1, message)


@pytest.mark.parametrize("size", [MAX_SINGLE_FRAME + 1, 10_000, 1_000_000, MAX_PAYLOAD])
def test_longer_message_is_4096_bytes_and_one_frame_with_the_rest(size: int) -> None:
    """Trap 1: more in the first frame breaks the receiver; trap 2: more frames can fill its queue."""
    message = bytes(i % 251 for i in range(MAX_SINGLE_FRAME)) + bytes(size - MAX_SINGLE_FRAME)
    assert list(frames(Mux().send(2, message))) == [(2, message[:4096]), (2, message[4096:])]


def test_header_that_comes_alone_is_waited_for() -> None:
    """The Go writer sends header and payload with two writes."""
    frame = _frame(2, b"abc")
    assert _events(Mux(), frame[:8]) == []
    assert _events(Mux(), frame[:8], frame[8:]) == [(2, b"abc")]


def test_frames_for_ids_that_nobody_opened_are_dropped_unstored() -> None:
    mux = Mux()
    assert _events(mux, _frame(0, b"x") + _frame(9, bytes(MAX_PAYLOAD))[:5000]) == []
    assert mux.buffered == 0
    assert _events(mux, bytes(MAX_PAYLOAD + 8 - 5000) + _frame(1, b"on")) == [(1, b"on")]


def test_empty_frame_is_nothing() -> None:
    assert _events(Mux(), _frame(1, b"") + _frame(2, b"") + _frame(1, b"x")) == [(1, b"x")]


def test_longest_frame_is_taken_byte_for_byte() -> None:
    payload = bytes(range(256)) * (MAX_PAYLOAD // 256) + bytes(MAX_PAYLOAD % 256)
    data = _frame(1, payload)
    assert _events(Mux(), *(data[at : at + 65536] for at in range(0, len(data), 65536))) == [(1, payload)]


@pytest.mark.parametrize("conn", [0, 1, 2, 77])
def test_too_long_frame_kills_the_trunk_before_anything_is_stored(conn: int) -> None:
    mux = Mux()
    mux.receive(pack(">II", conn, MAX_PAYLOAD + 1) + b"payload")
    with pytest.raises(PeerProtocolError, match="mux frame of 4194315 bytes"):
        mux.next_event()
    assert mux.buffered == 0
    assert mux.failure is not None
    for again in (mux.next_event, lambda: mux.receive(b"x")):
        with pytest.raises(PeerProtocolError, match="mux frame of 4194315 bytes"):
            again()
    with pytest.raises(LocalProtocolError, match="nothing can be sent any more"):
        mux.send(1, b"x")


@pytest.mark.parametrize(
    ("conn", "message"), [(0, b"x"), (3, b"x"), (1, b""), (1, bytes(MAX_PAYLOAD + 1))], ids=["0", "3", "empty", "long"]
)
def test_what_no_peer_would_take_is_refused_locally(conn: int, message: bytes) -> None:
    mux = Mux()
    with pytest.raises(LocalProtocolError):
        mux.send(conn, message)
    assert mux.send(1, b"ok") == _frame(1, b"ok")


def test_payload_stays_as_it_was_when_more_comes() -> None:
    mux = Mux()
    data = _frame(1, b"first") + _frame(1, b"second") + _frame(2, b"third")
    mux.receive(data[:15])
    one = mux.next_event()
    mux.receive(data[15:20])
    assert mux.next_event() is None
    mux.receive(data[20:25])
    mux.receive(data[25:])
    two, three = mux.next_event(), mux.next_event()
    assert [bytes(f.payload) for f in (one, two, three) if f is not None] == [b"first", b"second", b"third"]
