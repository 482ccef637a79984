"""The floor of a kubelet call: a gRPC service on the daemon's stack whose answer is always the same.

As a process: ``python -m tests.bench.echo_grpc SOCKET``.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import grpc.aio

from nodecpu.dra.service import SERVICE_NAME
from nodecpu.proto import dra_pb2 as pb


async def _prepare(
    request: pb.NodePrepareResourcesRequest,
    _context: grpc.aio.ServicerContext[pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse],
) -> pb.NodePrepareResourcesResponse:
    device = pb.Device(
        request_names=["cpus"], pool_name="node", device_name="cpudevnuma000", cdi_device_ids=["x/cpu=y"]
    )
    return pb.NodePrepareResourcesResponse(
        claims={one.uid: pb.NodePrepareResourceResponse(devices=[device]) for one in request.claims}
    )


async def _unprepare(
    request: pb.NodeUnprepareResourcesRequest,
    _context: grpc.aio.ServicerContext[pb.NodeUnprepareResourcesRequest, pb.NodeUnprepareResourcesResponse],
) -> pb.NodeUnprepareResourcesResponse:
    return pb.NodeUnprepareResourcesResponse(
        claims={one.uid: pb.NodeUnprepareResourceResponse() for one in request.claims}
    )


async def main(socket: str) -> None:
    """Serve until killed."""
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
            _prepare,
            request_deserializer=pb.NodePrepareResourcesRequest.FromString,
            response_serializer=pb.NodePrepareResourcesResponse.SerializeToString,
        ),
        "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
            _unprepare,
            request_deserializer=pb.NodeUnprepareResourcesRequest.FromString,
            response_serializer=pb.NodeUnprepareResourcesResponse.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
