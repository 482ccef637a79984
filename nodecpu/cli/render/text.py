"""Plain text: names made safe for a terminal, counts in words, columns (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime


def clean(text: str) -> str:
    """Return text from outside without anything that could move a terminal's cursor."""
    return "".join(c if c.isprintable() else "?" for c in text)


def counted(number: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: columns as wide as their widest cell, empty cells as ``-``, the last left ragged."""
    table = [tuple(header), *(tuple(clean(cell) or "-" for cell in row) for row in rows)]
    widths = [max(len(row[column]) for row in table) for column in range(len(header))]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def utc(seconds: float) -> str:
    """Return a moment, given in Unix time, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
