"""Planning of ResourceSlices: the pool generation protocol, and no write without a change in meaning (D1, D3, D4)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_CPUS
from nodecpu.dra.devices import Device
from nodecpu.dra.slices import (
    Create,
    Delete,
    Form,
    JsonObject,
    NodeAllocatable,
    Pool,
    Replace,
    Slice,
    Write,
    canonical,
    decode_slice,
    delete_options,
    device_object,
    dropped_fields,
    gates_of,
    list_attributes,
    make_pool,
    never_whole,
    node_allocatable_form,
    plan_writes,
    slice_object,
    vital_fields,
)
from nodecpu.errors import BadRequest
from nodecpu.lab.scheduler import Unschedulable, pool_of
from tests.support import shared_data


def device(number: int, capacity: int = 4) -> Device:
    return Device(
        name=f"cpudev{number:03d}",
        cpus=NO_CPUS,
        capacity=capacity,
        attributes={"dra.cpu/numaNodeID": number, "dra.cpu/smtEnabled": True, "dra.cpu/coreType": "standard"},
    )


def pool(devices: int, capacity: int = 4) -> Pool:
    return make_pool("dra.cpu", "node1", [device(i, capacity) for i in range(devices)])


def accept(stored: Iterable[Slice], writes: Iterable[Write], wanted: Pool) -> list[Slice]:
    """Return what an API server stores after these writes."""
    known = {one.name: one for one in stored}
    for write in writes:
        if isinstance(write, Delete):
            del known[write.slice.name]
            continue
        sent = json.loads(json.dumps(slice_object(wanted, write, "node-uid")))
        name = sent["metadata"].get("name") or f"{sent['metadata']['generateName']}x{len(known)}"
        meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(len(known) + 10)}
        known[name] = decode_slice(json.dumps({**sent, "metadata": meta}).encode())
    return list(known.values())


def settle(stored: Iterable[Slice], wanted: Pool) -> list[Slice]:
    return accept(stored, plan_writes(wanted, stored, {}), wanted)


def kinds(writes: Iterable[Write]) -> list[str]:
    return [type(write).__name__ for write in writes]


def assert_published(stored: Iterable[Slice], wanted: Pool) -> None:
    """What a consumer sees is a complete pool with these devices, and there is nothing else."""
    found = sorted(stored, key=lambda one: one.name)
    assert {one.generation for one in found} == {found[0].generation}
    assert len(found) == len(wanted.pages)
    assert [one.spec.get("devices", []) for one in found] == [
        canonical({"d": page}).get("d", []) for page in wanted.pages
    ]
    assert plan_writes(wanted, found, {}) == ()


def test_first_publication_is_one_slice_of_generation_one() -> None:
    """D4."""
    (write,) = plan_writes(pool(4), (), {})
    assert isinstance(write, Create)
    assert slice_object(pool(4), write, "node-uid") == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": "00000-dra.cpu-node1-",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "node-uid", "controller": True}
            ],
        },
        "spec": write.spec,
    }
    assert {k: v for k, v in write.spec.items() if k != "devices"} == {
        "driver": "dra.cpu",
        "nodeName": "node1",
        "pool": {"name": "node1", "generation": 1, "resourceSliceCount": 1},
    }


@pytest.mark.parametrize("devices", [0, 4, 300])
@pytest.mark.parametrize("whole", [True, False], ids=["beside the pool", "alone"])
def test_trial_that_was_left_behind_gives_nothing_and_goes(devices: int, *, whole: bool) -> None:
    """D3, D4: the daemon was killed before it deleted what it had stored to find out what the server drops."""
    before = settle((), pool(devices)) if whole else []
    stored = accept(before, [never_whole(pool(1))], pool(1))
    assert len(stored) == len(before) + 1
    seen = [{"metadata": {"name": one.name}, "spec": json.loads(json.dumps(one.spec))} for one in stored]
    if whole:
        assert len(pool_of(seen, "dra.cpu", "node1").devices) == devices
    else:
        with pytest.raises(Unschedulable, match="incomplete"):
            pool_of(seen, "dra.cpu", "node1")
    assert_published(settle(stored, pool(devices)), pool(devices))


def test_device_is_written_with_a_policy_of_whole_cpus() -> None:
    """D1."""
    assert device_object("dra.cpu", device(2)) == {
        "name": "cpudev002",
        "attributes": {
            "dra.cpu/coreType": {"string": "standard"},
            "dra.cpu/numaNodeID": {"int": 2},
            "dra.cpu/smtEnabled": {"bool": True},
        },
        "capacity": {
            "dra.cpu/cpu": {
                "value": "4",
                "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
            }
        },
        "allowMultipleAllocations": True,
    }


@pytest.mark.parametrize(("capacity", "form"), [(1, {"min": "1"}), (2, {"min": "1", "step": "1"})])
def test_step_is_left_out_where_it_would_pass_the_value(capacity: int, form: Mapping[str, str]) -> None:
    """D1."""
    assert f'"validRange": {json.dumps(form)}' in json.dumps(device_object("dra.cpu", device(0, capacity)))


def test_no_devices_are_one_empty_slice() -> None:
    """D4."""
    (write,) = plan_writes(pool(0), (), {})
    assert isinstance(write, Create)
    assert "devices" not in write.spec


@pytest.mark.parametrize("count", [0, 1, 128, 129, 1000])
def test_published_pool_is_complete_and_stable(count: int) -> None:
    """D4: slices are split by the API's limits, in order."""
    wanted = pool(count)
    assert all(len(page) <= 128 for page in wanted.pages)
    assert_published(settle((), wanted), wanted)


