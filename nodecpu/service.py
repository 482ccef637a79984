"""Decide, commit, act: every request of the runtime and of the cluster, one at a time (shell around the policy).

The runtime's side is synchronous and never waits: it decides, commits to the containers database and answers in one go,
so nothing can come between. Claims, which wait for a disk and for the API server, are in ``nodecpu.claims``.

What is not proved is left alone: a container found at synchronisation whose entitlement cannot be checked yet stays
where it is, its claims' CPUs stay blocked, and it is judged again when its pod becomes known (R2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from nodecpu.books import Books
from nodecpu.cpuset import union
from nodecpu.errors import NoCapacity, NodeCpuError
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.nri.versions import RuntimeVersion
from nodecpu.policy.allocate import Machine, container_grant
from nodecpu.policy.facts import Container, ContainerState, PodSpec, Resources, Sandbox
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.links import Links, links_of
from nodecpu.policy.pending import Seen
from nodecpu.policy.plan import Change, Creation, Update
from nodecpu.policy.requests import Request, request_of
from nodecpu.policy.rules import Rules

_LOG = logging.getLogger(__name__)


class PodCommit(Protocol):
    """Where pods as last seen are kept."""

    def commit_pods(self, puts: Iterable[PodSpec], drops: Iterable[PodUID]) -> None:
        """Write pods, all or nothing; raises StateError."""


class Probe(Protocol):
    """Looks at a container's cgroup."""

    def is_populated(self, cgroups_path: str) -> bool:
        """Return whether its cgroup is there and has processes."""

    def seen(self, cgroups_path: str) -> Seen | None:
        """Return its effective cpuset; None if it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """Who is told: ``pending`` when containers wait for a new cpuset, ``freed`` when CPUs or links became available."""

    pending: Callable[[], None]
    freed: Callable[[], None]
    released: Callable[[ClaimUID], None]


class Service:
    """The runtime's and the cluster's requests."""

    def __init__(  # noqa: PLR0913
        self,
        books: Books,
        machine: Machine,
        rules: Rules,
        *,
        pods: PodCommit,
        probe: Probe,
        counters: Counters,
        watchers: Watchers,
    ) -> None:
        self.books = books
        self.machine = machine
        self.rules = rules
        self.is_synchronized = False
        self._pod_store = pods
        self._probe = probe
        self._counters = counters
        self._watchers = watchers
        self._pods: dict[PodUID, PodSpec] = {}
        self._sandboxes: dict[SandboxID, Sandbox] = {}
        self._unproven: dict[ContainerID, Container] = {}

    # The runtime

    def runtime_connected(self, runtime: RuntimeVersion) -> None:
        """Note which runtime is at the other end."""
        kv(_LOG, logging.INFO, "runtime connected", runtime=runtime.name, version=runtime.version)

    def runtime_lost(self) -> None:
        """Note that the link is down: no new claim gets CPUs until it is synchronised again (C7)."""
        self.is_synchronized = False

    def synchronize(self, sandboxes: Sequence[Sandbox], containers: Sequence[Container]) -> tuple[Update, ...]:
        """Bring the books in line with what exists (R2, R4) and return the differences that are to be sent.

        Nobody known moves. A container that is new to the books was created while the link was down: it is placed now.
        """
        self._sandboxes = {sandbox.id: sandbox for sandbox in sandboxes}
        self._unproven.clear()
        listed = {container.id: container for container in containers}
        gone = [known for known in self.books.ledger.containers if known not in listed]
        self._drop(gone)
        for container in sorted(containers, key=lambda c: (not c.cdi_devices and not c.claim_env, c.id)):
            sandbox = self._sandboxes.get(container.sandbox_id)
            if sandbox is not None:
                self._found(sandbox, container)
        self.is_synchronized = True
        self._watchers.freed()
        updates = self.books.pending.due()
        kv(_LOG, logging.INFO, "runtime synchronised", count=len(listed), state=f"{len(updates)} to correct")
        return self._reply(updates)

    def run_sandbox(self, sandbox: Sandbox) -> None:
        """Note a pod sandbox."""
        self._sandboxes[sandbox.id] = sandbox

    def stop_sandbox(self, sandbox: Sandbox) -> None:
        """Nothing ends with a sandbox's stop: its containers have their own events."""

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Drop a sandbox and what is left of its containers (a runtime may tell nothing more of failed ones)."""
        self._sandboxes.pop(sandbox.id, None)
        left = [g.id for g in self.books.ledger.containers.values() if g.sandbox_id == sandbox.id]
        self._drop(left)

    def create_container(self, sandbox: Sandbox, container: Container) -> Creation:
        """Return where a new container runs, and the updates of others that go with it; raises NodeCpuError.

        A predecessor of the same pod and name is superseded (G11). Before a refusal for want of CPUs, containers whose
        processes are gone are reclaimed, since their stop events can be late.
        """
        self._sandboxes[sandbox.id] = sandbox
        previous = self.books.ledger.named(sandbox.uid, container.name)
        try:
            if previous is not None:
                self._drop([previous.id])
            links, request = self._asked(sandbox, container)
            try:
                grant = self._decide(sandbox, container, links, request, previous)
            except NoCapacity:
                if not self._reclaim():
                    raise
                grant = self._decide(sandbox, container, links, request, previous)
            self._enter(grant)
        except NodeCpuError as err:
            self._counters.refusals[err.code] += 1
            kv(
                _LOG,
                logging.WARNING,
                "container refused",
                pod=f"{sandbox.namespace}/{sandbox.name}",
                container=container.name,
                container_id=container.id,
                err=err,
            )
            raise
        placement = self.books.placement(container.id)
        if placement is not None:
            self.books.pending.create(container.id, placement)
        return Creation(placement=placement, updates=self._reply(self.books.pending.due(besides=container.id)))

    def update_container(self, sandbox: Sandbox, container: Container, wanted: Resources) -> tuple[Update, ...]:
        """Return the entry for the container itself, which always carries our cpuset, and what else is due.

        A request to change the cpuset is not followed: the books say where a container runs.
        """
        self.container_seen(sandbox, container)
        due = self.books.pending.due(besides=container.id)
        placement = self.books.placement(container.id)
        if placement is None:
            return self._reply(due)
        if placement.shares is None and wanted.shares:
            placement = replace(placement, shares=wanted.shares)
        return self._reply((Update(container_id=container.id, placement=placement), *due))

    def container_seen(self, sandbox: Sandbox, container: Container) -> None:
        """Take an event about a container for a late announcement if it is unknown, else note its state."""
        known = self.books.ledger.containers.get(container.id)
        if known is None:
            if container.state is not ContainerState.STOPPED and container.id not in self._unproven:
                self._sandboxes.setdefault(sandbox.id, sandbox)
                self._found(sandbox, container)
                self.tell_pending()
            return
        path = container.cgroups_path or known.path
        if known.state is not container.state or known.path != path:
            self.books.enact(Change(put_containers=(replace(known, state=container.state, path=path),)))
        self.tell_pending()

    def stop_container(self, sandbox: Sandbox | None, container: Container) -> tuple[Update, ...]:
        """Release what a container had of its own; return the updates that follow. Unknown ones change nothing."""
        del sandbox
        self._drop([container.id])
        return self._reply(self.books.pending.due())

    def remove_container(self, sandbox: Sandbox | None, container: Container) -> None:
        """Release what is left of a container."""
        del sandbox
        self._drop([container.id])

    # The cluster

    def restore_pods(self, pods: Iterable[PodSpec]) -> None:
        """Take in the pods that were stored before a restart."""
        self._pods = {pod.runtime_uid: pod for pod in pods}

    def pods_listed(self, pods: Sequence[PodSpec]) -> None:
        """Replace what is known of pods; those whose containers still run are kept until these have stopped."""
        running = {grant.pod_uid for grant in self.books.ledger.containers.values()}
        listed = {pod.runtime_uid: pod for pod in pods}
        gone = [uid for uid in self._pods if uid not in listed and uid not in running]
        changed = [pod for uid, pod in listed.items() if self._pods.get(uid) != pod]
        self._pod_store.commit_pods(changed, [self._pods[uid].uid for uid in gone])
        for uid in gone:
            del self._pods[uid]
        self._pods.update(listed)
        self._judge_unproven()

    def pod_seen(self, pod: PodSpec) -> None:
        """Note a pod that is new or changed."""
        if self._pods.get(pod.runtime_uid) == pod:
            return
        self._pod_store.commit_pods([pod], [])
        self._pods[pod.runtime_uid] = pod
        self._judge_unproven()

    def pod_gone(self, uid: PodUID) -> None:
        """Forget a pod, unless its containers still run."""
        pod = next((pod for pod in self._pods.values() if pod.uid == uid), None)
        running = {grant.pod_uid for grant in self.books.ledger.containers.values()}
        if pod is None or pod.runtime_uid in running:
            return
        self._pod_store.commit_pods([], [uid])
        del self._pods[pod.runtime_uid]

    # Proof

    def observe(self, container_id: ContainerID, seen: Seen | None) -> bool:
        """Take in what a container's cgroup was read to be; return whether that is as it should be.

        None: it cannot be read; what was said of it is taken for done.
        """
        if seen is None:
            self.books.pending.settle(container_id)
            return True
        return self.books.pending.see(container_id, seen, self.books.placement(container_id))

    def tell_pending(self) -> None:
        """Have pending cpusets looked after, if there are any."""
        if self.books.pending.is_open:
            self._watchers.pending()

    def release_over(self, uids: Iterable[ClaimUID]) -> None:
        """Drop released claims that no container holds any more; their CPUs return to the shared containers (C12)."""
        for uid in uids:
            claim = self.books.ledger.claims.get(uid)
            if claim is None or not claim.released:
                continue
            dead = [g.id for g in self.books.ledger.holders(uid) if self._is_dead(g)]
            if dead:
                self.books.enact(Change(drop_containers=tuple(dead)))
            if self.books.ledger.holders(uid):
                continue
            self.books.enact(Change(drop_claims=(uid,)))
            self._watchers.released(uid)
            self._watchers.freed()
            kv(
                _LOG,
                logging.INFO,
                "claim over",
                claim=f"{claim.namespace}/{claim.name}",
                claim_uid=uid,
                cpus=claim.cpus,
            )
        self.tell_pending()

    def _found(self, sandbox: Sandbox, container: Container) -> None:
        """Take in a container that exists: unknown ones are placed, known ones compared with what they have."""
        seen = self._probe.seen(container.cgroups_path) or Seen(cpus=container.cpus, mems=container.mems)
        known = self.books.ledger.containers.get(container.id)
        if known is not None:
            path = container.cgroups_path or known.path
            if known.state is not container.state or known.path != path:
                self.books.enact(Change(put_containers=(replace(known, state=container.state, path=path),)))
            self.books.pending.see(container.id, seen, self.books.placement(container.id))
            return
        try:
            self._enter(self._decide_or_share(sandbox, container))
        except NodeCpuError as err:
            self._unproven[container.id] = container
            kv(
                _LOG,
                logging.WARNING,
                "container left alone until it can be judged",
                pod=f"{sandbox.namespace}/{sandbox.name}",
                container=container.name,
                container_id=container.id,
                err=err,
            )
            return
        if not self.books.pending.see(container.id, seen, self.books.placement(container.id)):
            self._counters.late_containers += 1

    def _judge_unproven(self) -> None:
        waiting, self._unproven = self._unproven, {}
        for container in waiting.values():
            sandbox = self._sandboxes.get(container.sandbox_id)
            if sandbox is not None:
                self._found(sandbox, container)
        if waiting:
            self.tell_pending()

    def _decide(
        self,
        sandbox: Sandbox,
        container: Container,
        links: Links,
        request: Request,
        previous: ContainerGrant | None = None,
    ) -> ContainerGrant:
        """Return the grant for a container; a restarted one gets what its predecessor had (L4)."""
        if previous is not None and self._is_same(previous, links, request):
            return replace(
                previous,
                id=container.id,
                sandbox_id=sandbox.id,
                state=container.state,
                path=container.cgroups_path,
            )
        return container_grant(self.books.ledger, self.machine, self.rules, sandbox, container, links.held, request)

    def _decide_or_share(self, sandbox: Sandbox, container: Container) -> ContainerGrant:
        """Return the grant for a container that runs already: it cannot be refused, so at the worst it shares (G16)."""
        links, request = self._asked(sandbox, container)
        try:
            return self._decide(sandbox, container, links, request)
        except NoCapacity:
            shared = replace(
                request,
                group=Group.SHARED,
                exclusive=0,
                portion_mcpu=1000 * request.exclusive + request.portion_mcpu,
                uses_shared=True,
                reason=f"{request.reason}; shared instead: it was created while its exclusive CPUs were not free",
            )
            return self._decide(sandbox, container, links, shared)

    def _asked(self, sandbox: Sandbox, container: Container) -> tuple[Links, Request]:
        spec = self._pods.get(sandbox.uid)
        links = links_of(self.books.ledger, self.rules, sandbox, container, spec)
        if links.ignored:
            self._counters.forged_claims += 1
            kv(
                _LOG,
                logging.WARNING,
                "claim variables ignored: the container is not entitled to them",
                pod=f"{sandbox.namespace}/{sandbox.name}",
                container=container.name,
                container_id=container.id,
                state=",".join(links.ignored)[:200],
            )
        claimed = union(link.cpus for link in links.held)
        reserved = bool(self.books.ledger.tree.usable.reserved)
        return links, request_of(self.rules, sandbox, container, spec, claimed, reserved=reserved)

    def _is_same(self, previous: ContainerGrant, links: Links, request: Request) -> bool:
        """Return whether a predecessor's grant serves again: same wish, same links, its own CPUs still free."""
        same = (previous.group, previous.portion_mcpu, len(previous.exclusive), previous.links) == (
            request.group,
            request.portion_mcpu,
            request.exclusive,
            links.held,
        )
        return same and self.books.ledger.grantable(previous.exclusive) == previous.exclusive

    def _enter(self, grant: ContainerGrant) -> None:
        self.books.enact(Change(put_containers=(grant,)))
        placement = self.books.placement(grant.id)
        kv(
            _LOG,
            logging.INFO,
            "container placed",
            pod=f"{grant.namespace}/{grant.pod}",
            container=grant.name,
            container_id=grant.id,
            pool=grant.pool,
            cpus=None if placement is None else placement.cpus,
            mems=None if placement is None else placement.mems,
            state=grant.reason,
        )

    def _drop(self, container_ids: Iterable[ContainerID]) -> None:
        """Release containers that the books know, and the released claims that only they held."""
        known = [one for one in container_ids if one in self.books.ledger.containers]
        for one in container_ids:
            self._unproven.pop(one, None)
        if not known:
            return
        uids = {link.claim_uid for one in known for link in self.books.ledger.containers[one].links}
        self.books.enact(Change(drop_containers=tuple(known)))
        for one in known:
            kv(_LOG, logging.INFO, "container released", container_id=one)
        self._watchers.freed()
        self.release_over(sorted(uids))

    def _reclaim(self) -> bool:
        """Drop containers with exclusive CPUs whose processes are gone; return whether there were any (G11)."""
        dead = [g.id for g in self.books.ledger.containers.values() if g.exclusive and self._is_dead(g)]
        self._drop(dead)
        return bool(dead)

    def _is_dead(self, grant: ContainerGrant) -> bool:
        """Return whether a container has run and has no process left; one not started yet is not dead."""
        return grant.state is ContainerState.RUNNING and not self._probe.is_populated(grant.path)

    def _reply(self, updates: tuple[Update, ...]) -> tuple[Update, ...]:
        self.books.pending.replied()
        self.tell_pending()
        return updates
