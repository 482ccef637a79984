"""Containers whose books were lost: what they run on tells what they were given (pure; R1, R2)."""

from __future__ import annotations

from dataclasses import replace

from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.pending import Seen


def as_it_runs(ledger: Ledger, grant: ContainerGrant, seen: Seen) -> ContainerGrant:
    """Return a new grant with the exclusive CPUs that its container has already, where it has just as many.

    Nothing is taken from others: a container that was never pinned runs on more, and gets what was picked. Where a
    shared portion is mixed in it cannot be told which CPU was its own.
    """
    own = seen.cpus - grant.claimed
    if not grant.exclusive or grant.uses_shared or len(own) != len(grant.exclusive) or ledger.grantable(own) != own:
        return grant
    if not own <= ledger.tree.usable.grantable:
        return grant
    pool = ledger.tree.holding(own | grant.claimed)
    return replace(grant, exclusive=own, pool=pool.name, mems=seen.mems or grant.mems)
