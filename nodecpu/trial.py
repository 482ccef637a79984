"""What would become of claims and pods now (shell around the policy; changes nothing).

Objects are tried in turn on a copy of the books: first the claims, then the pods' containers in the order in which the
kubelet creates them. The very functions decide that decide when it is meant; nothing is held, committed or counted.
What the scheduler would allocate, which devices the kubelet would give, and CPUs that come free by waiting, are not
foreseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nodecpu.admin.state import TrialRow
from nodecpu.admin.view import results_of
from nodecpu.admitted import Admitted, admitted
from nodecpu.annotated import annotated
from nodecpu.attraction import attraction
from nodecpu.cpuset import CpuSet, union
from nodecpu.dra.claims import decode_claim
from nodecpu.errors import BadRequest, ClaimConflict, NodeCpuError, NotReady
from nodecpu.ids import ClaimUID, ContainerID, SandboxID
from nodecpu.kube.podspec import decode_pod
from nodecpu.policy.allocate import container_grant
from nodecpu.policy.claims import claim_grant, same_allocation
from nodecpu.policy.facts import AllocatedClaim, Container, ContainerKind, ContainerSpec, PodSpec, Sandbox
from nodecpu.policy.grants import ClaimGrant, ContainerGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.links import ENV_PREFIX, links_of, require_present
from nodecpu.policy.plan import Change
from nodecpu.policy.requests import check_handler, request_of
from nodecpu.policy.room import make_room
from nodecpu.policy.shared import placement, shared_updates
from nodecpu.service import Service


def tried(service: Service, driver: str, objects: Sequence[bytes]) -> tuple[TrialRow, ...]:
    """Return what would become of objects (JSON), one row per claim and container; raises BadRequest for others."""
    trial = _Trial(service)
    rows: list[TrialRow] = []
    for one in admitted(objects):
        if one.kind == "claim":
            uid = ClaimUID(one.uid)
            claim = decode_claim(one.data, driver=driver, uid=uid, namespace=one.namespace, name=one.name)
            rows.append(trial.claim(claim))
        else:
            pod = _pod(one)
            # One that no scheduler has seen is taken to be counted as new pods are.
            rows += trial.pod(replace(pod, counted_claims=pod.counted_claims or None))
    return tuple(rows)


def _pod(one: Admitted) -> PodSpec:
    try:
        return decode_pod(one.data)
    except BadRequest as error:
        raise BadRequest(f"pod {one.namespace}/{one.name}: {error.message}", hint=error.hint) from error


class _Trial:
    """The copy of the books that things are tried on; what fits stays in it for what comes next."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ledger = service.books.ledger.copy()
        self._cpus = _placed(self._ledger)
        self._before: dict[ContainerID, CpuSet] = {}  # where those ran whom the present object moves

    def claim(self, claim: AllocatedClaim) -> TrialRow:
        """Return what a prepare would answer."""
        name = f"{claim.namespace}/{claim.name}"
        self._before.clear()
        try:
            if not self._service.is_synchronized:
                raise NotReady(f"claim {name}: the container runtime is not connected", hint="see nodecpu check")
            grant = self._claim_grant(claim)
        except NodeCpuError as err:
            return _refused("claim", name, err)
        moved = make_room(self._ledger, grant.cpus)
        self._enact(Change(put_claims=(grant,), put_containers=moved))
        missed = [words for result in grant.results for words in result.missed]
        return TrialRow(
            kind="claim",
            name=name,
            fits=True,
            cpus=str(grant.cpus),
            reason=f"without {' and '.join(missed)}, which cannot be had" if missed else "",
            results=results_of(grant),
            moves=self._moves(),
        )

    def pod(self, pod: PodSpec) -> Iterator[TrialRow]:
        """Yield what the creation of each container would answer."""
        sandbox = Sandbox(
            id=SandboxID(f"trial of {pod.uid}"),
            uid=pod.runtime_uid,
            namespace=pod.namespace,
            name=pod.name,
            annotations=pod.annotations,
        )
        for spec in pod.containers.values():  # in the order in which they start
            if spec.kind is not ContainerKind.EPHEMERAL:
                yield self._container(sandbox, pod, spec)

    def _claim_grant(self, claim: AllocatedClaim) -> ClaimGrant:
        old = self._ledger.claims.get(claim.uid)
        if old is None:
            return claim_grant(self._ledger, self._service.machine, self._service.rules, claim)
        if same_allocation(old, claim) and not old.moved and not old.unproven:
            return old
        if holders := self._ledger.holders(old.uid):
            raise ClaimConflict(
                f"claim {claim.namespace}/{claim.name} is in the books otherwise, and {holders[0].pod} holds it",
                hint="it is prepared anew when its containers are gone",
            )
        self._enact(Change(drop_claims=(old.uid,)))
        return claim_grant(self._ledger, self._service.machine, self._service.rules, claim)

    def _container(self, sandbox: Sandbox, pod: PodSpec, spec: ContainerSpec) -> TrialRow:
        name = f"{pod.namespace}/{pod.name}/{spec.name}"
        self._before.clear()
        previous = self._ledger.named(sandbox.uid, sandbox.namespace, sandbox.name, spec.name)
        if previous is not None:
            self._enact(Change(drop_containers=(previous.id,)))
        try:
            grant = self._container_grant(sandbox, pod, spec)
        except NodeCpuError as err:
            return _refused("container", name, err)
        self._enact(Change(put_containers=(grant,)))
        where = placement(self._ledger, grant)
        row = TrialRow(
            kind="container",
            name=name,
            fits=True,
            cpus="" if where is None else str(where.cpus),
            claimed=str(grant.claimed),
            exclusive=str(grant.exclusive),
            group=grant.group.value,
            pool=grant.pool,
            reason=grant.reason,
            moves=self._moves(),
        )
        if spec.kind is ContainerKind.INIT:  # it ends before the next one begins; a sidecar stays
            self._enact(Change(drop_containers=(grant.id,)))
        return row

    def _enact(self, change: Change) -> None:
        """Take a change into the books, and note who runs elsewhere by it.

        Only those are looked at whom the change may concern: to look at all at each step took most of the time.
        """
        for update in shared_updates(self._ledger, change, self._ledger.apply(change)):
            was, now = self._cpus.get(update.container_id), update.placement.cpus
            if was is not None and was != now:
                self._before.setdefault(update.container_id, was)
            self._cpus[update.container_id] = now
        for container_id in change.drop_containers:
            self._cpus.pop(container_id, None)

    def _moves(self) -> tuple[str, ...]:
        """Return, in words, which containers run elsewhere than before the present object."""
        found = ((self._ledger.containers.get(one), cpus, self._cpus.get(one)) for one, cpus in self._before.items())
        return tuple(
            sorted(
                f"{grant.namespace}/{grant.pod}/{grant.name}: {cpus} -> {now}"
                for grant, cpus, now in found
                if grant is not None and cpus != now
            )
        )

    def _container_grant(self, sandbox: Sandbox, pod: PodSpec, spec: ContainerSpec) -> ContainerGrant:
        rules, ledger = self._service.rules, self._ledger
        container = Container(
            id=ContainerID(f"trial of {pod.uid}/{spec.name}"),
            sandbox_id=sandbox.id,
            name=spec.name,
            claim_env=self._variables(pod, spec),
        )
        links = links_of(ledger, rules, sandbox, container, pod).held
        preferences = annotated(rules, sandbox, container, pod).preferences
        claimed = union(link.cpus for link in links)
        reserved = bool(ledger.tree.usable.reserved)
        request = request_of(rules, sandbox, container, pod, claimed, reserved=reserved, preferences=preferences)
        drawn = attraction(rules, ledger, self._service.spec_of, sandbox, container, preferences)
        request = replace(request, pull=drawn.pull)
        require_present(ledger, sandbox, container, links)
        check_handler(rules, sandbox, container, claimed)
        return container_grant(ledger, self._service.machine, rules, sandbox, container, links, request)

    def _variables(self, pod: PodSpec, spec: ContainerSpec) -> Mapping[str, str]:
        """Return the variables that the runtime would inject; raises NotReady for a claim that is not prepared."""
        found: dict[str, str] = {}
        for ref in spec.claims:
            claims = [
                one
                for one in self._ledger.claims.values()
                if (one.namespace, one.name) == (pod.namespace, ref.claim) and not (one.released or one.moved)
            ]
            if not claims:
                what = "of a template" if ref.claim is None else f"{pod.namespace}/{ref.claim}"
                raise NotReady(
                    f"container {pod.namespace}/{pod.name}/{spec.name}: claim {what} is not prepared",
                    hint="the kubelet has it prepared first: put the allocated claim into the file as well",
                )
            found |= {f"{ENV_PREFIX}{one.uid}": str(one.cpus) for one in claims}
        return found


def _refused(kind: str, name: str, err: NodeCpuError) -> TrialRow:
    return TrialRow(kind=kind, name=name, fits=False, code=err.code, message=err.message, hint=err.hint)


def _placed(ledger: Ledger) -> dict[ContainerID, CpuSet]:
    """Return where every container runs by some books."""
    found = ((grant, placement(ledger, grant)) for grant in ledger.containers.values())
    return {grant.id: where.cpus for grant, where in found if where is not None}
