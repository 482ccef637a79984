"""Which container holds which claim (pure; L1 to L3).

A link is proved by the CDI device names that the runtime shows, or by the variable of the CDI spec together with the
pod's spec: a pod can write the variable itself, but it cannot make its own spec reference a claim that it was not
given. What is not proved gives nothing: it is reported, so that it can be counted and logged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodecpu.cpuset import CpuSet, union
from nodecpu.errors import ClaimConflict, NotReady
from nodecpu.ids import ClaimUID
from nodecpu.policy.facts import ClaimRef, Container, PodSpec, Sandbox
from nodecpu.policy.grants import ClaimGrant, Link
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.rules import Rules, Sharing

ENV_PREFIX = "DRA_CPUSET_"
UID_LENGTH = 36
"""Length of a Kubernetes UID (RFC 4122 text form); what follows it in a variable's name is a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What a container holds, and the names of variables or devices that gave it nothing."""

    held: tuple[Link, ...]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Named:
    """Claims that a container names: whole, or by CDI device index; and what it names in vain."""

    by_variable: Mapping[ClaimUID, None]
    by_device: Mapping[ClaimUID, tuple[int, ...]]
    ignored: tuple[str, ...]


def links_of(ledger: Ledger, rules: Rules, sandbox: Sandbox, container: Container, spec: PodSpec | None) -> Links:
    """Return a container's links, in order of claim UID.

    Raises NotReady where a retry can help: a correct variable of a pod that is not known yet, and a claim that the
    pod's spec references but that the runtime did not inject (never taken for a shared container). Raises ClaimConflict
    where two claims of one name are shown, or where ``claims.sharing`` forbids a further holder.
    """
    _require_proven(ledger, sandbox, container, spec)
    named = _named(ledger, rules, container)
    held: list[Link] = []
    ignored = list(named.ignored)
    for uid in sorted({*named.by_variable, *named.by_device}):
        claim = ledger.claims[uid]
        refs = _references(claim, sandbox, container, spec)
        if uid in named.by_device and (refs or refs is None):
            held.append(_link_by_device(claim, named.by_device[uid]))
        elif refs is None:
            raise NotReady(
                f"container {sandbox.namespace}/{sandbox.name}/{container.name} shows claim"
                f" {claim.namespace}/{claim.name}, but its pod's spec is not known yet",
                hint="it is created again by the kubelet; if it stays, check the daemon's link to the API server",
            )
        elif refs:
            held.append(_link_by_reference(claim, refs))
        else:
            ignored.append(ENV_PREFIX + uid)
    _require_one_of_a_name(ledger, sandbox, container, held)
    links = tuple(link for link in held if link.cpus)
    _require_injected(ledger, sandbox, container, spec, {ledger.claims[link.claim_uid].name for link in held})
    for link in links:
        _check_sharing(ledger, rules, sandbox, container, link)
    return Links(held=links, ignored=tuple(ignored))


def require_present(ledger: Ledger, sandbox: Sandbox, container: Container, held: Iterable[Link]) -> None:
    """Raise NotReady if not a single CPU of a claim is online: its container is never taken for a shared one (T6).

    A link to no CPUs at all is none (C13): ``links_of`` returns none of these.
    """
    for link in held:
        if not ledger.tree.present(link.cpus):
            raise NotReady(
                f"container {sandbox.namespace}/{sandbox.name}/{container.name}: all CPUs of claim"
                f" {ledger.claims[link.claim_uid].name} ({link.cpus}) are offline",
                hint="bring them online, or delete the pods and the claim, to be allocated anew",
            )


def _named(ledger: Ledger, rules: Rules, container: Container) -> _Named:
    devices: dict[ClaimUID, tuple[int, ...]] = {}
    variables: dict[ClaimUID, None] = {}
    by_request: list[tuple[str, ClaimUID]] = []
    ignored: list[str] = []
    kind = f"{rules.driver}/cpu=claim-"
    for name in container.cdi_devices:
        if not name.startswith(kind):
            continue
        claim = _live(ledger, name.removeprefix(kind)[:UID_LENGTH])
        index = None if claim is None else _result_index(claim, name.removeprefix(kind))
        if claim is None or index is None:
            ignored.append(name)
        else:
            devices[claim.uid] = (*devices.get(claim.uid, ()), index)
    for name, value in container.claim_env.items():
        text = name.removeprefix(ENV_PREFIX)
        claim = _live(ledger, text[:UID_LENGTH])
        rest = text[UID_LENGTH:]
        if claim is None or (granted := _expected(claim, rest)) is None or _parse(value) != granted:
            ignored.append(name)
        elif rest:
            by_request.append((name, claim.uid))
        else:
            variables[claim.uid] = None
    # A request's variable says nothing without the claim's own.
    ignored += [name for name, uid in by_request if uid not in variables]
    return _Named(by_variable=variables, by_device=devices, ignored=tuple(ignored))


def _result_index(claim: ClaimGrant, device: str) -> int | None:
    """Return which result a CDI device (``<uid>-<index>``) stands for; None if it is none of the claim's."""
    return next((i for i in range(len(claim.results)) if device == f"{claim.uid}-{i}"), None)


def _live(ledger: Ledger, uid: str) -> ClaimGrant | None:
    claim = ledger.claims.get(ClaimUID(uid))
    return None if claim is None or claim.released or claim.moved or claim.unproven else claim


