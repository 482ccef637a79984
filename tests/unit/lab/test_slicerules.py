"""What the lab's API server drops from slices and refuses in them, as a real one does (D1, D3)."""

from __future__ import annotations

import pytest

from nodecpu.lab.jsontree import Json, JsonObject, leaf
from nodecpu.lab.slicerules import Features, kept, slice_faults

CAPACITY: JsonObject = {"value": "4", "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}}}


def device(**changes: Json) -> JsonObject:
    whole: JsonObject = {"name": "d", "allowMultipleAllocations": True, "capacity": {"dra.cpu/cpu": CAPACITY}}
    return whole | changes


def slices(*devices: JsonObject, **changes: Json) -> JsonObject:
    spec: JsonObject = {
        "driver": "dra.cpu",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    return {"spec": spec | changes}


def many(count: int, **changes: Json) -> list[JsonObject]:
    return [device(name=f"d{number}", **changes) for number in range(count)]


def policy(value: str, **policy: Json) -> JsonObject:
    return device(capacity={"c": {"value": value, "requestPolicy": policy}})


ROOTS: JsonObject = {"resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:00"]}}


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        pytest.param(device(allowMultipleAllocations=False), "only with allowMultipleAllocations", id="policy alone"),
        pytest.param(device(name="D_1"), "name: Invalid", id="name is no label"),
        pytest.param(device(attributes={"a": {"int": 1, "bool": True}}), "exactly one value", id="two values"),
        pytest.param(device(attributes={"a": {}}), "exactly one value", id="no value"),
        pytest.param(device(attributes={"a": {"strings": []}}), "Required", id="empty list"),
        pytest.param(device(attributes={"a": {"string": "x" * 65}}), "longer than 64", id="long text"),
        pytest.param(device(attributes={"a": {"int": "1"}}), "whole number", id="text for a number"),
        pytest.param(device(attributes={"a-b": {"int": 1}}), "qualified", id="identifier with a hyphen"),
        pytest.param(device(attributes={"x" * 33: {"int": 1}}), "qualified", id="long identifier"),
        pytest.param(device(attributes={f"a{n}": {"int": n} for n in range(32)}), "too many", id="many attributes"),
        pytest.param(device(attributes={"a": {"strings": ["x"] * 49}}), "too many values", id="many values"),
        pytest.param(device(taints=[{"key": "a/b", "effect": "Never"}]), "taints", id="unknown effect"),
        pytest.param(policy("1", validRange={"min": "1"}), "default: Required", id="range without default"),
        pytest.param(policy("1", default="1", validRange={"min": "2"}), "not between", id="default below min"),
        pytest.param(policy("2", default="2", validRange={"min": "2", "step": "2"}), "is above", id="step too long"),
        pytest.param(policy("9", default="2", validRange={"min": "1", "step": "2"}), "on steps", id="off the steps"),
        pytest.param(
            policy("9", default="1", validRange={"min": "1", "max": "8", "step": "2"}),
            "on steps",
            id="most off the steps",
        ),
        pytest.param(
            policy("4", default="1", validRange={"min": "1", "step": "0"}), "greater than zero", id="step of nothing"
        ),
        pytest.param(
            policy("4", default="1", validRange={"min": "1", "step": "-1"}), "greater than zero", id="step back"
        ),
        pytest.param(
            policy("4", default="-1", validRange={"min": "-1", "step": "1"}), "or equal to 0", id="less than nothing"
        ),
        pytest.param(policy("0", default="1", validRange={"min": "1"}), "not between", id="capacity of nothing"),
        pytest.param(policy("-4", default="1", validRange={"min": "1"}), "not between", id="capacity below nothing"),
        pytest.param(device(capacity={"c": {"value": "four"}}), "value: not a quantity", id="word for a quantity"),
        pytest.param(policy("4", default="--1", validRange={"min": "1"}), "default: not a quantity", id="two signs"),
        pytest.param(
            device(nodeAllocatableResourceMappings={"gpu": {}}), "Unsupported value", id="mapping of another resource"
        ),
        pytest.param(
            device(nodeAllocatableResources={"cpu": {"mapping": {"capacityKey": "dra.cpu/no"}}}),
            "no such capacity",
            id="mapping of a capacity that is not there",
        ),
    ],
)
def test_devices_that_a_real_server_refuses_are_refused(changed: JsonObject, fault: str) -> None:
    assert slice_faults(slices(device())) == []
    assert any(fault in found for found in slice_faults(slices(changed)))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        pytest.param(slices(device(), device()), "Duplicate", id="name twice"),
        pytest.param(slices(*many(129)), "at most 128", id="129 devices"),
        pytest.param(slices(*many(65, attributes=ROOTS)), "at most 64", id="65 with lists"),
        pytest.param(slices(*many(65, taints=[{"key": "a", "effect": "None"}])), "at most 64", id="65 with taints"),
        pytest.param(slices(driver="Dra"), "driver", id="capital letters"),
        pytest.param(slices(pool={"name": "n", "generation": -1, "resourceSliceCount": 1}), "generation", id="below 0"),
        pytest.param(slices(pool={"name": "n", "generation": 1, "resourceSliceCount": 0}), "Count", id="no slices"),
        pytest.param(slices(allNodes=True), "exactly one", id="two selections"),
        pytest.param(slices(sharedCounters=[]), "only one of", id="counters beside devices"),
    ],
)
def test_slices_that_a_real_server_refuses_are_refused(changed: JsonObject, fault: str) -> None:
    assert slice_faults(slices(*many(128))) == []
    assert slice_faults(slices(*many(64, attributes=ROOTS))) == []
    assert any(fault in found for found in slice_faults(changed))


