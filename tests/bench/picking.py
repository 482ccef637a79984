"""Picking and giving back 1 to 64 CPUs on half-full machines of 4096 and of 64 CPUs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from nodecpu.cpuset import CpuSet
from nodecpu.policy.picker import build_units, pick
from nodecpu.topology.sysfs import read_topology
from tests.bench.measure import Figure, machine_tree, median_s

LARGE = "8 sockets, 4 nodes, 64 cores, 2 threads"
SMALL = "1 sockets, 2 nodes, 16 cores, 2 threads"
PAIRS = 500
SEED = 4096


def figures() -> Iterator[Figure]:
    """Yield the figure."""
    small = median_s(_pairs(SMALL, largest=16), rounds=7) / PAIRS
    yield Figure(
        what="pick and release, 64 CPUs",
        measured_s=small,
        floor="20,000 pairs a second",
        floor_s=1 / 20_000,
        target="≤ 1 ×",
    )
    large = median_s(_pairs(LARGE, largest=64), rounds=7) / PAIRS
    yield Figure(what="pick and release, 4096 CPUs", measured_s=large, floor="64 CPUs", floor_s=small, target="≤ 4 ×")


def _pairs(machine: str, *, largest: int) -> Callable[[], None]:
    with machine_tree(machine) as root:
        topology = read_topology(root)
    units = build_units(topology)
    chance = random.Random(SEED)
    free = CpuSet(cpu for cpu in topology.online if chance.random() < 0.5)
    sizes = [chance.randint(1, largest) for _ in range(PAIRS)]

    def work() -> None:
        left = free
        for size in sizes:
            taken = pick(units, left, size)
            assert taken is not None
            left = (left - taken) | taken

    return work
