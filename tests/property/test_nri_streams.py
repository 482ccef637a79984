"""Codecs of the NRI side: right for any split, any garbage, any length field."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from nodecpu.errors import PeerProtocolError
from nodecpu.nri.bytequeue import ByteQueue
from nodecpu.nri.mux import MAX_PAYLOAD, PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.ttrpc import HEADER_SIZE, MAX_DATA, Event, Ttrpc

Seen = list[tuple[int, Event] | str]

_payloads: Final = st.one_of(st.binary(max_size=40), st.integers(4000, 9000).map(bytes))
_garbage: Final = st.binary(max_size=300)
_cuts: Final = st.lists(st.integers(0, 20_000), max_size=12)


@st.composite
def _streams(draw: st.DrawFn, payloads: st.SearchStrategy[bytes] = _payloads) -> bytes:
    """A stream as a peer would send it: calls and answers on both ids, now and then something else."""
    mux, out = Mux(range(10)), b""
    codecs = {conn: Ttrpc() for conn in range(10)}
    for conn, payload in draw(st.lists(st.tuples(st.sampled_from((0, 1, 1, 1, 2, 2, 9)), payloads), max_size=6)):
        call = codecs[conn].send_request("s", "m", payload)[1]
        answer = call[:8] + bytes([draw(st.sampled_from((1, 1, 2, 3)))]) + call[9:]
        out += mux.send(conn, answer)
    return out


def _pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    return [stream[a:b] for a, b in pairwise(edges)]


def _seen(pieces: list[bytes]) -> Seen:
    """Return what a receiver makes of the pieces, and check what it stores meanwhile."""
    mux, codecs, seen = Mux(), {PLUGIN_CONN: Ttrpc(), RUNTIME_CONN: Ttrpc()}, Seen()
    try:
        for piece in pieces:
            mux.receive(piece)
            while (frame := mux.next_event()) is not None:
                codec = codecs[frame.conn]
                codec.receive(frame.payload)
                while (event := codec.next_event()) is not None:
                    seen.append((frame.conn, event))
                assert codec.buffered < HEADER_SIZE + MAX_DATA
            assert mux.buffered < 8 + MAX_PAYLOAD
    except PeerProtocolError as error:
        seen.append(str(error))
    return seen


@given(_streams(), _cuts)
def test_any_split_of_a_valid_stream_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    whole = _seen([stream])
    assert _seen(_pieces(stream, cuts)) == whole
    assert not any(isinstance(one, str) for one in whole)


@given(_streams(), _garbage, st.integers(0, 20_000), _cuts)
def test_any_split_of_a_broken_stream_gives_the_same_events(
    stream: bytes, garbage: bytes, at: int, cuts: list[int]
) -> None:
    broken = stream[:at] + garbage + stream[at:]
    assert _seen(_pieces(broken, cuts)) == _seen([broken])


@given(_streams(st.binary(max_size=40)))
def test_byte_by_byte_gives_the_same_events(stream: bytes) -> None:
    assert _seen([stream[i : i + 1] for i in range(len(stream))]) == _seen([stream])


@given(st.lists(_garbage, max_size=8))
def test_any_bytes_give_events_or_a_peer_error_for_good(pieces: list[bytes]) -> None:
    _seen(pieces)


@given(st.lists(st.one_of(st.binary(max_size=50), st.integers(0, 60)), max_size=40))
def test_queue_of_bytes_is_a_stream(steps: list[bytes | int]) -> None:
    queue, model, taken = ByteQueue(), b"", list[tuple[memoryview | bytes, bytes]]()
    for number, step in enumerate(steps):
        if isinstance(step, bytes):
            queue.append(step)
            model += step
            continue
        count = min(step, len(model))
        match number % 3:
            case 0:
                taken.append((queue.take(count), model[:count]))
            case 1:
                taken.append((queue.take_bytes(count), model[:count]))
            case _:
                assert queue.drop(step) == count
        model = model[count:]
        assert len(queue) == len(model)
    assert all(bytes(got) == wanted for got, wanted in taken)
