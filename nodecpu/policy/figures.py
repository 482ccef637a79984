"""CPU shares and CFS quota of containers that own CPUs (pure; G6, G14)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from nodecpu.cpuset import NO_CPUS, union
from nodecpu.policy.facts import Resources
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.plan import Placement
from nodecpu.policy.pools import PoolTree
from nodecpu.policy.rules import Rules
from nodecpu.policy.shared import PERIOD_US

MIN_SHARES: Final = 2
MAX_SHARES: Final = 262144
"""The kernel's range of cpu.shares. Source: kernel sched/core.c, MIN_SHARES and MAX_SHARES."""

NO_QUOTA: Final = -1


def shares(tree: PoolTree, grant: ContainerGrant) -> int | None:
    """Return a holder's cpu.shares: of its portion if it has one, else 1000 m for every CPU it runs on (G6).

    None without claims: the runtime's figure is right.
    """
    if not grant.links or grant.group is Group.IGNORED:
        return None
    own = tree.one_thread_each(grant.exclusive) if grant.hides_threads else grant.exclusive
    mcpu = grant.portion_mcpu or 1000 * len(grant.claimed | own)
    return min(max(mcpu * 1024 // 1000, MIN_SHARES), MAX_SHARES)


def quota_us(rules: Rules, grant: ContainerGrant) -> int | None:
    """Return the quota that never throttles what a container owns; NO_QUOTA for none, None: the runtime's is right.

    Who runs on CPUs of its own alone needs none. With a shared portion it covers the claimed CPUs and the limit, which
    covers the exclusive ones: as far as one figure can, the shared portion stays limited (G14).
    """
    if grant.limit_mcpu is None or grant.group is Group.IGNORED:
        return None
    if not grant.claimed and not (grant.exclusive and rules.lift_exclusive_quota):
        return None
    if not grant.uses_shared and grant.group is not Group.RESERVED:
        return NO_QUOTA
    if not grant.claimed:
        return None
    return (1000 * len(grant.claimed) + _own_limit(grant, grant.limit_mcpu)) * PERIOD_US // 1000


def pod_quota_us(grants: Iterable[ContainerGrant], pod_limit_mcpu: int | None) -> int | None:
    """Return the least quota of a pod's cgroup that throttles nothing its containers own; None if they own nothing.

    To the CPUs owned comes what may be used of shared ones: the containers' limits, where one has none the pod's (of
    pod-level resources), and without that what was asked for.
    """
    owners = list(grants)
    owned = union(grant.claimed | grant.exclusive for grant in owners)
    if owned == NO_CPUS:
        return None
    shared = sum(_shared_mcpu(grant, pod_limit_mcpu) for grant in owners)
    if pod_limit_mcpu is not None:
        shared = min(shared, pod_limit_mcpu)
    return (1000 * len(owned) + shared) * PERIOD_US // 1000


def merged(placement: Placement, wanted: Resources) -> Placement:
    """Return a placement with the figures of an update where we have none of our own (G12)."""
    if placement.shares is None and wanted.shares:
        placement = replace(placement, shares=wanted.shares)
    if placement.quota_us is None and wanted.quota_us:
        placement = replace(placement, quota_us=wanted.quota_us, period_us=wanted.period_us)
    return placement


def _own_limit(grant: ContainerGrant, limit_mcpu: int) -> int:
    """Return what is left of a limit when the part of the request that pays for claims is taken off (G13)."""
    own = 1000 * len(grant.exclusive) + grant.portion_mcpu
    paid = max(grant.told_mcpu - own, 0) if grant.claimed else 0
    return max(limit_mcpu - paid, own)


def _shared_mcpu(grant: ContainerGrant, pod_limit_mcpu: int | None) -> int:
    if not grant.uses_shared and grant.group not in (Group.RESERVED, Group.IGNORED):
        return 0
    if grant.limit_mcpu is None:
        return grant.portion_mcpu if pod_limit_mcpu is None else pod_limit_mcpu
    return _own_limit(grant, grant.limit_mcpu) - 1000 * len(grant.exclusive)
