"""Which pool a container without a claim goes to (pure; S): the first difference decides, equal inputs agree.

What counts is a table, in order. Each row gives pools numbers, the higher the better, and says in words what it means
to have more of it: these words tell why a pool won. Rows take all pools at once: a call for each pool was half the time
of a decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodecpu.cpuset import CpuSet
from nodecpu.errors import NoCapacity
from nodecpu.policy.facts import QoS
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.machine import Machine
from nodecpu.policy.memory import memory_room
from nodecpu.policy.pools import Level, Pool
from nodecpu.policy.priority import Priority
from nodecpu.policy.requests import Isolated, Request
from nodecpu.policy.room import isolated_for, slice_counts, survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The pool that won, and why; no words where there was nothing to choose from."""

    pool: Pool
    why: str = ""


class _Scorer:
    """What the rows of the table look at: one request, the books at one moment."""

    def __init__(self, ledger: Ledger, machine: Machine, request: Request) -> None:
        self.ledger = ledger
        self.machine = machine
        self.request = request
        self.room = survey(ledger)
        self.slices = slice_counts(ledger) if request.exclusive else ()
        self.isolated = _isolated_counts(ledger, request) if request.exclusive else ()
        self.near = _weights(ledger, request)
        self.memory = memory_room(ledger, request) if request.memory_bytes else ()

    def enough(self) -> list[Pool]:
        """Return the pools that have enough capacity and are where strict hints allow."""
        request, pools, spare = self.request, self.ledger.tree.pools, self.room.spare_mcpu
        if request.pull.strict:
            pools = tuple(pool for pool in pools if all(pool.cpus <= hint.cpus for hint in request.pull.hints))
        if request.exclusive:
            return [pool for pool in pools if self._has_exclusive(pool)]
        need = max(request.portion_mcpu, 1)
        return [pool for pool in pools if spare[pool.index] >= need]

    def _has_exclusive(self, pool: Pool) -> bool:
        """Return whether a pool has enough for a request with exclusive CPUs."""
        request = self.request
        isolated = self.isolated[pool.index]
        if not isolated and request.isolated is Isolated.REQUIRE:
            return False
        sliced = 0 if isolated else request.exclusive
        need = 1000 * sliced + request.portion_mcpu
        if need and self.room.spare_mcpu[pool.index] < need:
            return False
        return self.slices[pool.index] >= sliced


def _isolated_counts(ledger: Ledger, request: Request) -> Sequence[int]:
    """Return by pool how many free isolated CPUs can serve; 0 where they do not serve at all."""
    if request.isolated is Isolated.AVOID or not ledger.tree.usable.isolated:
        return [0] * len(ledger.tree.pools)
    return [len(isolated_for(ledger, pool, request.exclusive, wanted=True)) for pool in ledger.tree.pools]


def _weights(ledger: Ledger, request: Request) -> Mapping[int, int]:
    """Return by pool the sum of the weights of the containers in it and below it."""
    near: dict[int, int] = {}
    for container_id, weight in request.pull.weights.items():
        other = ledger.containers.get(container_id)
        if other is not None:
            for index in ledger.pool_of(other).ancestors:
                near[index] = near.get(index, 0) + weight
    return near


