"""CPU shares and quotas: what a container owns is never throttled (G6, G14)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_NODES
from nodecpu.policy.facts import QoS, Resources
from nodecpu.policy.figures import NO_QUOTA, merged, pod_quota_us, shares
from nodecpu.policy.grants import Group
from nodecpu.policy.plan import Placement
from nodecpu.policy.rules import Mirrored, Rules
from nodecpu.policy.shared import placement
from tests.unit.policy.given import claim, cpus, create, prepare
from tests.unit.policy.machines import books

NEVER = Rules(mirrored=Mirrored.NEVER)


def test_limit_of_1m_does_not_throttle_a_holder_of_eight() -> None:
    """G14."""
    node = books()
    taken = prepare(node, claim(1, (0, 4), (1, 4)))
    holder = create(node, mcpu=1, limit_mcpu=1, claims=[taken], qos=QoS.GUARANTEED)
    assert holder.quota_us == NO_QUOTA
    where = placement(node.ledger, holder)
    assert where is not None
    assert (where.quota_us, where.period_us, where.shares) == (NO_QUOTA, 100_000, 8192)
    assert pod_quota_us([holder], None) == 800_000


def test_no_quota_is_written_as_the_runtimes_do() -> None:
    """G14: OCI runtime-spec, config-linux.md: a quota of -1 is none."""
    assert NO_QUOTA == -1


def test_shared_portion_of_a_holder_stays_limited() -> None:
    """G14: claimed CPUs and the limit."""
    node = books()
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, mcpu=100, limit_mcpu=500, claims=[taken], qos=QoS.BURSTABLE)
    assert holder.quota_us == 250_000
    assert holder.shares == 102
    assert pod_quota_us([holder], None) == 250_000


def test_what_paid_for_the_claim_is_not_counted_twice() -> None:
    """G14, G13: claim of 2, request and limit of 3500m: one CPU and a portion of 500m of its own."""
    node = books()
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, mcpu=3500, limit_mcpu=3500, claims=[taken])
    assert (len(holder.exclusive), holder.portion_mcpu) == (1, 500)
    assert holder.quota_us == 350_000
    lone = create(node, "lone", mcpu=4000, limit_mcpu=4000, claims=[taken])
    assert (len(lone.exclusive), lone.quota_us) == (2, NO_QUOTA)


def test_a_holders_own_limit_counts_beside_its_claim() -> None:
    """G14, G3."""
    node = books(rules=NEVER)
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, mcpu=1500, limit_mcpu=1500, claims=[taken])
    assert holder.quota_us == 350_000


def test_without_a_limit_there_is_nothing_to_lift() -> None:
    """G14."""
    node = books()
    taken = prepare(node, claim(1, (1, 2)))
    assert create(node, mcpu=100, claims=[taken], qos=QoS.BURSTABLE).quota_us is None
    assert create(node, "web", mcpu=100, limit_mcpu=200, qos=QoS.BURSTABLE).quota_us is None


def test_quota_of_exclusive_containers_is_lifted_where_configured() -> None:
    """G14."""
    for lifts, quota in ((True, NO_QUOTA), (False, None)):
        node = books(rules=Rules(lift_exclusive_quota=lifts))
        assert create(node, "own", mcpu=2000, limit_mcpu=2000).quota_us == quota
        assert create(node, "mixed", mcpu=1500, limit_mcpu=1500).quota_us is None  # one figure covers both parts


def test_reserved_holder_is_limited_in_what_is_reserved_only() -> None:
    """G14, G4."""
    node = books()
    taken = prepare(node, claim(1, (1, 2), namespace="kube-system"))
    holder = create(node, mcpu=100, limit_mcpu=200, namespace="kube-system", claims=[taken], qos=QoS.BURSTABLE)
    assert holder.quota_us == 220_000


def test_pod_needs_what_is_owned_and_what_its_shared_containers_may_use() -> None:
    """G14: the pod's own cgroup."""
    node = books()
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, "pod", mcpu=1, limit_mcpu=1, claims=[taken], qos=QoS.BURSTABLE)
    twin = create(node, "pod", name="twin", mcpu=1, limit_mcpu=1, claims=[taken], qos=QoS.BURSTABLE)
    own = create(node, "pod", name="own", mcpu=1000, limit_mcpu=1000)
    side = create(node, "pod", name="side", mcpu=100, limit_mcpu=300, qos=QoS.BURSTABLE)
    assert pod_quota_us([holder, twin], None) == 200_000  # one claim, held twice
    assert pod_quota_us([holder, own, side], None) == 330_000
    free = create(node, "pod", name="free", mcpu=100, qos=QoS.BURSTABLE)
    assert pod_quota_us([holder, free], None) == 210_000
    assert pod_quota_us([holder, free], 1500) == 350_000  # pod-level limit: what is shared is the pod's to use
    assert pod_quota_us([holder, free, side], 1500) == 350_000
    assert pod_quota_us([side, free], 1500) is None
    assert pod_quota_us([], None) is None


