"""Claims and CPU requests in one container, case by case: who repeats the claim, who asks for more, who for a token.

The README of the community driver has its users repeat the claim's size as request and limit; the DRA series of the
topology-aware policy gives both. Machine n4c16, CPU 15 reserved.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.policy.facts import ClaimRef, PodSpec, QoS
from nodecpu.policy.grants import Group
from nodecpu.policy.ledger import violations
from nodecpu.policy.requests import request_of
from nodecpu.policy.rules import Mirrored, Rules
from tests.unit.policy.given import claim, container, cpus, create, pod_spec, prepare, runs_on, sandbox
from tests.unit.policy.machines import books

EIGHT = claim(8, (0, 4), (1, 4))
TWO = claim(2, (1, 2))


def test_request_and_limit_of_eight_mirror_a_claim_of_eight() -> None:
    """G13: "The container referencing the claim is pinned to the CPUs allocated to that claim." """
    node = books()
    taken = prepare(node, EIGHT)
    app = create(node, mcpu=8000, limit_mcpu=8000, claims=[taken])
    assert runs_on(node, app) == cpus("0-7")
    assert app.quota_us == -1


def test_request_of_100m_beside_a_claim_of_two_is_shared_beside_claimed() -> None:
    """G13, G3: "A container with a CPU request also gets its normal allocation"."""
    node = books()
    taken = prepare(node, claim(1, (2, 2)))
    app = create(node, mcpu=100, qos=QoS.BURSTABLE, claims=[taken])
    assert runs_on(node, app) == cpus("8-11")
    assert app.group is Group.SHARED


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        pytest.param(Rules(), 2, id="auto without the mapping"),
        pytest.param(Rules(mirrored=Mirrored.ALWAYS), 2, id="always"),
        pytest.param(Rules(mapping_published=True), 4, id="auto with the mapping"),
        pytest.param(Rules(mirrored=Mirrored.NEVER), 4, id="never"),
    ],
)
def test_request_of_two_beside_a_claim_of_two(rules: Rules, count: int) -> None:
    """G13, G3, G5: "union with the normal allocation" where the scheduler counts claims itself."""
    node = books(rules=rules)
    taken = prepare(node, TWO)
    app = create(node, mcpu=2000, claims=[taken])
    assert taken.cpus <= runs_on(node, app) <= cpus("4-7")
    assert len(runs_on(node, app)) == count


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize(
    ("counted", "group"),
    [
        pytest.param(("c1",), Group.MULTI, id="counted"),
        pytest.param((), Group.CLAIMED, id="scheduled by one that does not count"),
        pytest.param(("gpu",), Group.CLAIMED, id="another container's claim was counted"),
    ],
)
def test_pod_tells_whether_the_scheduler_counted_its_claims(
    counted: tuple[str, ...], group: Group, *, published: bool
) -> None:
    """G13: by its status, whatever the slices say now; claims of other kinds are none of its business."""
    spec = pod_spec(qos=QoS.GUARANTEED, mcpu=2000, claims=[ClaimRef(claim="nic"), ClaimRef(claim="c1")])
    told = replace(spec, counted_claims=frozenset(counted))
    request = request_of(Rules(mapping_published=published), sandbox(), container(), told, cpus("0-1"), reserved=True)
    assert request.group is group


def test_request_of_nine_beside_a_claim_of_eight_gets_one_more() -> None:
    """G13."""
    node = books()
    taken = prepare(node, EIGHT)
    app = create(node, mcpu=9000, limit_mcpu=9000, claims=[taken])
    assert runs_on(node, app) == cpus("0-7") | app.exclusive
    assert len(app.exclusive) == 1
    assert "8 CPUs of it paid for the claims" in app.reason


def test_request_of_1m_for_the_qos_class_changes_nothing() -> None:
    """G15."""
    node = books()
    taken = prepare(node, EIGHT)
    token = create(node, "token", mcpu=1, limit_mcpu=1, qos=QoS.GUARANTEED, claims=[taken])
    bare = create(node, "bare", claims=[taken])
    assert runs_on(node, token) == runs_on(node, bare) == cpus("0-7")
    assert (token.group, token.shares) == (bare.group, bare.shares) == (Group.CLAIMED, 8192)
    assert token.quota_us == -1


def test_pod_level_resources_with_holders_and_sidecars() -> None:
    """N1, G2: holders on their claims, sidecars shared, whatever their cgroups' figures say."""
    node = books()
    taken = prepare(node, EIGHT)
    app = create(node, "train", name="app", qos=QoS.GUARANTEED, claims=[taken])
    side = create(node, "train", name="side", qos=QoS.GUARANTEED)
    assert runs_on(node, app) == cpus("0-7")
    assert side.group is Group.SHARED
    assert runs_on(node, side).isdisjoint(cpus("0-7"))
    spec: PodSpec = replace(pod_spec("train", qos=QoS.GUARANTEED), pod_request_mcpu=9000, pod_limit_mcpu=9000)
    figures = replace(container(pod="train"), shares=9216, quota_us=900_000, period_us=100_000)
    asked = request_of(node.rules, sandbox("train"), figures, spec, taken.cpus, reserved=True)
    assert (asked.group, asked.exclusive) == (Group.CLAIMED, 0)


@pytest.mark.parametrize(
    ("only", "group"),
    [pytest.param("true", Group.CLAIMED, id="only"), pytest.param("false", Group.SHARED, id="not only")],
)
def test_annotation_overrules_what_a_token_means(only: str, group: Group) -> None:
    """G15: claimed-cpus-only."""
    node = books()
    taken = prepare(node, TWO)
    app = create(node, mcpu=5, qos=QoS.BURSTABLE, claims=[taken], annotations={"claimed-cpus-only/container.app": only})
    assert app.group is group
    assert violations(node.ledger) == []
