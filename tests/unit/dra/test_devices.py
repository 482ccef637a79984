"""The devices of n4c16 and of odd machines (D1, D2)."""

from __future__ import annotations

from dataclasses import replace

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.dra.devices import Device, grouped_devices, offered_devices
from nodecpu.policy.usable import Usable, usable_cpus
from nodecpu.topology.model import CoreType, Topology
from tests.unit.policy.machines import N4C16, Shape, build_topology


def usable(topology: Topology, reserved: str = "15") -> Usable:
    return usable_cpus(
        online=topology.online,
        isolated=topology.isolated,
        available=None,
        kubepods=None,
        reserved=CpuSet.parse(reserved),
    )


def devices(topology: Topology, reserved: str = "15") -> tuple[Device, ...]:
    return grouped_devices(topology, usable(topology, reserved), grouping="numa", driver="dra.cpu")


def offered(held: str = "", claimed: dict[str, int] | None = None, min_shared: int = 0, reserved: str = "15") -> str:
    topology = build_topology(N4C16)
    found = offered_devices(
        devices(topology, reserved),
        sharable=usable(topology, reserved).sharable,
        held=CpuSet.parse(held),
        claimed=claimed or {},
        min_shared=min_shared,
    )
    return " ".join(f"{int(d.name.removeprefix('cpudevnuma'))}:{d.capacity}" for d in found)


def test_numa_devices_of_n4c16_offer_four_four_four_and_three() -> None:
    """D1."""
    found = devices(build_topology(N4C16))
    assert [(d.name, str(d.cpus), d.capacity) for d in found] == [
        ("cpudevnuma000", "0-3", 4),
        ("cpudevnuma001", "4-7", 4),
        ("cpudevnuma002", "8-11", 4),
        ("cpudevnuma003", "12-14", 3),
    ]


def test_attributes_of_a_uniform_node() -> None:
    """D2."""
    assert devices(build_topology(N4C16))[2].attributes == {
        "resource.kubernetes.io/numaNode": 2,
        "dra.cpu/numaNodeID": 2,
        "dra.net/numaNode": 2,
        "dra.cpu/socketID": 1,
        "dra.cpu/dieID": 0,
        "dra.cpu/cacheL3ID": 2,
        "dra.cpu/coreType": "standard",
        "dra.cpu/smtEnabled": True,
        "dra.cpu/numCPUs": 4,
        "dra.cpu/numIsolatedCPUs": 0,
    }


def test_attribute_is_left_out_unless_it_holds_for_every_cpu_the_device_can_give() -> None:
    """D2: two caches and a mixture of cores in a node; what a reserved CPU is like does not matter."""
    topology = build_topology(Shape(cores=4, l3_cores=2, single_cores=(3,)))
    cpus = {i: replace(c, core_type=CoreType.EFFICIENT) if i >= 4 else c for i, c in topology.cpus.items()}
    topology = replace(topology, cpus=cpus)
    whole = devices(topology, reserved="")[0].attributes
    assert not {"dra.cpu/cacheL3ID", "dra.cpu/coreType", "dra.cpu/smtEnabled"} & set(whole)
    part = devices(topology, reserved="4-7")[0].attributes
    assert (part["dra.cpu/cacheL3ID"], part["dra.cpu/coreType"], part["dra.cpu/smtEnabled"]) == (0, "standard", True)


def test_unknown_ids_are_absent_not_zero() -> None:
    """D2."""
    topology = build_topology(Shape())
    cpus = {i: replace(c, package=-1, die=-1, l3_id=None) for i, c in topology.cpus.items()}
    found = devices(replace(topology, cpus=cpus), reserved="")[0].attributes
    assert not {"dra.cpu/socketID", "dra.cpu/dieID", "dra.cpu/cacheL3ID"} & set(found)


def test_node_without_cpus_is_no_device_and_ids_may_have_gaps() -> None:
    """T2, T3."""
    topology = build_topology(Shape(nodes=3))
    first, second, third = topology.numa
    nodes = (first, replace(second, cpus=NO_CPUS, home=0), replace(third, id=7))
    assert [d.name for d in devices(replace(topology, numa=nodes), reserved="")] == ["cpudevnuma000", "cpudevnuma007"]


def test_isolated_cpus_are_offered_and_counted() -> None:
    topology = build_topology(Shape(isolated="2-3"))
    found = devices(topology, reserved="")[0]
    assert (str(found.cpus), found.attributes["dra.cpu/numIsolatedCPUs"]) == ("0-3", 2)


def test_capacity_is_a_total_that_claims_do_not_lower() -> None:
    """D1."""
    assert offered() == "0:4 1:4 2:4 3:3"
    assert offered(claimed={"cpudevnuma001": 4}) == "0:4 1:4 2:4 3:3"


def test_cpus_held_without_a_claim_are_not_offered() -> None:
    """D1."""
    assert offered(held="4-5,12") == "0:4 1:2 2:4 3:2"


def test_device_with_nothing_to_offer_is_left_out_unless_claims_hold_parts_of_it() -> None:
    """D1, and a device never vanishes under its claims."""
    assert offered(held="4-7") == "0:4 2:4 3:3"
    assert offered(held="6-7", claimed={"cpudevnuma001": 2}) == "0:4 1:2 2:4 3:3"
    assert offered(reserved="4-7,15", claimed={"cpudevnuma001": 2}) == "0:4 1:1 2:4 3:3"


def test_minimum_for_shared_containers_comes_from_the_highest_device_with_room() -> None:
    """D1, C14."""
    assert offered(min_shared=1) == "0:4 1:4 2:4 3:2"
    assert offered(min_shared=5) == "0:4 1:4 2:2"
    assert offered(min_shared=1, claimed={"cpudevnuma003": 2}) == "0:4 1:4 2:4 3:2"
    assert offered(min_shared=1, claimed={"cpudevnuma003": 3}) == "0:4 1:4 2:3 3:3"
    assert offered(min_shared=1, held="12-14") == "0:4 1:4 2:3"


def test_minimum_for_shared_containers_is_never_made_of_isolated_cpus() -> None:
    """G10."""
    topology = build_topology(Shape(nodes=2, isolated="4-7"))
    found = offered_devices(
        devices(topology, reserved=""),
        sharable=usable(topology, "").sharable,
        held=NO_CPUS,
        claimed={},
        min_shared=1,
    )
    assert [d.capacity for d in found] == [3, 4]
