"""The books over other pools, by other rules (pure; R3, T6): claims first, then containers, whole or not at all.

Nothing moves that need not: a container whose wish is the same and whose CPUs may still be given keeps its grant. The
old books are not touched; an answer is void once they move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nodecpu.cpuset import NO_NODES
from nodecpu.errors import ClaimConflict, NoCapacity
from nodecpu.ids import ContainerID
from nodecpu.policy.allocate import container_grant, figured
from nodecpu.policy.facts import Container, Sandbox
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.machine import Machine
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import PoolTree
from nodecpu.policy.requests import Request
from nodecpu.policy.room import make_room
from nodecpu.policy.rules import Rules
from nodecpu.policy.shared import shared_cpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearranged:
    """The new books, and the grants in them that differ from the old ones."""

    ledger: Ledger
    changed: tuple[ContainerGrant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a container asks for by the old rules and by the new ones."""

    before: Request
    now: Request


def rearranged(
    old: Ledger, tree: PoolTree, machine: Machine, rules: Rules, asked: Mapping[ContainerID, Asked]
) -> Rearranged:
    """Return the books over another tree. ``asked`` has those containers whose requests are known.

    Raises ClaimConflict, with the claims named, if CPUs of claims may not be given any more; NoCapacity if a container
    cannot have what it is due.
    """
    _check_claims(old, tree)
    ledger = Ledger(tree)
    ledger.apply(Change(put_claims=tuple(old.claims.values())))
    for uid, cpus in old.holds.items():
        ledger.hold(uid, cpus)
    anew: list[ContainerGrant] = []
    for grant in old.containers.values():
        kept = _kept(old, tree, rules, grant, asked.get(grant.id))
        if kept is None:
            anew.append(grant)
        else:
            ledger.apply(Change(put_containers=(kept,)))
    for grant in sorted(anew, key=lambda g: (-len(g.exclusive), -g.portion_mcpu, g.id)):
        decided = _decided(ledger, machine, rules, grant, asked[grant.id].now)
        ledger.apply(Change(put_containers=(decided,)))
    ledger.apply(Change(put_containers=make_room(ledger)))
    _check_shared(ledger)
    changed = tuple(new for key, new in ledger.containers.items() if old.containers[key] != new)
    return Rearranged(ledger=ledger, changed=changed)


def adapted(
    old: Ledger, tree: PoolTree, machine: Machine, rules: Rules, asked: Mapping[ContainerID, Request]
) -> Rearranged:
    """Return the books over the machine as it has become: CPUs or memory nodes that went or came (T6).

    Nobody is refused, since the machine does not ask: who holds CPUs keeps them, also those that are gone, and runs on
    the rest. Only a container all of whose own CPUs are gone gets others, if there are any. ``asked`` has those
    containers whose requests are known.
    """
    ledger = Ledger(tree)
    ledger.apply(Change(put_claims=tuple(old.claims.values())))
    for uid, cpus in old.holds.items():
        ledger.hold(uid, cpus)
    kept = [replace(one, pool=(tree.named(one.pool) or tree.root).name) for one in old.containers.values()]
    ledger.apply(Change(put_containers=tuple(kept)))
    for grant in kept:
        if grant.exclusive and not tree.present(grant.exclusive) and grant.id in asked:
            try:
                anew = _decided(ledger.without(grant), machine, rules, grant, asked[grant.id])
            except NoCapacity:
                continue
            ledger.apply(Change(put_containers=(anew,)))
    ledger.apply(Change(put_containers=make_room(ledger)))
    changed = tuple(new for key, new in ledger.containers.items() if old.containers[key] != new)
    return Rearranged(ledger=ledger, changed=changed)


def _check_claims(old: Ledger, tree: PoolTree) -> None:
    """Raise ClaimConflict if CPUs are taken from claims that they could be given by the old configuration."""
    before, after = old.tree.usable.grantable, tree.usable.grantable
    lost = before - after
    hit = [
        f"{claim.namespace}/{claim.name} ({claim.cpus & lost})"
        for claim in sorted(old.claims.values(), key=lambda c: (c.namespace, c.name, c.uid))
        if not claim.moved and not claim.cpus.isdisjoint(lost)
    ]
    hit += [f"one being prepared ({cpus & lost})" for cpus in old.holds.values() if not cpus.isdisjoint(lost)]
    if hit:
        raise ClaimConflict(
            f"the configuration takes CPUs from {len(hit)} claims: {', '.join(hit)}",
            hint="release these claims first, or leave them their CPUs; the configuration in force stays",
        )


def _kept(
    old: Ledger, tree: PoolTree, rules: Rules, grant: ContainerGrant, asked: Asked | None
) -> ContainerGrant | None:
    """Return a grant as it is kept; None if it has to be decided anew."""
    pool = tree.named(grant.pool)
    taken = grant.exclusive & (old.tree.usable.grantable - tree.usable.grantable)
    if asked is None:
        if taken:
            raise NoCapacity(
                f"{grant.label}: the configuration takes its CPUs {taken}, and what it asks for is not known yet",
                hint="reload again when the runtime is connected",
            )
        return replace(grant, pool=(pool or tree.root).name)
    if taken or pool is None or _wish(asked.before) != _wish(asked.now):
        return None
    preferences = asked.now.preferences
    mems = grant.mems
    if not rules.pin_memory:
        mems = NO_NODES
    elif not mems and not preferences.preserve_memory and grant.group is not Group.IGNORED:
        mems = tree.holding(grant.claimed).mems if grant.claimed else pool.mems
    return figured(tree, rules, replace(grant, mems=mems, hides_threads=bool(preferences.hide_hyperthreads)))


def _wish(request: Request) -> tuple[Group, int, bool, int]:
    """Return what of a request decides whether a grant still serves it: how it is picked moves nobody."""
    return (request.group, request.portion_mcpu, request.uses_shared, request.exclusive)


def _decided(ledger: Ledger, machine: Machine, rules: Rules, grant: ContainerGrant, request: Request) -> ContainerGrant:
    sandbox = Sandbox(id=grant.sandbox_id, uid=grant.pod_uid, namespace=grant.namespace, name=grant.pod)
    container = Container(
        id=grant.id, sandbox_id=grant.sandbox_id, name=grant.name, state=grant.state, cgroups_path=grant.path
    )
    return container_grant(ledger, machine, rules, sandbox, container, grant.links, request)


def _check_shared(ledger: Ledger) -> None:
    if any(grant.uses_shared for grant in ledger.containers.values()) and not shared_cpus(ledger, ledger.tree.root):
        raise NoCapacity(
            "the configuration leaves no CPU for shared containers", hint="release claims, or reserve fewer CPUs"
        )
