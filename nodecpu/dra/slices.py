"""ResourceSlices: what a pool should look like, and the writes that make it so (pure; D3, D4).

All slices of a pool carry one generation; consumers take the highest and wait until as many slices have it as the pool
counts. Obsolete slices are deleted first, then the others updated, then missing ones created: in between the pool is
incomplete, and nothing is allocated from it. Specs are compared by meaning: quantities by value, what is absent and
what is empty alike. Source: interfaces.md 3.1, 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import msgspec

from nodecpu.dra.devices import Attribute, Device
from nodecpu.errors import BadRequest
from nodecpu.quantity import parse_quantity

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
JsonObject: TypeAlias = Mapping[str, Json]

MAX_DEVICES: Final = 128
MAX_HEAVY_DEVICES: Final = 64
"""Devices of a slice, the latter as soon as one of them has taints, counters or a list of values."""

_INDEX_DIGITS: Final = 5
_QUANTITIES: Final = frozenset(
    {"value", "default", "min", "max", "step", "allocationMultiplier", "capacityMultiplier", "deviceMultiplier"}
)
"""Where a device's capacity and its mapping hold quantities."""


class NodeAllocatable(Enum):
    """In which form devices say that their CPUs are the node's, by the server's version (KEP-5517)."""

    UNTOLD = "not told"
    MAPPINGS = "nodeAllocatableResourceMappings"
    RESOURCES = "nodeAllocatableResources"


def node_allocatable_form(major: int, minor: int) -> NodeAllocatable:
    """Return the form that an API server of that version knows. Source: resource/v1 types.go of 1.36 and 1.37."""
    if (major, minor) >= (1, 37):
        return NodeAllocatable.RESOURCES
    return NodeAllocatable.MAPPINGS if (major, minor) == (1, 36) else NodeAllocatable.UNTOLD


GATES: Final = (
    (".allowMultipleAllocations", "DRAConsumableCapacity"),
    (".requestPolicy", "DRAConsumableCapacity"),
    (".taints", "DRADeviceTaints"),
    (".strings", "DRAListTypeAttributes"),
    (".nodeAllocatable", "DRANodeAllocatableResources"),
)
"""What a server drops while a feature gate of it is off. Source: interfaces.md 3.1, 3.4."""


def gates_of(dropped: Iterable[str]) -> tuple[str, ...]:
    """Return the feature gates that these fields belong to, each once, in the order of the table."""
    paths = tuple(dropped)
    found = dict.fromkeys(gate for part, gate in GATES if any(part in path for path in paths))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A ResourceSlice as it is stored. ``spec`` is in the form in which specs are compared."""

    name: str
    uid: str
    resource_version: str
    pool: str
    generation: int
    spec: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool as it should be: the devices of each slice, at least one slice."""

    driver: str
    node: str
    pages: tuple[tuple[JsonObject, ...], ...]
    forms: tuple[tuple[JsonObject, ...], ...]
    """The pages in the form in which specs are compared: to make it takes longer than to compare."""

    @property
    def name(self) -> str:
        """The pool's name: the node's, which owns it."""
        return self.node


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Delete a slice, provided it is the one that was seen."""

    slice: Slice


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """Give a slice another spec, provided it is the one that was seen."""

    slice: Slice
    spec: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Create a slice."""

    index: int
    spec: JsonObject


Write = Delete | Replace | Create


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """In which form devices are written.

    ``closed`` taints them: claims keep what they have, no pod is sent here for more (D5). ``lists``: attributes with
    several values are written. ``counted``: how the CPUs are told to be the node's (D3).
    """

    closed: bool = False
    lists: bool = True
    counted: NodeAllocatable = NodeAllocatable.UNTOLD


PLAIN: Final = Form()


def make_pool(driver: str, node: str, devices: Iterable[Device], form: Form = PLAIN) -> Pool:
    """Return the pool of a node's devices, in their order; without devices one empty slice (D4)."""
    written = [device_object(driver, device, form) for device in devices]
    size = MAX_HEAVY_DEVICES if any(map(_is_heavy, written)) else MAX_DEVICES
    pages = [tuple(written[i : i + size]) for i in range(0, len(written), size)]
    forms = tuple(tuple(canonical(one) for one in page) for page in pages)
    return Pool(driver=driver, node=node, pages=tuple(pages or [()]), forms=forms or ((),))


