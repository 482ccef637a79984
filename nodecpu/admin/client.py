"""The command line's end of the admin socket: asks once, waits a bounded time, says clearly what is the matter."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.admin.state import NodeState, Reply, Request, TrialRow
from nodecpu.errors import HostError, LinkError, NodeCpuError, PeerProtocolError

TIMEOUT_S: Final = 10.0
MAX_REPLY_BYTES: Final = 64 << 20

_START: Final = "see `systemctl status nodecpu` and `journalctl -u nodecpu`"


def fetch_state(path: Path, *, timeout_s: float = TIMEOUT_S) -> NodeState:
    """Return what the daemon behind a socket shows; NodeCpuError, with a hint, if it does not answer."""
    state = _asked(path, Request(verb="state"), timeout_s).state
    if state is None:
        raise PeerProtocolError(f"the daemon at {path} gave an empty answer")
    return state


def try_objects(path: Path, objects: Sequence[bytes], *, timeout_s: float = TIMEOUT_S) -> tuple[TrialRow, ...]:
    """Return what would become of Kubernetes objects (JSON) now; NodeCpuError, with a hint, if there is no answer."""
    trial = _asked(path, Request(verb="try", objects=tuple(msgspec.Raw(one) for one in objects)), timeout_s).trial
    if trial is None:
        raise PeerProtocolError(f"the daemon at {path} gave an empty answer")
    return trial


def _asked(path: Path, request: Request, timeout_s: float) -> Reply:
    try:
        data = _exchange(path, msgspec.json.encode(request) + b"\n", timeout_s)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise LinkError(f"the daemon is not running: nobody answers at {path}", hint=_START) from error
    except PermissionError as error:
        raise HostError(f"no permission for {path}", hint="run this as root") from error
    except TimeoutError as error:
        raise LinkError(f"the daemon at {path} does not answer within {timeout_s:g} s", hint=_START) from error
    except OSError as error:
        raise LinkError(f"the daemon at {path} cannot be asked: {error.strerror or error}", hint=_START) from error
    return _decoded(data, path)


def _exchange(path: Path, request: bytes, timeout_s: float) -> bytes:
    """Return everything sent in reply up to the end of the stream."""
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    size = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout_s)
        peer.connect(str(path))
        peer.sendall(request)
        while part := peer.recv(1 << 16):
            parts.append(part)
            size += len(part)
            if size > MAX_REPLY_BYTES:
                raise PeerProtocolError(f"the daemon at {path} answers with more than {MAX_REPLY_BYTES} bytes")
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            peer.settimeout(left)
    return b"".join(parts)


def _decoded(data: bytes, path: Path) -> Reply:
    if not data.endswith(b"\n"):
        raise PeerProtocolError(f"the daemon at {path} hung up before it had answered", hint="try again")
    try:
        reply = msgspec.json.decode(data, type=Reply)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PeerProtocolError(
            f"the answer of the daemon at {path} is not understood: {error}",
            hint="is it of another version than this command? restart it after an upgrade",
        ) from error
    if reply.error is not None:
        raise NodeCpuError(f"the daemon refuses: {reply.error.message}", hint=reply.error.hint)
    return reply
