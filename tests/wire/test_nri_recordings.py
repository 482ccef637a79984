"""Every recorded NRI byte is understood, and ours look the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import Message

from nodecpu.nri import convert
from nodecpu.nri.mux import PLUGIN_CONN, Mux
from nodecpu.nri.ttrpc import Request, Ttrpc
from nodecpu.policy.facts import Sandbox
from nodecpu.proto import nri_pb2, nri_read_pb2, ttrpc_pb2
from tests.nri_wire import RECORDINGS, TO_PLUGIN, TO_RUNTIME, Exchange, frames, listen, recording

pytestmark = pytest.mark.parametrize("name", RECORDINGS)

_NAMES = {"StateChange": ("StateChangeEvent", "Empty"), "RegisterPlugin": ("RegisterPluginRequest", "Empty")}


def _types(method: str) -> tuple[type[Message], type[Message]]:
    request, reply = _NAMES.get(method, (f"{method}Request", f"{method}Response"))
    return getattr(nri_pb2, request), getattr(nri_pb2, reply)


def _unknown_bytes(message: Any) -> int:
    """Return how much a message shrinks, in whatever depth, when unknown fields are dropped."""
    before = message.ByteSize()
    message.DiscardUnknownFields()
    return int(before - message.ByteSize())


def _exchanges(name: str) -> list[Exchange]:
    return [exchange for one in recording(name) for exchange in listen(one).exchanges]


def test_recording_is_decoded_whole(name: str) -> None:
    for one in recording(name):
        listener = listen(one)
        assert listener.left_over() == 0
        assert listener.odd == []


def test_each_recorded_request_has_one_answer(name: str) -> None:
    # Only where the plugin stalls or the runtime ends is a call left open: the last of its connection.
    for one in recording(name):
        exchanges = listen(one).exchanges
        unanswered = [e for e in exchanges if e.response is None]
        assert unanswered in ([], exchanges[-1:]), [e.request.method for e in unanswered]


def test_recorded_messages_hold_no_unknown_field(name: str) -> None:
    for exchange in _exchanges(name):
        request, reply = _types(exchange.request.method)
        assert _unknown_bytes(request.FromString(exchange.request.payload)) == 0, exchange.request.method
        if exchange.response is not None:
            assert _unknown_bytes(reply.FromString(exchange.response.payload)) == 0, exchange.request.method


def _messages(stream: bytes) -> list[tuple[int, bytes]]:
    """Return (connection id, message) in order of their ends, by reading the bytes plainly, without our codecs."""
    begun: dict[int, bytes] = {}
    done = []
    for conn, payload in frames(stream):
        whole = begun.pop(conn, b"") + payload
        if len(whole) < 10 + int.from_bytes(whole[:4], "big"):
            begun[conn] = whole
        else:
            done.append((conn, whole))
    assert begun == {}
    return done


def test_our_frames_of_recorded_messages_have_the_recorded_shape(name: str) -> None:
    """Traps 1 and 2: one frame up to 4,096 bytes, else one of 4,096 and one with the rest."""
    for one in recording(name):
        for way in (TO_PLUGIN, TO_RUNTIME):
            stream = one.stream(way)
            ours = [frame for conn, message in _messages(stream) for frame in frames(Mux().send(conn, message))]
            assert sorted(ours) == sorted(frames(stream))  # frames of the two ids may be interleaved


def test_our_answers_are_the_recorded_bytes(name: str) -> None:
    for one in recording(name):
        for way in (TO_PLUGIN, TO_RUNTIME):
            for _, message in _messages(one.stream(way)):
                if message[8] == 2:
                    assert _answered_by_us(message) == message


def _answered_by_us(message: bytes) -> bytes:
    stream_id = int.from_bytes(message[4:8], "big")
    server = Ttrpc()
    server.receive(bytes(4) + message[4:8] + bytes([1, 0]))
    assert isinstance(server.next_event(), Request)
    recorded = ttrpc_pb2.Response.FromString(message[10:])
    if recorded.HasField("status"):
        return server.send_error(stream_id, recorded.status.code, recorded.status.message)
    return server.send_response(stream_id, recorded.payload)


def test_what_we_keep_of_a_sandbox_never_changes(name: str) -> None:
    """The plugin translates a sandbox once; a later message must not tell anything else.

    containerd 2.1.9 adds annotations of its own to RunPodSandbox only; those that the pod came with are always there.
    """
    seen: dict[str, Sandbox] = {}
    for exchange in _exchanges(name):
        if exchange.conn != PLUGIN_CONN or exchange.request.method in ("Configure", "Shutdown"):
            continue
        for pod in _pods(exchange.request):
            sandbox = convert.sandbox(pod)
            chosen = {k: v for k, v in sandbox.annotations.items() if not k.startswith("io.kubernetes.cri.")}
            sandbox = replace(sandbox, annotations=chosen)
            if sandbox.uid:
                assert seen.setdefault(sandbox.id, sandbox) == sandbox


def _pods(request: Request) -> list[nri_read_pb2.Pod]:
    if request.method == "Synchronize":
        return list(nri_read_pb2.Listing.FromString(request.payload).pods)
    if request.method == "StateChange":
        return [nri_read_pb2.Change.FromString(request.payload).pod]
    if request.method == "UpdatePodSandbox":
        return []
    return [nri_read_pb2.Request.FromString(request.payload).pod]
