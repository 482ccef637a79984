"""Pools: the nodes of the topology tree that grants come from (pure; P1, P2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import combinations

from nodecpu.cpuset import NO_NODES, CpuSet, NodeSet
from nodecpu.policy.tree import Named, build_tree
from nodecpu.policy.usable import Usable
from nodecpu.topology.model import Group, MemoryKind, Topology


class Level(Enum):
    """Levels of the tree, the uppermost first; the values are the words of the configuration (``policy.levels``)."""

    ROOT = "root"
    SOCKET = "socket"
    DIE = "die"
    NUMA = "numa"
    L3 = "l3"


ALL_LEVELS = (Level.SOCKET, Level.DIE, Level.NUMA, Level.L3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One pool. ``name`` is unique (``root``, ``socket 0``, ``numa 3``); the CPU sets are disjoint parts of ``cpus``.

    ``mems`` is what its containers' memory comes from: DRAM local to its CPUs, other kinds only where there is no DRAM.
    ``memory`` has all that is near, by kind.
    ``ancestors`` leads from the pool itself to the root, as indexes into the tree's pools.
    """

    index: int
    name: str
    level: Level
    depth: int
    cpus: CpuSet
    reserved: CpuSet
    isolated: CpuSet
    sharable: CpuSet
    mems: NodeSet
    children: tuple[int, ...]
    ancestors: tuple[int, ...]
    memory: Mapping[MemoryKind, NodeSet] = field(default_factory=dict)

    def zone(self, kinds: Sequence[MemoryKind]) -> NodeSet:
        """Return its memory nodes of these kinds; where it has none of them, or none are named, ``mems``."""
        if not kinds:
            return self.mems
        nodes = NO_NODES
        for kind in kinds:
            nodes |= self.memory.get(kind, NO_NODES)
        return nodes or self.mems


class PoolTree:
    """All pools of a node; parents come before their children, index 0 is the root.

    ``parents`` are the pools but the root with their parents, as indexes, ``memory_bytes`` the sizes of its memory
    nodes. It is told the CPUs of each core.
    """

    __slots__ = ("_by_name", "_memory", "_sizes", "_threads", "memory_bytes", "parents", "pools", "usable")

    def __init__(
        self,
        pools: Sequence[Pool],
        usable: Usable,
        cores: Iterable[CpuSet] = (),
        memory_bytes: Mapping[int, int] | None = None,
    ) -> None:
        self.memory_bytes = dict(memory_bytes or {})
        self._memory = NodeSet(self.memory_bytes)
        self._sizes: dict[int, int] = {}
        self.pools = tuple(pools)
        self.parents = tuple((pool.index, pool.ancestors[1]) for pool in self.pools[1:])
        self.usable = usable
        self._threads = _threads_apart(cores)
        self._by_name = {pool.name: pool for pool in self.pools}

    @property
    def root(self) -> Pool:
        """The pool that holds every usable CPU."""
        return self.pools[0]

    def named(self, name: str) -> Pool | None:
        """Return the pool of that name, None if there is none (any more)."""
        return self._by_name.get(name)

    def holding(self, cpus: CpuSet) -> Pool:
        """Return the deepest pool that holds all of ``cpus``; the root for CPUs that no pool knows (any more)."""
        pool = self.root
        while True:
            below = next((self.pools[i] for i in pool.children if cpus <= self.pools[i].cpus), None)
            if below is None or not cpus:
                return pool
            pool = below

    def present(self, cpus: CpuSet) -> CpuSet:
        """Return those of the CPUs that are online; all where that is not told."""
        online = self.usable.online
        return cpus if online is None or cpus <= online else cpus & online

    def present_memory(self, nodes: NodeSet) -> NodeSet:
        """Return those of the memory nodes that are there; all where none are told."""
        return nodes if not self._memory or nodes <= self._memory else nodes & self._memory

    def size_of(self, nodes: NodeSet) -> int:
        """Return how many bytes memory nodes have together."""
        if nodes.mask not in self._sizes:
            self._sizes[nodes.mask] = sum(self.memory_bytes.get(node, 0) for node in nodes)
        return self._sizes[nodes.mask]

    def one_thread_each(self, cpus: CpuSet) -> CpuSet:
        """Return the lowest of the CPUs of every core that these are of."""
        left = cpus.mask
        for apart, lower in self._threads.items():
            left &= ~((cpus.mask & lower) << apart)
        return CpuSet.from_mask(left)

    def upwards(self, pool: Pool) -> Iterator[Pool]:
        """Yield the pool, its parent, and so on to the root."""
        for index in pool.ancestors:
            yield self.pools[index]


