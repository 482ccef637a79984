"""Which container holds which claim: proofs that count, and a table of attempts that gain nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from nodecpu.errors import ClaimConflict, NotReady
from nodecpu.policy.facts import AllocationResult, ClaimRef, PodSpec
from nodecpu.policy.grants import ClaimGrant, Link
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.links import ENV_PREFIX, Links, links_of, require_present
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import build_pools
from nodecpu.policy.rules import Rules, Sharing
from tests.unit.policy.given import (
    NODE,
    claim,
    claim_env,
    claim_uid,
    container,
    cpus,
    create,
    pod_spec,
    prepare,
    release,
    sandbox,
)
from tests.unit.policy.machines import Books, books


def links(
    node: Books,
    env: Mapping[str, str],
    *refs: ClaimRef,
    devices: tuple[str, ...] = (),
    spec: PodSpec | None = None,
    unknown_pod: bool = False,
) -> Links:
    """Return the links of the container ``app`` of pod ``web``, whose spec has these references."""
    known = None if unknown_pod else spec or pod_spec(claims=refs)
    return links_of(node.ledger, node.rules, sandbox(), container(env=env, devices=devices), known)


def whole(grant: ClaimGrant) -> tuple[Link, ...]:
    return (Link(claim_uid=grant.uid, cpus=grant.cpus),)


def test_variable_counts_with_the_right_cpus_and_the_pods_reference() -> None:
    """L1."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    assert links(node, claim_env(grant), ClaimRef(claim=grant.name)) == Links(held=whole(grant))


@pytest.mark.parametrize("text", ["4-5", "5,4", "4,5", " 4-5\n", "5,4-5"])
def test_variable_is_compared_as_a_cpuset(text: str) -> None:
    """L1."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    env = {f"{ENV_PREFIX}{grant.uid}": text}
    assert links(node, env, ClaimRef(claim=grant.name)).held == whole(grant)


def saying(text: str) -> Callable[[ClaimGrant], Mapping[str, str]]:
    """Return what sets a claim's variable to a text."""
    return lambda grant: {f"{ENV_PREFIX}{grant.uid}": text}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a pod tries: the variables it sets itself, the claims its spec references, the CDI devices shown."""

    env: Callable[[ClaimGrant], Mapping[str, str]] = lambda _: {}
    refs: tuple[ClaimRef, ...] = ()
    devices: tuple[str, ...] = ()
    namespace: str = "shop"
    container: str = "app"


UID = claim_uid(1)
MINE = (ClaimRef(claim="claim-1"),)
ATTEMPTS = {
    "right CPUs, claim of somebody else": Attempt(env=claim_env),
    "reference to another claim": Attempt(env=claim_env, refs=(ClaimRef(claim="claim-9"),)),
    "same claim name in another namespace": Attempt(env=claim_env, refs=MINE, namespace="thief"),
    "container that the pod's spec does not have": Attempt(env=claim_env, container="extra"),
    "wrong UID": Attempt(env=lambda _: {f"{ENV_PREFIX}{claim_uid(2)}": "4-5"}),
    "UID cut short": Attempt(env=lambda g: {f"{ENV_PREFIX}{g.uid[:-1]}": "4-5"}),
    "UID in capitals": Attempt(env=lambda g: {f"{ENV_PREFIX}{g.uid.upper()}": "4-5"}),
    "no UID": Attempt(env=lambda _: {ENV_PREFIX: "4-5"}),
    "a request alone, without the claim's own variable": Attempt(env=lambda g: {f"{ENV_PREFIX}{g.uid}_r0": "4-5"}),
    "unknown request": Attempt(env=lambda g: {f"{ENV_PREFIX}{g.uid}_r9": "4-5"}),
    "request without a separator": Attempt(env=lambda g: {f"{ENV_PREFIX}{g.uid}r0": "4-5"}),
    "CDI device of somebody else": Attempt(devices=(f"dra.cpu/cpu=claim-{UID}-0",)),
    **{
        f"value {text[:20]!r}": Attempt(env=saying(text))
        for text in ("", "4", "4-6", "0-15", "4-5,", "4-", "-5", "4..5", "٤-٥", "0x4-5", "4-5;6", "9" * 5000, "a")
    },
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=list(ATTEMPTS))
def test_attempt_gains_nothing_and_is_reported(attempt: Attempt) -> None:
    """L1: anything else is ignored and counted."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    spec = pod_spec(namespace=attempt.namespace, claims=attempt.refs)
    box = sandbox(namespace=attempt.namespace)
    made = container(attempt.container, env=attempt.env(grant), devices=attempt.devices)
    found = links_of(node.ledger, node.rules, box, made, spec)
    assert found.held == ()
    assert found.ignored


