"""How much may be sliced off for exclusive use, and who moves when a claim takes the room (pure; P3, C5, C14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodecpu.cpuset import NO_CPUS, CpuSet, NodeSet
from nodecpu.errors import NoCapacity
from nodecpu.ids import ContainerID
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.picker import Unit, pick
from nodecpu.policy.pools import Pool
from nodecpu.policy.rules import Rules


def check_kept(ledger: Ledger, rules: Rules, who: str, taking: CpuSet) -> None:
    """Raise NoCapacity if taking these CPUs leaves fewer sharable ones than are kept for shared containers (C14)."""
    sharable = ledger.tree.root.sharable
    left = ledger.grantable(sharable) - taking
    least = rules.least_shared(ledger.tree.usable.reserved)
    if len(left) < least and not taking.isdisjoint(sharable):
        raise NoCapacity(
            f"{who}: taking CPUs {taking} would leave {len(left)} for shared containers, which keep {least}",
            hint='ask for fewer CPUs, or reserve CPUs and set policy.shared_fallback = "reserved"',
        )


def capacity_mcpu(ledger: Ledger, pool: Pool, taking: CpuSet = NO_CPUS) -> int:
    """Return a pool's shared capacity less what the shared containers in and below it need; negative: over-committed.

    CPUs held for a prepare under way count as granted, and so do those of ``taking``.
    """
    return 1000 * len(ledger.grantable(pool.sharable) - taking) - ledger.need_mcpu(pool)


def spare_mcpu(ledger: Ledger, pool: Pool, taking: CpuSet = NO_CPUS) -> int:
    """Return how large a shared portion a pool can take so that it and those above still cover their containers.

    The root does not count for the pools below it: it is where what fits nowhere goes, and may be over-committed (G16).
    """
    return min(
        capacity_mcpu(ledger, above, taking) for above in ledger.tree.upwards(pool) if above.depth or not pool.depth
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Every pool's room at one moment, by the pool's index, for decisions that compare them all.

    Capacity and spare as ``capacity_mcpu`` and ``spare_mcpu`` tell.
    """

    capacity_mcpu: tuple[int, ...]
    spare_mcpu: tuple[int, ...]


def survey(ledger: Ledger) -> Survey:
    """Return the room of all pools, each looked at once (parents come before their children)."""
    counts, needs = ledger.grantable_counts(), ledger.needs_mcpu()
    capacity = [1000 * free - need for free, need in zip(counts, needs, strict=True)]
    spare = list(capacity)
    for index, parent in ledger.tree.parents:
        if parent and spare[parent] < spare[index]:
            spare[index] = spare[parent]
    return Survey(capacity_mcpu=tuple(capacity), spare_mcpu=tuple(spare))


