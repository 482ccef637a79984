"""Kubernetes objects from a file, as the API server would have stored them (pure).

A file may lack what the API server adds: a namespace, a UID, requests where only limits are given, the QoS class. A
controller's template counts as one of its pods. Nothing is checked here that decoding checks anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from nodecpu.errors import BadRequest
from nodecpu.policy.facts import QoS
from nodecpu.quantity import parse_quantity

_Object = dict[str, object]

_MOST: Final = 64
_COMPUTE: Final = ("cpu", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A claim or a pod, as JSON that the decoders take."""

    kind: Literal["claim", "pod"]
    namespace: str
    name: str
    uid: str
    data: bytes


def admitted(objects: Sequence[bytes]) -> tuple[Admitted, ...]:
    """Return the claims and pods of some objects (JSON), claims first; raises BadRequest for anything else."""
    plain = [one for data in objects for one in _items(_decoded(data))]
    if not plain:
        raise BadRequest("there is no object to try", hint="give a ResourceClaim with its allocation, or a pod")
    if len(plain) > _MOST:
        raise BadRequest(f"{len(plain)} objects are more than are tried at once ({_MOST})")
    made = [_named(one, number) for number, one in enumerate(plain, 1)]
    return tuple(sorted(made, key=lambda one: one.kind != "claim"))


def _decoded(data: bytes) -> _Object:
    try:
        return msgspec.json.decode(data, type=_Object)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"not a Kubernetes object: {str(error)[:200]}") from error


def _items(one: _Object) -> Iterator[_Object]:
    items = one.get("items")
    if isinstance(items, list) and str(one.get("kind", "")).endswith("List"):
        yield from (item for item in items if isinstance(item, dict))
    else:
        yield one


def _named(one: _Object, number: int) -> Admitted:
    """Return one object with what the API server adds; what is wrong with it is told with its number and name."""
    try:
        return _admit(one, f"00000000-0000-4000-8000-{number:012d}")
    except BadRequest as error:
        name = str(_part(one, "metadata").get("name", ""))[:253]
        what = f"object {number}{f', {name}' if name else ''}"
        raise BadRequest(f"{what}: {error.message}", hint=error.hint) from error


def _admit(one: _Object, uid: str) -> Admitted:
    kind = str(one.get("kind", ""))
    spec = _part(one, "spec")
    if kind == "CronJob":
        spec = _part(_part(spec, "jobTemplate"), "spec")
    template = _part(spec, "template")
    if kind == "ResourceClaim":
        metadata = _metadata(_part(one, "metadata"), {}, uid)
        return _made("claim", metadata, {**one, "metadata": metadata})
    if kind == "Pod":
        return _made("pod", metadata := _metadata(_part(one, "metadata"), {}, uid), _pod(one, metadata))
    if "containers" in _part(template, "spec"):
        metadata = _metadata(_part(template, "metadata"), _part(one, "metadata"), uid)
        return _made("pod", metadata, _pod(template, metadata))
    raise BadRequest(
        f"{kind[:64] or 'an object without kind'} cannot be tried",
        hint="give a ResourceClaim with its allocation, a pod, or what makes pods, such as a Deployment",
    )


def _made(kind: Literal["claim", "pod"], metadata: Mapping[str, object], one: _Object) -> Admitted:
    namespace, name, uid = (str(metadata[key]) for key in ("namespace", "name", "uid"))
    return Admitted(kind=kind, namespace=namespace, name=name, uid=uid, data=msgspec.json.encode(one))


def _metadata(given: Mapping[str, object], owner: Mapping[str, object], uid: str) -> _Object:
    """Return metadata with what the API server would have filled in; a template's pod is named like its owner."""
    name = given.get("name") or given.get("generateName") or owner.get("name") or "unnamed"
    namespace = given.get("namespace") or owner.get("namespace") or "default"
    return {**given, "name": str(name).rstrip("-"), "namespace": namespace, "uid": given.get("uid") or uid}


def _pod(one: _Object, metadata: _Object) -> _Object:
    """Return a pod with requests as the API server fills them in, and its QoS class. Source: core/v1 defaults."""
    spec = dict(_part(one, "spec"))
    for group in ("initContainers", "containers"):
        if isinstance(listed := spec.get(group), list):
            spec[group] = [_defaulted(c) if isinstance(c, dict) else c for c in listed]
    status = {"qosClass": _qos(spec).value, **_part(one, "status")}
    return {"metadata": metadata, "spec": spec, "status": status}


def _defaulted(container: _Object) -> _Object:
    resources = _part(container, "resources")
    requests = {**_part(resources, "limits"), **_part(resources, "requests")}
    return {**container, "resources": {**resources, "requests": requests}} if requests else container


def _qos(spec: Mapping[str, object]) -> QoS:
    """Return the class by the rules of the API server. Source: pkg/apis/core/v1/helper/qos, ComputePodQOS."""
    whole = _part(spec, "resources")
    parts = [whole] if _amounts(whole, "limits") or _amounts(whole, "requests") else list(_resources(spec))
    if not any(_amounts(part, key) for part in parts for key in ("requests", "limits")):
        return QoS.BEST_EFFORT
    limits = [_amounts(part, "limits") for part in parts]
    if all(len(one) == len(_COMPUTE) for one in limits) and [_amounts(p, "requests") for p in parts] == limits:
        return QoS.GUARANTEED
    return QoS.BURSTABLE


def _resources(spec: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    for group in ("initContainers", "containers"):
        listed = spec.get(group)
        for container in listed if isinstance(listed, list) else ():
            yield _part(container, "resources") if isinstance(container, dict) else {}


def _amounts(resources: Mapping[str, object], key: str) -> Mapping[str, int]:
    """Return the amounts of CPU and memory that are more than nothing."""
    part = _part(resources, key)
    try:
        found = {name: parse_quantity(str(part[name])) for name in _COMPUTE if name in part}
    except ValueError as error:
        raise BadRequest(f"{key} cannot be read: {error}") from error
    return {name: amount for name, amount in found.items() if amount > 0}


def _part(one: Mapping[str, object], key: str) -> _Object:
    value = one.get(key)
    return value if isinstance(value, dict) else {}
