"""Decides what a claim gets (pure; C2, C3, C5, C8 to C10). An answer is void once the books move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.errors import BadRequest, NoCapacity
from nodecpu.policy.facts import AllocatedClaim, AllocationResult
from nodecpu.policy.grants import ClaimGrant, ResultGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.machine import Machine
from nodecpu.policy.room import check_kept
from nodecpu.policy.rules import Rules
from nodecpu.policy.wishes import Picked, Wishes, pick_by, whole_cores

_AGAIN = "release a claim there or lower the request; the kubelet tries again in about a minute"


def claim_grant(ledger: Ledger, machine: Machine, rules: Rules, claim: AllocatedClaim) -> ClaimGrant:
    """Return the grant for a claim that is not in the books: disjoint CPUs per result, all or nothing (C2, C3).

    Raises BadRequest for an unknown device, for what it can never give and for wishes that cannot be met; NoCapacity
    for what is not free now (C8). CPUs that a result names by itself are kept from the other results.
    """
    named = _named(claim)
    results: list[ResultGrant] = []
    taken = NO_CPUS
    for wanted in claim.results:
        picked = Picked(cpus=NO_CPUS)
        if not wanted.admin_access:
            mine = wanted.cpuset if wanted.cpuset is not None else NO_CPUS
            picked = _Result(ledger, machine, rules, claim, wanted).pick(taken | (named - mine))
        taken |= picked.cpus
        results.append(
            ResultGrant(
                request=wanted.request,
                pool=wanted.pool,
                device=wanted.device,
                cpus=picked.cpus,
                share_id=wanted.share_id,
                admin_access=wanted.admin_access,
                wishes=wanted.wishes,
                missed=picked.missed,
            )
        )
    _check_full_cores(machine, rules, claim, taken)
    check_kept(ledger, rules, f"claim {claim.namespace}/{claim.name}", taken)
    ids = tuple(f"{rules.driver}/cpu=claim-{claim.uid}-{index}" for index in range(len(results)))
    return ClaimGrant(uid=claim.uid, namespace=claim.namespace, name=claim.name, results=tuple(results), cdi_ids=ids)


def _named(claim: AllocatedClaim) -> CpuSet:
    """Return all CPUs that a claim's results name by themselves; raises BadRequest if two name the same one."""
    named = NO_CPUS
    for wanted in claim.results:
        if wanted.cpuset is None or wanted.admin_access:
            continue
        if twice := named & wanted.cpuset:
            raise BadRequest(
                f"claim {claim.namespace}/{claim.name}, request {wanted.request}: CPUs {twice} are named by another"
                " request of the claim too",
                hint="give each request's configuration its own cpuset, and name the request in it",
            )
        named |= wanted.cpuset
    return named


