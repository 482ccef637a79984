"""Pods, containers and claims in a line each, and the steps that put them into books as the service does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nodecpu.cpuset import CpuSet, union
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.policy.allocate import container_grant
from nodecpu.policy.annotations import preferences_of
from nodecpu.policy.claims import claim_grant
from nodecpu.policy.facts import (
    AllocatedClaim,
    AllocationResult,
    ClaimRef,
    Container,
    ContainerSpec,
    PodSpec,
    QoS,
    Sandbox,
)
from nodecpu.policy.grants import ClaimGrant, ContainerGrant
from nodecpu.policy.links import ENV_PREFIX, links_of
from nodecpu.policy.memory import make_memory_room
from nodecpu.policy.plan import Change
from nodecpu.policy.pull import NO_PULL, Pull
from nodecpu.policy.requests import request_of
from nodecpu.policy.room import make_room
from nodecpu.policy.rules import Rules
from nodecpu.policy.shared import placement
from tests.unit.policy.machines import Books

NODE = "node-a"


def claim_uid(number: int) -> ClaimUID:
    """Return a UID of Kubernetes' form."""
    return ClaimUID(f"{number:08x}-0000-4000-8000-00000000c1a1")


def claim(number: int, *wanted: tuple[int, int], name: str = "", namespace: str = "shop") -> AllocatedClaim:
    """Return an allocated claim; ``wanted`` are pairs of NUMA node and CPUs, requests are named r0, r1, ..."""
    results = tuple(
        AllocationResult(request=f"r{i}", pool=NODE, device=f"cpudevnuma{node:03d}", cpus=cpus)
        for i, (node, cpus) in enumerate(wanted)
    )
    return AllocatedClaim(uid=claim_uid(number), namespace=namespace, name=name or f"claim-{number}", results=results)


def sandbox(pod: str = "web", *, namespace: str = "shop", cgroup_parent: str = "") -> Sandbox:
    """Return a pod's sandbox."""
    return Sandbox(
        id=SandboxID(f"sandbox-{pod}"),
        uid=PodUID(f"pod-{pod}"),
        namespace=namespace,
        name=pod,
        cgroup_parent=cgroup_parent,
    )


def container(
    name: str = "app",
    *,
    pod: str = "web",
    env: Mapping[str, str] | None = None,
    devices: Sequence[str] = (),
    shares: int | None = None,
    mark: str = "",
) -> Container:
    """Return a container of a pod; ``mark`` tells apart containers of one name."""
    return Container(
        id=ContainerID(f"{pod}-{name}{mark}"),
        sandbox_id=SandboxID(f"sandbox-{pod}"),
        name=name,
        claim_env=env or {},
        cdi_devices=tuple(devices),
        shares=shares,
    )


def pod_spec(
    pod: str = "web",
    *,
    namespace: str = "shop",
    qos: QoS = QoS.BEST_EFFORT,
    mcpu: int | None = None,
    claims: Sequence[ClaimRef] = (),
    name: str = "app",
) -> PodSpec:
    """Return a pod with one container."""
    mine = ContainerSpec(name=name, request_mcpu=mcpu, claims=tuple(claims))
    uid = PodUID(f"pod-{pod}")
    return PodSpec(uid=uid, runtime_uid=uid, namespace=namespace, name=pod, qos=qos, containers={name: mine})


def annotated(short: Mapping[str, str]) -> Mapping[str, str]:
    """Return annotations with their domain: ``key``, ``key/pod`` or ``key/container.name``."""
    found = {}
    for name, value in short.items():
        key, slash, scope = name.partition("/")
        found[f"{key}.{Rules().annotation_domain}{slash}{scope}"] = value
    return found


def claim_env(grant: ClaimGrant) -> Mapping[str, str]:
    """Return the variables that the CDI spec of a claim sets."""
    env = {f"{ENV_PREFIX}{grant.uid}": str(grant.cpus)}
    for result in grant.results:
        request = result.request.replace("/", "_").replace("-", "_")
        env[f"{ENV_PREFIX}{grant.uid}_{request}"] = str(grant.request_cpus(result.base_request))
    return env


def prepare(books: Books, wanted: AllocatedClaim) -> ClaimGrant:
    """Decide a claim and take it into the books, with the lifts that make room for it."""
    grant = claim_grant(books.ledger, books.machine, books.rules, wanted)
    books.ledger.apply(Change(put_claims=(grant,), put_containers=make_room(books.ledger, grant.cpus)))
    return grant


def release(books: Books, *grants: ClaimGrant) -> None:
    """Take claims out of the books."""
    books.ledger.apply(Change(drop_claims=tuple(grant.uid for grant in grants)))


def create(
    books: Books,
    pod: str = "web",
    *,
    mcpu: int | None = None,
    qos: QoS | None = None,
    claims: Sequence[ClaimGrant] = (),
    namespace: str = "shop",
    name: str = "app",
    limit_mcpu: int | None = None,
    memory_bytes: int | None = None,
    annotations: Mapping[str, str] | None = None,
    pull: Pull = NO_PULL,
) -> ContainerGrant:
    """Create a container whose pod holds these claims, and take it into the books.

    Without ``qos``: BestEffort without a request, else Guaranteed. ``annotations`` go without their domain.
    """
    if qos is None:
        qos = QoS.BEST_EFFORT if mcpu is None else QoS.GUARANTEED
    refs = [ClaimRef(claim=grant.name) for grant in claims]
    spec = pod_spec(pod, namespace=namespace, qos=qos, mcpu=mcpu, claims=refs, name=name)
    limited = replace(spec.containers[name], limit_mcpu=limit_mcpu, limit_memory_bytes=memory_bytes)
    spec = replace(spec, containers={name: limited})
    env = {key: value for grant in claims for key, value in claim_env(grant).items()}
    box, made = sandbox(pod, namespace=namespace), container(name, pod=pod, env=env)
    held = links_of(books.ledger, books.rules, box, made, spec).held
    claimed = union(link.cpus for link in held)
    asked = preferences_of(books.rules, namespace, name, annotated(annotations or {}))
    assert not asked.problems
    request = request_of(
        books.rules,
        box,
        made,
        spec,
        claimed,
        reserved=bool(books.usable.reserved),
        preferences=asked.preferences,
    )
    request = replace(request, pull=pull)
    grant = container_grant(books.ledger, books.machine, books.rules, box, made, held, request)
    books.ledger.apply(Change(put_containers=(grant, *make_memory_room(books.ledger, grant))))
    return grant


def remove(books: Books, *grants: ContainerGrant) -> None:
    """Take containers out of the books."""
    books.ledger.apply(Change(drop_containers=tuple(grant.id for grant in grants)))


def runs_on(books: Books, grant: ContainerGrant) -> CpuSet:
    """Return where a container runs now, by the books (its present grant, which may have been lifted)."""
    where = placement(books.ledger, books.ledger.containers[grant.id])
    assert where is not None
    return where.cpus


def mems_of(books: Books, grant: ContainerGrant) -> str:
    """Return a container's memory nodes by the books."""
    where = placement(books.ledger, books.ledger.containers[grant.id])
    assert where is not None
    return str(where.mems)


def cpus(text: str) -> CpuSet:
    """Return a CPU list as a set."""
    return CpuSet.parse(text)
