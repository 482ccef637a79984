"""Serves the metrics to Prometheus, on this machine only (shell): just enough HTTP, bounded in time and space.

What cannot be bound is logged and tried again for ever: metrics never end the daemon. One request per connection;
rendering happens on the event loop, since it reads the books, and takes milliseconds.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

from nodecpu.config_listen import Listen
from nodecpu.log import kv

_LOG = logging.getLogger(__name__)

_MAX_HEAD_BYTES: Final = 8192
_MAX_PEERS: Final = 8
_AGAIN_S: Final = 30.0
_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SLOW: Final = "prometheus_client"


class ScrapeServer:
    """Answers ``GET /metrics`` with what ``render`` returns at that moment, until ``run`` is cancelled."""

    def __init__(
        self, listen: Listen, render: Callable[[], bytes], *, timeout_s: float = 5.0, again_s: float = _AGAIN_S
    ) -> None:
        self._listen = listen
        self._render = render
        self._timeout_s = timeout_s
        self._again_s = again_s
        self._peers = 0
        self.bound = asyncio.Event()

    async def run(self) -> None:
        """Serve until cancelled; with nowhere to listen there is nothing to do."""
        if not self._listen:
            return
        await asyncio.to_thread(importlib.import_module, _SLOW)
        while True:
            try:
                server = await self._start()
            except OSError as error:
                kv(_LOG, logging.ERROR, "metrics cannot be served, tried again", err=error, path=self._where)
                await asyncio.sleep(self._again_s)
                continue
            kv(_LOG, logging.INFO, "metrics served", path=self._where)
            self.bound.set()
            try:
                async with server:
                    await server.serve_forever()
            finally:
                if self._listen.path:
                    _remove(self._listen.path)

    @property
    def _where(self) -> str:
        return self._listen.path or f"{self._listen.host}:{self._listen.port}"

    async def _start(self) -> asyncio.Server:
        if not self._listen.path:
            return await asyncio.start_server(
                self._peer, self._listen.host, self._listen.port, limit=_MAX_HEAD_BYTES, backlog=_MAX_PEERS
            )
        listening = _bound(Path(self._listen.path))
        return await asyncio.start_unix_server(self._peer, sock=listening, limit=_MAX_HEAD_BYTES, backlog=_MAX_PEERS)

    async def _peer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._peers >= _MAX_PEERS:
            writer.transport.abort()
            return
        self._peers += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                writer.write(await self._answer(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except OSError as error:  # too slow (TimeoutError is one), or gone
            kv(_LOG, logging.DEBUG, "scrape dropped", err=error)
        finally:
            self._peers -= 1
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return _response("400 Bad Request", b"no request\n")
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", b"only GET\n")
        if path != b"/metrics":
            return _response("404 Not Found", b"see /metrics\n")
        body = self._render()
        return _response("200 OK", body, only_head=method == b"HEAD")


def _bound(path: Path) -> socket.socket:
    """Return a socket under that name, for its owner and group; a socket that stands there is an earlier daemon's."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        if path.is_socket():
            path.unlink()
        listening.bind(str(path))
        path.chmod(0o660)
    except OSError:
        listening.close()
        raise
    return listening


def _remove(path: str) -> None:
    Path(path).unlink(missing_ok=True)


def _response(status: str, body: bytes, *, only_head: bool = False) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if only_head else body)