@pytest.mark.parametrize(
    "device",
    ["claim-{uid}-1", "claim-{uid}--1", "claim-{uid}-", "claim-{uid}", "claim-{uid}-0x0", "claim-{uid}-٠", "claim--0"],
)
def test_cdi_name_with_a_bad_index_or_uid_gains_nothing(device: str) -> None:
    """L1."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    name = f"dra.cpu/cpu={device.format(uid=grant.uid)}"
    assert links(node, {}, devices=(name,)) == Links(held=(), ignored=(name,))


def test_cdi_device_of_another_driver_is_none_of_ours() -> None:
    """L1."""
    node = books()
    prepare(node, claim(1, (1, 2)))
    assert links(node, {}, devices=("nvidia.com/gpu=0",)) == Links(held=())


def test_cdi_devices_prove_a_link_where_the_runtime_shows_them() -> None:
    """L1."""
    node = books()
    grant = prepare(node, claim(1, (1, 2), (2, 1)))
    ref = ClaimRef(claim=grant.name)
    assert links(node, {}, ref, devices=grant.cdi_ids).held == whole(grant)
    assert links(node, {}, unknown_pod=True, devices=grant.cdi_ids).held == whole(grant)


def test_container_that_names_some_requests_runs_on_those_alone() -> None:
    """L2: by the reference, and by the devices shown."""
    node = books()
    grant = prepare(node, claim(1, (1, 2), (2, 1)))
    part = (Link(claim_uid=grant.uid, cpus=cpus("8"), requests=("r1",)),)
    ref = ClaimRef(claim=grant.name, request="r1")
    assert links(node, claim_env(grant), ref).held == part
    assert links(node, {}, ref, devices=grant.cdi_ids[1:]).held == part


def test_references_to_the_claim_and_to_a_request_of_it_mean_the_claim() -> None:
    """L2."""
    node = books()
    grant = prepare(node, claim(1, (1, 2), (2, 1)))
    refs = (ClaimRef(claim=grant.name, request="r1"), ClaimRef(claim=grant.name))
    assert links(node, claim_env(grant), *refs).held == whole(grant)


def test_request_variables_beside_the_claims_own_are_not_reported() -> None:
    """L1, C11: sub-requests and dashes become underscores."""
    node = books()
    wanted = claim(1, (1, 2), (2, 1))
    named = (replace(wanted.results[0], request="big-one/sub-a"), replace(wanted.results[1], request="big-one/sub-b"))
    grant = prepare(node, replace(wanted, results=named))
    env = {
        f"{ENV_PREFIX}{grant.uid}": "4-5,8",
        f"{ENV_PREFIX}{grant.uid}_big_one_sub_a": "4-5",
        f"{ENV_PREFIX}{grant.uid}_big_one_sub_b": "8",
    }
    assert links(node, env, ClaimRef(claim=grant.name)) == Links(held=whole(grant))


def test_request_variable_alone_proves_nothing() -> None:
    """L1: the runtime injects it beside the claim's own."""
    node = books()
    grant = prepare(node, claim(1, (1, 2), (2, 1)))
    env = {name: value for name, value in claim_env(grant).items() if name != f"{ENV_PREFIX}{grant.uid}"}
    assert env
    with pytest.raises(NotReady):
        links(node, env, ClaimRef(claim=grant.name))
    assert links(node, env) == Links(held=(), ignored=tuple(env))


def test_generated_name_that_is_not_known_yet_does_not_stand_in_the_way_of_others() -> None:
    """L1."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    assert links(node, claim_env(grant), ClaimRef(claim=grant.name), ClaimRef(claim=None)).held == whole(grant)


def test_two_claims_of_one_name_are_refused() -> None:
    """C6, L1: a pod that shows the one before its own, whose value it knew, does not get both."""
    node = books()
    before = prepare(node, claim(1, (1, 2)))
    after = prepare(node, replace(claim(2, (2, 2)), name=before.name))
    with pytest.raises(ClaimConflict, match="two claims"):
        links(node, {**claim_env(before), **claim_env(after)}, ClaimRef(claim=before.name))


def test_released_or_moved_claim_gives_nothing_anew() -> None:
    """L1, C12, T7."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    node.ledger.apply(Change(put_claims=(replace(grant, released=True),)))
    assert links(node, claim_env(grant), ClaimRef(claim=grant.name)).held == ()
    node.ledger.apply(Change(put_claims=(replace(grant, moved=True),)))
    with pytest.raises(NotReady):
        links(node, claim_env(grant), ClaimRef(claim=grant.name))


def test_second_pod_shares_a_prepared_claim() -> None:
    """L3: without a further prepare its name comes from the pod's spec."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    create(node, "first", claims=[grant])
    assert create(node, "second", claims=[grant]).claimed == cpus("4-5")


def test_correct_variable_of_an_unknown_pod_is_refused_retryably() -> None:
    """L1."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    with pytest.raises(NotReady, match="container shop/web/app shows claim shop/claim-1, but its pod's spec"):
        links(node, claim_env(grant), unknown_pod=True)


