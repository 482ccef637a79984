"""The kubelet's device health streams, v1 and v1alpha1, on the DRA service's socket (shell; D6).

Each message is the full list. It is sent at once, when something has changed, and again at every heartbeat, well within
the time after which the kubelet takes silence for unknown. A stream ends with its call or with ``close``, never leaving
anything behind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import grpc
import grpc.aio

from nodecpu.dra.condition import Condition, Health
from nodecpu.proto import health_pb2 as pb

SUPPORTED_VERSIONS: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""What the registration calls these services, which are their gRPC names too. Source: interfaces.md 2.2, 2.4."""

HEARTBEAT_S: Final = 10.0
_TIMEOUT_S: Final = 30
_STATUS: Final = {Health.UNKNOWN: pb.UNKNOWN, Health.HEALTHY: pb.HEALTHY, Health.UNHEALTHY: pb.UNHEALTHY}

_Context = grpc.aio.ServicerContext[pb.NodeWatchResourcesRequest, pb.NodeWatchResourcesResponse]


class HealthService:
    """The streams; ``look`` tells all conditions at this moment."""

    def __init__(self, look: Callable[[], Sequence[Condition]], *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._look = look
        self._heartbeat_s = heartbeat_s
        self._changed = asyncio.Event()
        self._closed = False
        self._told: tuple[Condition, ...] = ()

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """Return what a gRPC server needs to serve both versions."""
        method = grpc.unary_stream_rpc_method_handler(
            self._watch,
            request_deserializer=pb.NodeWatchResourcesRequest.FromString,
            response_serializer=pb.NodeWatchResourcesResponse.SerializeToString,
        )
        return tuple(
            grpc.method_handlers_generic_handler(name, {"NodeWatchResources": method}) for name in SUPPORTED_VERSIONS
        )

    def changed(self) -> None:
        """Have the conditions looked at and sent now."""
        self._changed.set()
        self._changed = asyncio.Event()

    def look_again(self) -> None:
        """Have the conditions sent now if they are not those that were sent last."""
        if tuple(self._look()) != self._told:
            self.changed()

    def close(self) -> None:
        """End all streams, for good."""
        self._closed = True
        self.changed()

    async def _watch(
        self, _request: pb.NodeWatchResourcesRequest, _context: _Context
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        while not self._closed:
            changed = self._changed
            self._told = tuple(self._look())
            yield _message(self._told)
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await changed.wait()
            except TimeoutError:
                pass


def _message(found: Sequence[Condition]) -> pb.NodeWatchResourcesResponse:
    now = int(time.time())
    return pb.NodeWatchResourcesResponse(
        devices=[
            pb.DeviceHealth(
                device=pb.DeviceIdentifier(pool_name=one.pool, device_name=one.device),
                health=_STATUS[one.health],
                last_updated_time=now,
                health_check_timeout_seconds=_TIMEOUT_S,
                message=one.message,
            )
            for one in found
        ]
    )
