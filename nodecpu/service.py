"""Decide, commit, act: every request of the runtime and of the cluster, one at a time (shell around the policy).

The runtime's side is synchronous and never waits: it decides, commits to the containers database and answers in one go,
so nothing can come between. Claims, which wait for a disk and for the API server, are in ``nodecpu.claims``.

What is not proved is left alone: a container found at synchronisation whose entitlement cannot be checked yet stays
where it is, but for the CPUs that others own, its claims' CPUs stay blocked, and it is judged again when its pod
becomes known (R2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from nodecpu.annotated import annotated, scheduling_of
from nodecpu.asking import Asking
from nodecpu.attraction import asks_kubelet
from nodecpu.books import Books
from nodecpu.cpuset import MAX_ID, NO_NODES, union
from nodecpu.errors import NoCapacity, NodeCpuError, NotReady, StateError
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.nri.versions import RuntimeVersion
from nodecpu.pods import PodCommit, Pods
from nodecpu.policy.allocate import asked, container_grant, figured
from nodecpu.policy.evidence import shown_by, told_by, unproven_grants
from nodecpu.policy.facts import Container, ContainerState, PodSpec, Resources, Sandbox
from nodecpu.policy.figures import merged
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.links import Links, require_present
from nodecpu.policy.machine import Machine
from nodecpu.policy.memory import make_memory_room
from nodecpu.policy.pending import Seen, fulfils
from nodecpu.policy.plan import Change, Creation, Mount, Placement, Update
from nodecpu.policy.rebuilt import as_it_runs
from nodecpu.policy.requests import Request, check_handler
from nodecpu.policy.resize import Resize, resize
from nodecpu.policy.rules import Rules
from nodecpu.quotas import QuotaFiles, Quotas
from nodecpu.reports import POD, Reports, Subject

_LOG = logging.getLogger(__name__)


class Probe(Protocol):
    """Looks at a container's cgroup."""

    def is_populated(self, cgroups_path: str) -> bool:
        """Return whether its cgroup is there and has processes."""

    def seen(self, cgroups_path: str) -> Seen | None:
        """Return its effective cpuset; None if it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watchers:
    """Who is told: ``pending`` when containers wait for a new cpuset, ``freed`` when CPUs or links became available.

    ``hinted``: of a sandbox whose containers to come are to be near the devices that the kubelet gave them.
    """

    pending: Callable[[], None]
    freed: Callable[[], None]
    released: Callable[[ClaimUID], None]
    hinted: Callable[[Sandbox], None] = lambda sandbox: None


class Service:
    """The runtime's and the cluster's requests."""

    def __init__(  # noqa: PLR0913 - its doors, given by the composition root
        self,
        books: Books,
        machine: Machine,
        rules: Rules,
        *,
        pods: PodCommit,
        probe: Probe,
        counters: Counters,
        watchers: Watchers,
        quotas: QuotaFiles | None = None,
    ) -> None:
        self.books = books
        self.machine = machine
        self.rules = rules
        self.is_synchronized = False
        self._schedules = False
        self.adopting = False
        self.mount_of: Callable[[ContainerID], Mount | None] = lambda container_id: None
        self.containers_lost = False
        self._probe = probe
        self._counters = counters
        self._watchers = watchers
        self._store = pods
        self.pods = Pods(books, pods)
        self.asking = Asking(books, self.pods, counters)
        self._quotas = None if quotas is None else Quotas(books, quotas, counters, self)
        self._sandboxes: dict[SandboxID, Sandbox] = {}
        self._unproven: dict[ContainerID, Container] = {}
        self._listed: dict[ContainerID, Container] = {}

    @property
    def reports(self) -> Reports:
        """Who is told of what concerns a pod."""
        return self.asking.reports

    @reports.setter
    def reports(self, reports: Reports) -> None:
        self.asking.reports = reports

    # The runtime

    def runtime_connected(self, runtime: RuntimeVersion) -> None:
        """Note which runtime is at the other end."""
        self._schedules = runtime.schedules
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
        containers = [container for container in containers if container.state is not ContainerState.STOPPED]
        listed = {container.id: container for container in containers}
        gone = [known for known in self.books.ledger.containers if known not in listed]
        self._drop(gone)
        if self.adopting:
            self._listed = listed
            self._keep_what_is_shown(listed.values())
        for container in sorted(containers, key=_in_order_of_claim):
            sandbox = self._sandboxes.get(container.sandbox_id)
            if sandbox is not None:
                self._found(sandbox, container)
            elif container.id not in self.books.ledger.containers:
                self._unproven[container.id] = container  # its pod was created while the runtime made its lists
                kv(_LOG, logging.WARNING, "container left alone until its pod is told of", container_id=container.id)
        for sandbox in sandboxes:
            if asks_kubelet(self.rules, sandbox) and not self._has_all_containers(sandbox):
                self._watchers.hinted(sandbox)  # what it told before a restart is forgotten
        self.is_synchronized = True
        self._note_rebuilt()
        self._watchers.freed()
        updates = (*self.books.pending.due(), *self._kept_off())  # all were looked at just now
        kv(_LOG, logging.INFO, "runtime synchronised", count=len(listed), state=f"{len(updates)} to correct")
        return self._reply(updates)

    def run_sandbox(self, sandbox: Sandbox) -> None:
        """Note a pod sandbox; what the kubelet gave its containers is asked for where that can matter."""
        self._know(sandbox)
        if asks_kubelet(self.rules, sandbox):
            self._watchers.hinted(sandbox)

    def stop_sandbox(self, sandbox: Sandbox) -> None:
        """Nothing ends with a sandbox's stop: its containers have their own events."""

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Drop a sandbox and what is left of its containers (a runtime may tell nothing more of failed ones)."""
        self._sandboxes.pop(sandbox.id, None)
        left = [g.id for g in self.books.ledger.containers.values() if g.sandbox_id == sandbox.id]
        left += [c.id for c in self._unproven.values() if c.sandbox_id == sandbox.id]
        self._drop(left)

    def create_container(self, sandbox: Sandbox, container: Container) -> Creation:
        """Return where a new container runs, and the updates of others that go with it; raises NodeCpuError.

        A predecessor of the same pod and name is superseded (G11). Before a refusal for want of CPUs, containers whose
        processes are gone are reclaimed, since their stop events can be late.
        """
        self._know(sandbox)
        previous = self._predecessor(sandbox, container)
        try:
            if previous is not None:
                self._drop([previous.id])
            links, request = self.asking.of(self.rules, sandbox, container)
            require_present(self.books.ledger, sandbox, container, links.held)
            check_handler(self.rules, sandbox, container, union(link.cpus for link in links.held))
            if request.exclusive and self.is_rebuilding:
                raise NotReady(f"{_name(sandbox, container)}: the books were lost and are being rebuilt")
            try:
                grant = self._decide(sandbox, container, links, request, previous)
            except NoCapacity:
                if not self._reclaim():
                    raise
                grant = self._decide(sandbox, container, links, request, previous)
            placement = self._enter(grant)
        except NodeCpuError as err:
            self._counters.refused(err, "container", _name(sandbox, container), sandbox.uid)
            kv(
                _LOG,
                logging.WARNING,
                "container refused",
                pod=f"{sandbox.namespace}/{sandbox.name}",
                container=container.name,
                container_id=container.id,
                err=err,
            )
            self.reports.report(self.pods.subject(sandbox), "ContainerRefused", str(err))
            raise
        if placement is not None:
            self.books.pending.create(container.id, placement)
        updates = self._reply(self._due(besides=container.id))
        return Creation(
            placement=placement,
            updates=updates,
            scheduling=scheduling_of(self.rules, sandbox, container, request, runtime_can=self._schedules),
            mount=self.mount_of(container.id),
        )

    def update_container(self, sandbox: Sandbox, container: Container, wanted: Resources) -> tuple[Update, ...]:
        """Return the entry for the container itself, which always carries our figures, and what else is due (G12).

        A request to change the cpuset is not followed: the books say where a container runs. Claimed CPUs stay, its own
        grow or shrink in place; raises NoCapacity where they cannot, and then nothing has changed.
        """
        self.container_seen(sandbox, container)
        grant = self.books.ledger.containers.get(container.id)
        if grant is not None:
            self._resize(sandbox, container, grant, wanted)
        due = self._due(besides=container.id)
        placement = self.books.placement(container.id)
        if placement is None:
            return self._reply(due)
        own = Update(container_id=container.id, placement=merged(placement, wanted))
        return self._reply((own, *due))

    def container_seen(self, sandbox: Sandbox, container: Container) -> None:
        """Take an event about a container for a late announcement if it is unknown, else note its state."""
        known = self.books.ledger.containers.get(container.id)
        if known is None:
            is_waiting = container.id in self._unproven and sandbox.id in self._sandboxes
            if container.state is not ContainerState.STOPPED and not is_waiting:
                self._unproven.pop(container.id, None)
                self._sandboxes.setdefault(sandbox.id, sandbox)
                self._found(sandbox, container)
                self.tell_pending()
            return
        self.books.records[known.id] = container.cpus
        path = container.cgroups_path or known.path
        if known.state is not container.state or known.path != path:
            self.books.enact(Change(put_containers=(replace(known, state=container.state, path=path),)))
        self.tell_pending()

    def stop_container(self, sandbox: Sandbox | None, container: Container) -> tuple[Update, ...]:
        """Release what a container had of its own; return the updates that follow. Unknown ones change nothing."""
        del sandbox
        self._drop([container.id])
        return self._reply(self._due())

    def remove_container(self, sandbox: Sandbox | None, container: Container) -> None:
        """Release what is left of a container."""
        del sandbox
        self._drop([container.id])

    # The cluster

    def pods_listed(self, pods: Sequence[PodSpec]) -> None:
        """Replace what is known of pods; those whose containers still run are kept until these have stopped."""
        self.pods.listed(pods)
        self._judge_unproven()

    def pod_seen(self, pod: PodSpec) -> None:
        """Note a pod that is new or changed."""
        if self.pods.seen(pod):
            self._judge_unproven()

    def pod_gone(self, uid: PodUID) -> None:
        """Forget a pod, unless its containers still run."""
        self.pods.gone(uid)

    # Proof

    def observe(self, container_id: ContainerID, seen: Seen | None) -> bool:
        """Take in what a container's cgroup was read to be; return whether that is as it should be.

        None: it cannot be read; what was said of it is taken for done.
        """
        if seen is None:
            self.books.pending.settle(container_id)
            return True
        wanted = self.books.placement(container_id)
        if self.is_being_made(container_id) and not (wanted is None or fulfils(seen, wanted)):
            return False
        is_right = self.books.pending.see(container_id, seen, wanted)
        if is_right and container_id in self.books.records:
            self.books.records[container_id] = seen.cpus  # it was told so, or will be with the next reply
        return is_right

    def is_being_made(self, container_id: ContainerID) -> bool:
        """Return whether the runtime has not started a container: it may be at its cgroup, whatever that is now."""
        grant = self.books.ledger.containers.get(container_id)
        return grant is not None and grant.state in (ContainerState.CREATED, ContainerState.UNKNOWN)

    # Claims that the books do not know (R2)

    @property
    def unproven_claims(self) -> tuple[ClaimUID, ...]:
        """The claims that the API server has not confirmed yet, by UID."""
        return tuple(sorted(uid for uid, claim in self.books.ledger.claims.items() if claim.unproven))

    @property
    def known_ids(self) -> frozenset[str]:
        """The ids of all containers and sandboxes that the runtime has told of."""
        return frozenset((*self.books.ledger.containers, *self._unproven, *self._sandboxes))

    @property
    def used_claims(self) -> frozenset[ClaimUID]:
        """The claims that containers hold, or show and could not be judged yet."""
        links = (link for grant in self.books.ledger.containers.values() for link in grant.links)
        shown = (uid for one in self._unproven.values() for uid in shown_by(one))
        return frozenset(link.claim_uid for link in links) | frozenset(shown)

    def is_used(self, uid: ClaimUID) -> bool:
        """Return whether a container holds a claim, or shows it and could not be judged yet."""
        return bool(self.books.ledger.holders(uid)) or any(uid in shown_by(one) for one in self._unproven.values())

    def has_strangers(self, uid: ClaimUID) -> bool:
        """Return whether a container that shows or holds a claim is of a pod that the API server has not told of."""
        sandboxes = (self._sandboxes.get(c.sandbox_id) for c in self._unproven.values() if uid in shown_by(c))
        pods = [None if sandbox is None else self.pods.of(sandbox) for sandbox in sandboxes]
        pods += [self.spec_of(grant) for grant in self.books.ledger.holders(uid)]
        return None in pods

    def judge(self) -> None:
        """Judge again the containers that could not be judged: a claim of theirs was confirmed."""
        self._judge_unproven()

    def disprove(self, uid: ClaimUID) -> None:
        """Drop a claim that the API server does not confirm; its containers are judged as if they did not show it."""
        claim = self.books.ledger.claims.get(uid)
        if claim is None or not claim.unproven:
            return
        holders = tuple(grant.id for grant in self.books.ledger.holders(uid))
        self.books.enact(Change(drop_containers=holders))
        self._unproven |= {one: self._listed[one] for one in holders if one in self._listed}
        self.books.enact(Change(drop_claims=(uid,)))
        kv(_LOG, logging.WARNING, "claim not confirmed, its CPUs are free again", claim_uid=uid, cpus=claim.cpus)
        self._watchers.freed()
        self._judge_unproven()

    def adoption_done(self) -> None:
        """Stop looking for claims that the books do not know: all were judged."""
        self.adopting = False
        self._listed = {}

    def _keep_what_is_shown(self, containers: Iterable[Container]) -> None:
        """Enter the claims that running containers show and run on, before anybody else gets their CPUs (R2)."""
        for container in sorted(containers, key=lambda c: c.id):
            told = told_by(container.claim_env)
            if not told:
                continue  # most are none of a claim: their cgroups need not be read for this
            seen = self._probe.seen(container.cgroups_path)
            cpus = container.cpus if seen is None else seen.cpus
            ledger = self.books.ledger
            # Anybody can set variables: only who runs on just these CPUs, and leaves others some, is a holder's like.
            if union(one.cpus for one in told) != cpus or not ledger.grantable(ledger.tree.root.sharable) - cpus:
                continue
            taken = ledger.tree.usable.all - ledger.grantable(ledger.tree.usable.all)
            for grant in unproven_grants(told, ledger.claims, taken):
                self.books.enact_claim(grant)
                kv(
                    _LOG,
                    logging.WARNING,
                    "claim found in a running container, to be confirmed by the API server",
                    container_id=container.id,
                    claim_uid=grant.uid,
                    cpus=grant.cpus,
                )

    def tell_pending(self) -> None:
        """Have pending cpusets looked after, if there are any."""
        if self.books.pending.is_open:
            self._watchers.pending()

    def release_over(self, uids: Iterable[ClaimUID]) -> None:
        """Drop released claims that no container holds any more; their CPUs return to the shared containers (C12).

        One that is being prepared again stays: dropping its row now would undo the one that is being written.
        """
        for uid in uids:
            claim = self.books.ledger.claims.get(uid)
            if claim is None or not claim.released or uid in self.books.ledger.holds:
                continue
            dead = [g.id for g in self.books.ledger.holders(uid) if self._is_dead(g)]
            if dead:
                self.books.enact(Change(drop_containers=tuple(dead)))
            if self.is_used(uid):
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

    def _has_all_containers(self, sandbox: Sandbox) -> bool:
        """Return whether every container of a pod is in the books: then none is to be placed that was not before."""
        spec = self.pods.of(sandbox)
        return spec is not None and all(self._named(sandbox, name) for name in spec.containers)

    def _found(self, sandbox: Sandbox, container: Container) -> None:
        """Take in a container that exists: unknown ones are placed, known ones compared with what they have."""
        seen = Seen(cpus=container.cpus, mems=container.mems)
        if container.state is not ContainerState.CREATED:  # else its cgroup may be in the making: the record tells
            seen = self._probe.seen(container.cgroups_path) or seen
        known = self.books.ledger.containers.get(container.id)
        if known is not None:
            path = container.cgroups_path or known.path
            if known.state is not container.state or known.path != path:
                self.books.enact(Change(put_containers=(replace(known, state=container.state, path=path),)))
            self._compare(container, seen, self.books.placement(container.id))
            return
        try:
            self._require_pod(sandbox, seen)
            placement = self._enter(as_it_runs(self.books.ledger, self._decide_or_share(sandbox, container), seen))
        except NodeCpuError as err:
            self._unproven[container.id] = container
            self._counters.last_refusals.note(err, "container", _name(sandbox, container), sandbox.uid)
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
        if not self._compare(container, seen, placement):
            self._counters.late_containers += 1

    def _compare(self, container: Container, seen: Seen, placement: Placement | None) -> bool:
        """Note what a listed container has, return whether that is right; one being made is read back once it runs."""
        if container.state is ContainerState.CREATED and placement is not None and fulfils(seen, placement):
            self.books.pending.create(container.id, placement)
            return True
        return self.books.pending.see(container.id, seen, placement)

    def _kept_off(self, *, besides: ContainerID | None = None) -> tuple[Update, ...]:
        """Return updates for containers that cannot be judged yet: whatever they are, they are not others' (G9, R2).

        What they show themselves they keep: unproven is not forged.
        """
        if not self._unproven:
            return ()
        ledger = self.books.ledger
        own = union(grant.exclusive for grant in ledger.containers.values())
        claimed = {uid: claim.cpus for uid, claim in ledger.claims.items()}
        found = []
        for container in self._unproven.values():
            if container.id == besides:
                continue
            shown = shown_by(container)
            others = own | union(cpus for uid, cpus in claimed.items() if uid not in shown)
            seen = self._probe.seen(container.cgroups_path)
            cpus = (container.cpus if seen is None else seen.cpus) or ledger.tree.usable.all
            if cpus & others and cpus - others:
                placement = Placement(cpus=cpus - others, mems=NO_NODES)
                found.append(Update(container_id=container.id, placement=placement))
        return tuple(found)

    @property
    def is_rebuilding(self) -> bool:
        """Return whether containers run that the books lost and that could not be judged yet: nobody gets CPUs.

        Those whose pods the runtime does not tell of do not count: that may be for ever.
        """
        return self.containers_lost and any(one.sandbox_id in self._sandboxes for one in self._unproven.values())

    def _note_rebuilt(self) -> None:
        """Take note that the books lack nothing any more: what runs and all pods are known, and all were judged."""
        if not (self.containers_lost and self.is_synchronized and self.pods.are_listed) or self.is_rebuilding:
            return
        try:
            self._store.rebuilt()
        except StateError as err:
            kv(_LOG, logging.WARNING, "that the books are whole again cannot be recorded yet", err=err)
            return
        self.containers_lost = False
        kv(_LOG, logging.INFO, "the books of containers are whole again", count=len(self.books.ledger.containers))

    def _require_pod(self, sandbox: Sandbox, seen: Seen) -> None:
        """Raise NotReady for a pod that is not known yet, where the books lost what its container was given."""
        pinned = bool(seen.cpus) and not self.books.ledger.tree.usable.all <= seen.cpus
        if pinned and self.containers_lost and not self.pods.are_listed and self.pods.of(sandbox) is None:
            raise NotReady(f"pod {sandbox.namespace}/{sandbox.name}: the books were lost, its spec is not known yet")

    def _know(self, sandbox: Sandbox) -> None:
        """Note a sandbox; its containers may have been told of before it."""
        is_new = sandbox.id not in self._sandboxes
        self._sandboxes[sandbox.id] = sandbox
        if is_new and any(one.sandbox_id == sandbox.id for one in self._unproven.values()):
            self._judge_unproven()

    def _judge_unproven(self) -> None:
        waiting, self._unproven = self._unproven, {}
        for container in waiting.values():
            sandbox = self._sandboxes.get(container.sandbox_id)
            if sandbox is None:
                self._unproven[container.id] = container
            else:
                self._found(sandbox, container)
        self._note_rebuilt()
        if len(self._unproven) < len(waiting):  # it runs already, and no reply may come for long (G9)
            self.books.pending.hurry()
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
            again = replace(
                previous,
                id=container.id,
                sandbox_id=sandbox.id,
                state=container.state,
                path=container.cgroups_path,
            )
            return figured(self.books.ledger.tree, self.rules, replace(asked(again, request), reason=previous.reason))
        return container_grant(self.books.ledger, self.machine, self.rules, sandbox, container, links.held, request)

    def _decide_or_share(self, sandbox: Sandbox, container: Container) -> ContainerGrant:
        """Return the grant for a container that runs already: it cannot be refused, so at the worst it shares (G16)."""
        links, request = self.asking.of(self.rules, sandbox, container)
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

    def _resize(self, sandbox: Sandbox, container: Container, grant: ContainerGrant, wanted: Resources) -> None:
        """Give a container what an in-place update asks for, if that is other than what it has (G12)."""
        spec = self.pods.of(sandbox)
        preferences = annotated(self.rules, sandbox, container, spec).preferences
        update = Resize(sandbox=sandbox, container=container, spec=spec, preferences=preferences, wanted=wanted)
        try:
            changed = resize(self.books.ledger, self.machine, self.rules, grant, update)
            if changed is not None:
                self._enter(changed)
        except NodeCpuError as err:
            self._counters.refused(err, "resize", _name(sandbox, container), sandbox.uid)
            kv(
                _LOG,
                logging.WARNING,
                "resize refused",
                pod=f"{sandbox.namespace}/{sandbox.name}",
                container=container.name,
                container_id=container.id,
                err=err,
            )
            self.reports.report(self.pods.subject(sandbox), "ResizeRefused", str(err))
            raise

    def check_quotas(self) -> None:
        """Look whether a quota throttles CPUs that a container owns (G14)."""
        if self._quotas is not None:
            self._quotas.audit(lift=self.rules.lift_pod_quota)

    def sandbox_of(self, grant: ContainerGrant) -> Sandbox | None:
        """Return a container's sandbox; None while the runtime has not told of it (yet)."""
        return self._sandboxes.get(grant.sandbox_id)

    def reconfigured(self) -> None:
        """Have what follows from other rules looked after: containers to be told, claims that may fit now."""
        self._watchers.freed()
        self.tell_pending()

    def spec_of(self, grant: ContainerGrant) -> PodSpec | None:
        """Return the pod of a container as last seen."""
        return self.pods.of_container(grant)

    def tell(self, grant: ContainerGrant, reason: str, message: str) -> None:
        """Report something of a container on its pod."""
        spec = self.spec_of(grant)
        uid = grant.pod_uid if spec is None else spec.uid
        self.reports.report(Subject(kind=POD, namespace=grant.namespace, name=grant.pod, uid=uid), reason, message)

    def _predecessor(self, sandbox: Sandbox, container: Container) -> ContainerGrant | None:
        """Return the container that a new one supersedes: of the same pod and name (G11).

        A pod that was made past the kubelet may have no UID, then nobody is.
        """
        return self._named(sandbox, container.name) if sandbox.uid else None

    def _named(self, sandbox: Sandbox, name: str) -> ContainerGrant | None:
        return self.books.ledger.named(sandbox.uid, sandbox.namespace, sandbox.name, name)

    def _is_same(self, previous: ContainerGrant, links: Links, request: Request) -> bool:
        """Return whether a predecessor's grant serves again: same wish, same links, its own CPUs still free."""
        same = (previous.group, previous.portion_mcpu, len(previous.exclusive), previous.links) == (
            request.group,
            request.portion_mcpu,
            request.exclusive,
            links.held,
        )
        return same and self.books.ledger.grantable(previous.exclusive) == previous.exclusive

    def _enter(self, grant: ContainerGrant) -> Placement | None:
        """Take a grant into the books; return where the container runs by them."""
        if self._quotas is not None:
            grant = self._quotas.covered(grant, lift=self.rules.lift_pod_quota)
        self.books.enact(Change(put_containers=(grant, *make_memory_room(self.books.ledger, grant))))
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
        return placement

    def _drop(self, container_ids: Sequence[ContainerID]) -> None:
        """Release containers that the books know, and the released claims that only they held."""
        known = [one for one in container_ids if one in self.books.ledger.containers]
        waiting = [self._unproven.pop(one) for one in container_ids if one in self._unproven]
        uids = {uid for container in waiting for uid in shown_by(container)}
        if not known:
            self.release_over(sorted(uids))
            return
        uids |= {link.claim_uid for one in known for link in self.books.ledger.containers[one].links}
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

    def _due(self, *, besides: ContainerID | None = None) -> tuple[Update, ...]:
        """Return what a reply carries of others: not what the one before has brought about (R7).

        A runtime applies a reply's updates before its next request; looked at now, a right cpuset is not written again.
        """
        pending = self.books.pending
        for container_id in pending.carried:
            grant = self.books.ledger.containers.get(container_id)
            if grant is not None and (seen := self._probe.seen(grant.path)) is not None:
                self.observe(container_id, seen)
        return (*pending.due(besides=besides), *self._kept_off(besides=besides))

    def _reply(self, updates: tuple[Update, ...]) -> tuple[Update, ...]:
        self.books.pending.replied()
        self.tell_pending()
        return updates


def _name(sandbox: Sandbox, container: Container) -> str:
    return f"{sandbox.namespace}/{sandbox.name}/{container.name}"


def _in_order_of_claim(container: Container) -> tuple[bool, int, ContainerID]:
    """Holders first, then who runs on the fewest CPUs: those were pinned, and keep what they have (R1)."""
    return not container.cdi_devices and not container.claim_env, len(container.cpus) or MAX_ID, container.id
