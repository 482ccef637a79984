"""What a grant or an allocation says where nothing is said: nothing owned, shared, hidden, counted or watched."""

from __future__ import annotations

from nodecpu.cpuset import NO_CPUS, NO_NODES
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.policy.facts import AllocationResult, ContainerState, QoS
from nodecpu.policy.grants import ClaimGrant, ContainerGrant, Group, ResultGrant
from tests.unit.policy.given import cpus


def test_container_has_only_what_was_said() -> None:
    """G1."""
    grant = ContainerGrant(
        id=ContainerID("c"),
        sandbox_id=SandboxID("s"),
        pod_uid=PodUID("u"),
        namespace="shop",
        pod="web",
        name="app",
        group=Group.SHARED,
        pool="root",
        qos=QoS.BEST_EFFORT,
    )
    assert (grant.exclusive, grant.claimed, grant.mems, grant.links) == (NO_CPUS, NO_CPUS, NO_NODES, ())
    assert (grant.portion_mcpu, grant.told_mcpu, grant.memory_bytes, grant.memory_kinds) == (0, 0, 0, ())
    assert (grant.shares, grant.limit_mcpu, grant.quota_us) == (None, None, None)
    assert (grant.uses_shared, grant.hides_threads) == (False, False)
    assert (grant.state, grant.path, grant.reason) == (ContainerState.CREATED, "", "")
    assert grant.label == "container shop/web/app"


def test_claim_has_only_what_was_said() -> None:
    """C4, C12, T7, R2."""
    grant = ClaimGrant(uid=ClaimUID("u"), namespace="shop", name="c", results=())
    assert (grant.cpus, grant.cdi_ids, grant.pod_claim) == (NO_CPUS, (), "")
    assert (grant.released, grant.moved, grant.unproven) == (False, False, False)


def test_result_takes_cpus_unless_it_only_watches() -> None:
    """C13."""
    told = AllocationResult(request="r", pool="p", device="d", cpus=2)
    assert (told.admin_access, told.share_id, told.cpuset, told.wishes) == (False, None, None, None)
    made = ResultGrant(request="r", pool="p", device="d", cpus=cpus("0-1"))
    assert (made.admin_access, made.share_id, made.wishes, made.missed) == (False, None, None, ())


def test_requests_are_known_by_their_base_names() -> None:
    """C3, L2: what is behind the slash chose among alternatives."""
    results = tuple(
        ResultGrant(request=request, pool="p", device="d", cpus=cpus(where))
        for request, where in (("main/large", "0-1"), ("main/small", "4"), ("side", "8"))
    )
    grant = ClaimGrant(uid=ClaimUID("u"), namespace="shop", name="c", results=results)
    assert [result.base_request for result in results] == ["main", "main", "side"]
    assert (grant.request_cpus("main"), grant.request_cpus("side")) == (cpus("0-1,4"), cpus("8"))
    assert grant.request_cpus("main/large") == NO_CPUS
