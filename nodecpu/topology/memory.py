"""NUMA nodes: their CPUs, what their memory is, and who uses it (thin reader around pure rules; T3).

Invariants: every online CPU is in exactly one node; a node without CPUs has a home that has some; a node without memory
names nodes that have some, as long as there are any. Ids are names: rows of distances are matched by the list of ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodecpu.cpuset import NO_CPUS, CpuSet, NodeSet
from nodecpu.topology.files import KernelFiles
from nodecpu.topology.model import MemoryKind, NumaNode

_NODES: Final = "sys/devices/system/node"
_DAX: Final = "sys/bus/dax/devices"
_TIERS: Final = "sys/devices/virtual/memory_tiering"
_DISTANCE: Final = re.compile("[0-9]{1,9}")
_TOTAL: Final = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB")

LOCAL_DISTANCE: Final = 10
REMOTE_DISTANCE: Final = 20
"""What the kernel takes where firmware says nothing. Source: Linux include/linux/topology.h."""

_DAX_KINDS: Final = {"nd": MemoryKind.PMEM, "cxl": MemoryKind.CXL}
_DAX_PARENTS: Final = 3
"""How far above a dax device its bus is looked for: a region, and the region's namespace or decoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySigns:
    """What a node says about its memory; None: it says nothing.

    ``device`` is the kind of the device whose memory it is; ``bandwidth`` the best read bandwidth in MB/s; ``tier`` the
    number of its memory tier, a lower one being faster.
    """

    device: MemoryKind | None = None
    bandwidth: int | None = None
    tier: int | None = None


def memory_kind(signs: MemorySigns, ordinary: Sequence[MemorySigns]) -> MemoryKind:
    """Return what the memory of a node without CPUs is; ``ordinary`` are the signs of the nodes with CPUs.

    Only what is told counts: slower, larger or movable-only memory may be CXL, PMEM or a GPU's, and stays OTHER.
    Source: Linux Documentation/admin-guide/mm/numaperf.rst and ABI/testing/sysfs-kernel-mm-memory-tiers.
    """
    if signs.device is not None:
        return signs.device
    bandwidths = [s.bandwidth for s in ordinary if s.bandwidth is not None]
    if signs.bandwidth is not None and bandwidths and signs.bandwidth > max(bandwidths):
        return MemoryKind.HBM
    tiers = [s.tier for s in ordinary if s.tier is not None]
    if signs.tier is not None and tiers and signs.tier < min(tiers):
        return MemoryKind.HBM
    return MemoryKind.OTHER


def read_nodes(files: KernelFiles, online: CpuSet, packages: Iterable[CpuSet]) -> tuple[NumaNode, ...]:
    """Return the online NUMA nodes by rising id; without any told, one node 0 with all CPUs.

    A CPU listed twice belongs to the lowest of the nodes; a CPU listed nowhere (its node is offline) to the lowest that
    shares its package, else to the lowest with CPUs.
    """
    ids = _node_ids(files)
    cpus = _place_rest(_node_cpus(files, ids, online), online, packages)
    sizes = {node: _size_bytes(files, node) for node in ids}
    filled = _filled(files, sizes)
    distances = {node: _distances(files, node, ids) for node in ids}
    signs = _signs(files, ids) if any(node in filled and not cpus[node] for node in ids) else {}
    ordinary = [signs[node] for node in ids if cpus[node] and node in signs]

    def kind(node: int) -> MemoryKind:
        if node not in filled:
            return MemoryKind.NONE
        return MemoryKind.DRAM if cpus[node] else memory_kind(signs[node], ordinary)

    return tuple(
        NumaNode(
            id=node,
            cpus=cpus[node],
            kind=kind(node),
            size_bytes=sizes[node] or 0,
            home=node if cpus[node] else _home(node, cpus, distances),
            memory=_memory(node, filled, distances[node]),
            distances=distances[node],
        )
        for node in ids
    )


def _node_ids(files: KernelFiles) -> tuple[int, ...]:
    listed = files.nodes(f"{_NODES}/online")
    if listed:
        return tuple(listed)
    found = [re.fullmatch(r"node([0-9]{1,5})", name) for name in files.names(_NODES)]
    return tuple(sorted(int(one[1]) for one in found if one)) or (0,)


