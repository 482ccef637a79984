"""Small sysfs trees made by hand: each call writes what a kernel would say about one group of CPUs or one node."""

from __future__ import annotations

import os
from pathlib import Path

from nodecpu.cpuset import CpuSet
from nodecpu.topology.model import Topology
from nodecpu.topology.sysfs import read_topology

MEMORY_DIR = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where trees of thousands of files are put, to spare the disk; None: where temporary files go anyway."""

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


class SysfsBuilder:
    """Writes a tree below ``root``; CPUs are given in list form."""

    def __init__(self, root: Path, online: str) -> None:
        self.root = root
        self.file(f"{CPU}/online", online)

    def file(self, path: str, text: str | bytes) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else f"{text}\n".encode())

    def link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(self.root / target)

    def each(self, cpus: str, name: str, text: object) -> None:
        """Write the same file for each of the CPUs."""
        for cpu in CpuSet.parse(cpus):
            self.file(f"{CPU}/cpu{cpu}/{name}", str(text))

    def group(self, level: str, cpus: str, number: int | None = None) -> None:
        """Write a ``package``, ``die``, ``cluster`` or ``core`` and its id."""
        self.each(cpus, f"topology/{level}_cpus_list", cpus)
        if number is not None:
            name = "physical_package_id" if level == "package" else f"{level}_id"
            self.each(cpus, f"topology/{name}", number)

    def cache(self, level: int, cpus: str, number: int | None = None, *, index: int | None = None) -> None:
        directory = f"cache/index{level if index is None else index}"
        self.each(cpus, f"{directory}/level", level)
        self.each(cpus, f"{directory}/shared_cpu_list", cpus)
        if number is not None:
            self.each(cpus, f"{directory}/id", number)

    def node(self, number: int, cpus: str, distance: str = "", memory_kb: int = 1 << 20) -> None:
        self.file(f"{NODE}/node{number}/cpulist", cpus)
        self.file(f"{NODE}/node{number}/meminfo", f"Node {number} MemTotal:  {memory_kb} kB")
        if distance:
            self.file(f"{NODE}/node{number}/distance", distance)

    def nodes_online(self, nodes: str) -> None:
        self.file(f"{NODE}/online", nodes)

    def read(self) -> Topology:
        return read_topology(self.root)
