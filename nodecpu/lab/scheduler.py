"""A small stand-in for the scheduler and the claim controller (pure): allocates claims from published slices.

It knows consumable capacity, devices for one claim each, the NUMA attribute and forced choices, which may be wrong on
purpose; nothing else.
Source: resource.k8s.io/v1 (DRAConsumableCapacity), dynamic-resource-allocation/structured.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from nodecpu.lab.jsontree import Json, JsonObject, leaf, node, nodes, text
from nodecpu.lab.podspec import quantity

_NUMA: Final = "resource.kubernetes.io/numaNode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """One result wished for. ``numa`` or ``device`` narrow the choice; a ``device`` is taken without looking.

    Those of one ``request`` with different sub-requests (``cpus/big``, ``cpus/small``) are alternatives: the first that
    fits is taken.

    ``cpus`` is the amount as text, "" for none at all (a claim that says no amount). ``config`` is the claim's
    configuration for this request, as it stands in ``parameters``.
    """

    request: str
    cpus: str
    numa: int | None = None
    device: str | None = None
    driver: str | None = None
    config: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The devices of a driver on a node, in the order in which the scheduler tries them."""

    driver: str
    name: str
    node_name: str
    devices: tuple[JsonObject, ...]


class Unschedulable(Exception):
    """No published device fits."""


def pool_of(slices: Sequence[Mapping[str, Json]], driver: str, node_name: str) -> Pool:
    """Return the pool that the slices of a driver form; Unschedulable if it is missing or incomplete."""
    ours = [one for one in slices if text(one, "spec", "driver") == driver]
    ours = [one for one in ours if text(one, "spec", "nodeName") == node_name]
    generation = max((_generation(one) for one in ours), default=0)
    current = sorted(
        (one for one in ours if _generation(one) == generation), key=lambda one: text(one, "metadata", "name")
    )
    if not current or leaf(current[0], "spec", "pool", "resourceSliceCount") != len(current):
        raise Unschedulable(f"pool of {driver} on {node_name} is incomplete: {len(current)} slices")
    devices = tuple(device for one in current for device in nodes(one, "spec", "devices"))
    return Pool(driver=driver, name=text(current[0], "spec", "pool", "name"), node_name=node_name, devices=devices)


def allocate(pool: Pool, claims: Sequence[Mapping[str, Json]], wants: Sequence[Want], *, now: str) -> JsonObject:
    """Return ``status.allocation`` for a claim; Unschedulable if a result fits nowhere.

    ``claims`` are all others, whose consumption counts.
    """
    results: list[JsonObject] = []
    config: list[Json] = []
    key = f"{pool.driver}/cpu"
    done: set[str] = set()
    for number, want in enumerate(wants, start=1):
        base, _, sub = want.request.partition("/")
        if sub and base in done:
            continue
        used = {text(one, "device") for one in [*_results(claims), *results]}
        taken = _consumed(claims, results, key)
        try:
            device, amount = _choose(pool, taken, used, want, key)
        except Unschedulable:
            if not sub or not any(one.request.startswith(f"{base}/") for one in wants[number:]):
                raise
            continue
        done.add(base)
        result: JsonObject = {
            "request": want.request,
            "driver": want.driver or pool.driver,
            "pool": pool.name,
            "device": device,
        }
        if amount:
            result["consumedCapacity"] = {key: amount}
            result["shareID"] = str(uuid.uuid4())
        results.append(result)
        if want.config is not None:
            opaque: JsonObject = {"driver": pool.driver, "parameters": want.config}
            config.append({"source": "FromClaim", "requests": [want.request], "opaque": opaque})
    term: JsonObject = {"key": "metadata.name", "operator": "In", "values": [pool.node_name]}
    return {
        "allocationTimestamp": now,
        "devices": {"results": list(results), **({"config": config} if config else {})},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]},
    }


def counted(slices: Sequence[Mapping[str, Json]], claim: Mapping[str, Json]) -> JsonObject:
    """Return what the node gives a pod for a claim, as its status tells it; empty unless the devices are mapped.

    Source: KEP-5517; ``resources`` in Kubernetes 1.36, ``mapping`` in 1.37.
    """
    devices = {text(one, "name"): one for part in slices for one in nodes(part, "spec", "devices")}
    amount, key = Fraction(0), ""
    for result in _results([claim]):
        device = devices.get(text(result, "device"), {})
        for field in ("nodeAllocatableResources", "nodeAllocatableResourceMappings"):
            told = node(device, field, "cpu")
            told = node(told, "mapping") if field == "nodeAllocatableResources" else told
            if told:
                consumed = leaf(result, "consumedCapacity", text(told, "capacityKey"))
                amount += quantity(consumed) if consumed is not None else 1
                key = "mapping" if field == "nodeAllocatableResources" else "resources"
    if not key:
        return {}
    told_cpu: Json = {"cpu": str(amount)} if key == "resources" else [{"name": "cpu", "quantity": str(amount)}]
    return {"resourceClaimName": text(claim, "metadata", "name"), key: told_cpu}


def _choose(pool: Pool, taken: Mapping[str, Fraction], used: Set[str], want: Want, key: str) -> tuple[str, str]:
    if want.device is not None:
        return want.device, want.cpus
    for device in pool.devices:
        numa = leaf(device, "attributes", _NUMA, "int")
        if want.numa is not None and numa != want.numa:
            continue
        name = text(device, "name")
        capacity = node(device, "capacity", key)
        if not device.get("allowMultipleAllocations"):
            if name in used or want.cpus:
                continue
            return name, ""
        consumes = rounded(capacity, quantity(want.cpus) if want.cpus else None)
        if consumes is not None and taken.get(name, Fraction(0)) + consumes <= quantity(leaf(capacity, "value")):
            return name, str(consumes)
    raise Unschedulable(f"request {want.request}: cannot allocate {want.cpus} CPUs")


def rounded(capacity: Mapping[str, Json], wanted: Fraction | None) -> Fraction | None:
    """Return what a request consumes of a capacity by its request policy; None if it does not fit the policy."""
    value = quantity(leaf(capacity, "value"))
    policy = node(capacity, "requestPolicy")
    if wanted is None:
        return quantity(leaf(policy, "default")) if policy else value
    limits = node(policy, "validRange")
    if limits:
        least = quantity(leaf(limits, "min"))
        wanted = max(wanted, least)
        step = quantity(leaf(limits, "step") or "0")
        if step:
            wanted = least - (least - wanted) // step * step
        if wanted > quantity(leaf(limits, "max") or leaf(capacity, "value")):
            return None
    return wanted if wanted <= value else None


def _consumed(claims: Sequence[Mapping[str, Json]], own: Sequence[JsonObject], key: str) -> dict[str, Fraction]:
    taken: dict[str, Fraction] = {}
    for result in [*_results(claims), *own]:
        amount = leaf(result, "consumedCapacity", key)
        if amount is not None:
            name = text(result, "device")
            taken[name] = taken.get(name, Fraction(0)) + quantity(amount)
    return taken


def _results(claims: Sequence[Mapping[str, Json]]) -> Iterator[JsonObject]:
    for claim in claims:
        yield from nodes(claim, "status", "allocation", "devices", "results")


def _generation(one: Mapping[str, Json]) -> int:
    generation = leaf(one, "spec", "pool", "generation")
    return generation if isinstance(generation, int) else 0
