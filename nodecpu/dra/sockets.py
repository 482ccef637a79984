"""A gRPC server on a Unix socket of the kubelet's directories (shell).

The socket appears under its name complete: served, mode 0600, in one rename over whatever a dead process left. Only our
own socket is removed again, known by its inode. That also keeps gRPC, which removes the name it bound, away from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc
import grpc.aio

from nodecpu.errors import HostError
from nodecpu.failpoints import reach

MAX_PATH_BYTES: Final = 107
"""Bytes of a Unix socket's path. Source: unix(7), sun_path without its final NUL."""

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # The kubelet's connection may idle for hours: its keep-alive pings are welcome at any rate (pitfall U87).
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


def check_socket_path(path: Path) -> None:
    """Raise HostError if no socket can have this path."""
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise HostError(
            f"socket {path}: its path has {length} bytes, Linux allows {MAX_PATH_BYTES}",
            hint="shorten the kubelet directory or the driver name",
        )


class UnixServer:
    """One socket and the server behind it; can be opened again when the socket was removed by others."""

    def __init__(self, path: Path, *, hidden_name: str) -> None:
        """``hidden_name`` begins with a dot (the kubelet overlooks such names) and is no longer than the path's."""
        self.path = path
        self._bound = path.with_name(hidden_name)
        self._server: grpc.aio.Server | None = None
        self._identity: tuple[int, int] | None = None

    async def open(self, handlers: Sequence[grpc.GenericRpcHandler]) -> grpc.aio.Server | None:
        """Serve the handlers on the socket; return the server that was there before, for the caller to stop.

        Raises HostError.
        """
        check_socket_path(self.path)
        before = self._server
        reach("socket-open")
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers(tuple(handlers))
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._bound.unlink(missing_ok=True)
            server.add_insecure_port(f"unix:{quote(str(self._bound))}")
            self._bound.chmod(0o600)
            await server.start()
            found = self._bound.stat()
            reach("socket-bound")
            self._bound.rename(self.path)
            reach("socket-renamed")
        except (OSError, RuntimeError) as error:
            await server.stop(None)
            raise HostError(f"socket {self.path}: {error}", hint="its directory has to be writable by root") from error
        self._server, self._identity = server, (found.st_dev, found.st_ino)
        return before

    def is_there(self) -> bool:
        """Return whether the path still names our socket."""
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def remove(self) -> None:
        """Remove the socket if it is ours; the server goes on with the connections it has."""
        if self._identity is not None and self.is_there():
            reach("socket-remove")
            with contextlib.suppress(OSError):
                self.path.unlink()
            reach("socket-removed")

    async def close(self, *, grace_s: float) -> None:
        """Remove the socket and stop the server; calls in hand have ``grace_s`` to end."""
        self.remove()
        server, self._server, self._identity = self._server, None, None
        if server is not None:
            await asyncio.shield(server.stop(grace_s))
