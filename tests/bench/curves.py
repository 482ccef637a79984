"""How costs grow: with containers, with CPUs, with claims. ``python -m tests.bench.curves DIRECTORY`` draws them.

Costs are the daemon's processor time for one call over the wire, medians: the clock would measure the neighbours too.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.bench.measure import Took, median
from tests.bench.node_rows import Node, linked
from tests.bench.start_rows import Starts, boxes
from tests.bench.svg import Chart, Series
from tests.bench.yard import ApiProcess, Claim, Yard, yard
from tests.support import ROOT

CONTAINERS: Final = (0, 10, 100, 1000)
MACHINES: Final = {
    16: "2 sockets, 4 nodes, 1 cores, 2 threads",
    128: "2 sockets, 4 nodes, 8 cores, 2 threads, l3 4",
    1024: "2 sockets, 4 nodes, 64 cores, 2 threads, l3 8",
    4096: "8 sockets, 4 nodes, 64 cores, 2 threads, l3 8",
}
CLAIMS: Final = (1, 16, 256)
ROUNDS: Final = 25
WARM: Final = 5
_DEVICES: Final = tuple(f"cpudevnuma{number:03d}" for number in range(2, 8))
_UP: Final = "processor time of one call, ms"

Points = dict[str, list[tuple[float, float]]]


def by_containers() -> Points:
    """Return the costs by the number of containers on a node of 256 CPUs."""
    points: Points = {}
    claims = [_DEVICES[:1]] * 1
    with yard() as place, _node(place, claims) as node:
        for count in CONTAINERS:
            node.grow(count)
            _calls(node, points, count)
            _kubelet(node, node.api.claims[0], points, count)
    with yard() as place:
        for count in CONTAINERS[1:]:
            starts = Starts(place, ROOT)
            place.configure()
            starts.synchronize(boxes(count))
            _add(points, "Synchronize, all new", count, median(starts.times["synchronize new"]))
            _add(points, "Synchronize, all known", count, median(starts.times["synchronize known"]))
    return points


def by_cpus() -> Points:
    """Return the costs by the number of CPUs, with ten containers."""
    points: Points = {}
    for cpus, machine in MACHINES.items():
        with yard(machine) as place, _node(place, [_DEVICES[:1]]) as node:
            node.grow(10)
            _calls(node, points, cpus)
            _kubelet(node, node.api.claims[0], points, cpus)
        with yard(machine) as place:
            place.configure()
            starts = Starts(place, ROOT)
            starts.empty(3)
            _add(points, "start to synchronised", cpus, median(starts.times["start empty"]))
    return points


def by_claims() -> Points:
    """Return the costs by the number of claims that are prepared already, on a node of 1024 CPUs."""
    points: Points = {}
    claims = [[_DEVICES[number % len(_DEVICES)]] for number in range(max(CLAIMS) + 1)]
    with yard(MACHINES[1024]) as place, _node(place, claims) as node:
        node.grow(10)
        for before, count in zip((0, *CLAIMS), CLAIMS, strict=False):
            for claim in node.api.claims[before:count]:
                node.kubelet.prepare(claim)
            _calls(node, points, count)
            _kubelet(node, node.api.claims[-1], points, count)
    return points


def _calls(node: Node, points: Points, at: float) -> None:
    times = []
    for _ in range(WARM + ROUNDS):
        box = node.ordinary()
        created, _ = node.create(box)
        times.append((created, node.stop(box)))
    del times[:WARM]
    _add(points, "CreateContainer", at, median([created for created, _ in times]))
    _add(points, "StopContainer", at, median([stopped for _, stopped in times]))


def _kubelet(node: Node, claim: Claim, points: Points, at: float) -> None:
    times = []
    for _ in range(ROUNDS):
        prepared, _ = node.kubelet.prepare(claim)
        times.append((prepared, node.kubelet.unprepare(claim)))
        node.settle()
    _add(points, "NodePrepareResources", at, median([prepared for prepared, _ in times]))
    _add(points, "NodeUnprepareResources", at, median([unprepared for _, unprepared in times]))


def _add(points: Points, name: str, at: float, took: Took) -> None:
    points.setdefault(name, []).append((at, took.cpu_s * 1e3))


@contextlib.contextmanager
def _node(place: Yard, claims: Sequence[Sequence[str]]) -> Iterator[Node]:
    """Yield a node with a daemon that is ready."""
    api = ApiProcess(pods=max(CONTAINERS) // 4 + 1, claims=claims, cpus=1)
    place.configure(api.url, reserved="0")
    process = place.daemon(ROOT)
    with linked(place, api, process) as node:
        node.kubelet.prepare(api.claims[0])  # waits for what is still being loaded
        node.kubelet.unprepare(api.claims[0])
        rest(process.used_s)
        yield node


def rest(used_s: Callable[[], float]) -> None:
    """Wait until a start's work is over: what other threads still do would be taken for the calls'."""
    end = time.monotonic() + 30
    before = used_s()
    while time.monotonic() < end:
        time.sleep(0.5)
        if (now := used_s()) - before < 0.02:
            return
        before = now
    raise RuntimeError("the daemon does not come to rest after its start")


CURVES: Final[dict[str, tuple[str, str, Callable[[], Points]]]] = {
    "containers": ("Costs by containers on a node of 256 CPUs", "containers", by_containers),
    "cpus": ("Costs by CPUs, ten containers", "CPUs", by_cpus),
    "claims": ("Costs by claims that are prepared already, 1024 CPUs", "claims", by_claims),
}


def main(directory: Path) -> None:
    """Draw all and print the exponents as a table."""
    sys.stdout.write("| by | cost | exponent | processor time, ms |\n|---|---|---|---|\n")
    for name, (title, across, measure) in CURVES.items():
        series = [Series(name=one, points=found) for one, found in measure().items()]
        chart = Chart(title=title, across=across, up=_UP, series=series)
        (directory / f"costs-by-{name}.svg").write_text(chart.svg())
        for one in series:
            values = ", ".join(f"{x:g}: {y:.2f}" for x, y in one.points)
            sys.stdout.write(f"| {across} | {one.name} | {one.exponent:z.2f} | {values} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
