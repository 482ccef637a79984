"""A plugin and a DRA driver that change nothing, for tests that look at what the lab's runtime and kubelet send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
from google.protobuf.message import Message

from nodecpu.nri.mux import PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.ttrpc import Code, Request, Response, Ttrpc
from nodecpu.proto import dra_pb2, health_pb2, nri_pb2, registration_pb2

RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"
PATIENCE_S = 20.0


def request_type(method: str) -> type[Message]:
    """Return the message that a call carries."""
    found: type[Message] = getattr(nri_pb2, "StateChangeEvent" if method == "StateChange" else f"{method}Request")
    return found


class Plugin:
    """Answers every call with nothing to say, or as ``answers`` says; refuses once what is named in ``refuse``."""

    def __init__(self, answers: Mapping[str, Message] | None = None, *, events: int = 0, index: str = "10") -> None:
        self.calls: list[tuple[str, Message]] = []
        self.refuse: set[str] = set()
        self.silent: set[str] = set()
        self.synchronized = asyncio.Event()
        self.closed = asyncio.Event()
        self.replies: dict[int, asyncio.Future[Response]] = {}
        self._answers = dict(answers or {})
        self._events = events
        self._index = index
        self._mux, self._calls, self._serves = Mux(), Ttrpc(), Ttrpc()
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, socket: Path) -> None:
        """Connect, register and serve until the trunk ends."""
        reader, self._writer = await asyncio.open_unix_connection(socket)
        try:
            self._send("RegisterPlugin", nri_pb2.RegisterPluginRequest(plugin_name="observer", plugin_idx=self._index))
            while data := await reader.read(1 << 16):
                self._mux.receive(data)
                while frame := self._mux.next_event():
                    codec = self._serves if frame.conn == PLUGIN_CONN else self._calls
                    codec.receive(frame.payload)
                    self._handle(codec)
        finally:
            self.closed.set()
            self._writer.close()

    def close(self) -> None:
        """Close the trunk."""
        assert self._writer is not None
        self._writer.close()

    async def update(self, *updates: nri_pb2.ContainerUpdate) -> Response:
        """Return the answer to an unsolicited update."""
        stream_id = self._send("UpdateContainers", nri_pb2.UpdateContainersRequest(update=updates))
        self.replies[stream_id] = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(PATIENCE_S):
            return await self.replies[stream_id]

    def _send(self, method: str, message: Message) -> int:
        assert self._writer is not None
        stream_id, data = self._calls.send_request(RUNTIME_SERVICE, method, message.SerializeToString())
        self._writer.write(self._mux.send(RUNTIME_CONN, data))
        return stream_id

    def _handle(self, codec: Ttrpc) -> None:
        while event := codec.next_event():
            if isinstance(event, Request):
                self._serve(event)
            elif isinstance(event, Response) and event.stream_id in self.replies:
                self.replies[event.stream_id].set_result(event)

    def _serve(self, request: Request) -> None:
        assert self._writer is not None
        message = request_type(request.method).FromString(request.payload)
        self.calls.append((request.method, message))
        if request.method in self.silent:
            return
        name = call_name(request.method, message)
        if name in self.refuse:
            self.refuse.discard(name)
            reply = self._serves.send_error(request.stream_id, Code.UNKNOWN, "refused by plugin")
        else:
            reply = self._serves.send_response(request.stream_id, self._reply(request.method, message))
        self._writer.write(self._mux.send(PLUGIN_CONN, reply))
        if isinstance(message, nri_pb2.SynchronizeRequest) and not message.more:
            self.synchronized.set()

    def _reply(self, method: str, message: Message) -> bytes:
        if method in self._answers:
            return self._answers[method].SerializeToString()
        if isinstance(message, nri_pb2.SynchronizeRequest):
            return nri_pb2.SynchronizeResponse(more=message.more).SerializeToString()
        return nri_pb2.ConfigureResponse(events=self._events).SerializeToString() if method == "Configure" else b""


def call_name(method: str, message: Message) -> str:
    """Return a call's name, the same for both forms in which events come."""
    if not isinstance(message, nri_pb2.StateChangeEvent):
        return method
    words = nri_pb2.Event.Name(message.event).split("_")
    return "".join(word.capitalize() for word in words)


