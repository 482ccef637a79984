"""The pods of this node as the API server last told them, kept over restarts (shell; N1, L2).

They are known by the UID that the runtime uses. A pod whose containers still run is kept though the API server has it
no more, until they have stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from nodecpu.books import Books
from nodecpu.ids import PodUID
from nodecpu.log import kv
from nodecpu.policy.facts import PodSpec, Sandbox
from nodecpu.policy.grants import ContainerGrant
from nodecpu.reports import POD, Subject

_LOG = logging.getLogger(__name__)


class PodCommit(Protocol):
    """Where pods as last seen are kept."""

    def commit_pods(self, puts: Iterable[PodSpec], drops: Iterable[PodUID]) -> None:
        """Write pods, all or nothing; raises StateError."""

    def rebuilt(self) -> None:
        """Forget that containers were lost: all that run were judged; raises StateError."""


class Pods:
    """The pods; ``are_listed`` once all have been told."""

    def __init__(self, books: Books, store: PodCommit) -> None:
        self.are_listed = False
        self._books = books
        self._store = store
        self._by_uid: dict[PodUID, PodSpec] = {}

    def __iter__(self) -> Iterator[PodSpec]:
        return iter(self._by_uid.values())

    def of(self, sandbox: Sandbox) -> PodSpec | None:
        """Return the pod of a sandbox as last seen."""
        return self._named(sandbox.uid, sandbox.namespace, sandbox.name)

    def of_container(self, grant: ContainerGrant) -> PodSpec | None:
        """Return the pod of a container as last seen."""
        return self._named(grant.pod_uid, grant.namespace, grant.pod)

    def subject(self, sandbox: Sandbox) -> Subject:
        """Return the pod as the API server knows it: a static pod is known there by its mirror's UID."""
        spec = self.of(sandbox)
        uid = sandbox.uid if spec is None else spec.uid
        return Subject(kind=POD, namespace=sandbox.namespace, name=sandbox.name, uid=uid)

    def restore(self, pods: Iterable[PodSpec]) -> None:
        """Take in the pods that were stored before a restart."""
        self._by_uid = {pod.runtime_uid: pod for pod in sorted(pods, key=lambda pod: not pod.is_mirror)}

    def listed(self, pods: Sequence[PodSpec]) -> None:
        """Replace what is known by all pods there are; raises StateError."""
        found: dict[PodUID, PodSpec] = {}
        for pod in sorted(pods, key=lambda pod: pod.is_mirror):
            if _may_enter(pod, found.get(pod.runtime_uid) or self._by_uid.get(pod.runtime_uid)):
                found[pod.runtime_uid] = pod
        gone = [uid for uid in self._by_uid if uid not in found and not self._books.ledger.of_pod(uid)]
        changed = [pod for uid, pod in found.items() if self._by_uid.get(uid) != pod]
        drops = [self._by_uid[uid].uid for uid in gone]
        self._store.commit_pods(changed, [*drops, *(old for pod in changed for old in self._replaced(pod))])
        for uid in gone:
            del self._by_uid[uid]
        self._by_uid.update(found)
        self.are_listed = True

    def seen(self, pod: PodSpec) -> bool:
        """Note a pod; return whether it is new or changed. Raises StateError."""
        old = self._by_uid.get(pod.runtime_uid)
        if old == pod or not _may_enter(pod, old):
            return False
        self._store.commit_pods([pod], self._replaced(pod))
        self._by_uid[pod.runtime_uid] = pod
        return True

    def gone(self, uid: PodUID) -> None:
        """Forget a pod by its UID at the API server, unless its containers still run; raises StateError."""
        pod = next((pod for pod in self if pod.uid == uid), None)
        if pod is None or self._books.ledger.of_pod(pod.runtime_uid):
            return
        self._store.commit_pods([], [uid])
        del self._by_uid[pod.runtime_uid]

    def _named(self, uid: PodUID, namespace: str, name: str) -> PodSpec | None:
        """Return a pod if it is the same by name as well: a mirror's UID proves nothing."""
        spec = self._by_uid.get(uid)
        return None if spec is None or (spec.namespace, spec.name) != (namespace, name) else spec

    def _replaced(self, pod: PodSpec) -> tuple[PodUID, ...]:
        """Return the UID of the pod whose place another one takes, a mirror's that was made anew, say."""
        old = self._by_uid.get(pod.runtime_uid)
        return () if old is None or old.uid == pod.uid else (old.uid,)


def _may_enter(pod: PodSpec, old: PodSpec | None) -> bool:
    """Return whether a pod may stand under the UID that the runtime uses: a mirror takes no other pod's place.

    Its annotation is the word of whoever made it: everybody who may create pods could speak for another's.
    """
    if old is None or not pod.is_mirror or (old.namespace, old.name) == (pod.namespace, pod.name):
        return True
    kv(
        _LOG,
        logging.WARNING,
        "mirror pod ignored: it names the UID of another pod",
        pod=f"{pod.namespace}/{pod.name}",
        pod_uid=pod.runtime_uid,
    )
    return False
