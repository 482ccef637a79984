"""The node's NodeResourceTopology: what the pools look like, for schedulers and for people (X2).

The object is pure. A zone stands for each pool, named and typed as nri-plugins' topology-aware policy does; one more
for each NUMA node with CPUs, ``node-0`` of type ``Node``, which is all that the scheduler plugin
NodeResourceTopologyMatch reads. Each level tells the whole node anew: amounts are never to be added over types.

The publisher writes on a change in meaning only, at most once a second, and looks now and then whether what is stored
is still so. Without the CRD it says so once and looks again every ten minutes. Source: interfaces.md 5.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec

from nodecpu.cpuset import CpuSet, NodeSet, union
from nodecpu.errors import LinkError, NotReady
from nodecpu.kube.claims import ClaimReader
from nodecpu.kube.client import Api, ApiError, api_path
from nodecpu.kube.watch import Backoff, asked_to_wait_s
from nodecpu.log import kv
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.pools import Level, Pool
from nodecpu.policy.shared import shared_cpus
from nodecpu.topology.model import NumaNode, Topology

JsonObject: TypeAlias = "Mapping[str, object]"

API_VERSION: Final = "topology.node.k8s.io/v1alpha2"
_TOPOLOGIES: Final = f"/apis/{API_VERSION}/noderesourcetopologies"
_FLOOR_S: Final = 1.0
_RECHECK_S: Final = 600.0

_NAMES: Final = {Level.SOCKET: "socket", Level.DIE: "die", Level.NUMA: "NUMA node", Level.L3: "L3 cache"}
_TYPES: Final = {
    Level.ROOT: "virtual node",
    Level.SOCKET: "socket",
    Level.DIE: "die",
    Level.NUMA: "numa node",
    Level.L3: "L3 cache",
}

_log = logging.getLogger(__name__)


def node_topology(ledger: Ledger, topology: Topology, *, policy: str) -> JsonObject:
    """Return what the object says beside its metadata: attributes and zones, parents before children.

    ``policy`` is the kubelet's topology manager policy that the scheduler plugin is to assume.
    """
    pools = ledger.tree.pools
    claimed = union(claim.cpus for claim in ledger.claims.values() if not claim.moved)
    exclusive = union(container.exclusive for container in ledger.containers.values())
    zones: list[JsonObject] = [_pool_zone(ledger, topology, pool, claimed, exclusive) for pool in pools]
    zones += [_numa_zone(ledger, topology, node) for node in topology.numa if node.cpus & ledger.tree.root.cpus]
    return {
        "topologyPolicies": [],
        "attributes": _attributes(
            TopologyPolicy="nodecpu", topologyManagerPolicy=policy, topologyManagerScope="container"
        ),
        "zones": zones,
    }


def zone_name(pool: Pool) -> str:
    """Return a pool's zone name: ``root``, ``socket #0``, ``die #0/1``, ``NUMA node #3``, ``L3 cache #2``."""
    if pool.level is Level.ROOT:
        return pool.name
    return f"{_NAMES[pool.level]} #{pool.name.rpartition(' ')[2]}"


def _pool_zone(ledger: Ledger, topology: Topology, pool: Pool, claimed: CpuSet, exclusive: CpuSet) -> JsonObject:
    zone: dict[str, object] = {"name": zone_name(pool), "type": _TYPES[pool.level]}
    if len(pool.ancestors) > 1:
        zone["parent"] = zone_name(ledger.tree.pools[pool.ancestors[1]])
    told = {
        "memory set": str(pool.mems),
        "shared cpuset": str(shared_cpus(ledger, pool)),
        "reserved cpuset": str(pool.reserved),
        "isolated cpuset": str(ledger.free(pool.isolated)),
        "claimed cpuset": str(claimed & pool.cpus),
        "exclusive cpuset": str(exclusive & pool.cpus),
    }
    zone["attributes"] = [{"name": name, "value": value} for name, value in told.items() if value]
    zone["resources"] = [
        _cpu(ledger, pool.cpus, pool.reserved, ledger.portions_mcpu(pool)),
        *([] if pool.level is Level.L3 else [_memory(topology, pool.mems)]),
    ]
    return zone


def _numa_zone(ledger: Ledger, topology: Topology, node: NumaNode) -> JsonObject:
    """Return a NUMA node as the scheduler plugin wants it: shared portions count where their pool is or is within."""
    cpus = node.cpus & ledger.tree.root.cpus
    home = ledger.tree.holding(cpus)
    within = [pool for pool in ledger.tree.pools if pool.cpus <= cpus]
    top = min(within, key=lambda pool: pool.depth, default=None)
    costs = [
        {"name": f"node-{other.id}", "value": node.distances[other.id]}
        for other in topology.numa
        if other.cpus and other.id in node.distances
    ]
    return {
        "name": f"node-{node.id}",
        "type": "Node",
        "parent": zone_name(home),
        "costs": costs,
        "resources": [
            _cpu(ledger, cpus, cpus & ledger.tree.usable.reserved, ledger.portions_mcpu(top) if top else 0),
            _memory(topology, NodeSet((node.id,))),
        ],
    }


