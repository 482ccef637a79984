"""The daemon's own preflight: looks again and again, reports what changed, never ends the daemon (shell; E2).

The kubelet's managers are looked at often, since they decide whether anything may be pinned; all else seldom. Files are
read on a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nodecpu.aside import Aside
from nodecpu.config import Config
from nodecpu.dra.slices import gates_of
from nodecpu.log import kv
from nodecpu.preflight.checks import RuntimeLink, local_findings
from nodecpu.preflight.finding import Finding, Grade, failed, ok, warning
from nodecpu.preflight.kubelet import in_the_way, policies

if TYPE_CHECKING:
    from nodecpu.dra.publish import PublishStatus
    from nodecpu.kube.client import KubeClient

_LOG = logging.getLogger(__name__)

QUICK_S: Final = 30.0
FULL_S: Final = 600.0

_LEVELS: Final = {Grade.FAILED: logging.ERROR, Grade.WARNING: logging.WARNING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """What the daemon knows at the moment of looking; ``api``, ``published`` None: not loaded yet, or off."""

    config: Callable[[], Config]
    link: Callable[[], RuntimeLink]
    api: Callable[[], KubeClient | None]
    published: Callable[[], PublishStatus | None]


class Preflight:
    """What was found last, and whether we have to stand aside."""

    def __init__(
        self, views: Views, aside: Aside, *, node: str, quick_s: float = QUICK_S, full_s: float = FULL_S
    ) -> None:
        self._views = views
        self._aside = aside
        self._node = node
        self._quick_s = quick_s
        self._full_s = full_s
        self._local: tuple[Finding, ...] = ()
        self._cluster: tuple[Finding, ...] = ()
        self._told: frozenset[tuple[str, Grade, str]] = frozenset()
        self._due = asyncio.Event()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found when it was looked at last, in order; empty before the first look."""
        published = self._views.published()
        if published is None or not (published.in_step or published.dropped):
            return (*self._local, *self._cluster)
        wanted = self._views.config().dra.node_allocatable
        gates = dropped_finding(published, counted_wanted=wanted)
        return (*self._local, *self._cluster, gates)

    def decide(self) -> None:
        """Decide whether to stand aside, before anything is pinned; reads two small files, as a rule."""
        config = self._views.config()
        self._aside.take(in_the_way(policies(config.paths.kubelet), pin_memory=config.policy.pin_memory))

    def look_soon(self) -> None:
        """Have everything looked at again: a link has come up."""
        self._due.set()

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        next_full = loop.time()
        while True:
            if loop.time() >= next_full:
                await self.look()
                next_full = loop.time() + self._full_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._quick_s):
                    await self._due.wait()
            if self._due.is_set():
                self._due.clear()
                next_full = loop.time()
            config = self._views.config()
            kubelet = await asyncio.to_thread(policies, Path(config.paths.kubelet))
            self._aside.take(in_the_way(kubelet, pin_memory=config.policy.pin_memory))
            if self._views.api() is not None and not self._cluster:
                next_full = loop.time()

    async def look(self) -> None:
        """Look at everything once; the cluster again only while something is not right there."""
        self._due.clear()
        config, link, api = self._views.config(), self._views.link(), self._views.api()
        self._local = await asyncio.to_thread(
            lambda: tuple(local_findings(config, link, _no_program, running_as=self._node))
        )
        if api is not None and not (self._cluster and all(one.grade is Grade.OK for one in self._cluster)):
            from nodecpu.preflight.cluster import cluster_findings  # noqa: PLC0415 - slow: after the client was loaded

            self._cluster = await cluster_findings(
                api,
                node=self._node,
                kubeconfig=config.kube.kubeconfig,
                topology=config.kube.node_topology,
                skew_s=lambda: api.clock_skew_s,
            )
        if not self._due.is_set():  # else a link has come up meanwhile: it is looked again at once
            self._tell()

    def _tell(self) -> None:
        """Log what is wrong and was not at the last telling."""
        found = {(one.check, one.grade, one.seen): one for one in self.findings}
        for key, one in found.items():
            if one.grade in _LEVELS and key not in self._told:
                kv(_LOG, _LEVELS[one.grade], "preflight", state=f"{one.check}: {one.seen}", hint=one.remedy)
        self._told = frozenset(found)


def dropped_finding(published: PublishStatus, *, counted_wanted: bool) -> Finding:
    """Return whether the API server keeps all fields of our slices: what it drops belongs to a gate that is off."""
    check, dropped = "feature gates", published.dropped
    if not dropped:
        if counted_wanted and not published.counted:
            seen = (
                "claims do not count as CPU requests: the API server is older than 1.36, or does not tell its version"
            )
            return warning(check, seen, "set dra.node_allocatable = false, or have a newer one that answers /version")
        return ok(check, "all fields of the slices are kept")
    seen = f"the API server drops {', '.join(dropped[:4])}" + (f" and {len(dropped) - 4} more" if dropped[4:] else "")
    gates = " and ".join(gates_of(dropped)) or "the gates of these fields"
    remedy = f"turn {gates} on in API server, scheduler and kubelet"
    return (
        failed(check, f"{seen}: devices are withheld", remedy) if published.withheld else warning(check, seen, remedy)
    )


def _no_program(command: Sequence[str]) -> str:
    """Run nothing: the link tells the version, and the daemon starts no programs."""
    del command
    return ""
