"""The machine as DRA devices (pure; D1, D2).

A grouping is one row of a table: how its devices are named and which CPUs each stands for. What a device can give is
those CPUs as far as they are grantable; its capacity is a total that claims do not lower. Numbers in names are the
kernel's ids, so that a name means the same CPUs whatever is reserved or published.

Isolated CPUs are part of their group's device, which tells how many it has; the attribute ``isolated`` tells of devices
that are isolated CPUs or have none. With ``split`` each group becomes two devices instead, so that the scheduler counts
isolated CPUs by themselves and claims choose between the two by that attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.policy.usable import Usable
from nodecpu.topology.model import Cpu, Topology

Scalar = bool | int | str
"""An attribute's value; bool before int matters to those who ask for its kind."""

Attribute = Scalar | tuple[str, ...]
"""What a device tells: a value, or a list of them."""

PCIE_ROOT: Final = "resource.kubernetes.io/pcieRoot"
"""Source: interfaces.md 3.6; Kubernetes dynamic-resource-allocation/deviceattribute."""

MAX_VALUES: Final = 48
"""Values of all attributes of a device, each one of a list counting. Source: interfaces.md 3.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device: ``cpus`` are those it can give, ``capacity`` how many of them are offered to claims in total.

    ``step`` is what amounts are a multiple of; 0: the device is one CPU and goes to one claim as a whole.
    """

    name: str
    cpus: CpuSet
    capacity: int
    attributes: Mapping[str, Attribute]
    step: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Dividing:
    """How the machine is divided into devices.

    ``full_cores``: amounts are whole cores. ``split``: isolated CPUs are devices of their own. ``pcie_roots``: devices
    tell the PCIe roots that all their CPUs are near.
    """

    grouping: str = "numa"
    full_cores: bool = False
    split: bool = False
    pcie_roots: bool = False


_Named = Iterable[tuple[str, CpuSet]]


def _by_number(prefix: str, groups: Iterable[tuple[int, CpuSet]]) -> _Named:
    return ((f"{prefix}{number:03d}", cpus) for number, cpus in sorted(groups, key=lambda group: group[0]))


def _numa(topology: Topology) -> _Named:
    return _by_number("cpudevnuma", ((node.id, node.cpus) for node in topology.numa if node.cpus))


def _sockets(topology: Topology) -> _Named:
    return _by_number("cpudevsocket", ((package.id, package.cpus) for package in topology.packages))


def _dies(topology: Topology) -> _Named:
    """Die ids repeat in each package: the package comes first."""
    found = {(topology.cpus[die.cpus.first()].package, die.id): die.cpus for die in topology.dies}
    return ((f"cpudevdie{package:03d}-{die:03d}", found[package, die]) for package, die in sorted(found))


def _caches(topology: Topology) -> _Named:
    """CPUs without a known L3 cache are devices by their NUMA nodes, or nobody could have them."""
    yield from _by_number("cpudevl3", ((cache.id, cache.cpus) for cache in topology.l3))
    cached = CpuSet(cpu for cache in topology.l3 for cpu in cache.cpus)
    rest = [(node.id, node.cpus - cached) for node in topology.numa if node.cpus - cached]
    yield from _by_number("cpudevnol3", rest)


def _machine(topology: Topology) -> _Named:
    return (("cpudevmachine", topology.online),)


def _cpus(topology: Topology) -> _Named:
    """Core by core: the scheduler takes devices in this order, and so both threads of a core."""
    cores = sorted(topology.cores, key=lambda core: core.cpus.first())
    return ((f"cpudev{cpu:03d}", CpuSet([cpu])) for core in cores for cpu in sorted(core.cpus))


_INDIVIDUAL: Final = "individual"

_GROUPINGS: Final[Mapping[str, Callable[[Topology], _Named]]] = {
    "numa": _numa,
    "socket": _sockets,
    "die": _dies,
    "l3": _caches,
    "machine": _machine,
    _INDIVIDUAL: _cpus,
}