@asynccontextmanager
async def connected(plugin: Plugin, socket: Path) -> AsyncIterator[Plugin]:
    """Yield the plugin registered and synchronised."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(plugin.run(socket))
        async with asyncio.timeout(PATIENCE_S):
            await plugin.synchronized.wait()
        yield plugin
        if not task.done():
            plugin.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletRequest:
    """A request as it came in; ``left_s`` is the time it leaves for an answer, None: any."""

    method: str
    data: bytes
    left_s: float | None


@dataclass
class Driver:
    """A DRA driver of one name; ``fail`` makes the next prepare of a claim's name fail, as claim error or status.

    ``requests`` has those for the health stream too, ``calls`` has not: these come when they like.
    """

    name: str
    directory: Path
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    requests: list[KubeletRequest] = field(default_factory=list)
    fail: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Driver]:
        """Serve both sockets, the registration socket last, and take them away again."""
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._registration(), self._dra(), self._health()))
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{self.name}-reg.sock"
        server.add_insecure_port(f"unix:{path}")
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)
            path.unlink(missing_ok=True)

    def _came(self, method: str, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self.requests.append(KubeletRequest(method=method, data=data, left_s=context.time_remaining()))

    def _health(self) -> grpc.GenericRpcHandler:
        async def watch(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> AsyncIterator[bytes]:
            self._came("NodeWatchResources", data, context)
            yield health_pb2.NodeWatchResourcesResponse().SerializeToString()
            await asyncio.Event().wait()  # until the stream or the server ends

        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "NodeWatchResources": grpc.unary_stream_rpc_method_handler(watch)
        }
        return grpc.method_handlers_generic_handler("v1alpha1.DRAResourceHealth", handlers)

    def _registration(self) -> grpc.GenericRpcHandler:
        async def get_info(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            self._came("GetInfo", data, context)
            self.calls.append(("GetInfo", ()))
            info = registration_pb2.PluginInfo(
                type="DRAPlugin", name=self.name, supported_versions=["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"]
            )
            return info.SerializeToString()

        async def notify(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            self._came("NotifyRegistrationStatus", data, context)
            status = registration_pb2.RegistrationStatus.FromString(data)
            self.calls.append(("NotifyRegistrationStatus", (status.error,) if status.error else ()))
            return b""

        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(get_info),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(notify),
        }
        return grpc.method_handlers_generic_handler("pluginregistration.Registration", handlers)

    def _dra(self) -> grpc.GenericRpcHandler:
        async def prepare(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            self._came("NodePrepareResources", data, context)
            request = dra_pb2.NodePrepareResourcesRequest.FromString(data)
            self.calls.append(("NodePrepareResources", tuple(claim.name for claim in request.claims)))
            answer = dra_pb2.NodePrepareResourcesResponse()
            for claim in request.claims:
                how = self.fail.pop(claim.name, "")
                if how == "status":
                    await context.abort(grpc.StatusCode.INTERNAL, "driver is unwell")
                result = answer.claims[claim.uid]
                result.error = how
                if not how:
                    cdi_id = f"{self.name}/cpu=claim-{claim.uid}"
                    result.devices.add(pool_name="node1", device_name="dev0", cdi_device_ids=[cdi_id])
            return answer.SerializeToString()

        async def unprepare(data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            self._came("NodeUnprepareResources", data, context)
            request = dra_pb2.NodeUnprepareResourcesRequest.FromString(data)
            self.calls.append(("NodeUnprepareResources", tuple(claim.name for claim in request.claims)))
            answer = dra_pb2.NodeUnprepareResourcesResponse()
            for claim in request.claims:
                answer.claims[claim.uid].error = ""
            return answer.SerializeToString()

        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "NodePrepareResources": grpc.unary_unary_rpc_method_handler(prepare),
            "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(unprepare),
        }
        return grpc.method_handlers_generic_handler("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", handlers)
