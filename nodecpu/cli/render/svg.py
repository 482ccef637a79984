"""The node drawn as SVG: sockets, NUMA nodes, caches, cores and CPUs, each filled by its owner (pure).

Every online CPU is a cell with its owner's mark, so that colour only repeats what the marks say, with a title that a
viewer shows on hovering. On large machines cells shrink: the numbers then stand at the beginning of each row. One file
without scripts, fonts or links; what comes from outside is cleaned and escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from nodecpu.admin.state import Cache, Core, NodeState, Numa, Socket
from nodecpu.cli.render.node import node_title, numa_title
from nodecpu.cli.render.owners import CONFLICT, ISOLATED, RESERVED, SHARED, UNUSABLE, Owner, Owners, owners_of
from nodecpu.cli.render.text import clean, counted
from nodecpu.cpuset import CpuSet

_PAGE: Final = 1240
_MARGIN: Final = 24
_GAP: Final = 10
_TITLE: Final = 22
_LINE: Final = 20
_CHAR: Final = 0.62
"""Width of a character in units of its size, a little generous; a digit's as well."""

_BOLD_TEXT: Final = 0.7
"""The same for bold words."""

_BOLD: Final = 0.8
_WIDEST: Final = 1.1
"""The same for a bold capital as they come, and for the widest of them, the W."""

# Okabe and Ito's colours, which stay apart for the colour-blind.
_COLOURS: Final = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7")
_DARK: Final = frozenset({"#009e73", "#0072b2", "#d55e00"})

_PLAIN: Final = {
    SHARED: ("#eceff1", "#b0bec5"),
    RESERVED: ("url(#reserved)", "#78909c"),
    ISOLATED: ("#ffffff", "#0072b2"),
    UNUSABLE: ("url(#unusable)", "#cfd8dc"),
    CONFLICT: ("#c62828", "#000000"),
}

