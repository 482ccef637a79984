"""Takes another arrangement of the machine into a running service: whole, or not at all (shell; R3, T6)."""

from __future__ import annotations

import logging
from dataclasses import replace

from nodecpu.annotated import annotated
from nodecpu.arrangement import Arrangement
from nodecpu.log import kv
from nodecpu.policy.facts import Container
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.rearrange import Asked, adapted, rearranged
from nodecpu.policy.requests import Request, request_of, told_of
from nodecpu.policy.rules import Rules
from nodecpu.service import Service

_LOG = logging.getLogger(__name__)


def reconfigure(service: Service, arranged: Arrangement, rules: Rules) -> None:
    """Put the books over the new pools and let the new rules hold; claims keep their CPUs, nothing moves that need not.

    Raises ClaimConflict with the claims named, NoCapacity or StateError; then nothing has changed.
    """
    old = service.books.ledger
    reserved = bool(arranged.usable.reserved)
    asked = {}
    for grant in old.containers.values():
        before = _asked(service, service.rules, grant, reserved=bool(old.tree.usable.reserved))
        now = _asked(service, rules, grant, reserved=reserved)
        if before is not None and now is not None:
            asked[grant.id] = Asked(before=before, now=now)
    made = rearranged(old, arranged.tree, arranged.machine, rules, asked)
    service.books.exchange(made.ledger, made.changed)
    service.machine = arranged.machine
    service.rules = rules
    for grant in made.changed:
        kv(
            _LOG,
            logging.INFO,
            "container placed anew by the new configuration",
            pod=f"{grant.namespace}/{grant.pod}",
            container=grant.name,
            container_id=grant.id,
            pool=grant.pool,
            cpus=grant.exclusive or None,
            state=grant.reason,
        )
    service.reconfigured()


def adapt(service: Service, arranged: Arrangement) -> None:
    """Put the books over the machine as it has become (T6): nobody is refused, who holds CPUs keeps what is left.

    Raises StateError; then nothing has changed.
    """
    old, rules = service.books.ledger, service.rules
    reserved = bool(arranged.usable.reserved)
    found = ((grant.id, _asked(service, rules, grant, reserved=reserved)) for grant in old.containers.values())
    asked = {container_id: request for container_id, request in found if request is not None}
    made = adapted(old, arranged.tree, arranged.machine, rules, asked)
    service.books.exchange(made.ledger, made.changed)
    service.machine = arranged.machine
    service.reconfigured()


def _asked(service: Service, rules: Rules, grant: ContainerGrant, *, reserved: bool) -> Request | None:
    """Return what a container in the books asks for by some rules; None if its sandbox is not known (yet)."""
    sandbox = service.sandbox_of(grant)
    if sandbox is None:
        return None
    spec = service.spec_of(grant)
    container = Container(id=grant.id, sandbox_id=grant.sandbox_id, name=grant.name)
    told = told_of(sandbox, container, spec)
    told = replace(
        told,
        mcpu=grant.told_mcpu,
        limit_mcpu=grant.limit_mcpu,
        qos=grant.qos,
        may_own=told.may_own or bool(grant.exclusive),
    )
    preferences = annotated(rules, sandbox, container, spec).preferences
    return request_of(
        rules, sandbox, container, spec, grant.claimed, reserved=reserved, preferences=preferences, told=told
    )