def device_object(driver: str, device: Device, form: Form = PLAIN) -> JsonObject:
    """Return a device as the API takes it (D1): one that several claims may hold, in amounts of whole CPUs or cores.

    A device that is one CPU has no capacity and goes to one claim, in the form of the community driver.
    """
    written: dict[str, Json] = {
        "name": device.name,
        "attributes": {
            name: _attribute(value)
            for name, value in sorted(device.attributes.items())
            if form.lists or not isinstance(value, tuple)
        },
    }
    if device.step:
        step = str(device.step)
        policy: dict[str, Json] = {"default": step, "validRange": {"min": step}}
        if device.capacity >= 2 * device.step:  # min + step must not be above the value
            policy["validRange"] = {"min": step, "step": step}
        written["capacity"] = {f"{driver}/cpu": {"value": str(device.capacity), "requestPolicy": policy}}
        written["allowMultipleAllocations"] = True
    if form.counted is not NodeAllocatable.UNTOLD:
        written[form.counted.value] = {"cpu": _counted(driver, form.counted, one_cpu=not device.step)}
    if form.closed:
        written["taints"] = [{"key": f"{driver}/runtime-lost", "effect": "NoSchedule"}]
    return written


def _is_heavy(device: JsonObject) -> bool:
    """Return whether a device makes its slice one of those that hold fewer. Source: interfaces.md 3.1."""
    attributes = device.get("attributes")
    lists = {"ints", "bools", "strings", "versions"}
    values = attributes.values() if isinstance(attributes, Mapping) else ()
    has_list = any(isinstance(value, Mapping) and not lists.isdisjoint(value) for value in values)
    return has_list or "taints" in device or "consumesCounters" in device


def _counted(driver: str, form: NodeAllocatable, *, one_cpu: bool) -> JsonObject:
    """Return how much CPU of the node a device is: what is consumed of its capacity, or one."""
    if form is NodeAllocatable.MAPPINGS:
        return {"allocationMultiplier": "1"} if one_cpu else {"capacityKey": f"{driver}/cpu"}
    if one_cpu:
        return {"mapping": {"deviceMultiplier": "1"}}
    return {"mapping": {"capacityKey": f"{driver}/cpu", "capacityMultiplier": "1"}}


def _attribute(value: Attribute) -> JsonObject:
    if isinstance(value, tuple):
        return {"strings": value}
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def plan_writes(
    pool: Pool, stored: Iterable[Slice], accepted: Mapping[str, tuple[JsonObject, JsonObject]]
) -> tuple[Write, ...]:
    """Return the writes that turn the driver's stored slices into the pool, in their order; none if they mean the same.

    ``accepted`` holds for a slice's name what was sent last and what the server made of it: a field that the server
    drops must not be written again and again.
    """
    ours = sorted(stored, key=lambda s: s.name)
    generation = max((s.generation for s in ours if s.pool == pool.name), default=0)
    kept: dict[int, Slice] = {}
    deletes: list[Write] = []
    for one in ours:
        index = _index(one.name, len(pool.pages))
        current = one.pool == pool.name and one.generation == generation
        if index is None or index in kept or not current:
            deletes.append(Delete(slice=one))
        else:
            kept[index] = one
    changed = [index for index, one in kept.items() if not _means(one, pool, index, accepted)]
    missing = [index for index in range(len(pool.pages)) if index not in kept]
    if missing or len(changed) > 1:
        generation += 1
        changed = sorted(kept)
    return (
        *deletes,
        *(Replace(slice=kept[index], spec=_spec(pool, index, generation)) for index in sorted(changed)),
        *(Create(index=index, spec=_spec(pool, index, generation)) for index in missing),
    )


def never_whole(pool: Pool) -> Create:
    """Return the creation of a pool's first slice as one of more than there are, of the lowest generation.

    Consumers pass it over beside any other of the pool, and allocate nothing of it if it is alone.
    """
    one_too_many: JsonObject = {"name": pool.name, "generation": 0, "resourceSliceCount": len(pool.pages) + 1}
    return Create(index=0, spec={**_spec(pool, 0, 0), "pool": one_too_many})


def slice_object(pool: Pool, write: Replace | Create, node_uid: str) -> JsonObject:
    """Return the object to send: owned by the Node, and named so that consumers try the slices in our order."""
    metadata: dict[str, Json] = {
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": pool.node, "uid": node_uid, "controller": True}
        ]
    }
    if isinstance(write, Replace):
        # The UID makes it fail should the slice have been replaced by another of its name.
        old = write.slice
        metadata |= {"name": old.name, "uid": old.uid, "resourceVersion": old.resource_version}
    else:
        digits = _digits(len(pool.pages))
        metadata["generateName"] = f"{write.index:0{digits}x}-{pool.driver}-{pool.node}-"
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": write.spec}


def delete_options(write: Delete) -> JsonObject:
    """Return the body of a DELETE that only takes away what was seen."""
    return {"preconditions": {"uid": write.slice.uid, "resourceVersion": write.slice.resource_version}}


