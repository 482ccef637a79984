"""ResourceClaims: what counts, and an error that says what is wrong for everything else (C1, C13)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from nodecpu.cpuset import MAX_ID, CpuSet
from nodecpu.dra.claims import MAX_CLAIM_BYTES, claim_is_over, decode_claim, parse_claim_uid
from nodecpu.errors import BadRequest
from nodecpu.ids import ClaimUID, PodUID
from nodecpu.policy.facts import AllocatedClaim, AllocationResult
from nodecpu.policy.wishes import Wishes
from tests.support import shared_data

UID = ClaimUID("cf3ab531-0d17-4d75-961a-98cb71615a07")


def result(**changes: object) -> dict[str, object]:
    return {
        "driver": "dra.cpu",
        "request": "cpus",
        "pool": "node1",
        "device": "cpudevnuma001",
        "consumedCapacity": {"dra.cpu/cpu": "4"},
        **changes,
    }


def claim(
    *results: Mapping[str, object], uid: str = UID, config: Sequence[object] | None = None, **status: object
) -> bytes:
    devices = {"results": results} | ({} if config is None else {"config": config})
    return json.dumps(
        {
            "metadata": {"name": "web", "namespace": "shop", "uid": uid},
            "status": {"allocation": {"devices": devices}, **status},
        }
    ).encode()


def parameters(**config: object) -> object:
    return {"apiVersion": "v1alpha1", "cpuConfig": config}


def decode(data: bytes, *, cpus_per_device: int | None = None) -> AllocatedClaim:
    return decode_claim(data, driver="dra.cpu", uid=UID, namespace="shop", name="web", cpus_per_device=cpus_per_device)


def refusal(data: bytes) -> str:
    with pytest.raises(BadRequest) as refused:
        decode(data)
    return refused.value.message


def test_results_of_our_driver_count_and_others_do_not() -> None:
    """C1."""
    other = result(driver="gpu.example", device="gpu-7", consumedCapacity=None)
    share = result(request="a/b", shareID="4a7f7009-39aa-4e12-b928-4b7a67ce0bdd")
    decoded = decode(claim(other, share, result(consumedCapacity={"dra.cpu/cpu": "2000m", "other/cpu": "half"})))
    assert decoded.results == (
        AllocationResult(
            request="a/b",
            pool="node1",
            device="cpudevnuma001",
            cpus=4,
            share_id="4a7f7009-39aa-4e12-b928-4b7a67ce0bdd",
        ),
        AllocationResult(request="cpus", pool="node1", device="cpudevnuma001", cpus=2),
    )


def test_claim_without_results_of_ours_decodes_to_none() -> None:
    """C1."""
    assert decode(claim(result(driver="gpu.example"))).results == ()
    assert decode(claim()).results == ()


@pytest.mark.parametrize("text", ["4", "4e0", "4000m", "0.004k", "4000000000n"])
def test_any_form_of_a_whole_amount_is_that_amount(text: str) -> None:
    assert decode(claim(result(consumedCapacity={"dra.cpu/cpu": text}))).results[0].cpus == 4


def test_amount_may_be_that_of_the_largest_machine_there_can_be() -> None:
    """C1: one CPU more is refused."""
    assert decode(claim(result(consumedCapacity={"dra.cpu/cpu": str(MAX_ID)}))).results[0].cpus == MAX_ID
    assert "more CPUs than" in refusal(claim(result(consumedCapacity={"dra.cpu/cpu": str(MAX_ID + 1)})))


@pytest.mark.parametrize(
    ("amount", "wrong"),
    [
        ("0", "consumed dra.cpu/cpu is 0: not positive"),
        ("1n", "consumed dra.cpu/cpu is 1n: not a whole number of CPUs"),
        ("-2", "consumed dra.cpu/cpu is -2: not positive"),
        ("1500m", "consumed dra.cpu/cpu is 1500m: not a whole number of CPUs"),
        ("1M", "consumed dra.cpu/cpu is 1M: more CPUs than any machine has"),
        ("many", "consumed dra.cpu/cpu: not a quantity: 'many'"),
    ],
)
def test_bad_amount_is_refused_by_claim_result_and_reason(amount: str, wrong: str) -> None:
    """C1."""
    bad = claim(result(driver="x.example"), result(consumedCapacity={"dra.cpu/cpu": amount}))
    assert refusal(bad) == f"claim shop/web: result 1 (cpus): device cpudevnuma001, {wrong}"


def test_missing_amount_is_refused_unless_the_device_is_one_cpu() -> None:
    """C1, C2."""
    data = claim(result(consumedCapacity={"dra.cpu/memory": "4"}))
    assert "without consumed capacity dra.cpu/cpu" in refusal(data)
    assert decode(data, cpus_per_device=1).results[0].cpus == 1


def test_device_that_is_one_cpu_needs_no_amount() -> None:
    """C1, C2: by its name."""
    decoded = decode(claim(result(device="cpudev007", consumedCapacity=None)))
    assert (decoded.results[0].device, decoded.results[0].cpus) == ("cpudev007", 1)


def test_configuration_reaches_the_results_it_is_for() -> None:
    """C9, C10: others' results between ours change nothing."""
    config = [
        {"source": "FromClass", "opaque": {"driver": "dra.cpu", "parameters": parameters(fullCores=True)}},
        {"source": "FromClaim", "requests": ["b"], "opaque": {"driver": "gpu.example", "parameters": {"x": 1}}},
        {
            "source": "FromClaim",
            "requests": ["c"],
            "opaque": {"driver": "dra.cpu", "parameters": parameters(sameL3=True)},
        },
    ]
    other = result(driver="gpu.example", request="b")
    decoded = decode(claim(result(request="a"), other, result(request="c/sub"), config=config))
    assert [(r.request, r.wishes) for r in decoded.results] == [
        ("a", Wishes(full_cores=True)),
        ("c/sub", Wishes(full_cores=True, same_l3=True)),
    ]
    named = [{"source": "FromClaim", "opaque": {"driver": "dra.cpu", "parameters": parameters(cpuset="4-7")}}]
    assert decode(claim(result(), config=named)).results[0].cpuset == CpuSet([4, 5, 6, 7])
    assert decode(claim(other, config=named)).results == ()