def _affinity(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    return [scorer.near.get(pool.index, 0) for pool in pools]


def _hints(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    """Return how much of each pool is close to what is used, in hundredths, over all hints."""
    hints = scorer.request.pull.hints
    return [sum(100 * len(pool.cpus & hint.cpus) // len(pool.cpus) for hint in hints) for pool in pools]


def _memory_type(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    kinds = scorer.request.preferences.memory_types
    assert kinds is not None
    return [sum(bool(pool.memory.get(kind)) for kind in kinds) for pool in pools]


def _memory_fit(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    return [int(scorer.memory[pool.index] >= scorer.request.memory_bytes) for pool in pools]


def _level(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    """Return how near each pool is to the level wished for, those above it before those below."""
    assert scorer.request.burstable is not None
    down = [_RANK[pool.level] - _RANK[scorer.request.burstable] for pool in pools]
    return [min(one, -one * len(Level)) for one in down]


def _headroom(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    """Return whether each pool has all that a Burstable container may use by its limit."""
    limit_mcpu = scorer.request.limit_mcpu
    assert limit_mcpu is not None
    return [int(scorer.room.spare_mcpu[pool.index] >= limit_mcpu) for pool in pools]


def _tight_memory(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    del scorer
    return [-len(pool.mems) for pool in pools]


def _speed(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    """Return how many of the exclusive CPUs can be of the preferred speed."""
    request, speeds = scorer.request, scorer.machine.speeds
    wanted: CpuSet = {Priority.HIGH: speeds.high, Priority.NORMAL: speeds.normal, Priority.LOW: speeds.low}[
        request.priority
    ]
    free = [scorer.ledger.grantable(pool.sharable | pool.isolated) & wanted for pool in pools]
    return [min(request.exclusive, len(cpus)) for cpus in free]


def _depth(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    del scorer
    return [pool.depth for pool in pools]


def _isolated(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    return [scorer.isolated[pool.index] for pool in pools]


def _sliceable(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    return [scorer.slices[pool.index] for pool in pools]


def _alike(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    counts = scorer.ledger.count_sharers(bare=not scorer.request.portion_mcpu)
    return [-counts[pool.index] for pool in pools]


def _capacity(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    return [scorer.room.capacity_mcpu[pool.index] for pool in pools]


def _index(scorer: _Scorer, pools: Sequence[Pool]) -> list[int]:
    del scorer
    return [pool.index for pool in pools]


_RANK: Final = {level: rank for rank, level in enumerate(Level)}
_Row = tuple[Callable[[_Scorer, Sequence[Pool]], list[int]], str]

_ROWS: Final[tuple[tuple[_Row, Callable[[Request], bool]], ...]] = (
    ((_affinity, "nearer to the containers it belongs to"), lambda request: bool(request.pull.weights)),
    ((_hints, "closer to what it uses"), lambda request: bool(request.pull.hints)),
    ((_memory_type, "memory of the kind it wants"), lambda request: bool(request.preferences.memory_types)),
    ((_memory_fit, "its memory fits"), lambda request: bool(request.memory_bytes)),
    ((_level, "nearer to the level it wants"), lambda request: request.burstable is not None),
    (
        (_headroom, "room up to its limit"),
        lambda request: request.qos is QoS.BURSTABLE and request.limit_mcpu is not None,
    ),
    ((_tight_memory, "fewer memory nodes"), lambda request: bool(request.memory_bytes)),
    (
        (_speed, "more CPUs of the speed it wants"),
        lambda request: request.priority is not Priority.NONE and bool(request.exclusive),
    ),
    ((_depth, "smaller"), lambda request: True),
    ((_isolated, "more isolated CPUs free"), lambda request: bool(request.exclusive)),
    ((_sliceable, "more CPUs that can be sliced off"), lambda request: bool(request.exclusive)),
    ((_alike, "fewer containers of its kind"), lambda request: not request.exclusive),
    ((_capacity, "more capacity"), lambda request: not request.exclusive),
    ((_index, "the higher one of equals"), lambda request: True),
)
"""What counts, in this order, and for which requests it does."""


def best_pool(ledger: Ledger, machine: Machine, request: Request) -> Choice:
    """Return the pool for a request: one with enough capacity, else the root, which may be over-committed (G16).

    Raises NoCapacity if strict hints leave no pool.
    """
    scorer = _Scorer(ledger, machine, request)
    rows = [row for row, applies in _ROWS if applies(request)]
    enough = scorer.enough()
    if not enough:
        if request.pull.strict and request.pull.hints:
            names = ", ".join(f"{hint.source} ({hint.cpus})" for hint in request.pull.hints)
            raise NoCapacity(
                f"no pool with room is close to {names}", hint="make room there, or let the hints not be strict"
            )
        return Choice(pool=ledger.tree.root)
    columns = [numbers(scorer, enough) for numbers, _ in rows]
    # One key for each pool, the numbers of all rows in order: no two are equal, since the last row tells all apart.
    ranked = sorted(zip(*columns, strict=True), reverse=True)
    best = ledger.tree.pools[ranked[0][-1]]
    if len(ranked) == 1:
        return Choice(pool=best)
    second = ledger.tree.pools[ranked[1][-1]]
    words = next(words for (_, words), own, other in zip(rows, *ranked[:2], strict=True) if own != other)
    return Choice(pool=best, why=f"{best.name} before {second.name}: {words}")
