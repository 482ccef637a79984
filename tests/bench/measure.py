"""Medians of repeated runs, and a figure as a row of the table."""

from __future__ import annotations

import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nodecpu.lab.machine import parse_machine, write_machine

ROUNDS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """What was measured, in seconds, beside its floor; ``target`` in words."""

    what: str
    measured_s: float
    floor: str
    floor_s: float
    target: str

    def row(self) -> str:
        """Return the row of the table."""
        ratio = self.measured_s / self.floor_s
        floor = f"{_time(self.floor_s)} ({self.floor})"
        return f"| {self.what} | {_time(self.measured_s)} | {floor} | {ratio:.1f} | {self.target} |"


@contextlib.contextmanager
def machine_tree(text: str) -> Iterator[Path]:
    """Yield a directory with the files of a made-up machine: 100,000 small ones, so in memory where that can be."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        write_machine(parse_machine(text), Path(directory))
        yield Path(directory)


def median_s(work: Callable[[], object], *, rounds: int = ROUNDS) -> float:
    """Return the median time of one call, after one that does not count."""
    work()
    gc.collect()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} us"
