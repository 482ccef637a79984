"""ttrpc, unary calls only, for one connection, client and server in one (sans-IO, pure).

A message is a header of ten bytes (data length, stream id, type, flags; big endian) and a protobuf envelope. A client
numbers its calls 1, 3, 5 ..., rising, never reused; a server may answer in any order.

A call's life is the same seen from either end, so one table serves our calls and the peer's:

    IDLE --REQUEST--> OPEN --RESPONSE--> DONE          OPEN --GIVE_UP--> DONE

Only open calls are remembered. An id up to the highest one used is otherwise DONE, an id above it IDLE.

Invariants: a length is checked before its data is stored; every whole message gives exactly one event; an illegal
step of ours raises LocalProtocolError and changes nothing; after a PeerProtocolError the codec is dead and says so.
Source: containerd/ttrpc PROTOCOL.md, channel.go, server.go, client.go; design: interfaces.md 1.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from struct import Struct
from types import MappingProxyType
from typing import Final, final

from google.protobuf.message import DecodeError

from nodecpu.errors import LocalProtocolError, NodeCpuError, PeerProtocolError
from nodecpu.nri.bytequeue import ByteQueue
from nodecpu.proto import ttrpc_pb2

MAX_DATA: Final = 4 << 20
"""Longest data of a message, bytes, without header. Source: ttrpc channel.go, messageLengthMax."""

HEADER_SIZE: Final = 10
"""Source: ttrpc channel.go, messageHeaderLength."""

_HEADER: Final = Struct(">IIBB")
_REQUEST: Final = 1
_RESPONSE: Final = 2
_MAX_STREAM_ID: Final = (1 << 32) - 1


class Code(IntEnum):
    """Status codes as gRPC numbers them. Source: google.golang.org/grpc/codes."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13


