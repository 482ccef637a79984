"""How devices are (D6)."""

from __future__ import annotations

from nodecpu.cpuset import CpuSet
from nodecpu.dra.condition import MAX_MESSAGE_BYTES, Condition, Health, conditions
from nodecpu.ids import ClaimUID
from nodecpu.policy.grants import ClaimGrant, ResultGrant

DEVICES = {"cpudevnuma000": CpuSet.parse("0-3"), "cpudevnuma001": CpuSet.parse("4-7")}
ALL = CpuSet.parse("0-7")


def held(device: str, cpus: str, *, moved: bool = False, admin: bool = False) -> ClaimGrant:
    result = ResultGrant(request="a", pool="node1", device=device, cpus=CpuSet.parse(cpus), admin_access=admin)
    return ClaimGrant(uid=ClaimUID("u"), namespace="shop", name="web", results=(result,), moved=moved)


def look(*claims: ClaimGrant, online: CpuSet = ALL, away: bool = False) -> dict[str, Condition]:
    found = conditions(DEVICES, claims, pool="node1", online=online, runtime_away=away)
    assert [one.device for one in found] == sorted(one.device for one in found)
    assert {one.pool for one in found} == {"node1"}
    return {one.device: one for one in found}


def test_devices_are_healthy_while_all_is_well() -> None:
    """D6."""
    assert {one.health for one in look(held("cpudevnuma000", "0-1")).values()} == {Health.HEALTHY}


def test_device_is_unhealthy_when_held_cpus_are_offline() -> None:
    """D6: it names them; the other device does not suffer."""
    found = look(held("cpudevnuma001", "4-5"), online=CpuSet.parse("0-4,6-7"))
    assert found["cpudevnuma001"].health is Health.UNHEALTHY
    assert found["cpudevnuma001"].message == "CPUs 5 are offline, claims hold them"
    assert found["cpudevnuma000"].health is Health.HEALTHY


def test_free_cpus_that_are_offline_make_nobody_ill() -> None:
    """D6."""
    assert look(held("cpudevnuma001", "4-5"), online=CpuSet.parse("0-5"))["cpudevnuma001"].health is Health.HEALTHY


def test_device_without_any_cpu_left_is_unhealthy() -> None:
    """D6."""
    assert look(online=CpuSet.parse("0-3"))["cpudevnuma001"].message == "all its CPUs (4-7) are offline"


def test_runtime_that_is_away_for_long_makes_health_unknown() -> None:
    """D6, D5: not unhealthy, the containers are where they were; what is offline stays so."""
    found = look(held("cpudevnuma001", "4"), online=CpuSet.parse("0-3,5-7"), away=True)
    assert found["cpudevnuma000"].health is Health.UNKNOWN
    assert found["cpudevnuma001"].health is Health.UNHEALTHY


def test_device_of_an_earlier_grouping_is_told_while_it_is_held() -> None:
    """D7."""
    assert look(held("cpudevsocket000", "0-1"))["cpudevsocket000"].health is Health.HEALTHY


def test_claims_that_hold_nothing_there_do_not_count() -> None:
    """T7, C13: picked anew at the next prepare, or only observing."""
    moved, admin = held("cpudevnuma001", "5", moved=True), held("cpudevnuma001", "", admin=True)
    assert look(moved, admin, online=CpuSet.parse("0-4,6-7"))["cpudevnuma001"].health is Health.HEALTHY


def test_message_stays_within_the_kubelets_limit() -> None:
    """D6."""
    every_other = CpuSet(range(0, 4096, 2))
    claim = held("cpudevnuma001", str(every_other))
    assert len(look(claim, online=CpuSet(range(1, 4096, 2)))["cpudevnuma001"].message.encode()) <= MAX_MESSAGE_BYTES
