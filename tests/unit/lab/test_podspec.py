"""What the kubelet derives from pod specs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from nodecpu.lab.jsontree import JsonObject, leaf, node, nodes
from nodecpu.lab.podspec import (
    CgroupDriver,
    cgroup_parent,
    claim_names,
    figures,
    mcpu,
    pod_figures,
    qos_class,
    quantity,
    quota_us,
    shares,
    with_defaults,
)


def container(requests: JsonObject | None = None, limits: JsonObject | None = None) -> JsonObject:
    resources: JsonObject = {}
    if requests:
        resources["requests"] = requests
    if limits:
        resources["limits"] = limits
    return {"name": "c", "resources": resources}


FULL: JsonObject = {"cpu": "2", "memory": "1Gi"}


@pytest.mark.parametrize(
    ("containers", "qos"),
    [
        pytest.param([container()], "BestEffort", id="nothing"),
        pytest.param([container(FULL, FULL)], "Guaranteed", id="equal"),
        pytest.param([container(None, FULL)], "Guaranteed", id="limits only"),
        pytest.param([container(FULL, FULL), container()], "Burstable", id="one without"),
        pytest.param([container({"cpu": "1"}, FULL)], "Burstable", id="lower request"),
        pytest.param([container({"cpu": "100m"})], "Burstable", id="request only"),
    ],
)
def test_qos_class(containers: list[JsonObject], qos: str) -> None:
    assert qos_class(with_defaults({"containers": list(containers)})) == qos


@pytest.mark.parametrize(("amount", "value"), [("100m", 102), ("0", 2), ("1", 1024), ("8", 8192), ("1m", 2)])
def test_shares_follow_the_request(amount: str, value: int) -> None:
    assert shares(mcpu(amount)) == value
    assert figures(container({"cpu": amount}), "Burstable").shares == value


def test_limit_gives_the_quota_and_stands_in_for_the_request() -> None:
    limited = figures(container(None, {"cpu": "1500m"}), "Burstable")
    assert (limited.shares, limited.quota_us, limited.period_us) == (1536, 150000, 100000)


def test_pod_has_a_quota_only_if_all_containers_have() -> None:
    assert pod_figures({"containers": [container(FULL, FULL), container(FULL, FULL)]}, "Guaranteed").quota_us == 400000
    assert pod_figures({"containers": [container(FULL, FULL), container()]}, "Burstable").quota_us is None


@pytest.mark.parametrize(
    ("qos", "driver", "parent"),
    [
        ("BestEffort", CgroupDriver.CGROUPFS, "/kubepods/besteffort/poda-b"),
        ("Guaranteed", CgroupDriver.CGROUPFS, "/kubepods/poda-b"),
        (
            "Burstable",
            CgroupDriver.SYSTEMD,
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice",
        ),
        ("Guaranteed", CgroupDriver.SYSTEMD, "/kubepods.slice/kubepods-poda_b.slice"),
    ],
)
def test_cgroup_parent(qos: str, driver: CgroupDriver, parent: str) -> None:
    assert cgroup_parent("a-b", qos, driver) == parent


def test_quantities() -> None:
    assert quantity("1.5") == Fraction(3, 2)
    assert quantity("2Ki") == 2048
    assert mcpu("0.0001") == 1
    with pytest.raises(ValueError, match="not a quantity"):
        quantity("many")


def test_generated_claims_are_found_by_the_pods_status() -> None:
    pod: JsonObject = {
        "spec": {
            "resourceClaims": [
                {"name": "own", "resourceClaimTemplateName": "t"},
                {"name": "cpus", "resourceClaimName": "c1"},
            ]
        },
        "status": {"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "p4-own-sdftj"}]},
    }
    assert claim_names(pod) == {"own": "p4-own-sdftj", "cpus": "c1"}
    assert node(pod, "missing") == {}


def test_resources_of_the_pod_decide_its_class_its_quota_and_the_limits_of_its_containers() -> None:
    spec = with_defaults({"resources": {"limits": FULL}, "containers": [container(), container({"cpu": "1"})]})
    assert leaf(spec, "resources", "requests") == FULL
    assert qos_class(spec) == "Guaranteed"
    assert pod_figures(spec, "Guaranteed").quota_us == quota_us(mcpu(FULL["cpu"]))
    bare, asking = (figures(one, "Guaranteed", spec) for one in nodes(spec, "containers"))
    assert bare.quota_us == asking.quota_us == pod_figures(spec, "Guaranteed").quota_us
    assert bare.shares == pod_figures(spec, "Guaranteed").shares
    assert asking.shares == 1024