_ISOLATED: Final = "-isolated"
_ONE_CPU: Final = re.compile(r"cpudev[0-9]{3,}", re.ASCII)


def is_one_cpu(name: str) -> bool:
    """Return whether a device of that name is one CPU, allocated without an amount."""
    return _ONE_CPU.fullmatch(name) is not None


def devices_of(topology: Topology, usable: Usable, *, dividing: Dividing, driver: str) -> tuple[Device, ...]:
    """Return all devices, in rising order of ids, each offering all it can give (which may be nothing).

    KeyError for a grouping that is not in the table.
    """
    threads = threads_of(topology)
    one_cpu = dividing.grouping == _INDIVIDUAL
    step = 0 if one_cpu else 1
    if dividing.full_cores and not one_cpu:
        step = max(threads.values())
    devices = []
    for name, group in _GROUPINGS[dividing.grouping](topology):
        if dividing.split and not one_cpu:
            parts = [(name, group - usable.isolated), (name + _ISOLATED, group & usable.isolated)]
        else:
            parts = [(name, group)]
        for part, members in parts:
            if not members:
                continue
            cpus = members & usable.grantable
            known = [topology.cpus[cpu] for cpu in cpus or members]
            attributes: dict[str, Attribute] = {**_attributes(known, threads, usable.isolated, driver)}
            if not one_cpu:
                attributes[f"{driver}/numCPUs"] = len(cpus)
                attributes[f"{driver}/numIsolatedCPUs"] = len(cpus & usable.isolated)
            if dividing.pcie_roots and (roots := roots_near(topology, cpus or members)):
                attributes[PCIE_ROOT] = roots[: MAX_VALUES - len(attributes)]
            devices.append(Device(name=part, cpus=cpus, capacity=len(cpus), attributes=attributes, step=step))
    return tuple(devices)


def known_devices(topology: Topology, usable: Usable) -> Mapping[str, CpuSet]:
    """Return the CPUs behind the names of all groupings: what was allocated under any of them can be served (D7)."""
    known: dict[str, CpuSet] = {}
    for groups in _GROUPINGS.values():
        for name, cpus in groups(topology):
            known[name] = cpus
            if isolated := cpus & usable.isolated:
                known[name + _ISOLATED] = isolated
    return known


def whole_devices(topology: Topology) -> frozenset[str]:
    """Return the names of the devices that stand for the whole machine (C9)."""
    names = [name for name, _ in _machine(topology)]
    return frozenset([*names, *(name + _ISOLATED for name in names)])


def _attributes(cpus: Iterable[Cpu], threads: Mapping[int, int], isolated: CpuSet, driver: str) -> dict[str, Scalar]:
    """Return the attributes that hold for every one of the CPUs (D2); unknown ids are left out, never 0."""
    known = [
        {
            "resource.kubernetes.io/numaNode": cpu.numa,  # Source: KEP-6072
            f"{driver}/numaNodeID": cpu.numa,  # the community driver's name
            "dra.net/numaNode": cpu.numa,  # the name that network drivers are matched by
            f"{driver}/socketID": cpu.package,
            f"{driver}/dieID": cpu.die,
            f"{driver}/cacheL3ID": cpu.l3_id,
            f"{driver}/coreID": cpu.core,
            f"{driver}/cpuID": cpu.id,
            f"{driver}/coreType": cpu.core_type.value,
            f"{driver}/smtEnabled": threads.get(cpu.id, 1) > 1,
            f"{driver}/isolated": cpu.id in isolated,
        }
        for cpu in cpus
    ]
    common: dict[str, Scalar] = {}
    for name, value in known[0].items():
        if value is None or (isinstance(value, int) and value < 0):
            continue
        if all(other[name] == value for other in known):
            common[name] = value
    # Die ids repeat in each package, core ids in each die.
    for outer, inner in (("socketID", "dieID"), ("dieID", "coreID")):
        if f"{driver}/{outer}" not in common:
            common.pop(f"{driver}/{inner}", None)
    return common


