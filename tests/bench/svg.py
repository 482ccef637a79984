"""A chart with both axes logarithmic, as SVG text: a line for each series, named at its end with its exponent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

_WIDTH: Final = 760
_HEIGHT: Final = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 270, 40, 50
_COLOURS: Final = ("#1f5fa8", "#b3541e", "#2e7d4f", "#7b3f98", "#8a6d00", "#555555")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A line: points by rising x, the first of which may be 0; y above 0."""

    name: str
    points: Sequence[tuple[float, float]]

    @property
    def exponent(self) -> float:
        """The exponent of the power of x that fits best, but for 0: 0 is flat, 1 proportional."""
        logs = [(math.log(x), math.log(y)) for x, y in self.points if x]
        mean_x = sum(x for x, _ in logs) / len(logs)
        mean_y = sum(y for _, y in logs) / len(logs)
        spread = sum((x - mean_x) ** 2 for x, _ in logs)
        return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over one another; ``across`` and ``up`` name the axes."""

    title: str
    across: str
    up: str
    series: Sequence[Series]

    def svg(self) -> str:
        """Return the drawing."""
        xs = [x for one in self.series for x, _ in one.points]
        ys = [y for one in self.series for _, y in one.points]
        nought = min(x for x in xs if x) / 10  # where 0 is drawn
        x_axis = _Axis(min(x or nought for x in xs), max(xs), _LEFT, _WIDTH - _RIGHT)
        low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
        y_axis = _Axis(10.0**low, 10.0**high, _HEIGHT - _BOTTOM, _TOP)
        parts = [_text(_LEFT, 22, self.title, "font-weight='bold'")]
        parts += [_tick_across(x_axis.at(x or nought), f"{x:g}") for x in sorted(set(xs))]
        parts += [_tick_up(y_axis.at(10.0**power), f"{10.0**power:g}") for power in range(low, high + 1)]
        parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 10, self.across, "text-anchor='middle'"))
        middle = (_TOP + _HEIGHT - _BOTTOM) / 2
        parts.append(_text(16, middle, self.up, f"text-anchor='middle' transform='rotate(-90 16 {middle})'"))
        labels = _apart([y_axis.at(one.points[-1][1]) for one in self.series])
        for one, colour, label in zip(self.series, _COLOURS, labels, strict=False):
            parts += _line([(x_axis.at(x or nought), y_axis.at(y)) for x, y in one.points], colour)
            parts.append(_text(_WIDTH - _RIGHT + 12, label + 4, f"{one.name} ^{one.exponent:z.2f}", f"fill='{colour}'"))
        head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {_HEIGHT}' font-family='sans-serif'"
        ground = "<rect width='100%' height='100%' fill='white'/>"
        return "\n".join((f"{head} font-size='12'>", ground, *parts, "</svg>")) + "\n"


class _Axis:
    """From numbers to places."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._high = math.log(low), math.log(high)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return where a number is."""
        share = (math.log(value) - self._low) / ((self._high - self._low) or 1)
        return round(self._start + share * (self._end - self._start), 1)


def _apart(places: Sequence[float], least: float = 15) -> list[float]:
    """Return places for labels: as near to these as can be, none upon another."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    found = list(places)
    for before, after in pairwise(order):
        found[after] = max(found[after], found[before] + least)
    return found


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:g}' y='{y:g}' {more}>{escape(text)}</text>"


def _tick_across(x: float, text: str) -> str:
    bottom = _HEIGHT - _BOTTOM
    line = f"<line x1='{x:g}' x2='{x:g}' y1='{_TOP}' y2='{bottom}' stroke='#dddddd'/>"
    return line + _text(x, bottom + 16, text, "text-anchor='middle'")


def _tick_up(y: float, text: str) -> str:
    line = f"<line x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:g}' y2='{y:g}' stroke='#dddddd'/>"
    return line + _text(_LEFT - 6, y + 4, text, "text-anchor='end'")


def _line(points: Sequence[tuple[float, float]], colour: str) -> list[str]:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    dots = [f"<circle cx='{x:g}' cy='{y:g}' r='3' fill='{colour}'/>" for x, y in points]
    return [f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='1.5'/>", *dots]
