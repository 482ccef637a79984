"""Whoever writes in the lab writes what a real API server would take: users, scheduler and controllers as well."""

from __future__ import annotations

import pytest

from nodecpu.lab.apiserver import now
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.jsontree import Json, JsonObject, leaf
from nodecpu.lab.objects import CLAIMS, SLICES, ApiError, Key, ObjectStore
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
