"""Decides an in-place update of a container in the books (pure; G12)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nodecpu.policy.allocate import resized_grant
from nodecpu.policy.annotations import Preferences
from nodecpu.policy.facts import Container, PodSpec, Resources, Sandbox
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.machine import Machine
from nodecpu.policy.requests import request_of, resized, told_of
from nodecpu.policy.rules import Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """An update, and what is known of its container beside."""

    sandbox: Sandbox
    container: Container
    spec: PodSpec | None
    preferences: Preferences
    wanted: Resources


def resize(
    ledger: Ledger, machine: Machine, rules: Rules, grant: ContainerGrant, update: Resize
) -> ContainerGrant | None:
    """Return the new grant; None if the update asks for nothing that the books know of.

    Raises NoCapacity where its exclusive CPUs cannot grow or shrink in place.
    """
    if grant.group is Group.IGNORED:
        return None
    told = resized(grant, told_of(update.sandbox, update.container, update.spec), update.wanted)
    changed = grant
    if (told.mcpu, told.limit_mcpu) != (grant.told_mcpu, grant.limit_mcpu):
        request = request_of(
            rules,
            update.sandbox,
            update.container,
            update.spec,
            grant.claimed,
            reserved=bool(ledger.tree.usable.reserved),
            preferences=update.preferences,
            told=told,
        )
        changed = resized_grant(ledger, machine, rules, grant, request)
    # The spec may say another amount of memory already, or not yet: the update decides.
    limit = update.wanted.memory_limit_bytes
    changed = replace(changed, memory_bytes=grant.memory_bytes if limit is None else max(limit, 0))
    return None if changed == grant else changed
