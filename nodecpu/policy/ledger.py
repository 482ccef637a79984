"""The books: every grant, with the sums that decisions read (pure).

One writer, no lock. Decisions read the ledger and return a ``Change``; ``apply`` is called only after its commit. A
hold keeps the CPUs of a prepare that is being committed out of every other decision; nothing outside sees it.

Invariants (``violations`` lists what breaks them): a CPU has one owner, a container's links are within its claims, sums
agree with the grants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodecpu.cpuset import NO_CPUS, CpuSet, NodeSet, union
from nodecpu.ids import ClaimUID, ContainerID, PodUID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ClaimGrant, ContainerGrant, Group
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import Pool, PoolTree

_Name = tuple[PodUID, str, str, str]
"""A container by its pod's UID, namespace and name, and its own name."""


class Ledger:
    """Grants by claim UID and by container id (two key spaces), over one tree of pools."""

    def __init__(self, tree: PoolTree) -> None:
        self.tree = tree
        self._claims: dict[ClaimUID, ClaimGrant] = {}
        self._containers: dict[ContainerID, ContainerGrant] = {}
        self._holds: dict[ClaimUID, CpuSet] = {}
        self._taken = 0
        self._held = 0
        self._members: list[dict[ContainerID, ContainerGrant]] = [{} for _ in tree.pools]
        self._portions = [0] * len(tree.pools)
        self._bare = [0] * len(tree.pools)
        self._own_bare = [0] * len(tree.pools)
        self._holders: dict[ClaimUID, dict[ContainerID, None]] = {}
        self._by_name: dict[_Name, ContainerID] = {}
        self._by_pod: dict[PodUID, dict[ContainerID, None]] = {}
        self._memory: dict[tuple[int, bool], int] = {}
        self._zones: dict[int, list[int]] = {}
        self._grantable: tuple[int, ...] = ()
        self._grantable_without: int | None = None

    @property
    def claims(self) -> Mapping[ClaimUID, ClaimGrant]:
        """All claims in the books, released ones included."""
        return self._claims

    @property
    def containers(self) -> Mapping[ContainerID, ContainerGrant]:
        """All containers in the books."""
        return self._containers

    def holders(self, uid: ClaimUID) -> tuple[ContainerGrant, ...]:
        """Return the containers linked to a claim."""
        return tuple(self._containers[i] for i in self._holders.get(uid, ()))

    def named(self, uid: PodUID, namespace: str, pod: str, name: str) -> ContainerGrant | None:
        """Return the container of that name in a pod; of several the one put last, None once that one is gone.

        A static pod's file may name any UID, so the pod's name has to be the same as well.
        """
        found = self._by_name.get((uid, namespace, pod, name))
        return None if found is None else self._containers[found]

    def of_pod(self, pod_uid: PodUID) -> tuple[ContainerGrant, ...]:
        """Return the containers of a pod."""
        return tuple(self._containers[i] for i in self._by_pod.get(pod_uid, ()))

    def pool_of(self, grant: ContainerGrant) -> Pool:
        """Return a container's pool; the root if its pool is no longer there."""
        return self.tree.named(grant.pool) or self.tree.root

    def sharers(self, pool: Pool) -> Mapping[ContainerID, ContainerGrant]:
        """Return the containers that run on this very pool's shared CPUs."""
        return self._members[pool.index]

    def count_sharers(self, *, bare: bool) -> Sequence[int]:
        """Return by pool how many containers share it itself: those without a portion (``bare``), or those with one."""
        if bare:
            return self._own_bare
        return [len(members) - without for members, without in zip(self._members, self._own_bare, strict=True)]

    def free(self, cpus: CpuSet) -> CpuSet:
        """Return those of ``cpus`` that nobody was granted exclusively. The one place where grants are subtracted."""
        return CpuSet.from_mask(cpus.mask & ~self._taken)

    def grantable(self, cpus: CpuSet) -> CpuSet:
        """Return those of ``cpus`` that could be given now: free, and not held for a prepare under way."""
        return CpuSet.from_mask(cpus.mask & ~(self._taken | self._held))

    def grantable_counts(self) -> Sequence[int]:
        """Return by pool how many of its sharable CPUs could be given now.

        Counted anew only when grants of CPUs have changed: most containers come and go without any.
        """
        without = self._taken | self._held
        if without != self._grantable_without:
            free = self.grantable(self.tree.root.sharable).mask
            self._grantable = tuple((pool.sharable.mask & free).bit_count() for pool in self.tree.pools)
            self._grantable_without = without
        return self._grantable

    @property
    def absent(self) -> CpuSet:
        """The CPUs that somebody was granted and that are not online (T6)."""
        taken = CpuSet.from_mask(self._taken)
        return taken - self.tree.present(taken)

    def owner(self, cpu: int) -> ClaimGrant | ContainerGrant | None:
        """Return whose exclusive CPU it is."""
        for claim in self._claims.values():
            if not claim.moved and cpu in claim.cpus:
                return claim
        return next((c for c in self._containers.values() if cpu in c.exclusive), None)

    def need_mcpu(self, pool: Pool) -> int:
        """Return what the shared containers in a pool and below it need: their portions, 1 m for those without any.

        So a pool with containers that asked for nothing keeps a CPU for them (P3).
        """
        return self._portions[pool.index] + (1 if self._bare[pool.index] else 0)

    def needs_mcpu(self) -> Sequence[int]:
        """Return what ``need_mcpu`` tells, by pool."""
        return [portion + bool(bare) for portion, bare in zip(self._portions, self._bare, strict=True)]

    def portions_mcpu(self, pool: Pool) -> int:
        """Return the sum of the shared portions granted in a pool and below it."""
        return self._portions[pool.index]

    def bare(self, pool: Pool) -> int:
        """Return how many shared containers without a portion are in a pool and below it."""
        return self._bare[pool.index]

    def hold(self, uid: ClaimUID, cpus: CpuSet) -> None:
        """Keep CPUs for a prepare until ``unhold``."""
        self._holds[uid] = cpus
        self._held = union(self._holds.values()).mask

    @property
    def holds(self) -> Mapping[ClaimUID, CpuSet]:
        """What is kept for prepares under way."""
        return self._holds

    @property
    def memory(self) -> Mapping[tuple[int, bool], int]:
        """The bytes that containers count for, by the mask of their memory nodes and whether they give way (M1)."""
        return self._memory

    def memory_within(self, nodes: NodeSet, *, stays: bool = False) -> int:
        """Return the bytes that containers count for whose memory nodes are all among these (M1).

        ``stays``: without what gives way. Kept for all sets of nodes that were asked about, which are the pools': to
        sum up for each of them took longer than all the rest of a decision on a machine with 64 nodes.
        """
        if nodes.mask not in self._zones:
            self._zones[nodes.mask] = [self._summed(nodes.mask, movable=movable) for movable in (False, True)]
        staying, moving = self._zones[nodes.mask]
        return staying if stays else staying + moving

    def _summed(self, nodes: int, *, movable: bool) -> int:
        return sum(size for (mask, gives), size in self._memory.items() if gives is movable and not mask & ~nodes)

    def copy(self) -> Ledger:
        """Return the same books once more, to try things on."""
        other = Ledger(self.tree)
        other.apply(Change(put_claims=tuple(self._claims.values()), put_containers=tuple(self._containers.values())))
        for uid, cpus in self._holds.items():
            other.hold(uid, cpus)
        return other

    def without(self, grant: ContainerGrant) -> Ledger:
        """Return the same books in which a container has no grant, its exclusive CPUs held: to decide anew about it."""
        other = Ledger(self.tree)
        containers = tuple(one for one in self._containers.values() if one.id != grant.id)
        other.apply(Change(put_claims=tuple(self._claims.values()), put_containers=containers))
        for uid, cpus in self._holds.items():
            other.hold(uid, cpus)
        other.hold_for(grant, grant.exclusive)
        return other

    def hold_for(self, grant: ContainerGrant, cpus: CpuSet) -> None:
        """Keep CPUs for a container about to get them, in place of those held for it before."""
        self.hold(ClaimUID(f"container {grant.id}"), cpus)

    def unhold(self, uid: ClaimUID) -> None:
        """Drop a hold; dropping none is nothing."""
        self._holds.pop(uid, None)
        self._held = union(self._holds.values()).mask

    def apply(self, change: Change) -> CpuSet:
        """Take a committed change into the books; return the CPUs that changed between granted and free."""
        before = self._taken
        # Everything old goes before anything new comes: grants of one change may hand CPUs to one another.
        for uid in (*change.drop_claims, *(claim.uid for claim in change.put_claims)):
            self._remove_claim(uid)
        for container_id in (*change.drop_containers, *(container.id for container in change.put_containers)):
            self._remove_container(container_id)
        for claim in change.put_claims:
            self._claims[claim.uid] = claim
            if not claim.moved:
                self._taken |= claim.cpus.mask
        for container in change.put_containers:
            self._containers[container.id] = container
            self._taken |= container.exclusive.mask
            self._by_name[_name_of(container)] = container.id
            self._by_pod.setdefault(container.pod_uid, {})[container.id] = None
            self._count(container, is_new=True)
            for link in container.links:
                self._holders.setdefault(link.claim_uid, {})[container.id] = None
        return CpuSet.from_mask(before ^ self._taken)

    def _remove_claim(self, uid: ClaimUID) -> None:
        old = self._claims.pop(uid, None)
        if old is not None and not old.moved:
            self._taken &= ~old.cpus.mask

    def _remove_container(self, container_id: ContainerID) -> None:
        old = self._containers.pop(container_id, None)
        if old is None:
            return
        self._taken &= ~old.exclusive.mask
        if self._by_name.get(_name_of(old)) == container_id:
            del self._by_name[_name_of(old)]
        siblings = self._by_pod[old.pod_uid]
        del siblings[container_id]
        if not siblings:
            del self._by_pod[old.pod_uid]
        self._count(old, is_new=False)
        for link in old.links:
            holders = self._holders[link.claim_uid]
            holders.pop(container_id, None)
            if not holders:
                del self._holders[link.claim_uid]

    def _count(self, grant: ContainerGrant, *, is_new: bool) -> None:
        sign = 1 if is_new else -1
        if grant.memory_bytes and grant.mems:
            key = grant.mems.mask, gives_way(grant)
            self._memory[key] = self._memory.get(key, 0) + sign * grant.memory_bytes
            if not self._memory[key]:
                del self._memory[key]
            for nodes, sums in self._zones.items():
                if not grant.mems.mask & ~nodes:
                    sums[key[1]] += sign * grant.memory_bytes
        if not grant.uses_shared:
            return
        pool = self.pool_of(grant)
        if is_new:
            self._members[pool.index][grant.id] = grant
        else:
            del self._members[pool.index][grant.id]
        self._own_bare[pool.index] += 0 if grant.portion_mcpu else sign
        for index in pool.ancestors:
            self._portions[index] += sign * grant.portion_mcpu
            self._bare[index] += 0 if grant.portion_mcpu else sign


