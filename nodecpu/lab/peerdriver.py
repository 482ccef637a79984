"""Another vendor's DRA driver on the node (asyncio): registers, and says yes to every claim.

Its devices have no CDI ids. Source: pluginregistration v1, DRAPlugin v1; interfaces.md 2.2, 2.3.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from nodecpu.proto import dra_pb2, registration_pb2

_REGISTRATION = "pluginregistration.Registration"
_DRA = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"

_Request = TypeVar("_Request", bound=Message)


class PeerDriver:
    """Serves between ``start`` and ``stop``; ``held`` are the UIDs of the claims it has prepared."""

    def __init__(self, kubelet: Path, name: str) -> None:
        self.held: set[str] = set()
        self._name = name
        self._socket = kubelet / "plugins_registry" / f"{name}-reg.sock"
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serve both services on one socket."""
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.aio.server()
        registration = {
            "GetInfo": _unary(self._info, registration_pb2.InfoRequest),
            "NotifyRegistrationStatus": _unary(_notified, registration_pb2.RegistrationStatus),
        }
        dra = {
            "NodePrepareResources": _unary(self._prepare, dra_pb2.NodePrepareResourcesRequest),
            "NodeUnprepareResources": _unary(self._unprepare, dra_pb2.NodeUnprepareResourcesRequest),
        }
        services = ((_REGISTRATION, registration), (_DRA, dra))
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in services)
        )
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop serving and take the socket away."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
            self._socket.unlink(missing_ok=True)

    def _info(self, _: registration_pb2.InfoRequest) -> registration_pb2.PluginInfo:
        return registration_pb2.PluginInfo(
            type="DRAPlugin", name=self._name, endpoint=str(self._socket), supported_versions=["v1.DRAPlugin"]
        )

    def _prepare(self, request: dra_pb2.NodePrepareResourcesRequest) -> dra_pb2.NodePrepareResourcesResponse:
        self.held |= {claim.uid for claim in request.claims}
        answers = {claim.uid: dra_pb2.NodePrepareResourceResponse() for claim in request.claims}
        return dra_pb2.NodePrepareResourcesResponse(claims=answers)

    def _unprepare(self, request: dra_pb2.NodeUnprepareResourcesRequest) -> dra_pb2.NodeUnprepareResourcesResponse:
        self.held -= {claim.uid for claim in request.claims}
        answers = {claim.uid: dra_pb2.NodeUnprepareResourceResponse() for claim in request.claims}
        return dra_pb2.NodeUnprepareResourcesResponse(claims=answers)


def _notified(_: registration_pb2.RegistrationStatus) -> registration_pb2.RegistrationStatusResponse:
    return registration_pb2.RegistrationStatusResponse()


def _unary(answer: Callable[[_Request], Message], request: type[_Request]) -> grpc.RpcMethodHandler[bytes, bytes]:
    """Return a method that answers a request of that type at once."""

    async def serve(data: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return answer(request.FromString(data)).SerializeToString()

    return grpc.unary_unary_rpc_method_handler(serve)
