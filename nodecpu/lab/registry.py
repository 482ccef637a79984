"""The kubelet's plugin manager (asyncio): finds drivers by their registration sockets, registers them, talks to them.

Each socket file is one attempt after another until it succeeds or the file is gone; a removed file is a driver gone.
Source: Kubernetes 1.36, pkg/kubelet/pluginmanager; recorded deadlines.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from nodecpu.lab.trace import Trace
from nodecpu.proto import dra_pb2, health_pb2, registration_pb2

_REGISTRATION: Final = "/pluginregistration.Registration/"
_DRA: Final = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"
_HEALTH: Final = "/v1alpha1.DRAResourceHealth/NodeWatchResources"
_KNOWN_VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
_FIRST_RETRY_S: Final = 0.5
_LONGEST_RETRY_S: Final = 122.0
_HEALTH_RETRY_S: Final = 5.0
_DRA_DEADLINE_S: Final = 45.0

Reply = TypeVar("Reply", bound=Message)


class DriverFault(Exception):
    """A driver's call failed, or there is no such driver; the text is what the kubelet puts into events."""


@dataclass(frozen=True, slots=True)
class SocketFile:
    """One life of a socket file: made anew it is another one."""

    path: Path
    inode: int
    made_ns: int


class Driver:
    """A registered driver with its one connection; ``health`` is what it last told of its devices, and why."""

    def __init__(self, name: str, endpoint: str, trace: Trace) -> None:
        self.name = name
        self.health: dict[str, tuple[str, str]] = {}
        self._trace = trace
        self._channel = grpc.aio.insecure_channel(f"unix:{endpoint}")
        self._is_closed = False

    async def prepare(self, request: dra_pb2.NodePrepareResourcesRequest) -> dra_pb2.NodePrepareResourcesResponse:
        """Return the answer to NodePrepareResources. Raises DriverFault for a gRPC error."""
        reply = dra_pb2.NodePrepareResourcesResponse
        return await self._call("NodePrepareResources", request, reply, _claims(request.claims))

    async def unprepare(self, request: dra_pb2.NodeUnprepareResourcesRequest) -> dra_pb2.NodeUnprepareResourcesResponse:
        """Return the answer to NodeUnprepareResources. Raises DriverFault for a gRPC error."""
        reply = dra_pb2.NodeUnprepareResourcesResponse
        return await self._call("NodeUnprepareResources", request, reply, _claims(request.claims))

    async def watch_health(self) -> None:
        """Hold the health stream open, again and again; a driver without it is no fault."""
        watch = self._channel.unary_stream(_HEALTH, request_serializer=bytes, response_deserializer=bytes)
        while True:
            try:
                self._trace.add("dra", "kubelet", "NodeWatchResources", "")
                async for message in watch(b""):
                    self._heard(message)
            except grpc.aio.AioRpcError:
                pass
            await asyncio.sleep(_HEALTH_RETRY_S)

    def _heard(self, message: bytes) -> None:
        """Take a health message for all that is known: a device that is not in it has no health."""
        told = health_pb2.NodeWatchResourcesResponse.FromString(message)
        self.health = {
            one.device.device_name: (health_pb2.HealthStatus.Name(one.health), one.message) for one in told.devices
        }

    async def close(self) -> None:
        """Close the connection; calls in hand fail."""
        self._is_closed = True
        await self._channel.close()

    async def _call(self, method: str, request: Message, reply: type[Reply], note: str) -> Reply:
        self._trace.add("dra", "kubelet", method, note, request)
        try:
            answer = await _unary(self._channel, _DRA + method, request, reply, _DRA_DEADLINE_S)
        except grpc.aio.AioRpcError as error:
            text = f"rpc error: code = {error.code().name} desc = {error.details()}"
            self._trace.add("dra", "driver", method, text)
            raise DriverFault(text) from error
        except asyncio.CancelledError as error:
            if not self._is_closed:
                raise
            raise DriverFault("rpc error: code = Canceled desc = the driver's socket was made anew") from error
        self._trace.add("dra", "driver", method, "", answer)
        return answer


