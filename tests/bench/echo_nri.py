"""The floor of an NRI call: the daemon's codecs, an answer that is always the same, and one unsynced commit.

As a process: ``python -m tests.bench.echo_nri SOCKET DATABASE``.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from nodecpu.nri.mux import PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.ttrpc import Request, Ttrpc
from nodecpu.proto import nri_pb2, nri_read_pb2

ROW = b"x" * 600
"""As long as a container's row in the books."""


class EchoLink(asyncio.Protocol):
    """One link: registers, and gives each call the answer that ``answer`` returns."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._mux = Mux()
        self._rpc = {PLUGIN_CONN: Ttrpc(), RUNTIME_CONN: Ttrpc()}

    def answer(self, event: Request) -> bytes:
        """Return the serialized answer to a call."""
        raise NotImplementedError("each echo answers in its own way")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        request = nri_pb2.RegisterPluginRequest(plugin_name="echo", plugin_idx="90").SerializeToString()
        _, message = self._rpc[RUNTIME_CONN].send_request("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", request)
        transport.write(self._mux.send(RUNTIME_CONN, message))

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        del exc
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        """Answer what is complete."""
        self._mux.receive(data)
        while (frame := self._mux.next_event()) is not None:
            codec = self._rpc[frame.conn]
            codec.receive(frame.payload)
            while (event := codec.next_event()) is not None:
                if isinstance(event, Request):
                    assert self._transport is not None
                    answer = codec.send_response(event.stream_id, self.answer(event))
                    self._transport.write(self._mux.send(PLUGIN_CONN, answer))


class Echo(EchoLink):
    """The floor: one row is committed, the answer is the same each time."""

    def __init__(self, database: sqlite3.Connection) -> None:
        super().__init__()
        self._database = database

    def answer(self, event: Request) -> bytes:
        """Return the answer after the commit."""
        if event.method == "CreateContainer":
            container = nri_read_pb2.Request.FromString(event.payload).container
            self._database.execute("INSERT OR REPLACE INTO containers VALUES (?, ?)", (container.id, ROW))
            reply = nri_pb2.CreateContainerResponse()
            reply.adjust.linux.resources.cpu.cpus = "4-255"
            return reply.SerializeToString()
        if event.method == "StopContainer":
            container = nri_read_pb2.Request.FromString(event.payload).container
            self._database.execute("DELETE FROM containers WHERE id = ?", (container.id,))
            return nri_pb2.StopContainerResponse().SerializeToString()
        return b""


async def main(socket: str, path: str) -> None:
    """Serve one link until it ends."""
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=OFF")
    database.execute("CREATE TABLE containers (id TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID")
    _, link = await asyncio.get_running_loop().create_unix_connection(lambda: Echo(database), socket)
    await link.ended.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
