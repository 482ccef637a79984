"""What traces tell of claims that the books do not know, and how a claim is adopted with the CPUs that it runs on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.ids import ClaimUID
from nodecpu.policy.evidence import Evidence, adopted_grant, is_uid, shown_by, told_by, unproven_grants
from nodecpu.policy.facts import AllocatedClaim, AllocationResult
from nodecpu.policy.grants import ClaimGrant, ResultGrant
from nodecpu.policy.links import ENV_PREFIX
from tests.unit.policy.given import claim, claim_uid, container, cpus
from tests.unit.policy.machines import books

UNITS = books().machine.units
DEVICES = books().machine.devices
A, B = claim_uid(1), claim_uid(2)


def variable(uid: str, rest: str = "") -> str:
    return f"{ENV_PREFIX}{uid}{rest}"


def evidence(uid: ClaimUID, where: str, **requests: str) -> Evidence:
    return Evidence(uid=uid, cpus=cpus(where), requests={name: cpus(part) for name, part in requests.items()})


# What variables and devices tell


def test_variables_tell_a_claims_cpus_and_those_of_its_requests() -> None:
    """R2, C11: by UID; a request with more than its claim's CPUs tells nothing."""
    told = told_by(
        {
            variable(B): "8",
            variable(A, "_big"): "2-3",
            variable(A, "_all"): "0-3",
            variable(A, "_wild"): "3-4",
            variable(A): "0-3",
            variable(claim_uid(3), "_lone"): "9",
        }
    )
    assert told == (evidence(A, "0-3", _all="0-3", _big="2-3"), evidence(B, "8"))
    assert list(told[0].requests) == ["_all", "_big"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(variable("x" * 36), "0-3", id="no UID"),
        pytest.param(variable(A[:-1]), "0-3", id="short UID"),
        pytest.param(variable(A, "x"), "0-3", id="no request"),
        pytest.param(variable(A, "0_r"), "0-3", id="long UID"),
        pytest.param(A, "0-3", id="no prefix"),
        pytest.param(f"X{variable(A)}", "0-3", id="other prefix"),
        pytest.param(variable(A), "", id="no CPUs"),
        pytest.param(variable(A), "all", id="no list"),
    ],
)
def test_malformed_variables_tell_nothing(name: str, value: str) -> None:
    """R2: and do not hide the others."""
    assert told_by({name: value}) == ()
    assert told_by({name: value, variable(B): "8"}) == (evidence(B, "8"),)


def test_container_shows_claims_by_variables_and_devices_of_any_vendor() -> None:
    """R2."""
    shown = container(
        env={variable(A): "0", variable(claim_uid(3), "_r"): "?", "DRA_CPUSET_x": "0"},
        devices=(f"dra.cpu/cpu=claim-{B}-0", f"other.example/x=claim-{claim_uid(4)}", "dra.cpu/cpu=7", f"claim-{A}"),
    )
    assert shown_by(shown) == {A, B, claim_uid(3), claim_uid(4)}
    assert shown_by(container()) == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        A[:-1],
        A + "0",
        A.replace("-", "_"),
        A.replace("0", "g"),
        A.replace("0", "A"),
        A.replace("-", "", 1),
        "0000000-00000-4000-8000-0000000000c1",
        "00000000-000-40000-8000-0000000000c1",
        "00000000-0000-400-80000-0000000000c1",
        "00000000-0000-4000-800-00000000000c1",
        "000000000-0000-4000-8000-0000000000c",
        A + "-",
    ],
)
def test_other_texts_are_no_uids(text: str) -> None:
    """RFC 4122 text form, lower case, as Kubernetes writes it."""
    assert is_uid(A)
    assert is_uid("01234567-89ab-cdef-0123-456789abcdef")
    assert not is_uid(text)


# Unproven grants

uids = st.sampled_from([claim_uid(i) for i in range(4)])
sets = st.sets(st.integers(0, 9), max_size=4).map(CpuSet)
pieces = st.builds(
    lambda uid, whole, parts: Evidence(
        uid=uid, cpus=whole, requests={f"_{i}": whole & part for i, part in enumerate(parts) if whole & part}
    ),
    uids,
    sets,
    st.lists(sets, max_size=3),
)


@settings(max_examples=60)
@given(told=st.lists(pieces, max_size=5), known=st.sets(uids, max_size=2), taken=sets)
def test_unproven_claims_keep_cpus_that_nobody_else_has(
    told: list[Evidence], known: set[ClaimUID], taken: CpuSet
) -> None:
    """R2, C4: the first to tell of a CPU has it, of requests too."""
    found = {grant.uid: grant for grant in unproven_grants(told, known, taken)}
    gone, seen = taken, set(known)
    for one in told:
        free = one.cpus - gone
        if one.uid in seen or not free:
            continue
        grant = found.pop(one.uid)
        seen.add(one.uid)
        assert (grant.cpus, grant.unproven, grant.released, grant.moved) == (free, True, False, False)
        left = free
        for suffix, part in one.requests.items():
            assert grant.request_cpus(suffix) == part & left
            left -= part
        assert grant.request_cpus("") == left
        assert all(result.cpus for result in grant.results)
        gone |= free
    assert found == {}


# Adoption


def unproven(whole: str, **requests: str) -> ClaimGrant:
    [grant] = unproven_grants([evidence(A, whole, **requests)], [], NO_CPUS)
    return grant


