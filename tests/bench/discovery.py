"""Reading the topology of 4096 CPUs, against reading one small file per CPU."""

from __future__ import annotations

from collections.abc import Iterator

from nodecpu.topology.sysfs import read_topology
from tests.bench.measure import Row, floor_of, machine_tree, measured, timed
from tests.bench.picking import LARGE


def rows() -> Iterator[Row]:
    """Yield the row."""
    with machine_tree(LARGE) as root:
        files = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/core_id"))

        def one_file_each() -> None:
            for file in files:
                file.read_bytes()

        yield timed(
            f"topology of {len(files)} CPUs",
            [measured(lambda: read_topology(root), rounds=5)],
            floor_of("one small file per CPU", measured(one_file_each, rounds=5)),
            target="≤ 4 ×",
            limit=4,
        )