def test_closed_devices_are_tainted_and_fewer_fit_into_a_slice() -> None:
    """D5; the time that the server adds to a taint is no difference."""
    devices = [device(i) for i in range(100)]
    wanted = make_pool("dra.cpu", "node1", devices, Form(closed=True))
    assert [len(page) for page in wanted.pages] == [64, 36]
    stored = settle(settle((), pool(100)), wanted)
    assert_published(stored, wanted)
    timed = json.loads(json.dumps([one.spec for one in stored]).replace("NoSchedule", 'NoSchedule", "timeAdded": "now'))
    assert plan_writes(wanted, [replace(s, spec=canonical(t)) for s, t in zip(stored, timed, strict=True)], {}) == ()
    assert_published(settle(stored, pool(100)), pool(100))


def test_change_of_one_slice_is_one_update_in_the_same_generation() -> None:
    """D4: a single update is atomic."""
    stored = settle((), pool(200))
    wanted = make_pool("dra.cpu", "node1", [device(i, 3 if i == 150 else 4) for i in range(200)])
    writes = plan_writes(wanted, stored, {})
    assert kinds(writes) == ["Replace"]
    after = accept(stored, writes, wanted)
    assert {one.generation for one in after} == {1}
    assert_published(after, wanted)


def test_change_of_several_slices_is_a_new_generation_written_to_all() -> None:
    """D4."""
    stored = settle((), pool(300))
    wanted = make_pool("dra.cpu", "node1", [device(i, 3 if i < 200 else 4) for i in range(300)])
    writes = plan_writes(wanted, stored, {})
    assert kinds(writes) == ["Replace"] * 3
    after = accept(stored, writes, wanted)
    assert {one.generation for one in after} == {2}
    assert_published(after, wanted)


@pytest.mark.parametrize(("before", "then"), [(100, 300), (300, 100), (300, 0), (129, 128)])
def test_pool_grows_and_shrinks(before: int, then: int) -> None:
    """D4."""
    wanted = pool(then)
    assert_published(settle(settle((), pool(before)), wanted), wanted)


def test_deletions_come_first_then_updates_then_creations() -> None:
    """D4."""
    first, second = sorted(settle((), pool(200)), key=lambda one: one.name)
    foreign = replace(second, name="hand-made", uid="u")
    writes = plan_writes(pool(200), [first, foreign], {})
    assert kinds(writes) == ["Delete", "Replace", "Create"]
    assert delete_options(Delete(slice=foreign)) == {
        "preconditions": {"uid": "u", "resourceVersion": second.resource_version}
    }
    update = writes[1]
    assert isinstance(update, Replace)
    metadata = json.loads(json.dumps(slice_object(pool(200), update, "node-uid")))["metadata"]
    seen = (first.name, first.uid, first.resource_version)
    assert (metadata["name"], metadata["uid"], metadata["resourceVersion"]) == seen


