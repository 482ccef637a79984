"""Sees to it that no quota throttles CPUs that a container owns: its own, and its pod's (shell; G14).

The runtime is told of a container's quota in every reply. The pod's is the kubelet's, which NRI cannot reach: it is
raised in its cgroup, before the reply leaves, since a kernel with cgroup v1 lets no container have more than its pod.
Both are looked at again by the audit.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

from nodecpu.books import Books
from nodecpu.enforce.quota import Cover
from nodecpu.ids import PodUID
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.policy.facts import PodSpec
from nodecpu.policy.figures import pod_quota_us
from nodecpu.policy.grants import ContainerGrant

_LOG = logging.getLogger(__name__)


class QuotaFiles(Protocol):
    """Where quotas are read and raised."""

    def cover_pod(self, cgroups_path: str, need_us: int, *, lift: bool) -> Cover:
        """Return whether the pod of a container has at least this quota, after raising it if ``lift``."""

    def cover_container(self, cgroups_path: str, need_us: int) -> Cover:
        """Return whether a container has at least this quota, after raising it."""


class Pods(Protocol):
    """What is known of pods, and who tells something on them."""

    def spec_of(self, grant: ContainerGrant) -> PodSpec | None:
        """Return the pod of a container as last seen."""

    def tell(self, grant: ContainerGrant, reason: str, message: str) -> None:
        """Report something of a container on its pod."""


class Quotas:
    """The quotas of pods and containers that own CPUs."""

    def __init__(self, books: Books, files: QuotaFiles, counters: Counters, pods: Pods) -> None:
        self._books = books
        self._files = files
        self._counters = counters
        self._pods = pods
        self._told: set[PodUID] = set()

    def covered(self, grant: ContainerGrant, *, lift: bool) -> ContainerGrant:
        """Have a pod's quota cover what its containers will own with one that is about to be entered.

        Returns its grant: without a quota of ours where the pod's stays too low, since a kernel with cgroup v1 would
        refuse it.
        """
        others = self._books.ledger.of_pod(grant.pod_uid)
        grants = [grant, *(one for one in others if one.id != grant.id)]
        if self._cover(grants, lift=lift) or grant.quota_us is None or grant.quota_us < 0:
            return grant
        return replace(grant, quota_us=None, reason=f"{grant.reason}; its pod's CPU quota is too low for what it owns")

    def audit(self, *, lift: bool) -> None:
        """Look at the quotas of all pods and containers that own CPUs."""
        pods: dict[PodUID, list[ContainerGrant]] = {}
        for grant in self._books.ledger.containers.values():
            pods.setdefault(grant.pod_uid, []).append(grant)
        self._told &= pods.keys()
        for grants in pods.values():
            self._cover(grants, lift=lift)
            for grant in grants:
                if grant.quota_us is None or not grant.path:
                    continue
                if self._files.cover_container(grant.path, grant.quota_us) is Cover.RAISED:
                    self._counters.repairs["quota"] += 1
                    _log(logging.WARNING, "container's CPU quota raised to cover what it owns", grant, grant.quota_us)

    def _cover(self, grants: list[ContainerGrant], *, lift: bool) -> bool:
        """Return whether the pod of these containers has the quota it needs, now."""
        where = next((grant for grant in grants if grant.path), None)
        if where is None:
            return True
        spec = self._pods.spec_of(where)
        need_us = pod_quota_us(grants, None if spec is None else spec.pod_limit_mcpu)
        if need_us is None:
            return True
        outcome = self._files.cover_pod(where.path, need_us, lift=lift)
        if outcome is Cover.RAISED:
            self._counters.repairs["pod-quota"] += 1
            _log(logging.INFO, "pod's CPU quota raised to cover what its containers own", where, need_us)
        if outcome is Cover.TOO_LOW and where.pod_uid not in self._told:
            self._told.add(where.pod_uid)
            words = "pod's CPU quota throttles CPUs that its containers own; raise or remove its CPU limits"
            _log(logging.WARNING, words, where, need_us)
            self._pods.tell(where, "QuotaThrottles", words)
        return outcome is not Cover.TOO_LOW


def _log(level: int, words: str, grant: ContainerGrant, need_us: int) -> None:
    needed = "none" if need_us < 0 else f"{need_us} us per 100 ms"
    pod = f"{grant.namespace}/{grant.pod}"
    kv(_LOG, level, words, pod=pod, container=grant.name, container_id=grant.id, state=f"quota {needed}")
