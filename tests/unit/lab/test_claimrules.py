"""What the lab's API server refuses in claims, as a real one does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nodecpu.lab.claimrules import claim_faults
from nodecpu.lab.jsontree import Json, JsonObject

KIBIBYTE = 1 << 10
AMOUNTS: tuple[Json, ...] = (3, "1500m", "1e1", ".5", "2Ki", "0", "-2")
"""A real server decodes them, and does not look at their signs: to refuse what comes of them is the driver's (C1)."""


def exact(name: Json = "main", cpus: Json = "2") -> JsonObject:
    return {"name": name, "exactly": {"deviceClassName": "c", "capacity": {"requests": {"dra.cpu/cpu": cpus}}}}


def sub(name: str, cpus: Json = "2") -> JsonObject:
    return {"name": name, "deviceClassName": "c", "capacity": {"requests": {"dra.cpu/cpu": cpus}}}


def either(*subs: JsonObject, name: str = "either") -> JsonObject:
    return {"name": name, "firstAvailable": list(subs)}


def config(letters: int) -> JsonObject:
    """Return an entry whose parameters have 8 bytes more than letters."""
    return {"opaque": {"driver": "dra.cpu", "parameters": {"a": "x" * letters}}}


def claim(*requests: JsonObject, name: str = "c.1", configs: int = 0, letters: int = 1) -> JsonObject:
    devices: JsonObject = {"requests": list(requests), "config": [config(letters)] * configs}
    return {"metadata": {"name": name}, "spec": {"devices": devices}}


def allocation(*names: str, configs: int = 0, letters: int = 1) -> JsonObject:
    results: list[Json] = [{"request": one, "driver": "dra.cpu", "pool": "n", "device": "d"} for one in names]
    return {"devices": {"results": results, "config": [config(letters)] * configs}}


def users(count: int) -> list[Json]:
    return [{"resource": "pods", "name": f"p{number}", "uid": f"u{number}"} for number in range(count)]


STORED = claim(exact(), either(sub("many"), sub("few")))


@pytest.mark.parametrize(
    "good",
    [
        pytest.param(STORED, id="both kinds of request"),
        pytest.param(claim(), id="no requests"),
        pytest.param(claim(*(exact(f"r{n}") for n in range(32)), configs=32), id="as many as may be"),
        pytest.param(claim(either(*(sub(f"s{n}") for n in range(8)))), id="as many alternatives as may be"),
        pytest.param(claim(either(sub("a"), name="x"), either(sub("a"), name="y")), id="alternatives of one name"),
        pytest.param(claim(exact("r" * 63), name="c" * 253), id="as long names as may be"),
        pytest.param(claim(configs=1, letters=10 * KIBIBYTE - 8), id="as long parameters as may be"),
        pytest.param({"metadata": {"generateName": "pod-claim-"}, "spec": {}}, id="name is made by the server"),
        *(pytest.param(claim(exact(cpus=cpus)), id=f"{cpus!r} CPUs") for cpus in AMOUNTS),
    ],
)
def test_claims_that_a_real_server_takes_are_taken(good: JsonObject) -> None:
    assert claim_faults(good) == []


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        pytest.param(claim(name="NOT a label"), "metadata.name: Invalid", id="name"),
        pytest.param(claim(name="c" * 254), "metadata.name: Invalid", id="long name"),
        pytest.param({"metadata": {}, "spec": {}}, "metadata.name: Invalid", id="no name"),
        pytest.param({"metadata": {"generateName": "A-"}, "spec": {}}, "metadata.generateName", id="prefix"),
        pytest.param(claim(*(exact(f"r{n}") for n in range(33))), "requests: Too many: 33", id="33 requests"),
        pytest.param(claim(exact("X Y")), "requests[0].name: Invalid", id="name of a request"),
        pytest.param(claim(exact(None)), "requests[0].name: Invalid", id="request without a name"),
        pytest.param(claim(exact("r" * 64)), "requests[0].name: Invalid", id="long name of a request"),
        pytest.param(claim(exact(), exact()), "requests[1]: Duplicate", id="request twice"),
        pytest.param(claim({"name": "r"}), "requests[0]: Required", id="neither of two"),
        pytest.param(claim(either(sub("a")) | exact()), "requests[0]: Invalid", id="both of two"),
        pytest.param(claim(either()), "requests[0]: Required", id="no alternatives"),
        pytest.param(
            claim(either(*(sub(f"s{n}") for n in range(9)))), "firstAvailable: Too many: 9", id="9 alternatives"
        ),
        pytest.param(claim(either(sub("a/b"))), "firstAvailable[0].name: Invalid", id="alternative with a slash"),
        pytest.param(claim(either(sub("a"), sub("a"))), "firstAvailable[1]: Duplicate", id="alternative twice"),
        pytest.param(
            claim(exact(cpus="two")), "requests[0].exactly.capacity.requests[dra.cpu/cpu]: Invalid", id="amount"
        ),
        pytest.param(claim(exact(cpus=True)), "exactly.capacity", id="truth for an amount"),
        pytest.param(
            claim(either(sub("a", "1 "))), "requests[0].firstAvailable[0].capacity", id="amount of an alternative"
        ),
        pytest.param(claim(configs=33), "spec.devices.config: Too many: 33", id="33 configurations"),
        pytest.param(
            claim(configs=1, letters=10 * KIBIBYTE - 7), "config[0].opaque.parameters: Too long", id="long parameters"
        ),
        pytest.param(
            {"metadata": {"name": "c"}, "spec": {"devices": {"config": [{"opaque": {"parameters": []}}]}}},
            "config[0].opaque.parameters: Invalid",
            id="parameters that are no object",
        ),
    ],
)
def test_claims_that_a_real_server_refuses_are_refused(bad: JsonObject, fault: str) -> None:
    assert any(fault in found for found in claim_faults(bad))


