"""What lscpu and lstopo make of a sysfs tree, as sets of CPU groups by level; ids are left aside."""

from __future__ import annotations

import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from nodecpu.cpuset import CpuSet
from nodecpu.topology.model import Topology
from tests.support import need_program

LEVELS: Final = ("cpus", "cores", "clusters", "dies", "packages", "nodes", "l2", "l3")

Groups = Mapping[str, frozenset[CpuSet]]
"""Groups of CPUs by level; a level that the oracle does not know is not there."""


def ours(topology: Topology) -> Groups:
    """Return the groups of a topology; of NUMA nodes those with CPUs."""
    return {
        "cpus": frozenset(CpuSet((cpu,)) for cpu in topology.cpus),
        "cores": frozenset(g.cpus for g in topology.cores),
        "clusters": frozenset(g.cpus for g in topology.clusters),
        "dies": frozenset(g.cpus for g in topology.dies),
        "packages": frozenset(g.cpus for g in topology.packages),
        "nodes": frozenset(n.cpus for n in topology.numa if n.cpus),
        "l2": frozenset(g.cpus for g in topology.l2),
        "l3": frozenset(g.cpus for g in topology.l3),
    }


def lscpu(root: Path) -> Groups:
    """Return the groups that ``lscpu -p`` prints for the tree; an empty field is a CPU in no group."""
    out = _run(need_program("lscpu"), "--sysroot", str(root), "-p=CPU,CORE,SOCKET,NODE,CACHE")
    columns = [line for line in out.splitlines() if line.startswith("#")][-1].lstrip("# ").lower().split(",")
    rows = [line.split(",") for line in out.splitlines() if not line.startswith("#")]
    names = {"cpu": "cpus", "core": "cores", "socket": "packages", "node": "nodes", "l2": "l2", "l2d": "l2", "l3": "l3"}
    groups = {}
    for column, name in enumerate(columns):
        if name in names:
            found = ((row[column], int(row[0])) for row in rows if column < len(row) and row[column])
            groups[names[name]] = _gather(found)
    return groups


def lstopo(root: Path) -> Groups:
    """Return the groups of the objects that hwloc finds in the tree; of NUMA nodes those with CPUs of their own."""
    out = _run(need_program("lstopo-no-graphics"), "--input", str(root), "--no-io", "--of", "xml")
    found: dict[str, set[CpuSet]] = {level: set() for level in LEVELS}
    objects = ET.fromstring(out).iter("object")
    for one in objects:
        level = _LSTOPO_TYPES.get(f"{one.get('type')}{one.get('subtype', '')}")
        if level is not None and _has_own_cpus(root, level, one.get("os_index", "")):
            found[level].add(_mask(one.get("cpuset", "")))
    return {level: frozenset(cpus) for level, cpus in found.items() if cpus}


_LSTOPO_TYPES: Final = {
    "PU": "cpus",
    "Core": "cores",
    "GroupCluster": "clusters",
    "Die": "dies",
    "Package": "packages",
    "NUMANode": "nodes",
    "L2Cache": "l2",
    "L3Cache": "l3",
}


def _has_own_cpus(root: Path, level: str, index: str) -> bool:
    """Return whether the kernel lists CPUs for the node: hwloc lends a node without the CPUs of its surroundings."""
    cpumap = root / f"sys/devices/system/node/node{index}/cpumap"
    return level != "nodes" or not cpumap.exists() or cpumap.read_text().strip("\n0,") != ""


def _mask(text: str) -> CpuSet:
    mask = 0
    for word in text.split(","):
        mask = mask << 32 | int(word or "0", 16)
    return CpuSet.from_mask(mask)


def _gather(members: Iterable[tuple[str, int]]) -> frozenset[CpuSet]:
    groups: dict[str, list[int]] = {}
    for key, cpu in members:
        groups.setdefault(key, []).append(cpu)
    return frozenset(CpuSet(cpus) for cpus in groups.values())


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
