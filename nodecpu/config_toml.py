"""TOML text as a tree together with the line of each key and every syntax mistake that can be seen (pure).

The standard parser stops at its first mistake and tells no lines for keys. Here a broken ``key = value`` line is
noted, left out, and the rest is read again, so that one run shows all mistakes; after a mistake that cannot be left out
alone (a table's heading, something over several lines) only the text above it is judged. Lines of keys come from a
plain scan, which is right for all files but those that hide ``key =`` at the start of a line of a multi-line value.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_SYNTAX_MISTAKES: Final = 50

_HEADING: Final = re.compile(r"""\s*\[{1,2}\s*["']?([^\]"'.\s]+)["']?(?:\s*\.\s*["']?([^\]"'.\s]+))?""")
_KEY: Final = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?(?:\s*\.\s*["']?([A-Za-z0-9_-]+)["']?)?\s*=""")
_PLACE: Final = re.compile(r"(.*) \(at (?:line ([0-9]+), column [0-9]+|end of document)\)", re.DOTALL)

_WORDS: Final = (
    ("Cannot overwrite a value", "this key is there a second time"),
    ("Cannot declare", "this table is there a second time"),
    ("Unclosed array", "the list before this is not closed"),
)


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """A mistake; ``line`` 0 where it cannot be told."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was read: the tree, the first line of each table (key empty) and key, the syntax mistakes."""

    tree: Mapping[str, object] = field(default_factory=dict)
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def line(self, table: str, key: str = "") -> int:
        """Return the line of a key, else of its table, else 0."""
        return self.lines.get((table, key)) or self.lines.get((table, ""), 0)


def read_toml(text: str) -> Source:
    """Return everything that can be read of the text; never raises."""
    rows = text.replace("\r\n", "\n").split("\n")
    lines = _key_lines(rows)
    problems: list[Problem] = []
    while len(problems) < MAX_SYNTAX_MISTAKES:
        try:
            # The last line end lets the parser tell the line of a mistake on the last line.
            tree = tomllib.loads("\n".join(rows) + "\n")
        except (ValueError, RecursionError) as error:
            found = _problem(error, rows)
            if problems and (found.line == 0 or found.line <= problems[-1].line):
                break  # the follow-on of what is noted already
            problems.append(found)
            rows = _without(rows, found)
            if not rows:
                break
        else:
            return Source(tree=tree, lines=lines, problems=tuple(problems))
    return Source(lines=lines, problems=tuple(problems))


def _problem(error: Exception, rows: list[str]) -> Problem:
    if isinstance(error, RecursionError):
        return Problem(0, "not TOML: nested too deeply")
    found = _PLACE.fullmatch(str(error))
    text, line = (found[1], int(found[2] or 0)) if found else (str(error), 0)
    words = next(
        (words for start, words in _WORDS if text.startswith(start)), f"not TOML: {text[:1].lower()}{text[1:]}"
    )
    row = rows[line - 1] if 0 < line <= len(rows) else ""
    key = _KEY.match(row) or _HEADING.match(row)
    name = key[0].strip().strip("=[").strip() if key else ""
    return Problem(line, f"{name}: {words}" if name and name.isprintable() else words)


def _without(rows: list[str], problem: Problem) -> list[str]:
    """Return the rows with the mistake left out; none if that cannot be done."""
    at = problem.line - 1
    if at < 0 or at >= len(rows) or "not closed" in problem.text:
        return []
    if _KEY.match(rows[at]):
        return [*rows[:at], "", *rows[at + 1 :]]
    return rows[:at]


def _key_lines(rows: list[str]) -> dict[tuple[str, str], int]:
    lines: dict[tuple[str, str], int] = {}
    table = ""
    for number, row in enumerate(rows, start=1):
        if heading := _HEADING.match(row):
            table, key = heading[1], heading[2] or ""
        elif found := _KEY.match(row):
            first, second = found[1], found[2] or ""
            if table:
                lines.setdefault((table, first), number)
                continue
            lines.setdefault((first, ""), number)
            if not second:
                continue
            lines.setdefault((first, second), number)
            continue
        else:
            continue
        lines.setdefault((table, ""), number)
        lines.setdefault((table, key), number)
    return lines


def shown(value: object) -> str:
    """Return a TOML value for a message: short, on one line, without control characters."""
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 60 else value[:57] + "...", ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else "a huge number"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(shown(item) for item in value[:5])}{', ...' if len(value) > 5 else ''}]"
    return "{...}" if isinstance(value, dict) else str(value)
