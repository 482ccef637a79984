"""The lab's API server and a client of it, for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import kubernetes.client  # long to read on a busy machine: no call's time is to go to it
import kubernetes.config  # noqa: F401 - used by the client

from nodecpu.kube.client import KubeClient
from nodecpu.lab.apiserver import ApiServer
from nodecpu.lab.jsontree import JsonObject
from nodecpu.lab.objects import KINDS, SLICES, Key
from nodecpu.lab.trace import Trace

NODES = next(kind for kind in KINDS if kind.plural == "nodes")
CLAIMS = next(kind for kind in KINDS if kind.plural == "resourceclaims")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """An API server with a node, and our client."""

    server: ApiServer
    trace: Trace
    client: KubeClient
    tasks: asyncio.TaskGroup

    async def restart(self) -> None:
        """Serve again, after ``server.stop``."""
        await self.server.start(self.tasks)

    def slices(self) -> list[JsonObject]:
        return self.server.store.find(SLICES)

    def devices(self) -> list[str]:
        """Return ``name:capacity`` of all devices stored."""
        found = json.loads(json.dumps([one["spec"] for one in self.slices()]))
        return [
            f"{device['name']}:{device['capacity']['dra.cpu/cpu']['value']}"
            for spec in found
            for device in spec.get("devices", [])
        ]

    def remove_slice(self, number: int) -> None:
        """Delete one slice, by its place among all, as somebody does by hand."""
        found = json.loads(json.dumps([one["metadata"] for one in self.slices()]))[number]
        self.server.store.remove(Key(kind=SLICES, namespace="", name=found["name"]))

    def remove_slices(self) -> None:
        for one in json.loads(json.dumps([one["metadata"] for one in self.slices()])):
            self.server.store.remove(Key(kind=SLICES, namespace="", name=one["name"]))

    def calls(self, verb: str, *, since: int = 0) -> list[str]:
        return [call for call in self.trace.calls("api", "node", since=since) if call.startswith(verb)]


def kubeconfig(url: str) -> Mapping[str, object]:
    """Return the content of a kubeconfig for a server without TLS."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "users": [{"name": "lab", "user": {"token": "secret"}}],
    }


@asynccontextmanager
async def cluster(*, node: str = "node1", timeout_s: float = 5.0, bookmark_s: float = 5.0) -> AsyncIterator[Cluster]:
    """Serve a cluster of one node for as long as the block lasts."""
    trace = Trace()
    server = ApiServer(trace, bookmark_s=bookmark_s)
    async with asyncio.TaskGroup() as tasks:
        await server.start(tasks)
        if node:
            server.store.create(NODES, "", {"metadata": {"name": node}})
        client = KubeClient(kubeconfig(server.url), timeout_s=timeout_s)
        try:
            yield Cluster(server=server, trace=trace, client=client, tasks=tasks)
        finally:
            client.close()
            await server.stop()
