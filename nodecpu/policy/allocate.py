"""Decides what a claim and what a container gets (pure). An answer changes nothing and is void once the books move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodecpu.cpuset import NO_CPUS, NO_NODES, CpuSet, NodeSet
from nodecpu.errors import BadRequest, NoCapacity
from nodecpu.policy.facts import AllocatedClaim, AllocationResult, Container, Sandbox
from nodecpu.policy.grants import ClaimGrant, ContainerGrant, Group, Link, ResultGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.picker import Unit, pick
from nodecpu.policy.pools import Pool
from nodecpu.policy.requests import Request
from nodecpu.policy.room import check_kept, isolated_for, sliceable, spare_mcpu
from nodecpu.policy.rules import Rules
from nodecpu.policy.scoring import best_pool
from nodecpu.policy.shared import shared_cpus

_MIN_SHARES, _MAX_SHARES = 2, 262144
"""The kernel's range of cpu.shares. Source: kernel sched/core.c, MIN_SHARES and MAX_SHARES."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What decisions need to know of the machine beside the books: the picker's units, and the devices of its pool.

    ``pool`` is the resource pool's name (the node's); empty: not checked.
    """

    units: Unit
    devices: Mapping[str, CpuSet]
    pool: str = ""


def claim_grant(ledger: Ledger, machine: Machine, rules: Rules, claim: AllocatedClaim) -> ClaimGrant:
    """Return the grant for a claim that is not in the books: disjoint CPUs per result, all or nothing (C2, C3).

    Raises BadRequest for an unknown device or more than it can ever give, NoCapacity for what is not free now (C8).
    """
    results: list[ResultGrant] = []
    taken = NO_CPUS
    for wanted in claim.results:
        cpus = NO_CPUS if wanted.admin_access else _result_cpus(ledger, machine, claim, wanted, taken)
        taken |= cpus
        results.append(
            ResultGrant(
                request=wanted.request,
                pool=wanted.pool,
                device=wanted.device,
                cpus=cpus,
                share_id=wanted.share_id,
                admin_access=wanted.admin_access,
            )
        )
    check_kept(ledger, rules, f"claim {claim.namespace}/{claim.name}", taken)
    ids = tuple(f"{rules.driver}/cpu=claim-{claim.uid}-{index}" for index in range(len(results)))
    return ClaimGrant(uid=claim.uid, namespace=claim.namespace, name=claim.name, results=tuple(results), cdi_ids=ids)


def _result_cpus(
    ledger: Ledger, machine: Machine, claim: AllocatedClaim, wanted: AllocationResult, taken: CpuSet
) -> CpuSet:
    """Return the CPUs for one result from its device's grantable CPUs that are free, other than ``taken``."""
    who = f"claim {claim.namespace}/{claim.name}, request {wanted.request}"
    if machine.pool and wanted.pool != machine.pool:
        raise BadRequest(
            f"{who}: device {wanted.device} is of pool {wanted.pool}, this node's is {machine.pool}",
            hint="see that [node] name is the name of the Node object",
        )
    device = machine.devices.get(wanted.device)
    if device is None:
        raise BadRequest(
            f"{who}: there is no device {wanted.device} on this node",
            hint=f"delete the claim, to be allocated anew; there are {', '.join(sorted(machine.devices)) or 'none'}",
        )
    most = device & ledger.tree.usable.grantable
    if wanted.cpus > len(most):
        raise BadRequest(
            f"{who}: {wanted.cpus} CPUs asked of {wanted.device}, which has {len(most)} ({most})",
            hint="lower the capacity request, or spread it over several requests",
        )
    free = ledger.grantable(most) - taken
    cpus = pick(machine.units, free, wanted.cpus)
    if cpus is None:
        raise NoCapacity(
            f"{who}: {wanted.cpus} CPUs asked of {wanted.device}, {len(free)} free ({free or 'none'})",
            hint="release a claim there or lower the request; the kubelet tries again in about a minute",
        )
    return cpus


def same_allocation(grant: ClaimGrant, claim: AllocatedClaim) -> bool:
    """Return whether a claim's allocation is still the one that the grant was made for (C6)."""
    made = tuple((r.request, r.pool, r.device, r.share_id, r.admin_access, len(r.cpus)) for r in grant.results)
    told = tuple(
        (r.request, r.pool, r.device, r.share_id, r.admin_access, 0 if r.admin_access else r.cpus)
        for r in claim.results
    )
    return made == told