def _name_of(grant: ContainerGrant) -> _Name:
    return grant.pod_uid, grant.namespace, grant.pod, grant.name


def gives_way(grant: ContainerGrant) -> bool:
    """Return whether a container's memory is widened where a Guaranteed one needs the room (M1)."""
    return grant.qos is QoS.BURSTABLE and not grant.links and bool(grant.memory_bytes and grant.mems)


def violations(ledger: Ledger) -> list[str]:
    """Return what is wrong with the books, each in a sentence; for tests and for the daemon's own check."""
    found: list[str] = []
    owners: dict[int, str] = {}
    claimed = [(f"claim {c.uid}", c.cpus) for c in ledger.claims.values() if not c.moved]
    for who, cpus in [*claimed, *((f"container {c.id}", c.exclusive) for c in ledger.containers.values())]:
        for cpu in cpus:
            if cpu in owners:
                found.append(f"CPU {cpu} belongs to {owners[cpu]} and to {who}")
            owners[cpu] = who
    granted = CpuSet(owners)
    if lost := ledger.free(granted):
        found.append(f"granted but counted free: {lost}")
    if kept := ledger.tree.usable.all - granted - ledger.free(ledger.tree.usable.all):
        found.append(f"free but counted as granted: {kept}")
    for claim in ledger.claims.values():
        seen = NO_CPUS
        for result in claim.results:
            if not seen.isdisjoint(result.cpus):
                found.append(f"claim {claim.uid} gives {seen & result.cpus} twice")
            seen |= result.cpus
    for grant in ledger.containers.values():
        found += _grant_violations(ledger, grant)
    return found + _sum_violations(ledger)