def roots_near(topology: Topology, cpus: CpuSet) -> tuple[str, ...]:
    """Return the names of the PCIe roots that every one of the CPUs is near (D2), in rising order."""
    return tuple(sorted(root.name for root in topology.pcie_roots if cpus <= root.cpus))


def untold_roots(topology: Topology, devices: Iterable[Device]) -> Mapping[str, tuple[str, ...]]:
    """Return, by device, the PCIe roots near it that have no room in its list of values, the last ones by name."""
    found: dict[str, tuple[str, ...]] = {}
    for device in devices:
        told = device.attributes.get(PCIE_ROOT) if device.cpus else None
        if isinstance(told, tuple) and (left := roots_near(topology, device.cpus)[len(told) :]):
            found[device.name] = left
    return found


def threads_of(topology: Topology) -> Mapping[int, int]:
    """Return for each CPU how many threads its core has online."""
    return {cpu: len(core.cpus) for core in topology.cores for cpu in core.cpus}


def attributes_of(
    topology: Topology, threads: Mapping[int, int], cpus: Iterable[int], driver: str
) -> Mapping[str, Scalar]:
    """Return the attributes that hold for every one of these CPUs, as a device that were just them would have them.

    ``threads`` are the machine's (``threads_of``).
    """
    known = [topology.cpus[cpu] for cpu in cpus if cpu in topology.cpus]
    return _attributes(known, threads, topology.isolated, driver) if known else {}


def gone_devices(before: Iterable[Device], now: Iterable[Device], claimed: Mapping[str, CpuSet]) -> tuple[Device, ...]:
    """Return, without CPUs, the devices that the machine has lost while claims hold parts of them (pitfall U10).

    ``claimed`` are the CPUs that claims hold by device. One whose claimed CPUs another device has now is not gone: the
    configuration groups them otherwise, and they count as held there (D7).
    """
    listed = tuple(now)
    names, there = {device.name for device in listed}, union(device.cpus for device in listed)
    return tuple(
        replace(device, cpus=NO_CPUS)
        for device in before
        if device.name not in names and device.name in claimed and claimed[device.name].isdisjoint(there)
    )


def offered_devices(
    devices: Iterable[Device],
    *,
    usable: Usable,
    held: CpuSet,
    claimed: Mapping[str, CpuSet],
    min_shared: int,
    cores: Iterable[CpuSet] = (),
) -> tuple[Device, ...]:
    """Return the devices to publish, with what they offer in total (D1).

    ``held`` are the CPUs that containers hold exclusively without a claim, ``claimed`` those that claims hold, by the
    device they were allocated from; of a device that is not published any more they count as held (D7). ``cores`` are
    the machine's, needed for devices that give full cores only. ``min_shared`` CPUs are kept out for shared containers,
    taken from the devices of the highest ids that still have such CPUs. A device that offers less than a claim takes at
    least is left out, but never while claims hold parts of it: then it offers that much, which the scheduler counts as
    used up (pitfall U10).
    """
    listed = tuple(devices)
    names = {device.name for device in listed}
    taken = held | union(cpus for name, cpus in claimed.items() if name not in names)
    by_first = {core.first(): core for core in cores}
    offered: list[Device] = []
    missing = min_shared
    for device in reversed(listed):
        in_use = len(claimed.get(device.name, NO_CPUS))
        free = device.cpus - taken
        if device.step > 1:
            free = union(by_first[cpu] for cpu in free if cpu in by_first and by_first[cpu] <= free)
        room = min(len(free) - in_use, len(free & usable.sharable))
        kept = max(0, min(missing, room))
        missing -= kept
        capacity = len(free) - kept
        least = max(device.step, 1)
        capacity -= capacity % least
        if capacity or in_use:
            offered.append(replace(device, capacity=max(capacity, least)))
    return tuple(reversed(offered))
