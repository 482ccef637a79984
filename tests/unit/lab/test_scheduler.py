"""Claims are allocated as the scheduler does with consumable capacity."""

from __future__ import annotations

from fractions import Fraction

import pytest

from nodecpu.lab.jsontree import JsonObject, nodes, text
from nodecpu.lab.scheduler import Pool, Unschedulable, Want, allocate, pool_of, rounded


def published(name: str = "s", generation: int = 1, count: int = 1, *devices: str) -> JsonObject:
    policy: JsonObject = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    listed: list[JsonObject] = [
        {
            "name": f"numa{number}",
            "allowMultipleAllocations": True,
            "attributes": {"resource.kubernetes.io/numaNode": {"int": number}},
            "capacity": {"dra.cpu/cpu": {"value": value, "requestPolicy": policy}},
        }
        for number, value in enumerate(devices)
    ]
    pool: JsonObject = {"name": "node", "generation": generation, "resourceSliceCount": count}
    spec: JsonObject = {"driver": "dra.cpu", "nodeName": "node", "pool": pool, "devices": list(listed)}
    return {"metadata": {"name": name}, "spec": spec}


def pool(*devices: str) -> Pool:
    return pool_of([published("s", 1, 1, *devices)], "dra.cpu", "node")


def given(allocation: JsonObject) -> list[tuple[str, str]]:
    results = nodes(allocation, "devices", "results")
    return [(text(one, "device"), text(one, "consumedCapacity", "dra.cpu/cpu")) for one in results]


def claim_with(allocation: JsonObject) -> JsonObject:
    return {"status": {"allocation": allocation}}


def test_first_device_with_room_is_taken_and_consumption_adds_up() -> None:
    machine = pool("4", "4")
    first = allocate(machine, [], [Want(request="r", cpus="3")], now="t")
    assert given(first) == [("numa0", "3")]
    second = allocate(machine, [claim_with(first)], [Want(request="r", cpus="2")], now="t")
    assert given(second) == [("numa1", "2")]
    assert text(nodes(first, "devices", "results")[0], "shareID")


def test_results_of_one_claim_count_against_each_other() -> None:
    both = allocate(pool("4", "4"), [], [Want(request="a", cpus="3"), Want(request="b", cpus="3")], now="t")
    assert given(both) == [("numa0", "3"), ("numa1", "3")]
    with pytest.raises(Unschedulable, match="request c"):
        allocate(pool("4"), [claim_with(both)], [Want(request="c", cpus="2", numa=0)], now="t")


def test_forced_device_is_taken_without_looking() -> None:
    forced = allocate(pool("4"), [], [Want(request="r", cpus="99", device="numa7")], now="t")
    assert given(forced) == [("numa7", "99")]


def test_incomplete_pool_and_old_generations_give_nothing() -> None:
    with pytest.raises(Unschedulable, match="incomplete"):
        pool_of([published("a", 1, 2, "4")], "dra.cpu", "node")
    newest = pool_of([published("a", 1, 1, "4"), published("b", 2, 1, "8")], "dra.cpu", "node")
    assert given(allocate(newest, [], [Want(request="r", cpus="8")], now="t")) == [("numa0", "8")]


@pytest.mark.parametrize(
    ("wanted", "consumes"), [(None, "2"), ("1", "2"), ("3", "4"), ("4", "4"), ("9", None)], ids=str
)
def test_request_policy_rounds_up(wanted: str | None, consumes: str | None) -> None:
    capacity: JsonObject = {
        "value": "8",
        "requestPolicy": {"default": "2", "validRange": {"min": "2", "max": "8", "step": "2"}},
    }
    found = rounded(capacity, None if wanted is None else Fraction(wanted))
    assert found == (None if consumes is None else Fraction(consumes))


def test_first_alternative_that_fits_is_taken() -> None:
    wants = [Want(request=f"cpus/{name}", cpus=amount) for name, amount in (("big", "9"), ("mid", "3"), ("low", "1"))]
    found = nodes(allocate(pool("4"), [], wants, now="t"), "devices", "results")
    assert [text(one, "request") for one in found] == ["cpus/mid"]
    with pytest.raises(Unschedulable, match="cpus/low"):
        allocate(pool("0"), [], wants, now="t")
    with pytest.raises(Unschedulable, match="cpus/big"):
        allocate(pool("4"), [], [wants[0], wants[0]], now="t")
