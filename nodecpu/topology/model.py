"""The machine as frozen values (pure).

Ids are names, never indexes: they may be sparse, repeated per package, or change at reboot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from nodecpu.cpuset import NO_CPUS, CpuSet, NodeSet


class CoreType(Enum):
    """How a CPU's core compares with others of the machine (values as published)."""

    STANDARD = "standard"
    PERFORMANCE = "p-core"
    EFFICIENT = "e-core"


class MemoryKind(Enum):
    """What a NUMA node's memory is; NONE for a node without memory."""

    NONE = "none"
    DRAM = "dram"
    HBM = "hbm"
    PMEM = "pmem"
    CXL = "cxl"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """One online logical CPU; None = not known.

    Ids are the kernel's (where it gives none or repeats one, a number of ours that is not taken). ``package`` and
    ``l3_id`` are unique on the machine, ``die`` and ``cluster`` within the package, ``core`` within the die: a core is
    (package, die, core). What is told of speed holds for all threads of the core.
    """

    id: int
    package: int
    die: int
    core: int
    cluster: int | None = None
    l3_id: int | None = None
    numa: int = 0
    core_type: CoreType = CoreType.STANDARD
    capacity: int | None = None
    base_khz: int | None = None
    max_khz: int | None = None
    epp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """CPUs together at one level. ``id`` is the kernel's; ``label`` is unique on the machine at its level (``1/0``)."""

    id: int
    label: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One online NUMA node.

    ``cpus`` is empty for memory-only nodes, ``home`` then names the nearest node with CPUs (its own id otherwise).
    ``memory`` names the nodes a CPU node's processes take memory from by default: itself, or the nearest with memory.
    ``distances`` has one entry per online node (10 = itself; need not be symmetric).
    """

    id: int
    cpus: CpuSet
    kind: MemoryKind
    size_bytes: int
    home: int
    memory: NodeSet
    distances: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieRoot:
    """A PCIe root complex (``pci0000:3a``) and the CPUs near it, at least one."""

    name: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The machine; ``cpus`` are by rising number, groups by lowest CPU, nodes by rising id.

    Packages, dies, cores and nodes each partition ``online``, cores lie within dies, dies within packages. Clusters and
    caches are disjoint too, but may leave CPUs out. Nothing else nests for certain: a cache may span packages, a node
    cut them.
    """

    online: CpuSet
    isolated: CpuSet
    cpus: Mapping[int, Cpu]
    packages: tuple[Group, ...]
    dies: tuple[Group, ...]
    clusters: tuple[Group, ...]
    cores: tuple[Group, ...]
    l2: tuple[Group, ...]
    l3: tuple[Group, ...]
    numa: tuple[NumaNode, ...]
    pcie_roots: tuple[PcieRoot, ...] = ()

    @property
    def has_smt(self) -> bool:
        """Return whether any core has more than one online thread."""
        return any(len(core.cpus) > 1 for core in self.cores)

    def numa_node(self, node: int) -> NumaNode:
        """Return the node of that id; KeyError if there is none."""
        for one in self.numa:
            if one.id == node:
                return one
        raise KeyError(node)

    def fingerprint(self) -> str:
        """Return a short digest of what makes old CPU numbers mean the same CPUs (T7): groups, nodes and their CPUs."""
        text = ";".join(
            [
                f"online={self.online}",
                *(
                    f"{kind}={g.label}:{g.cpus}"
                    for kind in ("packages", "dies", "cores", "l3")
                    for g in getattr(self, kind)
                ),
                *(f"numa={n.id}:{n.cpus}:{n.kind.value}" for n in self.numa),
            ]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def siblings(topology: Topology, cpus: CpuSet) -> CpuSet:
    """Return all online threads of the cores that ``cpus`` touch."""
    mask = NO_CPUS.mask
    for core in topology.cores:
        if core.cpus.mask & cpus.mask:
            mask |= core.cpus.mask
    return CpuSet.from_mask(mask)
