"""What the cluster is burdened with: writes for each claim prepared, and in a day without change.

A day is counted, not waited for: as many looks at what is to be published, and as many ends of watches, as a day has by
the daemon's own periods, over HTTP against the lab's API server.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

from nodecpu.dra.devices import Dividing, devices_of
from nodecpu.dra.publish import SlicePublisher
from nodecpu.kube.claims import ClaimReader
from nodecpu.kube.nrt import JsonObject, TopologyPublisher, node_topology
from nodecpu.lab.jsontree import text
from nodecpu.lab.scheduler import Want
from nodecpu.lab.stage import Stage, StageSettings, opened
from nodecpu.lab.trace import Sent
from nodecpu.policy.usable import usable_cpus
from tests.apiserver import Cluster, cluster
from tests.bench.measure import Row
from tests.kubelet import until
from tests.unit.policy.machines import N4C16, books, build_topology

AUDITS_A_DAY = 8640
"""Every ten seconds (``enforce.period_s``) the devices are handed to the publisher, changed or not."""

WATCHES_A_DAY = 192
"""A watch lasts five to ten minutes."""

CLAIMS = 20
TOPOLOGY_WRITES = 4
_BOOKMARK_S = 0.02
_WRITES = ("create", "update", "patch", "delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What a day without change brings."""

    writes: int
    requests: int


def written(sent: tuple[Sent, ...], plural: str = "") -> int:
    """Return how many calls to the API server write objects, of one kind or of all."""
    ours = [one.call.partition(" ") for one in sent if one.link == "api" and one.sender == "node"]
    return sum(verb in _WRITES and rest.startswith(plural) for verb, _, rest in ours)


async def idle_day(*, audits: int, watches: int) -> Day:
    """Return what slices and NodeResourceTopology cost while nothing changes, after they were published once."""
    topology = build_topology(N4C16)
    none = topology.online - topology.online
    usable = usable_cpus(online=topology.online, isolated=none, available=None, kubepods=None, reserved=none)
    devices = devices_of(topology, usable, dividing=Dividing(), driver="dra.cpu")
    ledger = books(N4C16).ledger
    async with cluster(bookmark_s=_BOOKMARK_S) as one:
        slices = SlicePublisher(one.client, driver="dra.cpu", node="node1", wait_s=0.001)
        reader = ClaimReader(one.client, driver="dra.cpu", node="node1")
        pools = TopologyPublisher(
            one.client,
            reader,
            lambda: node_topology(ledger, topology, policy="best-effort"),
            node="node1",
            floor_s=0.001,
        )
        slices.publish(devices)
        running = [asyncio.create_task(slices.run()), asyncio.create_task(pools.run())]
        try:
            await until(lambda: bool(slices.status.in_step and pools.writes), limit_s=60)
            mark, opened_before = len(one.trace), len(one.calls("watch"))
            for watch in range(watches):
                for _ in range(audits // watches):
                    slices.publish(devices)
                    pools.changed()
                    await asyncio.sleep(0)
                await asyncio.sleep(2 * _BOOKMARK_S)  # a watch that told nothing is taken up again ever more slowly
                await one.server.break_connections()
                await _opened(one, opened_before + watch)
            sent = one.trace.since(mark)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    return Day(writes=written(sent), requests=len(sent))


async def topology_writes_a_second(writes: int) -> float:
    """Return how fast NodeResourceTopology is written while the pools never look the same twice."""
    times: list[float] = []
    topology, ledger = build_topology(N4C16), books(N4C16).ledger
    async with cluster() as one:
        reader = ClaimReader(one.client, driver="dra.cpu", node="node1")
        looks = itertools.count()

        def look() -> JsonObject:
            return node_topology(ledger, topology, policy=f"look-{next(looks)}")

        pools = TopologyPublisher(one.client, reader, look, node="node1")
        running = asyncio.create_task(pools.run())
        try:
            while len(times) < writes:
                if pools.writes > len(times):
                    times.append(time.monotonic())
                pools.changed()
                await asyncio.sleep(0.01)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    return (writes - 1) / (times[-1] - times[0])


async def _opened(one: Cluster, before: int) -> None:
    """Return when more watches were opened than before."""
    await until(lambda: len(one.calls("watch")) > before, limit_s=60)


async def _claims() -> tuple[float, float]:
    """Return slice writes and all writes per claim prepared and unprepared by the daemon."""
    settings = StageSettings(machine="2 sockets, 2 nodes, 8 cores, 2 threads", daemon={"policy": {"reserved": "63"}})
    async with opened(settings) as stage:
        await stage.start_daemon(wait=True)
        mark = len(stage.trace)
        for number in range(CLAIMS):
            await _one_claim(stage, f"claim-{number}")
        sent = stage.trace.since(mark)
    return written(sent, "resourceslices") / CLAIMS, written(sent) / CLAIMS


async def _one_claim(stage: Stage, name: str) -> None:
    wants = [Want(request="cpus", cpus="2")]
    stage.cluster.create_claim("default", name, wants)
    claim = stage.cluster.allocate("default", name, wants)
    await stage.kubelet.prepare([claim])
    assert stage.kubelet.prepared(text(claim, "metadata", "uid")) is not None
    await stage.kubelet.unprepare(claim)


def rows() -> Iterator[Row]:
    """Yield the rows."""
    slices, everything = asyncio.run(_claims())
    about = f"claim prepared and unprepared, of {CLAIMS}"
    yield Row(what=f"slice writes, each {about}", value=slices, unit="writes", target="0", limit=0)
    yield Row(what=f"writes of any kind, each {about}", value=everything, unit="writes", target="0", limit=0)
    day = asyncio.run(idle_day(audits=AUDITS_A_DAY, watches=WATCHES_A_DAY))
    about = f"a day without change ({AUDITS_A_DAY} audits, {WATCHES_A_DAY} watches ended, counted)"
    yield Row(what=f"writes, {about}", value=day.writes, unit="writes", target="0", limit=0)
    yield Row(what=f"requests of any kind, {about}", value=day.requests, unit="requests")
    yield Row(
        what="NodeResourceTopology while pools change all the time: writes a second",
        value=asyncio.run(topology_writes_a_second(TOPOLOGY_WRITES)),
        unit="",
        target="≤ 1",
        limit=1,
    )
