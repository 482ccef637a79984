"""``make bench``: measures against floors taken in the same run, and prints tables; nothing fails on time.

The first has all that is measured, the second the same against what peers were recorded to take, the third placement.
``--json FILE`` writes the figures as JSON as well, ``--page FILE`` the tables as a page; ``--base REVISION`` compares
that commit with this tree instead.
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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar

from tests.bench import cluster, compare, containerd_rows, discovery, nri_codec, picking, placement, wire_rows
from tests.bench.measure import HEAD, Row
from tests.bench.node_rows import Effort
from tests.support import ROOT


class _Figure(Protocol):
    def markdown(self) -> str: ...

    def json(self) -> dict[str, object]: ...


_Line = TypeVar("_Line", bound=_Figure)
_Table: TypeAlias = tuple[str, str, str, Sequence[_Figure]]
"""A name, a title, the head and the lines."""

OWN: Final = "All that is measured"
PEERS: Final = "Against the peers, whose figures were recorded in another run, on another machine of this kind"
PLACEMENT: Final = f"Placement: shares of {placement.STEPS} requests that touch the fewest groups there could be"
PAGE: Final = """# Figures

One run of `make bench PAGE=docs/explanation/figures.md`, which writes this page. What the rows mean, and why some
targets are missed, is in [performance](performance.md). Times are medians, `processor` is the processor time of the
daemon in them, a ratio is that to the floor of the same run.
"""


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
    parser.add_argument("--page", type=Path, help="write the tables here too")
    parser.add_argument("--base", default="", help="compare this commit with the tree")
    wanted = parser.parse_args()
    logging.getLogger("nodecpu").setLevel(logging.ERROR)  # each watch that is ended to be counted would be told
    run, start, load = this_run(), time.monotonic(), os.getloadavg()[0]
    where = f"machine: {run.machine}; load {load:.1f} before; commit: {run.commit}"
    _say(f"{where}\n")
    if wanted.base:
        for line in compare.compared(wanted.base):
            _say(line)
        return
    tables = list(_tables())
    _say(f"\n{time.monotonic() - start:.0f} s")
    if wanted.json is not None:
        figures = {name: [one.json() for one in table] for name, _, _, table in tables}
        told = {"machine": run.machine, "commit": run.commit, "load": load, **figures}
        wanted.json.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    if wanted.page is not None:
        lines = [PAGE, where]
        for _, title, head, table in tables:
            lines += [f"\n## {title}\n", head, *(one.markdown() for one in table)]
        wanted.page.write_text("\n".join(lines) + "\n")


def _tables() -> Iterator[_Table]:
    """Yield the three tables, each once it is printed."""
    own = [*_printed(OWN, HEAD, rows())]
    yield "rows", OWN, HEAD, own
    yield "peers", PEERS, HEAD, [*_printed(PEERS, HEAD, (one for row in own for one in row.against_peers))]
    yield "placement", PLACEMENT, placement.HEAD, [*_printed(PLACEMENT, placement.HEAD, placement.rows())]


def _printed(title: str, head: str, table: Iterable[_Line]) -> Iterator[_Line]:
    """Yield the lines of a table, each once it is printed."""
    _say(f"\n{title}\n\n{head}")
    for one in table:
        _say(one.markdown())
        yield one


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