def test_wrong_variable_of_an_unknown_pod_is_ignored() -> None:
    """L1: malformed values never hold anything up."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    assert links(node, {f"{ENV_PREFIX}{grant.uid}": "4-6"}, unknown_pod=True).held == ()


def test_generated_name_that_is_not_known_yet_is_refused_retryably() -> None:
    """L1, N1."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    with pytest.raises(NotReady):
        links(node, claim_env(grant), ClaimRef(claim=None))


def test_reference_without_injection_is_never_taken_for_a_shared_container() -> None:
    """L1: the runtime has CDI off."""
    node = books()
    prepare(node, claim(1, (1, 2)))
    with pytest.raises(NotReady, match="references claim claim-1, but the runtime injected neither"):
        links(node, {}, ClaimRef(claim="claim-1"))


@pytest.mark.parametrize("shows", ["variable", "request", "device", "device of another driver"])
def test_claim_that_is_not_proven_yet_holds_up_who_may_be_its_pods(shows: str) -> None:
    """R2: whatever it is shown by, until the pod's spec says that the container references no claim."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    node.ledger.apply(Change(put_claims=(replace(grant, unproven=True),)))
    env = {"variable": {f"{ENV_PREFIX}{UID}": "4-5"}, "request": {f"{ENV_PREFIX}{UID}_r0": "4-5"}}.get(shows, {})
    names = {"device": f"dra.cpu/cpu=claim-{UID}-0", "device of another driver": f"other.example/x=claim-{UID}"}
    devices = (names[shows],) if shows in names else ()
    for spec in (None, pod_spec(claims=MINE), pod_spec(name="other")):
        with pytest.raises(NotReady, match=f"shows claim UID {UID}, which the API server has not confirmed yet"):
            links(node, env, devices=devices, spec=spec, unknown_pod=spec is None)
    assert links(node, env, devices=devices).held == ()
    node.ledger.apply(Change(put_claims=(replace(grant, unproven=True, released=True),)))
    assert links(node, env, devices=devices, spec=pod_spec(name="other")).held == ()


def test_claim_that_is_not_proven_yet_holds_up_nobody_else() -> None:
    """R2."""
    node = books()
    grant, proven = prepare(node, claim(1, (1, 2))), prepare(node, claim(2, (2, 2)))
    node.ledger.apply(Change(put_claims=(replace(grant, unproven=True),)))
    assert links(node, claim_env(proven), ClaimRef(claim=proven.name)).held == whole(proven)
    assert links(node, {}, unknown_pod=True) == Links(held=())


@pytest.mark.parametrize(
    ("ref", "is_missed"),
    [
        pytest.param(ClaimRef(claim="claim-1"), True, id="all of it"),
        pytest.param(ClaimRef(claim="claim-1", request="r0"), True, id="a request with CPUs"),
        pytest.param(ClaimRef(claim="claim-1", request="see"), False, id="a request without CPUs"),
        pytest.param(ClaimRef(claim="claim-1", request="gpu"), False, id="another driver's request"),
        pytest.param(ClaimRef(claim=None), False, id="a name not known yet"),
        pytest.param(ClaimRef(claim="claim-2"), False, id="released"),
        pytest.param(ClaimRef(claim="claim-3"), False, id="another namespace's"),
    ],
)
def test_only_what_should_have_been_injected_is_missed(ref: ClaimRef, *, is_missed: bool) -> None:
    """L1, C13: whether or not another claim's reference stands beside it."""
    node = books()
    wanted = claim(1, (1, 2))
    watching = AllocationResult(request="see", pool=NODE, device="cpudevnuma001", cpus=0, admin_access=True)
    prepare(node, replace(wanted, results=(*wanted.results, watching)))
    node.ledger.apply(Change(put_claims=(replace(prepare(node, claim(2, (2, 1))), released=True),)))
    prepare(node, claim(3, (2, 1), namespace="depot"))
    met = prepare(node, claim(4, (3, 1)))
    refs = (ClaimRef(claim=met.name), ref)
    if is_missed:
        with pytest.raises(NotReady, match="references claim claim-1, but the runtime injected neither"):
            links(node, claim_env(met), *refs)
    else:
        assert links(node, claim_env(met), *refs).held == whole(met)