def container_grant(  # noqa: PLR0913
    ledger: Ledger,
    machine: Machine,
    rules: Rules,
    sandbox: Sandbox,
    container: Container,
    links: tuple[Link, ...],
    request: Request,
) -> ContainerGrant:
    """Return the grant for a container that is not in the books (G1 to G6).

    Raises NoCapacity if its exclusive CPUs cannot be had, or if there is no CPU at all to run on (G16).
    """
    grant = ContainerGrant(
        id=container.id,
        sandbox_id=sandbox.id,
        pod_uid=sandbox.uid,
        namespace=sandbox.namespace,
        pod=sandbox.name,
        name=container.name,
        group=request.group,
        pool=ledger.tree.root.name,
        qos=request.qos,
        portion_mcpu=request.portion_mcpu,
        uses_shared=request.uses_shared,
        links=links,
        state=container.state,
        path=container.cgroups_path,
        reason=request.reason,
    )
    claimed = grant.claimed
    if request.group is Group.RESERVED:
        home = ledger.tree.root
    elif claimed:
        home = ledger.tree.holding(claimed)
    else:
        home = best_pool(ledger, machine.units, rules, request)
    exclusive = _exclusive(ledger, machine, rules, home, grant, request.exclusive)
    pool = _sharing_pool(ledger, home, grant, exclusive) if request.uses_shared else home
    why = grant.reason
    if not exclusive <= home.cpus:
        why += f"; exclusive CPUs of {ledger.tree.holding(exclusive).name}, {home.name} has none to spare"
    if pool is not home:
        why += f"; shared CPUs of {pool.name}, {home.name} has none to spare"
    grant = replace(grant, pool=pool.name, exclusive=exclusive, mems=_mems(rules, home), reason=why)
    return replace(grant, shares=_shares(ledger, grant) if links else None)


def _exclusive(ledger: Ledger, machine: Machine, rules: Rules, home: Pool, grant: ContainerGrant, count: int) -> CpuSet:
    """Return exclusive CPUs: of the home pool, else, as a holder's may be claimed whole, of the nearest ancestor (G5).

    Isolated CPUs are used when they cover the whole part (G10).
    """
    if not count:
        return NO_CPUS
    who = f"container {grant.namespace}/{grant.pod}/{grant.name}"
    for pool in ledger.tree.upwards(home):
        if isolated := isolated_for(ledger, rules, pool, count):
            return pick(machine.units, isolated, count) or NO_CPUS
        cpus = pick(machine.units, sliceable(ledger, machine.units, pool), count)
        if cpus is not None:
            check_kept(ledger, rules, who, cpus)
            return cpus
    root = ledger.tree.root
    raise NoCapacity(
        f"{who}: {count} exclusive CPUs asked,"
        f" {len(sliceable(ledger, machine.units, root))} can be spared ({ledger.grantable(root.sharable)} are free)",
        hint="lower the request, or make room by removing claims or shared containers with CPU requests",
    )


def _sharing_pool(ledger: Ledger, home: Pool, grant: ContainerGrant, exclusive: CpuSet) -> Pool:
    """Return the pool for a shared portion beside exclusive CPUs: home, or the nearest ancestor that covers it (G5).

    At last the root, covered or not (G16).
    """
    need = max(grant.portion_mcpu, 1)
    if not shared_cpus(ledger, ledger.tree.root):
        raise NoCapacity(
            f"container {grant.namespace}/{grant.pod}/{grant.name}: no CPU is left for shared containers",
            hint="release a claim, or configure reserved CPUs",
        )
    for pool in ledger.tree.upwards(home):
        if spare_mcpu(ledger, pool, exclusive) >= need:
            return pool
    return ledger.tree.root


def _mems(rules: Rules, home: Pool) -> NodeSet:
    return home.mems if rules.pin_memory else NO_NODES


def _shares(ledger: Ledger, grant: ContainerGrant) -> int:
    """Return a holder's cpu.shares: of its portion if it has one, else 1000 m for every CPU it runs on (G6)."""
    mcpu = grant.portion_mcpu or 1000 * len(grant.claimed | grant.exclusive)
    return min(max(mcpu * 1024 // 1000, _MIN_SHARES), _MAX_SHARES)
