"""Takes another arrangement of the machine into a running service: whole, or not at all (shell; R3)."""

from __future__ import annotations

import logging

from nodecpu.arrangement import Arrangement
from nodecpu.log import kv
from nodecpu.policy.rearrange import Asked, rearranged
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
        before = service.asked_again(service.rules, grant, reserved=bool(old.tree.usable.reserved))
        now = service.asked_again(rules, grant, reserved=reserved)
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