def test_admin_access_takes_no_cpus() -> None:
    """C13."""
    decoded = decode(claim(result(adminAccess=True, consumedCapacity={"dra.cpu/cpu": "many"})))
    assert decoded.results[0].admin_access
    assert decoded.results[0].cpus == 0


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_claim_without_allocation_is_refused(status: object) -> None:
    """C1."""
    data = json.dumps({"metadata": {"name": "web", "namespace": "shop", "uid": UID}, "status": status}).encode()
    assert refusal(data) == "claim shop/web: not allocated"


def test_claim_created_again_under_its_name_is_another_claim() -> None:
    """C6."""
    assert refusal(claim(result(), uid="other")) == f"claim shop/web: its UID is 'other', not {UID}"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("request", ""),
        ("request", "a=b"),
        ("request", "a/b/c"),
        ("request", "a\n"),
        ("device", "../x"),
        ("device", "UPPER"),
        ("pool", ""),
        ("pool", "a b"),
    ],
)
def test_names_that_could_break_out_of_a_variable_or_file_are_refused(field: str, value: str) -> None:
    assert f"{field} {value!r} is malformed" in refusal(claim(result(**{field: value})))


def test_pods_it_is_reserved_for_are_told_by_uid() -> None:
    consumers = [
        {"resource": "pods", "name": "a", "uid": "u1"},
        {"resource": "pods", "name": "b", "uid": "u2", "apiGroup": ""},
        {"resource": "jobs", "name": "c", "uid": "u3", "apiGroup": "batch"},
        {"resource": "pods", "name": "d", "uid": "u4", "apiGroup": "other.example"},
        {"resource": "nodes", "name": "e", "uid": "u5"},
    ]
    assert decode(claim(result(), reservedFor=consumers)).reserved_for == {PodUID("u1"), PodUID("u2")}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"metadata": 1}',
        b'{"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "status": {"allocation": []}}',
        b'{"metadata": {"name": "\xff", "namespace": "b", "uid": "c"}}',
        b'{"a":' * 100_000,
        b"[" * 1_000_000,
        b'{"metadata": {"name": "a", "namespace": "b", "uid": "c"}, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b" " * (MAX_CLAIM_BYTES + 1),
    ],
    ids=lambda data: f"{data[:12]!r}x{len(data)}",
)
def test_hostile_bytes_get_a_typed_error(data: bytes) -> None:
    assert refusal(data).startswith("claim shop/web: ")


def test_claim_may_be_as_large_as_stored_objects_are() -> None:
    """A byte more is refused."""
    assert MAX_CLAIM_BYTES == 4_194_304
    data = claim(result())
    whole = data + b" " * (MAX_CLAIM_BYTES - len(data))
    assert decode(whole).results
    assert "more than any stored object" in refusal(whole + b" ")


def is_over(data: bytes) -> bool:
    return claim_is_over(data, driver="dra.cpu", pool="node1", namespace="shop", name="web")


def test_claim_is_over_when_nobody_may_use_it_on_this_node() -> None:
    """U41: what is in doubt is not over."""
    pods = [{"resource": "pods", "name": "web", "uid": "p1"}]
    assert not is_over(claim(result(), reservedFor=pods))
    assert not is_over(claim(result(pool="node2"), result(), reservedFor=pods))
    assert not is_over(claim(result(consumedCapacity={}), reservedFor=pods))
    assert is_over(claim(result()))
    assert is_over(claim(result(pool="node2"), reservedFor=pods))
    assert is_over(claim(result(driver="gpu.example"), reservedFor=pods))
    assert is_over(json.dumps({"metadata": {"name": "web", "namespace": "shop", "uid": UID}}).encode())
    with pytest.raises(BadRequest):
        is_over(b"{}")


@pytest.mark.parametrize("text", ["", "-a", "a-", "a/b", "..", "a" * 65, "a\n", "ü", "a=b", "a_b"])
def test_malformed_uid_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="malformed"):
        parse_claim_uid(text)


def test_recorded_claims_decode() -> None:
    """Recorded from a real API server, Kubernetes 1.36."""
    data = shared_data("wire", "api", "claim-c1-allocated-p1.json").read_bytes()
    decoded = decode_claim(data, driver="rec.example", uid=UID, namespace="default", name="c1")
    assert [(r.request, r.pool, r.device, r.cpus) for r in decoded.results] == [("r", "node1", "dev0", 2)]
    assert decoded.reserved_for == {PodUID("f3d96811-50b0-4422-90c2-bbbe1abc520a")}
    four = shared_data("wire", "api", "claim-c1-reserved-four.json").read_bytes()
    assert len(decode_claim(four, driver="rec.example", uid=UID, namespace="default", name="c1").reserved_for) == 4
    after = shared_data("wire", "api", "claim-c1-after-all-pods.json").read_bytes()
    with pytest.raises(BadRequest, match="not allocated"):
        decode_claim(after, driver="rec.example", uid=UID, namespace="default", name="c1")
