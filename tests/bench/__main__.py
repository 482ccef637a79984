"""``make bench``: measures against floors taken in the same run, and prints tables; nothing fails on time.

The first has all that is measured, the second the same against what peers were recorded to take, the third placement.

``--json FILE`` writes the figures as JSON as well; ``--base REVISION`` compares that commit with this tree instead.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tests.bench import cluster, compare, containerd_rows, discovery, nri_codec, picking, placement, wire_rows
from tests.bench.measure import HEAD, Row
from tests.bench.node_rows import Effort
from tests.support import ROOT


class _Figure(Protocol):
    def markdown(self) -> str: ...

    def json(self) -> dict[str, object]: ...


_Line = TypeVar("_Line", bound=_Figure)


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
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="tests.bench")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--base", default="", help="compare this commit with the tree")
    wanted = parser.parse_args()
    logging.getLogger("nodecpu").setLevel(logging.ERROR)  # each watch that is ended to be counted would be told
    run, start, load = this_run(), time.monotonic(), os.getloadavg()[0]
    _say(f"machine: {run.machine}; load {load:.1f} before; commit: {run.commit}\n")
    if wanted.base:
        for line in compare.compared(wanted.base):
            _say(line)
        return
    told = {"machine": run.machine, "commit": run.commit, "load": load, **_measured()}
    _say(f"\n{time.monotonic() - start:.0f} s")
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def _measured() -> Mapping[str, Sequence[Mapping[str, object]]]:
    """Print the three tables; return what is in them."""
    _say(HEAD)
    own = list(_printed(rows()))
    _say("\nagainst the peers, whose figures are of another run, recorded on another machine of this kind\n")
    _say(HEAD)
    against = list(_printed(one for row in own for one in row.against_peers))
    _say(f"\nplacement: shares of {placement.STEPS} requests under churn that touch the fewest there could be\n")
    _say(placement.HEAD)
    placed = list(_printed(placement.rows()))
    return {
        "rows": [one.json() for one in own],
        "peers": [one.json() for one in against],
        "placement": [one.json() for one in placed],
    }


def _printed(table: Iterable[_Line]) -> Iterator[_Line]:
    """Yield the lines of a table, each once it is printed."""
    for one in table:
        _say(one.markdown())
        yield one


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
