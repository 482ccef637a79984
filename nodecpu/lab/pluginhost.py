"""The runtime's NRI adaptation (asyncio): takes plugins in, configures and synchronises them, passes events on.

One plugin registers at a time; one lifecycle request runs at a time, under ``lifecycle``, which Synchronize and
unsolicited updates take too. A plugin that fails to answer is dropped and the request goes on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from nodecpu.lab.cgroups import CgroupError
from nodecpu.lab.flavours import Flavour
from nodecpu.lab.pluginlink import PluginGone, PluginLink
from nodecpu.lab.podspec import CgroupDriver
from nodecpu.lab.trace import Trace
from nodecpu.nri.ttrpc import CallError, Code
from nodecpu.proto import nri_pb2

REGISTRATION_TIMEOUT_S: Final = 5.0
_LEAST_PART: Final = 8
"""Source: containerd/nri, minObjectsPerMessage of the split synchronisation."""

EVENT_RPCS: Final[Mapping[int, tuple[str, type[Message], type[Message]]]] = MappingProxyType(
    {
        nri_pb2.RUN_POD_SANDBOX: ("RunPodSandbox", nri_pb2.RunPodSandboxRequest, nri_pb2.RunPodSandboxResponse),
        nri_pb2.STOP_POD_SANDBOX: ("StopPodSandbox", nri_pb2.StopPodSandboxRequest, nri_pb2.StopPodSandboxResponse),
        nri_pb2.REMOVE_POD_SANDBOX: (
            "RemovePodSandbox",
            nri_pb2.RemovePodSandboxRequest,
            nri_pb2.RemovePodSandboxResponse,
        ),
        nri_pb2.POST_CREATE_CONTAINER: (
            "PostCreateContainer",
            nri_pb2.PostCreateContainerRequest,
            nri_pb2.PostCreateContainerResponse,
        ),
        nri_pb2.START_CONTAINER: ("StartContainer", nri_pb2.StartContainerRequest, nri_pb2.StartContainerResponse),
        nri_pb2.POST_START_CONTAINER: (
            "PostStartContainer",
            nri_pb2.PostStartContainerRequest,
            nri_pb2.PostStartContainerResponse,
        ),
        nri_pb2.POST_UPDATE_CONTAINER: (
            "PostUpdateContainer",
            nri_pb2.PostUpdateContainerRequest,
            nri_pb2.PostUpdateContainerResponse,
        ),
        nri_pb2.REMOVE_CONTAINER: ("RemoveContainer", nri_pb2.RemoveContainerRequest, nri_pb2.RemoveContainerResponse),
    }
)

Reply = TypeVar("Reply", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """How a runtime is set up. ``message_limit_bytes`` is where Synchronize is cut into pieces."""

    flavour: Flavour
    socket: Path
    cdi_directory: Path
    cgroup_driver: CgroupDriver = CgroupDriver.SYSTEMD
    request_timeout_s: float = 2.0
    message_limit_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What an event is about; ``note`` names it for people."""

    note: str
    pod: nri_pb2.PodSandbox
    container: nri_pb2.Container | None = None


class World(Protocol):
    """The runtime's objects, as the adaptation needs them."""

    def listed(self) -> tuple[Sequence[nri_pb2.PodSandbox], Sequence[nri_pb2.Container]]:
        """Return what Synchronize shows."""

    def apply(self, updates: Iterable[nri_pb2.ContainerUpdate], *, strict: bool) -> None:
        """Apply plugins' updates; with ``strict`` CgroupError if one fails that must not."""


