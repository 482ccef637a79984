"""Reading the topology of 4096 CPUs, against reading one small file per CPU."""

from __future__ import annotations

from collections.abc import Iterator

from nodecpu.topology.sysfs import read_topology
from tests.bench.measure import Figure, machine_tree, median_s
from tests.bench.picking import LARGE


def figures() -> Iterator[Figure]:
    """Yield the figure."""
    with machine_tree(LARGE) as root:
        files = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/core_id"))

        def one_file_each() -> None:
            for file in files:
                file.read_bytes()

        yield Figure(
            what=f"topology of {len(files)} CPUs",
            measured_s=median_s(lambda: read_topology(root), rounds=5),
            floor="one small file per CPU",
            floor_s=median_s(one_file_each, rounds=5),
            target="≤ 4 ×",
        )
