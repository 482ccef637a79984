"""``make bench``: measures against floors taken in the same run, and prints one table; nothing fails on time.

``--json FILE`` writes the figures as JSON as well; ``--base REVISION`` compares that commit with this tree instead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.bench import cluster, compare, containerd_rows, discovery, nri_codec, picking, placement, wire_rows
from tests.bench.measure import HEAD, Row
from tests.bench.node_rows import Effort
from tests.support import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where and on what was measured."""

    machine: str
    commit: str


def this_run() -> Run:
    """Return this machine and this commit; a changed work tree is marked."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, timeout=10
    )
    machine = f"{os.cpu_count()} x {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}"
    return Run(machine=machine, commit=described.stdout.strip() or "unknown")


def rows() -> Iterator[Row]:
    """Yield every row."""
    yield from wire_rows.rows(Effort())
    yield from picking.rows()
    yield from nri_codec.rows()
    yield from discovery.rows()
    yield from cluster.rows()
    yield from containerd_rows.rows()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="tests.bench")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--base", default="", help="compare this commit with the tree")
    wanted = parser.parse_args()
    run, start, load = this_run(), time.monotonic(), os.getloadavg()[0]
    _say(f"machine: {run.machine}; load {load:.1f} before; commit: {run.commit}\n")
    if wanted.base:
        for line in compare.compared(wanted.base):
            _say(line)
        return
    _say(HEAD)
    done = []
    for row in rows():
        _say(row.markdown())
        done.append(row.json())
    _say(f"\npeers: dra-driver-cpu / topology-aware, recorded on another machine; {time.monotonic() - start:.0f} s\n")
    for line in placement.table():
        _say(line)
    if wanted.json is not None:
        told = {"machine": run.machine, "commit": run.commit, "load": load, "rows": done}
        wanted.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
