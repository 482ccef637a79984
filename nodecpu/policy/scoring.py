"""Which pool a container without a claim goes to (pure; S): the first difference decides, equal inputs agree.

What counts is a table, in order. Each row gives a pool a number, the higher the better, and says in words what it means
to have more of it: these words tell why a pool won.
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
from nodecpu.policy.room import isolated_for, survey


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
        self.near = _weights(ledger, request)
        self.memory = memory_room(ledger, request) if request.memory_bytes else ()

    def isolated(self, pool: Pool) -> int:
        """Return how many free isolated CPUs can serve; 0 if they do not serve at all."""
        wanted = self.request.isolated is not Isolated.AVOID
        return len(isolated_for(self.ledger, pool, self.request.exclusive, wanted=wanted))

    def is_enough(self, pool: Pool) -> bool:
        """Return whether a pool has enough capacity and is where strict hints allow."""
        request = self.request
        if request.pull.strict and any(not pool.cpus <= hint.cpus for hint in request.pull.hints):
            return False
        if not request.exclusive:
            return self.room.spare_mcpu[pool.index] >= max(request.portion_mcpu, 1)
        isolated = self.isolated(pool)
        if not isolated and request.isolated is Isolated.REQUIRE:
            return False
        sliced = 0 if isolated else request.exclusive
        need = 1000 * sliced + request.portion_mcpu
        if need and self.room.spare_mcpu[pool.index] < need:
            return False
        return self.room.slices[pool.index] >= sliced


def _weights(ledger: Ledger, request: Request) -> Mapping[int, int]:
    """Return by pool the sum of the weights of the containers in it and below it."""
    near: dict[int, int] = {}
    for container_id, weight in request.pull.weights.items():
        other = ledger.containers.get(container_id)
        if other is not None:
            for index in ledger.pool_of(other).ancestors:
                near[index] = near.get(index, 0) + weight
    return near


def _affinity(scorer: _Scorer, pool: Pool) -> int:
    return scorer.near.get(pool.index, 0)


def _hints(scorer: _Scorer, pool: Pool) -> int:
    """Return how much of the pool is close to what is used, in hundredths, over all hints."""
    return sum(100 * len(pool.cpus & hint.cpus) // len(pool.cpus) for hint in scorer.request.pull.hints)


def _memory_type(scorer: _Scorer, pool: Pool) -> int:
    return sum(bool(pool.memory.get(kind)) for kind in scorer.request.preferences.memory_types or ())


def _memory_fit(scorer: _Scorer, pool: Pool) -> int:
    return int(scorer.memory[pool.index] >= scorer.request.memory_bytes)


def _level(scorer: _Scorer, pool: Pool) -> int:
    """Return how near the pool is to the level wished for, those above it before those below."""
    assert scorer.request.burstable is not None
    down = _RANK[pool.level] - _RANK[scorer.request.burstable]
    return min(down, -down * len(Level))


def _headroom(scorer: _Scorer, pool: Pool) -> int:
    """Return whether the pool has all that a Burstable container may use by its limit."""
    assert scorer.request.limit_mcpu is not None
    return int(scorer.room.spare_mcpu[pool.index] >= scorer.request.limit_mcpu)


def _tight_memory(scorer: _Scorer, pool: Pool) -> int:
    del scorer
    return -len(pool.mems)


def _speed(scorer: _Scorer, pool: Pool) -> int:
    """Return how many of the exclusive CPUs can be of the preferred speed."""
    request, speeds = scorer.request, scorer.machine.speeds
    wanted: CpuSet = {Priority.HIGH: speeds.high, Priority.NORMAL: speeds.normal, Priority.LOW: speeds.low}[
        request.priority
    ]
    return min(request.exclusive, len(scorer.ledger.grantable(pool.sharable | pool.isolated) & wanted))


def _depth(scorer: _Scorer, pool: Pool) -> int:
    del scorer
    return pool.depth


def _isolated(scorer: _Scorer, pool: Pool) -> int:
    return scorer.isolated(pool)


def _sliceable(scorer: _Scorer, pool: Pool) -> int:
    return scorer.room.slices[pool.index]


def _alike(scorer: _Scorer, pool: Pool) -> int:
    return -scorer.ledger.count_sharers(pool, bare=not scorer.request.portion_mcpu)


def _capacity(scorer: _Scorer, pool: Pool) -> int:
    return scorer.room.capacity_mcpu[pool.index]


def _index(scorer: _Scorer, pool: Pool) -> int:
    del scorer
    return pool.index


_RANK: Final = {level: rank for rank, level in enumerate(Level)}
_Row = tuple[Callable[[_Scorer, Pool], int], str]

_ROWS: Final[tuple[tuple[_Row, Callable[[Request], bool]], ...]] = (
    ((_affinity, "nearer to the containers it belongs to"), lambda request: bool(request.pull.weights)),
    ((_hints, "closer to what it uses"), lambda request: bool(request.pull.hints)),
    ((_memory_type, "memory of the kind it wants"), lambda request: bool(request.preferences.memory_types)),
    ((_memory_fit, "its memory fits"), lambda request: request.memory_bytes > 0),
    ((_level, "nearer to the level it wants"), lambda request: request.burstable is not None),
    (
        (_headroom, "room up to its limit"),
        lambda request: request.qos is QoS.BURSTABLE and request.limit_mcpu is not None,
    ),
    ((_tight_memory, "fewer memory nodes"), lambda request: request.memory_bytes > 0),
    (
        (_speed, "more CPUs of the speed it wants"),
        lambda request: request.priority is not Priority.NONE and request.exclusive > 0,
    ),
    ((_depth, "smaller"), lambda request: True),
    ((_isolated, "more isolated CPUs free"), lambda request: request.exclusive > 0),
    ((_sliceable, "more CPUs that can be sliced off"), lambda request: request.exclusive > 0),
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
    enough = [pool for pool in ledger.tree.pools if scorer.is_enough(pool)]
    if not enough:
        if request.pull.strict and request.pull.hints:
            names = ", ".join(f"{hint.source} ({hint.cpus})" for hint in request.pull.hints)
            raise NoCapacity(
                f"no pool with room is close to {names}", hint="make room there, or let the hints not be strict"
            )
        return Choice(pool=ledger.tree.root)
    best, rivals, words = _winner(scorer, rows, enough)
    if not rivals:
        return Choice(pool=best)
    second, _, _ = _winner(scorer, rows, rivals)
    return Choice(pool=best, why=f"{best.name} before {second.name}: {words}")


def _winner(scorer: _Scorer, rows: Sequence[_Row], pools: Sequence[Pool]) -> tuple[Pool, Sequence[Pool], str]:
    """Return the best of the pools, those that only the last row to tell any apart has beaten, and that row's words."""
    left, rivals, decisive = pools, list[Pool](), ""
    for row in rows:
        if len(left) == 1:
            break
        best, beaten = _best_by(scorer, row, left)
        if beaten:
            left, rivals, decisive = best, beaten, row[1]
    return left[0], rivals, decisive


def _best_by(scorer: _Scorer, row: _Row, pools: Sequence[Pool]) -> tuple[list[Pool], list[Pool]]:
    """Return the pools with the highest number of a row, and the others."""
    scored = [(row[0](scorer, pool), pool) for pool in pools]
    most = max(value for value, _ in scored)
    return [pool for value, pool in scored if value == most], [pool for value, pool in scored if value != most]
