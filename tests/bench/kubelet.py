"""The kubelet's end of the plugin socket: blocking calls, messages built before and taken apart after.

A call's time is by the clock, less the processor time that this end took meanwhile: gRPC's work is done twice, once
at each end, and only the other's is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import grpc

from nodecpu.proto import dra_pb2
from tests.bench.measure import Took
from tests.bench.messages import NAMESPACE
from tests.bench.yard import Claim

_Call: TypeAlias = "grpc.UnaryUnaryMultiCallable[bytes, bytes]"
_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"


class KubeletEnd:
    """A connection to a driver."""

    def __init__(self, socket: Path, used_s: Callable[[], float]) -> None:
        """``used_s`` is to tell the processor time of the other end so far."""
        self._used_s = used_s
        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self._prepare: _Call = self._channel.unary_unary(f"{_SERVICE}NodePrepareResources")
        self._unprepare: _Call = self._channel.unary_unary(f"{_SERVICE}NodeUnprepareResources")

    def wait(self) -> None:
        """Return when it is connected."""
        grpc.channel_ready_future(self._channel).result(60)

    def prepare(self, claim: Claim) -> tuple[Took, Sequence[str]]:
        """Return how long it took, and the claim's CDI ids; raises RuntimeError for an error."""
        request = dra_pb2.NodePrepareResourcesRequest(claims=[_named(claim)]).SerializeToString()
        reply, took = self._timed(self._prepare, request)
        answer = dra_pb2.NodePrepareResourcesResponse.FromString(reply).claims[claim.uid]
        if answer.error:
            raise RuntimeError(answer.error)
        return took, [one for device in answer.devices for one in device.cdi_device_ids]

    def unprepare(self, claim: Claim) -> Took:
        """Return how long it took; raises RuntimeError for an error."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[_named(claim)]).SerializeToString()
        reply, took = self._timed(self._unprepare, request)
        error = dra_pb2.NodeUnprepareResourcesResponse.FromString(reply).claims[claim.uid].error
        if error:
            raise RuntimeError(error)
        return took

    def _timed(self, call: _Call, request: bytes) -> tuple[bytes, Took]:
        used_s = self._used_s()
        own_s, start = time.process_time(), time.perf_counter()
        reply = call(request, timeout=60)
        end = time.perf_counter()
        own_s = time.process_time() - own_s
        return reply, Took(wall_s=end - start - own_s, cpu_s=self._used_s() - used_s)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def _named(claim: Claim) -> dra_pb2.Claim:
    return dra_pb2.Claim(namespace=NAMESPACE, name=claim.name, uid=claim.uid)
