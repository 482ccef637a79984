"""Machines from a short text (lab, pure): the text's parser and the machine as a value.

``2 sockets, 2 nodes, 2 cores, 2 threads`` means nodes per socket, cores per node, threads per core; what is left out is
one. Options, separated by commas:

=====================  =================================================================================================
``N dies``             dies per socket (1)
``l3 N``               cores that share a third-level cache (those of a node), ``l3 none`` for none
``cluster N``          cores that share a second-level cache and are a cluster (none)
``efficient N``        the last N cores of each node are efficient ones, with one thread (0)
``numbering WORD``     ``adjacent``: a core's threads have neighbouring numbers (default); ``linux``: all first threads
                       come before all second ones; ``interleaved``: so, with the cores dealt to the nodes in turn
``cpu-step N``         CPU numbers are multiples of N (1)
``node-step N``        node numbers are multiples of N (1)
``isolated LIST``      CPUs isolated by the kernel's command line
``offline LIST``       CPUs that are offline
``memory SIZE``        memory of each node, such as ``4G`` (the default)
``memory-only N KIND`` N nodes without CPUs, of ``hbm``, ``pmem``, ``cxl`` or ``other``, dealt to the nodes in turn; a
                       size may follow; may be said again for another kind
``no-memory LIST``     nodes that have no memory
``pci-roots N``        PCIe roots near each node with CPUs (0), named ``pci0000:00`` and so on in the nodes' order
=====================  =================================================================================================

Memory-only nodes have the numbers after those with CPUs. Distances: 12 within a socket, 21 across, from a memory-only
node 17 to its own node and 28 to others. ``n4c16`` is short for the machine of the first example.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nodecpu.cpuset import MAX_ID, CpuSet, NodeSet
from nodecpu.errors import ConfigError

_NAMED: Final = {"n4c16": "2 sockets, 2 nodes, 2 cores, 2 threads"}
_COUNTS: Final = ("sockets", "dies", "nodes", "cores", "threads")
_OPTIONS: Final = (
    "l3",
    "cluster",
    "efficient",
    "numbering",
    "cpu-step",
    "node-step",
    "isolated",
    "offline",
    "memory",
    "memory-only",
    "no-memory",
    "pci-roots",
)
_MAX_CPUS: Final = 16384
_SIZE: Final = re.compile(r"([0-9]{1,9})([KMGT])", re.ASCII)
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_FORM: Final = "such as: 2 sockets, 2 nodes, 2 cores, 2 threads, isolated 2-3, memory 4G"


class Memory(Enum):
    """What a node's memory is."""

    DRAM = "dram"
    HBM = "hbm"
    PMEM = "pmem"
    CXL = "cxl"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCpu:
    """One logical CPU, online or not; die, core and cluster are numbered within their socket, caches over all."""

    id: int
    socket: int
    die: int
    core: int
    node: int
    cluster: int | None
    l2: int
    l3: int | None
    efficient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineNode:
    """One NUMA node; ``home`` is the node whose CPUs a node without CPUs is nearest to, its own id otherwise."""

    id: int
    socket: int
    home: int
    kind: Memory
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as it was asked for; CPUs and nodes by rising id."""

    text: str
    cpus: tuple[MachineCpu, ...]
    nodes: tuple[MachineNode, ...]
    isolated: CpuSet
    offline: CpuSet
    pci_roots: tuple[tuple[str, int], ...] = ()
    """``DDDD:BB`` and the node that a device on it tells."""
    boot_id: str = "6e6f6465-6370-4750-8000-000000000001"

    @property
    def present(self) -> CpuSet:
        """All CPUs, online or not."""
        return CpuSet(cpu.id for cpu in self.cpus)

    @property
    def online(self) -> CpuSet:
        """The CPUs that can run something."""
        return self.present - self.offline

    def distance(self, here: MachineNode, there: MachineNode) -> int:
        """Return how far ``there`` is from ``here``, 10 being the node itself."""
        if here.id == there.id:
            return 10
        if here.home != here.id or there.home != there.id:
            return 17 if here.home == there.home and here.home in (here.id, there.id) else 28
        return 12 if here.socket == there.socket else 21


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """The regular part: counts per level above, cores per cache and cluster (None: no such thing)."""

    sockets: int
    dies: int
    nodes: int
    cores: int
    threads: int
    efficient: int
    l3: int | None
    cluster: int | None
    numbering: str
    cpu_step: int
    node_step: int

    @property
    def socket_cores(self) -> int:
        return self.nodes * self.cores


def parse_machine(text: str) -> Machine:
    """Return the machine that the text describes; ConfigError, naming the part, if it describes none."""
    said = _split(_NAMED.get(text.strip(), text))
    shape = _shape(said)
    cpus = _number(shape)
    present = CpuSet(cpu.id for cpu in cpus)
    nodes = _nodes(shape, said)
    machine = Machine(
        text=text.strip(),
        cpus=tuple(sorted(cpus, key=lambda cpu: cpu.id)),
        nodes=nodes,
        isolated=_cpu_list(said, "isolated", present),
        offline=_cpu_list(said, "offline", present),
        pci_roots=_pci_roots(nodes, _number_of(said, "pci-roots", 0, least=0)),
    )
    if not machine.online:
        raise _bad("offline", "leaves no CPU online")
    return machine


def _bad(part: str, problem: str) -> ConfigError:
    return ConfigError(f"machine text: {part!r} {problem}", hint=_FORM)


def _split(text: str) -> dict[str, list[str]]:
    """Return what is said, by word; each value is what stands with the word, ``memory-only`` may have several."""
    said: dict[str, list[str]] = {}
    last = ""
    for part in (part.strip() for part in text.split(",")):
        if re.fullmatch(r"[0-9]+(-[0-9]+)?", part) and last in ("isolated", "offline", "no-memory"):
            said[last][-1] += f",{part}"  # the comma was one of the list
            continue
        words = part.split()
        if len(words) == 2 and words[0].isdecimal():
            last, value = _count_word(words[1]), words[0]
        elif words and words[0] in _OPTIONS:
            last, value = words[0], " ".join(words[1:])
        else:
            raise _bad(part, "is not understood")
        if last in said and last != "memory-only":
            raise _bad(part, "is said twice")
        said.setdefault(last, []).append(value)
    return said


def _count_word(word: str) -> str:
    plural = word if word.endswith("s") else f"{word}s"
    if plural not in _COUNTS:
        raise _bad(word, f"is not one of {', '.join(_COUNTS)}")
    return plural


def _number_of(said: Mapping[str, Sequence[str]], word: str, default: int, *, least: int = 1) -> int:
    value = said[word][0] if word in said else str(default)
    if not re.fullmatch(r"[0-9]{1,5}", value) or int(value) < least:
        raise _bad(f"{word} {value}".strip(), f"needs a whole number of at least {least}")
    return int(value)


def _shape(said: Mapping[str, Sequence[str]]) -> _Shape:
    nodes, cores = _number_of(said, "nodes", 1), _number_of(said, "cores", 1)
    numbering = said.get("numbering", ["adjacent"])[0]
    if numbering not in ("adjacent", "linux", "interleaved"):
        raise _bad(f"numbering {numbering}", "is none of adjacent, linux, interleaved")
    shape = _Shape(
        sockets=_number_of(said, "sockets", 1),
        dies=_number_of(said, "dies", 1),
        nodes=nodes,
        cores=cores,
        threads=_number_of(said, "threads", 1),
        efficient=_number_of(said, "efficient", 0, least=0),
        l3=None if said.get("l3") == ["none"] else _number_of(said, "l3", cores),
        cluster=_number_of(said, "cluster", 1) if "cluster" in said else None,
        numbering=numbering,
        cpu_step=_number_of(said, "cpu-step", 1),
        node_step=_number_of(said, "node-step", 1),
    )
    for word, divisor in (("dies", shape.dies), ("l3", shape.l3 or 1), ("cluster", shape.cluster or 1)):
        if shape.socket_cores % divisor:
            raise _bad(f"{word} {divisor}", f"does not divide the {shape.socket_cores} cores of a socket")
    if shape.efficient > cores:
        raise _bad(f"efficient {shape.efficient}", f"is more than the {cores} cores of a node")
    threads = shape.sockets * shape.socket_cores * shape.threads
    if threads > _MAX_CPUS or threads * shape.cpu_step > MAX_ID + 1:
        raise _bad("the machine", f"is too large: at most {_MAX_CPUS} CPUs and numbers up to {MAX_ID}")
    return shape


def _number(shape: _Shape) -> list[MachineCpu]:
    """Return the CPUs, numbered as asked."""
    cores = list(itertools.product(range(shape.sockets), range(shape.socket_cores)))
    if shape.numbering == "interleaved":
        cores.sort(key=lambda core: (core[1] % shape.cores, core[0], core[1]))
    count = {core: 1 if _is_efficient(shape, core[1]) else shape.threads for core in cores}
    if shape.numbering == "adjacent":
        threads = [core for core in cores for _ in range(count[core])]
    else:
        threads = [core for turn in range(shape.threads) for core in cores if turn < count[core]]
    return [_cpu(shape, number * shape.cpu_step, *core) for number, core in enumerate(threads)]


def _is_efficient(shape: _Shape, core: int) -> bool:
    return core % shape.cores >= shape.cores - shape.efficient


def _cpu(shape: _Shape, number: int, socket: int, core: int) -> MachineCpu:
    overall = socket * shape.socket_cores + core
    return MachineCpu(
        id=number,
        socket=socket,
        die=core * shape.dies // shape.socket_cores,
        core=core,
        node=overall // shape.cores * shape.node_step,
        cluster=core // shape.cluster if shape.cluster else None,
        l2=overall // (shape.cluster or 1),
        l3=overall // shape.l3 if shape.l3 else None,
        efficient=_is_efficient(shape, core),
    )


def _nodes(shape: _Shape, said: Mapping[str, Sequence[str]]) -> tuple[MachineNode, ...]:
    size = _size(said.get("memory", ["4G"])[0])
    bearers = shape.sockets * shape.nodes
    nodes = [
        MachineNode(
            id=n * shape.node_step,
            socket=n // shape.nodes,
            home=n * shape.node_step,
            kind=Memory.DRAM,
            size_bytes=size,
        )
        for n in range(bearers)
    ]
    for part in said.get("memory-only", ()):
        count, kind, more = _memory_only(part, size)
        for n in range(count):
            home = nodes[n % bearers]
            nodes.append(
                MachineNode(
                    id=len(nodes) * shape.node_step, socket=home.socket, home=home.id, kind=kind, size_bytes=more
                )
            )
    if nodes[-1].id > MAX_ID:
        raise _bad("the machine", f"has node numbers above {MAX_ID}")
    return _without_memory(nodes, said)


def _memory_only(part: str, size: int) -> tuple[int, Memory, int]:
    words = part.split()
    kinds = {kind.value: kind for kind in Memory if kind is not Memory.DRAM}
    if len(words) not in (2, 3) or not re.fullmatch(r"[0-9]{1,4}", words[0]) or words[1] not in kinds:
        raise _bad(f"memory-only {part}".strip(), f"is not a count, one of {', '.join(kinds)}, and perhaps a size")
    return int(words[0]), kinds[words[1]], _size(words[2]) if len(words) == 3 else size


def _without_memory(nodes: Sequence[MachineNode], said: Mapping[str, Sequence[str]]) -> tuple[MachineNode, ...]:
    if "no-memory" not in said:
        return tuple(nodes)
    bare = NodeSet.parse(_checked_list(said, "no-memory"))
    strange = bare - NodeSet(node.id for node in nodes)
    if strange:
        raise _bad(f"no-memory {bare}", f"names nodes that are not there: {strange}")
    return tuple(
        MachineNode(id=n.id, socket=n.socket, home=n.home, kind=n.kind, size_bytes=0) if n.id in bare else n
        for n in nodes
    )


def _pci_roots(nodes: Sequence[MachineNode], each: int) -> tuple[tuple[str, int], ...]:
    bearers = [node.id for node in nodes if node.home == node.id for _ in range(each)]
    return tuple((f"{number >> 8:04x}:{number & 255:02x}", node) for number, node in enumerate(bearers))


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise _bad(f"memory {text}".strip(), "is not a size such as 512M or 4G")
    return int(found[1]) * _UNITS[found[2]]


def _cpu_list(said: Mapping[str, Sequence[str]], word: str, present: CpuSet) -> CpuSet:
    cpus = CpuSet.parse(_checked_list(said, word))
    strange = cpus - present
    if strange:
        raise _bad(f"{word} {cpus}", f"names CPUs that are not there: {strange}")
    return cpus


def _checked_list(said: Mapping[str, Sequence[str]], word: str) -> str:
    text = said.get(word, [""])[0]
    if word in said and not text:
        raise _bad(word, "needs a list such as 2-3,6")
    try:
        NodeSet.parse(text)
    except ValueError as err:
        raise _bad(f"{word} {text}", f"is not a list: {err}") from err
    return text
