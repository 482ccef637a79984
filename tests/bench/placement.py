"""How well requests are placed under churn, against the exact optimum on the same free CPUs (quality.md, Placement).

The optimum comes from a table over the tree of groups (NUMA nodes, L3 groups, cores): for each group and each number of
CPUs the fewest groups below. Requests come and go by a seed; with ``../shared`` at hand on recorded machines.
"""

from __future__ import annotations

import random
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from nodecpu.cpuset import CpuSet
from nodecpu.policy.picker import build_units, pick
from nodecpu.topology.model import Topology
from nodecpu.topology.sysfs import read_topology
from tests.bench.measure import machine_tree, yes_or_no
from tests.support import ROOT

RECORDED: Final = ("amd-epyc-7451-96c", "server-2s-4n-80c", "server-2s-112c")
MADE_UP: Final = ("2 sockets, 4 nodes, 6 cores, 2 threads", "2 sockets, 2 nodes, 10 cores, 2 threads")
STREAMS: Final = {"1 to 8 CPUs": tuple(range(1, 9)), "1 to 24 CPUs": (1, 2, 4, 4, 8, 16, 24)}
LOADS: Final = (0.6, 0.9)
STEPS: Final = 1000
SEED: Final = 7

Costs = tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """A set of CPUs: ``level`` 0 for a NUMA node, 1 for an L3 group, 2 for a core, None for what is not counted."""

    level: int | None
    mask: int
    inside: tuple[Group, ...]


_SHARES: Final = ("NUMA nodes", "L3 groups", "cores", "all, within the smallest sockets")