def slice_counts(ledger: Ledger) -> Sequence[int]:
    """Return by pool how many CPUs ``sliceable`` returns."""
    free, needs = ledger.grantable_counts(), ledger.needs_mcpu()
    most = [max(0, (1000 * count - need) // 1000) for count, need in zip(free, needs, strict=True)]
    slices = list(free)
    for pool in reversed(ledger.tree.pools):  # as _slice_below does, in numbers
        if needs[pool.index]:
            kept_below = sum(free[child] - slices[child] for child in pool.children)
            slices[pool.index] = min(most[pool.index], free[pool.index] - kept_below)
    for index, parent in ledger.tree.parents:
        most[index] = min(most[index], most[parent])
        slices[index] = min(slices[index], most[index])
    return slices


def isolated_for(ledger: Ledger, pool: Pool, count: int, *, wanted: bool) -> CpuSet:
    """Return a pool's free isolated CPUs if they are wanted and cover the whole exclusive part, else none (G10)."""
    isolated = ledger.grantable(pool.isolated)
    return isolated if wanted and len(isolated) >= count else NO_CPUS


def sliceable(ledger: Ledger, machine: Unit, pool: Pool) -> CpuSet:
    """Return sharable CPUs that may be sliced off in a pool while every pool still covers its containers (P3)."""
    cpus = _slice_below(ledger, machine, pool)
    for above in ledger.tree.upwards(pool):
        cpus = _trim(ledger, machine, above, cpus)
    return cpus


def _slice_below(ledger: Ledger, machine: Unit, pool: Pool) -> CpuSet:
    whole = ledger.grantable(pool.sharable)
    if not ledger.need_mcpu(pool):
        return whole
    in_children = NO_CPUS
    cpus = NO_CPUS
    for index in pool.children:
        child = ledger.tree.pools[index]
        in_children |= child.sharable
        cpus |= _slice_below(ledger, machine, child)
    return _trim(ledger, machine, pool, cpus | (whole - in_children))


def _trim(ledger: Ledger, machine: Unit, pool: Pool, cpus: CpuSet) -> CpuSet:
    """Cut ``cpus`` to as many as the pool can spare: those that a request of that size would take."""
    most = max(0, capacity_mcpu(ledger, pool) // 1000)
    return pick(machine, cpus, min(len(cpus), most)) or NO_CPUS


def make_room(ledger: Ledger, taking: CpuSet = NO_CPUS) -> tuple[ContainerGrant, ...]:
    """Return the shared grants that are lifted when ``taking`` is granted, each in its new pool (C14).

    From the deepest pools upwards: where a pool no longer covers its containers, those without a request go first, then
    the smaller portions, each to the nearest ancestor that covers it, at last to the root, which may be over-committed
    (G16). With nothing taken this settles books that were restored over other pools.
    """
    room = _Room(ledger, taking)
    for pool in reversed(ledger.tree.pools[1:]):  # children before parents; nobody is lifted from the root
        if room.covers(pool):
            continue
        for grant in sorted(ledger.sharers(pool).values(), key=lambda g: (g.portion_mcpu, g.id)):
            if room.covers(pool):
                break
            room.lift(grant, pool)
    return tuple(room.moved.values())


class _Room:
    """What each pool would have and need while grants are being lifted. A lift never changes an ancestor's need."""

    def __init__(self, ledger: Ledger, taking: CpuSet) -> None:
        self._ledger = ledger
        free = ledger.free(ledger.tree.root.sharable) - taking
        self._free = [len(pool.sharable & free) for pool in ledger.tree.pools]
        self._portions = [ledger.portions_mcpu(pool) for pool in ledger.tree.pools]
        self._bare = [ledger.bare(pool) for pool in ledger.tree.pools]
        self.moved: dict[ContainerID, ContainerGrant] = {}

    def covers(self, pool: Pool) -> bool:
        """Return whether a pool covers what it and the pools below need (a need at all takes at least one CPU)."""
        need = self._portions[pool.index] + bool(self._bare[pool.index])
        return need <= 1000 * self._free[pool.index]

    def lift(self, grant: ContainerGrant, pool: Pool) -> None:
        """Move a grant to the nearest ancestor that covers its containers, this one among them already."""
        above = list(self._ledger.tree.upwards(pool))[1:]
        target = next((a for a in above if self.covers(a)), self._ledger.tree.root)
        for index in pool.ancestors[: pool.ancestors.index(target.index)]:
            self._portions[index] -= grant.portion_mcpu
            self._bare[index] -= not grant.portion_mcpu
        # A holder's memory is its claims' pool's, wherever its shared portion goes (G5).
        self.moved[grant.id] = replace(
            grant,
            pool=target.name,
            mems=_lifted_memory(grant, target),
            reason=f"{grant.reason.partition('; lifted')[0]}; lifted from {pool.name} to {target.name} to make room",
        )


def _lifted_memory(grant: ContainerGrant, target: Pool) -> NodeSet:
    """Return the memory of a lifted container: of the new pool, but what was widened already stays so (M1)."""
    if grant.links or not grant.mems:
        return grant.mems
    nodes = target.zone(grant.memory_kinds)
    return nodes if grant.mems <= nodes else grant.mems
