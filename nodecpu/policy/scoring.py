"""Which pool a container without a claim goes to (pure; S): the first difference decides, equal inputs agree."""

from __future__ import annotations

from nodecpu.policy.ledger import Ledger
from nodecpu.policy.picker import Unit
from nodecpu.policy.pools import Pool
from nodecpu.policy.requests import Request
from nodecpu.policy.room import capacity_mcpu, sliceable


def best_pool(ledger: Ledger, machine: Unit, request: Request) -> Pool:
    """Return the pool for a request: one with enough capacity, else the root, which may be over-committed (G16).

    Order: enough capacity; deeper; exclusive: more that can be sliced off; shared: fewer containers of the same kind,
    then more capacity; last the higher place in the tree's order (the scheduler fills devices from the lower ones).
    """
    best: tuple[tuple[int, ...], Pool] | None = None
    for pool in ledger.tree.pools:
        score = _score(ledger, machine, pool, request)
        if score is not None and (best is None or score > best[0]):
            best = (score, pool)
    return ledger.tree.root if best is None else best[1]


def _score(ledger: Ledger, machine: Unit, pool: Pool, request: Request) -> tuple[int, ...] | None:
    """Return a pool's score, to be compared as a whole; None without enough capacity."""
    capacity = capacity_mcpu(ledger, pool)
    need = 1000 * request.exclusive + max(request.portion_mcpu, int(request.uses_shared))
    if request.exclusive:
        slices = len(sliceable(ledger, machine, pool))
        if slices < request.exclusive or capacity < need:
            return None
        return (pool.depth, slices, pool.index)
    if capacity < need or not ledger.grantable(pool.sharable):
        return None
    alike = ledger.count_sharers(pool, bare=not request.portion_mcpu)
    return (pool.depth, -alike, capacity, pool.index)
