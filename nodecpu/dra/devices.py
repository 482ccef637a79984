"""The machine as DRA devices (pure; D1, D2).

A grouping is one row of a table: how its devices are named and which CPUs each stands for. What a device can give is
those CPUs as far as they are grantable; its capacity is a total that claims do not lower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from nodecpu.cpuset import CpuSet
from nodecpu.policy.usable import Usable
from nodecpu.topology.model import Cpu, Topology

Attribute = bool | int | str
"""An attribute's value; bool before int matters to those who ask for its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device: ``cpus`` are those it can give, ``capacity`` how many of them are offered to claims in total."""

    name: str
    cpus: CpuSet
    capacity: int
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grouping:
    prefix: str
    groups: Callable[[Topology], Iterable[tuple[int, CpuSet]]]
    """Id and CPUs of each group that can be a device, in rising order of ids."""


def _numa_groups(topology: Topology) -> Iterable[tuple[int, CpuSet]]:
    return sorted(((node.id, node.cpus) for node in topology.numa if node.cpus), key=lambda group: group[0])


_GROUPINGS: Final[Mapping[str, _Grouping]] = {
    "numa": _Grouping(prefix="cpudevnuma", groups=_numa_groups),
}


def grouped_devices(topology: Topology, usable: Usable, *, grouping: str, driver: str) -> tuple[Device, ...]:
    """Return all devices of a grouping, in rising order of ids, each offering all it can give (which may be nothing).

    ``grouping`` is a name of the table; KeyError for another.
    """
    row = _GROUPINGS[grouping]
    threads = {cpu: len(core.cpus) for core in topology.cores for cpu in core.cpus}
    devices = []
    for group_id, group in row.groups(topology):
        cpus = group & usable.grantable
        described = [topology.cpus[cpu] for cpu in cpus or group]
        attributes = _attributes(described, threads, driver)
        attributes[f"{driver}/numCPUs"] = len(cpus)
        attributes[f"{driver}/numIsolatedCPUs"] = len(cpus & usable.isolated)
        devices.append(Device(name=f"{row.prefix}{group_id:03d}", cpus=cpus, capacity=len(cpus), attributes=attributes))
    return tuple(devices)


def _attributes(cpus: Iterable[Cpu], threads: Mapping[int, int], driver: str) -> dict[str, Attribute]:
    """Return the attributes that hold for every one of the CPUs (D2); unknown ids are left out, never 0."""
    known = [
        {
            "resource.kubernetes.io/numaNode": cpu.numa,  # Source: KEP-6072
            f"{driver}/numaNodeID": cpu.numa,  # the community driver's name
            "dra.net/numaNode": cpu.numa,  # the name that network drivers are matched by
            f"{driver}/socketID": cpu.package,
            f"{driver}/dieID": cpu.die,
            f"{driver}/cacheL3ID": cpu.l3_id,
            f"{driver}/coreType": cpu.core_type.value,
            f"{driver}/smtEnabled": threads.get(cpu.id, 1) > 1,
        }
        for cpu in cpus
    ]
    common: dict[str, Attribute] = {}
    for name, value in known[0].items():
        if value is None or (isinstance(value, int) and value < 0):
            continue
        if all(other[name] == value for other in known):
            common[name] = value
    if f"{driver}/socketID" not in common:
        common.pop(f"{driver}/dieID", None)  # die ids repeat in each package
    return common


def offered_devices(
    devices: Iterable[Device], *, sharable: CpuSet, held: CpuSet, claimed: Mapping[str, int], min_shared: int
) -> tuple[Device, ...]:
    """Return the devices to publish, with what they offer in total (D1).

    ``held`` are the CPUs that containers hold exclusively without a claim, ``claimed`` the number of CPUs that claims
    hold of each device. ``min_shared`` CPUs are kept out for shared containers, taken from the devices of the highest
    ids that still have such CPUs. A device that offers nothing is left out, but never while claims hold parts of it:
    then it offers one CPU, which the scheduler counts as used up (pitfall U10).
    """
    offered: list[Device] = []
    missing = min_shared
    for device in reversed(tuple(devices)):
        in_use = claimed.get(device.name, 0)
        capacity = len(device.cpus - held)
        room = min(capacity - in_use, len((device.cpus & sharable) - held))
        kept = max(0, min(missing, room))
        missing -= kept
        capacity -= kept
        if capacity or in_use:
            offered.append(replace(device, capacity=max(capacity, 1)))
    return tuple(reversed(offered))