def dropped_fields(sent: Json, stored: Json, path: str = "spec") -> tuple[str, ...]:
    """Return the paths of what was sent and is not in what was stored, devices by their index; sorted."""
    if sent == stored:
        return ()
    if isinstance(sent, Mapping):
        below = stored if isinstance(stored, Mapping) else {}
        return tuple(
            lost for key in sorted(sent) for lost in dropped_fields(sent[key], below.get(key), f"{path}.{key}")
        )
    if isinstance(sent, Sequence) and not isinstance(sent, str):
        items = stored if isinstance(stored, Sequence) and not isinstance(stored, str) else ()
        return tuple(
            lost
            for index, one in enumerate(sent)
            for lost in dropped_fields(one, items[index] if index < len(items) else None, f"{path}[{index}]")
        )
    return (path,)


def vital_fields(dropped: Iterable[str]) -> tuple[str, ...]:
    """Return those of the dropped fields without which devices must not be published.

    Without multiple allocations a claim would take a whole node (D3), without its taint a closed device is open (D5).
    """
    return tuple(path for path in dropped if ".allowMultipleAllocations" in path or ".taints" in path)


def has_list(device: Device) -> bool:
    """Return whether any of a device's attributes has several values."""
    return any(isinstance(value, tuple) for value in device.attributes.values())


def list_attributes(spec: JsonObject) -> tuple[str, ...]:
    """Return the paths of the attributes with a list of values in what is sent, devices by their index."""
    devices = spec.get("devices")
    found = []
    for index, device in enumerate(devices if isinstance(devices, Sequence) else ()):
        attributes = device.get("attributes") if isinstance(device, Mapping) else None
        for name, value in attributes.items() if isinstance(attributes, Mapping) else ():
            if isinstance(value, Mapping) and "strings" in value:
                found.append(f"spec.devices[{index}].attributes.{name}.strings")
    return tuple(found)


class _Metadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    uid: str
    resource_version: str


class _PoolName(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    generation: int


class _PoolOf(msgspec.Struct, frozen=True, kw_only=True):
    pool: _PoolName


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    spec: msgspec.Raw


def decode_slice(data: bytes | msgspec.Raw) -> Slice:
    """Return a stored slice; raises BadRequest for anything that is none."""
    try:
        stored = msgspec.json.decode(data, type=_Stored)
        pool = msgspec.json.decode(stored.spec, type=_PoolOf).pool
        spec = canonical(msgspec.json.decode(stored.spec, type=dict))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"not a ResourceSlice: {str(error)[:200]}") from error
    meta = stored.metadata
    return Slice(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        pool=pool.name,
        generation=pool.generation,
        spec=spec,
    )


class _Spec(msgspec.Struct, frozen=True, kw_only=True):
    spec: msgspec.Raw


def decode_spec(data: bytes) -> JsonObject:
    """Return a slice's spec in the form in which specs are compared; raises BadRequest for anything that has none."""
    try:
        return canonical(msgspec.json.decode(msgspec.json.decode(data, type=_Spec).spec, type=dict))
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"not a ResourceSlice: {str(error)[:200]}") from error


def canonical(spec: JsonObject) -> JsonObject:
    """Return a spec in the form in which specs are compared: without what is empty, quantities in billionths.

    The time at which the server has put a taint on says nothing.
    """
    members = {name: _canonical(name, one) for name, one in spec.items() if name != "timeAdded"}
    return {name: one for name, one in members.items() if one is not None and one != {} and one != []}


def _canonical(key: str, value: Json) -> Json:
    if isinstance(value, str):
        try:
            return parse_quantity(value) if key in _QUANTITIES else value
        except ValueError:
            return value
    if value is None or isinstance(value, (int, float)):  # before the abstract types, which take long to ask for
        return value
    if isinstance(value, (dict, Mapping)):
        return canonical(value)
    return [_canonical("", one) for one in value]


def _head(pool: Pool, generation: int) -> JsonObject:
    return {
        "driver": pool.driver,
        "nodeName": pool.node,
        "pool": {"name": pool.name, "generation": generation, "resourceSliceCount": len(pool.pages)},
    }


def _spec(pool: Pool, index: int, generation: int) -> JsonObject:
    spec: dict[str, Json] = {**_head(pool, generation)}
    if devices := pool.pages[index]:
        spec["devices"] = devices
    return spec


def _means(stored: Slice, pool: Pool, index: int, accepted: Mapping[str, tuple[JsonObject, JsonObject]]) -> bool:
    form: dict[str, Json] = {**_head(pool, stored.generation)}
    if devices := pool.forms[index]:
        form["devices"] = list(devices)
    return stored.spec == form or accepted.get(stored.name) == (form, stored.spec)


def _digits(pages: int) -> int:
    return max(_INDEX_DIGITS, len(f"{pages - 1:x}"))


def _index(name: str, pages: int) -> int | None:
    """Return the index that a slice's name begins with; None unless it is one of the pool's pages, in that width."""
    prefix, _, _ = name.partition("-")
    if len(prefix) != _digits(pages) or any(c not in "0123456789abcdef" for c in prefix):
        return None
    index = int(prefix, 16)
    return index if index < pages else None
