"""The node drawn as text: sockets, NUMA nodes, caches, cores and CPUs, each with its owner's mark (pure).

Up to ``MAX_CELLS`` CPUs every CPU is a cell, number and mark, the threads of a core between brackets; above, every core
is one mark in a strip with the CPUs of the strip beside it. Either way each online CPU is named exactly once, and the
legend below names every owner. Colour only repeats what the marks say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from nodecpu.admin.state import Cache, Core, NodeState, Numa, Socket
from nodecpu.cli.render.owners import SEVERAL, Owner, Owners, owners_of
from nodecpu.cli.render.text import counted
from nodecpu.cpuset import CpuSet, union

MAX_CELLS: Final = 256
MIN_WIDTH: Final = 40
_STRIP: Final = 32

_LINES: Final = str.maketrans("┌─┐│└┘…", "+-+|++~")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """What every part of one picture needs."""

    owners: Owners
    digits: int
    width: int
    cells: bool


def draw_node(state: NodeState, width: int = 100, *, unicode: bool = True) -> Text:
    """Return the picture, at most ``width`` columns wide (40 at least) as far as names allow."""
    owners = owners_of(state)
    online = CpuSet.parse(state.machine.online)
    frame = _Frame(
        owners=owners,
        digits=len(str(max(online, default=0))),
        width=max(width, MIN_WIDTH),
        cells=len(online) <= MAX_CELLS,
    )
    lines = [Text(node_title(state), style="bold")]
    lines += _sockets(frame, state.machine.sockets)
    for node in state.machine.memory_nodes:
        lines.append(
            Text(f"numa {node.id}: memory only, {_memory(node.memory, node.memory_bytes)}, by numa {node.home}")
        )
    lines.append(Text(""))
    lines += _legend(frame, several=not frame.cells and _has_mixed_cores(frame, state))
    picture = Text("\n").join(lines)
    if not unicode:
        picture.plain = picture.plain.translate(_LINES)
    return picture


def node_title(state: NodeState) -> str:
    """Return what the machine is, in a line."""
    sockets, online = state.machine.sockets, CpuSet.parse(state.machine.online)
    cores = sum(len(cache.cores) for s in sockets for n in s.numa for cache in n.caches)
    nodes = len({n.id for s in sockets for n in s.numa})
    counts = (counted(len(sockets), "socket"), counted(nodes, "NUMA node"), counted(cores, "core"))
    return f"{state.node}: {', '.join(counts)}, {counted(len(online), 'CPU')}"


def _memory(kind: str, size_bytes: int) -> str:
    if kind == "none" or not size_bytes:
        return "no memory"
    gib = size_bytes / (1 << 30)
    size = f"{gib:.0f} GiB" if gib >= 10 else f"{gib:.1f} GiB" if gib >= 0.1 else f"{size_bytes >> 20} MiB"
    return size if kind == "dram" else f"{size} {kind}"


def _sockets(frame: _Frame, sockets: Sequence[Socket]) -> Iterator[Text]:
    """Yield each socket's boxes, as many beside each other as the width allows, all boxes of one width."""
    room = frame.width - 4 if max((len(s.numa) for s in sockets), default=0) == 1 else frame.width // 2 - 5
    drawn = [[(numa_title(node), _numa(frame, node, room)) for node in socket.numa] for socket in sockets]
    inner = max(
        (max(len(title) - 1, *(line.cell_len for line in content)) for nodes in drawn for title, content in nodes),
        default=0,
    )
    fitting = max(1, (frame.width + 1) // (inner + 5))
    for socket, nodes in zip(sockets, drawn, strict=True):
        yield Text(f"socket {socket.label}")
        boxes = [_box(title, content, inner) for title, content in nodes]
        rows = -(-len(boxes) // fitting)
        per_row = -(-len(boxes) // rows)  # rows of equal length
        for start in range(0, len(boxes), per_row):
            yield from _beside(boxes[start : start + per_row], inner + 4)


def numa_title(node: Numa) -> str:
    """Return what a NUMA node is, to be set into its frame."""
    return f" numa {node.id}, {_memory(node.memory, node.memory_bytes)} "


def _box(title: str, content: Sequence[Text], inner: int) -> list[Text]:
    top = Text(f"┌─{title}{'─' * (inner + 1 - len(title))}┐")
    sides = [Text.assemble("│ ", line, " " * (inner - line.cell_len), " │") for line in content]
    return [top, *sides, Text(f"└{'─' * (inner + 2)}┘")]


def _beside(boxes: Sequence[list[Text]], width: int) -> Iterator[Text]:
    """Yield the lines of boxes put beside each other; shorter ones are continued with blanks."""
    for number in range(max(len(box) for box in boxes)):
        row = [box[number] if number < len(box) else Text(" " * width) for box in boxes]
        line = Text(" ").join(row)
        line.rstrip()
        yield line


def _numa(frame: _Frame, node: Numa, room: int) -> list[Text]:
    labels = [f"L3 {cache.label}" if cache.label and len(node.caches) > 1 else "" for cache in node.caches]
    indent = max(len(label) for label in labels)
    indent += 1 if indent else 0
    lines: list[Text] = []
    for label, cache in zip(labels, node.caches, strict=True):
        rows = _cell_rows(frame, cache, room - indent) if frame.cells else _strip_rows(frame, cache)
        for number, row in enumerate(rows):
            lines.append(Text.assemble((label if number == 0 else "").ljust(indent), row))
    return lines


def _cell_rows(frame: _Frame, cache: Cache, room: int) -> Iterator[Text]:
    cores = [_core_cell(frame, core) for core in cache.cores]
    widest = max(cell.cell_len for cell in cores)
    fitting = max(1, (room + 1) // (widest + 1))
    per_row = 1 << (fitting.bit_length() - 1)  # a power of two, so that rows begin at round numbers
    for start in range(0, len(cores), per_row):
        yield Text(" ").join(cores[start : start + per_row])


def _core_cell(frame: _Frame, core: Core) -> Text:
    cpus = tuple(CpuSet.parse(core.cpus))
    cells = Text(" ").join(_cpu_cell(frame, cpu) for cpu in cpus)
    return Text.assemble("[", cells, "]") if len(cpus) > 1 else cells


def _cpu_cell(frame: _Frame, cpu: int) -> Text:
    owner = frame.owners.by_cpu[cpu]
    return Text(f"{cpu:>{frame.digits}}{owner.mark:<{frame.owners.mark_width}}", style=owner.style)


def _strip_rows(frame: _Frame, cache: Cache) -> Iterator[Text]:
    gap = " " if frame.owners.mark_width > 1 else ""
    for start in range(0, len(cache.cores), _STRIP):
        cores = [CpuSet.parse(core.cpus) for core in cache.cores[start : start + _STRIP]]
        strip = Text(gap).join(_core_mark(frame, cpus) for cpus in cores)
        if start:
            strip.pad_right(_STRIP * frame.owners.mark_width + (_STRIP - 1) * len(gap) - strip.cell_len)
        yield Text.assemble(strip, "  ", str(union(cores)))


def _core_mark(frame: _Frame, cpus: CpuSet) -> Text:
    found = {frame.owners.by_cpu[cpu].mark: frame.owners.by_cpu[cpu] for cpu in cpus}
    mark, style = next((o.mark, o.style) for o in found.values()) if len(found) == 1 else (SEVERAL, "bold")
    return Text(f"{mark:<{frame.owners.mark_width}}", style=style)


def _has_mixed_cores(frame: _Frame, state: NodeState) -> bool:
    return any(
        len({frame.owners.by_cpu[cpu].mark for cpu in CpuSet.parse(core.cpus)}) > 1
        for socket in state.machine.sockets
        for node in socket.numa
        for cache in node.caches
        for core in cache.cores
    )


def _legend(frame: _Frame, *, several: bool) -> Iterator[Text]:
    owners = frame.owners
    text_width = max((len(owner.text) for owner in owners.all), default=0)
    cpus_width = min(24, max((len(str(owner.cpus)) for owner in owners.all), default=0))
    for owner in owners.all:
        yield _legend_line(frame, owner, text_width, cpus_width)
    if several:
        yield Text(f"{SEVERAL:<{owners.mark_width}}  a core whose threads have several owners")


def _legend_line(frame: _Frame, owner: Owner, text_width: int, cpus_width: int) -> Text:
    mark = Text(f"{owner.mark:<{frame.owners.mark_width}}", style=owner.style)
    count = counted(len(owner.cpus), "CPU")
    line = Text.assemble(mark, f"  {owner.text:<{text_width}}  {count:>8}  {owner.cpus!s:<{cpus_width}}")
    if owner.note:
        line.append(f"  {owner.note}")
    line.rstrip()
    line.truncate(max(frame.width, text_width + frame.owners.mark_width + 12), overflow="ellipsis")
    return line