@pytest.mark.parametrize("field", ["driver", "nodeName"])
def test_what_says_whose_a_slice_is_cannot_change(field: str) -> None:
    old = slices(device())
    assert slice_faults(slices(), old) == []
    assert any("immutable" in fault for fault in slice_faults(slices(**{field: "other"}), old))


def test_fields_of_gates_that_are_off_are_dropped_without_a_word() -> None:
    """D3: with what a server of 1.34 keeps of it, one claim would take the whole device."""
    sent = slices(device(taints=[{"key": "a", "effect": "None"}], attributes=ROOTS, nonsense=1))
    stored = leaf(kept(sent, Features(minor=34)), "spec", "devices", "0")
    plain: JsonObject = {"dra.cpu/cpu": {"value": "4"}}
    roots: JsonObject = {"resource.kubernetes.io/pcieRoot": {}}
    assert stored == {"name": "d", "attributes": roots, "capacity": plain}
    stored = leaf(kept(sent, Features(gates={"DRAListTypeAttributes": True})), "spec", "devices", "0")
    assert stored == {key: value for key, value in device(**_sent_fields(sent)).items() if key != "nonsense"}


def _sent_fields(sent: JsonObject) -> JsonObject:
    found = leaf(sent, "spec", "devices", "0")
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("minor", "is_on", "field"),
    [
        (35, True, ""),
        (36, False, ""),
        (36, True, "nodeAllocatableResourceMappings"),
        (37, False, ""),
        (37, True, "nodeAllocatableResources"),
    ],
)
def test_each_version_keeps_its_own_form_of_the_mapping(minor: int, field: str, *, is_on: bool) -> None:
    sent = slices(device(nodeAllocatableResourceMappings={"cpu": {}}, nodeAllocatableResources={"cpu": {}}))
    features = Features(minor=minor, gates={"DRANodeAllocatableResources": is_on})
    stored = leaf(kept(sent, features), "spec", "devices", "0")
    assert isinstance(stored, dict)
    assert [key for key in stored if key.startswith("node")] == ([field] if field else [])
