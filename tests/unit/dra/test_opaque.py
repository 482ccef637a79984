"""Configurations of claims: who they are for, what they may say, and errors for everything else (C9, C10)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet
from nodecpu.dra.opaque import MAX_PARAMETERS_BYTES, Asked, Entry, Opaque, asked_for
from nodecpu.errors import BadRequest
from nodecpu.policy.wishes import Spread, Wishes


def entry(
    config: object,
    *requests: str,
    source: str = "FromClaim",
    driver: str = "dra.cpu",
    version: object = "v1alpha1",
) -> Entry:
    parameters = msgspec.Raw(json.dumps({"apiVersion": version, "cpuConfig": config}).encode())
    return Entry(source=source, requests=requests, opaque=Opaque(driver=driver, parameters=parameters))


def asked(entries: Sequence[Entry], *requests: str) -> list[Asked]:
    return list(asked_for(entries, "dra.cpu", requests, "claim shop/web"))


def refusal(entries: Sequence[Entry], *requests: str) -> str:
    with pytest.raises(BadRequest) as refused:
        asked(entries, *requests)
    assert refused.value.message.startswith("claim shop/web: ")
    return refused.value.message


NOTHING = Asked()
TWO = Asked(cpuset=CpuSet([2, 3]))


def test_cpuset_is_for_the_request_named() -> None:
    """C9."""
    assert asked([entry({"cpuset": "2-3"}, "b")], "a", "b") == [NOTHING, TWO]
    assert asked([entry({"cpuset": "3,2"}, "b")], "b/x") == [TWO]
    assert asked([entry({"cpuset": "2-3"}, "b/x")], "b/y", "b/x") == [NOTHING, TWO]
    assert asked([entry({"cpuset": "2-3"}, "c")], "a") == [NOTHING]
    assert asked([entry({"cpuset": "2-3"}, "cpus")], "cpus2", "cpus-2/x", "cpus") == [NOTHING, NOTHING, TWO]


def test_without_requests_it_is_for_all() -> None:
    """C9, pitfall U8."""
    assert asked([entry({"cpuset": "2-3"})], "a") == [TWO]
    assert asked([entry({"fullCores": True})], "a", "b/x") == [Asked(wishes=Wishes(full_cores=True))] * 2


def test_one_cpuset_is_not_for_several_results_nor_several_for_one() -> None:
    """C9: exactly this request."""
    assert "names the CPUs of 2 results" in refusal([entry({"cpuset": "2-3"})], "a", "b")
    assert "names the CPUs of 2 results" in refusal([entry({"cpuset": "2-3"}, "a")], "a", "a")
    twice = [entry({"cpuset": "2-3"}, "a"), entry({"cpuset": "2-3"})]
    assert "several configurations name the CPUs of request a" in refusal(twice, "a")


def test_cpuset_of_the_class_is_refused() -> None:
    """C9: a class is for all claims, and they would all get the same CPUs."""
    assert "DeviceClass names CPUs" in refusal([entry({"cpuset": "2-3"}, "a", source="FromClass")], "a")


def test_wishes_of_the_claim_override_those_of_the_class_key_by_key() -> None:
    """C10, pitfall U8: whatever the order they stand in."""
    entries = [
        entry({"spread": "l3", "strict": False}, "a"),
        entry({"fullCores": True, "spread": "cores", "strict": True}, source="FromClass"),
    ]
    assert asked(entries, "a")[0].wishes == Wishes(full_cores=True, spread=Spread.L3)


def test_every_wish_is_read() -> None:
    """C10."""
    assert asked([entry({"sameL3": True, "strict": True, "spread": "cores"})], "a")[0].wishes == Wishes(
        same_l3=True, strict=True, spread=Spread.CORES
    )
    assert asked([entry({})], "a") == [NOTHING]


def test_configurations_of_other_drivers_are_not_looked_at() -> None:
    """C9."""
    other = entry({"anything": 1}, driver="gpu.example", version=7)
    assert asked([other, Entry(source="FromClaim", requests=None, opaque=None)], "a") == [NOTHING]


@pytest.mark.parametrize(
    ("config", "version", "words"),
    [
        pytest.param({"cpus": "1"}, "v1alpha1", "unknown field `cpus`", id="unknown key"),
        pytest.param({"cpuset": "1"}, "v1", "apiVersion 'v1'", id="unknown version"),
        pytest.param({"cpuset": ""}, "v1alpha1", "cpuset is empty", id="empty cpuset"),
        pytest.param({"cpuset": "1-"}, "v1alpha1", "cpuset '1-'", id="malformed cpuset"),
        pytest.param({"cpuset": 4}, "v1alpha1", "Expected `str | null`, got `int`", id="wrong type"),
        pytest.param({"spread": "numa"}, "v1alpha1", "Invalid enum value 'numa'", id="unknown word"),
        pytest.param(None, "v1alpha1", "got `null`", id="no configuration"),
        pytest.param({"fullCores": True, "spread": "cores"}, "v1alpha1", "exclude each other", id="contradiction"),
        pytest.param({"cpuset": "1", "sameL3": True}, "v1alpha1", "names CPUs and says how", id="both forms"),
    ],
)
def test_what_is_not_understood_is_refused(config: object, version: str, words: str) -> None:
    """C9, C10: a wish that nobody understands would be one that nobody keeps."""
    assert words in refusal([entry(config, version=version)], "a")


def test_parameters_are_bounded() -> None:
    """C9: as large as the API server takes them, and no byte more. Source: validation of opaque parameters."""
    assert MAX_PARAMETERS_BYTES == 10_240
    text = b'{"apiVersion": "v1alpha1", "cpuConfig": {"fullCores": true}'
    whole = text + b" " * (MAX_PARAMETERS_BYTES - len(text) - 1) + b"}"
    assert asked([Entry(opaque=Opaque(driver="dra.cpu", parameters=msgspec.Raw(whole)))], "a")[0].wishes
    huge = msgspec.Raw(whole + b" ")
    assert "bytes" in refusal([Entry(opaque=Opaque(driver="dra.cpu", parameters=huge))], "a")


def test_key_beside_the_configuration_is_refused() -> None:
    """C9."""
    text = msgspec.Raw(b'{"apiVersion": "v1alpha1", "cpuConfig": {"fullCores": true}, "more": 1}')
    assert "unknown field `more`" in refusal([Entry(opaque=Opaque(driver="dra.cpu", parameters=text))], "a")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_configuration_or_a_typed_error(raw: bytes) -> None:
    with contextlib.suppress(BadRequest):
        asked([Entry(opaque=Opaque(driver="dra.cpu", parameters=msgspec.Raw(raw)))], "a")
