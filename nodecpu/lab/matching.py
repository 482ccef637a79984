"""Allocates a claim by its spec, as the scheduler reads it (pure): classes, selectors, counts, amounts, constraints.

All pools of a node are searched, in order, going back where a constraint does not hold. Of CEL it knows what our own
DeviceClasses use: comparisons of attributes and ``has``, joined by ``&&``.
Source: resource.k8s.io/v1 types.go; dynamic-resource-allocation/structured.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from nodecpu.lab.jsontree import Json, JsonObject, leaf, node, nodes, text, texts
from nodecpu.lab.podspec import quantity
from nodecpu.lab.scheduler import Pool, Unschedulable, rounded

_ATTRIBUTE: Final = r'device\.attributes\["(?P<domain>[^"]+)"\]\.(?P<name>\w+)'
_TERMS: Final = (
    re.compile(r'device\.driver == (?P<driver>".*")'),
    re.compile(rf"has\({_ATTRIBUTE}\)"),
    re.compile(rf"{_ATTRIBUTE}(?: == (?P<value>.+))?"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Want:
    """One device wanted by one request."""

    request: str
    selectors: tuple[str, ...]
    amounts: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Taken:
    """A device chosen for a request, with what it consumes."""

    request: str
    pool: Pool
    device: JsonObject
    consumes: Mapping[str, Fraction]


@dataclass(slots=True, kw_only=True)
class _Search:
    """What is chosen so far; ``used`` are devices of one claim each, ``consumed`` amounts by device and capacity."""

    pools: Sequence[Pool]
    constraints: Sequence[JsonObject]
    used: set[tuple[str, str]]
    consumed: dict[tuple[str, str, str], Fraction]
    taken: list[_Taken] = field(default_factory=list)

    def fill(self, wants: Sequence[_Want]) -> bool:
        """Choose a device for each of the wants; return whether that is possible."""
        if not wants:
            return True
        for one in self._candidates(wants[0]):
            self.taken.append(one)
            if all(_holds(constraint, self.taken) for constraint in self.constraints) and self.fill(wants[1:]):
                return True
            self.taken.pop()
        return False

    def _candidates(self, want: _Want) -> Iterator[_Taken]:
        for pool in self.pools:
            for device in pool.devices:
                if not all(selects(one, pool.driver, device) for one in want.selectors):
                    continue
                consumes = self._consumes(pool, device, want)
                if consumes is not None:
                    yield _Taken(request=want.request, pool=pool, device=device, consumes=consumes)

    def _consumes(self, pool: Pool, device: JsonObject, want: _Want) -> Mapping[str, Fraction] | None:
        name, capacity = text(device, "name"), node(device, "capacity")
        if not want.amounts.keys() <= capacity.keys():
            return None
        if not device.get("allowMultipleAllocations"):
            own = (pool.driver, name) in self.used or any(one.device is device for one in self.taken)
            return None if own else {}
        found: dict[str, Fraction] = {}
        for key in capacity:
            asked = want.amounts.get(key)
            amount = rounded(node(capacity, key), None if asked is None else quantity(asked))
            before = self.consumed.get((pool.driver, name, key), Fraction(0))
            before += sum((one.consumes[key] for one in self.taken if one.device is device), Fraction(0))
            if amount is None or before + amount > quantity(leaf(capacity, key, "value")):
                return None
            found[key] = amount
        return found


def allocate_spec(
    pools: Sequence[Pool],
    claims: Sequence[Mapping[str, Json]],
    spec: Mapping[str, Json],
    class_of: Callable[[str], JsonObject],
    *,
    now: str,
) -> JsonObject:
    """Return ``status.allocation`` for a claim of that spec; Unschedulable if no choice fits.

    ``claims`` are all others, whose consumption counts; ``class_of`` returns a DeviceClass by name.
    """
    wants: list[_Want] = []
    config: list[Json] = []
    for request in nodes(spec, "devices", "requests"):
        exactly, name = node(request, "exactly"), text(request, "name")
        device_class = class_of(text(exactly, "deviceClassName"))
        config += [{"source": "FromClass", "requests": [name], **one} for one in nodes(device_class, "spec", "config")]
        selectors = (*nodes(device_class, "spec", "selectors"), *nodes(exactly, "selectors"))
        count = leaf(exactly, "count")
        want = _Want(
            request=name,
            selectors=tuple(text(one, "cel", "expression") for one in selectors),
            amounts={key: str(value) for key, value in node(exactly, "capacity", "requests").items()},
        )
        wants += [want] * (count if isinstance(count, int) else 1)
    config += [{"source": "FromClaim", **one} for one in nodes(spec, "devices", "config")]
    search = _Search(pools=pools, constraints=nodes(spec, "devices", "constraints"), used=set(), consumed={})
    for claim in claims:
        for result in nodes(claim, "status", "allocation", "devices", "results"):
            _note(search, result)
    if not search.fill(wants):
        raise Unschedulable(f"cannot allocate {', '.join(want.request for want in wants)}")
    term: JsonObject = {"key": "metadata.name", "operator": "In", "values": [pools[0].node_name]}
    devices: JsonObject = {"results": [_result(one) for one in search.taken], **({"config": config} if config else {})}
    return {
        "allocationTimestamp": now,
        "devices": devices,
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [term]}]},
    }


def selects(expression: str, driver: str, device: Mapping[str, Json]) -> bool:
    """Return whether a selector lets a device pass; ValueError for CEL beyond what is known here."""
    return all(_term(term.strip(), driver, device) for term in expression.split("&&"))


def _term(term: str, driver: str, device: Mapping[str, Json]) -> bool:
    for form in _TERMS:
        if (found := form.fullmatch(term)) is None:
            continue
        parts = found.groupdict()
        if "driver" in parts:
            return bool(json.loads(parts["driver"]) == driver)
        value = _value(device, f"{parts['domain']}/{parts['name']}")
        if term.startswith("has("):
            return value is not None
        return value is True if parts["value"] is None else bool(value == json.loads(parts["value"]))
    raise ValueError(f"selector {term!r} is beyond what the lab knows of CEL")


def _value(device: Mapping[str, Json], name: str) -> Json:
    return next(iter(node(device, "attributes", name).values()), None)


def _holds(constraint: JsonObject, taken: Sequence[_Taken]) -> bool:
    """Return whether a constraint may still hold: values that are there are all the same, or all different."""
    requests = texts(constraint, "requests")
    same, different = text(constraint, "matchAttribute"), text(constraint, "distinctAttribute")
    values = [_value(one.device, same or different) for one in taken if not requests or one.request in requests]
    sets = [set(map(str, value)) if isinstance(value, list) else {repr(value)} for value in values]
    if None in values:
        return False
    if same:
        return not sets or bool(set.intersection(*sets))
    return len(set.union(set(), *sets)) == sum(map(len, sets))


def _note(search: _Search, result: JsonObject) -> None:
    place = text(result, "driver"), text(result, "device")
    amounts = node(result, "consumedCapacity")
    if not amounts:
        search.used.add(place)
    for key, amount in amounts.items():
        search.consumed[*place, key] = search.consumed.get((*place, key), Fraction(0)) + quantity(amount)


def _result(one: _Taken) -> JsonObject:
    result: JsonObject = {
        "request": one.request,
        "driver": one.pool.driver,
        "pool": one.pool.name,
        "device": text(one.device, "name"),
    }
    if one.consumes:
        result["consumedCapacity"] = {key: str(amount) for key, amount in one.consumes.items()}
        result["shareID"] = str(uuid.uuid4())
    return result
