"""What a container asks for of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.errors import BadRequest
from nodecpu.ids import ContainerID, PodUID, SandboxID
from nodecpu.policy.annotations import NO_PREFERENCES, Preferences
from nodecpu.policy.facts import PodSpec, QoS, Resources
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.pools import Level
from nodecpu.policy.priority import Priority
from nodecpu.policy.requests import Isolated, Request, check_handler, request_of, resized, told_of
from nodecpu.policy.rules import Mirrored, Rules
from tests.unit.policy.given import container, pod_spec, sandbox

PREFER_SHARED = Preferences(prefer_shared=True)
PREFER_OWN = Preferences(prefer_shared=False)


def asked(
    mcpu: int | None,
    qos: QoS = QoS.GUARANTEED,
    *,
    rules: Rules | None = None,
    claimed: int = 0,
    namespace: str = "shop",
    reserved: bool = True,
    preferences: Preferences = NO_PREFERENCES,
    limit_mcpu: int | None = None,
) -> Request:
    """Return the request of a container whose pod is known."""
    spec = limited(pod_spec(namespace=namespace, qos=qos, mcpu=mcpu), limit_mcpu)
    return request_of(
        rules or Rules(),
        sandbox(namespace=namespace),
        container(),
        spec,
        CpuSet(range(claimed)),
        reserved=reserved,
        preferences=preferences,
    )


def limited(spec: PodSpec, mcpu: int | None) -> PodSpec:
    """Return a pod whose container has a CPU limit."""
    return replace(spec, containers={"app": replace(spec.containers["app"], limit_mcpu=mcpu)})


def by_shares(shares: int | None, parent: str = "") -> Request:
    """Return the request of a container whose pod is not known."""
    made = container(shares=shares)
    return request_of(Rules(), sandbox(cgroup_parent=parent), made, None, CpuSet(), reserved=True)


@pytest.mark.parametrize(
    ("mcpu", "qos", "group", "exclusive", "portion"),
    [
        pytest.param(None, QoS.BEST_EFFORT, Group.SHARED, 0, 0, id="BestEffort"),
        pytest.param(2000, QoS.BURSTABLE, Group.SHARED, 0, 2000, id="Burstable, however much"),
        pytest.param(500, QoS.GUARANTEED, Group.SHARED, 0, 500, id="Guaranteed below one"),
        pytest.param(999, QoS.GUARANTEED, Group.SHARED, 0, 999, id="Guaranteed just below one"),
        pytest.param(1000, QoS.GUARANTEED, Group.MIXED, 1, 0, id="Guaranteed one"),
        pytest.param(1001, QoS.GUARANTEED, Group.MIXED, 1, 1, id="Guaranteed just above one"),
        pytest.param(1999, QoS.GUARANTEED, Group.MIXED, 1, 999, id="Guaranteed below two"),
        pytest.param(2000, QoS.GUARANTEED, Group.MULTI, 2, 0, id="Guaranteed two"),
        pytest.param(2500, QoS.GUARANTEED, Group.SHARED, 0, 2500, id="Guaranteed fraction of two or more"),
        pytest.param(16000, QoS.GUARANTEED, Group.MULTI, 16, 0, id="Guaranteed many"),
        pytest.param(None, QoS.GUARANTEED, Group.SHARED, 0, 0, id="Guaranteed, a container without CPU"),
    ],
)
def test_group_follows_class_and_amount(mcpu: int | None, qos: QoS, group: Group, exclusive: int, portion: int) -> None:
    """G1."""
    request = asked(mcpu, qos)
    assert (request.group, request.exclusive, request.portion_mcpu) == (group, exclusive, portion)
    assert request.uses_shared == (group is Group.SHARED or portion > 0)
    assert request.reason


@pytest.mark.parametrize(
    ("mode", "published", "mcpu", "group", "exclusive", "portion"),
    [
        pytest.param(Mirrored.AUTO, False, 8000, Group.CLAIMED, 0, 0, id="auto: mirrors the claim"),
        pytest.param(Mirrored.AUTO, False, 7999, Group.SHARED, 0, 7999, id="auto: less is a portion only"),
        pytest.param(Mirrored.AUTO, False, 2000, Group.SHARED, 0, 2000, id="auto: whole CPUs too, if less"),
        pytest.param(Mirrored.AUTO, False, 10000, Group.MULTI, 2, 0, id="auto: what is beyond the claim"),
        pytest.param(Mirrored.AUTO, False, 8100, Group.SHARED, 0, 100, id="auto: a fraction beyond the claim"),
        pytest.param(Mirrored.AUTO, False, 8001, Group.SHARED, 0, 1, id="auto: just beyond the claim"),
        pytest.param(Mirrored.AUTO, True, 8000, Group.MULTI, 8, 0, id="auto with the mapping published"),
        pytest.param(Mirrored.ALWAYS, False, 10000, Group.CLAIMED, 0, 0, id="always"),
        pytest.param(Mirrored.NEVER, False, 2000, Group.MULTI, 2, 0, id="never"),
    ],
)
def test_mirrored_requests_of_a_holder_of_eight(
    mode: Mirrored, mcpu: int, group: Group, exclusive: int, portion: int, *, published: bool
) -> None:
    """G13."""
    request = asked(mcpu, rules=Rules(mirrored=mode, mapping_published=published), claimed=8)
    assert (request.group, request.exclusive, request.portion_mcpu) == (group, exclusive, portion)


def test_holder_without_a_request_has_its_claims_alone() -> None:
    """G2."""
    request = asked(None, QoS.BEST_EFFORT, claimed=2)
    assert (request.group, request.uses_shared) == (Group.CLAIMED, False)


@pytest.mark.parametrize(("mcpu", "group"), [(9, Group.CLAIMED), (10, Group.SHARED)])
def test_token_request_counts_as_none_for_a_holder(mcpu: int, group: Group) -> None:
    """G15: below the limit."""
    assert asked(mcpu, QoS.BURSTABLE, claimed=2).group is group


def test_small_request_without_a_claim_is_no_token() -> None:
    """G15."""
    assert asked(5, QoS.BURSTABLE).portion_mcpu == 5


@pytest.mark.parametrize(
    ("namespace", "rules", "reserved", "group"),
    [
        pytest.param("kube-system", Rules(), True, Group.RESERVED, id="kube-system"),
        pytest.param("infra-dns", Rules(reserved_namespaces=("infra-*",)), True, Group.RESERVED, id="glob"),
        pytest.param("kube-system", Rules(reserved_namespaces=("infra-*",)), True, Group.MULTI, id="not listed"),
        pytest.param("kube-system", Rules(), False, Group.MULTI, id="no reserved CPUs"),
        pytest.param("kube-system2", Rules(), True, Group.MULTI, id="a longer name"),
    ],
)
def test_reserved_group_is_by_namespace(namespace: str, rules: Rules, group: Group, *, reserved: bool) -> None:
    """G1, T5."""
    request = asked(2000, rules=rules, namespace=namespace, reserved=reserved)
    assert request.group is group
    assert (request.exclusive == 0) == (group is Group.RESERVED)


@pytest.mark.parametrize("qos", [QoS.BURSTABLE, QoS.GUARANTEED])
@pytest.mark.parametrize(
    ("mcpu", "group", "portion"),
    [
        pytest.param(None, Group.CLAIMED, 0, id="none"),
        pytest.param(9, Group.CLAIMED, 0, id="a token"),
        pytest.param(100, Group.RESERVED, 100, id="a request"),
        pytest.param(1999, Group.RESERVED, 1999, id="less than its claim"),
        pytest.param(2000, Group.CLAIMED, 0, id="its claim mirrored"),
        pytest.param(3500, Group.RESERVED, 1500, id="more than its claim"),
    ],
)
def test_reserved_holder_keeps_reserved_cpus_only_with_a_request_of_its_own(
    mcpu: int | None, group: Group, portion: int, qos: QoS
) -> None:
    """G4, G13, G15: reserved and claimed with one, claimed alone without; never CPUs that are shared or exclusive."""
    request = asked(mcpu, qos, namespace="kube-system", claimed=2)
    assert (request.group, request.portion_mcpu) == (group, portion)
    assert (request.exclusive, request.uses_shared) == (0, False)


@pytest.mark.parametrize(
    ("shares", "mcpu"), [(None, 0), (0, 0), (2, 0), (102, 100), (256, 250), (1024, 1000), (2048, 2000), (1025, 1001)]
)
def test_request_of_an_unknown_pod_is_read_from_its_shares_rounded_up(shares: int | None, mcpu: int) -> None:
    """N1."""
    assert by_shares(shares, "/kubepods/burstable/pod1").portion_mcpu == mcpu


@pytest.mark.parametrize(
    ("parent", "qos"),
    [
        ("kubepods-besteffort-pod1.slice", QoS.BEST_EFFORT),
        ("/kubepods/burstable/pod1", QoS.BURSTABLE),
        ("/kubepods/pod1", QoS.GUARANTEED),
    ],
)
def test_class_of_an_unknown_pod_is_read_from_its_cgroup_parent(parent: str, qos: QoS) -> None:
    """N1."""
    assert by_shares(2048, parent).qos is qos


def test_nothing_exclusive_is_inferred_for_an_unknown_pod() -> None:
    """N1."""
    request = by_shares(4096, "/kubepods/pod1")
    assert (request.group, request.exclusive, request.portion_mcpu) == (Group.SHARED, 0, 4000)
    assert "the pod's spec is not known" in request.reason


@pytest.mark.parametrize(
    ("mcpu", "preferences", "rules", "group", "exclusive", "portion"),
    [
        pytest.param(2000, PREFER_SHARED, Rules(), Group.SHARED, 0, 2000, id="opted out"),
        pytest.param(1500, PREFER_SHARED, Rules(), Group.SHARED, 0, 1500, id="mixed opted out"),
        pytest.param(2500, PREFER_OWN, Rules(), Group.MULTI, 2, 500, id="a fraction opted in"),
        pytest.param(2500, NO_PREFERENCES, Rules(), Group.SHARED, 0, 2500, id="a fraction not opted in"),
        pytest.param(2000, NO_PREFERENCES, Rules(prefer_shared=True), Group.SHARED, 0, 2000, id="shared by default"),
        pytest.param(2500, PREFER_OWN, Rules(prefer_shared=True), Group.MULTI, 2, 500, id="opted in against that"),
        pytest.param(500, PREFER_OWN, Rules(), Group.SHARED, 0, 500, id="below one there is nothing to opt in"),
        pytest.param(3000, PREFER_OWN, Rules(is_flat=True), Group.SHARED, 0, 3000, id="flat has none"),
    ],
)
def test_exclusive_cpus_may_be_opted_in_and_out_of(
    mcpu: int, preferences: Preferences, rules: Rules, group: Group, exclusive: int, portion: int
) -> None:
    """G1: prefer-shared-cpus."""
    request = asked(mcpu, rules=rules, preferences=preferences)
    assert (request.group, request.exclusive, request.portion_mcpu) == (group, exclusive, portion)


@pytest.mark.parametrize(
    ("namespace", "wants", "reserved", "group"),
    [
        pytest.param("shop", True, True, Group.RESERVED, id="asked for"),
        pytest.param("shop", True, False, Group.MULTI, id="asked for where there are none"),
        pytest.param("kube-system", False, True, Group.MULTI, id="declined in a reserved namespace"),
    ],
)
def test_reserved_group_by_annotation(namespace: str, group: Group, *, wants: bool, reserved: bool) -> None:
    """G1: prefer-reserved-cpus."""
    request = asked(2000, namespace=namespace, reserved=reserved, preferences=Preferences(prefer_reserved=wants))
    assert request.group is group


def test_no_reserved_group_in_flat_mode() -> None:
    """P1."""
    request = asked(2000, rules=Rules(is_flat=True), preferences=Preferences(prefer_reserved=True))
    assert request.group is Group.SHARED


@pytest.mark.parametrize(
    ("preferences", "rules", "isolated"),
    [
        (NO_PREFERENCES, Rules(), Isolated.PREFER),
        (NO_PREFERENCES, Rules(prefer_isolated=False), Isolated.AVOID),
        (Preferences(prefer_isolated=True), Rules(prefer_isolated=False), Isolated.PREFER),
        (Preferences(prefer_isolated=False), Rules(), Isolated.AVOID),
        (Preferences(require_isolated=True, prefer_isolated=False), Rules(), Isolated.REQUIRE),
        (Preferences(require_isolated=False), Rules(), Isolated.PREFER),
    ],
)
def test_isolated_cpus_by_annotation_or_configuration(
    preferences: Preferences, rules: Rules, isolated: Isolated
) -> None:
    """G10."""
    assert asked(2000, rules=rules, preferences=preferences).isolated is isolated


@pytest.mark.parametrize("claimed", [0, 2])
def test_preserved_container_is_left_alone_claims_or_not(claimed: int) -> None:
    """G1 preserve, G8."""
    request = asked(2000, claimed=claimed, preferences=Preferences(preserve_cpu=True))
    assert (request.group, request.exclusive, request.uses_shared) == (Group.IGNORED, 0, False)


@pytest.mark.parametrize(("handler", "group"), [("kata-qemu", Group.IGNORED), ("runc", Group.MULTI), ("", Group.MULTI)])
def test_container_of_some_runtime_handlers_is_left_alone(handler: str, group: Group) -> None:
    """G17."""
    spec = pod_spec(qos=QoS.GUARANTEED, mcpu=2000)
    box = replace(sandbox(), runtime_handler=handler)
    assert request_of(Rules(), box, container(), spec, NO_CPUS, reserved=True).group is group
    if group is Group.IGNORED:
        with pytest.raises(BadRequest, match=r"container shop/web/app: runtime handler kata-qemu keeps the host's"):
            check_handler(Rules(), box, container(), CpuSet([1]))
    check_handler(Rules(), box, container(), NO_CPUS)


@pytest.mark.parametrize(
    ("mcpu", "only", "mode", "group", "portion"),
    [
        pytest.param(5, False, Mirrored.AUTO, Group.SHARED, 5, id="a token is none after all"),
        pytest.param(2000, False, Mirrored.AUTO, Group.MULTI, 0, id="a mirror is none after all"),
        pytest.param(2000, False, Mirrored.ALWAYS, Group.MULTI, 0, id="against always"),
        pytest.param(500, True, Mirrored.AUTO, Group.CLAIMED, 0, id="a request is accounting"),
        pytest.param(2000, True, Mirrored.NEVER, Group.CLAIMED, 0, id="against never"),
        pytest.param(None, False, Mirrored.AUTO, Group.CLAIMED, 0, id="no request stays none"),
    ],
)
def test_annotation_decides_what_a_holders_request_means(
    mcpu: int | None, mode: Mirrored, group: Group, portion: int, *, only: bool
) -> None:
    """G15, G13: claimed-cpus-only in either direction."""
    preferences = Preferences(claimed_cpus_only=only)
    request = asked(mcpu, rules=Rules(mirrored=mode), claimed=2, preferences=preferences)
    assert (request.group, request.portion_mcpu) == (group, portion)


@pytest.mark.parametrize(
    ("qos", "limit", "preferences", "rules", "level"),
    [
        pytest.param(QoS.BURSTABLE, None, Preferences(unlimited_burstable=Level.DIE), Rules(), Level.DIE, id="asked"),
        pytest.param(
            QoS.BURSTABLE, None, NO_PREFERENCES, Rules(unlimited_burstable=Level.NUMA), Level.NUMA, id="default"
        ),
        pytest.param(QoS.BURSTABLE, 4000, Preferences(unlimited_burstable=Level.DIE), Rules(), None, id="limited"),
        pytest.param(QoS.GUARANTEED, None, Preferences(unlimited_burstable=Level.DIE), Rules(), None, id="Guaranteed"),
    ],
)
def test_level_of_unlimited_burstable_containers(
    qos: QoS, limit: int | None, preferences: Preferences, rules: Rules, level: Level | None
) -> None:
    """A: unlimited-burstable."""
    assert asked(500, qos, rules=rules, preferences=preferences, limit_mcpu=limit).burstable is level


@pytest.mark.parametrize(
    ("mcpu", "limit", "group"),
    [
        pytest.param(2000, 2000, Group.MULTI, id="guaranteed itself"),
        pytest.param(2000, None, Group.SHARED, id="without a limit of its own"),
        pytest.param(2000, 3000, Group.SHARED, id="with more limit than request"),
        pytest.param(None, None, Group.SHARED, id="nothing of its own"),
    ],
)
def test_pod_level_resources_make_nobody_exclusive_by_themselves(
    mcpu: int | None, limit: int | None, group: Group
) -> None:
    """N1: what a container asks for is in its own spec."""
    spec = limited(pod_spec(qos=QoS.GUARANTEED, mcpu=mcpu), limit)
    spec = replace(spec, pod_request_mcpu=8000, pod_limit_mcpu=8000)
    made = replace(container(), shares=8192, quota_us=800000)  # its cgroup has the pod's figures
    request = request_of(Rules(), sandbox(), made, spec, NO_CPUS, reserved=True)
    assert (request.group, request.portion_mcpu) == (group, 0 if group is Group.MULTI else mcpu or 0)


def test_holders_of_a_pod_with_pod_level_resources_run_on_their_claims() -> None:
    """N1: its sidecars are shared."""
    spec = replace(pod_spec(qos=QoS.GUARANTEED), pod_request_mcpu=8000, pod_limit_mcpu=8000)
    holder = request_of(Rules(), sandbox(), container(), spec, CpuSet(range(8)), reserved=True)
    sidecar = request_of(Rules(), sandbox(), container(), spec, NO_CPUS, reserved=True)
    assert (holder.group, sidecar.group) == (Group.CLAIMED, Group.SHARED)


def test_limit_of_the_pod_is_the_limit_of_containers_without_one() -> None:
    """N1, G14: the kubelet gives it to them as their quota, which must not throttle what they own."""
    spec = replace(pod_spec(qos=QoS.GUARANTEED, mcpu=100), pod_limit_mcpu=2000)
    told = told_of(sandbox(), container(), spec)
    assert (told.limit_mcpu, told.may_own, told.by_pod) == (2000, False, True)
    assert told_of(sandbox(), container(), limited(spec, 300)).limit_mcpu == 300
    holder = request_of(Rules(), sandbox(), container(), replace(spec, qos=QoS.BURSTABLE), CpuSet([1]), reserved=True)
    assert (holder.limit_mcpu, holder.burstable) == (2000, None)


# In-place resize


def held(mcpu: int, limit: int | None = None, qos: QoS = QoS.GUARANTEED, exclusive: str = "") -> ContainerGrant:
    """Return the grant of a container that asked for so much."""
    return ContainerGrant(
        id=ContainerID("web-app"),
        sandbox_id=SandboxID("s"),
        pod_uid=PodUID("pod-web"),
        namespace="shop",
        pod="web",
        name="app",
        group=Group.SHARED,
        pool="root",
        qos=qos,
        exclusive=CpuSet.parse(exclusive),
        told_mcpu=mcpu,
        limit_mcpu=limit,
    )


@pytest.mark.parametrize("spec_mcpu", [pytest.param(1000, id="spec before"), pytest.param(3000, id="spec after")])
def test_the_update_says_the_new_amounts_whenever_the_spec_comes(spec_mcpu: int) -> None:
    """G12: the watch may be early or late."""
    told = told_of(sandbox(), container(), limited(pod_spec(qos=QoS.GUARANTEED, mcpu=spec_mcpu), spec_mcpu))
    new = resized(held(1000, 1000), told, Resources(shares=3072, quota_us=300000, period_us=100000))
    assert (new.mcpu, new.limit_mcpu, new.may_own) == (3000, 3000, True)
    assert ("says 1000m" in new.note) == (spec_mcpu == 1000)


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(Resources(memory_limit_bytes=1 << 30), id="memory only"),
        pytest.param(Resources(shares=1024, quota_us=100000, period_us=100000), id="the same again"),
        pytest.param(Resources(shares=1024), id="shares alone"),
    ],
)
def test_an_update_of_other_things_changes_no_cpu(wanted: Resources) -> None:
    """G12: the spec may say something newer already."""
    told = told_of(sandbox(), container(), limited(pod_spec(qos=QoS.GUARANTEED, mcpu=4000), 4000))
    new = resized(held(1000, 1000), told, wanted)
    assert (new.mcpu, new.limit_mcpu) == (1000, 1000)


def test_small_amounts_that_figures_cannot_tell_apart_are_no_change() -> None:
    """G12: a request of 1m has the least shares, a limit of 1m the least quota."""
    told = told_of(sandbox(), container(), limited(pod_spec(qos=QoS.BURSTABLE, mcpu=1), 1))
    new = resized(held(1, 1, QoS.BURSTABLE), told, Resources(shares=2, quota_us=1000, period_us=100000))
    assert (new.mcpu, new.limit_mcpu) == (1, 1)


def test_limit_may_be_taken_away() -> None:
    """G12; the least there is, is one."""
    some = resized(held(500, qos=QoS.BURSTABLE), told_of(sandbox(), container(), pod_spec()), Resources(quota_us=1))
    assert some.limit_mcpu == 1
    told = told_of(sandbox(), container(), pod_spec(qos=QoS.BURSTABLE, mcpu=500))
    assert resized(held(500, 1000, QoS.BURSTABLE), told, Resources(quota_us=-1)).limit_mcpu is None


def test_pods_figures_in_an_update_say_nothing_of_a_container() -> None:
    """N1, G12: pod-level resources."""
    spec = replace(pod_spec(qos=QoS.BURSTABLE, mcpu=300), pod_request_mcpu=4000)
    told = told_of(sandbox(), container(), spec)
    assert resized(held(300, qos=QoS.BURSTABLE), told, Resources(shares=8192)).mcpu == 300


def test_resize_without_a_spec_takes_nothing_exclusive_away() -> None:
    """G12, N1: it was given when the spec was known."""
    told = told_of(sandbox(cgroup_parent="/kubepods/pod1"), container(shares=2048), None)
    grown = resized(held(2000, exclusive="4-5"), told, Resources(shares=3072))
    assert grown.may_own
    assert not resized(held(2000), told, Resources(shares=3072)).may_own


@given(st.integers(0, 255_000))
def test_a_request_is_read_back_from_its_shares_exactly(mcpu: int) -> None:
    """G12, N1: the kubelet rounds down."""
    told = told_of(sandbox(), container(), pod_spec(qos=QoS.BURSTABLE, mcpu=7))
    new = resized(held(300_000), told, Resources(shares=min(max(mcpu * 1024 // 1000, 2), 262144)))
    assert new.mcpu == mcpu or mcpu <= 2


def shares_of(mcpu: int) -> int:
    """Return what the kubelet makes of a request."""
    return min(max(mcpu * 1024 // 1000, 2), 262_144)


def quota_of(limit: int | None, period_us: int) -> int:
    """Return what the kubelet makes of a limit."""
    return -1 if limit is None else max(limit * period_us // 1000, 1000)


REQUESTS = (0, 1, 2, 3, 10, 999, 1000, 1001, 64_000, 255_800, 255_999, 256_000, 256_100, 300_000)


@given(*[st.sampled_from(REQUESTS)] * 3)
def test_update_of_shares_means_what_it_was_or_what_the_spec_says_or_else_what_it_is(
    old: int, spec: int, new: int
) -> None:
    """G12: where figures cannot tell amounts apart, nothing has changed."""
    told = told_of(sandbox(), container(), pod_spec(qos=QoS.BURSTABLE, mcpu=spec))
    found = resized(held(old, qos=QoS.BURSTABLE), told, Resources(shares=shares_of(new)))
    known = [mcpu for mcpu in (old, spec) if shares_of(mcpu) == shares_of(new)]
    by_figure = 0 if shares_of(new) == 2 else -(-shares_of(new) * 1000 // 1024)
    assert found.mcpu == (known[0] if known else by_figure)
    assert ("by the update" in found.note) == (found.mcpu != spec)


LIMITS = (None, 1, 9, 10, 11, 15, 1000, 1001, 1505, 64_000)


@given(*[st.sampled_from(LIMITS)] * 3, st.sampled_from([None, 100_000, 50_000, 10_000]))
def test_update_of_the_quota_means_what_it_was_or_what_the_spec_says_or_else_what_it_is(
    old: int | None, spec: int | None, new: int | None, period_us: int | None
) -> None:
    """G12."""
    told = told_of(sandbox(), container(), limited(pod_spec(qos=QoS.BURSTABLE, mcpu=1), spec))
    period = period_us or 100_000
    quota_us = quota_of(new, period)
    found = resized(held(1, old, QoS.BURSTABLE), told, Resources(quota_us=quota_us, period_us=period_us))
    known = [limit for limit in (old, spec) if quota_of(limit, period) == quota_us]
    by_figure = None if new is None else -(-quota_us * 1000 // period)
    assert found.limit_mcpu == (known[0] if known else by_figure)


@pytest.mark.parametrize(
    ("quota_us", "period_us", "limit"),
    [
        (None, 100_000, None),
        (-1, 100_000, None),
        (0, 100_000, None),
        (1, 100_000, 1),
        (150_000, 100_000, 1500),
        (150_000, 50_000, 3000),
        (20_000_000, None, 200_000),
        (20_000_000, 0, 200_000),
    ],
)
def test_limit_of_an_unknown_pod_is_read_from_its_quota_rounded_up(
    quota_us: int | None, period_us: int | None, limit: int | None
) -> None:
    """N1: by the kernel's usual period where none is told."""
    made = replace(container(), quota_us=quota_us, period_us=period_us)
    assert told_of(sandbox(), made, None).limit_mcpu == limit