def test_spec_cannot_change_and_all_else_can() -> None:
    labelled = STORED | {"metadata": {"name": "c.1", "labels": {"a": "b"}}, "status": {"reservedFor": "nonsense"}}
    assert claim_faults(labelled, STORED) == []
    assert claim_faults(claim(exact(cpus="3")), STORED) == ["spec: Invalid value: field is immutable"]


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({}, id="none"),
        pytest.param({"allocation": allocation("main", "either/few")}, id="allocated"),
        pytest.param({"allocation": allocation(*["main"] * 32, configs=64), "reservedFor": users(256)}, id="much"),
    ],
)
def test_status_that_a_real_server_takes_is_taken(status: Mapping[str, Json]) -> None:
    assert claim_faults({"status": status}, STORED, status=True) == []


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        pytest.param({"allocation": allocation("main", "no")}, "results[1].request: Invalid", id="unknown request"),
        pytest.param({"allocation": allocation("either/no")}, "results[0].request: Invalid", id="unknown alternative"),
        pytest.param(
            {"allocation": allocation("main/few")}, "results[0].request: Invalid", id="alternative of another"
        ),
        pytest.param({"allocation": allocation(*["main"] * 33)}, "results: Too many: 33", id="33 results"),
        pytest.param({"allocation": allocation(configs=65)}, "config: Too many: 65", id="65 configurations"),
        pytest.param(
            {"allocation": allocation(configs=1, letters=10 * KIBIBYTE)}, "parameters: Too long", id="long parameters"
        ),
        pytest.param({"reservedFor": users(1)}, "reservedFor: Forbidden", id="reserved and not allocated"),
        pytest.param(
            {"allocation": allocation(), "reservedFor": users(257)}, "reservedFor: Too many: 257", id="257 consumers"
        ),
        pytest.param(
            {"allocation": allocation(), "reservedFor": users(1) * 2}, "reservedFor: Duplicate", id="consumer twice"
        ),
    ],
)
def test_status_that_a_real_server_refuses_is_refused(status: Mapping[str, Json], fault: str) -> None:
    assert any(fault in found for found in claim_faults({"status": status}, STORED, status=True))


def test_allocation_cannot_change_other_than_to_none() -> None:
    old = STORED | {"status": {"allocation": allocation("main")}}
    kept: JsonObject = {"status": {"allocation": allocation("main"), "reservedFor": users(1)}}
    assert claim_faults(kept, old, status=True) == []
    changed: JsonObject = {"status": {"allocation": allocation("either/few")}}
    assert claim_faults(changed, old, status=True) == ["status.allocation: Invalid value: field is immutable"]
    assert claim_faults({"status": {"allocation": None}}, old, status=True) == []
    assert claim_faults({}, old, status=True) == []
