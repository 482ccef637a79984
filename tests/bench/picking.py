"""Picking and giving back 1 to 64 CPUs of 4096, and 1 to 16 of 64: of the half that is free at most half is taken."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator

from nodecpu.cpuset import CpuSet
from nodecpu.policy.picker import build_units, pick
from nodecpu.topology.sysfs import read_topology
from tests.bench.measure import Floor, Row, machine_tree, measured

LARGE = "8 sockets, 4 nodes, 64 cores, 2 threads"
SMALL = "1 sockets, 2 nodes, 16 cores, 2 threads"
PAIRS = 500
SEED = 4096


def rows() -> Iterator[Row]:
    """Yield the rows."""
    small = measured(_pairs(SMALL, largest=16), rounds=7).cpu_s / PAIRS * 1e6
    yield Row(
        what="pick and release, 64 CPUs: pairs a second",
        value=1e6 / small,
        unit="",
        target="≥ 20,000",
        limit=20_000,
        at_least=True,
    )
    large = measured(_pairs(LARGE, largest=64), rounds=7).cpu_s / PAIRS * 1e6
    yield Row(
        what="pick and release, 4096 CPUs",
        value=large,
        unit="µs",
        floor=Floor(what="64 CPUs", value=small),
        target="≤ 4 ×",
        limit=4,
    )


def _pairs(machine: str, *, largest: int) -> Callable[[], None]:
    with machine_tree(machine) as root:
        topology = read_topology(root)
    units = build_units(topology)
    chance = random.Random(SEED)
    free = CpuSet(cpu for cpu in topology.online if chance.random() < 0.5)
    sizes = [chance.randint(1, largest) for _ in range(PAIRS)]

    def work() -> None:
        left, held = free, deque[CpuSet]()
        for size in sizes:
            while len(left) < max(size, len(free) // 2):
                left |= held.popleft()
            taken = pick(units, left, size)
            assert taken is not None
            left -= taken
            held.append(taken)

    return work
