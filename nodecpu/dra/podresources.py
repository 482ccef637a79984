"""Which NUMA nodes the devices are on that the kubelet gave to a container, by its pod-resources socket (shell; S).

The kubelet has allocated devices before it has the sandbox made, so it is asked when one is seen, and nobody waits: a
container that is created before the answer is here is placed without. Source: kubelet, pkg/kubelet/apis/podresources.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from nodecpu.cpuset import MAX_ID, NodeSet
from nodecpu.ids import SandboxID
from nodecpu.log import kv
from nodecpu.policy.facts import Sandbox
from nodecpu.proto import podresources_pb2 as pb

_LOG = logging.getLogger(__name__)

METHOD: Final = "/v1.PodResourcesLister/Get"
_TIMEOUT_S: Final = 2.0
_AT_ONCE: Final = 8
"""Source: the kubelet takes a burst of 10 calls, others included."""

_MOST_KEPT: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevice:
    """A device that a device plugin gave, by the name of its resource, and the NUMA nodes it is close to."""

    resource: str
    nodes: NodeSet


class PodResources:
    """Answers of the kubelet by sandbox; the oldest are forgotten."""

    def __init__(self, kubelet: Path) -> None:
        """``kubelet`` is its root directory."""
        self._socket = kubelet / "pod-resources" / "kubelet.sock"
        self._given: dict[SandboxID, dict[str, tuple[GivenDevice, ...]]] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._asking: set[asyncio.Task[None]] = set()

    def ask(self, sandbox: Sandbox) -> None:
        """Have the kubelet asked about a pod."""
        task = asyncio.get_running_loop().create_task(self._ask(sandbox), name=f"pod resources of {sandbox.name}")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def answered(self) -> None:
        """Wait until nothing is asked any more."""
        await asyncio.gather(*self._asking)

    def given(self, sandbox_id: SandboxID, container: str) -> tuple[GivenDevice, ...]:
        """Return the devices of a container as far as the kubelet has told them."""
        return self._given.get(sandbox_id, {}).get(container, ())

    async def _ask(self, sandbox: Sandbox) -> None:
        await asyncio.to_thread(importlib.import_module, "grpc.aio")  # slow to load, and seldom needed
        import grpc.aio  # noqa: PLC0415 - slow to load: by the line before

        request = pb.GetPodResourcesRequest(pod_name=sandbox.name, pod_namespace=sandbox.namespace)
        try:
            async with self._slots, grpc.aio.insecure_channel(f"unix:{self._socket}") as channel:
                call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
                answer = await call(request.SerializeToString(), timeout=_TIMEOUT_S)
            found = pb.GetPodResourcesResponse.FromString(answer).pod_resources
        except (grpc.aio.AioRpcError, DecodeError) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else "not a message"
            pod = f"{sandbox.namespace}/{sandbox.name}"
            kv(_LOG, logging.WARNING, "pod resources not known", pod=pod, path=self._socket, err=why)
            return
        self._given[sandbox.id] = {one.name: _devices(one.devices) for one in found.containers}
        if len(self._given) > _MOST_KEPT:
            del self._given[next(iter(self._given))]


def _devices(found: Iterable[pb.ContainerDevices]) -> tuple[GivenDevice, ...]:
    told = ((one.resource_name, [node.ID for node in one.topology.nodes if 0 <= node.ID <= MAX_ID]) for one in found)
    return tuple(GivenDevice(resource=name, nodes=NodeSet(nodes)) for name, nodes in told if nodes)