class PluginHost:
    """The adaptation between ``start`` and ``stop``. ``faults`` collects what would have blocked a real runtime."""

    def __init__(self, settings: RuntimeSettings, world: World, trace: Trace) -> None:
        self.plugins: list[PluginLink] = []
        self.faults: list[str] = []
        self.synchronized = 0
        self.dropped = 0
        self.refused = 0
        self.waiting = 0
        self.lifecycle = asyncio.Lock()
        self._settings = settings
        self._flavour = settings.flavour
        self._world = world
        self._trace = trace
        self._registering = asyncio.Lock()
        self._links: dict[asyncio.Task[None], PluginLink] = {}
        self._server: asyncio.Server | None = None

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Make the socket anew and listen; plugins are served by ``tasks``."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = PluginLink(reader, writer, trace=self._trace, on_update=self._unsolicited)
            task = tasks.create_task(self._connected(link))
            self._links[task] = link
            task.add_done_callback(self._links.pop)

        self._settings.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._settings.socket.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(accept, self._settings.socket)

    async def stop(self) -> None:
        """Close every trunk and stop listening; the socket's file stays behind."""
        if self._server is None:
            return
        self._server.close()
        ended = tuple(self._links)
        self.drop_plugins()
        await asyncio.gather(*ended, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def drop_plugins(self) -> None:
        """Close every plugin's trunk without any reason."""
        for link in tuple(self._links.values()):
            link.close()

    def subscribed(self, event: int) -> Iterator[PluginLink]:
        """Yield the plugins that want an event, in the order in which they are called."""
        yield from [plugin for plugin in self.plugins if plugin.wants(event)]

    async def call(self, plugin: PluginLink, method: str, request: Message, reply: type[Reply], note: str) -> Reply:
        """Return a plugin's answer. Raises CallError, or PluginGone after which the plugin is no longer called."""
        try:
            return await plugin.call(method, request, reply, timeout_s=self._settings.request_timeout_s, note=note)
        except PluginGone:
            self.dropped += 1
            self._forget(plugin)
            raise

    async def tell(self, event: int, subject: Subject) -> None:
        """Pass an event on, in the form that runtime and plugin have in common. Raises a plugin's CallError."""
        for plugin in self.subscribed(event):
            with suppress(PluginGone):
                if not await self._told_by_rpc(plugin, event, subject):
                    await self._tell_by_state_change(plugin, event, subject)

    async def tell_quietly(self, event: int, subject: Subject) -> None:
        """Pass an event on whose errors are only logged by real runtimes."""
        with suppress(CallError):
            await self.tell(event, subject)

    async def _told_by_rpc(self, plugin: PluginLink, event: int, subject: Subject) -> bool:
        if not (self._flavour.own_rpcs and plugin.knows_new_rpcs):
            return False
        rpc, request_type, reply_type = EVENT_RPCS[event]
        if subject.container is None:
            request = request_type(pod=subject.pod)
        else:
            request = request_type(pod=subject.pod, container=subject.container)
        try:
            await self.call(plugin, rpc, request, reply_type, subject.note)
        except CallError as error:
            if error.status != Code.UNIMPLEMENTED:
                raise
            plugin.knows_new_rpcs = False
            return False
        return True

    async def _tell_by_state_change(self, plugin: PluginLink, event: int, subject: Subject) -> None:
        change = nri_pb2.StateChangeEvent(
            event=nri_pb2.Event.ValueType(event), pod=subject.pod, container=subject.container
        )
        note = f"{EVENT_RPCS[event][0]} {subject.note}"
        await self.call(plugin, "StateChange", change, nri_pb2.Empty, note)

    async def _connected(self, link: PluginLink) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(link.read())
                await self._register(link)
        finally:
            link.close()
            self._forget(link)

    def _forget(self, link: PluginLink) -> None:
        if link in self.plugins:
            self.plugins.remove(link)

    async def _register(self, link: PluginLink) -> None:
        try:
            async with self._registering:
                async with asyncio.timeout(REGISTRATION_TIMEOUT_S):
                    await link.registered.wait()
                await self._configure(link)
                async with self.lifecycle:
                    await self._synchronize(link)
                    self.plugins.append(link)
                    self.plugins.sort(key=lambda one: one.index)
                    self.synchronized += 1
        except (PluginGone, CallError, CgroupError, TimeoutError):
            self.refused += 1
            link.close()

    async def _configure(self, link: PluginLink) -> None:
        request = nri_pb2.ConfigureRequest(
            runtime_name=self._flavour.runtime_name,
            runtime_version=self._flavour.runtime_version,
            registration_timeout=int(REGISTRATION_TIMEOUT_S * 1000),
            request_timeout=int(self._settings.request_timeout_s * 1000),
            NRI_version=self._flavour.nri_version,
        )
        note = f"{self._flavour.runtime_name} {self._flavour.runtime_version}"
        answer = await self.call(link, "Configure", request, nri_pb2.ConfigureResponse, note)
        if answer.events & ~self._flavour.known_events:
            raise PluginGone(f"{link.label}: invalid event mask 0x{answer.events:x}")
        link.events = answer.events or self._flavour.known_events

    async def _synchronize(self, link: PluginLink) -> None:
        pods, containers = self._world.listed()
        async with asyncio.timeout(self._settings.request_timeout_s):
            for request in cut(pods, containers, self._settings.message_limit_bytes):
                note = f"{len(request.pods)} pods, {len(request.containers)} containers"
                answer = await self.call(link, "Synchronize", request, nri_pb2.SynchronizeResponse, note)
                if request.more and (answer.update or not answer.more):
                    raise PluginGone(f"{link.label}: wrong answer to a part of Synchronize")
                if not request.more:
                    self._world.apply(answer.update, strict=self._flavour.strict_updates)

    async def _unsolicited(
        self, link: PluginLink, request: nri_pb2.UpdateContainersRequest
    ) -> nri_pb2.UpdateContainersResponse:
        if self.lifecycle.locked() and not self._flavour.unsolicited_safe:
            self.faults.append(
                f"unsolicited update of {link.label} during a request: it would have blocked the runtime"
            )
        self.waiting += 1
        async with self.lifecycle:
            self.waiting -= 1
            try:
                self._world.apply(request.update, strict=True)
            except CgroupError as error:
                raise CallError(Code.UNKNOWN, "NRI update of some containers failed") from error
        return nri_pb2.UpdateContainersResponse()


def cut(
    pods: Sequence[nri_pb2.PodSandbox], containers: Sequence[nri_pb2.Container], limit_bytes: int
) -> Iterator[nri_pb2.SynchronizeRequest]:
    """Yield the messages of one synchronisation: one if it fits, else pods and containers cut independently.

    Both counts are scaled by limit / size, at most 0.9, not below 8 objects. Source: containerd/nri, plugin.go.
    """
    whole = nri_pb2.SynchronizeRequest(pods=pods, containers=containers)
    size = whole.ByteSize()
    if size <= limit_bytes:
        yield whole
        return
    scale = min(limit_bytes / size, 0.9)
    pod_count = max(int(len(pods) * scale), _LEAST_PART)
    container_count = max(int(len(containers) * scale), _LEAST_PART)
    while pods or containers:
        first_pods, pods = pods[:pod_count], pods[pod_count:]
        first_containers, containers = containers[:container_count], containers[container_count:]
        yield nri_pb2.SynchronizeRequest(pods=first_pods, containers=first_containers, more=bool(pods or containers))