class Registry:
    """The drivers of one kubelet process; ``run`` works until it is cancelled."""

    def __init__(self, directory: Path, trace: Trace, *, poll_s: float = 0.02) -> None:
        self.drivers: dict[str, Driver] = {}
        self._directory = directory
        self._trace = trace
        self._poll_s = poll_s
        self._lost: asyncio.Queue[str] = asyncio.Queue()

    def driver(self, name: str) -> Driver:
        """Return a registered driver. Raises DriverFault."""
        found = self.drivers.get(name)
        if found is None:
            raise DriverFault(f"DRA driver {name} is not registered")
        return found

    async def lost(self) -> str:
        """Return the name of the next driver that goes."""
        return await self._lost.get()

    async def run(self) -> None:
        """Follow the directory: register what appears, forget what goes."""
        self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        lives: dict[SocketFile, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as tasks:
            while True:
                present = set(socket_files(self._directory))
                for gone in lives.keys() - present:
                    lives.pop(gone).cancel()
                for new in present - lives.keys():
                    lives[new] = tasks.create_task(self._live(new))
                await asyncio.sleep(self._poll_s)

    async def _live(self, socket: SocketFile) -> None:
        wait_s = _FIRST_RETRY_S
        while True:
            try:
                driver = await self._register(socket)
            except (grpc.aio.AioRpcError, DriverFault) as error:
                self._trace.add("registration", "kubelet", "failed", f"{socket.path.name}: {type(error).__name__}")
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LONGEST_RETRY_S)
                continue
            try:
                await driver.watch_health()
            finally:
                if self.drivers.get(driver.name) is driver:
                    del self.drivers[driver.name]
                    self._lost.put_nowait(driver.name)
                await driver.close()

    async def _register(self, socket: SocketFile) -> Driver:
        async with grpc.aio.insecure_channel(f"unix:{socket.path}") as channel:
            self._trace.add("registration", "kubelet", "GetInfo", socket.path.name, registration_pb2.InfoRequest())
            info = await _unary(
                channel,
                f"{_REGISTRATION}GetInfo",
                registration_pb2.InfoRequest(),
                registration_pb2.PluginInfo,
                1.0,
            )
            self._trace.add("registration", "driver", "GetInfo", f"{info.type} {info.name}", info)
            fault = info_fault(info)
            driver = Driver(info.name, info.endpoint or str(socket.path), self._trace)
            if not fault:
                self.drivers[info.name] = driver
            status = registration_pb2.RegistrationStatus(plugin_registered=not fault, error=fault)
            self._trace.add("registration", "kubelet", "NotifyRegistrationStatus", fault or info.name, status)
            try:
                reply = registration_pb2.RegistrationStatusResponse
                await _unary(channel, f"{_REGISTRATION}NotifyRegistrationStatus", status, reply, 5.0)
            except grpc.aio.AioRpcError:
                fault = fault or "not notified"
            if fault:
                if self.drivers.get(info.name) is driver:
                    del self.drivers[info.name]
                await driver.close()
                raise DriverFault(fault)
            return driver


def info_fault(info: registration_pb2.PluginInfo) -> str:
    """Return why the kubelet would not take a plugin, "" if it would."""
    if info.type != "DRAPlugin":
        return f"no handler registered for plugin type: {info.type} at socket"
    if not info.name or len(info.name) > 63:
        return f"invalid driver name {info.name!r}"
    if not any(version in _KNOWN_VERSIONS for version in info.supported_versions):
        return f"none of the provided versions {list(info.supported_versions)} is supported"
    if next(version for version in info.supported_versions if version in _KNOWN_VERSIONS) != _KNOWN_VERSIONS[0]:
        return "the lab speaks v1.DRAPlugin only, and the driver prefers another"
    if info.endpoint and not info.endpoint.startswith("/"):
        return f"endpoint {info.endpoint!r} is not absolute"
    return ""


def socket_files(directory: Path) -> Iterator[SocketFile]:
    """Yield the registration sockets below a directory."""
    for path in sorted(directory.rglob("*")):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(found.st_mode) and not path.name.startswith("."):
            yield SocketFile(path, found.st_ino, found.st_ctime_ns)


async def _unary(
    channel: grpc.aio.Channel, path: str, request: Message, reply: type[Reply], deadline_s: float
) -> Reply:
    def parse(data: bytes) -> Reply:
        return reply.FromString(data)

    def serialize(message: Message) -> bytes:
        return message.SerializeToString()

    call = channel.unary_unary(path, request_serializer=serialize, response_deserializer=parse)
    answer: Reply = await call(request, timeout=deadline_s)
    return answer


def _claims(claims: Iterable[dra_pb2.Claim]) -> str:
    return ", ".join(f"{claim.namespace}/{claim.name}" for claim in claims)
