"""Which pool a container without a claim goes to (pure; S): the first difference decides, equal inputs agree."""

from __future__ import annotations

from nodecpu.policy.ledger import Ledger
from nodecpu.policy.picker import Unit
from nodecpu.policy.pools import Pool
from nodecpu.policy.requests import Request
from nodecpu.policy.room import capacity_mcpu, isolated_for, sliceable, spare_mcpu
from nodecpu.policy.rules import Rules


def best_pool(ledger: Ledger, machine: Unit, rules: Rules, request: Request) -> Pool:
    """Return the pool for a request: one with enough capacity, else the root, which may be over-committed (G16).

    Order: enough capacity; deeper; exclusive: more isolated CPUs that can serve, then more that can be sliced off;
    shared: fewer containers of the same kind, then more capacity; last the higher place in the tree's order (the
    scheduler fills devices from the lower ones).
    """
    best: tuple[tuple[int, ...], Pool] | None = None
    for pool in ledger.tree.pools:
        if request.exclusive:
            score = _exclusive_score(ledger, machine, rules, pool, request)
        else:
            score = _shared_score(ledger, pool, request)
        if score is not None and (best is None or score > best[0]):
            best = (score, pool)
    return ledger.tree.root if best is None else best[1]


def _exclusive_score(
    ledger: Ledger, machine: Unit, rules: Rules, pool: Pool, request: Request
) -> tuple[int, ...] | None:
    """Return a pool's score, to be compared as a whole; None without enough capacity."""
    isolated = len(isolated_for(ledger, rules, pool, request.exclusive))
    sliced = 0 if isolated else request.exclusive
    need = 1000 * sliced + request.portion_mcpu
    if need and spare_mcpu(ledger, pool) < need:
        return None
    slices = len(sliceable(ledger, machine, pool))
    return None if slices < sliced else (pool.depth, isolated, slices, pool.index)


def _shared_score(ledger: Ledger, pool: Pool, request: Request) -> tuple[int, ...] | None:
    """Return a pool's score, to be compared as a whole; None without enough capacity."""
    if spare_mcpu(ledger, pool) < max(request.portion_mcpu, 1):
        return None
    alike = ledger.count_sharers(pool, bare=not request.portion_mcpu)
    return (pool.depth, -alike, capacity_mcpu(ledger, pool), pool.index)
