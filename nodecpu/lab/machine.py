"""Machines for the lab: a short text becomes a sysfs tree.

One job: to be the other side of topology discovery, whose code it must not share. The text's form, and the machine as a
value, are in machine_text; here is the tree: files of a current kernel, by their newest names, first-level caches and
counters left out.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.lab.machine_text import Machine, MachineCpu, MachineNode, Memory, parse_machine

__all__ = ["Machine", "MachineCpu", "MachineNode", "Memory", "parse_machine", "write_machine"]

_Key = TypeVar("_Key", bound=Hashable)

_BANDWIDTHS: Final = {Memory.DRAM: 200000, Memory.HBM: 800000}
"""MB/s by kind; every other kind is slower than both."""


def write_machine(machine: Machine, root: Path) -> None:
    """Write the machine's ``sys`` and ``proc`` files below ``root``, which should not hold another machine's."""
    tree = _Tree(root)
    tree.write("proc/sys/kernel/random/boot_id", machine.boot_id)
    _write_cpus(machine, tree)
    _write_nodes(machine, tree)
    for number, node in enumerate(n for n in machine.nodes if n.kind in (Memory.PMEM, Memory.CXL)):
        _write_memory_device(number, node, tree)
    for bus, home in machine.pci_roots:
        tree.write(f"sys/devices/pci{bus}/{bus}:00.0/numa_node", home)


class _Tree:
    """Writes files below a root, making directories as needed; plain calls, as a large machine has 100,000 files."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._made: set[str] = set()

    def write(self, path: str, text: object) -> None:
        """Write one file with a line end after the text."""
        fd = os.open(self._prepared(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)

    def link(self, path: str, target: str) -> None:
        """Make ``path`` a relative link to ``target``, both below the root."""
        Path(self._prepared(path)).symlink_to(os.path.relpath(target, posixpath.dirname(path)))

    def _prepared(self, path: str) -> str:
        self._make(posixpath.dirname(path))
        return f"{self._root}/{path}"

    def _make(self, directory: str) -> None:
        if directory in self._made:
            return
        if directory:
            self._make(posixpath.dirname(directory))
        Path(f"{self._root}/{directory}").mkdir(exist_ok=True, parents=not directory)
        self._made.add(directory)


def _write_cpus(machine: Machine, tree: _Tree) -> None:
    base = "sys/devices/system/cpu"
    online = machine.online
    for name, cpus in (
        ("possible", machine.present),
        ("present", machine.present),
        ("online", online),
        ("offline", machine.offline),
        ("isolated", machine.isolated),
    ):
        tree.write(f"{base}/{name}", cpus)
    groups = _Groups(machine)
    has_smt = any(len(cpus) > 1 for cpus in groups.cores.values())
    tree.write(f"{base}/smt/control", "on" if has_smt else "notsupported")
    tree.write(f"{base}/smt/active", int(has_smt))
    for cpu in machine.cpus:
        directory = f"{base}/cpu{cpu.id}"
        if cpu.id:  # the first CPU cannot be unplugged and has no such file
            tree.write(f"{directory}/online", int(cpu.id in online))
        if cpu.id in online:  # the kernel removes both directories from an offline CPU
            _write_topology(cpu, groups, directory, tree)
            _write_caches(cpu, groups, directory, tree)
    efficient = CpuSet(cpu.id for cpu in machine.cpus if cpu.efficient) & online
    if efficient:
        tree.write("sys/devices/cpu_core/cpus", online - efficient)
        tree.write("sys/devices/cpu_atom/cpus", efficient)


class _Groups:
    """The online CPUs that are together at each level, by the level's key."""

    def __init__(self, machine: Machine) -> None:
        ids = machine.online
        online = [cpu for cpu in machine.cpus if cpu.id in ids]
        self.sockets = _gather((cpu.socket, cpu.id) for cpu in online)
        self.dies = _gather(((cpu.socket, cpu.die), cpu.id) for cpu in online)
        self.clusters = _gather(((cpu.socket, cpu.cluster), cpu.id) for cpu in online)
        self.cores = _gather(((cpu.socket, cpu.core), cpu.id) for cpu in online)
        self.l2 = _gather((cpu.l2, cpu.id) for cpu in online)
        self.l3 = _gather((cpu.l3, cpu.id) for cpu in online)
        self.nodes = _gather((cpu.node, cpu.id) for cpu in online)


def _gather(members: Iterable[tuple[_Key, int]]) -> dict[_Key, str]:
    ids: dict[_Key, list[int]] = {}
    for key, cpu in members:
        ids.setdefault(key, []).append(cpu)
    return {key: str(CpuSet(cpus)) for key, cpus in ids.items()}


def _write_topology(cpu: MachineCpu, groups: _Groups, directory: str, tree: _Tree) -> None:
    socket, die = groups.sockets[cpu.socket], groups.dies[cpu.socket, cpu.die]
    core, cluster = groups.cores[cpu.socket, cpu.core], groups.clusters[cpu.socket, cpu.cluster]
    for name, text in (
        ("physical_package_id", cpu.socket),
        ("die_id", cpu.die),
        ("cluster_id", -1 if cpu.cluster is None else cpu.cluster),
        ("core_id", cpu.core),
        ("package_cpus_list", socket),
        ("die_cpus_list", die),
        ("cluster_cpus_list", core if cpu.cluster is None else cluster),
        ("core_cpus_list", core),
    ):
        tree.write(f"{directory}/topology/{name}", text)


def _write_caches(cpu: MachineCpu, groups: _Groups, directory: str, tree: _Tree) -> None:
    caches = [(2, cpu.l2, groups.l2[cpu.l2])]
    if cpu.l3 is not None:
        caches.append((3, cpu.l3, groups.l3[cpu.l3]))
    for level, number, shared in caches:  # index0 and index1 would be the first level's two, which serve one core each
        for name, text in (("level", level), ("type", "Unified"), ("id", number), ("shared_cpu_list", shared)):
            tree.write(f"{directory}/cache/index{level}/{name}", text)


def _write_nodes(machine: Machine, tree: _Tree) -> None:
    base = "sys/devices/system/node"
    groups = _Groups(machine)
    every = NodeSet(node.id for node in machine.nodes)
    filled = NodeSet(node.id for node in machine.nodes if node.size_bytes)
    movable = NodeSet(node.id for node in machine.nodes if node.kind in (Memory.PMEM, Memory.CXL))
    for name, nodes in (
        ("possible", every),
        ("online", every),
        ("has_cpu", NodeSet(groups.nodes)),
        ("has_memory", filled),
        ("has_normal_memory", filled - movable),
    ):
        tree.write(f"{base}/{name}", nodes)
    has_hbm = any(node.kind is Memory.HBM for node in machine.nodes)
    for node in machine.nodes:
        directory = f"{base}/node{node.id}"
        tree.write(f"{directory}/cpulist", groups.nodes.get(node.id, ""))
        tree.write(f"{directory}/distance", " ".join(str(machine.distance(node, other)) for other in machine.nodes))
        tree.write(f"{directory}/meminfo", f"Node {node.id} MemTotal:       {node.size_bytes // 1024} kB")
        if has_hbm:  # firmware that tells bandwidths tells all of them
            speed = _BANDWIDTHS.get(node.kind, 50000)
            tree.write(f"{directory}/access0/initiators/read_bandwidth", speed)


def _write_memory_device(number: int, node: MachineNode, tree: _Tree) -> None:
    """Write the device whose memory the kmem driver made into a node, below the bus that tells its kind."""
    name = f"dax{number}.0"
    bus, above = ("nd", "ndbus0/region") if node.kind is Memory.PMEM else ("cxl", "platform/cxl0/region")
    parent = f"sys/devices/{above}{number}/parent{number}"
    tree.write(f"{parent}/{name}/target_node", node.id)
    for path, target in (
        (f"{parent}/subsystem", f"sys/bus/{bus}"),
        (f"{parent}/{name}/subsystem", "sys/bus/dax"),
        (f"{parent}/{name}/driver", "sys/bus/dax/drivers/kmem"),
        (f"sys/bus/dax/devices/{name}", f"{parent}/{name}"),
    ):
        tree.link(path, target)