@pytest.mark.parametrize(
    ("limit", "request_bytes", "runtime", "counted"),
    [(7, 5, 3, 7), (None, 5, 3, 5), (7, None, 3, 7), (None, None, 3, 0), (0, 5, 3, 5)],
)
def test_memory_counted_is_the_limit_else_the_request(
    limit: int | None, request_bytes: int | None, runtime: int, counted: int
) -> None:
    """M1, N1: what the runtime says counts where the pod is not known."""
    spec = pod_spec(qos=QoS.BURSTABLE, mcpu=100)
    mine = replace(spec.containers["app"], limit_memory_bytes=limit, request_memory_bytes=request_bytes)
    made = replace(container(), memory_limit_bytes=runtime)
    for known, expected in (
        (replace(spec, containers={"app": mine}), counted),
        (None, 3),
        (replace(spec, containers={}), 3),
    ):
        assert request_of(Rules(), sandbox(), made, known, NO_CPUS, reserved=True).memory_bytes == expected
    assert request_of(Rules(), sandbox(), container(), None, NO_CPUS, reserved=True).memory_bytes == 0


@pytest.mark.parametrize("default", Priority)
@pytest.mark.parametrize("wish", [None, *Priority])
def test_priority_is_the_containers_wish_or_the_default(default: Priority, wish: Priority | None) -> None:
    """K4, A: prefer-cpu-priority; a wish for none is a wish."""
    request = asked(2000, rules=Rules(priority=default), preferences=Preferences(priority=wish))
    assert request.priority is (default if wish is None else wish)