def _node_cpus(files: KernelFiles, ids: Iterable[int], online: CpuSet) -> dict[int, CpuSet]:
    cpus: dict[int, CpuSet] = {}
    left = online
    for node in ids:
        listed = files.cpus(f"{_NODES}/node{node}/cpulist")
        if listed is None:
            listed = files.cpu_mask(f"{_NODES}/node{node}/cpumap")
        cpus[node] = left & (listed or NO_CPUS)
        left -= cpus[node]
    return cpus


def _place_rest(cpus: Mapping[int, CpuSet], online: CpuSet, packages: Iterable[CpuSet]) -> Mapping[int, CpuSet]:
    placed = dict(cpus)
    rest = online
    for one in cpus.values():
        rest -= one
    if not rest:
        return placed
    bearers = [node for node in sorted(cpus) if cpus[node]] or [min(cpus)]
    for package in packages:
        target = next((node for node in bearers if cpus[node] & package), bearers[0])
        placed[target] |= rest & package
    return placed


def _size_bytes(files: KernelFiles, node: int) -> int | None:
    found = _TOTAL.search(files.text(f"{_NODES}/node{node}/meminfo") or "")
    return int(found[1]) * 1024 if found else None


def _filled(files: KernelFiles, sizes: Mapping[int, int | None]) -> NodeSet:
    """Return the nodes with memory; where nothing is told a node has some."""
    listed = files.nodes(f"{_NODES}/has_memory")
    return listed if listed else NodeSet(node for node, size in sizes.items() if size != 0)


def _distances(files: KernelFiles, node: int, ids: Sequence[int]) -> dict[int, int]:
    distances = dict.fromkeys(ids, REMOTE_DISTANCE) | {node: LOCAL_DISTANCE}
    words = (files.text(f"{_NODES}/node{node}/distance") or "").split()
    columns: Sequence[int] = ids
    if len(words) != len(ids):  # some kernels print the row over all possible nodes
        columns = tuple(files.nodes(f"{_NODES}/possible") or ())
    if len(words) == len(columns) and all(_DISTANCE.fullmatch(word) for word in words):
        distances |= {other: int(word) for other, word in zip(columns, words, strict=True) if other in distances}
    return distances


def _home(node: int, cpus: Mapping[int, CpuSet], distances: Mapping[int, Mapping[int, int]]) -> int:
    """Return the CPU node to which the memory is nearest, seen from the CPUs, who do the reaching."""
    return min((other for other in cpus if cpus[other]), key=lambda other: (distances[other][node], other))


def _memory(node: int, filled: NodeSet, distances: Mapping[int, int]) -> NodeSet:
    if node in filled:
        return NodeSet((node,))
    near = [other for other in distances if other in filled]
    return NodeSet((min(near, key=lambda other: (distances[other], other)),)) if near else NodeSet((node,))


def _signs(files: KernelFiles, ids: Iterable[int]) -> dict[int, MemorySigns]:
    devices = _device_kinds(files)
    tiers = _tiers(files)
    return {
        node: MemorySigns(
            device=devices.get(node),
            bandwidth=files.number(f"{_NODES}/node{node}/access0/initiators/read_bandwidth") or None,
            tier=tiers.get(node),
        )
        for node in ids
    }


def _device_kinds(files: KernelFiles) -> dict[int, MemoryKind]:
    kinds: dict[int, MemoryKind] = {}
    for name in files.names(_DAX):
        device = f"{_DAX}/{name}"
        node = files.number(f"{device}/target_node")
        if node is None or files.link_name(f"{device}/driver") not in (None, "kmem"):
            continue  # bound to another driver: not used as memory
        above = (f"{device}{'/..' * level}/subsystem" for level in range(1, _DAX_PARENTS + 1))
        kind = next((k for bus in above if (k := _DAX_KINDS.get(files.link_name(bus) or ""))), None)
        if kind is not None:
            kinds[node] = kind
    return kinds


def _tiers(files: KernelFiles) -> dict[int, int]:
    tiers: dict[int, int] = {}
    for name in files.names(_TIERS):
        found = re.fullmatch(r"memory_tier([0-9]{1,9})", name)
        if found:
            tiers |= dict.fromkeys(files.nodes(f"{_TIERS}/{name}/nodelist") or (), int(found[1]))
    return tiers
