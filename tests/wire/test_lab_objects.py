"""The lab's API objects against recorded ones (Kubernetes 1.36.2): which fields they have, path by path.

A daemon that works with the lab's objects is to work with real ones: so the lab has no field that these lack, and all
of theirs that the daemon reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import msgspec
import msgspec.inspect
import pytest

from nodecpu.dra.claims import _Claim
from nodecpu.kube.podspec import _Pod
from nodecpu.lab.apiserver import now
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.jsontree import Json, JsonObject, text
from nodecpu.lab.objects import CLAIMS, CLASSES, PODS, SLICES, ObjectStore
from nodecpu.lab.scheduler import Want
from tests.support import shared_data

KINDS = ("ResourceClaim", "Pod", "DeviceClass")

NOT_LOOKED_INTO = frozenset({"managedFields"})
MAPS = frozenset(
    {"annotations", "labels", "requests", "limits", "consumedCapacity", "attributes", "allocatedResources"}
)
"""Objects whose keys are data."""


def paths(value: Json, path: str = "") -> Iterator[str]:
    """Yield the path of every leaf; items of lists are ``[]``, keys that are data ``*``."""
    last = path.rpartition(".")[2]
    if isinstance(value, Mapping) and value and last not in NOT_LOOKED_INTO:
        for key, child in value.items():
            name = "*" if last in MAPS and not isinstance(child, list) else key
            yield from paths(child, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for child in value:
            yield from paths(child, f"{path}[]")
    else:
        yield path


def read(type_: msgspec.inspect.Type, path: str = "") -> Iterator[str]:
    """Yield the path of every leaf that a decoder of ours looks at."""
    match type_:
        case msgspec.inspect.StructType():
            for field in type_.fields:
                yield from read(field.type, f"{path}.{field.encode_name}" if path else field.encode_name)
        case msgspec.inspect.UnionType():
            for one in type_.types:
                yield from read(one, path)
        case msgspec.inspect.VarTupleType():
            yield from read(type_.item_type, f"{path}[]")
        case msgspec.inspect.DictType():
            yield f"{path}.*"
        case msgspec.inspect.NoneType():
            return
        case _:
            yield path


def recorded() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for file in sorted(shared_data("wire", "api").glob("*.json")):
        value = json.loads(file.read_text())
        if isinstance(value, dict) and value["kind"] in found:
            found[value["kind"]].update(paths(value))
    return found


def of_the_lab() -> dict[str, set[str]]:
    """Return the fields of what the lab makes in the course of a pod's life, seen after every step."""
    store = ObjectStore(now=now)
    cluster = Cluster(store, node_name="node1", driver="rec.example")
    cluster.populate()
    _publish(store)
    found: dict[str, set[str]] = {kind: set() for kind in KINDS}

    def look() -> None:
        for kind in (CLAIMS, PODS, CLASSES):
            for one in store.find(kind):
                found[kind.kind].update(paths(one))

    wants = (Want(request="r", cpus="2"),)
    for name, template in (("c1", ""), ("p4-own-sdftj", "own")):
        cluster.create_claim("default", name, wants, template=template)
        look()
        cluster.allocate("default", name, wants)
        look()
    amounts: JsonObject = {"cpu": "1", "memory": "64Mi"}
    container: JsonObject = {
        "name": "c",
        "image": "localhost/busybox:1",
        "resources": {"requests": amounts, "limits": amounts, "claims": [{"name": "c1"}]},
    }
    references: list[Json] = [
        {"name": "c1", "resourceClaimName": "c1"},
        {"name": "own", "resourceClaimTemplateName": "own-template"},
    ]
    spec: JsonObject = {"containers": [container], "resourceClaims": references}
    pod = cluster.create_pod("default", "p4", spec, {}, generated={"own": "p4-own-sdftj"})
    look()
    cluster.release("default", "c1", text(pod, "metadata", "uid"))
    look()
    return found


def _publish(store: ObjectStore) -> None:
    capacity: JsonObject = {
        "value": "8",
        "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
    }
    device: JsonObject = {
        "name": "dev0",
        "allowMultipleAllocations": True,
        "capacity": {"rec.example/cpu": capacity},
    }
    pool: JsonObject = {"name": "node1", "generation": 1, "resourceSliceCount": 1}
    spec: JsonObject = {"driver": "rec.example", "nodeName": "node1", "pool": pool, "devices": [device]}
    store.create(SLICES, "", {"metadata": {"name": "node1-rec"}, "spec": spec})


@pytest.mark.parametrize("kind", KINDS)
def test_lab_has_no_field_that_real_objects_lack(kind: str) -> None:
    real, lab = recorded()[kind], of_the_lab()[kind]
    assert real
    assert lab
    assert lab - real == set()


@pytest.mark.parametrize(("kind", "decoded"), [("ResourceClaim", _Claim), ("Pod", _Pod)])
def test_lab_fills_what_the_daemon_reads_of_real_objects(kind: str, decoded: type[msgspec.Struct]) -> None:
    real, lab = recorded()[kind], of_the_lab()[kind]
    ours = set(read(msgspec.inspect.type_info(decoded)))
    assert len(ours & real) >= 9, "what is compared"
    assert (ours & real) - lab == set()
