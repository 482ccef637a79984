"""The link to the runtime over its NRI socket (asyncio shell).

Life of a link: connect, register, be configured and synchronised, serve until the trunk closes, then again, for ever:
a runtime that is away is an ordinary state, not an error. A link that works is never dropped on purpose (R6).

A request is served inside the read that completes it: decode, handler, encode, write; no task, no thread, no lock. So
one request follows another, each message is written in one go, and nothing of ours can come between. Past three
quarters of the time that the runtime allows, CreateContainer and UpdateContainer are answered with an error: the
kubelet tries again, whereas a deadline passed would drop us and let the container start unpinned.

Once registered there is no time limit for Configure and Synchronize: a runtime may hold them back while it stops a
container gracefully, and connecting anew would only add to the queue (interfaces.md 1.11).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol, final

from nodecpu.errors import LinkError, LocalProtocolError, NodeCpuError
from nodecpu.failpoints import reach
from nodecpu.log import kv, operation
from nodecpu.nri import convert
from nodecpu.nri.mux import PLUGIN_CONN, RUNTIME_CONN, Frame, Mux
from nodecpu.nri.plugin import Plugin
from nodecpu.nri.ttrpc import CallError, Code, Ignored, Refused, Request, Response, Ttrpc
from nodecpu.policy.plan import Update
from nodecpu.proto import nri_pb2

_log = logging.getLogger(__name__)

RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"

_BUDGET: Final = 0.75
_REFUSED_WHEN_LATE: Final = frozenset({"CreateContainer", "UpdateContainer"})
_NO_SOCKET_HINT: Final = (
    "is the runtime up and NRI on? containerd: disable = false in [plugins.'io.containerd.nri.v1.nri'];"
    " CRI-O: enable_nri = true in [crio.nri]"
)


class LinkState(Enum):
    """How far the link to the runtime is."""

    AWAY = "away"
    CONNECTING = "connecting"
    REGISTERED = "registered"
    SYNCHRONIZED = "synchronized"


class LinkObserver(Protocol):
    """Is told how the link fares."""

    def link_changed(self, state: LinkState, detail: str) -> None:
        """Take note of the new state; ``detail`` says why the runtime is away, empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """Where and as whom to connect, and how patiently.

    Waits between tries double from ``retry_first_s`` to ``retry_max_s``, each shortened by up to half at random; they
    start over after a link that was synchronised for longer than ``retry_max_s``.
    """

    socket: Path
    plugin_name: str
    plugin_index: str
    retry_first_s: float = 0.1
    retry_max_s: float = 2.0
    connect_timeout_s: float = 5.0
    register_timeout_s: float = 30.0
    close_timeout_s: float = 1.0


