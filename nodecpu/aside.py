"""Standing aside: while one of the kubelet's own managers pins, nothing is pinned here (shell; E2, U94).

Two owners of the same CPUs would overwrite each other for ever. So the runtime's and the kubelet's calls come through
here: the service is told what exists, but its answers stay here; claims, and containers that show one, are refused with
the reason, which is retried; all others run where the runtime puts them. When the reason is gone, the audit brings
everything to where the books have it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from nodecpu.errors import NotReady
from nodecpu.ids import ClaimUID
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.nri.plugin import RuntimeEvents
from nodecpu.nri.versions import RuntimeVersion
from nodecpu.policy.evidence import shown_by
from nodecpu.policy.facts import Container, Resources, Sandbox
from nodecpu.policy.plan import Creation, PreparedDevice, Update
from nodecpu.refusals import Kind
from nodecpu.reports import CLAIM, POD, NoReports, Reports, Subject

if TYPE_CHECKING:
    from nodecpu.dra.service import ClaimService

_LOG = logging.getLogger(__name__)

_HINT: Final = "set it to none on this node; nodecpu check tells how"


class Aside:
    """Why we stand aside; empty: we do not. ``changed`` is called when that changes."""

    def __init__(self, changed: Callable[[], None], counters: Counters) -> None:
        self.reason = ""
        self.reports: Reports = NoReports()
        self._changed = changed
        self._counters = counters

    def take(self, reason: str) -> None:
        """Stand aside for a reason, or no longer for none."""
        if reason == self.reason:
            return
        self.reason = reason
        if reason:
            kv(_LOG, logging.ERROR, "standing aside: nothing is pinned", state=reason, hint=_HINT)
        else:
            kv(_LOG, logging.INFO, "not standing aside any more")
        self._changed()

    def refuse_claim(self, uid: ClaimUID, namespace: str, name: str) -> None:
        """Raise NotReady for a claim, if we stand aside; counted and told as any refusal."""
        if self.reason:
            subject = Subject(kind=CLAIM, namespace=namespace, name=name, uid=uid)
            raise self._refusal("claim", f"{namespace}/{name}", subject, "PrepareRefused")

    def refuse_container(self, sandbox: Sandbox, container: Container) -> None:
        """Raise NotReady for a container that shows a claim, if we stand aside; counted and told as any refusal."""
        if self.reason:
            subject = Subject(kind=POD, namespace=sandbox.namespace, name=sandbox.name, uid=sandbox.uid)
            name = f"{sandbox.namespace}/{sandbox.name}/{container.name}"
            raise self._refusal("container", name, subject, "ContainerRefused")

    def _refusal(self, kind: Kind, name: str, subject: Subject, reason: str) -> NotReady:
        err = NotReady(f"{kind} {name}: {self.reason}, so no claim is served on this node", hint=_HINT)
        self._counters.refused(err, kind, name, subject.uid)
        kv(_LOG, logging.WARNING, f"{kind} refused", state=name, err=err)
        self.reports.report(subject, reason, str(err))
        return err


class AsideClaims:
    """The kubelet's calls: prepares are refused while we stand aside."""

    def __init__(self, claims: ClaimService, aside: Aside) -> None:
        self._claims = claims
        self._aside = aside

    async def prepare(self, uid: ClaimUID, namespace: str, name: str, *, budget_s: float) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices; raises NodeCpuError."""
        self._aside.refuse_claim(uid, namespace, name)
        return await self._claims.prepare(uid, namespace, name, budget_s=budget_s)

    async def unprepare(self, uid: ClaimUID) -> None:
        """Release the claim, standing aside or not."""
        await self._claims.unprepare(uid)


class AsideRuntime:
    """The runtime's calls: no answer changes a container while we stand aside."""

    def __init__(self, service: RuntimeEvents, aside: Aside) -> None:
        self._service = service
        self._aside = aside

    def runtime_connected(self, runtime: RuntimeVersion) -> None:
        """Take note that a runtime has configured us."""
        self._service.runtime_connected(runtime)

    def runtime_lost(self) -> None:
        """Take note that the link is gone."""
        self._service.runtime_lost()

    def synchronize(self, sandboxes: Sequence[Sandbox], containers: Sequence[Container]) -> tuple[Update, ...]:
        """Take over what exists; return the containers to be changed."""
        return self._kept(self._service.synchronize(sandboxes, containers))

    def run_sandbox(self, sandbox: Sandbox) -> None:
        """Take note of a new sandbox."""
        self._service.run_sandbox(sandbox)

    def stop_sandbox(self, sandbox: Sandbox) -> None:
        """Take note that a sandbox has stopped."""
        self._service.stop_sandbox(sandbox)

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Forget a sandbox."""
        self._service.remove_sandbox(sandbox)

    def create_container(self, sandbox: Sandbox, container: Container) -> Creation:
        """Return where a new container is to run. Standing aside: anywhere, it comes into the books when it is seen."""
        if not self._aside.reason:
            return self._service.create_container(sandbox, container)
        if shown_by(container):
            self._aside.refuse_container(sandbox, container)
        self._service.run_sandbox(sandbox)
        return Creation(placement=None)

    def update_container(self, sandbox: Sandbox, container: Container, wanted: Resources) -> tuple[Update, ...]:
        """Return the answer to an in-place update. Standing aside: none, so it is done as it was asked for."""
        if not self._aside.reason:
            return self._service.update_container(sandbox, container, wanted)
        self._service.container_seen(sandbox, container)
        return ()

    def container_seen(self, sandbox: Sandbox, container: Container) -> None:
        """Take note of a container after its creation, start or update."""
        self._service.container_seen(sandbox, container)

    def stop_container(self, sandbox: Sandbox | None, container: Container) -> tuple[Update, ...]:
        """Take back what a container had; return others to be changed."""
        return self._kept(self._service.stop_container(sandbox, container))

    def remove_container(self, sandbox: Sandbox | None, container: Container) -> None:
        """Forget a container."""
        self._service.remove_container(sandbox, container)

    def _kept(self, updates: tuple[Update, ...]) -> tuple[Update, ...]:
        return () if self._aside.reason else updates
