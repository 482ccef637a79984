"""Stand-ins around the NRI plugin: the service behind it, the observer beside it, the runtime before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.message import Message

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.ids import ContainerID
from nodecpu.nri.connection import LinkState
from nodecpu.nri.mux import PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.plugin import PLUGIN_SERVICE
from nodecpu.nri.ttrpc import Event, Request, Response, Ttrpc
from nodecpu.nri.versions import RuntimeVersion
from nodecpu.policy.facts import Container, Resources, Sandbox
from nodecpu.policy.plan import Creation, Placement, Update
from nodecpu.proto import nri_pb2

PATIENCE_S = 20.0
"""How long a test waits for what must come, before it fails."""


def placement(cpus: str, mems: str = "", shares: int | None = None) -> Placement:
    return Placement(cpus=CpuSet.parse(cpus), mems=NodeSet.parse(mems), shares=shares)


def update(container_id: str, cpus: str, mems: str = "") -> Update:
    return Update(container_id=ContainerID(container_id), placement=placement(cpus, mems))


@dataclass
class FakeService:
    """Notes each call as (verb, sandbox name, container name) and gives the answers it was told to give."""

    calls: list[tuple[str, ...]] = field(default_factory=list)
    sandboxes: list[Sandbox] = field(default_factory=list)
    containers: list[Container] = field(default_factory=list)
    wanted: Resources | None = None
    runtime: RuntimeVersion | None = None
    creation: Creation = Creation(placement=None)  # noqa: RUF009 - frozen
    updates: tuple[Update, ...] = ()
    before_answer: Callable[[str], None] = lambda verb: None

    def _note(self, verb: str, sandbox: Sandbox | None = None, container: Container | None = None) -> None:
        names = tuple(one.name for one in (sandbox, container) if one is not None)
        self.calls.append((verb, *names))
        if sandbox is not None:
            self.sandboxes.append(sandbox)
        if container is not None:
            self.containers.append(container)
        self.before_answer(verb)

    def runtime_connected(self, runtime: RuntimeVersion) -> None:
        self.runtime = runtime
        self._note("connected")

    def runtime_lost(self) -> None:
        self._note("lost")

    def synchronize(self, sandboxes: Sequence[Sandbox], containers: Sequence[Container]) -> tuple[Update, ...]:
        self.sandboxes += sandboxes
        self.containers += containers
        self._note("synchronize")
        return self.updates

    def run_sandbox(self, sandbox: Sandbox) -> None:
        self._note("run", sandbox)

    def stop_sandbox(self, sandbox: Sandbox) -> None:
        self._note("stop sandbox", sandbox)

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        self._note("remove sandbox", sandbox)

    def create_container(self, sandbox: Sandbox, container: Container) -> Creation:
        self._note("create", sandbox, container)
        return self.creation

    def update_container(self, sandbox: Sandbox, container: Container, wanted: Resources) -> tuple[Update, ...]:
        self.wanted = wanted
        self._note("update", sandbox, container)
        return self.updates

    def container_seen(self, sandbox: Sandbox, container: Container) -> None:
        self._note("seen", sandbox, container)

    def stop_container(self, sandbox: Sandbox | None, container: Container) -> tuple[Update, ...]:
        self._note("stop", sandbox, container)
        return self.updates

    def remove_container(self, sandbox: Sandbox | None, container: Container) -> None:
        self._note("remove", sandbox, container)


class Watcher:
    """A LinkObserver whose states can be awaited."""

    def __init__(self) -> None:
        self.seen: list[tuple[LinkState, str]] = []
        self._changed = asyncio.Condition()
        self._news = asyncio.Event()

    def link_changed(self, state: LinkState, detail: str) -> None:
        self.seen.append((state, detail))
        self._news.set()

    async def reached(self, state: LinkState, *, times: int = 1) -> None:
        """Return once ``state`` was told ``times`` times."""
        async with asyncio.timeout(PATIENCE_S):
            while sum(1 for told, _ in self.seen if told is state) < times:
                self._news.clear()
                await self._news.wait()


class RuntimeEnd:
    """The runtime's end of one trunk."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.mux = Mux()
        self.calls = Ttrpc()
        self.serves = Ttrpc()

    async def next_event(self) -> Event | None:
        """Return what the plugin sends next, on either connection; None at the end."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for codec in (self.calls, self.serves):
                    if (event := codec.next_event()) is not None:
                        return event
                frame = self.mux.next_event()
                if frame is not None:
                    (self.calls if frame.conn == PLUGIN_CONN else self.serves).receive(frame.payload)
                    continue
                data = await self.reader.read(1 << 16)
                if not data:
                    return None
                self.mux.receive(data)

    async def response(self) -> Response:
        event = await self.next_event()
        assert isinstance(event, Response), event
        return event

    async def request(self) -> Request:
        event = await self.next_event()
        assert isinstance(event, Request), event
        return event

    def send(self, method: str, message: Message, *, timeout_ns: int = 0, service: str = PLUGIN_SERVICE) -> None:
        payload = message.SerializeToString()
        _, data = self.calls.send_request(service, method, payload, timeout_ns=timeout_ns)
        self.writer.write(self.mux.send(PLUGIN_CONN, data))

    async def call(self, method: str, message: Message) -> Response:
        self.send(method, message)
        return await self.response()

    def answer(self, request: Request, payload: bytes = b"") -> None:
        self.writer.write(self.mux.send(RUNTIME_CONN, self.serves.send_response(request.stream_id, payload)))

    def refuse(self, request: Request, status: int, text: str) -> None:
        self.writer.write(self.mux.send(RUNTIME_CONN, self.serves.send_error(request.stream_id, status, text)))

    async def register(self) -> Request:
        request = await self.request()
        assert request.method == "RegisterPlugin"
        self.answer(request)
        return request

    async def bring_up(self, *, nri_version: str = "v0.12.2", request_timeout_ms: int = 2000) -> None:
        """Register, configure and synchronise a plugin on an empty node."""
        await self.register()
        configure = nri_pb2.ConfigureRequest(
            runtime_name="containerd",
            runtime_version="v2.4.0",
            NRI_version=nri_version,
            request_timeout=request_timeout_ms,
        )
        assert (await self.call("Configure", configure)).error is None
        assert (await self.call("Synchronize", nri_pb2.SynchronizeRequest())).error is None

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


class FakeRuntime:
    """Listens on an NRI socket; ``accept`` returns the trunks in order."""

    def __init__(self) -> None:
        self._accepted: asyncio.Queue[RuntimeEnd] = asyncio.Queue()
        self._all: list[RuntimeEnd] = []

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = RuntimeEnd(reader, writer)
        self._all.append(end)
        await self._accepted.put(end)

    async def accept(self) -> RuntimeEnd:
        async with asyncio.timeout(PATIENCE_S):
            return await self._accepted.get()

    async def close(self) -> None:
        for end in self._all:
            await end.close()


@asynccontextmanager
async def listening(socket: Path) -> AsyncIterator[FakeRuntime]:
    """Listen as a runtime does: the socket file is replaced at the start."""
    runtime = FakeRuntime()
    server = await asyncio.start_unix_server(runtime._connected, socket)
    try:
        yield runtime
    finally:
        server.close()
        await runtime.close()
        await server.wait_closed()
