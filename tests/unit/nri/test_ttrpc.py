"""Unary ttrpc calls, from either end (interfaces.md 1.3)."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from struct import pack

import pytest

from nodecpu.errors import LocalProtocolError, PeerProtocolError
from nodecpu.nri import ttrpc
from nodecpu.nri.ttrpc import (
    MAX_DATA,
    TRANSITIONS,
    CallState,
    CallStep,
    Code,
    Event,
    Ignored,
    Refused,
    Request,
    Response,
    Ttrpc,
)
from nodecpu.proto import ttrpc_pb2


def _events(codec: Ttrpc, data: bytes) -> list[Event]:
    codec.receive(data)
    found = []
    while (event := codec.next_event()) is not None:
        found.append(event)
    return found


def _request(stream_id: int, payload: bytes = b"") -> bytes:
    data = ttrpc_pb2.Request(service="s", method="m", payload=payload).SerializeToString()
    return pack(">IIBB", len(data), stream_id, 1, 0) + data


def _answer_to(refused: Event) -> ttrpc_pb2.Response:
    assert isinstance(refused, Refused)
    size, stream_id, kind, flags = (
        int.from_bytes(refused.answer[a:b], "big") for a, b in ((0, 4), (4, 8), (8, 9), (9, 10))
    )
    assert (size, stream_id, kind, flags) == (len(refused.answer) - 10, refused.stream_id, 2, 0)
    return ttrpc_pb2.Response.FromString(refused.answer[10:])


# The table. ``prepared`` brings call 1 into a state, seen from the side that is tested.


def _our_call(state: CallState) -> Ttrpc:
    codec = Ttrpc()
    if state is not CallState.IDLE:
        codec.send_request("s", "m", b"")
    if state is CallState.DONE:
        codec.give_up(1)
    return codec


def _their_call(state: CallState) -> Ttrpc:
    codec = Ttrpc()
    if state is not CallState.IDLE:
        _events(codec, _request(1))
    if state is CallState.DONE:
        codec.send_response(1, b"")
    return codec


def test_table_names_every_state_and_step() -> None:
    assert {state for state, _ in TRANSITIONS} | set(TRANSITIONS.values()) == set(CallState)
    assert {step for _, step in TRANSITIONS} == set(CallStep)


@pytest.mark.parametrize(("state", "step"), tuple(product(CallState, CallStep)), ids=str)
def test_our_call_follows_the_table(state: CallState, step: CallStep) -> None:
    codec = _our_call(state)
    after = TRANSITIONS.get((state, step))
    if step is CallStep.REQUEST:  # always a call of its own: ids are never reused
        assert codec.send_request("s", "m", b"")[0] == (1 if state is CallState.IDLE else 3)
        return
    if step is CallStep.GIVE_UP:
        if after is None:
            with pytest.raises(LocalProtocolError, match=f"call 1 is {state.value}"):
                codec.give_up(1)
        else:
            codec.give_up(1)
    else:
        [event] = _events(codec, bytes.fromhex("00000000000000010200"))
        assert isinstance(event, Response if after else Ignored)
    assert codec.our_call(1) is (after or state)


@pytest.mark.parametrize(("state", "step"), tuple(product(CallState, (CallStep.REQUEST, CallStep.RESPONSE))), ids=str)
def test_their_call_follows_the_table(state: CallState, step: CallStep) -> None:
    codec = _their_call(state)
    after = TRANSITIONS.get((state, step))
    if step is CallStep.REQUEST:
        [event] = _events(codec, _request(1))
        assert isinstance(event, Request if after else Refused)
    elif after is None:
        with pytest.raises(LocalProtocolError, match=f"request 1 is {state.value}, not open"):
            codec.send_response(1, b"")
        with pytest.raises(LocalProtocolError, match=f"request 1 is {state.value}, not open"):
            codec.send_error(1, Code.UNKNOWN, "x")
    else:
        codec.send_response(1, b"")
    assert codec.their_call(1) is (after or state)


def test_stream_ids_are_odd_and_rise() -> None:
    codec = Ttrpc()
    assert [codec.send_request("s", "m", b"")[0] for _ in range(4)] == [1, 3, 5, 7]


def test_call_goes_there_and_back() -> None:
    client, server = Ttrpc(), Ttrpc()
    stream_id, message = client.send_request("nri.Plugin", "CreateContainer", b"in", timeout_ns=1_999_000_000)
    assert _events(server, message) == [Request(1, "nri.Plugin", "CreateContainer", b"in", 1_999_000_000)]
    assert _events(client, server.send_response(stream_id, b"out")) == [Response(1, b"out", None)]


def test_error_status_goes_back() -> None:
    client, server = Ttrpc(), Ttrpc()
    _events(server, client.send_request("s", "m", b"")[1])
    [event] = _events(client, server.send_error(1, Code.UNIMPLEMENTED, "no such call"))
    assert isinstance(event, Response)
    assert event.error is not None
    assert (event.error.status, event.error.message) == (12, "no such call")


def test_text_that_protobuf_refuses_is_made_readable() -> None:
    server = Ttrpc()
    _events(server, _request(1))
    assert server.send_error(1, Code.UNKNOWN, "file \udcff").endswith(b"file ?")


def test_answers_in_any_order_find_their_calls() -> None:
    client, server = Ttrpc(), Ttrpc()
    for _ in range(3):
        _events(server, client.send_request("s", "m", b"")[1])
    answers = b"".join(server.send_response(i, bytes([i])) for i in (5, 1, 3))
    assert _events(client, answers) == [Response(i, bytes([i]), None) for i in (5, 1, 3)]


def test_ids_may_skip() -> None:
    """The runtime burns an id when a message is too long to send."""
    assert [event.stream_id for event in _events(Ttrpc(), _request(1) + _request(5) + _request(7))] == [1, 5, 7]


@pytest.mark.parametrize(("first", "second"), [(1, 1), (5, 3), (1, 2), (1, 0)])
def test_id_out_of_order_is_answered_and_the_connection_goes_on(first: int, second: int) -> None:
    codec = Ttrpc()
    _, refused, good = _events(codec, _request(first) + _request(second) + _request(9))
    assert _answer_to(refused).status.code == Code.INVALID_ARGUMENT
    assert isinstance(good, Request)


def test_request_that_does_not_parse_is_answered_and_the_connection_goes_on() -> None:
    codec = Ttrpc()
    refused, good = _events(codec, pack(">IIBB", 3, 1, 1, 0) + b"\xff\xff\xff" + _request(3))
    assert _answer_to(refused).status.code == Code.INVALID_ARGUMENT
    assert isinstance(good, Request)
    assert codec.their_call(1) is CallState.DONE


def test_response_that_does_not_parse_kills_the_connection() -> None:
    codec = _our_call(CallState.OPEN)
    with pytest.raises(PeerProtocolError, match="does not parse"):
        _events(codec, pack(">IIBB", 3, 1, 2, 0) + b"\xff\xff\xff")
    _assert_dead(codec)


def test_message_of_an_unknown_type_is_ignored() -> None:
    stray = pack(">IIBB", 5, 1, 3, 4) + b"12345"
    ignored, good = _events(Ttrpc(), stray + _request(1))
    assert ignored == Ignored(1, "message of unknown type 3")
    assert isinstance(good, Request)


def test_late_answer_to_a_call_given_up_is_ignored() -> None:
    codec = _our_call(CallState.DONE)
    [event] = _events(codec, bytes.fromhex("00000000000000010200"))
    assert isinstance(event, Ignored)


def test_too_long_message_kills_the_connection_before_anything_is_stored() -> None:
    codec = Ttrpc()
    with pytest.raises(PeerProtocolError, match="ttrpc message of 4194305 bytes"):
        _events(codec, pack(">IIBB", MAX_DATA + 1, 1, 1, 0) + b"data")
    _assert_dead(codec)


def _assert_dead(codec: Ttrpc) -> None:
    assert codec.failure is not None
    assert codec.buffered == 0
    for again in (codec.next_event, lambda: codec.receive(b"x")):
        with pytest.raises(PeerProtocolError):
            again()
    with pytest.raises(LocalProtocolError, match="nothing can be sent any more"):
        codec.send_request("s", "m", b"")


def test_longest_message_is_taken() -> None:
    client = Ttrpc()
    overhead = len(client.send_request("s", "m", bytes(3 << 20))[1]) - (3 << 20) - 10
    message = client.send_request("s", "m", bytes(MAX_DATA - overhead))[1]
    assert len(message) == MAX_DATA + 10
    [event] = _events(Ttrpc(), message)
    assert isinstance(event, Request)


@pytest.mark.parametrize(
    "send",
    [
        lambda codec: codec.send_request("s", "m", bytes(MAX_DATA)),
        lambda codec: codec.send_response(1, bytes(MAX_DATA)),
        lambda codec: codec.send_error(1, Code.UNKNOWN, "x" * MAX_DATA),
    ],
    ids=["request", "response", "error"],
)
def test_our_too_long_message_is_refused_and_nothing_has_happened(send: Callable[[Ttrpc], object]) -> None:
    codec = _their_call(CallState.OPEN)
    with pytest.raises(LocalProtocolError, match="at most 4194304"):
        send(codec)
    assert codec.their_call(1) is CallState.OPEN
    assert codec.send_request("s", "m", b"")[0] == 1
    codec.send_response(1, b"")


def test_drawing_at_the_head_of_the_module_is_the_table() -> None:
    drawn = re.findall(r"(?=\b([A-Z]+) --([A-Z_]+)--> ([A-Z]+))", ttrpc.__doc__ or "")
    assert sorted(drawn) == sorted((a.name, step.name, b.name) for (a, step), b in TRANSITIONS.items())
