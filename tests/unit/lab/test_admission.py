"""Whoever writes in the lab writes what a real API server would take: users, scheduler and controllers as well."""

from __future__ import annotations

import pytest

from nodecpu.lab.apiserver import now
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.jsontree import Json, JsonObject, leaf
from nodecpu.lab.objects import CLAIMS, CLASSES, EVENTS, SLICES, ApiError, Key, ObjectStore
from nodecpu.lab.scheduler import Want
from nodecpu.lab.slicerules import Features

WANTS = (Want(request="cpus", cpus="2"),)
CLAIM = Key(kind=CLAIMS, namespace="default", name="web")


def cluster(features: Features) -> Cluster:
    one = Cluster(ObjectStore(now=now), node_name="n", driver="dra.cpu", features=lambda: features)
    one.populate()
    return one


def slices(**changes: Json) -> JsonObject:
    device: JsonObject = {"name": "d", "allowMultipleAllocations": True, "capacity": {"dra.cpu/cpu": {"value": "4"}}}
    pool: JsonObject = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec: JsonObject = {"driver": "dra.cpu", "nodeName": "n", "pool": pool, "devices": [device | changes]}
    return {"metadata": {"name": "s"}, "spec": spec}


def test_claim_that_is_invalid_is_refused() -> None:
    with pytest.raises(ApiError, match="name: Invalid") as failed:
        cluster(Features()).create_claim("default", "Web", WANTS)
    assert failed.value.status == 422


def test_claim_is_not_reserved_before_it_is_allocated_nor_allocated_otherwise_afterwards() -> None:
    one = cluster(Features())
    one.create(SLICES, "", slices())
    one.create_claim("default", "web", WANTS)
    with pytest.raises(ApiError, match="Forbidden"):
        one.reserve("default", "web", "pod", "uid")
    one.allocate("default", "web", WANTS)
    with pytest.raises(ApiError, match="immutable"):
        one.allocate("default", "web", WANTS)
    one.reserve("default", "web", "pod", "uid")
    assert leaf(one.store.get(CLAIM), "status", "reservedFor", "0", "name") == "pod"


def test_what_the_server_does_not_know_is_dropped() -> None:
    old, new = (
        leaf(cluster(Features(minor=minor)).create(SLICES, "", slices()), "spec", "devices", "0") for minor in (35, 36)
    )
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    assert new.keys() - old.keys() == {"allowMultipleAllocations"}


@pytest.mark.parametrize("name", ["Web", "web-", "web.", "-web", "we_b", "w" * 254, ""])
def test_names_that_are_none_are_refused(name: str) -> None:
    """Events and slices as well, whose names the daemon makes."""
    one = cluster(Features())
    for kind, body in ((SLICES, slices()), (EVENTS, {}), (CLASSES, {})):
        with pytest.raises(ApiError, match="name: Invalid"):
            one.create(kind, "default", {**body, "metadata": {"name": name}})


def test_classes_have_limits() -> None:
    selector: JsonObject = {"cel": {"expression": "true"}}
    config: JsonObject = {"opaque": {"driver": "dra.cpu", "parameters": {}}}
    one = cluster(Features())
    good: JsonObject = {"metadata": {"name": "c"}, "spec": {"selectors": [selector] * 32, "config": [config] * 32}}
    one.create(CLASSES, "", good)
    wrong: tuple[tuple[JsonObject, str], ...] = (
        ({"selectors": [selector] * 33}, "Too many: 33"),
        ({"selectors": [{}]}, "Required value"),
        ({"config": [config] * 33}, "Too many: 33"),
    )
    for spec, fault in wrong:
        with pytest.raises(ApiError, match=fault):
            one.create(CLASSES, "", {"metadata": {"name": "d"}, "spec": spec})