@pytest.mark.parametrize("obsolete", ["name", "index", "width", "twice", "generation", "pool"])
def test_obsolete_slices_go(obsolete: str) -> None:
    """D4."""
    (good,) = settle((), pool(4))
    good = replace(
        good, generation=3, spec={**good.spec, "pool": {"name": "node1", "generation": 3, "resourceSliceCount": 1}}
    )
    bad = {
        "name": replace(good, name="node1-dra.cpu-abcde"),
        "index": replace(good, name="00001-dra.cpu-node1-b"),
        "width": replace(good, name="000000-dra.cpu-node1-b"),
        "twice": replace(good, name="00000-dra.cpu-node1-zz"),
        "generation": replace(good, name="00000-dra.cpu-node1-0", generation=2),
        "pool": replace(good, name="00000-dra.cpu-node1-0", pool="node2", generation=9),
    }[obsolete]
    assert plan_writes(pool(4), [good, bad], {}) == (Delete(slice=bad),)


def test_deleted_slices_come_back() -> None:
    """D4: all of them, and one of several."""
    wanted = pool(300)
    stored = settle((), wanted)
    assert_published(settle((), wanted), wanted)
    assert_published(settle(stored[1:], wanted), wanted)


def spec_of(wanted: Pool) -> JsonObject:
    """Return what is written of a pool of one slice."""
    (write,) = plan_writes(wanted, (), {})
    assert isinstance(write, Create)
    return write.spec


def test_equal_meaning_is_not_written() -> None:
    """D4: quantities by value, absent and empty alike."""
    (stored,) = settle((), pool(2))
    other = json.loads(json.dumps(spec_of(pool(2))).replace('"4"', '"4000m"'))
    other["sharedCounters"] = []
    other["devices"][0]["taints"] = None
    assert plan_writes(pool(2), [replace(stored, spec=canonical(other))], {}) == ()


def test_field_of_somebody_else_is_written_over() -> None:
    (stored,) = settle((), pool(2))
    tainted = json.loads(json.dumps(spec_of(pool(2))))
    tainted["devices"][0]["taints"] = [{"key": "a", "effect": "NoSchedule"}]
    assert kinds(plan_writes(pool(2), [replace(stored, spec=canonical(tainted))], {})) == ["Replace"]


def test_dropped_fields_are_named_and_not_written_again() -> None:
    """D3."""
    (stored,) = settle((), pool(2))
    sent = stored.spec
    kept = json.loads(json.dumps(sent))
    for one in kept["devices"]:
        del one["allowMultipleAllocations"], one["capacity"]["dra.cpu/cpu"]["requestPolicy"]["validRange"]["step"]
    lost = replace(stored, spec=kept)
    step = "capacity.dra.cpu/cpu.requestPolicy.validRange.step"
    assert dropped_fields(sent, kept) == tuple(
        f"spec.devices[{index}].{field}" for index in range(2) for field in ("allowMultipleAllocations", step)
    )
    assert vital_fields(dropped_fields(sent, kept)) == tuple(
        f"spec.devices[{i}].allowMultipleAllocations" for i in (0, 1)
    )
    assert kinds(plan_writes(pool(2), [lost], {})) == ["Replace"]
    accepted: Mapping[str, tuple[JsonObject, JsonObject]] = {stored.name: (sent, kept)}
    assert plan_writes(pool(2), [lost], accepted) == ()
    assert kinds(plan_writes(pool(2, 3), [lost], accepted)) == ["Replace"]


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"metadata":{"name":"a","uid":"b","resourceVersion":"1"},"spec":{}}', b"[" * 100_000],
    ids=lambda data: repr(data[:10]),
)
def test_what_is_no_slice_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest, match="not a ResourceSlice"):
        decode_slice(data)


def test_recorded_slice_has_the_form_that_is_written() -> None:
    """Recorded from a real API server, Kubernetes 1.36: same fields in the same places as ours."""
    recorded = decode_slice(shared_data("wire", "api", "resourceslice.json").read_bytes())
    ours = settle((), pool(2, 8))[0].spec
    assert set(recorded.spec) == set(ours)
    theirs_first, ours_first = json.loads(json.dumps([recorded.spec["devices"], ours["devices"]]))
    assert set(theirs_first[0]) == set(ours_first[0])
    assert theirs_first[0]["capacity"]["rec.example/cpu"] == ours_first[0]["capacity"]["dra.cpu/cpu"]


def test_device_that_is_one_cpu_goes_to_one_claim_as_a_whole() -> None:
    """D1: no capacity, no multiple allocations."""
    written = device_object("dra.cpu", replace(device(3, 1), step=0))
    assert set(written) == {"name", "attributes"}
    assert "taints" in device_object("dra.cpu", replace(device(3, 1), step=0), Form(closed=True))


