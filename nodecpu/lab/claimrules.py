"""What an API server refuses in a ResourceClaim (pure): in a new one, in a changed one, in a changed status; and in a
DeviceClass, whose parts are the same.

Invariants: faults begin with the field's path, lists go by numbers as in a real server's answers; a status is judged by
the spec that is stored.
Source: pkg/apis/resource/validation/validation.go and pkg/registry/resource/resourceclaim of Kubernetes 1.36; limits:
resource/v1 types.go. Quantities and types are refused there while decoding; signs of quantities are not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from nodecpu.lab.jsontree import Json, JsonObject, leaf, node, nodes, text
from nodecpu.lab.slicerules import LABEL, SUBDOMAIN

_MOST_REQUESTS: Final = 32
_MOST_ALTERNATIVES: Final = 8
_MOST_RESULTS: Final = 32
_MOST_CONFIG: Final = 32
_MOST_SELECTORS: Final = 32
_MOST_CONSUMERS: Final = 256
_MOST_PARAMETER_BYTES: Final = 10 << 10
_QUANTITY: Final = re.compile(
    r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)(n|u|m|k|M|G|T|P|E|[KMGTPE]i|[eE][+-]?[0-9]+)?", re.ASCII
)
"""Source: ParseQuantity of apimachinery pkg/api/resource."""


def claim_faults(body: Mapping[str, Json], old: Mapping[str, Json] | None = None, *, status: bool = False) -> list[str]:
    """Return what an API server would refuse in a claim, which replaces ``old`` if there is one, as sentences.

    With ``status`` only the status of ``old`` is replaced; else the status is not looked at, since it is not stored.
    """
    if old is None:
        return [*name_faults(body), *_spec_faults(node(body, "spec", "devices"))]
    if status:
        return list(_status_faults(node(body, "status"), old))
    return [] if node(body, "spec") == node(old, "spec") else ["spec: Invalid value: field is immutable"]


def name_faults(body: Mapping[str, Json]) -> Iterator[str]:
    """Yield what is wrong with a new object's name or the beginning of it: of most kinds it is a DNS subdomain.

    Source: NameIsDNSSubdomain of apimachinery pkg/api/validation, which claims, slices, classes, events, nodes and pods
    are judged by.
    """
    name, prefix = text(body, "metadata", "name"), text(body, "metadata", "generateName")
    if (name or not prefix) and not _is_subdomain(name):
        yield f"metadata.name: Invalid value: {name!r}"
    if prefix and not _is_subdomain(prefix[:-1] + "a" if prefix.endswith("-") else prefix):
        yield f"metadata.generateName: Invalid value: {prefix!r}"


def _is_subdomain(name: str) -> bool:
    return len(name) <= 253 and SUBDOMAIN.fullmatch(name) is not None


def class_faults(body: Mapping[str, Json]) -> Iterator[str]:
    """Yield what an API server would refuse in the spec of a DeviceClass, as sentences."""
    selectors = nodes(body, "spec", "selectors")
    if len(selectors) > _MOST_SELECTORS:
        yield f"spec.selectors: Too many: {len(selectors)}: must have at most {_MOST_SELECTORS} items"
    for number, selector in enumerate(selectors):
        if not text(selector, "cel", "expression"):
            yield f"spec.selectors[{number}].cel.expression: Required value"
    yield from _config_faults(node(body, "spec"), "spec.config", most=_MOST_CONFIG)


def _spec_faults(devices: JsonObject) -> Iterator[str]:
    where, requests = "spec.devices.requests", nodes(devices, "requests")
    yield from _named_faults(requests, where, most=_MOST_REQUESTS)
    for number, request in enumerate(requests):
        yield from _request_faults(request, f"{where}[{number}]")
    yield from _config_faults(devices, "spec.devices.config", most=_MOST_CONFIG)


def _named_faults(requests: list[JsonObject], where: str, *, most: int) -> Iterator[str]:
    """Yield what is wrong with the number and the names of requests."""
    if len(requests) > most:
        yield f"{where}: Too many: {len(requests)}: must have at most {most} items"
    seen: set[str] = set()
    for number, request in enumerate(requests):
        name = text(request, "name")
        if not LABEL.fullmatch(name):
            yield f"{where}[{number}].name: Invalid value: {name!r}"
        if name in seen:
            yield f"{where}[{number}]: Duplicate value: {name!r}"
        seen.add(name)


def _request_faults(request: JsonObject, where: str) -> Iterator[str]:
    alternatives = nodes(request, "firstAvailable")
    is_exact = request.get("exactly") is not None
    if is_exact is bool(alternatives):
        fault = "Invalid value" if is_exact else "Required value"
        yield f"{where}: {fault}: exactly one of `exactly` or `firstAvailable` is required"
        return
    if is_exact:
        yield from _capacity_faults(node(request, "exactly"), f"{where}.exactly")
        return
    yield from _named_faults(alternatives, f"{where}.firstAvailable", most=_MOST_ALTERNATIVES)
    for number, one in enumerate(alternatives):
        yield from _capacity_faults(one, f"{where}.firstAvailable[{number}]")


def _capacity_faults(request: JsonObject, where: str) -> Iterator[str]:
    for name, value in node(request, "capacity", "requests").items():
        if value is not None and (isinstance(value, bool) or not _QUANTITY.fullmatch(str(value))):
            yield f"{where}.capacity.requests[{name}]: Invalid value: {value!r}: not a quantity"


def _config_faults(devices: JsonObject, where: str, *, most: int) -> Iterator[str]:
    """Yield what is wrong with configuration; the length of parameters is that of their shortest form."""
    entries = nodes(devices, "config")
    if len(entries) > most:
        yield f"{where}: Too many: {len(entries)}: must have at most {most} items"
    for number, entry in enumerate(entries):
        parameters = leaf(entry, "opaque", "parameters")
        length = len(json.dumps(parameters, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))
        if not isinstance(parameters, Mapping):
            yield f"{where}[{number}].opaque.parameters: Invalid value: must be a JSON object"
        elif length > _MOST_PARAMETER_BYTES:
            yield f"{where}[{number}].opaque.parameters: Too long: may not be more than {_MOST_PARAMETER_BYTES} bytes"


def _status_faults(status: JsonObject, old: Mapping[str, Json]) -> Iterator[str]:
    users = nodes(status, "reservedFor")
    if len(users) > _MOST_CONSUMERS:
        yield f"status.reservedFor: Too many: {len(users)}: must have at most {_MOST_CONSUMERS} items"
    if len({text(user, "uid") for user in users}) < len(users):
        yield "status.reservedFor: Duplicate value"
    is_allocated = status.get("allocation") is not None
    if users and not is_allocated:
        yield "status.reservedFor: Forbidden: may not be specified when `allocated` is not set"
    if not is_allocated:
        return
    allocation = node(status, "allocation")
    if leaf(old, "status", "allocation") is None:
        yield from _allocation_faults(node(allocation, "devices"), old)
    elif allocation != node(old, "status", "allocation"):
        yield "status.allocation: Invalid value: field is immutable"


def _allocation_faults(devices: JsonObject, claim: Mapping[str, Json]) -> Iterator[str]:
    where, results = "status.allocation.devices.results", nodes(devices, "results")
    if len(results) > _MOST_RESULTS:
        yield f"{where}: Too many: {len(results)}: must have at most {_MOST_RESULTS} items"
    known = set(_names(claim))
    for number, result in enumerate(results):
        if (name := text(result, "request")) not in known:
            yield f"{where}[{number}].request: Invalid value: {name!r}: must be the name of a request in the claim"
    yield from _config_faults(devices, "status.allocation.devices.config", most=2 * _MOST_CONFIG)


def _names(claim: Mapping[str, Json]) -> Iterator[str]:
    """Yield what results may call a claim's requests: ``main`` and ``main/sub``."""
    for request in nodes(claim, "spec", "devices", "requests"):
        name = text(request, "name")
        yield name
        yield from (f"{name}/{text(one, 'name')}" for one in nodes(request, "firstAvailable"))