def adopted(old: ClaimGrant, told: AllocatedClaim, devices: Mapping[str, CpuSet] = DEVICES) -> ClaimGrant | None:
    return adopted_grant(old, told, units=UNITS, devices=devices, driver="dra.cpu")


def test_confirmed_claim_is_adopted_with_the_cpus_it_has() -> None:
    """R2, C11: each request with its own, and the whole with its names."""
    told = claim(1, (0, 2), (1, 1))
    grant = adopted(replace(unproven("1,3,5", _r0="1,3", _r1="5"), released=True), told)
    assert grant is not None
    assert [str(result.cpus) for result in grant.results] == ["1,3", "5"]
    assert [(r.request, r.pool, r.device) for r in grant.results] == [
        (r.request, r.pool, r.device) for r in told.results
    ]
    assert (grant.uid, grant.namespace, grant.name) == (told.uid, told.namespace, told.name)
    assert (grant.unproven, grant.released) == (False, False)
    assert grant.cdi_ids == (f"dra.cpu/cpu=claim-{A}-0", f"dra.cpu/cpu=claim-{A}-1")


def test_requests_are_told_apart_by_devices_and_cores_where_variables_do_not() -> None:
    """R2: two threads of a core together."""
    told = claim(1, (0, 1), (0, 2), (1, 1))
    grant = adopted(unproven("0,2-3,7"), told)
    assert grant is not None
    assert [str(result.cpus) for result in grant.results] == ["0", "2-3", "7"]


def test_variables_of_requests_say_which_of_a_devices_cpus_are_whose() -> None:
    """R2: against what would be picked without them; where they have too few, the device's others."""
    told = claim(1, (0, 2), (0, 2))
    grant = adopted(unproven("0-3", _r0="2-3", _r1="0-1"), told)
    assert grant is not None
    assert [str(result.cpus) for result in grant.results] == ["2-3", "0-1"]
    short = adopted(unproven("0-3", _r0="3"), told)
    assert short is not None
    assert [len(result.cpus) for result in short.results] == [2, 2]


def test_devices_of_another_driver_say_nothing_about_cpus() -> None:
    """D7: names that we do not know are kept."""
    told = claim(1, (0, 2))
    grant = adopted(unproven("6-7"), told, devices={})
    assert grant is not None
    assert (grant.cpus, grant.results[0].device) == (cpus("6-7"), "cpudevnuma000")


def test_device_that_holds_others_leaves_them_what_only_they_can_give() -> None:
    """R2: in whatever order the results come; a claim that fits is not left as one that does not."""
    first, second = claim(1, (0, 2), (1, 2)).results
    whole = replace(first, device="cpudevmachine000")
    told = replace(claim(1), results=(whole, replace(second, device="cpudevnuma000")))
    grant = adopted(unproven("0-1,4-5"), told, devices={**DEVICES, "cpudevmachine000": cpus("0-15")})
    assert grant is not None
    assert [str(result.cpus) for result in grant.results] == ["4-5", "0-1"]


@pytest.mark.parametrize(
    ("whole", "wanted"),
    [
        pytest.param("0-1", [(0, 3)], id="too few"),
        pytest.param("0-1", [(0, 1)], id="too many"),
        pytest.param("0-1", [(1, 2)], id="of another device"),
        pytest.param("0-1", [], id="no results"),
        pytest.param("0-1", [(0, 0)], id="no CPUs"),
    ],
)
def test_claim_whose_allocation_says_otherwise_is_not_adopted(whole: str, wanted: list[tuple[int, int]]) -> None:
    """R2."""
    assert adopted(unproven(whole), claim(1, *wanted)) is None


def test_admin_access_is_adopted_without_cpus() -> None:
    """C13: beside other results; alone it has no traces."""
    looks = AllocationResult(request="look", pool="node-a", device="cpudevnuma000", cpus=2, admin_access=True)
    both = claim(1, (0, 2))
    told = replace(both, results=(replace(looks, share_id="s"), *both.results))
    grant = adopted(unproven("0-1"), told)
    assert grant is not None
    assert grant.results[0] == ResultGrant(
        request="look", pool="node-a", device="cpudevnuma000", cpus=NO_CPUS, share_id="s", admin_access=True
    )
    assert grant.cpus == cpus("0-1")
    assert adopted(ClaimGrant(uid=A, namespace="", name="", results=()), replace(both, results=(looks,))) is None


@settings(max_examples=60)
@given(
    whole=st.sets(st.integers(0, 14), min_size=1, max_size=8).map(CpuSet),
    wanted=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=4),
)
def test_adopted_claim_has_what_it_had_as_its_allocation_says(whole: CpuSet, wanted: list[tuple[int, int]]) -> None:
    """R2, C3: every CPU once, as many as allocated, of the device; or it is not adopted."""
    told = claim(1, *wanted)
    grant = adopted(unproven(str(whole)), told)
    per_node = {node: sum(count for one, count in wanted if one == node) for node in range(4)}
    fits = all(len(whole & DEVICES[f"cpudevnuma{node:03d}"]) == count for node, count in per_node.items())
    assert (grant is not None) is fits
    if grant is not None:
        assert union(result.cpus for result in grant.results) == whole
        assert sum(len(result.cpus) for result in grant.results) == len(whole)
        for result, (node, count) in zip(grant.results, wanted, strict=True):
            assert (len(result.cpus), result.cpus <= DEVICES[f"cpudevnuma{node:03d}"]) == (count, True)
