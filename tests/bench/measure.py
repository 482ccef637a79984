"""Times of repeated work, and a figure as a row of the table and of the JSON.

Each time is two: that of the clock, and the processor time of who did the work. The first is what counts, the second
what can be trusted on a machine that others use as well.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nodecpu.lab.machine import parse_machine, write_machine

ROUNDS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """What something took, in seconds."""

    wall_s: float
    cpu_s: float

    def __add__(self, other: Took) -> Took:
        return Took(wall_s=self.wall_s + other.wall_s, cpu_s=self.cpu_s + other.cpu_s)


def median(times: Sequence[Took]) -> Took:
    """Return the median of both times."""
    return Took(
        wall_s=statistics.median(one.wall_s for one in times), cpu_s=statistics.median(one.cpu_s for one in times)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a figure is measured against, in the same units; ``cpu`` 0 is not known."""

    what: str
    value: float
    cpu: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What another driver was recorded to take, on another machine of this kind, in the units of the row it is of.

    Of a range it is the lower end. ``is_rival``: nodecpu is to be ahead of it.
    """

    name: str
    value: float
    is_rival: bool = True


def peers(dra_driver_cpu: float | None, topology_aware: float | None) -> tuple[Peer, ...]:
    """Return the two drivers that nodecpu is compared with, those of them that have such a figure."""
    known = (("dra-driver-cpu", dra_driver_cpu), ("topology-aware", topology_aware))
    return tuple(Peer(name=name, value=value) for name, value in known if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure: ``value`` is a median where there are several, ``cpu`` the processor time in it.

    ``limit`` is the target as a number, which ``target`` says in words: of the ratio to the floor where there is a
    floor, else of the value itself; the most that it may be, or the least if ``at_least``.
    """

    what: str
    value: float
    unit: str = "ms"
    cpu: float = 0.0
    p99: float | None = None
    floor: Floor | None = None
    target: str = ""
    limit: float | None = None
    at_least: bool = False
    peers: Sequence[Peer] = ()

    @property
    def ratio(self) -> float | None:
        """How many times the floor it is."""
        return None if self.floor is None or not self.floor.value else self.value / self.floor.value

    @property
    def cpu_ratio(self) -> float | None:
        """The same of the processor times."""
        return None if self.floor is None or not self.floor.cpu or not self.cpu else self.cpu / self.floor.cpu

    @property
    def is_met(self) -> bool | None:
        """Whether it is within the target; None without one."""
        if self.limit is None:
            return None
        reached = self.value if self.ratio is None else self.ratio
        return reached >= self.limit if self.at_least else reached <= self.limit

    @property
    def against_peers(self) -> tuple[Row, ...]:
        """The same figure as rows of its own, with each peer's record as the floor."""
        return tuple(
            Row(
                what=f"{self.what}: against {peer.name}",
                value=self.value,
                unit=self.unit,
                p99=self.p99,
                floor=Floor(what=f"{peer.name}, recorded", value=peer.value),
                target="ahead: ≤ 1 ×" if peer.is_rival else "",
                limit=1 if peer.is_rival else None,
            )
            for peer in self.peers
        )

    def markdown(self) -> str:
        """Return the row of the table."""
        floor = self.floor
        cells = (
            self.what,
            f"{number(self.value)} {self.unit}".rstrip(),
            number(self.p99),
            number(self.cpu or None),
            "" if floor is None else f"{number(floor.value)} ({floor.what})",
            number(self.ratio),
            number(self.cpu_ratio),
            self.target,
            yes_or_no(self.is_met),
        )
        return f"| {' | '.join(cells)} |"

    def json(self) -> dict[str, object]:
        """Return it as JSON has it."""
        floor = self.floor
        return {
            "what": self.what,
            "value": self.value,
            "unit": self.unit,
            "p99": self.p99,
            "cpu": self.cpu or None,
            "floor": None if floor is None else {"what": floor.what, "value": floor.value, "cpu": floor.cpu or None},
            "ratio": self.ratio,
            "cpu ratio": self.cpu_ratio,
            "target": self.target,
            "met": self.is_met,
        }


HEAD = (
    "| what | median | p99 | processor | floor | ratio | of processor | target | met |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def yes_or_no(is_met: bool | None) -> str:  # noqa: FBT001 - a table's cell: there is nothing else to pass
    """Return how a table says whether a target is met; nothing where there is none."""
    return {None: "", True: "yes", False: "**no**"}[is_met]


def number(value: float | None) -> str:
    """Return a number with three digits that count; nothing for None."""
    if not value:
        return "" if value is None else "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def timed(
    what: str,
    times: Sequence[Took],
    floor: Floor | None = None,
    *,
    target: str = "",
    limit: float | None = None,
    peers: Sequence[Peer] = (),
) -> Row:
    """Return the row of repeated times, in milliseconds."""
    middle, slowest = median(times), sorted(one.wall_s for one in times)[math.ceil(len(times) * 0.99) - 1]
    return Row(
        what=what,
        value=middle.wall_s * 1e3,
        cpu=middle.cpu_s * 1e3,
        p99=slowest * 1e3,
        floor=floor,
        target=target,
        limit=limit,
        peers=peers,
    )


def floor_of(what: str, took: Took) -> Floor:
    """Return a floor, in milliseconds."""
    return Floor(what=what, value=took.wall_s * 1e3, cpu=took.cpu_s * 1e3)


def measured(work: Callable[[], object], *, rounds: int = ROUNDS) -> Took:
    """Return the median of one call in this thread, after one that does not count."""
    work()
    gc.collect()
    times = []
    for _ in range(rounds):
        start, own = time.perf_counter(), time.thread_time()
        work()
        times.append(Took(wall_s=time.perf_counter() - start, cpu_s=time.thread_time() - own))
    return median(times)


@contextlib.contextmanager
def memory_directory() -> Iterator[Path]:
    """Yield a directory with a short path, in memory where that can be."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="nodecpu-") as directory:
        yield Path(directory)


@contextlib.contextmanager
def machine_tree(text: str) -> Iterator[Path]:
    """Yield a directory with the files of a made-up machine: 100,000 small ones, so in memory where that can be."""
    with memory_directory() as directory:
        write_machine(parse_machine(text), directory)
        yield directory
