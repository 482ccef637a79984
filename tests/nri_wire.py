"""Recorded NRI traffic, read with our own codecs, for several test files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodecpu.nri.mux import PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.ttrpc import Event, Ignored, Refused, Request, Response, Ttrpc
from tests.support import shared_data

TO_PLUGIN: Final = "runtime->plugin"
TO_RUNTIME: Final = "plugin->runtime"
RECORDINGS: Final = (
    "kubelet-1.36.2-more-nri.json.gz",
    "kubelet-1.36.2-nri.json",
    "nri-containerd-2.1.9-faults.json.gz",
    "nri-containerd-2.1.9-observe.json",
    "nri-containerd-2.1.9-pin.json",
    "nri-containerd-2.4dev-faults.json.gz",
    "nri-containerd-2.4dev-observe.json",
    "nri-containerd-2.4dev-pin.json",
    "nri-crio-1.37dev-faults.json.gz",
    "nri-crio-1.37dev-observe.json",
    "nri-crio-1.37dev-pin.json",
)


@dataclass
class Recorded:
    """One connection of a recording: the reads in order, as (direction, bytes)."""

    reads: list[tuple[str, bytes]] = field(default_factory=list)

    def stream(self, direction: str) -> bytes:
        return b"".join(data for way, data in self.reads if way == direction)


def recording(name: str) -> list[Recorded]:
    """Return the connections of one file; skips the test if it is not there."""
    path: Path = shared_data("wire", name)
    content = path.read_bytes()
    items = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    connections: dict[int, Recorded] = {}
    for item in items:
        if item["hex"]:
            reads = connections.setdefault(item["conn"], Recorded()).reads
            reads.append((item["direction"], bytes.fromhex(item["hex"])))
    return [connections[number] for number in sorted(connections)]


@dataclass
class Exchange:
    """A call and its answer (None: it never came)."""

    conn: int
    request: Request
    response: Response | None = None


class Listener:
    """Both ends of a recorded trunk at once: what one end sent, the other receives."""

    def __init__(self) -> None:
        self.muxes = {TO_PLUGIN: Mux(), TO_RUNTIME: Mux()}
        self.codecs = {(way, conn): Ttrpc() for way in self.muxes for conn in (PLUGIN_CONN, RUNTIME_CONN)}
        self.exchanges: list[Exchange] = []
        self.odd: list[Ignored | Refused] = []

    def hear(self, way: str, data: bytes) -> None:
        back = TO_RUNTIME if way == TO_PLUGIN else TO_PLUGIN
        mux = self.muxes[way]
        mux.receive(data)
        while (frame := mux.next_event()) is not None:
            codec = self.codecs[way, frame.conn]
            codec.receive(frame.payload)
            while (event := codec.next_event()) is not None:
                self._note(frame.conn, event, self.codecs[back, frame.conn])

    def _note(self, conn: int, event: Event, caller: Ttrpc) -> None:
        if isinstance(event, Request):
            # The caller's codec must know that the call is open; ids may skip, as a runtime's do.
            while caller.send_request(event.service, event.method, event.payload)[0] < event.stream_id:
                pass
            self.exchanges.append(Exchange(conn, event))
        elif isinstance(event, Response):
            call = next(e for e in self.exchanges if e.conn == conn and e.request.stream_id == event.stream_id)
            call.response = event
        else:
            self.odd.append(event)

    def left_over(self) -> int:
        return sum(mux.buffered for mux in self.muxes.values()) + sum(codec.buffered for codec in self.codecs.values())


def listen(recorded: Recorded) -> Listener:
    """Return a connection, decoded whole."""
    listener = Listener()
    for way, data in recorded.reads:
        listener.hear(way, data)
    return listener


def frames(stream: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (connection id, payload) by reading the bytes plainly, without our codec."""
    at = 0
    while at < len(stream):
        conn, size = int.from_bytes(stream[at : at + 4], "big"), int.from_bytes(stream[at + 4 : at + 8], "big")
        yield conn, stream[at + 8 : at + 8 + size]
        at += 8 + size