HEAD: Final = (
    f"| machine | requests | load | {' | '.join(_SHARES)} | cores left broken | largest request in one node, of the"
    " free CPUs | target of all | met |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass
class Score:
    """How many requests touched the fewest NUMA nodes, L3 groups, cores, and all of these in this order."""

    requests: int = 0
    least: tuple[int, int, int] = (0, 0, 0)
    joint: int = 0
    broken_cores: int = 0
    largest: int = 0
    free: int = 0

    @property
    def shares(self) -> tuple[float, ...]:
        """The same as shares of all requests."""
        return tuple(one / self.requests for one in (*self.least, self.joint))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """How a stream of requests was placed on a machine; ``load`` 0: each on the empty machine.

    The target is for the last share. The others are told as well: each for itself is the fewest of one kind, which may
    be had at the price of more of a larger kind.
    """

    machine: str
    requests: str
    load: float
    score: Score

    @property
    def target(self) -> float:
        """The least share that is good enough."""
        return 0.99 if self.load else 1.0

    @property
    def is_met(self) -> bool:
        """Whether it is reached."""
        return self.score.shares[-1] >= self.target

    def markdown(self) -> str:
        """Return the row of the table."""
        score = self.score
        left = ("", "") if not self.load else (f"{score.broken_cores}", f"{score.largest} of {score.free}")
        shares = [f"{share:.1%}" for share in score.shares]
        target = f"≥ {self.target:.0%}" if self.load else "all"
        cells = (self.machine, self.requests, f"{self.load:.0%}", *shares, *left, target, yes_or_no(self.is_met))
        return f"| {' | '.join(cells)} |"

    def json(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return {
            "machine": self.machine,
            "requests": self.requests,
            "load": self.load,
            "shares": dict(zip(_SHARES, self.score.shares, strict=True)),
            "cores left broken": self.score.broken_cores,
            "largest request in one node": self.score.largest,
            "free CPUs": self.score.free,
            "target": self.target,
            "met": self.is_met,
        }


def rows() -> Iterator[Placed]:
    """Yield every row."""
    for name, topology in _machines():
        everything = f"1 to {len(topology.online)}, empty machine"
        yield Placed(machine=name, requests=everything, load=0, score=_empty(topology))
        for stream, sizes in STREAMS.items():
            for load in LOADS:
                yield Placed(machine=name, requests=stream, load=load, score=churn(topology, sizes, load))


def churn(topology: Topology, sizes: Sequence[int], load: float, steps: int = STEPS) -> Score:
    """Take and give back so many requests at a load, a share of the machine's CPUs; return how they were placed."""
    chance = random.Random(SEED)
    units, score = build_units(topology), Score()
    free, held = topology.online.mask, list[int]()
    total = free.bit_count()
    for _ in range(steps):
        count = chance.choice(sizes)
        while held and total - free.bit_count() + count > load * total:
            free |= held.pop(chance.randrange(len(held)))
        taken = pick(units, CpuSet.from_mask(free), count)
        assert taken is not None
        _judge(score, topology, free, taken.mask)
        free &= ~taken.mask
        held.append(taken.mask)
    cores = [core.cpus.mask for core in topology.cores]
    score.broken_cores = sum(free & core not in (0, core) for core in cores)
    score.largest = max((free & node.cpus.mask).bit_count() for node in topology.numa)
    score.free = free.bit_count()
    return score


def _empty(topology: Topology) -> Score:
    """Return how requests of every size are placed, each on the empty machine."""
    units, score, everything = build_units(topology), Score(), topology.online.mask
    for count in range(1, everything.bit_count() + 1):
        taken = pick(units, topology.online, count)
        assert taken is not None
        _judge(score, topology, everything, taken.mask)
    return score


def _judge(score: Score, topology: Topology, free: int, taken: int) -> None:
    count, touched = taken.bit_count(), spans(topology, taken)
    fewest = tuple(_fewest(level, free, count) for level in _levels(topology))
    a, b, c = (had + (one == best) for had, one, best in zip(score.least, touched, fewest, strict=True))
    score.least = a, b, c
    if touched != fewest:
        tree = group_tree(topology)
        fewest = min(least_costs(tree, home, count)[count] for home in _sockets(topology, free, count))
    score.joint += touched <= fewest
    score.requests += 1


def _fewest(level: Sequence[CpuSet], free: int, count: int) -> int:
    """Return how few groups of one level hold so many free CPUs: the fullest."""
    rooms = sorted(((one.mask & free).bit_count() for one in level), reverse=True)
    return next(number for number, room in enumerate(accumulate(rooms), 1) if room >= count)


def _sockets(topology: Topology, free: int, count: int) -> list[int]:
    """Return the free CPUs of each socket that holds a request, of all of them if none does (K1)."""
    rooms = [free & package.cpus.mask for package in topology.packages]
    return [room for room in rooms if room.bit_count() >= count] or [free]


def _levels(topology: Topology) -> tuple[list[CpuSet], list[CpuSet], list[CpuSet]]:
    return [n.cpus for n in topology.numa], [g.cpus for g in topology.l3], [c.cpus for c in topology.cores]


def spans(topology: Topology, cpus: int) -> Costs:
    """Return how many NUMA nodes, L3 groups and cores a mask touches."""
    return tuple(sum(bool(one.mask & cpus) for one in level) for level in _levels(topology))


def group_tree(topology: Topology) -> Group:
    """Return the machine's groups by inclusion."""
    flat = [(number, cpus.mask) for number, level in enumerate(_levels(topology)) for cpus in level if cpus]
    return _grown(None, topology.online.mask, sorted(flat, key=lambda one: (-one[1].bit_count(), one[0])))


def _grown(level: int | None, mask: int, below: list[tuple[int, int]]) -> Group:
    inside, left = [], list(below)
    while left:
        number, first = left.pop(0)
        own = [one for one in left if one[1] & first == one[1]]
        left = [one for one in left if one[1] & first != one[1]]
        inside.append(_grown(number, first, own))
    return Group(level, mask, tuple(inside))


def least_costs(group: Group, free: int, most: int) -> list[Costs]:
    """Return, for 0 to ``most`` CPUs or as many as are free, how few NUMA nodes, L3 groups and cores hold them."""
    best: list[Costs] = [(0, 0, 0)]
    if not group.inside:
        best *= min(most, (group.mask & free).bit_count()) + 1
    for one in group.inside:
        part = least_costs(one, free, most)
        wider: list[Costs | None] = [None] * min(most + 1, len(best) + len(part) - 1)
        for some, costs in enumerate(best):
            for more, further in enumerate(part[: len(wider) - some]):
                both = tuple(a + b for a, b in zip(costs, further, strict=True))
                had = wider[some + more]
                if had is None or both < had:
                    wider[some + more] = both
        best = [costs for costs in wider if costs is not None]
    if group.level is None:
        return best
    own = tuple(int(level == group.level) for level in range(3))
    return [best[0], *(tuple(a + b for a, b in zip(costs, own, strict=True)) for costs in best[1:])]


def _machines() -> Iterator[tuple[str, Topology]]:
    archives = ROOT.parent / "shared" / "data" / "sysfs"
    if not archives.is_dir():
        for text in MADE_UP:
            with machine_tree(text) as root:
                yield text, read_topology(root)
        return
    for name in RECORDED:
        with tempfile.TemporaryDirectory() as directory, tarfile.open(archives / f"{name}.tar.xz") as archive:
            archive.extractall(directory, filter="data")
            yield name, read_topology(Path(directory))