@pytest.mark.parametrize(
    ("changes", "quota"),
    [
        pytest.param({"group": Group.CLAIMED}, 200_000, id="on claims alone"),
        pytest.param({"group": Group.MULTI, "exclusive": cpus("8")}, 300_000, id="on exclusive CPUs beside"),
        pytest.param({"group": Group.MULTI, "exclusive": cpus("8"), "limit_mcpu": 9000}, 300_000, id="whatever limit"),
        pytest.param({"group": Group.SHARED, "uses_shared": True, "portion_mcpu": 300}, 230_000, id="portion"),
        pytest.param(
            {"group": Group.SHARED, "uses_shared": True, "portion_mcpu": 300, "limit_mcpu": 700}, 270_000, id="limit"
        ),
        pytest.param(
            {
                "group": Group.MIXED,
                "exclusive": cpus("8"),
                "uses_shared": True,
                "portion_mcpu": 500,
                "limit_mcpu": 1700,
            },
            370_000,
            id="limit of a mixed one",
        ),
        pytest.param({"group": Group.RESERVED, "portion_mcpu": 100}, 210_000, id="reserved"),
        pytest.param(
            {"group": Group.RESERVED, "portion_mcpu": 100, "limit_mcpu": 400}, 240_000, id="reserved, limited"
        ),
        pytest.param({"group": Group.IGNORED, "limit_mcpu": 400}, 240_000, id="left alone, limited"),
    ],
)
def test_a_container_adds_to_its_pods_need_what_it_may_use_of_shared_cpus(
    changes: Mapping[str, object], quota: int
) -> None:
    """G14: beside a claim of two that another container of the pod holds."""
    node = books()
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, claims=[taken])
    other = replace(holder, links=(), **changes)  # type: ignore[arg-type]  # fields by name
    assert pod_quota_us([holder, other], None) == quota


def test_portion_and_shares_are_of_what_a_container_runs_on() -> None:
    """G6: within the kernel's range; the runtime's figure without a claim."""
    node = books()
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, claims=[taken])
    tree = node.ledger.tree
    cases: tuple[tuple[Mapping[str, object], int | None], ...] = (
        ({}, 2048),
        ({"exclusive": cpus("8-9")}, 4096),
        ({"exclusive": cpus("8-9"), "hides_threads": True}, 3072),
        ({"portion_mcpu": 250}, 256),
        ({"portion_mcpu": 1}, 2),
        ({"portion_mcpu": 3}, 3),
        ({"portion_mcpu": 256_000}, 262_144),
        ({"portion_mcpu": 300_000}, 262_144),
        ({"portion_mcpu": 255_999}, 262_142),
        ({"group": Group.IGNORED}, None),
        ({"links": ()}, None),
    )
    for changes, expected in cases:
        assert shares(tree, replace(holder, **changes)) == expected, changes  # type: ignore[arg-type]  # fields by name


def test_reply_to_an_update_carries_the_runtimes_figures_where_we_have_none() -> None:
    """G12."""
    bare = Placement(cpus=cpus("0-3"), mems=NO_NODES)
    wanted = Resources(shares=512, quota_us=50_000, period_us=100_000)
    assert merged(bare, wanted) == Placement(
        cpus=cpus("0-3"), mems=NO_NODES, shares=512, quota_us=50_000, period_us=100_000
    )
    ours = Placement(cpus=cpus("0-3"), mems=NO_NODES, shares=2048, quota_us=NO_QUOTA, period_us=100_000)
    assert merged(ours, wanted) == ours
    assert merged(bare, Resources()) == bare