class _Result:
    """One result of a claim's allocation that is to be served."""

    def __init__(
        self, ledger: Ledger, machine: Machine, rules: Rules, claim: AllocatedClaim, wanted: AllocationResult
    ) -> None:
        self._ledger = ledger
        self._machine = machine
        self._rules = rules
        self._wanted = wanted
        self._who = f"claim {claim.namespace}/{claim.name}, request {wanted.request}"

    def pick(self, taken: CpuSet) -> Picked:
        """Return its CPUs from its device's grantable ones that are free, other than ``taken``."""
        wanted = self._wanted
        most = self._device() & self._ledger.tree.usable.grantable
        if wanted.cpus > len(most):
            raise BadRequest(
                f"{self._who}: {wanted.cpus} CPUs asked of {wanted.device}, which has {len(most)} ({most or 'none'})",
                hint="lower the capacity request, or spread it over several requests",
            )
        if wanted.cpuset is not None:
            return Picked(cpus=self._as_named(wanted.cpuset, most, taken))
        if self._rules.require_cpuset and wanted.device in self._machine.whole:
            raise BadRequest(
                f"{self._who}: {wanted.device} needs a configuration that says which CPUs",
                hint="have the scheduler add cpuConfig.cpuset to the allocation, or set dra.require_cpuset = false",
            )
        return self._as_wished(most, taken)

    def _device(self) -> CpuSet:
        wanted, machine = self._wanted, self._machine
        if machine.pool and wanted.pool != machine.pool:
            raise BadRequest(
                f"{self._who}: device {wanted.device} is of pool {wanted.pool}, this node's is {machine.pool}",
                hint="see that [node] name is the name of the Node object",
            )
        device = machine.devices.get(wanted.device)
        if device is None:
            others = sorted(machine.devices.keys() - set(machine.published))
            raise BadRequest(
                f"{self._who}: there is no device {wanted.device} on this node",
                hint=f"delete the claim, to be allocated anew; there are {_some([*machine.published, *others])}",
            )
        return device

    def _as_named(self, cpus: CpuSet, most: CpuSet, taken: CpuSet) -> CpuSet:
        """Return the CPUs that the claim's configuration names, if they may be given (C9)."""
        wanted, usable = self._wanted, self._ledger.tree.usable
        if len(cpus) != wanted.cpus:
            raise BadRequest(
                f"{self._who}: its configuration names {len(cpus)} CPUs ({cpus}), {wanted.cpus} are allocated",
                hint="cpuConfig.cpuset and the capacity request must agree",
            )
        for wrong, words in (
            (cpus & usable.reserved, "reserved"),
            (cpus - usable.all, "not online, or not to be used on this node"),
            (cpus - most, f"not of {wanted.device}"),
        ):
            if wrong:
                raise BadRequest(
                    f"{self._who}: its configuration names CPUs {cpus}, of which {wrong} are {words}",
                    hint=f"name CPUs among {most}",
                )
        if held := cpus - (self._ledger.grantable(cpus) - taken):
            raise NoCapacity(
                f"{self._who}: its configuration names CPUs {cpus}, of which {held} are held by others", hint=_AGAIN
            )
        return cpus

    def _wishes(self) -> Wishes:
        """Return the claim's wishes (C10), else the node's; what the node demands holds for both."""
        wanted, node = self._wanted.wishes, self._rules.wishes
        if wanted is None:
            return node
        wishes = replace(wanted, full_cores=wanted.full_cores or node.full_cores)
        if wishes.conflict:
            raise BadRequest(
                f"{self._who}: {wishes.conflict}, and this node gives full cores only",
                hint="leave the spread over cores out of the claim's configuration",
            )
        return wishes

    def _as_wished(self, most: CpuSet, taken: CpuSet) -> Picked:
        """Return CPUs of the picker's choice, by the wishes there are; raises an error where strict ones are missed."""
        wanted, machine = self._wanted, self._machine.units
        wishes = self._wishes()
        free = self._ledger.grantable(most) - taken
        picked = pick_by(machine, free, wanted.cpus, wishes)
        if picked is None:
            raise NoCapacity(
                f"{self._who}: {wanted.cpus} CPUs asked of {wanted.device}, {len(free)} free ({free or 'none'})",
                hint=_AGAIN,
            )
        if picked.missed and wishes.strict:
            what = f"{self._who}: {wanted.cpus} CPUs of {wanted.device} as {' and '.join(picked.missed)}"
            empty = pick_by(machine, most, wanted.cpus, wishes)
            if empty is None or empty.missed:
                raise BadRequest(f"{what} is more than it can ever give", hint="ask for less, or not strictly")
            raise NoCapacity(f"{what} cannot be had now; free: {free}", hint=_AGAIN)
        return picked


def _check_full_cores(machine: Machine, rules: Rules, claim: AllocatedClaim, taken: CpuSet) -> None:
    """Raise an error if the node gives full cores only and a claim's CPUs are none (K2)."""
    parts = taken - whole_cores(machine.units, taken)
    if not rules.wishes.full_cores or not parts:
        return
    who = f"claim {claim.namespace}/{claim.name}"
    threads = machine.units.layout.threads
    if len(taken) % threads or any(wanted.cpuset is not None for wanted in claim.results):
        raise BadRequest(
            f"{who}: {len(taken)} CPUs are no full cores, and this node gives nothing else",
            hint=f"ask for a multiple of {threads}, or set policy.full_cores = false",
        )
    raise NoCapacity(f"{who}: {len(taken)} CPUs of full cores cannot be had now ({parts} are parts)", hint=_AGAIN)


def same_allocation(grant: ClaimGrant, claim: AllocatedClaim) -> bool:
    """Return whether a claim's allocation is still the one that the grant was made for (C6)."""
    return len(grant.results) == len(claim.results) and all(map(_is_same, grant.results, claim.results))


def _is_same(made: ResultGrant, told: AllocationResult) -> bool:
    if (made.request, made.pool, made.device) != (told.request, told.pool, told.device):
        return False
    if (made.share_id, made.admin_access) != (told.share_id, told.admin_access):
        return False
    return told.admin_access or (len(made.cpus) == told.cpus and told.cpuset in (None, made.cpus))


def _some(names: Sequence[str]) -> str:
    """Return the names, as far as a message can hold them."""
    most = 16
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return ", ".join(names) or "none"
