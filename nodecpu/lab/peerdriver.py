"""Another vendor's DRA driver on the node (asyncio): registers, and says yes to every claim.

Its devices have no CDI ids. Source: pluginregistration v1, DRAPlugin v1; interfaces.md 2.2, 2.3.
"""

from __future__ import annotations

from pathlib import Path

import grpc
import grpc.aio

from nodecpu.proto import dra_pb2, registration_pb2

_REGISTRATION = "pluginregistration.Registration"
_DRA = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"


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
        server.add_generic_rpc_handlers((self._registration(), self._dra()))
        server.add_insecure_port(f"unix:{self._socket}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop serving and take the socket away."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
            self._socket.unlink(missing_ok=True)

    def _registration(self) -> grpc.GenericRpcHandler:
        async def get_info(
            request: registration_pb2.InfoRequest, context: grpc.aio.ServicerContext[object, object]
        ) -> registration_pb2.PluginInfo:
            del request, context
            return registration_pb2.PluginInfo(
                type="DRAPlugin", name=self._name, endpoint=str(self._socket), supported_versions=["v1.DRAPlugin"]
            )

        async def notify(
            request: registration_pb2.RegistrationStatus, context: grpc.aio.ServicerContext[object, object]
        ) -> registration_pb2.RegistrationStatusResponse:
            del request, context
            return registration_pb2.RegistrationStatusResponse()

        return grpc.method_handlers_generic_handler(
            _REGISTRATION,
            {
                "GetInfo": grpc.unary_unary_rpc_method_handler(
                    get_info,
                    request_deserializer=registration_pb2.InfoRequest.FromString,
                    response_serializer=registration_pb2.PluginInfo.SerializeToString,
                ),
                "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                    notify,
                    request_deserializer=registration_pb2.RegistrationStatus.FromString,
                    response_serializer=registration_pb2.RegistrationStatusResponse.SerializeToString,
                ),
            },
        )

    def _dra(self) -> grpc.GenericRpcHandler:
        async def prepare(
            request: dra_pb2.NodePrepareResourcesRequest, context: grpc.aio.ServicerContext[object, object]
        ) -> dra_pb2.NodePrepareResourcesResponse:
            del context
            self.held |= {claim.uid for claim in request.claims}
            answers = {claim.uid: dra_pb2.NodePrepareResourceResponse() for claim in request.claims}
            return dra_pb2.NodePrepareResourcesResponse(claims=answers)

        async def unprepare(
            request: dra_pb2.NodeUnprepareResourcesRequest, context: grpc.aio.ServicerContext[object, object]
        ) -> dra_pb2.NodeUnprepareResourcesResponse:
            del context
            self.held -= {claim.uid for claim in request.claims}
            answers = {claim.uid: dra_pb2.NodeUnprepareResourceResponse() for claim in request.claims}
            return dra_pb2.NodeUnprepareResourcesResponse(claims=answers)

        return grpc.method_handlers_generic_handler(
            _DRA,
            {
                "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                    prepare,
                    request_deserializer=dra_pb2.NodePrepareResourcesRequest.FromString,
                    response_serializer=dra_pb2.NodePrepareResourcesResponse.SerializeToString,
                ),
                "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                    unprepare,
                    request_deserializer=dra_pb2.NodeUnprepareResourcesRequest.FromString,
                    response_serializer=dra_pb2.NodeUnprepareResourcesResponse.SerializeToString,
                ),
            },
        )
