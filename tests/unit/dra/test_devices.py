"""The devices of n4c16 and of odd machines (D1, D2)."""

from __future__ import annotations

from dataclasses import replace

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.dra.devices import (
    MAX_VALUES,
    PCIE_ROOT,
    Device,
    Dividing,
    attributes_of,
    devices_of,
    gone_devices,
    is_one_cpu,
    known_devices,
    offered_devices,
    threads_of,
    untold_roots,
    whole_devices,
)
from nodecpu.policy.usable import Usable, usable_cpus
from nodecpu.topology.model import CoreType, Group, PcieRoot, Topology
from tests.unit.policy.machines import N4C16, Shape, build_topology


def usable(topology: Topology, reserved: str = "15") -> Usable:
    return usable_cpus(
        online=topology.online,
        isolated=topology.isolated,
        available=None,
        kubepods=None,
        reserved=CpuSet.parse(reserved),
    )


def devices(
    topology: Topology, reserved: str = "15", grouping: str = "numa", *, full_cores: bool = False, split: bool = False
) -> tuple[Device, ...]:
    dividing = Dividing(grouping=grouping, full_cores=full_cores, split=split)
    return devices_of(topology, usable(topology, reserved), dividing=dividing, driver="dra.cpu")


def names(found: tuple[Device, ...]) -> list[tuple[str, str]]:
    return [(device.name, str(device.cpus)) for device in found]