def _parse(value: str) -> CpuSet | None:
    try:
        return CpuSet.parse(value)
    except ValueError:
        return None


def _expected(claim: ClaimGrant, rest: str) -> CpuSet | None:
    """Return what the variable should say: the claim's CPUs, or those of the request named by ``_<request>``."""
    if not rest:
        return claim.cpus
    cpus = [result.cpus for result in claim.results if rest == request_suffix(result.request)]
    return union(cpus) if cpus else None


def request_suffix(request: str) -> str:
    """Return what the CDI spec puts behind a claim's variable for one request (C11)."""
    return "_" + request.replace("/", "_").replace("-", "_")


def _references(
    claim: ClaimGrant, sandbox: Sandbox, container: Container, spec: PodSpec | None
) -> tuple[ClaimRef, ...] | None:
    """Return the references of this very container to the claim; None where the spec cannot tell (yet)."""
    if spec is None:
        return None
    if sandbox.namespace != claim.namespace or container.name not in spec.containers:
        return ()
    refs = spec.containers[container.name].claims
    found = tuple(ref for ref in refs if ref.claim == claim.name)
    if not found and any(ref.claim is None for ref in refs):
        return None  # a generated claim's name that has not reached us
    return found


def _link_by_device(claim: ClaimGrant, indexes: tuple[int, ...]) -> Link:
    if len(set(indexes)) == len(claim.results):
        return Link(claim_uid=claim.uid, cpus=claim.cpus)
    return _link_requests(claim, {claim.results[i].base_request for i in indexes})


def _link_by_reference(claim: ClaimGrant, refs: tuple[ClaimRef, ...]) -> Link:
    requests = {ref.request for ref in refs if ref.request is not None}
    if len(requests) < len({ref.request for ref in refs}):
        return Link(claim_uid=claim.uid, cpus=claim.cpus)
    return _link_requests(claim, requests)


def _link_requests(claim: ClaimGrant, requests: set[str]) -> Link:
    """Return the link to some requests of a claim (L2)."""
    cpus = union(claim.request_cpus(request) for request in requests)
    return Link(claim_uid=claim.uid, cpus=cpus, requests=tuple(sorted(requests)))


def _require_proven(ledger: Ledger, sandbox: Sandbox, container: Container, spec: PodSpec | None) -> None:
    """Raise NotReady if the container shows a claim that is not proven yet, unless its spec references none (R2)."""
    mine = spec.containers.get(container.name) if spec is not None else None
    if mine is not None and not mine.claims:
        return
    shown = [*(name.removeprefix(ENV_PREFIX) for name in container.claim_env)]
    shown += [name.partition("=claim-")[2] for name in container.cdi_devices]
    for text in shown:
        claim = ledger.claims.get(ClaimUID(text[:UID_LENGTH]))
        if claim is not None and claim.unproven and not claim.released:
            raise NotReady(
                f"container {sandbox.namespace}/{sandbox.name}/{container.name} shows claim UID {claim.uid},"
                " which the API server has not confirmed yet",
                hint="it is confirmed when the API server answers; if this stays, check the daemon's link to it",
            )


def _require_one_of_a_name(ledger: Ledger, sandbox: Sandbox, container: Container, held: list[Link]) -> None:
    """Raise ClaimConflict if two claims of one name are shown: only one of them can be the pod's (C6)."""
    names = [ledger.claims[link.claim_uid].name for link in held]
    for name in names:
        if names.count(name) > 1:
            raise ClaimConflict(
                f"container {sandbox.namespace}/{sandbox.name}/{container.name} shows two claims of the name {name}",
                hint="a container sets no DRA_CPUSET_ variable by itself; remove it from the pod",
            )


def _require_injected(
    ledger: Ledger, sandbox: Sandbox, container: Container, spec: PodSpec | None, met: set[str]
) -> None:
    """Raise NotReady if the spec references a prepared claim, not ``met`` by name, that the container does not show."""
    mine = spec.containers.get(container.name) if spec is not None else None
    for ref in () if mine is None else mine.claims:
        if ref.claim is None or ref.claim in met:
            continue
        for claim in ledger.claims.values():
            if claim.released or (claim.namespace, claim.name) != (sandbox.namespace, ref.claim):
                continue
            if claim.cpus if ref.request is None else claim.request_cpus(ref.request):
                raise NotReady(
                    f"container {sandbox.namespace}/{sandbox.name}/{container.name} references claim {claim.name},"
                    " but the runtime injected neither its CDI device nor its variable",
                    hint="turn CDI on in the container runtime and give it the CDI directory of [paths] cdi",
                )


def _check_sharing(ledger: Ledger, rules: Rules, sandbox: Sandbox, container: Container, link: Link) -> None:
    if rules.sharing is Sharing.ALLOW:
        return
    for other in ledger.holders(link.claim_uid):
        same_pod = other.pod_uid == sandbox.uid
        if same_pod and (rules.sharing is Sharing.POD or other.name == container.name):
            continue  # the latter is this container's predecessor
        claim = ledger.claims[link.claim_uid]
        # Whoever sees this event need not know of other pods.
        holder = f"container {other.name} of this pod" if same_pod else "another pod"
        raise ClaimConflict(
            f"claim {claim.namespace}/{claim.name} is held by {holder} already",
            hint=f'claims.sharing = "{rules.sharing.value}" allows no further holder: use a claim of its own',
        )
