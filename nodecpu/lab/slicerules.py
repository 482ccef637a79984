"""What an API server makes of a ResourceSlice (pure): the fields it drops, by version and gates, and what it refuses.

Source: pkg/apis/resource/validation and pkg/registry/resource/resourceslice of Kubernetes 1.36; resource/v1 types.go of
1.36 and 1.37; feature gates with their defaults per version. Signs are looked at where a step is given, as a server of
1.37 does: to earlier ones a step of zero is a division by zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from nodecpu.lab.jsontree import Json, JsonObject, leaf, node, text, view, views
from nodecpu.lab.podspec import signed

OLDEST: Final = 34
"""Minor version of the first Kubernetes with resource.k8s.io/v1."""

_ON_FROM: Final[Mapping[str, int | None]] = MappingProxyType(
    {
        "DRAConsumableCapacity": 36,
        "DRADeviceTaints": 36,
        "DRAPartitionableDevices": 36,
        "DRADeviceBindingConditions": 36,
        "DRAListTypeAttributes": None,
        "DRANodeAllocatableResources": None,
    }
)
"""The minor version from which a gate is on by default; None: it is off so far."""

_OF_GATE: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "DRAConsumableCapacity": ("allowMultipleAllocations",),
        "DRADeviceTaints": ("taints",),
        "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
        "DRADeviceBindingConditions": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    }
)
"""Fields of a device that are kept while a gate is on."""

_LISTS: Final = ("ints", "bools", "strings", "versions")
_SCALARS: Final = ("int", "bool", "string", "version")
_EFFECTS: Final = ("NoSchedule", "NoExecute", "None")
_NODE_RESOURCES: Final = re.compile(r"cpu|memory|ephemeral-storage|hugepages-.+")
SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}", re.ASCII)
_SELECTIONS: Final = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """A Kubernetes 1.``minor`` with some gates not as they are by default."""

    minor: int = 36
    gates: Mapping[str, bool] = field(default_factory=dict)

    def has(self, gate: str) -> bool:
        """Return whether a gate is on."""
        since = _ON_FROM.get(gate)
        return self.gates.get(gate, since is not None and self.minor >= since)


DEFAULT: Final = Features()


def known_gates() -> tuple[str, ...]:
    """Return the names of the gates that make a difference here."""
    return tuple(_ON_FROM)


def kept(body: Mapping[str, Json], features: Features) -> JsonObject:
    """Return a slice without the fields that a server with these features drops, without an error."""
    spec = node(body, "spec")
    if "devices" in spec:
        spec["devices"] = [_kept_device(device, features) for device in views(spec, "devices")]
    return {**node(body), "spec": spec}


def _kept_device(device: Mapping[str, Json], features: Features) -> JsonObject:
    fields = {"name", "attributes", "capacity"}
    for gate, names in _OF_GATE.items():
        fields |= set(names) if features.has(gate) else set()
    if features.has("DRANodeAllocatableResources") and features.minor >= 36:
        fields.add("nodeAllocatableResources" if features.minor >= 37 else "nodeAllocatableResourceMappings")
    found = {key: value for key, value in device.items() if key in fields}
    values = set(_SCALARS) | (set(_LISTS) if features.has("DRAListTypeAttributes") else set())
    if attributes := view(device, "attributes"):
        found["attributes"] = {name: _only(view(attributes, name), values) for name in attributes}
    if capacity := view(device, "capacity"):
        parts = {"value", "requestPolicy"} if features.has("DRAConsumableCapacity") else {"value"}
        found["capacity"] = {name: _only(view(capacity, name), parts) for name in capacity}
    return found


def _only(value: Mapping[str, Json], names: Iterable[str]) -> JsonObject:
    return {key: child for key, child in value.items() if key in names}


def slice_faults(body: Mapping[str, Json], old: Mapping[str, Json] | None = None) -> list[str]:
    """Return what an API server would refuse in a slice, which replaces ``old`` if there is one, as sentences."""
    return [f"spec.{fault}" for fault in (*_spec_faults(view(body, "spec")), *_changed(view(body, "spec"), old))]


def _changed(spec: Mapping[str, Json], old: Mapping[str, Json] | None) -> Iterator[str]:
    for path in (("driver",), ("pool", "name"), ("nodeName",)):
        if old is not None and leaf(old, "spec", *path) != leaf(spec, *path):
            yield f"{'.'.join(path)}: field is immutable"


def _spec_faults(spec: Mapping[str, Json]) -> Iterator[str]:
    driver, pool, devices = text(spec, "driver"), text(spec, "pool", "name"), views(spec, "devices")
    if len(driver) > 63 or not SUBDOMAIN.fullmatch(driver):
        yield f"driver: Invalid value: {driver!r}"
    if len(pool) > 253 or not all(SUBDOMAIN.fullmatch(part) for part in pool.split("/")):
        yield f"pool.name: Invalid value: {pool!r}"
    generation, count = leaf(spec, "pool", "generation"), leaf(spec, "pool", "resourceSliceCount")
    if not isinstance(generation, int) or generation < 0:
        yield "pool.generation: must be greater than or equal to zero"
    if not isinstance(count, int) or count < 1:
        yield "pool.resourceSliceCount: must be greater than zero"
    if sum(bool(spec.get(name)) for name in _SELECTIONS) != 1:
        yield f"exactly one of {', '.join(_SELECTIONS)} is required"
    if "sharedCounters" in spec and "devices" in spec:
        yield "only one of devices, sharedCounters can be set"
    limit = 64 if any(_is_heavy(device) for device in devices) else 128
    if len(devices) > limit:
        yield f"devices: Too many: {len(devices)}: must have at most {limit} items"
    names = [text(device, "name") for device in devices]
    yield from (f"devices: Duplicate value: {name!r}" for name in sorted(set(names)) if names.count(name) > 1)
    for device in devices:
        yield from (f"devices[{text(device, 'name')}].{fault}" for fault in _device_faults(device, driver))


def _is_heavy(device: Mapping[str, Json]) -> bool:
    lists = any(name in view(device, "attributes", key) for key in view(device, "attributes") for name in _LISTS)
    return lists or bool(device.get("taints")) or bool(device.get("consumesCounters"))


def _device_faults(device: Mapping[str, Json], driver: str) -> Iterator[str]:
    if not LABEL.fullmatch(text(device, "name")):
        yield f"name: Invalid value: {text(device, 'name')!r}"
    attributes, capacity = view(device, "attributes"), view(device, "capacity")
    if len(attributes) + len(capacity) > 32:
        yield "attributes: too many attributes and capacities: at most 32"
    yield from (f"{name}: not a qualified name" for name in (*attributes, *capacity) if not _is_qualified(name))
    total = 0
    for name in attributes:
        value = view(attributes, name)
        total += sum(len(child) if isinstance(child, list) else 1 for child in value.values())
        yield from (f"attributes[{name}]: {fault}" for fault in _value_faults(value))
    if total > 48:
        yield f"attributes: too many values: {total}: at most 48"
    for name in capacity:
        one = view(capacity, name)
        if "requestPolicy" in one and not device.get("allowMultipleAllocations"):
            yield f"capacity[{name}].requestPolicy: only with allowMultipleAllocations"
        if unreadable := [f"capacity[{name}].{fault}" for fault in _unreadable(one)]:
            yield from unreadable
        else:
            yield from (f"capacity[{name}].requestPolicy.{fault}" for fault in _policy_faults(one))
    yield from _taint_faults(views(device, "taints"))
    yield from _mapping_faults(device, capacity, driver)


def _is_qualified(name: str) -> bool:
    domain, slash, identifier = name.rpartition("/")
    named = len(domain) <= 63 and SUBDOMAIN.fullmatch(domain) is not None if slash else True
    return named and _IDENTIFIER.fullmatch(identifier) is not None


def _value_faults(value: Mapping[str, Json]) -> Iterator[str]:
    if len(value) != 1:
        yield "exactly one value must be specified"
    for kind, child in value.items():
        items = child if isinstance(child, list) else [child]
        if kind not in (*_SCALARS, *_LISTS) or (kind in _LISTS) is not isinstance(child, list):
            yield f"{kind}: unknown or not of its type"
        if not items:
            yield f"{kind}: Required value"
        if any(isinstance(one, str) and len(one) > 64 for one in items):
            yield f"{kind}: may not be longer than 64"
        if kind in ("int", "ints") and not all(isinstance(one, int) and not isinstance(one, bool) for one in items):
            yield f"{kind}: must be a whole number"


def _policy_faults(capacity: Mapping[str, Json]) -> Iterator[str]:
    """Yield what is wrong with a policy: min <= default <= max <= value, min + step <= value, all on steps."""
    policy = view(capacity, "requestPolicy")
    if not policy:
        return
    limits = view(policy, "validRange")
    if ("validRange" in policy or "validValues" in policy) and not text(policy, "default"):
        yield "default: Required value"
    if "validRange" in policy and "validValues" in policy:
        yield "only one of validRange, validValues can be set"
    if not limits:
        return
    if "min" not in limits:
        yield "validRange.min: Required value"
    value = signed(leaf(capacity, "value"))
    default, least = signed(leaf(policy, "default") or "0"), signed(leaf(limits, "min") or "0")
    most = signed(leaf(limits, "max") or leaf(capacity, "value"))
    if not least <= default <= most <= value:
        yield f"default: {default} is not between {least} and {most}"
    if "step" in limits:
        on_steps = (default, most) if "max" in limits else (default,)
        yield from _step_faults(signed(leaf(limits, "step")), least, on_steps, value)


def _step_faults(step: Fraction, least: Fraction, on_steps: tuple[Fraction, ...], value: Fraction) -> Iterator[str]:
    if step <= 0:
        yield f"validRange.step: Invalid value: {step}: must be greater than zero"
        return
    if least + step > value:
        yield f"validRange.step: {least} + {step} is above {value}"
    if min(least, *on_steps) < 0:
        yield f"validRange: Invalid value: {min(least, *on_steps)}: must be greater than or equal to 0"
    if any((one - least) % step for one in on_steps):
        yield "default and max have to be on steps"


def _unreadable(capacity: Mapping[str, Json]) -> Iterator[str]:
    """Yield what of a capacity is no quantity: a server refuses that while decoding."""
    policy, limits = view(capacity, "requestPolicy"), view(capacity, "requestPolicy", "validRange")
    told = {"value": capacity.get("value")}
    told |= {"requestPolicy.default": policy["default"]} if "default" in policy else {}
    told |= {f"requestPolicy.validRange.{name}": limits[name] for name in ("min", "max", "step") if name in limits}
    for path, amount in told.items():
        try:
            signed(amount)
        except ValueError as error:
            yield f"{path}: {error}"


def _taint_faults(taints: tuple[Mapping[str, Json], ...]) -> Iterator[str]:
    if len(taints) > 16:
        yield f"taints: Too many: {len(taints)}: must have at most 16 items"
    for taint in taints:
        domain, slash, name = text(taint, "key").rpartition("/")
        if (slash and not SUBDOMAIN.fullmatch(domain)) or not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_.]{0,62}", name):
            yield f"taints: key: Invalid value: {text(taint, 'key')!r}"
        if text(taint, "effect") not in _EFFECTS or len(text(taint, "value")) > 63:
            yield "taints: Unsupported effect or value"


def _mapping_faults(device: Mapping[str, Json], capacity: Mapping[str, Json], driver: str) -> Iterator[str]:
    """Yield what is wrong with what a device says of the node's resources, in the form of 1.36 or of 1.37."""
    names = {name if "/" in name else f"{driver}/{name}" for name in capacity}
    for key in ("nodeAllocatableResourceMappings", "nodeAllocatableResources"):
        for resource in view(device, key):
            told = view(device, key, resource)
            told = view(told, "mapping") if key == "nodeAllocatableResources" else told
            used = text(told, "capacityKey")
            if not _NODE_RESOURCES.fullmatch(resource):
                yield f"{key}[{resource}]: Unsupported value"
            if used and used not in names:
                yield f"{key}[{resource}].capacityKey: no such capacity: {used}"
            if key == "nodeAllocatableResources" and ("deviceMultiplier" in told) is bool(used):
                yield f"{key}[{resource}].mapping: one of capacityKey, deviceMultiplier is required"