class CallError(NodeCpuError):
    """A call was answered with an error status; ``status`` is its number (a Code, where it is a known one)."""

    code = "call"

    def __init__(self, status: int, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class CallState(Enum):
    """Where a call stands."""

    IDLE = "idle"
    OPEN = "open"
    DONE = "done"
    __hash__ = object.__hash__  # that of Enum hashes the name, in Python, several times for each call


class CallStep(Enum):
    """What moves a call on."""

    REQUEST = "request"
    RESPONSE = "response"
    GIVE_UP = "give up"
    __hash__ = object.__hash__


TRANSITIONS: Final[Mapping[tuple[CallState, CallStep], CallState]] = MappingProxyType(
    {
        (CallState.IDLE, CallStep.REQUEST): CallState.OPEN,
        (CallState.OPEN, CallStep.RESPONSE): CallState.DONE,
        (CallState.OPEN, CallStep.GIVE_UP): CallState.DONE,
    }
)
"""Every legal step; a pair that is not here is illegal."""


@dataclass(frozen=True, slots=True)
class Request:
    """The peer calls; ``timeout_ns`` is the time it had left when it sent this, 0: unlimited."""

    stream_id: int
    service: str
    method: str
    payload: bytes
    timeout_ns: int


@dataclass(frozen=True, slots=True)
class Response:
    """The peer has answered our call; ``error`` None: success."""

    stream_id: int
    payload: bytes
    error: CallError | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The peer's request cannot be served; ``answer`` is the message to send back."""

    stream_id: int
    reason: str
    answer: bytes


@dataclass(frozen=True, slots=True)
class Ignored:
    """A message that means nothing here: of an unknown type, or the answer to a call that is not open."""

    stream_id: int
    reason: str


Event = Request | Response | Refused | Ignored


@final
class _Calls:
    """The calls of one side, by stream id."""

    __slots__ = ("highest", "open")

    def __init__(self) -> None:
        self.highest = 0
        self.open: set[int] = set()

    def state(self, stream_id: int) -> CallState:
        if stream_id in self.open:
            return CallState.OPEN
        return CallState.DONE if stream_id <= self.highest else CallState.IDLE

    def step(self, stream_id: int, step: CallStep) -> bool:
        """Make the step and return True; return False, with nothing changed, if it is illegal."""
        after = TRANSITIONS.get((self.state(stream_id), step))
        if after is None:
            return False
        if after is CallState.OPEN:
            self.open.add(stream_id)
            self.highest = stream_id
        else:
            self.open.discard(stream_id)
        return True


@final
class Ttrpc:
    """One end of one connection. All ``send_...`` return the bytes of a whole message, to be written in one go."""

    def __init__(self) -> None:
        self._stored = ByteQueue()
        self._ours = _Calls()
        self._theirs = _Calls()
        self._failure: str | None = None

    @property
    def buffered(self) -> int:
        """How many bytes are stored."""
        return len(self._stored)

    @property
    def failure(self) -> str | None:
        """What the peer did that ended this connection, None while it is usable."""
        return self._failure

    def our_call(self, stream_id: int) -> CallState:
        """Return where a call of ours stands."""
        return self._ours.state(stream_id)

    def their_call(self, stream_id: int) -> CallState:
        """Return where a call of the peer stands."""
        return self._theirs.state(stream_id)

    def receive(self, data: bytes | memoryview) -> None:
        """Store bytes of this connection's stream. Raises the peer's error again if there was one."""
        if self._failure is not None:
            raise PeerProtocolError(self._failure)
        self._stored.append(data)

    def next_event(self) -> Event | None:
        """Return what the next whole message means, None if more bytes are needed.

        Raises PeerProtocolError, then for good: after a length or an envelope that is wrong nothing can be trusted.
        """
        if self._failure is not None:
            raise PeerProtocolError(self._failure)
        stored = self._stored
        if len(stored) < HEADER_SIZE:
            return None
        length, stream_id, kind, _flags = stored.peek(_HEADER)
        if length > MAX_DATA:
            raise self._fail(f"ttrpc message of {length} bytes on stream {stream_id}, at most {MAX_DATA}")
        if len(stored) < HEADER_SIZE + length:
            return None
        stored.drop(HEADER_SIZE)
        data = stored.take_bytes(length)
        if kind == _REQUEST:
            return self._request(stream_id, data)
        if kind == _RESPONSE:
            return self._response(stream_id, data)
        return Ignored(stream_id, f"message of unknown type {kind}")

    def _request(self, stream_id: int, data: bytes) -> Event:
        # An id out of order and an envelope that does not parse are answered, as Go's server does: the peer's next
        # request may be in order, and a dropped link would let containers start unpinned.
        if not stream_id % 2:
            return self._refused(stream_id, f"stream id {stream_id} is not odd")
        if not self._theirs.step(stream_id, CallStep.REQUEST):
            return self._refused(stream_id, f"stream id {stream_id} is not above {self._theirs.highest}")
        try:
            envelope = ttrpc_pb2.Request.FromString(data)
        except DecodeError:
            self._theirs.step(stream_id, CallStep.RESPONSE)
            return self._refused(stream_id, f"request of {len(data)} bytes does not parse")
        timeout_ns = max(0, envelope.timeout_nano)
        return Request(stream_id, envelope.service, envelope.method, envelope.payload, timeout_ns)

    @staticmethod
    def _refused(stream_id: int, reason: str) -> Refused:
        return Refused(stream_id, reason, _message(stream_id, _RESPONSE, _error(Code.INVALID_ARGUMENT, reason)))

    def _response(self, stream_id: int, data: bytes) -> Event:
        if self._ours.state(stream_id) is not CallState.OPEN:
            return Ignored(stream_id, "answer to a call that is not open")
        try:
            envelope = ttrpc_pb2.Response.FromString(data)
        except DecodeError as error:
            raise self._fail(f"ttrpc response of {len(data)} bytes on stream {stream_id} does not parse") from error
        self._ours.step(stream_id, CallStep.RESPONSE)
        status = envelope.status
        failed = CallError(status.code, status.message) if status.code != Code.OK else None
        return Response(stream_id, envelope.payload, failed)

    def _fail(self, message: str) -> PeerProtocolError:
        self._failure = message
        self._stored.drop(len(self._stored))
        return PeerProtocolError(message)

    def send_request(self, service: str, method: str, payload: bytes, *, timeout_ns: int = 0) -> tuple[int, bytes]:
        """Open a call; return its stream id and the message. Raises LocalProtocolError, e.g. if it is too long."""
        stream_id = self._ours.highest + 2 if self._ours.highest else 1
        if stream_id > _MAX_STREAM_ID:
            raise LocalProtocolError("stream ids are used up")
        envelope = ttrpc_pb2.Request(service=service, method=method, payload=payload, timeout_nano=timeout_ns)
        message = self._checked(_message(stream_id, _REQUEST, envelope.SerializeToString()))
        self._ours.step(stream_id, CallStep.REQUEST)
        return stream_id, message

    def give_up(self, stream_id: int) -> None:
        """Forget an open call of ours: a late answer will be ignored. Raises LocalProtocolError if it is not open."""
        if not self._ours.step(stream_id, CallStep.GIVE_UP):
            raise LocalProtocolError(f"call {stream_id} is {self._ours.state(stream_id).value}, not open")

    def send_response(self, stream_id: int, payload: bytes) -> bytes:
        """Answer an open call with success. Raises LocalProtocolError."""
        # No special case for an empty reply: its envelope is empty too, and length 0 is what the peer expects.
        return self._answer(stream_id, ttrpc_pb2.Response(payload=payload).SerializeToString())

    def send_error(self, stream_id: int, status: int, text: str) -> bytes:
        """Answer an open call with an error status. Raises LocalProtocolError."""
        return self._answer(stream_id, _error(status, text))

    def _answer(self, stream_id: int, data: bytes) -> bytes:
        message = self._checked(_message(stream_id, _RESPONSE, data))
        if not self._theirs.step(stream_id, CallStep.RESPONSE):
            raise LocalProtocolError(f"request {stream_id} is {self._theirs.state(stream_id).value}, not open")
        return message

    def _checked(self, message: bytes) -> bytes:
        if self._failure is not None:
            raise LocalProtocolError(f"nothing can be sent any more: {self._failure}")
        if len(message) > HEADER_SIZE + MAX_DATA:
            raise LocalProtocolError(f"ttrpc message of {len(message) - HEADER_SIZE} bytes, at most {MAX_DATA}")
        return message


def _message(stream_id: int, kind: int, data: bytes) -> bytes:
    return _HEADER.pack(len(data), stream_id, kind, 0) + data


def _error(status: int, text: str) -> bytes:
    readable = text.encode("utf-8", "replace").decode()  # protobuf refuses lone surrogates, e.g. of odd file names
    return ttrpc_pb2.Response(status=ttrpc_pb2.Status(code=status, message=readable)).SerializeToString()