@pytest.mark.parametrize(
    ("capacity", "step", "policy"),
    [
        (1, 1, {"default": "1", "validRange": {"min": "1"}}),
        (2, 1, {"default": "1", "validRange": {"min": "1", "step": "1"}}),
        (2, 2, {"default": "2", "validRange": {"min": "2"}}),
        (4, 2, {"default": "2", "validRange": {"min": "2", "step": "2"}}),
        (12, 8, {"default": "8", "validRange": {"min": "8"}}),
    ],
)
def test_amounts_are_multiples_of_a_step_that_the_server_accepts(capacity: int, step: int, policy: JsonObject) -> None:
    """D1, K2: step is left out where min + step would be above the value."""
    written = device_object("dra.cpu", replace(device(1, capacity), step=step))
    assert written["capacity"] == {"dra.cpu/cpu": {"value": str(capacity), "requestPolicy": policy}}


def test_thousand_single_cpus_fill_slices_of_128_and_of_64_with_taints() -> None:
    """D4: limits by content."""
    devices = [replace(device(i, 1), step=0) for i in range(1000)]
    open_pool = make_pool("dra.cpu", "node1", devices)
    assert [len(page) for page in open_pool.pages] == [128] * 7 + [104]
    closed = make_pool("dra.cpu", "node1", devices, Form(closed=True))
    assert [len(page) for page in closed.pages] == [64] * 15 + [40]
    assert_published(settle(settle([], open_pool), closed), closed)


def test_list_attributes_make_slices_of_64() -> None:
    """D4: limits by content."""
    rooted = [replace(device(i), attributes={"a/roots": ("x", "y")}) for i in range(130)]
    assert [len(page) for page in make_pool("dra.cpu", "node1", rooted).pages] == [64, 64, 2]
    plain = make_pool("dra.cpu", "node1", rooted, Form(lists=False))
    assert [len(page) for page in plain.pages] == [128, 2]
    assert device_object("dra.cpu", rooted[0])["attributes"] == {"a/roots": {"strings": ("x", "y")}}
    assert device_object("dra.cpu", rooted[0], Form(lists=False))["attributes"] == {}
    (page, *_) = make_pool("dra.cpu", "node1", rooted[:1]).pages
    assert list_attributes({"devices": page}) == ("spec.devices[0].attributes.a/roots.strings",)


@pytest.mark.parametrize(
    ("version", "grouped", "single"),
    [
        ((1, 35), {}, {}),
        (
            (1, 36),
            {"nodeAllocatableResourceMappings": {"cpu": {"capacityKey": "dra.cpu/cpu"}}},
            {"nodeAllocatableResourceMappings": {"cpu": {"allocationMultiplier": "1"}}},
        ),
        (
            (1, 37),
            {
                "nodeAllocatableResources": {
                    "cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}
                }
            },
            {"nodeAllocatableResources": {"cpu": {"mapping": {"deviceMultiplier": "1"}}}},
        ),
        ((2, 0), None, None),
    ],
)
def test_devices_are_the_nodes_cpus_in_the_form_of_the_servers_version(
    version: tuple[int, int], grouped: JsonObject | None, single: JsonObject | None
) -> None:
    """D3."""
    form = Form(counted=node_allocatable_form(*version))

    def told(one: Device) -> JsonObject:
        return {key: value for key, value in device_object("dra.cpu", one, form).items() if key.startswith("node")}

    if grouped is None or single is None:
        assert form.counted is NodeAllocatable.RESOURCES
        return
    assert told(device(0)) == grouped
    assert told(replace(device(0, 1), step=0)) == single


def test_quantities_of_the_mapping_are_compared_by_value() -> None:
    """D4."""
    one = {"mapping": {"capacityMultiplier": "1"}}
    assert canonical(one) == canonical({"mapping": {"capacityMultiplier": "1000m"}})


def test_dropped_fields_name_their_gates() -> None:
    """D3."""
    dropped = (
        "spec.devices[0].nodeAllocatableResources.cpu.mapping.capacityKey",
        "spec.devices[0].allowMultipleAllocations",
        "spec.devices[1].allowMultipleAllocations",
        "spec.devices[0].attributes.a/b.strings[0]",
    )
    assert gates_of(dropped) == ("DRAConsumableCapacity", "DRAListTypeAttributes", "DRANodeAllocatableResources")
    assert gates_of(("spec.devices[0].attributes.a/b.int",)) == ()