def _cpu(ledger: Ledger, cpus: CpuSet, reserved: CpuSet, portions_mcpu: int) -> JsonObject:
    free_mcpu = max(0, 1000 * len(ledger.free(cpus - reserved)) - portions_mcpu)
    return _resource("cpu", 1000 * len(cpus), 1000 * len(cpus - reserved), free_mcpu, _milli)


def _memory(topology: Topology, mems: NodeSet) -> JsonObject:
    size = sum(node.size_bytes for node in topology.numa if node.id in mems)
    return _resource("memory", size, size, size, str)


def _resource(name: str, capacity: int, allocatable: int, available: int, text: Callable[[int], str]) -> JsonObject:
    return {
        "name": name,
        "capacity": text(capacity),
        "allocatable": text(allocatable),
        "available": text(available),
    }


def _milli(amount: int) -> str:
    """Return an amount in milli-CPU as the API server writes it back."""
    return f"{amount}m" if amount % 1000 else str(amount // 1000)


def _attributes(**values: str) -> list[JsonObject]:
    return [{"name": name, "value": value} for name, value in values.items() if value]


class _Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str
    uid: str


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata


class TopologyPublisher:
    """Keeps the node's object as ``look`` says. ``changed`` has it looked at soon."""

    def __init__(
        self,
        api: Api,
        reader: ClaimReader,
        look: Callable[[], JsonObject],
        *,
        node: str,
        floor_s: float = _FLOOR_S,
        recheck_s: float = _RECHECK_S,
    ) -> None:
        """``floor_s`` is the least time between two writes, ``recheck_s`` that between two looks at what is stored."""
        self._floor_s = floor_s
        self._recheck_s = recheck_s
        self.error = ""
        self.writes = 0
        self._api = api
        self._reader = reader
        self._look = look
        self._node = node
        self._path = _TOPOLOGIES + api_path(node)
        self._due = asyncio.Event()
        self._told: bytes | None = None
        self._stored: _Metadata | None = None

    def changed(self) -> None:
        """Have it looked at soon, and written if it means something else."""
        self._due.set()

    async def run(self) -> None:
        """Publish until cancelled, whatever happens to the API server."""
        backoff = Backoff(first_s=self._floor_s, cap_s=60.0)
        loop = asyncio.get_running_loop()
        recheck_at = loop.time() + self._recheck_s
        self._due.set()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(recheck_at):
                    await self._due.wait()
            if loop.time() >= recheck_at:  # by the clock: changes in a row must not put it off
                recheck_at = loop.time() + self._recheck_s
                self._stored = None  # somebody may have changed or deleted it
            self._due.clear()
            try:
                await self._publish()
                backoff.reset()
                self.error = ""
                pause = self._floor_s
            except (LinkError, NotReady, ApiError) as error:
                self._stored = None
                self._due.set()
                pause = self._recheck_s if self._is_missing(error) else max(asked_to_wait_s(error), backoff.next_s())
                self._failed(error)
            await asyncio.sleep(pause)

    async def _publish(self) -> None:
        wanted = self._look()
        text = msgspec.json.encode(wanted)
        if self._stored is None:
            self._told = await self._read()
        if self._told is not None and _means(self._told, text):
            return
        node_uid = await self._reader.node_uid()
        if node_uid is None:
            raise NotReady(f"node {self._node}: the API server knows no Node of that name")
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node_uid}
        metadata: dict[str, object] = {"name": self._node, "ownerReferences": [owner]}
        if self._stored is not None:
            metadata |= {"resourceVersion": self._stored.resource_version, "uid": self._stored.uid}
        body = msgspec.json.encode(
            {"apiVersion": API_VERSION, "kind": "NodeResourceTopology", "metadata": metadata, **wanted}
        )
        if self._stored is None:
            answer = await self._api.send("POST", _TOPOLOGIES, body)
        else:
            answer = await self._api.send("PUT", self._path, body)
        self.writes += 1
        self._stored, self._told = _metadata(answer), text
        kv(_log, logging.DEBUG, "node topology written", version=self._stored.resource_version)

    async def _read(self) -> bytes | None:
        """Return what is stored, None if nothing is; the CRD's absence shows in the write."""
        try:
            answer = await self._api.get(self._path)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        self._stored = _metadata(answer)
        return answer

    def _is_missing(self, error: Exception) -> bool:
        return isinstance(error, ApiError) and error.status == 404

    def _failed(self, error: LinkError | NotReady | ApiError) -> None:
        if self.error == error.message:
            return
        self.error = error.message
        if self._is_missing(error):
            kv(
                _log,
                logging.WARNING,
                "the cluster has no NodeResourceTopology, looked for again every ten minutes",
                hint="install its CRD (nodecpu manifests --topology-crd), or set kube.node_topology = false",
            )
        else:
            kv(_log, logging.WARNING, "node topology not written, tried again for ever", err=error)


def _metadata(answer: bytes) -> _Metadata:
    try:
        return msgspec.json.decode(answer, type=_Stored).metadata
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LinkError(f"API server: malformed NodeResourceTopology: {str(error)[:200]}") from error


def _means(stored: bytes, wanted: bytes) -> bool:
    """Return whether a stored object says what is wanted; what is absent and what is empty are the same."""
    have, want = msgspec.json.decode(stored), msgspec.json.decode(wanted)
    return all((have.get(key) or []) == value for key, value in want.items())
