"""The API server's rules: versions, conflicts, status, finalizers, watches, validation of slices."""

from __future__ import annotations

import json

import pytest

from nodecpu.lab.jsontree import Json, JsonObject, leaf, merged, node, text, without
from nodecpu.lab.objects import CLAIMS, NODES, PODS, SLICES, ApiError, Key, ObjectStore

POD = Key(kind=PODS, namespace="default", name="a")


def store() -> ObjectStore:
    return ObjectStore(now=lambda: "2026-01-01T00:00:00Z")


def pod(name: str = "a", **spec: Json) -> JsonObject:
    return {"metadata": {"name": name}, "spec": spec}


def test_created_object_has_identity_and_no_status() -> None:
    made = store().create(PODS, "default", pod() | {"status": {"phase": "Running"}})
    assert text(made, "kind") == "Pod"
    assert text(made, "metadata", "uid")
    assert text(made, "metadata", "resourceVersion") == "101"
    assert "status" not in made


def test_generated_name_has_a_suffix() -> None:
    made = store().create(SLICES, "", {"metadata": {"generateName": "00000-x-"}, "spec": {}})
    name = text(made, "metadata", "name")
    assert name.startswith("00000-x-")
    assert len(name) == len("00000-x-") + 5


def test_second_object_of_a_name_is_refused() -> None:
    objects = store()
    objects.create(PODS, "default", pod())
    with pytest.raises(ApiError, match="already exists") as failed:
        objects.create(PODS, "default", pod())
    assert failed.value.status == 409


def test_another_life_has_the_same_objects_and_goes_on_counting() -> None:
    objects = store()
    made = objects.create(PODS, "default", pod())
    node1 = objects.create(NODES, "", {"metadata": {"name": "node1"}})
    later = store()
    later.restore(json.loads(json.dumps(objects.saved())))
    assert (later.get(POD), later.find(NODES)) == (made, [node1])
    assert later.version == objects.version
    with pytest.raises(ApiError, match="too old resource version"):
        later.changes_after(later.version - 1)
    later.remove(POD)
    assert [change.version for change in later.changes_after(objects.version)] == [objects.version + 1]


def test_update_with_an_old_version_conflicts_and_changes_nothing() -> None:
    objects = store()
    old = objects.create(PODS, "default", pod(nodeName="x"))
    objects.update(POD, old | {"spec": {"nodeName": "y"}})
    with pytest.raises(ApiError, match="object has been modified") as failed:
        objects.update(POD, old | {"spec": {"nodeName": "z"}})
    assert failed.value.status == 409
    assert text(objects.get(POD), "spec", "nodeName") == "y"


def test_what_is_gone_conflicts_with_an_update_of_that_object_and_is_not_found_by_name_alone() -> None:
    """A PUT that tells a UID has it as a precondition, which what is not there does not meet."""
    objects = store()
    old = objects.create(PODS, "default", pod())
    objects.remove(POD)
    for body, status in ((old, 409), (pod(), 404)):
        with pytest.raises(ApiError) as failed:
            objects.update(POD, body)
        assert failed.value.status == status


def test_main_and_status_are_written_apart() -> None:
    objects = store()
    made = objects.create(PODS, "default", pod(nodeName="x"))
    after = objects.update(POD, made | {"spec": {"nodeName": "y"}, "status": {"phase": "Running"}}, status=True)
    assert text(after, "spec", "nodeName") == "x"
    after = objects.update(POD, after | {"spec": {"nodeName": "y"}, "status": {}})
    assert text(after, "status", "phase") == "Running"
    assert leaf(after, "metadata", "generation") == 2


def test_update_without_difference_makes_no_version() -> None:
    objects = store()
    made = objects.create(NODES, "", {"metadata": {"name": "n"}, "spec": {}})
    objects.update(Key(kind=NODES, namespace="", name="n"), made)
    assert objects.version == 101


def test_finalizer_keeps_an_object_and_uid_precondition_protects_it() -> None:
    objects = store()
    key = Key(kind=CLAIMS, namespace="default", name="c")
    made = objects.create(CLAIMS, "default", {"metadata": {"name": "c", "finalizers": ["x/y"]}})
    with pytest.raises(ApiError, match="precondition"):
        objects.delete(key, uid="another")
    marked = objects.delete(key, uid=text(made, "metadata", "uid"))
    assert text(marked, "metadata", "deletionTimestamp")
    objects.patch(key, {"metadata": {"finalizers": None}})
    objects.delete(key)
    with pytest.raises(ApiError, match="not found"):
        objects.get(key)


def test_changes_are_told_from_a_version_on_until_they_are_forgotten() -> None:
    objects = store()
    objects.create(PODS, "default", pod("a"))
    objects.create(PODS, "default", pod("b"))
    objects.remove(POD)
    assert [change.type for change in objects.changes_after(101)] == ["ADDED", "DELETED"]
    objects.forget()
    assert objects.changes_after(objects.version) == []
    with pytest.raises(ApiError, match="too old resource version") as failed:
        objects.changes_after(101)
    assert failed.value.status == 410


def test_field_selectors_choose() -> None:
    objects = store()
    objects.create(PODS, "default", pod("a", nodeName="x"))
    objects.create(PODS, "other", pod("b", nodeName="x"))
    objects.create(PODS, "default", pod("c", nodeName="y"))
    names = [text(one, "metadata", "name") for one in objects.find(PODS, "", "spec.nodeName=x")]
    assert names == ["a", "b"]
    assert len(objects.find(PODS, "default", "spec.nodeName!=x,metadata.name=c")) == 1
    with pytest.raises(ApiError, match="field selector"):
        objects.find(PODS, "", "nonsense")


def test_what_is_handed_out_is_a_copy() -> None:
    objects = store()
    made = objects.create(PODS, "default", pod(nodeName="x"))
    spec = made["spec"]
    assert isinstance(spec, dict)
    spec["nodeName"] = "y"
    assert text(objects.get(POD), "spec", "nodeName") == "x"


def test_merge_patch_follows_rfc_7396() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"b": None, "e": 3}, "d": [2]}) == {
        "a": {"c": 2, "e": 3},
        "d": [2],
    }


def test_paths_are_taken_out_of_every_entry() -> None:
    value: JsonObject = {"spec": {"devices": [{"name": "a", "taints": []}, {"name": "b", "taints": []}]}}
    cut = without(value, ("spec", "devices", "*", "taints"))
    assert cut == {"spec": {"devices": [{"name": "a"}, {"name": "b"}]}}
    assert node(value, "spec") == {"devices": [{"name": "a", "taints": []}, {"name": "b", "taints": []}]}
