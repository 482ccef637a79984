"""NRI's multiplexer: two byte streams over one trunk socket (sans-IO, pure).

Every frame is a connection id and a length, both u32 big endian, and the payload: a slice of that id's stream, whose
message boundaries are unrelated to frames. There is no open, no close and no credit; a frame for an id that nobody
opened is dropped. Both ends use this codec: it has no client or server side.

Invariants: a length is checked before its payload is stored; at most one frame and what came behind it in the same
read is stored; after a peer's error the codec is dead and says so.
Source: containerd/nri pkg/net/multiplex/mux.go; design: interfaces.md 1.2.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from struct import Struct
from typing import Final, final

from nodecpu.errors import LocalProtocolError, PeerProtocolError
from nodecpu.nri.bytequeue import ByteQueue

PLUGIN_CONN: Final = 1
"""Id of the connection on which the plugin serves. Source: multiplex/ttrpc.go."""

RUNTIME_CONN: Final = 2
"""Id of the connection on which the runtime serves."""

MAX_PAYLOAD: Final = 10 + (4 << 20)
"""Longest payload, bytes: the longest ttrpc message, which is what the Go writer cuts at. Source: mux.go (NRI 0.7)."""

MAX_SINGLE_FRAME: Final = 4096
"""Longest message, bytes, that goes out as one frame: the Go receiver's read buffer. Source: ttrpc channel.go."""

_HEADER: Final = Struct(">II")


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame of an open connection, its payload not empty."""

    conn: int
    payload: memoryview


@final
class Mux:
    """One end of a trunk: ``receive`` stores, ``next_event`` parses, ``send`` frames."""

    def __init__(self, open_ids: Collection[int] = (PLUGIN_CONN, RUNTIME_CONN)) -> None:
        self._open_ids = frozenset(open_ids)
        self._stored = ByteQueue()
        self._to_skip = 0
        self._failure: str | None = None

    @property
    def buffered(self) -> int:
        """How many bytes are stored."""
        return len(self._stored)

    @property
    def failure(self) -> str | None:
        """What the peer did that ended this trunk, None while it is usable."""
        return self._failure

    def receive(self, data: bytes) -> None:
        """Store bytes read from the trunk. Raises the peer's error again if there was one."""
        if self._failure is not None:
            raise PeerProtocolError(self._failure)
        self._stored.append(data)

    def next_event(self) -> Frame | None:
        """Return the next whole frame, None if more bytes are needed. Raises PeerProtocolError, then for good."""
        if self._failure is not None:
            raise PeerProtocolError(self._failure)
        stored = self._stored
        while True:
            if self._to_skip:
                self._to_skip -= stored.drop(self._to_skip)
            if len(stored) < _HEADER.size:
                return None
            conn, length = stored.peek(_HEADER)
            if length > MAX_PAYLOAD:
                self._failure = f"mux frame of {length} bytes on connection {conn}, at most {MAX_PAYLOAD}"
                stored.drop(len(stored))
                raise PeerProtocolError(self._failure)
            if conn not in self._open_ids or not length:
                stored.drop(_HEADER.size)
                self._to_skip = length
            elif len(stored) < _HEADER.size + length:
                return None
            else:
                stored.drop(_HEADER.size)
                return Frame(conn, stored.take(length))

    def send(self, conn: int, message: bytes) -> bytes:
        """Return the frames that carry one whole message of ``conn``, to be written in one go.

        The Go receiver fails a frame that is longer than the buffer of the read that meets it. It reads the first
        4,096 bytes of a message through such a buffer and the tail into one of exactly the missing length, so a longer
        message has to go as a frame of its first 4,096 bytes and one of all the rest. Smaller pieces would be
        accepted one by one, but more than 256 that wait unread close the trunk.
        Source: interfaces.md 1.2, traps 1 and 2. Raises LocalProtocolError.
        """
        if self._failure is not None:
            raise LocalProtocolError(f"nothing can be sent any more: {self._failure}")
        if conn not in self._open_ids or not 0 < len(message) <= MAX_PAYLOAD:
            raise LocalProtocolError(f"cannot send {len(message)} bytes on connection {conn}")
        size = len(message)
        if size <= MAX_SINGLE_FRAME:
            return _HEADER.pack(conn, size) + message
        head, tail = memoryview(message)[:MAX_SINGLE_FRAME], memoryview(message)[MAX_SINGLE_FRAME:]
        return b"".join((_HEADER.pack(conn, len(head)), head, _HEADER.pack(conn, len(tail)), tail))
