"""The shared pool: computed in one function, fanned out in one other (pure).

Everything else about shared CPUs, who may have them and who has to move for a claim, is in ``room``.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodecpu.cpuset import CpuSet
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.plan import Change, Placement, Update
from nodecpu.policy.pools import Pool


def shared_cpus(ledger: Ledger, pool: Pool) -> CpuSet:
    """Return the CPUs that a pool's shared containers run on.

    These are its free sharable CPUs. Where there are none, the nearest ancestor's; with no free sharable CPU on the
    whole node the reserved ones (C14). Empty only on a node that has neither.
    """
    for above in ledger.tree.upwards(pool):
        if free := ledger.free(above.sharable):
            return free
    return ledger.tree.usable.reserved


def placement(ledger: Ledger, grant: ContainerGrant) -> Placement | None:
    """Return where a container runs by the books (G2 to G4, G8); None if its cpuset is not ours to set."""
    if grant.group is Group.IGNORED:
        return None
    cpus = grant.claimed | grant.exclusive
    if grant.group is Group.RESERVED:
        cpus |= ledger.tree.usable.reserved
    if grant.uses_shared:
        cpus |= shared_cpus(ledger, ledger.pool_of(grant))
    if not cpus:
        return None
    return Placement(cpus=cpus, mems=grant.mems, shares=grant.shares)


def shared_updates(ledger: Ledger, change: Change, flipped: CpuSet) -> Iterator[Update]:
    """Yield the placements that an applied change may have altered: the containers it puts, and sharers of its CPUs.

    ``flipped`` are the CPUs that changed between granted and free. A container without a shared portion is never among
    the latter (G8). The caller sends only what differs from what a container has.
    """
    for put in change.put_containers:
        if (where := placement(ledger, put)) is not None:
            yield Update(container_id=put.id, placement=where)
    if not flipped:
        return
    put_ids = {put.id for put in change.put_containers}
    # A pool without free CPUs of its own runs on an ancestor's: any flip may concern it.
    for pool in ledger.tree.pools:
        if not ledger.sharers(pool) or (pool.sharable.isdisjoint(flipped) and ledger.free(pool.sharable)):
            continue
        for grant in ledger.sharers(pool).values():
            if grant.id not in put_ids and (where := placement(ledger, grant)) is not None:
                yield Update(container_id=grant.id, placement=where)
