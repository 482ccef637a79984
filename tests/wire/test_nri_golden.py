"""Captured NRI frames, byte for byte: plugin "pytest", index "10", against containerd 1.7.26 (interfaces.md 1.3)."""

from __future__ import annotations

from typing import Final

from nodecpu.nri.mux import PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.ttrpc import Request, Response, Ttrpc
from nodecpu.proto import nri_pb2

RUNTIME: Final = "nri.pkg.api.v1alpha1.Runtime"
PLUGIN: Final = "nri.pkg.api.v1alpha1.Plugin"

REGISTER: Final = bytes.fromhex(
    "0000000200000046"
    "0000003c000000010100"
    "0a1c6e72692e706b672e6170692e7631616c706861312e52756e74696d65"
    "120e5265676973746572506c7567696e"
    "1a0c0a0670797465737412023130"
)
REGISTERED: Final = bytes.fromhex("000000020000000a00000000000000010200")
CONFIGURE: Final = bytes.fromhex(
    "0000000100000055"
    "0000004b000000010100"
    "0a1b6e72692e706b672e6170692e7631616c706861312e506c7567696e"
    "1209436f6e666967757265"
    "1a1b120a636f6e7461696e6572641a0776312e372e323620882728d00f"
    "20b2fcd2b907"
)
CONFIGURED: Final = bytes.fromhex("000000010000000f00000005000000010200120310ff0f")
SYNCHRONIZED: Final = bytes.fromhex("000000010000000e00000004000000050200" + "12021001")


def _only_event(codec: Ttrpc, data: bytes) -> object:
    mux = Mux()
    mux.receive(data)
    frame = mux.next_event()
    assert frame is not None
    assert mux.next_event() is None
    codec.receive(frame.payload)
    event = codec.next_event()
    assert codec.next_event() is None
    assert mux.buffered == codec.buffered == 0
    return event


def test_register_plugin_call_is_the_captured_frame() -> None:
    payload = nri_pb2.RegisterPluginRequest(plugin_name="pytest", plugin_idx="10").SerializeToString()
    stream_id, message = Ttrpc().send_request(RUNTIME, "RegisterPlugin", payload)
    assert stream_id == 1
    assert Mux().send(RUNTIME_CONN, message) == REGISTER


def test_captured_register_plugin_call_is_read_by_a_runtime() -> None:
    payload = bytes.fromhex("0a0670797465737412023130")
    assert _only_event(Ttrpc(), REGISTER) == Request(1, RUNTIME, "RegisterPlugin", payload, 0)


def test_captured_empty_success_answers_the_call() -> None:
    """A data length of 0 is neither an error nor the end."""
    codec = Ttrpc()
    codec.send_request(RUNTIME, "RegisterPlugin", b"")
    assert _only_event(codec, REGISTERED) == Response(1, b"", None)


def test_empty_success_is_the_captured_frame() -> None:
    codec = Ttrpc()
    _only_event(codec, REGISTER)
    assert Mux().send(RUNTIME_CONN, codec.send_response(1, b"")) == REGISTERED


def test_captured_configure_call_is_read() -> None:
    event = _only_event(Ttrpc(), CONFIGURE)
    assert isinstance(event, Request)
    assert (event.stream_id, event.service, event.method, event.timeout_ns) == (1, PLUGIN, "Configure", 1999945266)
    wanted = nri_pb2.ConfigureRequest(
        runtime_name="containerd", runtime_version="v1.7.26", registration_timeout=5000, request_timeout=2000
    )
    assert nri_pb2.ConfigureRequest.FromString(event.payload) == wanted


def test_configure_answer_is_the_captured_frame() -> None:
    codec = Ttrpc()
    _only_event(codec, CONFIGURE)
    payload = nri_pb2.ConfigureResponse(events=0x7FF).SerializeToString()
    assert Mux().send(PLUGIN_CONN, codec.send_response(1, payload)) == CONFIGURED


def test_answer_to_a_cut_synchronize_is_the_captured_frame() -> None:
    """The runtime had burned id 3 on a message that was too long."""
    caller, codec = Ttrpc(), Ttrpc()
    while (call := caller.send_request(PLUGIN, "Synchronize", b""))[0] < 5:
        pass
    codec.receive(call[1])
    assert isinstance(codec.next_event(), Request)
    payload = nri_pb2.SynchronizeResponse(more=True).SerializeToString()
    assert Mux().send(PLUGIN_CONN, codec.send_response(5, payload)) == SYNCHRONIZED