def offered(
    held: str = "",
    claimed: dict[str, str] | None = None,
    min_shared: int = 0,
    reserved: str = "15",
    *,
    full_cores: bool = False,
) -> str:
    topology = build_topology(N4C16)
    found = offered_devices(
        devices(topology, reserved, full_cores=full_cores),
        usable=usable(topology, reserved),
        held=CpuSet.parse(held),
        claimed={name: CpuSet.parse(cpus) for name, cpus in (claimed or {}).items()},
        min_shared=min_shared,
        cores=[core.cpus for core in topology.cores],
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
        "dra.cpu/isolated": False,
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
    assert offered(claimed={"cpudevnuma001": "4-7"}) == "0:4 1:4 2:4 3:3"


def test_cpus_held_without_a_claim_are_not_offered() -> None:
    """D1."""
    assert offered(held="4-5,12") == "0:4 1:2 2:4 3:2"


def test_device_with_nothing_to_offer_is_left_out_unless_claims_hold_parts_of_it() -> None:
    """D1, and a device never vanishes under its claims."""
    assert offered(held="4-7") == "0:4 2:4 3:3"
    assert offered(held="6-7", claimed={"cpudevnuma001": "4-5"}) == "0:4 1:2 2:4 3:3"
    assert offered(reserved="4-7,15", claimed={"cpudevnuma001": "4-5"}) == "0:4 1:1 2:4 3:3"


def test_device_is_gone_with_the_machine_not_with_another_grouping() -> None:
    """U10, D7: while claims hold parts of it; the CPUs of a device that is called otherwise count as held there."""
    before = devices(build_topology(N4C16))
    left = [device for device in before if device.name != "cpudevnuma001"]
    held = {"cpudevnuma001": CpuSet.parse("4-5"), "cpudevnuma002": CpuSet.parse("8")}
    (gone,) = gone_devices(before, left, held)
    assert (gone.name, gone.cpus) == ("cpudevnuma001", NO_CPUS)
    assert gone_devices([*left, gone], left, held) == (gone,)
    assert gone_devices(before, left, {}) == ()
    assert gone_devices(before, before, held) == ()
    socket = replace(before[0], name="cpudevsocket000", cpus=CpuSet.parse("0-15"))
    assert gone_devices(before, [socket], held) == ()


def test_minimum_for_shared_containers_comes_from_the_highest_device_with_room() -> None:
    """D1, C14."""
    assert offered(min_shared=1) == "0:4 1:4 2:4 3:2"
    assert offered(min_shared=5) == "0:4 1:4 2:2"
    assert offered(min_shared=1, claimed={"cpudevnuma003": "12-13"}) == "0:4 1:4 2:4 3:2"
    assert offered(min_shared=1, claimed={"cpudevnuma003": "12-14"}) == "0:4 1:4 2:3 3:3"
    assert offered(min_shared=1, held="12-14") == "0:4 1:4 2:3"


def test_minimum_for_shared_containers_is_never_made_of_isolated_cpus() -> None:
    """G10."""
    topology = build_topology(Shape(nodes=2, isolated="4-7"))
    found = offered_devices(
        devices(topology, reserved=""),
        usable=usable(topology, ""),
        held=NO_CPUS,
        claimed={},
        min_shared=1,
    )
    assert [d.capacity for d in found] == [3, 4]


GRID = Shape(sockets=2, nodes=1, cores=4, threads=2, l3_cores=2)
"""Sockets 0-7 and 8-15, L3 caches 0-3, 4-7, 8-11 and 12-15."""


def test_every_grouping_has_its_names() -> None:
    """D1."""
    topology = build_topology(GRID)
    assert names(devices(topology, grouping="socket")) == [("cpudevsocket000", "0-7"), ("cpudevsocket001", "8-14")]
    assert names(devices(topology, grouping="machine")) == [("cpudevmachine", "0-14")]
    assert names(devices(topology, grouping="die")) == [("cpudevdie000-000", "0-7"), ("cpudevdie001-000", "8-14")]
    assert names(devices(topology, grouping="l3")) == [
        ("cpudevl3000", "0-3"),
        ("cpudevl3001", "4-7"),
        ("cpudevl3002", "8-11"),
        ("cpudevl3003", "12-14"),
    ]


def test_attributes_follow_the_grouping() -> None:
    """D2: what holds for every CPU of the device and nothing else."""
    topology = build_topology(GRID)
    socket = devices(topology, grouping="socket")[1].attributes
    assert (socket["dra.cpu/socketID"], socket["resource.kubernetes.io/numaNode"]) == (1, 1)
    assert "dra.cpu/cacheL3ID" not in socket
    machine = devices(topology, grouping="machine")[0].attributes
    assert not {"dra.cpu/socketID", "dra.cpu/dieID", "dra.cpu/coreID", "dra.net/numaNode"} & set(machine)
    assert (machine["dra.cpu/numCPUs"], machine["dra.cpu/smtEnabled"]) == (15, True)


def test_cpus_without_an_l3_cache_are_devices_by_node() -> None:
    """T1, D1: where nothing is known of caches, claims can still be served."""
    topology = replace(build_topology(N4C16), l3=())
    assert names(devices(topology, grouping="l3"))[0] == ("cpudevnol3000", "0-3")
    half = replace(build_topology(N4C16), l3=build_topology(N4C16).l3[:1])
    assert [name for name, _ in names(devices(half, grouping="l3"))] == [
        "cpudevl3000",
        "cpudevnol3001",
        "cpudevnol3002",
        "cpudevnol3003",
    ]


def test_individual_devices_are_one_cpu_each_core_by_core() -> None:
    """D1, D2: siblings follow each other, whatever their numbers, and names are CPU numbers."""
    topology = build_topology(Shape(cores=4, threads=1))
    cores = tuple(replace(topology.cores[i], cpus=CpuSet([i, i + 2])) for i in range(2))
    found = devices(replace(topology, cores=cores), reserved="1", grouping="individual")
    assert names(found) == [("cpudev000", "0"), ("cpudev002", "2"), ("cpudev001", ""), ("cpudev003", "3")]
    attributes = found[1].attributes
    assert (attributes["dra.cpu/cpuID"], attributes["dra.cpu/coreID"], attributes["dra.cpu/isolated"]) == (2, 2, False)
    assert "dra.cpu/numCPUs" not in attributes
    assert all(device.step == 0 and is_one_cpu(device.name) for device in found)


def test_only_names_of_single_cpus_stand_for_one_cpu() -> None:
    """C1: a result without an amount is one CPU for these and an error for all others."""
    topology = build_topology(GRID)
    known = known_devices(topology, usable(topology))
    assert {name for name in known if is_one_cpu(name)} == {f"cpudev{cpu:03d}" for cpu in range(16)}
    assert not is_one_cpu("cpudev1")
    assert is_one_cpu("cpudev4095")


def test_isolated_cpus_can_be_devices_of_their_own() -> None:
    """D2."""
    topology = build_topology(Shape(nodes=2, isolated="2-3"))
    found = devices(topology, reserved="", split=True)
    assert names(found) == [("cpudevnuma000", "0-1"), ("cpudevnuma000-isolated", "2-3"), ("cpudevnuma001", "4-7")]
    assert [device.attributes["dra.cpu/isolated"] for device in found] == [False, True, False]
    assert "dra.cpu/isolated" not in devices(topology, reserved="")[0].attributes


def test_names_of_every_grouping_stay_known() -> None:
    """D7: claims allocated before a switch are served by the names they were given."""
    topology = build_topology(Shape(sockets=2, isolated="0-1"))
    known = known_devices(topology, usable(topology, ""))
    for grouping in ("numa", "socket", "die", "l3", "machine", "individual"):
        for split in (False, True):
            for device in devices(topology, "", grouping, split=split):
                assert device.cpus <= known[device.name]


def test_cpus_claimed_from_devices_that_are_not_published_are_not_offered() -> None:
    """D7: the scheduler counts only what it sees allocated of published devices."""
    assert offered(claimed={"cpudevsocket000": "4-5"}) == "0:4 1:2 2:4 3:3"


def test_full_cores_offer_whole_cores_in_steps() -> None:
    """D1, K2: the half core beside the reserved CPU is not offered, a device below one core is left out."""
    assert offered(full_cores=True) == "0:4 1:4 2:4 3:2"
    assert offered(full_cores=True, held="4") == "0:4 1:2 2:4 3:2"
    assert offered(full_cores=True, held="4,6") == "0:4 2:4 3:2"
    assert offered(full_cores=True, min_shared=1) == "0:4 1:4 2:4"
    assert offered(full_cores=True, held="6", claimed={"cpudevnuma001": "4-5"}, reserved="4-5") == "0:4 1:2 2:4 3:4"
    assert {device.step for device in devices(build_topology(N4C16), full_cores=True)} == {2}
    assert {device.step for device in devices(build_topology(Shape(threads=1)), reserved="", full_cores=True)} == {1}


def rooted(topology: Topology, **roots: str) -> Topology:
    found = tuple(PcieRoot(name=name, cpus=CpuSet.parse(cpus)) for name, cpus in roots.items())
    return replace(topology, pcie_roots=found)


def roots_of(topology: Topology, grouping: str, *, reserved: str = "15") -> dict[str, object]:
    dividing = Dividing(grouping=grouping, pcie_roots=True)
    found = devices_of(topology, usable(topology, reserved), dividing=dividing, driver="dra.cpu")
    return {device.name: device.attributes.get(PCIE_ROOT) for device in found}


def test_devices_tell_the_pcie_roots_that_all_their_cpus_are_near() -> None:
    """D2: on request only, always a list, in rising order; a socket is not near what one of its nodes is near."""
    topology = rooted(build_topology(N4C16), c="0-3", a="0-3", b="4-7", d="8-15")
    assert all(PCIE_ROOT not in device.attributes for device in devices(topology))
    assert roots_of(topology, "numa") == {
        "cpudevnuma000": ("a", "c"),
        "cpudevnuma001": ("b",),
        "cpudevnuma002": ("d",),
        "cpudevnuma003": ("d",),
    }
    assert roots_of(topology, "socket") == {"cpudevsocket000": None, "cpudevsocket001": ("d",)}
    assert roots_of(topology, "machine") == {"cpudevmachine": None}
    assert roots_of(topology, "individual")["cpudev005"] == ("b",)
    assert roots_of(topology, "socket", reserved="4-15")["cpudevsocket000"] == ("a", "c")


def test_no_device_tells_more_values_than_the_server_takes() -> None:
    """D1, D2."""
    topology = rooted(build_topology(N4C16), **{f"r{n:02d}": "0-3" for n in range(60)})
    (device, *_) = devices_of(topology, usable(topology), dividing=Dividing(pcie_roots=True), driver="dra.cpu")
    told = device.attributes[PCIE_ROOT]
    assert isinstance(told, tuple)
    assert len(told) + len(device.attributes) - 1 == MAX_VALUES == 48
    assert untold_roots(topology, [device]) == {device.name: tuple(f"r{n:02d}" for n in range(len(told), 60))}
    few = rooted(topology, a="0-3")
    assert untold_roots(few, devices_of(few, usable(few), dividing=Dividing(pcie_roots=True), driver="dra.cpu")) == {}


def test_full_cores_come_in_steps_of_the_largest_core() -> None:
    """D1: where cores have one thread or two."""
    mixed = build_topology(Shape(cores=3, single_cores=(1,)))
    assert {device.step for device in devices(mixed, reserved="", full_cores=True)} == {2}


def test_dies_are_in_order_of_packages_and_named_by_both() -> None:
    """D1, T2: die ids repeat in each package."""
    topology = build_topology(N4C16)
    dies = [Group(id=1 - i % 2, label=f"{i // 2}/{1 - i % 2}", cpus=node.cpus) for i, node in enumerate(topology.numa)]
    found = devices(replace(topology, dies=tuple(dies[::-1])), reserved="", grouping="die")
    assert names(found) == [
        ("cpudevdie000-000", "4-7"),
        ("cpudevdie000-001", "0-3"),
        ("cpudevdie001-000", "12-15"),
        ("cpudevdie001-001", "8-11"),
    ]


def test_isolated_parts_are_known_where_there_are_isolated_cpus() -> None:
    """D7, D2."""
    topology = build_topology(replace(N4C16, isolated="1,4-7"))
    known = known_devices(topology, usable(topology))
    isolated = {name: str(cpus) for name, cpus in known.items() if name.startswith("cpudevnuma") and "-" in name}
    assert isolated == {"cpudevnuma000-isolated": "1", "cpudevnuma001-isolated": "4-7"}
    assert str(known["cpudevmachine-isolated"]) == "1,4-7"
    assert whole_devices(topology) == {"cpudevmachine", "cpudevmachine-isolated"}


def test_attributes_of_some_cpus_are_those_of_a_device_that_were_just_them() -> None:
    """D2, C3: CPUs that are gone are left out; of none of them nothing can be said."""
    topology = build_topology(replace(N4C16, isolated="4"))
    threads = threads_of(topology)
    assert threads == dict.fromkeys(range(16), 2)
    two = attributes_of(topology, threads, [4, 5, 99], "dra.cpu")
    assert {
        name: two.get(f"dra.cpu/{name}") for name in ("numaNodeID", "coreID", "cpuID", "smtEnabled", "isolated")
    } == {
        "numaNodeID": 1,
        "coreID": 2,
        "cpuID": None,
        "smtEnabled": True,
        "isolated": None,
    }
    assert attributes_of(topology, threads, [4], "dra.cpu")["dra.cpu/isolated"] is True
    assert attributes_of(topology, {}, [4], "dra.cpu")["dra.cpu/smtEnabled"] is False, "no core of it is known"
    assert attributes_of(topology, threads, [99], "dra.cpu") == {}
