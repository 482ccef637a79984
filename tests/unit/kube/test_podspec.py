"""Pods as the API server tells them (N1)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from nodecpu.errors import BadRequest
from nodecpu.ids import PodUID
from nodecpu.kube.podspec import decode_pod
from nodecpu.policy.facts import ClaimRef, ContainerKind, ContainerSpec, PodSpec, QoS
from tests.support import shared_data


def pod(spec: Mapping[str, object], *, annotations: Mapping[str, str] | None = None, **status: object) -> PodSpec:
    metadata = {"name": "web", "namespace": "shop", "uid": "u1", "annotations": annotations}
    return decode_pod(json.dumps({"metadata": metadata, "spec": spec, "status": status}).encode())


def test_recorded_pod_is_read_whole() -> None:
    """Recorded from a real API server: a claim by name, one from a template, and a container without any."""
    found = decode_pod(shared_data("wire", "api", "pod-p4-running.json").read_bytes())
    without = ContainerSpec(
        name="without",
        request_mcpu=100,
        limit_mcpu=200,
        request_memory_bytes=16 << 20,
        limit_memory_bytes=32 << 20,
    )
    claims = (ClaimRef(claim="p4-own-sdftj"), ClaimRef(claim="c1"))
    assert found == PodSpec(
        uid=PodUID("7da455b4-0999-4937-a84d-5c0ba0fc3d43"),
        runtime_uid=PodUID("7da455b4-0999-4937-a84d-5c0ba0fc3d43"),
        namespace="default",
        name="p4",
        qos=QoS.BURSTABLE,
        containers={"with-both": replace(without, name="with-both", claims=claims), "without": without},
        counted_claims=frozenset(),
    )


@pytest.mark.parametrize(
    ("name", "qos"),
    [
        ("pod-p1-running.json", QoS.BEST_EFFORT),
        ("pod-p1-restarted.json", QoS.BEST_EFFORT),
        ("pod-p1-unhealthy.json", QoS.BEST_EFFORT),
        ("pod-q5-crashloop.json", QoS.BEST_EFFORT),
        ("pod-q6-succeeded.json", QoS.BEST_EFFORT),
    ],
)
def test_recorded_pods_are_read(name: str, qos: QoS) -> None:
    found = decode_pod(shared_data("wire", "api", name).read_bytes())
    assert found.qos is qos
    assert all(one.claims and one.request_mcpu is None for one in found.containers.values())


def test_kinds_of_containers() -> None:
    """N1."""
    found = pod(
        {
            "containers": [{"name": "main"}],
            "initContainers": [{"name": "once"}, {"name": "beside", "restartPolicy": "Always"}],
            "ephemeralContainers": [{"name": "debug", "targetContainerName": "main"}],
        }
    )
    assert {name: one.kind for name, one in found.containers.items()} == {
        "main": ContainerKind.ORDINARY,
        "once": ContainerKind.INIT,
        "beside": ContainerKind.SIDECAR,
        "debug": ContainerKind.EPHEMERAL,
    }


def test_amounts_are_the_specs_rounded_up_and_absent_ones_unknown() -> None:
    """N1."""
    found = pod(
        {"containers": [{"name": "a", "resources": {"requests": {"cpu": "0.1005"}, "limits": {"memory": "1k"}}}]}
    )
    one = found.containers["a"]
    assert (one.request_mcpu, one.limit_mcpu) == (101, None)
    assert (one.request_memory_bytes, one.limit_memory_bytes) == (None, 1000)


def test_pod_level_resources_are_kept_apart_from_the_containers() -> None:
    """N1."""
    found = pod({"containers": [{"name": "a"}], "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3500m"}}})
    assert (found.pod_request_mcpu, found.pod_limit_mcpu) == (2000, 3500)
    assert found.containers["a"].request_mcpu is None


def test_claim_names_come_from_spec_or_from_status_and_may_be_unknown_yet() -> None:
    """N1, L1: what the status says cannot overrule a name in the spec."""
    claims = [{"name": "fixed"}, {"name": "made", "request": "big"}, {"name": "later"}, {"name": "nowhere"}]
    found = pod(
        {
            "containers": [{"name": "a", "resources": {"claims": claims}}],
            "resourceClaims": [
                {"name": "fixed", "resourceClaimName": "shared"},
                {"name": "made", "resourceClaimTemplateName": "t"},
                {"name": "later", "resourceClaimTemplateName": "t"},
            ],
        },
        resourceClaimStatuses=[
            {"name": "made", "resourceClaimName": "web-made-x7"},
            {"name": "fixed", "resourceClaimName": "forged"},
            {"name": "later"},
        ],
    )
    assert found.containers["a"].claims == (
        ClaimRef(claim="shared"),
        ClaimRef(claim="web-made-x7", request="big"),
        ClaimRef(claim=None),
        ClaimRef(claim=None),
    )


def test_static_pod_has_the_uid_of_its_mirror_annotation_in_the_runtime() -> None:
    """N1."""
    found = pod({"containers": []}, annotations={"kubernetes.io/config.mirror": "hash", "a/b": "c"})
    assert (found.uid, found.runtime_uid) == ("u1", "hash")
    assert found.annotations["a/b"] == "c"


def test_bulky_annotation_of_kubectl_is_not_kept() -> None:
    assert pod({}, annotations={"kubectl.kubernetes.io/last-applied-configuration": "{}"}).annotations == {}


@pytest.mark.parametrize("told", [None, "", "Best", 7])
def test_without_a_known_class_nothing_exclusive_is_inferred(told: object) -> None:
    """N1."""
    whole = {"cpu": "2", "memory": "1Gi"}
    spec = {"containers": [{"name": "a", "resources": {"requests": whole, "limits": whole}}]}
    if told == 7:
        with pytest.raises(BadRequest):
            pod(spec, qosClass=told)
        return
    assert pod(spec, qosClass=told).qos is QoS.BURSTABLE
    assert pod({"containers": [{"name": "a"}]}, qosClass=told).qos is QoS.BEST_EFFORT
    assert pod(spec, qosClass="Guaranteed").qos is QoS.GUARANTEED


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"metadata":{"name":"a","namespace":"b","uid":"c"},"spec":{"containers":[{}]}}',
        b'{"metadata":{"name":"a","namespace":"b","uid":"c"},"spec":'
        b'{"containers":[{"name":"x","resources":{"requests":{"cpu":"lots"}}}]}}',
        b"[" * 500_000,
        b"\xff\xfe",
    ],
    ids=lambda data: repr(data[:20]),
)
def test_hostile_bytes_get_a_typed_error(data: bytes) -> None:
    with pytest.raises(BadRequest, match="not a pod"):
        decode_pod(data)


@pytest.mark.parametrize(
    "told",
    [
        pytest.param({"resources": {"cpu": "2"}, "containers": ["main"]}, id="1.36"),
        pytest.param({"mapping": [{"name": "memory", "quantity": "1Gi"}, {"name": "cpu", "quantity": "2"}]}, id="1.37"),
    ],
)
def test_status_tells_which_claims_the_scheduler_counted(told: Mapping[str, object]) -> None:
    """G13: in the form of either version; claims for memory alone do not count."""
    memory = {"resourceClaimName": "m", "resources": {"memory": "1Gi"}, "mapping": [{"name": "memory"}]}
    found = pod({}, nodeAllocatableResourceClaimStatuses=[{"resourceClaimName": "c", **told}, memory])
    assert found.counted_claims == frozenset({"c"})


@pytest.mark.parametrize(
    "told", [None, [], 3, [{}], [{"resourceClaimName": "c"}], [{"resourceClaimName": "c", "mapping": 1}]]
)
def test_status_in_another_form_counts_nothing_and_the_pod_is_read(told: object) -> None:
    """G13: the field is alpha."""
    assert pod({}, nodeAllocatableResourceClaimStatuses=told).counted_claims == frozenset()
