"""The pods of this node, as the API server tells them (shell; N1)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from nodecpu.errors import BadRequest
from nodecpu.ids import PodUID
from nodecpu.kube.client import Api
from nodecpu.kube.podspec import decode_pod
from nodecpu.kube.watch import Change, Watcher
from nodecpu.log import kv
from nodecpu.policy.facts import PodSpec

_log = logging.getLogger(__name__)


class PodSink(Protocol):
    """Who keeps the pods. Called on the loop, never waits."""

    def pods_listed(self, pods: Sequence[PodSpec]) -> None:
        """Take all pods of the node: others are gone."""
        ...

    def pod_seen(self, pod: PodSpec) -> None:
        """Take a new or changed pod."""
        ...

    def pod_gone(self, uid: PodUID) -> None:
        """Forget a pod."""
        ...


class PodWatch:
    """Follows the pods that are bound to one node."""

    def __init__(self, api: Api, *, node: str, sink: PodSink, wait_s: float = 0.5) -> None:
        """``wait_s`` is the first pause after the watch has ended; it grows while the API server is away."""
        self.after: Callable[[], None] = lambda: None
        """Called when the sink has taken something."""
        self._sink = sink
        self._watcher = Watcher(api, path="/api/v1/pods", selector=f"spec.nodeName={node}", sink=self, wait_s=wait_s)

    async def run(self) -> None:
        """Follow until cancelled, whatever happens to the API server."""
        await self._watcher.run()

    def listing(self) -> None:
        """Do nothing: nobody but the watch tells of pods."""

    def listed(self, objects: Sequence[msgspec.Raw], version: str) -> None:
        """Take all pods of the node."""
        del version
        pods = [pod for value in objects if (pod := _decoded(value)) is not None]
        kv(_log, logging.DEBUG, "pods listed", count=len(pods))
        self._sink.pods_listed(pods)
        self.after()

    def changed(self, change: Change, value: msgspec.Raw) -> None:
        """Take one pod."""
        if (pod := _decoded(value)) is None:
            return
        if change is Change.DELETED:
            self._sink.pod_gone(pod.uid)
        else:
            self._sink.pod_seen(pod)
        self.after()


def _decoded(value: msgspec.Raw) -> PodSpec | None:
    try:
        return decode_pod(value)
    except BadRequest as error:
        kv(_log, logging.WARNING, "pod cannot be read, taken as unknown", err=error)
        return None