def build_pools(topology: Topology, usable: Usable, levels: Sequence[Level] = ALL_LEVELS) -> PoolTree:
    """Return the tree of pools over the usable CPUs.

    Levels that add nothing are left out (P1): with one socket the socket is the top. The top pool has all memory.
    """
    groups: dict[Level, Sequence[tuple[str, CpuSet]]] = {
        Level.SOCKET: _labelled(topology.packages),
        Level.DIE: _labelled(topology.dies),
        Level.NUMA: [(str(node.id), node.cpus) for node in topology.numa],
        Level.L3: _labelled(topology.l3),
    }
    rank = {level: i for i, level in enumerate(Level)}
    whole = usable.all
    named = [
        Named(rank=rank[level], kind=level.value, label=label, cpus=cpus & whole)
        for level in levels
        for label, cpus in groups[level]
    ]
    # The root ranks last among equals: a level that covers everything gives the top its name.
    top = Named(rank=len(rank), kind=Level.ROOT.value, label="", cpus=whole)
    nodes = build_tree([*named, top])
    pools: list[Pool] = []
    for node in nodes:
        above = () if node.parent is None else pools[node.parent].ancestors
        memory = _memory(topology, None if node.parent is None else node.cpus)
        pools.append(
            Pool(
                index=node.index,
                name=f"{node.kind} {node.label}".rstrip(),
                level=Level(node.kind),
                depth=node.depth,
                cpus=node.cpus,
                reserved=node.cpus & usable.reserved,
                isolated=node.cpus & usable.isolated,
                sharable=node.cpus & usable.sharable,
                mems=_default_memory(memory),
                children=node.children,
                ancestors=(node.index, *above),
                memory=memory,
            )
        )
    sizes = {node.id: node.size_bytes for node in topology.numa}
    return PoolTree(pools, usable, (core.cpus for core in topology.cores), sizes)


def _threads_apart(cores: Iterable[CpuSet]) -> Mapping[int, int]:
    """Return how far apart CPUs of one core are, each with the mask of the lower ones of these pairs.

    A machine has few such distances and thousands of cores, which are asked about for each container.
    """
    lower: dict[int, int] = {}
    for core in cores:
        for one, other in combinations(core, 2):
            lower[other - one] = lower.get(other - one, 0) | 1 << one
    return lower


def _labelled(groups: Sequence[Group]) -> list[tuple[str, CpuSet]]:
    return [(group.label, group.cpus) for group in groups]


def _memory(topology: Topology, cpus: CpuSet | None) -> Mapping[MemoryKind, NodeSet]:
    """Return the memory nodes for these CPUs (None: all) by kind: of their nodes and nearest to them.

    Nodes without memory of their own bring the nearest memory (T3).
    """
    near = [n for n in topology.numa if n.cpus and (cpus is None or not n.cpus.isdisjoint(cpus))]
    homes = {n.id for n in near}
    mask = NO_NODES.mask
    for node in near:
        mask |= node.memory.mask
    for node in topology.numa:
        if not node.cpus and node.home in homes:
            mask |= 1 << node.id
    found: dict[MemoryKind, NodeSet] = {}
    for node in topology.numa:
        if mask >> node.id & 1:
            found[node.kind] = found.get(node.kind, NO_NODES) | NodeSet([node.id])
    return found


def _default_memory(memory: Mapping[MemoryKind, NodeSet]) -> NodeSet:
    """Return DRAM where there is any, else what there is."""
    everything = NO_NODES
    for nodes in memory.values():
        everything |= nodes
    return memory.get(MemoryKind.DRAM, everything)
