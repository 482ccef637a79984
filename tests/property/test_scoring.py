"""The pool that is chosen is the best by the table of docs/explanation/placement.md, worked out row by row (S)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet
from nodecpu.errors import NoCapacity
from nodecpu.ids import ContainerID
from nodecpu.policy.annotations import Preferences
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import Group
from nodecpu.policy.memory import memory_room
from nodecpu.policy.pools import Level, Pool
from nodecpu.policy.priority import Priority, SpeedClasses
from nodecpu.policy.pull import Hint, Pull
from nodecpu.policy.requests import Isolated, Request
from nodecpu.policy.room import capacity_mcpu, sliceable, spare_mcpu
from nodecpu.policy.scoring import best_pool
from nodecpu.topology.model import MemoryKind
from tests.unit.policy.drawn import drawn_books
from tests.unit.policy.machines import Books

SPEEDS = SpeedClasses(high=CpuSet.parse("2-5"), normal=CpuSet.parse("0-1,8-15"), low=CpuSet.parse("6-7"))
KINDS = (None, (MemoryKind.DRAM,), (MemoryKind.HBM,))


@st.composite
def pulls(draw: st.DrawFn) -> Pull:
    cpus = st.sampled_from(["4-7", "0-3,8-11", "1-6", "0-15", "10-13"])
    hints = draw(st.lists(st.builds(Hint, source=st.just("nic"), cpus=cpus.map(CpuSet.parse)), max_size=2))
    names = st.sampled_from([ContainerID(f"pod-{i}-app") for i in (0, 1, 2, 99, 100)])
    weights = draw(st.dictionaries(names, st.sampled_from([-20, -10, 10, 10]), max_size=3))
    return Pull(weights=weights, hints=tuple(hints), strict=draw(st.booleans()))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    exclusive = draw(st.sampled_from([0, 0, 1, 2, 3, 4]))
    portion = draw(st.sampled_from([0, 1, 400, 1000, 2000, 2999, 7000]))
    qos = QoS.GUARANTEED if exclusive else draw(st.sampled_from(QoS))
    limit = draw(st.sampled_from([None, 1000, 2000, 2999, 4000, 6000]))
    level = draw(st.sampled_from(Level)) if qos is QoS.BURSTABLE and limit is None and draw(st.booleans()) else None
    return Request(
        group=Group.MULTI if exclusive else Group.SHARED,
        qos=qos,
        exclusive=exclusive,
        portion_mcpu=portion,
        uses_shared=bool(portion or not exclusive),
        limit_mcpu=limit,
        isolated=draw(st.sampled_from(Isolated)),
        priority=draw(st.sampled_from(Priority)),
        burstable=level,
        preferences=Preferences(memory_types=draw(st.sampled_from(KINDS))),
        memory_bytes=draw(st.sampled_from([0, 0, 6 << 30, 12 << 30, 20 << 30])),
        pull=draw(st.one_of(st.just(Pull()), pulls())),
    )


def isolated_that_serve(node: Books, request: Request, pool: Pool) -> int:
    free = len(node.ledger.grantable(pool.isolated))
    return free if request.isolated is not Isolated.AVOID and free >= request.exclusive else 0


def has_enough(node: Books, request: Request, pool: Pool) -> bool:
    """Return whether a pool is among those compared."""
    spare = spare_mcpu(node.ledger, pool)
    if request.pull.strict and not all(pool.cpus <= hint.cpus for hint in request.pull.hints):
        return False
    if not request.exclusive:
        return spare >= max(request.portion_mcpu, 1)
    if isolated_that_serve(node, request, pool):
        return not request.portion_mcpu or spare >= request.portion_mcpu
    return (
        request.isolated is not Isolated.REQUIRE
        and len(sliceable(node.ledger, node.machine.units, pool)) >= request.exclusive
        and spare >= 1000 * request.exclusive + request.portion_mcpu
    )


def rows(node: Books, request: Request, pool: Pool) -> list[tuple[str, int]]:
    """Return what counts for a request with a pool's figures, the more the better."""
    ledger = node.ledger
    own = request.exclusive > 0
    burstable = request.qos is QoS.BURSTABLE
    distance = list(Level).index(pool.level) - list(Level).index(request.burstable or Level.ROOT)
    within = [ledger.containers[i] for i in request.pull.weights if i in ledger.containers]
    within = [grant for grant in within if pool.index in ledger.pool_of(grant).ancestors]
    sharers = ledger.sharers(pool).values()
    speeds = {Priority.HIGH: SPEEDS.high, Priority.NORMAL: SPEEDS.normal, Priority.LOW: SPEEDS.low}
    fast = speeds.get(request.priority, CpuSet()) & ledger.grantable(pool.cpus - pool.reserved)
    table: list[tuple[bool, str, int]] = [
        (True, "nearer to the containers it belongs to", sum(request.pull.weights[grant.id] for grant in within)),
        (
            True,
            "closer to what it uses",
            sum(100 * len(pool.cpus & h.cpus) // len(pool.cpus) for h in request.pull.hints),
        ),
        (
            True,
            "memory of the kind it wants",
            sum(bool(pool.memory.get(k)) for k in request.preferences.memory_types or ()),
        ),
        (
            request.memory_bytes > 0,
            "its memory fits",
            int(memory_room(ledger, request)[pool.index] >= request.memory_bytes),
        ),
        (
            burstable and request.burstable is not None,
            "nearer to the level it wants",
            -10 * distance if distance > 0 else distance,
        ),
        (
            burstable and request.limit_mcpu is not None,
            "room up to its limit",
            int(spare_mcpu(ledger, pool) >= (request.limit_mcpu or 0)),
        ),
        (request.memory_bytes > 0, "fewer memory nodes", -len(pool.mems)),
        (own, "more CPUs of the speed it wants", min(len(fast), request.exclusive)),
        (True, "smaller", pool.depth),
        (own, "more isolated CPUs free", isolated_that_serve(node, request, pool)),
        (own, "more CPUs that can be sliced off", len(sliceable(ledger, node.machine.units, pool))),
        (
            not own,
            "fewer containers of its kind",
            -sum(bool(grant.portion_mcpu) == bool(request.portion_mcpu) for grant in sharers),
        ),
        (not own, "more capacity", capacity_mcpu(ledger, pool)),
        (True, "the higher one of equals", pool.index),
    ]
    return [(words, figure) for applies, words, figure in table if applies]


@settings(max_examples=200)
@given(drawn_books(), requests())
def test_best_pool_is_the_best_by_the_table_and_says_what_decided(node: Books, request: Request) -> None:
    """S, P3, G10, G16, K4, M1: the first difference decides; the words are those of what told it from the next best."""
    node = replace(node, machine=replace(node.machine, speeds=SPEEDS))
    scored = sorted(
        ([figure for _, figure in rows(node, request, pool)], pool.name)
        for pool in node.ledger.tree.pools
        if has_enough(node, request, pool)
    )
    if not scored and request.pull.strict and request.pull.hints:
        with pytest.raises(NoCapacity, match="no pool with room is close to nic"):
            best_pool(node.ledger, node.machine, request)
        return
    choice = best_pool(node.ledger, node.machine, request)
    if not scored:
        assert (choice.pool, choice.why) == (node.ledger.tree.root, "")
        return
    assert choice.pool.name == scored[-1][1]
    if len(scored) == 1:
        assert choice.why == ""
        return
    (second, name), (best, _) = scored[-2:]
    decisive = next(i for i, (more, less) in enumerate(zip(best, second, strict=True)) if more != less)
    assert choice.why == f"{choice.pool.name} before {name}: {rows(node, request, choice.pool)[decisive][0]}"
