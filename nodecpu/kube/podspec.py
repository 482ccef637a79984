"""A pod as the API server stores it becomes a PodSpec (pure; N1).

Amounts are what the spec asks for, never what a cgroup shows. A pod that cannot be read in full is refused as a whole:
half a spec would make a container look less entitled, or more, than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from nodecpu.errors import BadRequest
from nodecpu.ids import PodUID
from nodecpu.policy.facts import ClaimRef, ContainerKind, ContainerSpec, PodSpec, QoS
from nodecpu.quantity import parse_milli, parse_units

MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"
"""On a static pod's mirror: the UID that the kubelet and the runtime use. Source: pkg/kubelet/types."""

_NOT_KEPT: Final = "kubectl.kubernetes.io/last-applied-configuration"

_Amounts = Mapping[str, str | int]


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    uid: str
    namespace: str
    name: str
    annotations: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None
    deletion: str | None = msgspec.field(name="deletionTimestamp", default=None)


class _ContainerClaim(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    request: str | None = None


class _Resources(msgspec.Struct, frozen=True, kw_only=True):
    requests: _Amounts | None = None
    limits: _Amounts | None = None
    claims: tuple[_ContainerClaim, ...] | None = None


class _Container(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    resources: _Resources | None = None
    restart_policy: str | None = None


class _PodClaim(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    resource_claim_name: str | None = None


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    containers: tuple[_Container, ...] | None = None
    init_containers: tuple[_Container, ...] | None = None
    ephemeral_containers: tuple[_Container, ...] | None = None
    resource_claims: tuple[_PodClaim, ...] | None = None
    resources: _Resources | None = None


class _Named(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class _Counted(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the scheduler took from the node for a claim: ``resources`` in 1.36, ``mapping`` in 1.37."""

    resource_claim_name: str
    resources: Mapping[str, object] | None = None
    mapping: tuple[_Named, ...] | None = None

    @property
    def is_cpu(self) -> bool:
        return "cpu" in (self.resources or ()) or any(one.name == "cpu" for one in self.mapping or ())


class _Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    qos_class: str | None = None
    resource_claim_statuses: tuple[_PodClaim, ...] | None = None
    node_allocatable_resource_claim_statuses: msgspec.Raw = msgspec.Raw(b"null")


class _Pod(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: _Spec
    status: _Status = _Status()


_DECODER: Final = msgspec.json.Decoder(_Pod)


def decode_pod(data: bytes | msgspec.Raw) -> PodSpec:
    """Return the pod of a JSON object; raises BadRequest for anything that is none. Source: core/v1 Pod."""
    try:
        pod = _DECODER.decode(data)
        return _pod_spec(pod)
    except (msgspec.MsgspecError, UnicodeError, RecursionError, ValueError) as error:
        raise BadRequest(f"not a pod: {str(error)[:200]}") from error


def _pod_spec(pod: _Pod) -> PodSpec:
    meta, spec = pod.metadata, pod.spec
    annotations = {key: value for key, value in (meta.annotations or {}).items() if key != _NOT_KEPT}
    # The name of a claim made from a template is in the status only; the spec's own names cannot be overruled there.
    claims = {one.name: one.resource_claim_name for one in pod.status.resource_claim_statuses or ()}
    claims |= {one.name: one.resource_claim_name for one in spec.resource_claims or () if one.resource_claim_name}
    containers = [
        _container(one, kind, claims)
        for group, kind in (
            (spec.init_containers, ContainerKind.INIT),
            (spec.containers, ContainerKind.ORDINARY),
            (spec.ephemeral_containers, ContainerKind.EPHEMERAL),
        )
        for one in group or ()
    ]
    return PodSpec(
        uid=PodUID(meta.uid),
        runtime_uid=PodUID(annotations.get(MIRROR_ANNOTATION, meta.uid)),
        namespace=meta.namespace,
        name=meta.name,
        qos=_qos(pod.status.qos_class, containers),
        containers={one.name: one for one in containers},
        annotations=annotations,
        labels=dict(meta.labels or {}),
        pod_request_mcpu=_amount(spec.resources, "requests", "cpu", parse_milli),
        pod_limit_mcpu=_amount(spec.resources, "limits", "cpu", parse_milli),
        terminating=meta.deletion is not None,
        counted_claims=_counted(pod.status.node_allocatable_resource_claim_statuses),
    )


def _counted(told: msgspec.Raw) -> frozenset[str]:
    """Return the claims that the scheduler counted as CPU requests; none where that is told in another form.

    The field is alpha: a pod must not be unreadable for it. Source: core/v1 types.go of 1.36 and 1.37 (KEP-5517).
    """
    try:
        entries = msgspec.json.decode(told, type=tuple[_Counted, ...] | None)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return frozenset()
    return frozenset(one.resource_claim_name for one in entries or () if one.is_cpu)


def _container(one: _Container, kind: ContainerKind, claims: Mapping[str, str | None]) -> ContainerSpec:
    if kind is ContainerKind.INIT and one.restart_policy == "Always":
        kind = ContainerKind.SIDECAR
    references = (one.resources.claims or ()) if one.resources else ()
    return ContainerSpec(
        name=one.name,
        kind=kind,
        request_mcpu=_amount(one.resources, "requests", "cpu", parse_milli),
        limit_mcpu=_amount(one.resources, "limits", "cpu", parse_milli),
        request_memory_bytes=_amount(one.resources, "requests", "memory", parse_units),
        limit_memory_bytes=_amount(one.resources, "limits", "memory", parse_units),
        claims=tuple(ClaimRef(claim=claims.get(ref.name), request=ref.request or None) for ref in references),
    )


def _amount(resources: _Resources | None, part: str, resource: str, parse: Callable[[str], int]) -> int | None:
    amounts: _Amounts | None = getattr(resources, part, None)
    value = (amounts or {}).get(resource)
    return None if value is None else parse(str(value))


def _qos(told: str | None, containers: list[ContainerSpec]) -> QoS:
    """Return the class the API server worked out; without it nothing exclusive is inferred."""
    try:
        return QoS(told)
    except ValueError:
        asks = any(one.request_mcpu or one.limit_mcpu or one.request_memory_bytes for one in containers)
        return QoS.BURSTABLE if asks else QoS.BEST_EFFORT
