"""PCIe roots and the CPUs near them (thin reader; T4, D2).

A root complex is a directory of the form ``pciDDDD:BB`` directly below ``sys/devices``; deeper ones (those that a
storage controller makes up) are part of the root above them, as everybody who publishes the attribute has it. Near a
root are the CPUs of the NUMA node that the devices on it are told to be on.

Source: Linux drivers/pci/probe.c, pci_register_host_bridge; ABI/testing/sysfs-bus-pci (numa_node); Kubernetes
dynamic-resource-allocation/deviceattribute, whose form of the name this is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from nodecpu.cpuset import CpuSet
from nodecpu.topology.files import KernelFiles
from nodecpu.topology.model import NumaNode, PcieRoot

_DEVICES: Final = "sys/devices"
_ROOT: Final = re.compile(r"pci([0-9a-f]{4}:[0-9a-f]{2})", re.ASCII)


def read_pcie_roots(files: KernelFiles, nodes: Iterable[NumaNode]) -> tuple[PcieRoot, ...]:
    """Return the PCIe roots by name, with the CPUs near each.

    A root whose devices tell of no node or of several is near nobody in particular and left out; on a machine with CPUs
    on one node only there is no choice, and every root is near them.
    """
    known = {node.id: node for node in nodes}
    cpus = {number: known[node.home].cpus for number, node in known.items()}
    bearers = [node.cpus for node in known.values() if node.cpus]
    roots: list[PcieRoot] = []
    for name in files.names(_DEVICES):
        if (found := _ROOT.fullmatch(name)) is None:
            continue
        near = bearers[0] if len(bearers) == 1 else _near(files, name, found[1], cpus)
        if near:
            roots.append(PcieRoot(name=name, cpus=near))
    return tuple(roots)


def _near(files: KernelFiles, root: str, bus: str, cpus: Mapping[int, CpuSet]) -> CpuSet | None:
    told = {
        node
        for device in files.names(f"{_DEVICES}/{root}")
        if device.startswith(f"{bus}:")
        and (node := files.number(f"{_DEVICES}/{root}/{device}/numa_node")) is not None
        and node >= 0
    }
    return cpus.get(told.pop()) if len(told) == 1 else None
