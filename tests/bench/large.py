"""What large and odd nodes cost, and a hundred pods at once; the tables are printed by ``tests.bench.scale``.

Each machine is made up, read, and served by a daemon of its own over the wire. Slices are those that it would publish.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from nodecpu.arrangement import Arrangement, arrange
from nodecpu.config import Config
from nodecpu.config_sections import Grouping
from nodecpu.cpuset import CpuSet
from nodecpu.dra.slices import Create, make_pool, plan_writes, slice_object
from nodecpu.topology.sysfs import read_topology
from tests.bench.curves import rest
from tests.bench.measure import machine_tree, measured, median, number
from tests.bench.node_rows import DEVICES, Node, linked, variables, wait_for_pods, wait_for_slices
from tests.bench.start_rows import Starts
from tests.bench.yard import ApiProcess, Claim, yard
from tests.support import ROOT

MACHINES: Final[Mapping[str, str]] = {
    "16 CPUs, 1 node": "1 sockets, 1 nodes, 8 cores, 2 threads",
    "256 CPUs, 8 nodes": "2 sockets, 4 nodes, 16 cores, 2 threads, l3 4",
    "256 CPUs, 8 nodes, sparse ids": "2 sockets, 4 nodes, 16 cores, 2 threads, l3 4, cpu-step 7, node-step 9",
    "4096 CPUs, 32 nodes": "8 sockets, 4 nodes, 64 cores, 2 threads, l3 8",
    "4096 CPUs, 64 nodes": "8 sockets, 8 nodes, 32 cores, 2 threads, l3 8",
}
GROUPINGS: Final[Sequence[Grouping]] = ("numa", "individual")
PODS: Final = 100
ROUNDS: Final = 20


def machines() -> Iterator[str]:
    """Yield the table of machines: what they are made of, and the processor time of what is done on them."""
    yield "| machine | CPU ids | pools | topology, ms | start to synchronised, ms | creation, ms | stop, ms | MiB |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, machine in MACHINES.items():
        arranged = _arranged(machine, "numa")
        cells = (
            name,
            f"0 to {max(arranged.usable.all)}",
            f"{len(arranged.tree.pools)}",
            number(_reading_ms(machine)),
            *_served(machine),
        )
        yield f"| {' | '.join(cells)} |"


def _reading_ms(machine: str) -> float:
    """Return what it takes to read a machine's topology."""
    with machine_tree(machine) as root:
        return measured(lambda: read_topology(root), rounds=3).cpu_s * 1e3


def _arranged(machine: str, grouping: Grouping) -> Arrangement:
    """Return a machine as the daemon arranges it."""
    config = Config()
    with machine_tree(machine) as root:
        topology = read_topology(root)
    return arrange(replace(config, dra=replace(config.dra, grouping=grouping)), topology, None, node="node")


def _served(machine: str) -> Sequence[str]:
    """Return what a daemon takes on a machine: to start, to create and to stop, and its memory."""
    with yard(machine) as place:
        place.configure(reserved="0")
        starts = Starts(place, ROOT)
        starts.empty(3)
    with yard(machine) as place:
        api = ApiProcess(pods=1, claims=[], cpus=1)
        place.configure(api.url, reserved="0")
        process = place.daemon(ROOT)
        with linked(place, api, process) as node:
            wait_for_slices(api)
            rest(process.used_s)
            times = []
            for _ in range(ROUNDS):
                box = node.ordinary()
                created, _ = node.create(box)
                times.append((created, node.stop(box)))
            took = (
                median(starts.times["start empty"]),
                median([created for created, _ in times]),
                median([stopped for _, stopped in times]),
            )
            return *(number(one.cpu_s * 1e3) for one in took), f"{process.rss_mib:.1f}"


def slices() -> Iterator[str]:
    """Yield the table of what is published: grouped by NUMA node, and a device for each CPU."""
    yield "| machine | grouping | devices | slices | KB in all | largest, KB |"
    yield "|---|---|---|---|---|---|"
    for name, machine in MACHINES.items():
        for grouping in GROUPINGS:
            devices = _arranged(machine, grouping).devices
            pool = make_pool("dra.cpu", "node", devices)
            writes = plan_writes(pool, (), {})
            sizes = [len(json.dumps(slice_object(pool, one, "uid"))) for one in writes if isinstance(one, Create)]
            cells = (
                name,
                grouping,
                f"{len(devices)}",
                f"{len(sizes)}",
                f"{sum(sizes) / 1000:.0f}",
                f"{max(sizes) / 1000:.0f}",
            )
            yield f"| {' | '.join(cells)} |"


def burst() -> Iterator[str]:
    """Yield the table of pods that come all at once, on 256 CPUs: a claim of one CPU and two containers each."""
    yield f"| {PODS} pods at once, a claim and two containers each | |"
    yield "|---|---|"
    with yard() as place:
        claims = [[DEVICES[number % len(DEVICES)]] for number in range(PODS + 1)]
        api = ApiProcess(pods=1, claims=claims, cpus=1)
        place.configure(api.url)
        process = place.daemon(ROOT)
        with linked(place, api, process) as node:
            wait_for_slices(api)
            *claimed, spare = api.claims
            wait_for_pods(node, spare)
            rest(process.used_s)
            before = api.calls()
            yield from _at_once(node, claimed)
            asked = {call: count - before.get(call, 0) for call, count in sorted(api.calls().items())}
            told = ", ".join(f"{count} {call}" for call, count in asked.items() if count)
            yield f"| requests to the API server | {told} |"
            yield f"| resident memory afterwards | {process.rss_mib:.1f} MiB |"


def _at_once(node: Node, claims: Sequence[Claim]) -> Iterator[str]:
    """Prepare all claims at once, as the kubelet does, and create all containers, as fast as a runtime could ask."""
    began = time.perf_counter()

    def prepare(claim: Claim) -> float:
        node.kubelet.prepare(claim)
        return time.perf_counter() - began

    with ThreadPoolExecutor(len(claims)) as threads:
        answered = sorted(threads.map(prepare, claims))
    yield f"| first, median and last claim prepared after | {_ms(answered)} ms |"
    given, times = [], []
    for claim in claims:
        env = variables(node, claim)
        boxes = [node.box(claim.pod, name, env) for name in ("c0", "c1")]
        times += [node.create(box)[0].wall_s for box in boxes]
        given.append(CpuSet(cpu for box in boxes for cpu in node.yard.cpus_of(box)))
    yield f"| fastest, median and slowest creation | {_ms(sorted(times))} ms |"
    yield f"| CPUs that the pods have, and that two of them have | {len(_union(given))}, {_twice(given)} |"


def _ms(times: Sequence[float]) -> str:
    return " / ".join(number(times[at] * 1e3) for at in (0, len(times) // 2, -1))


def _union(sets: Sequence[CpuSet]) -> CpuSet:
    return CpuSet(cpu for one in sets for cpu in one)


def _twice(sets: Sequence[CpuSet]) -> int:
    return sum(len(one) for one in sets) - len(_union(sets))
