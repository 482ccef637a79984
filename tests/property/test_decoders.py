"""Decoders of what others wrote: a value or a typed error, for any bytes, any JSON, and damaged good objects."""

from __future__ import annotations

import json
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodecpu.cpuset import MAX_ID, NO_CPUS
from nodecpu.dra.claims import decode_claim
from nodecpu.dra.devices import Device
from nodecpu.dra.slices import Pool, Slice, canonical, decode_slice, make_pool, plan_writes
from nodecpu.errors import BadRequest
from nodecpu.ids import ClaimUID
from nodecpu.kube.podspec import decode_pod
from nodecpu.quantity import NANO, parse_quantity
from tests.unit.dra.test_slices import accept, assert_published

UID = ClaimUID("cf3ab531-0d17-4d75-961a-98cb71615a07")

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["4", "1e3", UID, "dra.cpu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)

CLAIM: object = {
    "metadata": {"name": "web", "namespace": "shop", "uid": UID},
    "status": {
        "allocation": {
            "devices": {
                "results": [
                    {
                        "driver": "dra.cpu",
                        "request": "cpus",
                        "pool": "node1",
                        "device": "cpudevnuma001",
                        "shareID": "4a7f7009-39aa-4e12-b928-4b7a67ce0bdd",
                        "consumedCapacity": {"dra.cpu/cpu": "4"},
                    }
                ]
            }
        },
        "reservedFor": [{"resource": "pods", "uid": "u1"}],
    },
}

POD: object = {
    "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "annotations": {"a": "b"}},
    "spec": {
        "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "c"}]}}],
        "initContainers": [{"name": "b", "restartPolicy": "Always"}],
        "resourceClaims": [{"name": "c", "resourceClaimName": "c1"}],
    },
    "status": {"qosClass": "Guaranteed", "resourceClaimStatuses": [{"name": "c", "resourceClaimName": "c2"}]},
}

SLICE: object = {
    "metadata": {"name": "a", "uid": "b", "resourceVersion": "1"},
    "spec": {"pool": {"name": "n", "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "d"}]},
}


@st.composite
def damaged(draw: st.DrawFn, good: object) -> bytes:
    """Return a good object with one part of it exchanged for any JSON, or taken away."""
    value = json.loads(json.dumps(good))
    place = value
    while True:
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        inner = place[key]
        if isinstance(inner, dict | list) and inner and draw(st.booleans()):
            place = inner
            continue
        if draw(st.booleans()):
            del place[key]
        else:
            place[key] = draw(JSON)
        return json.dumps(value).encode()


def hostile(good: object) -> st.SearchStrategy[bytes]:
    whole = json.dumps(good).encode()
    cut = st.integers(0, len(whole)).map(lambda n: whole[:n])
    return st.binary(max_size=200) | JSON.map(lambda j: json.dumps(j).encode()) | damaged(good) | cut


@given(hostile(CLAIM))
def test_any_claim_is_a_sane_allocation_or_a_refusal(data: bytes) -> None:
    """C1."""
    try:
        claim = decode_claim(data, driver="dra.cpu", uid=UID, namespace="shop", name="web")
    except BadRequest:
        return
    assert claim.uid == UID
    for one in claim.results:
        assert one.admin_access or 1 <= one.cpus <= MAX_ID
        assert "=" not in one.request + one.device
        assert "\n" not in one.request + one.device


@given(hostile(POD))
def test_any_pod_is_a_spec_or_a_refusal(data: bytes) -> None:
    """N1."""
    try:
        pod = decode_pod(data)
    except BadRequest:
        return
    assert all(name == one.name for name, one in pod.containers.items())


@given(hostile(SLICE))
def test_any_slice_is_read_or_refused_and_never_upsets_the_plan(data: bytes) -> None:
    """D4: whatever others leave in our pool, the plan ends in what should be."""
    try:
        found = decode_slice(data)
    except BadRequest:
        return
    assert canonical(found.spec) == found.spec
    wanted = pool_of([4, 4])
    stored = accept([found], plan_writes(wanted, [found], {}), wanted)
    assert_published(stored, wanted)


@given(st.text(max_size=20) | st.from_regex(r"[+-]?[0-9]*\.?[0-9]*([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?"))
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    with suppress(ValueError):
        parse_quantity(text)


@given(st.integers(-(10**9), 10**9), st.sampled_from(["n", "u", "m", "", "k", "M", "e-9", "e-1", "E0", "e3", "E+6"]))
def test_quantity_is_its_number_times_its_power_of_ten(number: int, suffix: str) -> None:
    named = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6}
    power = named[suffix] if suffix in named else int(suffix[1:])
    assert Fraction(parse_quantity(f"{number}{suffix}"), NANO) == number * Fraction(10) ** power


@given(st.integers(0, 10**6), st.integers(0, 999_999_999))
def test_decimal_fraction_is_exact_to_billionths(whole: int, fraction: int) -> None:
    assert parse_quantity(f"{whole}.{fraction:09d}") == whole * NANO + fraction


def pool_of(capacities: list[int]) -> Pool:
    return make_pool(
        "dra.cpu",
        "node1",
        [Device(name=f"d{i}", cpus=NO_CPUS, capacity=c, attributes={}) for i, c in enumerate(capacities)],
    )


CAPACITIES = st.lists(st.integers(1, 3), max_size=4).map(lambda c: c * 70)


@settings(max_examples=25)
@given(CAPACITIES, CAPACITIES, st.data())
def test_plan_ends_in_what_should_be_wherever_it_is_cut_short(
    before: list[int], then: list[int], data: st.DataObject
) -> None:
    """D4: after any part of the writes, and after any deletion, the next plan completes the pool."""
    old, wanted = pool_of(before), pool_of(then)
    stored: list[Slice] = accept([], plan_writes(old, [], {}), old)
    stored = [one for one in stored if data.draw(st.booleans())]
    writes = plan_writes(wanted, stored, {})
    done = data.draw(st.integers(0, len(writes)))
    stored = accept(stored, writes[:done], wanted)
    assert_published(accept(stored, plan_writes(wanted, stored, {}), wanted), wanted)


def test_floats_are_no_quantities() -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity("nan")