@pytest.mark.parametrize(
    ("online", "is_refused"),
    [("0-15", False), ("0-4", False), ("0-3,5", False), ("0-3,6-15", True), (None, False)],
)
def test_a_claim_without_a_cpu_online_holds_its_container_up(online: str | None, *, is_refused: bool) -> None:
    """T6: one that is there is enough; where it is not told which are, all are."""
    node = books()
    held = whole(prepare(node, claim(1, (1, 2))))
    usable = replace(node.usable, online=None if online is None else cpus(online))
    later = Ledger(build_pools(node.topology, usable))
    later.apply(Change(put_claims=tuple(node.ledger.claims.values())))
    require_present(later, sandbox(), container(), ())
    if not is_refused:
        require_present(later, sandbox(), container(), held)
        return
    with pytest.raises(NotReady, match=r"shop/web/app: all CPUs of claim claim-1 \(4-5\) are offline"):
        require_present(later, sandbox(), container(), held)


def test_reference_to_a_claim_of_another_driver_needs_no_injection() -> None:
    """C1."""
    assert links(books(), {}, ClaimRef(claim="gpu")) == Links(held=())


def test_predecessor_of_a_claims_name_does_not_stand_in_its_way() -> None:
    """C6: a claim deleted and made again under its name is another claim; the old one may be unprepared late."""
    node = books()
    old = prepare(node, claim(1, (1, 2), name="cpus"))
    new = prepare(node, claim(2, (1, 2), name="cpus"))
    for order in ((old, new), (new, old)):
        node.ledger.apply(Change(put_claims=order))
        assert links(node, claim_env(new), ClaimRef(claim="cpus")).held == whole(new)


def test_admin_access_links_to_nothing() -> None:
    """C13."""
    node = books()
    watching = AllocationResult(request="see", pool=NODE, device="cpudevnuma001", cpus=0, admin_access=True)
    grant = prepare(node, replace(claim(1), results=(watching,)))
    ref = ClaimRef(claim=grant.name)
    assert links(node, {f"{ENV_PREFIX}{grant.uid}": ""}, ref) == Links(held=())
    assert links(node, {}, ref, devices=grant.cdi_ids) == Links(held=())
    assert links(node, {}, ref) == Links(held=())


def test_links_come_in_order_of_uid() -> None:
    """Equal inputs give equal answers."""
    node = books()
    grants = [prepare(node, claim(number, (1, 1))) for number in (3, 1, 2)]
    env = {key: value for grant in grants for key, value in claim_env(grant).items()}
    refs = [ClaimRef(claim=grant.name) for grant in grants]
    found = links(node, env, *refs).held
    assert [link.claim_uid for link in found] == [claim_uid(1), claim_uid(2), claim_uid(3)]


@pytest.mark.parametrize(
    ("sharing", "same_pod", "other_pod"),
    [
        pytest.param(Sharing.ALLOW, True, True, id="allow"),
        pytest.param(Sharing.POD, True, False, id="pod"),
        pytest.param(Sharing.CONTAINER, False, False, id="container"),
    ],
)
def test_sharing_of_a_claim_can_be_restricted(sharing: Sharing, *, same_pod: bool, other_pod: bool) -> None:
    """L3."""
    for allowed, pod, name in ((same_pod, "web", "second"), (other_pod, "other", "app")):
        node = books(rules=Rules(sharing=sharing))
        grant = prepare(node, claim(1, (1, 2)))
        create(node, "web", claims=[grant])
        if allowed:
            assert create(node, pod, claims=[grant], name=name).claimed == grant.cpus
        else:
            holder = "container app of this pod" if pod == "web" else "another pod"
            with pytest.raises(ClaimConflict, match=f"claim shop/claim-1 is held by {holder} already"):
                create(node, pod, claims=[grant], name=name)


def test_restarted_container_is_no_second_holder() -> None:
    """L3, L4: the predecessor's stop can come late."""
    node = books(rules=Rules(sharing=Sharing.CONTAINER))
    grant = prepare(node, claim(1, (1, 2)))
    create(node, "web", claims=[grant])
    again = container(env=claim_env(grant), mark="-again")
    spec = pod_spec(claims=[ClaimRef(claim=grant.name)])
    assert links_of(node.ledger, node.rules, sandbox(), again, spec).held == whole(grant)


def test_released_claims_cpus_prove_nothing_to_the_next_owner() -> None:
    """L1: old variables name the old claim."""
    node = books()
    old = prepare(node, claim(1, (1, 2)))
    release(node, old)
    prepare(node, claim(2, (1, 2)))
    assert links(node, claim_env(old)).held == ()


def test_thousands_of_variables_stay_cheap() -> None:
    """L1: each variable is looked at once; a quadratic walk over these would take minutes."""
    node = books()
    grant = prepare(node, claim(1, (1, 2)))
    env = {f"{ENV_PREFIX}{number:036d}": "0" for number in range(60_000)}
    found = links(node, {**env, **claim_env(grant)}, ClaimRef(claim=grant.name))
    assert found.held == whole(grant)
    assert len(found.ignored) == len(env)
