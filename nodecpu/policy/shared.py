"""The shared pool: computed in one function, fanned out in one other (pure).

Everything else about shared CPUs, who may have them and who has to move for a claim, is in ``room``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.plan import Change, Placement, Update
from nodecpu.policy.pools import Pool

PERIOD_US: Final = 100_000
"""The CFS period that goes with our quotas, the kernel's default. Source: kernel sched/core.c, default_cfs_period."""


def shared_cpus(ledger: Ledger, pool: Pool) -> CpuSet:
    """Return the CPUs that a pool's shared containers run on.

    These are its free sharable CPUs. Where there are none, the nearest ancestor's; with no free sharable CPU on the
    whole node the reserved ones (C14). Empty only on a node that has neither.
    """
    for above in ledger.tree.upwards(pool):
        if free := ledger.free(above.sharable):
            return free
    return reserved_cpus(ledger)


def reserved_cpus(ledger: Ledger) -> CpuSet:
    """Return the CPUs of the reserved group: less what claims hold of them, from before they were reserved (R3).

    Where claims hold all of them the group goes to what is free on the node.
    """
    reserved = ledger.tree.usable.reserved
    return ledger.free(reserved) or ledger.free(ledger.tree.root.sharable) or reserved


def placement(ledger: Ledger, grant: ContainerGrant) -> Placement | None:
    """Return where a container runs by the books (G2 to G4, G8); None if its cpuset is not ours to set.

    Of what it holds it runs on what is online, and returns to the rest when that is (T6).
    """
    if grant.group is Group.IGNORED:
        return None
    claimed, own, others = grant.claimed, grant.exclusive, NO_CPUS
    if grant.group is Group.RESERVED:
        others |= reserved_cpus(ledger)
    if grant.uses_shared:
        others |= shared_cpus(ledger, ledger.pool_of(grant))
    if grant.hides_threads:
        # A holder hides threads of its own exclusive CPUs alone, never of what it claimed (G7).
        own = ledger.tree.one_thread_each(own if claimed else own | others)
        others = others if claimed else NO_CPUS
    cpus = ledger.tree.present(claimed | own | others)
    if not cpus and (claimed or own):  # all of them are offline: anywhere but on what others own (T6)
        cpus = shared_cpus(ledger, ledger.pool_of(grant))
    if not cpus:
        return None
    period_us = None if grant.quota_us is None else PERIOD_US
    mems = ledger.tree.present_memory(grant.mems)
    return Placement(cpus=cpus, mems=mems, shares=grant.shares, quota_us=grant.quota_us, period_us=period_us)


def shared_updates(ledger: Ledger, change: Change, flipped: CpuSet) -> Iterator[Update]:
    """Yield the placements that an applied change may have altered: the containers it puts, and sharers of its CPUs.

    ``flipped`` are the CPUs that changed between granted and free. A container without a shared portion is never among
    the latter (G8), unless all of its own are offline (T6). The caller sends only what differs from what a container
    has.
    """
    for put in change.put_containers:
        if (where := placement(ledger, put)) is not None:
            yield Update(container_id=put.id, placement=where)
    put_ids = {put.id for put in change.put_containers}
    for grant in _concerned(ledger, flipped) if flipped else ():
        if grant.id not in put_ids and (where := placement(ledger, grant)) is not None:
            yield Update(container_id=grant.id, placement=where)


def _concerned(ledger: Ledger, flipped: CpuSet) -> Iterator[ContainerGrant]:
    """Yield the containers that may run elsewhere when these CPUs change between granted and free."""
    # A pool without free CPUs of its own runs on an ancestor's: any flip may concern it.
    free = ledger.free(ledger.tree.root.sharable)
    for pool in ledger.tree.pools:
        untouched = pool.sharable.isdisjoint(flipped) and not pool.sharable.isdisjoint(free)
        if not untouched and ledger.sharers(pool):
            yield from ledger.sharers(pool).values()
    reserved = ledger.tree.usable.reserved
    if not flipped.isdisjoint(reserved) or not ledger.free(reserved):
        yield from (g for g in ledger.containers.values() if g.group is Group.RESERVED)
    if ledger.absent:  # a holder of nothing else runs where shared containers do
        holders = (g for g in ledger.containers.values() if (g.claimed or g.exclusive) and not g.uses_shared)
        yield from (g for g in holders if not ledger.tree.present(g.claimed | g.exclusive))