@final
class Link:
    """Keeps a plugin connected to a runtime. ``run`` is to be started once, in the daemon's task group."""

    def __init__(
        self,
        settings: LinkSettings,
        plugin: Plugin,
        observer: LinkObserver,
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._plugin = plugin
        self._observer = observer
        self._clock = clock
        self._jitter = jitter
        self._closing = asyncio.Event()
        self._state = LinkState.AWAY
        self._trunk: _Trunk | None = None
        self._detail = ""
        self._since_s = 0.0

    @property
    def state(self) -> LinkState:
        """How far the link is."""
        return self._state

    def close(self) -> None:
        """Make ``run`` close the trunk, after what is written, and return."""
        self._closing.set()
        if self._trunk is not None:
            self._trunk.close()

    async def run(self) -> None:
        """Stay connected until ``close``. Raises what is no NodeCpuError: a bug met in a handler."""
        wait_s = self._settings.retry_first_s
        while not self._closing.is_set():
            reason = await self._one_link()
            if self._state is LinkState.SYNCHRONIZED and self._clock() - self._since_s > self._settings.retry_max_s:
                wait_s = self._settings.retry_first_s
            self._enter(LinkState.AWAY, reason)
            await self._pause(wait_s * (1 - self._jitter() / 2))
            wait_s = min(2 * wait_s, self._settings.retry_max_s)

    def update_containers(self, update: Update, *, timeout_s: float = 2.0) -> Coroutine[None, None, None]:
        """Send an update that answers no request, for one container, and await the runtime's success.

        Raises LocalProtocolError at once inside a handler, where the runtime could not answer before its deadline,
        and for a runtime not known to survive it (interfaces.md 1.11). The awaitable raises LinkError if there is no
        synchronised link or no answer in time, CallError if the runtime could not apply the update.
        """
        trunk, runtime = self._trunk, self._plugin.runtime
        if trunk is not None and trunk.is_serving:
            raise LocalProtocolError("an update was to be sent inside a request")
        if runtime is not None and not runtime.safe_unsolicited:
            raise LocalProtocolError(f"{runtime.name} {runtime.version} is not known to survive unasked updates")
        return self._update(convert.update_request(update), timeout_s)

    async def _update(self, payload: bytes, timeout_s: float) -> None:
        if self._trunk is None or self._state is not LinkState.SYNCHRONIZED:
            raise LinkError("no synchronised link to the runtime")
        reach("update-send")
        reply = await self._trunk.call("UpdateContainers", payload, timeout_s=timeout_s)
        reach("update-sent")
        if reply:  # nothing but the list of what failed can be in it
            raise CallError(Code.UNKNOWN, "the runtime could not apply the update")

    async def _one_link(self) -> NodeCpuError:
        """Connect and stay connected; return why it ended. Raises bugs."""
        trunk = _Trunk(self._plugin, self._clock, self._check_progress)
        ended: Exception
        try:
            await self._connect(trunk)
            await self._register(trunk)
            await trunk.lost.wait()
        except NodeCpuError as error:
            ended = trunk.failure or error  # what ended the trunk also failed the call
        else:
            ended = trunk.failure or LinkError("closed by us")
        finally:
            self._trunk = None
            await trunk.shut(self._settings.close_timeout_s)
            self._plugin.link_lost()
        if not isinstance(ended, NodeCpuError):
            raise ended
        return ended

    async def _connect(self, trunk: _Trunk) -> None:
        path = str(self._settings.socket)
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await asyncio.get_running_loop().create_unix_connection(lambda: trunk, path)
        except TimeoutError as error:
            raise LinkError(f"NRI socket {path}: no connection in time") from error
        except OSError as error:
            raise LinkError(f"NRI socket {path}: {error.strerror or error}", hint=_NO_SOCKET_HINT) from error
        self._trunk = trunk
        self._enter(LinkState.CONNECTING)
        if self._closing.is_set():
            trunk.close()

    async def _register(self, trunk: _Trunk) -> None:
        name, index = self._settings.plugin_name, self._settings.plugin_index
        # NRI_version stays empty: the runtimes recorded accept that, and we are no build of the NRI module.
        request = nri_pb2.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
        try:
            await trunk.call("RegisterPlugin", request.SerializeToString(), timeout_s=self._settings.register_timeout_s)
        except CallError as error:
            raise LinkError(f"the runtime refused plugin {index}-{name}: {error.message}") from error
        if self._state is LinkState.CONNECTING:  # its answer may be seen after the synchronisation
            self._enter(LinkState.REGISTERED)

    def _check_progress(self) -> None:
        if self._state is not LinkState.SYNCHRONIZED and self._plugin.is_synchronized:
            self._enter(LinkState.SYNCHRONIZED)

    def _enter(self, state: LinkState, reason: NodeCpuError | None = None) -> None:
        """Take and tell a new state, or a new reason to be away: a runtime may be away for long, for one reason."""
        detail = "" if reason is None else str(reason)
        if (state, detail) == (self._state, self._detail):
            return
        self._state, self._detail, self._since_s = state, detail, self._clock()
        if reason is None or self._closing.is_set():
            kv(_log, logging.INFO, "runtime link changed", state=state.value)
        else:
            kv(_log, logging.WARNING, "runtime link away, trying again", state=state.value, err=reason)
        self._observer.link_changed(state, detail)

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._closing.wait()
        except TimeoutError:
            pass


@final
class _Trunk(asyncio.Protocol):
    """One connection, from connect to close. ``failure`` says what ended it, None if we did."""

    def __init__(self, plugin: Plugin, clock: Callable[[], float], progress: Callable[[], None]) -> None:
        self.lost = asyncio.Event()
        self.failure: Exception | None = None
        self.is_serving = False
        self._plugin = plugin
        self._clock = clock
        self._progress = progress
        self._transport: asyncio.Transport | None = None
        self._mux = Mux()
        self._rpc = {PLUGIN_CONN: Ttrpc(), RUNTIME_CONN: Ttrpc()}
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    def close(self) -> None:
        """Take nothing more, and close once everything is written."""
        if self._transport is not None:
            self._transport.close()

    async def shut(self, timeout_s: float) -> None:
        """Close and await that; what the runtime does not read in time is not written."""
        if self._transport is None:
            return
        self._transport.close()
        try:
            async with asyncio.timeout(timeout_s):
                await self.lost.wait()
        except TimeoutError:
            self._transport.abort()

    async def call(self, method: str, payload: bytes, *, timeout_s: float) -> bytes:
        """Call the runtime; return the reply. Raises LinkError (trunk gone, no answer in time), CallError."""
        if self._transport is None or self._transport.is_closing():
            raise LinkError("the link to the runtime is closed")
        rpc = self._rpc[RUNTIME_CONN]
        stream_id, message = rpc.send_request(RUNTIME_SERVICE, method, payload, timeout_ns=int(timeout_s * 1e9))
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[stream_id] = answer
        self._write(RUNTIME_CONN, message)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise LinkError(f"{method}: no answer of the runtime in {timeout_s:g} s") from error
        finally:
            if self._waiting.pop(stream_id, None) is not None and rpc.failure is None:
                rpc.give_up(stream_id)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport (called by asyncio)."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End all that waits (called by asyncio)."""
        if self.failure is None:
            self.failure = LinkError("closed by the runtime" if exc is None else f"closed: {exc}")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(LinkError("the link to the runtime was closed"))
        self.lost.set()

    def pause_writing(self) -> None:
        """Take no more requests while the runtime does not read our replies, so that they cannot pile up."""
        assert self._transport is not None
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on (called by asyncio)."""
        assert self._transport is not None
        self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Serve what the bytes complete (called by asyncio)."""
        if self.failure is not None:
            return
        read_at_s = self._clock()
        try:
            self._mux.receive(data)
            while (frame := self._mux.next_event()) is not None:
                self._take(frame, read_at_s)
        except Exception as error:  # noqa: BLE001 - kept for ``run``, which raises it
            self.failure = error
            self.close()

    def _take(self, frame: Frame, read_at_s: float) -> None:
        conn = frame.conn
        rpc = self._rpc[conn]
        rpc.receive(frame.payload)
        while (event := rpc.next_event()) is not None:
            match event:
                case Request() if conn == PLUGIN_CONN:
                    self._serve(rpc, event, read_at_s)
                case Request():
                    text = f"{event.service}/{event.method} is not served on this connection"
                    self._write(conn, rpc.send_error(event.stream_id, Code.UNIMPLEMENTED, text))
                case Response():
                    self._answered(event)
                case Refused():
                    kv(_log, logging.WARNING, "message of the runtime refused", err=event.reason)
                    self._write(conn, event.answer)
                case Ignored():
                    kv(_log, logging.DEBUG, "message of the runtime ignored", err=event.reason)

    def _answered(self, event: Response) -> None:
        answer = self._waiting.pop(event.stream_id, None)
        if answer is None or answer.done():  # its caller was cancelled, or timed out just now
            return
        if event.error is not None:
            answer.set_exception(event.error)
        else:
            answer.set_result(event.payload)

    def _serve(self, rpc: Ttrpc, request: Request, read_at_s: float) -> None:
        latest_s = self._latest_s(request, read_at_s)
        stream_id, method = request.stream_id, request.method
        late = False
        self.is_serving = True
        try:
            with operation(f"{method}-{stream_id}"):
                waited = self._clock() > latest_s
                reply = b"" if waited else self._plugin.handle(request.service, method, request.payload)
                late = self._clock() > latest_s
                message = _too_late(rpc, request) if late else rpc.send_response(stream_id, reply)
        except NodeCpuError as error:
            status = error.status if isinstance(error, CallError) else Code.UNKNOWN
            message = rpc.send_error(stream_id, status, str(error))
        except Exception:
            self._write(PLUGIN_CONN, rpc.send_error(stream_id, Code.INTERNAL, f"{method}: internal error"))
            raise
        finally:
            self.is_serving = False
        reach("nri-reply")
        self._write(PLUGIN_CONN, message)
        reach("nri-replied")
        if late:  # after the reply, which must not wait for it
            self._plugin.withdraw(method, request.payload)
        self._progress()

    def _latest_s(self, request: Request, read_at_s: float) -> float:
        """Return the time from which on only an error may be answered."""
        if request.method not in _REFUSED_WHEN_LATE:
            return math.inf
        allowed_s = self._plugin.request_timeout_s
        if request.timeout_ns:
            allowed_s = min(allowed_s, request.timeout_ns / 1e9)
        return read_at_s + _BUDGET * allowed_s

    def _write(self, conn: int, message: bytes) -> None:
        assert self._transport is not None
        self._transport.write(self._mux.send(conn, message))


def _too_late(rpc: Ttrpc, request: Request) -> bytes:
    text = f"{request.method}: not done in {_BUDGET:.0%} of the time that the runtime allows; it will be tried again"
    kv(_log, logging.ERROR, "request of the runtime refused as late", err=text)
    return rpc.send_error(request.stream_id, Code.DEADLINE_EXCEEDED, text)