def _grant_violations(ledger: Ledger, grant: ContainerGrant) -> list[str]:
    found = []
    for link in grant.links:
        claim = ledger.claims.get(link.claim_uid)
        if claim is None:
            found.append(f"container {grant.id} is linked to claim {link.claim_uid}, which is not in the books")
        elif not link.cpus <= claim.cpus:
            found.append(f"container {grant.id} is linked to {link.cpus}, its claim has {claim.cpus}")
    if grant.group in (Group.MIXED, Group.MULTI) and not grant.exclusive:
        found.append(f"container {grant.id} should have CPUs of its own")
    if grant.uses_shared and ledger.tree.named(grant.pool) is None:
        found.append(f"container {grant.id} is in pool {grant.pool}, which is not there")
    return found


def _sum_violations(ledger: Ledger) -> list[str]:
    """Recount every pool's need from the grants alone."""
    found = []
    for pool in ledger.tree.pools:
        within = [g for g in ledger.containers.values() if g.uses_shared and pool.index in ledger.pool_of(g).ancestors]
        need = sum(g.portion_mcpu for g in within)
        need += any(not g.portion_mcpu for g in within)
        if need != ledger.need_mcpu(pool):
            found.append(f"pool {pool.name} counts {ledger.need_mcpu(pool)} m, its containers need {need} m")
        if len(ledger.sharers(pool)) != sum(ledger.pool_of(g) is pool for g in within):
            found.append(f"pool {pool.name} has lost or gained containers")
    return found + _memory_violations(ledger)


def _memory_violations(ledger: Ledger) -> list[str]:
    """Recount what containers count for in memory nodes from the grants alone."""
    found = []
    memory: dict[tuple[int, bool], int] = {}
    for grant in ledger.containers.values():
        if grant.mems and grant.memory_bytes:
            key = grant.mems.mask, gives_way(grant)
            memory[key] = memory.get(key, 0) + grant.memory_bytes
    if memory != ledger.memory:
        found.append("memory counted is not that of the containers")
    for nodes in sorted({pool.mems for pool in ledger.tree.pools}, key=lambda nodes: nodes.mask):
        inside = [(movable, size) for (mask, movable), size in memory.items() if not mask & ~nodes.mask]
        sums = sum(size for movable, size in inside if not movable), sum(size for _, size in inside)
        if sums != (ledger.memory_within(nodes, stays=True), ledger.memory_within(nodes)):
            found.append(f"memory counted in nodes {nodes} is not that of the containers")
    return found
