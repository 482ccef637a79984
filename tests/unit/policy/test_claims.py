"""Claims that say which CPUs they take or how they are picked, on devices of every grouping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.dra.devices import known_devices, whole_devices
from nodecpu.errors import BadRequest, NoCapacity, NodeCpuError
from nodecpu.policy.claims import same_allocation
from nodecpu.policy.facts import AllocatedClaim, AllocationResult
from nodecpu.policy.grants import ClaimGrant
from nodecpu.policy.rules import Rules
from nodecpu.policy.wishes import Spread, Wishes
from tests.unit.policy.given import NODE, claim_uid, cpus, prepare
from tests.unit.policy.machines import N4C16, Books, Shape, books

CACHES = Shape(sockets=2, nodes=1, cores=4, threads=2, l3_cores=2)
"""Sockets 0-7 and 8-15, L3 caches 0-3, 4-7, 8-11 and 12-15."""


def node(shape: Shape = N4C16, rules: Rules | None = None, reserved: str = "15") -> Books:
    made = books(shape, reserved=reserved, rules=rules)
    known = known_devices(made.topology, made.usable)
    return replace(made, machine=replace(made.machine, devices=known, whole=whole_devices(made.topology)))


def result(
    device: str,
    count: int,
    cpuset: str | None = None,
    *,
    full_cores: bool = False,
    spread: Spread | None = None,
    same_l3: bool = False,
    strict: bool = False,
) -> AllocationResult:
    wishes = Wishes(full_cores=full_cores, spread=spread, same_l3=same_l3, strict=strict)
    named = None if cpuset is None else CpuSet.parse(cpuset)
    wanted = None if wishes == Wishes() else wishes
    return AllocationResult(request="r", pool=NODE, device=device, cpus=count, cpuset=named, wishes=wanted)


def claim(number: int, *results: AllocationResult) -> AllocatedClaim:
    return AllocatedClaim(uid=claim_uid(number), namespace="shop", name=f"claim-{number}", results=results)


ADMIN = AllocationResult(request="r", pool=NODE, device="cpudevnuma000", cpus=0, admin_access=True)
"""A result that only looks."""


def given(where: Books, *results: AllocationResult, number: int = 1) -> ClaimGrant:
    return prepare(where, claim(number, *results))


def refused(where: Books, kind: type[NodeCpuError], *results: AllocationResult, number: int = 9) -> str:
    before = dict(where.ledger.claims)
    with pytest.raises(kind) as caught:
        given(where, *results, number=number)
    assert where.ledger.claims == before
    return str(caught.value)


@pytest.mark.parametrize(
    ("device", "count", "expected"),
    [
        ("cpudevsocket001", 6, "8-13"),
        ("cpudevdie000-000", 2, "0-1"),
        ("cpudevl3003", 2, "12-13"),
        ("cpudevmachine", 8, "0-7"),
        ("cpudevmachine", 9, "0-7,14"),
        ("cpudev006", 1, "6"),
    ],
)
def test_device_of_any_grouping_gives_its_cpus(device: str, count: int, expected: str) -> None:
    """C2, D1."""
    assert given(node(), result(device, count)).cpus == cpus(expected)


def test_claim_of_single_cpus_gets_exactly_these() -> None:
    """C2, C3."""
    where = node()
    grant = given(where, result("cpudev006", 1), result("cpudev011", 1))
    assert [str(one.cpus) for one in grant.results] == ["6", "11"]
    assert "1 CPUs asked of cpudev006, 0 free" in refused(where, NoCapacity, result("cpudev006", 1))
    assert "which has 0" in refused(where, BadRequest, result("cpudev015", 1))


def test_claim_that_spans_pools_is_in_the_deepest_pool_that_holds_it() -> None:
    """C4."""
    where = node()
    grant = given(where, result("cpudevnuma000", 2), result("cpudevnuma001", 2))
    assert where.ledger.tree.holding(grant.cpus).name == "socket 0"
    assert where.ledger.tree.holding(given(where, result("cpudevmachine", 9), number=2).cpus).name == "root"


def test_unknown_device_is_refused_with_a_bounded_list_of_those_there_are() -> None:
    """C1."""
    with pytest.raises(BadRequest) as caught:
        given(node(), result("cpudevnuma009", 1))
    assert "there is no device cpudevnuma009" in caught.value.message
    assert "more" in (caught.value.hint or "")


def test_named_cpus_are_given_as_they_are_named() -> None:
    """C9: even where the picker would choose others."""
    assert given(node(), result("cpudevmachine", 4, "2-3,9,14")).cpus == cpus("2-3,9,14")


@pytest.mark.parametrize(
    ("cpuset", "count", "kind", "words"),
    [
        ("2-4", 2, BadRequest, "names 3 CPUs (2-4), 2 are allocated"),
        ("14-15", 2, BadRequest, "of which 15 are reserved"),
        ("14,99", 2, BadRequest, "of which 99 are not online"),
        ("1,4", 2, NoCapacity, "of which 4 are held by others"),
    ],
)
def test_named_cpus_that_cannot_be_given_are_refused(
    cpuset: str, count: int, kind: type[NodeCpuError], words: str
) -> None:
    """C9: count, online, not reserved, not held."""
    where = node()
    given(where, result("cpudevnuma001", 2))
    assert words in refused(where, kind, result("cpudevmachine", count, cpuset))


def test_named_cpus_lie_within_the_device() -> None:
    """C9."""
    assert "of which 8 are not of cpudevnuma001" in refused(node(), BadRequest, result("cpudevnuma001", 2, "7-8"))
    assert given(node(), result("cpudevnuma001", 2, "5-6")).cpus == cpus("5-6")


def test_two_results_do_not_name_the_same_cpu() -> None:
    """C3, C9."""
    both = (result("cpudevmachine", 2, "2-3"), result("cpudevmachine", 2, "3-4"))
    assert "CPUs 3 are named by another request" in refused(node(), BadRequest, *both)


def test_what_one_result_names_is_kept_from_the_others() -> None:
    """C3, C9: whatever their order."""
    grant = given(node(), result("cpudevmachine", 2), result("cpudevmachine", 2, "0-1"))
    assert [str(one.cpus) for one in grant.results] == ["2-3", "0-1"]


def test_machine_may_be_asked_to_have_its_cpus_named() -> None:
    """C9: require_cpuset is for the device of the whole machine."""
    where = node(rules=Rules(require_cpuset=True))
    assert "needs a configuration that says which CPUs" in refused(where, BadRequest, result("cpudevmachine", 2))
    assert given(where, result("cpudevmachine", 2, "4-5")).cpus == cpus("4-5")
    assert given(where, result("cpudevnuma000", 2), number=2).cpus == cpus("0-1")


def test_wishes_of_the_claim_are_followed() -> None:
    """C10."""
    assert given(node(), result("cpudevsocket000", 3, spread=Spread.CORES)).cpus == cpus("0,2,4")
    assert given(node(CACHES), result("cpudevsocket000", 4, spread=Spread.L3)).cpus == cpus("0-1,4-5")
    assert given(node(CACHES), result("cpudevmachine", 4, same_l3=True)).cpus == cpus("8-11")


def test_full_cores_are_preferred_to_parts() -> None:
    """C10."""
    where = node()
    given(where, result("cpudev000", 1))
    assert given(where, result("cpudevnuma000", 2, full_cores=True), number=2).cpus == cpus("2-3")


def test_wish_that_cannot_be_met_is_a_recorded_compromise() -> None:
    """C10."""
    grant = given(node(), result("cpudevsocket000", 5, full_cores=True, same_l3=True))
    assert grant.results[0].missed == ("full cores", "one L3 cache")
    assert given(node(), result("cpudevsocket000", 4, full_cores=True)).results[0].missed == ()


def test_strict_wish_that_can_never_be_met_is_refused_for_good() -> None:
    """C10."""
    words = refused(node(), BadRequest, result("cpudevsocket000", 5, same_l3=True, strict=True))
    assert "5 CPUs of cpudevsocket000 as one L3 cache is more than it can ever give" in words


def test_strict_wish_that_cannot_be_met_now_is_refused_for_now() -> None:
    """C10, C8."""
    where = node()
    given(where, result("cpudev004", 1), result("cpudev006", 1))
    words = refused(where, NoCapacity, result("cpudevnuma001", 2, full_cores=True, strict=True))
    assert "as full cores cannot be had now; free: 5,7" in words


FULL = Rules(wishes=Wishes(full_cores=True))


def test_node_that_gives_full_cores_only_refuses_parts() -> None:
    """K2: for good where the amount is none, for now where no core is free."""
    where = node(rules=FULL)
    assert "3 CPUs are no full cores" in refused(where, BadRequest, result("cpudevnuma000", 3))
    assert "no full cores" in refused(where, BadRequest, result("cpudevmachine", 2, "1-2"))
    assert given(where, result("cpudevnuma000", 2)).cpus == cpus("0-1")
    both = (result("cpudevmachine", 2, "5-6"), result("cpudevnuma002", 2))
    assert "4 CPUs are no full cores" in refused(where, BadRequest, *both)  # no retry makes other CPUs of those named
    half = node(rules=FULL, reserved="4,6")
    assert "2 CPUs of full cores cannot be had now" in refused(half, NoCapacity, result("cpudevnuma001", 2))


def test_full_cores_of_the_node_hold_for_claims_with_wishes_of_their_own() -> None:
    """K2, C10."""
    where = node(rules=FULL)
    assert given(where, result("cpudevmachine", 4, same_l3=True)).cpus == cpus("8-11")
    assert "full cores only" in refused(where, BadRequest, result("cpudevmachine", 2, spread=Spread.CORES))


def test_single_cpus_of_one_core_are_a_full_core() -> None:
    """K2."""
    where = node(rules=FULL)
    assert given(where, result("cpudev004", 1), result("cpudev005", 1)).cpus == cpus("4-5")
    words = refused(where, BadRequest, result("cpudev006", 1))
    assert "1 CPUs are no full cores" in words


def test_nodes_wishes_hold_where_the_claim_has_none() -> None:
    """K2."""
    where = node(rules=Rules(wishes=Wishes(spread=Spread.NUMA)))
    assert given(where, result("cpudevmachine", 6)).cpus == cpus("0-2,4-6")


def test_allocation_with_other_named_cpus_is_another_one() -> None:
    """C6, C9."""
    made = given(node(), result("cpudevmachine", 2, "4-5"))
    assert same_allocation(made, claim(1, result("cpudevmachine", 2, "5,4")))
    assert same_allocation(made, claim(1, result("cpudevmachine", 2)))
    assert not same_allocation(made, claim(1, result("cpudevmachine", 2, "6-7")))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"request": "s"}, id="request"),
        pytest.param({"pool": "node-b"}, id="pool"),
        pytest.param({"device": "cpudevnuma001"}, id="device"),
        pytest.param({"share_id": "x"}, id="share"),
        pytest.param({"cpus": 3}, id="amount"),
        pytest.param({"admin_access": True}, id="admin access"),
        pytest.param({"cpuset": CpuSet.parse("4-5")}, id="named CPUs"),
    ],
)
def test_allocation_that_differs_in_one_result_is_another_one(other: Mapping[str, object]) -> None:
    """C6: whichever result it is, and if one is missing."""
    told = (result("cpudevnuma000", 2), result("cpudevnuma002", 2), replace(ADMIN, device="cpudevnuma003"))
    made = given(node(), *told)
    assert same_allocation(made, claim(1, *told))
    assert not same_allocation(made, claim(1, *told[:2]))
    assert not same_allocation(made, claim(1, *told, told[0]))
    assert not same_allocation(made, claim(1, told[1], told[0], told[2]))
    for place in range(2):
        changed = list(told)
        changed[place] = replace(told[place], **other)  # type: ignore[arg-type]  # fields by name
        assert not same_allocation(made, claim(1, *changed))


def test_what_admin_access_consumes_is_not_compared() -> None:
    """C6, C13: it is given no CPUs."""
    made = given(node(), ADMIN)
    assert made.cpus == NO_CPUS
    assert same_allocation(made, claim(1, replace(ADMIN, cpus=2, cpuset=CpuSet.parse("0-1"))))
    assert not same_allocation(made, claim(1, replace(ADMIN, admin_access=False)))


def test_device_of_another_pool_is_refused() -> None:
    """C1: the node has another name here."""
    here = node()
    where = replace(here, machine=replace(here.machine, pool=NODE))
    assert given(where, result("cpudevnuma000", 2)).cpus == cpus("0-1")
    words = refused(where, BadRequest, replace(result("cpudevnuma000", 2), pool="node-b"))
    assert "device cpudevnuma000 is of pool node-b, this node's is node-a" in words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "there are none"),
        (2, "there are d00, d01"),
        (16, "there are " + ", ".join(f"d{i:02}" for i in range(16))),
        (18, "there are " + ", ".join(f"d{i:02}" for i in range(16)) + " and 2 more"),
    ],
)
def test_devices_are_listed_as_far_as_a_message_can_hold_them(count: int, words: str) -> None:
    """C1."""
    here = node()
    devices = {f"d{i:02}": cpus("0-3") for i in range(count)}
    with pytest.raises(BadRequest) as caught:
        given(replace(here, machine=replace(here.machine, devices=devices)), result("cpudevnuma009", 1))
    assert caught.value.hint is not None
    assert caught.value.hint.endswith(words)


def test_published_devices_are_listed_before_those_of_other_groupings() -> None:
    """C1, D7: what there is to ask for must not get lost behind names that are served but not offered."""
    here = node()
    devices = {f"cpudev{i:03}": cpus("0-3") for i in range(16)} | {"cpudevnuma000": cpus("0-3")}
    machine = replace(here.machine, devices=devices, published=("cpudevnuma000",))
    with pytest.raises(BadRequest) as caught:
        given(replace(here, machine=machine), result("cpudevnuma009", 1))
    assert "there are cpudevnuma000, cpudev000, cpudev001" in caught.value.hint
    assert caught.value.hint.endswith("cpudev014 and 1 more")