_PATTERNS: Final = (
    '<defs><pattern id="reserved" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#cfd8dc"/><rect width="2" height="6" fill="#b0bec5"/></pattern>'
    '<pattern id="unusable" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)">'
    '<rect width="6" height="6" fill="#ffffff"/><rect width="1" height="6" fill="#cfd8dc"/></pattern></defs>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Sizes of a CPU's cell, and of its text; ``numbered``: each cell has its number."""

    width: int
    height: int
    font: int
    numbered: bool


_LARGE: Final = _Scale(width=46, height=34, font=14, numbered=True)
_MEDIUM: Final = _Scale(width=34, height=22, font=11, numbered=True)
_SMALL: Final = _Scale(width=16, height=16, font=10, numbered=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A drawn part: its elements relative to its own corner, and its size."""

    elements: tuple[str, ...]
    width: float
    height: float

    def at(self, x: float, y: float) -> str:
        return f'<g transform="translate({x:g},{y:g})">{"".join(self.elements)}</g>'


def draw_svg(state: NodeState) -> str:
    """Return the picture as an SVG document."""
    owners = owners_of(state)
    online = CpuSet.parse(state.machine.online)
    digits = len(str(max(online, default=0)))
    drawing = _Drawing(owners, _scale(len(online), digits, owners.mark_width), digits)
    parts = [drawing.socket(socket) for socket in state.machine.sockets]
    title = clean(node_title(state))
    body, y = [_text(_MARGIN, _MARGIN + 14, title, 18, "bold")], float(_MARGIN + 34)
    for part in parts:
        body.append(part.at(_MARGIN, y))
        y += part.height + _GAP
    beside = [f"numa {node.id}: memory only, by numa {node.home}" for node in state.machine.memory_nodes]
    for line in beside:
        body.append(_text(_MARGIN, y + 14, line, 13))
        y += _LINE
    legend = drawing.legend()
    body.append(legend.at(_MARGIN, y + _GAP))
    words = max([len(title) * 18 * _BOLD_TEXT, *(len(line) * 13 * _CHAR for line in beside)])
    width = max([words, legend.width, *(part.width for part in parts)]) + 2 * _MARGIN
    height = y + _GAP + legend.height + _MARGIN
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="DejaVu Sans, Verdana, sans-serif">'
        f'{_PATTERNS}<rect width="100%" height="100%" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


def _scale(cpus: int, digits: int, mark_width: int) -> _Scale:
    """Return the sizes for so many CPUs: a cell has room for what stands in it."""
    if cpus > 256:
        return _Scale(width=max(_SMALL.width, 8 * mark_width + 4), height=16, font=10, numbered=False)
    scale = _LARGE if cpus <= 64 else _MEDIUM
    mark = ((mark_width - 1) * _BOLD + _WIDEST) * scale.font
    return replace(scale, width=max(scale.width, ceil(4 + digits * _CHAR * (scale.font - 1) + 2 + mark + 4)))


class _Drawing:
    def __init__(self, owners: Owners, scale: _Scale, digits: int) -> None:
        self._owners = owners
        self._scale = scale
        self._digits = digits
        claims = [one.mark for one in owners.all if one.mark[0].isupper()]
        containers = [one.mark for one in owners.all if one.mark[0].islower() and one.mark != UNUSABLE]
        self._number = {mark: number for group in (claims, containers) for number, mark in enumerate(group)}

    def socket(self, socket: Socket) -> _Part:
        """Return a socket: its NUMA nodes in rows as long as the page has room for, and about equally long."""
        boxes = self._equal([self._numa(node) for node in socket.numa])
        step_x = _GAP + max((box.width for box in boxes), default=0)
        step_y = _GAP + max((box.height for box in boxes), default=0)
        fitting = max(1, int((_PAGE - 2 * _MARGIN - _GAP) // step_x))
        rows = ceil(len(boxes) / fitting)
        per_row = ceil(len(boxes) / rows) if rows else 0
        elements = [
            box.at(_GAP + number % per_row * step_x, _TITLE + _GAP + number // per_row * step_y)
            for number, box in enumerate(boxes)
        ]
        wide, height = _GAP + per_row * step_x, _TITLE + _GAP + rows * step_y
        frame = _rect(0, 0, wide, height, "#fafafa", "#90a4ae", 8)
        return _Part(
            elements=(frame, _text(_GAP, 20, f"socket {socket.label}", 14, "bold"), *elements),
            width=wide,
            height=height,
        )

    def _equal(self, boxes: Sequence[tuple[_Part, str]]) -> list[_Part]:
        """Return framed boxes, all as wide and high as the largest."""
        titles = max((len(title) for _, title in boxes), default=0)
        width = max([part.width for part, _ in boxes] + [titles * 12 * _CHAR]) + 2 * _GAP
        height = max((part.height for part, _ in boxes), default=0) + _TITLE + _GAP
        return [
            _Part(
                elements=(
                    _rect(0, 0, width, height, "#ffffff", "#b0bec5", 6),
                    _text(_GAP, 17, title, 12),
                    part.at(_GAP, _TITLE),
                ),
                width=width,
                height=height,
            )
            for part, title in boxes
        ]

    def _numa(self, node: Numa) -> tuple[_Part, str]:
        cores = sum(len(cache.cores) for cache in node.caches)
        per_row = self._per_row(node, cores)
        elements, y, width = [], 0.0, 0.0
        for cache in node.caches:
            part = self._cache(cache, per_row, labelled=len(node.caches) > 1 and bool(cache.label))
            elements.append(part.at(0, y))
            y, width = y + part.height + 4, max(width, part.width)
        return _Part(elements=tuple(elements), width=width, height=y), numa_title(node).strip()

    def _per_row(self, node: Numa, cores: int) -> int:
        """Return how many cores stand in a row: about twice as wide as high, never wider than the page."""
        threads = max((len(CpuSet.parse(core.cpus)) for cache in node.caches for core in cache.cores), default=1)
        one = threads * self._scale.width + 4
        fitting = max(1, int((_PAGE - 2 * _MARGIN - 4 * _GAP - self._gutter) // one))
        wanted = max(1, round((2 * cores * self._scale.height / one) ** 0.5))
        power: int = 1 << (wanted - 1).bit_length()
        most = max((len(cache.cores) for cache in node.caches), default=1)
        return min(fitting, max(power, 2), max(most, 1))

    @property
    def _gutter(self) -> float:
        """Room at the beginning of each row for the number of its first CPU."""
        return 0 if self._scale.numbered else self._digits * 9 * _CHAR + 6

    def _cache(self, cache: Cache, per_row: int, *, labelled: bool) -> _Part:
        elements, y, width = [], 0.0, 0.0
        if labelled:
            elements.append(_text(0, 11, f"L3 {cache.label}", 10))
            y += 15
        for start in range(0, len(cache.cores), per_row):
            x = self._gutter
            row = cache.cores[start : start + per_row]
            if not self._scale.numbered:
                first = min(CpuSet.parse(row[0].cpus))
                elements.append(_text(x - 4, y + 12, str(first), 9, anchor="end"))
            for core in row:
                part = self._core(core)
                elements.append(part.at(x, y))
                x += part.width + 4
            y, width = y + self._scale.height + 4, max(width, x - 4)
        return _Part(elements=tuple(elements), width=width, height=y)

    def _core(self, core: Core) -> _Part:
        cpus = tuple(CpuSet.parse(core.cpus))
        scale = self._scale
        cells = [self._cell(cpu, number * scale.width) for number, cpu in enumerate(cpus)]
        width = len(cpus) * scale.width
        frame = _rect(0, 0, width, scale.height, "none", "#546e7a", 3, stroke_width=1.2)
        return _Part(elements=(*cells, frame), width=width, height=scale.height)

    def _cell(self, cpu: int, x: float) -> str:
        owner, scale = self._owners.by_cpu[cpu], self._scale
        fill, stroke, ink = self._look(owner)
        title = f"<title>{escape(clean(f'CPU {cpu}: {owner.text}'))}</title>"
        box = _rect(x, 0, scale.width, scale.height, fill, stroke, 3, stroke_width=0.8)
        middle, base = x + scale.width / 2, scale.height / 2 + scale.font * 0.36
        mark = "" if owner.mark == SHARED else owner.mark
        if not scale.numbered:
            words = _text(middle, base, mark, scale.font, "bold", ink, "middle")
        else:
            words = _text(x + 4, base, str(cpu), scale.font - 1, colour=ink)
            words += _text(x + scale.width - 4, base, mark, scale.font, "bold", ink, "end")
        return f"<g>{title}{box}{words}</g>"

    def _look(self, owner: Owner) -> tuple[str, str, str]:
        """Return fill, border and ink. Claims have the full colour, containers a light one with that border."""
        if owner.mark in _PLAIN:
            fill, stroke = _PLAIN[owner.mark]
            return fill, stroke, "#ffffff" if owner.mark == CONFLICT else "#37474f"
        colour = _COLOURS[self._number[owner.mark] % len(_COLOURS)]
        if owner.mark[0].isupper():
            return colour, colour, "#ffffff" if colour in _DARK else "#000000"
        return _light(colour), colour, "#000000"

    def legend(self) -> _Part:
        """Return a line for each owner: its cell, who it is, how many CPUs, which ones, what else there is to say."""
        columns = [
            [clean(owner.text) for owner in self._owners.all],
            [counted(len(owner.cpus), "CPU") for owner in self._owners.all],
            [_short(str(owner.cpus)) for owner in self._owners.all],
            [_short(clean(owner.note), 60) for owner in self._owners.all],
        ]
        starts, x = [], 44.0
        for column in columns:
            starts.append(x)
            x += max((len(text) for text in column), default=0) * 13 * _CHAR + 16
        elements = []
        for line, owner in enumerate(self._owners.all):
            y = line * _LINE
            fill, stroke, ink = self._look(owner)
            elements.append(_rect(0, y + 2, 34, 16, fill, stroke, 3))
            elements.append(_text(17, y + 14, owner.mark, 12, "bold", ink, "middle"))
            elements += [_text(start, y + 15, column[line], 13) for start, column in zip(starts, columns, strict=True)]
        return _Part(elements=tuple(elements), width=x, height=len(self._owners.all) * _LINE)


def _short(text: str, most: int = 40) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _light(colour: str) -> str:
    """Return a colour mixed with two parts of white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{(part + 2 * 255) // 3:02x}" for part in parts)


def _rect(  # noqa: PLR0913 - the element's own attributes
    x: float, y: float, width: float, height: float, fill: str, stroke: str, radius: int = 0, stroke_width: float = 1
) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" fill="{fill}"'
        f' stroke="{stroke}" stroke-width="{stroke_width:g}"/>'
    )


def _text(  # noqa: PLR0913 - the element's own attributes
    x: float, y: float, text: str, size: int, weight: str = "", colour: str = "#263238", anchor: str = ""
) -> str:
    if not text:
        return ""
    more = f' font-weight="{weight}"' if weight else ""
    more += f" text-anchor={quoteattr(anchor)}" if anchor else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}"{more}>{escape(clean(text))}</text>'
