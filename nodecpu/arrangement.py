"""What a configuration makes of a machine: usable CPUs, pools, devices (pure).

Made at start, and made anew beside the old one when the configuration is read again (R3) or the machine has changed
(T6).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nodecpu.config import Config
from nodecpu.cpuset import CpuSet
from nodecpu.dra.devices import Device, Dividing, devices_of, known_devices, untold_roots, whole_devices
from nodecpu.errors import HostError
from nodecpu.policy.machine import Machine
from nodecpu.policy.picker import Unit, build_units
from nodecpu.policy.pools import Level, PoolTree, build_pools
from nodecpu.policy.priority import speed_classes
from nodecpu.policy.usable import Usable, chosen_cpus, usable_cpus
from nodecpu.topology.model import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """A machine as a configuration arranges it. ``available`` is its configured limit, ``cores`` are all of it.

    ``untold_roots`` are the PCIe roots near devices that have no room for them.
    """

    available: CpuSet | None
    tree: PoolTree
    machine: Machine
    devices: tuple[Device, ...]
    cores: tuple[CpuSet, ...]
    untold_roots: Mapping[str, tuple[str, ...]]

    @property
    def usable(self) -> Usable:
        """The CPUs that may be given, by use."""
        return self.tree.usable


_NONE_HINT: Final = "see policy.available, and the cpuset of the kubepods slice"


def _why_none(topology: Topology, available: CpuSet | None) -> str:
    if available is None:
        return f"the kubepods slice has none of CPUs {topology.online}, which are online"
    if not available:
        return f"policy.available names none of CPUs {topology.online}, which are online"
    return f"the kubepods slice has none of CPUs {available}, which policy.available names"


def arrange(
    config: Config, topology: Topology, kubepods: CpuSet | None, *, node: str, units: Unit | None = None
) -> Arrangement:
    """Return the machine as the configuration arranges it, for the node of that name.

    ``kubepods`` is what the kubepods slice has (None: no cut), ``units`` are those of the same machine if at hand.
    Raises HostError if not a single CPU is usable.
    """
    policy, dra = config.policy, config.dra
    units = units or build_units(topology)
    available = None
    if policy.available:
        first = policy.reserved.cpus
        available = chosen_cpus(units, policy.available, topology.online, besides=topology.isolated, first=first)
    among = topology.online if available is None else available
    among = among if kubepods is None else among & kubepods
    usable = usable_cpus(
        online=topology.online,
        isolated=topology.isolated,
        available=available,
        kubepods=kubepods,
        reserved=chosen_cpus(units, policy.reserved, among, besides=topology.isolated),
    )
    if not usable.all:
        raise HostError(f"no CPU is left to use: {_why_none(topology, available)}", hint=_NONE_HINT)
    levels = () if policy.mode == "flat" else tuple(Level(name) for name in policy.levels)
    dividing = Dividing(
        grouping=dra.grouping,
        full_cores=policy.full_cores,
        split=dra.split_isolated,
        pcie_roots=dra.pcie_roots,
    )
    devices = devices_of(topology, usable, dividing=dividing, driver=dra.driver)
    return Arrangement(
        available=available,
        tree=build_pools(topology, usable, levels),
        machine=Machine(
            units=units,
            devices=known_devices(topology, usable),
            whole=whole_devices(topology),
            pool=node,
            published=tuple(device.name for device in devices),
            speeds=speed_classes(topology),
        ),
        devices=devices,
        cores=tuple(core.cpus for core in topology.cores),
        untold_roots=untold_roots(topology, devices),
    )


def not_reserved(config: Config, usable: Usable) -> str:
    """Return what is not kept though ``policy.reserved`` says so: this machine does not have it; empty if all is."""
    choice = config.policy.reserved
    count = -(-choice.mcpu // 1000)
    if count > len(usable.reserved):
        return f"policy.reserved asks for {count} CPUs, {len(usable.reserved)} could be reserved"
    if missing := choice.cpus - usable.reserved:
        kept = f"reserved are {usable.reserved}" if usable.reserved else "nothing is reserved"
        return f"policy.reserved names CPUs {missing}, which cannot be used on this machine: {kept}"
    return ""


def reserved_hint(usable: Usable) -> str:
    """Return what to do about CPUs that are not reserved."""
    return f"let policy.reserved name CPUs of {usable.all}; see policy.available and the cpuset of kubepods too"
