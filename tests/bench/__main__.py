"""``make bench``: measures what exists against a floor taken in the same run, and prints one table."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench import discovery, nri_codec, picking, placement
from tests.bench.measure import Figure
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


def table(run: Run, figures: Iterator[Figure]) -> Iterator[str]:
    """Yield the lines of the table as they are measured."""
    yield f"machine: {run.machine}; commit: {run.commit}; medians"
    yield ""
    yield "| what | measured | floor | ratio | target |"
    yield "|---|---|---|---|---|"
    for figure in figures:
        yield figure.row()


def figures() -> Iterator[Figure]:
    """Yield every figure."""
    yield from picking.figures()
    yield from nri_codec.figures()
    yield from discovery.figures()


if __name__ == "__main__":
    for line in table(this_run(), figures()):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    for line in ("", *placement.table()):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
