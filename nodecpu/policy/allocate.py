"""Decides what a container gets (pure). An answer changes nothing and is void once the books move."""

from __future__ import annotations

from dataclasses import replace

from nodecpu.cpuset import NO_CPUS, NO_NODES, CpuSet
from nodecpu.errors import BadRequest, NoCapacity
from nodecpu.policy.exclusive import exclusive_cpus, further_cpus
from nodecpu.policy.facts import Container, Sandbox
from nodecpu.policy.figures import quota_us, shares
from nodecpu.policy.grants import ContainerGrant, Group, Link
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.machine import Machine
from nodecpu.policy.memory import Given, memory_for
from nodecpu.policy.pools import Pool, PoolTree
from nodecpu.policy.pull import unmet
from nodecpu.policy.requests import Request
from nodecpu.policy.room import spare_mcpu
from nodecpu.policy.rules import Rules
from nodecpu.policy.scoring import Choice, best_pool
from nodecpu.policy.shared import shared_cpus
from nodecpu.policy.wishes import Picked


def container_grant(  # noqa: PLR0913 - each is a fact of its own
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
        links=links,
        state=container.state,
        path=container.cgroups_path,
    )
    grant = asked(grant, request)
    claimed = grant.claimed
    _check_hints(grant, request)
    choice: Choice | None = None
    if request.group in (Group.RESERVED, Group.IGNORED):
        home = ledger.tree.root
    elif claimed:
        home = ledger.tree.holding(claimed)
    else:
        choice = best_pool(ledger, machine, request)
        home = choice.pool
    picked = exclusive_cpus(ledger, machine, rules, home, request, grant.label)
    pool = _sharing_pool(ledger, home, grant, picked.cpus) if request.uses_shared else home
    why = _why(ledger, home, pool, picked, request)
    why += f"; {choice.why}" if choice is not None and choice.why else ""
    given = _memory(ledger, rules, home, request)
    why += f"; {given.note}" if given.note else ""
    return figured(
        ledger.tree, rules, replace(grant, pool=pool.name, exclusive=picked.cpus, mems=given.mems, reason=why)
    )


def _check_hints(grant: ContainerGrant, request: Request) -> None:
    """Raise BadRequest if claimed CPUs are not where strict hints say (G7): nothing else can be given for them."""
    hint = unmet(request.pull.hints, grant.claimed) if request.pull.strict and grant.claimed else None
    if hint is not None:
        raise BadRequest(
            f"{grant.label}: its claimed CPUs {grant.claimed} are not all close to {hint.source} ({hint.cpus})",
            hint="have the claim allocated near it by matchAttribute, or let the hints not be strict",
        )


def resized_grant(
    ledger: Ledger, machine: Machine, rules: Rules, grant: ContainerGrant, request: Request
) -> ContainerGrant:
    """Return the grant for a container in the books that asks for other amounts: its claims stay, the rest changes in
    place (G12). Raises NoCapacity where it cannot.
    """
    beside = ledger.without(grant)
    picked = further_cpus(beside, machine, rules, grant, request)
    home = ledger.tree.root if request.group is Group.RESERVED else ledger.pool_of(grant)
    changed = replace(asked(grant, request), exclusive=picked.cpus)
    # What it gives back is free for its shared portion; what it keeps or takes is not.
    beside.hold_for(grant, picked.cpus)
    pool = _sharing_pool(beside, home, changed, NO_CPUS) if request.uses_shared else home
    why = f"{_why(ledger, home, pool, picked, request)}; resized in place"
    return figured(ledger.tree, rules, replace(changed, pool=pool.name, reason=why))


def asked(grant: ContainerGrant, request: Request) -> ContainerGrant:
    """Return a grant with what a request says about it; its CPUs and its pool are as they were."""
    return replace(
        grant,
        group=request.group,
        portion_mcpu=request.portion_mcpu,
        uses_shared=request.uses_shared,
        told_mcpu=request.told_mcpu,
        limit_mcpu=request.limit_mcpu,
        hides_threads=bool(request.preferences.hide_hyperthreads),
        memory_bytes=request.memory_bytes,
        memory_kinds=request.preferences.memory_types or (),
        reason=request.reason,
    )


def figured(tree: PoolTree, rules: Rules, grant: ContainerGrant) -> ContainerGrant:
    """Return a grant with the CPU shares and the quota that go with it."""
    figures = shares(tree, grant), quota_us(rules, grant)
    if figures == (grant.shares, grant.quota_us):
        return grant
    return replace(grant, shares=figures[0], quota_us=figures[1])


def _why(ledger: Ledger, home: Pool, pool: Pool, picked: Picked, request: Request) -> str:
    why = request.reason
    if not picked.cpus <= home.cpus:
        why += f"; exclusive CPUs of {ledger.tree.holding(picked.cpus).name}, {home.name} has none to spare"
    if picked.missed:
        why += f"; without {' and '.join(picked.missed)}, which cannot be had"
    if pool is not home:
        why += f"; shared CPUs of {pool.name}, {home.name} has none to spare"
    return why


def _sharing_pool(ledger: Ledger, home: Pool, grant: ContainerGrant, exclusive: CpuSet) -> Pool:
    """Return the pool for a shared portion beside exclusive CPUs: home, or the nearest ancestor that covers it (G5).

    At last the root, covered or not (G16).
    """
    need = max(grant.portion_mcpu, 1)
    if not shared_cpus(ledger, ledger.tree.root):
        raise NoCapacity(
            f"{grant.label}: no CPU is left for shared containers",
            hint="release a claim, or configure reserved CPUs",
        )
    for pool in ledger.tree.upwards(home):
        if spare_mcpu(ledger, pool, exclusive) >= need:
            return pool
    return ledger.tree.root


def _memory(ledger: Ledger, rules: Rules, home: Pool, request: Request) -> Given:
    if not rules.pin_memory or request.preferences.preserve_memory:
        return Given(mems=NO_NODES)
    return memory_for(ledger, home, request)
