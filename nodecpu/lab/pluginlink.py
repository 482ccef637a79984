"""The runtime's end of one plugin's trunk: calls the plugin, serves RegisterPlugin and UpdateContainers (asyncio).

The codecs are those of ``nri``: they have no sides. A plugin that is silent for longer than the deadline or breaks the
protocol is gone for good; the trunk is closed and every open call fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from nodecpu.errors import ProtocolError
from nodecpu.lab.trace import Trace
from nodecpu.nri.mux import PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.ttrpc import CallError, Code, Ignored, Refused, Request, Response, Ttrpc
from nodecpu.proto import nri_pb2

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE: Final = "nri.pkg.api.v1alpha1.Runtime"
_READ: Final = 1 << 16

Reply = TypeVar("Reply", bound=Message)


class PluginGone(Exception):
    """The plugin did not answer in time, broke the protocol or closed the trunk."""


class PluginLink:
    """One connected plugin; ``name`` and ``index`` are empty until it registers, ``events`` until it is configured."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        trace: Trace,
        on_update: Callable[[PluginLink, nri_pb2.UpdateContainersRequest], Awaitable[nri_pb2.UpdateContainersResponse]],
    ) -> None:
        self.name = ""
        self.index = ""
        self.events = 0
        self.knows_new_rpcs = True
        self.closed = asyncio.Event()
        self.registered = asyncio.Event()
        self._reader = reader
        self._writer = writer
        self._trace = trace
        self._on_update = on_update
        self._mux = Mux()
        self._calls = Ttrpc()
        self._serves = Ttrpc()
        self._waiting: dict[int, asyncio.Future[Response]] = {}

    @property
    def label(self) -> str:
        """Return index and name, as logs show plugins."""
        return f"{self.index}-{self.name}"

    def wants(self, event: int) -> bool:
        """Return whether the plugin subscribed to an event."""
        return bool(self.events >> (event - 1) & 1)

    async def call(self, method: str, request: Message, reply: type[Reply], *, timeout_s: float, note: str) -> Reply:
        """Return the plugin's answer. Raises CallError for an error status, PluginGone else."""
        if self.closed.is_set():
            raise PluginGone(f"{self.label} is closed")
        payload = request.SerializeToString()
        stream_id, message = self._calls.send_request(
            PLUGIN_SERVICE, method, payload, timeout_ns=int(timeout_s * 999_999_999)
        )
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting[stream_id] = answer
        self._trace.add("nri", "runtime", method, note, request)
        self._writer.write(self._mux.send(PLUGIN_CONN, message))
        try:
            async with asyncio.timeout(timeout_s):
                response = await answer
        except TimeoutError as error:
            self.close()
            raise PluginGone(f"{self.label}: no answer to {method} in {timeout_s} s") from error
        finally:
            self._waiting.pop(stream_id, None)
        if response.error is not None:
            self._trace.add("nri", "plugin", method, f"error {response.error.status}: {response.error.message}")
            raise response.error
        try:
            answered = reply.FromString(response.payload)
        except DecodeError as error:
            self.close()
            raise PluginGone(f"{self.label}: answer to {method} does not parse") from error
        self._trace.add("nri", "plugin", method, "", answered)
        return answered

    async def read(self) -> None:
        """Read until the trunk ends; requests of the plugin are served as they come."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while data := await self._reader.read(_READ):
                    self._mux.receive(data)
                    while frame := self._mux.next_event():
                        codec = self._calls if frame.conn == PLUGIN_CONN else self._serves
                        codec.receive(frame.payload)
                        self._events(codec, tasks)
        except* (ProtocolError, ConnectionError):
            pass  # whoever waits is told by close
        finally:
            self.close()

    def close(self) -> None:
        """Close the trunk; every open call fails. Harmless when repeated."""
        self.closed.set()
        self.registered.set()
        self._writer.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(PluginGone(f"{self.label}: ttrpc: closed"))

    def _events(self, codec: Ttrpc, tasks: asyncio.TaskGroup) -> None:
        while event := codec.next_event():
            match event:
                case Response():
                    answer = self._waiting.get(event.stream_id)
                    if answer is not None and not answer.done():
                        answer.set_result(event)
                case Request():
                    tasks.create_task(self._serve(event))
                case Refused():
                    self._writer.write(self._mux.send(RUNTIME_CONN, event.answer))
                case Ignored():
                    pass  # a late answer

    async def _serve(self, request: Request) -> None:
        try:
            reply = await self._answer(request)
            message = self._serves.send_response(request.stream_id, reply.SerializeToString())
        except CallError as error:
            self._trace.add("nri", "runtime", request.method, f"error {error.status}: {error.message}")
            message = self._serves.send_error(request.stream_id, Code(error.status), error.message)
        if not self.closed.is_set():
            self._writer.write(self._mux.send(RUNTIME_CONN, message))

    async def _answer(self, request: Request) -> Message:
        if request.service != RUNTIME_SERVICE:
            raise CallError(Code.UNIMPLEMENTED, f"service {request.service}")
        if request.method == "RegisterPlugin":
            wish = nri_pb2.RegisterPluginRequest.FromString(request.payload)
            self._trace.add("nri", "plugin", request.method, f"{wish.plugin_idx}-{wish.plugin_name}", wish)
            if not (len(wish.plugin_idx) == 2 and wish.plugin_idx.isascii() and wish.plugin_idx.isdigit()):
                raise CallError(Code.UNKNOWN, f"invalid plugin index {wish.plugin_idx!r}")
            if not wish.plugin_name:
                raise CallError(Code.UNKNOWN, "plugin has no name")
            self.name, self.index = wish.plugin_name, wish.plugin_idx
            self.registered.set()
            return nri_pb2.Empty()
        if request.method == "UpdateContainers":
            updates = nri_pb2.UpdateContainersRequest.FromString(request.payload)
            self._trace.add("nri", "plugin", request.method, f"{len(updates.update)} updates", updates)
            return await self._on_update(self, updates)
        raise CallError(Code.UNIMPLEMENTED, f"method {request.method}")
