"""Registration with the kubelet, v1, and the two sockets it needs (shell; D5).

The kubelet watches plugins_registry: a socket that appears there is asked who it is, then told whether it was taken.
The DRA service's socket therefore comes first and goes last. Registration never waits for the runtime and is never
withdrawn while we run: without it even unprepare could not reach us.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from nodecpu.dra.health import SUPPORTED_VERSIONS as HEALTH_VERSIONS
from nodecpu.dra.health import HealthService
from nodecpu.dra.service import CALL_LIMIT_S, SUPPORTED_VERSION, ClaimService, DraService
from nodecpu.dra.sockets import UnixServer, check_socket_path
from nodecpu.errors import HostError
from nodecpu.log import kv
from nodecpu.proto import registration_pb2 as pb

SERVICE_NAME: Final = "pluginregistration.Registration"
_PLUGIN_TYPE: Final = "DRAPlugin"
_EXPECTED_S: Final = 60.0
_SHOWN_AGAIN_S: Final = 600.0
"""A kubelet whose watch of the directory failed sees a socket again only when it is made anew (pitfall U86)."""

_CLOSE_GRACE_S: Final = 5.0
_HINT: Final = "paths.kubelet has to be the kubelet's --root-dir"

_log = logging.getLogger(__name__)

_InfoContext = grpc.aio.ServicerContext[pb.InfoRequest, pb.PluginInfo]
_StatusContext = grpc.aio.ServicerContext[pb.RegistrationStatus, pb.RegistrationStatusResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletStatus:
    """What the kubelet said last about our registration: ``error`` is its text when it refused."""

    registered: bool
    error: str = ""


def registration_socket(kubelet: Path, driver: str) -> Path:
    """Return the path of the registration socket below the kubelet's directory."""
    return kubelet / "plugins_registry" / f"{driver}-reg.sock"


def service_socket(kubelet: Path, driver: str) -> Path:
    """Return the path of the DRA service's socket below the kubelet's directory."""
    return kubelet / "plugins" / driver / "dra.sock"


class KubeletPlugin:
    """The driver as the kubelet sees it: registration and DRA service on two sockets of its directory.

    ``bound`` is set once both sockets are there. ``on_status`` is told, on the loop, what the kubelet says about each
    registration; the kubelet deletes the node's ResourceSlices at each of its starts, before it registers us.
    """

    def __init__(  # noqa: PLR0913 - its doors, and two times that tests shorten
        self,
        *,
        driver: str,
        kubelet: Path,
        claims: ClaimService,
        health: HealthService | None = None,
        on_status: Callable[[KubeletStatus], None] | None = None,
        check_s: float = 10.0,
        expected_s: float = _EXPECTED_S,
    ) -> None:
        """``check_s`` is the time between two looks; after ``expected_s`` the kubelet should have said something."""
        self.bound = asyncio.Event()
        self.status: KubeletStatus | None = None
        self._driver = driver
        self._claims = claims
        self._health = health
        self._on_status = on_status
        self._check_s = check_s
        self._expected_s = expected_s
        self._troubles: dict[UnixServer, str] = {}  # why a socket cannot be opened again, as told
        self._service = UnixServer(service_socket(kubelet, driver), hidden_name=".dra")
        self._registration = UnixServer(registration_socket(kubelet, driver), hidden_name=f".{driver}")

    async def run(self) -> None:
        """Serve until cancelled; calls in hand are then ended first. Raises HostError if the sockets cannot be.

        A socket that somebody removes is made anew within ``check_s``, or as soon as that can be: what we serve besides
        does not end for it.
        """
        for socket in (self._service, self._registration):
            check_socket_path(socket.path)
        async with asyncio.TaskGroup() as operations:
            health = self._health.handlers() if self._health is not None else ()
            handlers: dict[UnixServer, Sequence[grpc.GenericRpcHandler]] = {
                self._service: (DraService(self._claims, operations).handler(), *health),
                self._registration: (self._handler(),),
            }
            try:
                for socket, served in handlers.items():
                    await socket.open(served)
                    kv(_log, logging.INFO, "socket opened", path=socket.path)
                self.bound.set()
                await self._watch(handlers, operations)
            finally:
                self.bound.clear()
                self._registration.remove()
                if self._health is not None:
                    self._health.close()
                await self._service.close(grace_s=_CLOSE_GRACE_S)
                await self._registration.close(grace_s=0)

    async def _watch(
        self, handlers: dict[UnixServer, Sequence[grpc.GenericRpcHandler]], operations: asyncio.TaskGroup
    ) -> None:
        loop = asyncio.get_running_loop()
        expected_by = loop.time() + self._expected_s
        while True:
            await asyncio.sleep(self._check_s)
            for socket, served in handlers.items():
                if not socket.is_there():
                    await self._open_again(socket, served, operations)
            if self.status is None and loop.time() > expected_by:
                expected_by = loop.time() + max(_SHOWN_AGAIN_S, self._expected_s)
                kv(
                    _log,
                    logging.WARNING,
                    "no kubelet has registered us yet, our socket is made anew",
                    path=self._registration.path,
                    hint=_HINT,
                )
                self._registration.remove()
                await self._open_again(self._registration, handlers[self._registration], operations)

    async def _open_again(
        self, socket: UnixServer, handlers: Sequence[grpc.GenericRpcHandler], operations: asyncio.TaskGroup
    ) -> None:
        """Open a socket anew; calls in hand on what was there before may end, nobody waits for them."""
        try:
            before = await socket.open(handlers)
        except HostError as err:
            if self._troubles.get(socket) != str(err):
                self._troubles[socket] = str(err)
                words = "socket is gone and cannot be opened, it is tried again"
                kv(_log, logging.ERROR, words, err=err.message, hint=err.hint)
            return
        self._troubles.pop(socket, None)
        kv(_log, logging.WARNING, "socket was gone, opened again", path=socket.path)
        if before is not None:
            operations.create_task(before.stop(CALL_LIMIT_S))

    def _handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    self._get_info,
                    request_deserializer=pb.InfoRequest.FromString,
                    response_serializer=pb.PluginInfo.SerializeToString,
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    self._notify,
                    request_deserializer=pb.RegistrationStatus.FromString,
                    response_serializer=pb.RegistrationStatusResponse.SerializeToString,
                ),
            },
        )

    async def _get_info(self, _request: pb.InfoRequest, _context: _InfoContext) -> pb.PluginInfo:
        return pb.PluginInfo(
            type=_PLUGIN_TYPE,
            name=self._driver,
            endpoint=str(self._service.path),
            supported_versions=[SUPPORTED_VERSION, *(HEALTH_VERSIONS if self._health is not None else ())],
        )

    async def _notify(self, request: pb.RegistrationStatus, _context: _StatusContext) -> pb.RegistrationStatusResponse:
        self.status = KubeletStatus(registered=request.plugin_registered, error=request.error)
        if self.status.registered:
            kv(_log, logging.INFO, "registered with the kubelet", path=self._registration.path)
        else:
            kv(_log, logging.ERROR, "the kubelet refused us", path=self._registration.path, err=self.status.error)
        if self._on_status is not None:
            self._on_status(self.status)
        return pb.RegistrationStatusResponse()
