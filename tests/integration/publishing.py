"""A publisher of slices against the lab's API server, and clients whose answers come late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager

import pytest

from nodecpu.cpuset import NO_CPUS
from nodecpu.dra.devices import Device
from nodecpu.dra.publish import SlicePublisher
from nodecpu.kube.client import KubeClient
from tests.apiserver import Cluster

FOUR = ["cpudev000:4", "cpudev001:4"]


def devices(*capacities: int) -> tuple[Device, ...]:
    return tuple(
        Device(name=f"cpudev{i:03d}", cpus=NO_CPUS, capacity=c, attributes={"dra.cpu/numaNodeID": i})
        for i, c in enumerate(capacities)
    )


@asynccontextmanager
async def publishing(one: Cluster, *capacities: int, look_s: float = 600.0) -> AsyncIterator[SlicePublisher]:
    publisher = SlicePublisher(one.client, driver="dra.cpu", node="node1", wait_s=0.01, look_s=look_s)
    if capacities:
        publisher.publish(devices(*capacities))
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class LateAnswers:
    """A client whose answers to writes are held until they are free."""

    def __init__(self, client: KubeClient) -> None:
        self.free = asyncio.Event()
        self.told_deleted = 0
        self._client = client

    @property
    def is_answering(self) -> bool:
        return self._client.is_answering

    async def get(self, path: str, query: Mapping[str, str] = {}, *, timeout_s: float | None = None) -> bytes:
        return await self._client.get(path, query, timeout_s=timeout_s)

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        answer = await self._client.send(method, path, body)
        if "dryRun" not in path:
            await self.free.wait()
        return answer

    async def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._client.watch(path, query, silence_s=silence_s)) as lines:
            async for line in lines:
                yield line  # what follows is done when the line was taken
                self.told_deleted += b'"DELETED"' in line
