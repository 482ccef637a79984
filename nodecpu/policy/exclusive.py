"""Which exclusive CPUs a container gets (pure; G5, G10, K4)."""

from __future__ import annotations

from dataclasses import replace

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.errors import NoCapacity
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.machine import Machine
from nodecpu.policy.pools import Pool
from nodecpu.policy.pull import near
from nodecpu.policy.requests import Isolated, Request
from nodecpu.policy.room import check_kept, isolated_for, sliceable
from nodecpu.policy.rules import Rules
from nodecpu.policy.wishes import Picked, pick_by, whole_cores


def exclusive_cpus(ledger: Ledger, machine: Machine, rules: Rules, home: Pool, request: Request, who: str) -> Picked:
    """Return as many exclusive CPUs as are asked: of the home pool, else of the nearest ancestor that has them (G5).

    Isolated CPUs are used when they cover the whole part (G10). Raises NoCapacity, ``who`` being the container.
    """
    count = request.exclusive
    if not count:
        return Picked(cpus=NO_CPUS)
    for pool in ledger.tree.upwards(home):
        picked = _of_pool(ledger, machine, rules, pool, request)
        if picked is not None:
            check_kept(ledger, rules, who, picked.cpus)
            return picked
    root = ledger.tree.root
    spare = sliceable(ledger, machine.units, root)
    if request.isolated is Isolated.REQUIRE:
        raise NoCapacity(
            f"{who}: {count} isolated CPUs required, {len(ledger.grantable(root.isolated))} are free",
            hint="isolate more CPUs on the kernel command line, or prefer isolated CPUs instead of requiring them",
        )
    if rules.wishes.full_cores and len(spare) >= count:
        raise NoCapacity(
            f"{who}: {count} exclusive CPUs asked, which cannot be had as full cores",
            hint="ask for a multiple of the threads of a core: policy.full_cores gives nothing else",
        )
    free = ledger.grantable(root.sharable) or "none"
    raise NoCapacity(
        f"{who}: {count} exclusive CPUs asked, {len(spare)} can be spared (free: {free})",
        hint="lower the request, or make room by removing claims or shared containers with CPU requests",
    )


def further_cpus(ledger: Ledger, machine: Machine, rules: Rules, grant: ContainerGrant, request: Request) -> Picked:
    """Return the exclusive CPUs for a container that has some: these and more near them, or the best part of them.

    ``ledger`` is without its grant, but its CPUs are held. Raises NoCapacity where they cannot change in place (G12).
    """
    own = grant.exclusive
    home, isolated = ledger.pool_of(grant), request.isolated
    if own:
        # Isolated CPUs are for the whole part or not at all (G10): what there is decides what may be added.
        home = ledger.tree.holding(own)
        isolated = Isolated.REQUIRE if own <= ledger.tree.usable.isolated else Isolated.AVOID
    more = request.exclusive - len(own)
    try:
        if more < 0:
            return Picked(cpus=_part_of(machine, rules, own, request.exclusive, grant.label))
        wanted = replace(request, exclusive=more, isolated=isolated)
        picked = exclusive_cpus(ledger, machine, rules, home, wanted, grant.label)
    except NoCapacity as err:
        raise NoCapacity(
            f"{grant.label} cannot go from {len(own)} to {request.exclusive} exclusive CPUs in place: {err.message}",
            hint="delete the pod to have it placed anew, or make room by removing other containers",
        ) from err
    return replace(picked, cpus=picked.cpus | own)


def _of_pool(ledger: Ledger, machine: Machine, rules: Rules, pool: Pool, request: Request) -> Picked | None:
    """Return CPUs of one pool; None if it has not enough. Of the preferred speed as far as they suffice (K4)."""
    wanted = request.isolated is not Isolated.AVOID
    free = isolated_for(ledger, pool, request.exclusive, wanted=wanted)
    if not free:
        if request.isolated is Isolated.REQUIRE:
            return None
        free = sliceable(ledger, machine.units, pool)
    parts = list(machine.speeds.widening(request.priority, free))
    if request.pull.picks:
        parts = [close for part in parts if (close := near(request.pull.hints, part))] + parts
    for part in parts:
        picked = pick_by(machine.units, part, request.exclusive, rules.wishes)
        if picked is not None and _is_whole(machine, rules, picked.cpus):
            return picked
    return None


def _part_of(machine: Machine, rules: Rules, own: CpuSet, count: int, who: str) -> CpuSet:
    """Return the CPUs that a container keeps of its own."""
    picked = pick_by(machine.units, own, count, rules.wishes)
    assert picked is not None, "more asked than there are"
    if not _is_whole(machine, rules, picked.cpus):
        raise NoCapacity(f"{who}: {count} of CPUs {own} are no full cores")
    return picked.cpus


def _is_whole(machine: Machine, rules: Rules, cpus: CpuSet) -> bool:
    return not rules.wishes.full_cores or whole_cores(machine.units, cpus) == cpus
