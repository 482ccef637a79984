"""The daemon's end of the admin socket (shell): one JSON line in, one JSON line out, nothing changed by it.

The socket is for root alone (0600, in a directory of ours) and appears under its name only when it answers; whoever
comes by another way, a socket handed on say, is asked by the kernel who he is. A peer gets bounded time and space;
nothing it sends can hold up or end the daemon, and there is no verb that changes anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.admin.state import NodeState, Refusal, Reply, Request, TrialRow
from nodecpu.errors import HostError, NodeCpuError
from nodecpu.failpoints import reach
from nodecpu.log import kv, operation

SOCKET_NAME: Final = "admin.sock"
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_PEERS: Final = 8
ACCEPT_PAUSE_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 5.0
REPLY_TIMEOUT_S: Final = 10.0

_LOG: Final = logging.getLogger(__name__)


class AdminServer:
    """Answers the command line with what ``state`` returns at that moment, and what ``trial`` says of objects.

    ``bind`` makes the socket, ``serve`` answers until cancelled and removes it; ``close`` is for one never served.
    ``users`` are the ids of those who are answered: root and the daemon's own user unless given.
    """

    def __init__(
        self,
        run_dir: Path,
        state: Callable[[], NodeState],
        trial: Callable[[Sequence[bytes]], tuple[TrialRow, ...]],
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        users: Collection[int] | None = None,
    ):
        self.path = run_dir / SOCKET_NAME
        self._state = state
        self._trial = trial
        self._request_timeout_s = request_timeout_s
        self._users = frozenset({0, os.geteuid()} if users is None else users)
        self._socket: socket.socket | None = None
        self._inode = 0

    def bind(self) -> None:
        """Make the listening socket, replacing what an earlier daemon left; HostError if that cannot be done."""
        # Made under another name, no longer than the real one: nobody meets it before mode and queue are right.
        making = self.path.with_name("admin.new")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            making.unlink(missing_ok=True)
            listening.bind(str(making))
            making.chmod(0o600)
            listening.listen(MAX_PEERS)
            self._inode = making.stat().st_ino
            reach("admin-bound")
            making.rename(self.path)
            reach("admin-renamed")
        except OSError as error:
            listening.close()
            raise HostError(
                f"admin socket {self.path} cannot be made: {error.strerror or error}",
                hint="see that its directory exists and may be written to",
            ) from error
        self._socket = listening

    def close(self) -> None:
        """Remove the socket, unless a successor's stands there; a second time does nothing."""
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        with contextlib.suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
                reach("admin-removed")

    async def serve(self) -> None:
        """Answer until cancelled, then close. ``bind`` comes first."""
        assert self._socket is not None, "bind() comes first"
        slots = asyncio.Semaphore(MAX_PEERS)
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await slots.acquire()
                    peer = await self._accept(self._socket)
                    group.create_task(self._peer(peer)).add_done_callback(lambda _: slots.release())
        finally:
            self.close()

    async def _accept(self, listening: socket.socket) -> socket.socket:
        loop = asyncio.get_running_loop()
        while True:
            try:
                return (await loop.sock_accept(listening))[0]
            except OSError as error:  # out of file descriptors, or a peer that left in the queue
                kv(_LOG, logging.WARNING, "admin connection not accepted", err=error)
                await asyncio.sleep(ACCEPT_PAUSE_S)

    async def _peer(self, peer: socket.socket) -> None:
        with operation():
            try:
                await self._converse(peer)
            except OSError as error:  # too slow, or gone
                kv(_LOG, logging.DEBUG, "admin request dropped", err=error)

    async def _converse(self, peer: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=peer, limit=MAX_REQUEST_BYTES)
        writer.transport.set_write_buffer_limits(0)  # drain() then waits for the last byte
        try:
            async with asyncio.timeout(self._request_timeout_s):
                request = await _request(reader)
            if (user := _user(peer)) not in self._users:
                kv(_LOG, logging.WARNING, "admin request of another user refused", state=f"user {user}")
                request = Refusal(code="not-allowed", message="not for this user", hint="run it as root")
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                writer.write(msgspec.json.encode(self._answer(request)) + b"\n")
                await writer.drain()
            writer.close()
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    def _answer(self, request: Request | Refusal) -> Reply:
        if isinstance(request, Refusal):
            return Reply(error=request)
        try:
            if request.verb == "state":
                return Reply(state=self._state())
            if request.verb == "try":
                return Reply(trial=self._trial([bytes(one) for one in request.objects]))
        except NodeCpuError as error:
            return Reply(error=Refusal(code=error.code, message=error.message, hint=error.hint))
        return Reply(error=Refusal(code="unknown-verb", message="unknown verb", hint='known: "state", "try"'))


def _user(peer: socket.socket) -> int:
    """Return who made the connection, by the kernel's word. Source: unix(7), SO_PEERCRED (struct ucred)."""
    form = struct.Struct("3i")
    user: int = form.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size))[1]
    return user


async def _request(reader: asyncio.StreamReader) -> Request | Refusal:
    """Return the request on the next line, or what is wrong with it."""
    try:
        line = await reader.readline()
    except ValueError as error:  # a line too long
        return Refusal(code="bad-request", message=f"not a request: {error}")
    return parsed(line)


def parsed(line: bytes) -> Request | Refusal:
    """Return the request of a line, or what is wrong with it."""
    try:
        return msgspec.json.decode(line, type=Request)
    except (ValueError, RecursionError) as error:
        return Refusal(code="bad-request", message=f"not a request: {error}")
