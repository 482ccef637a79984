"""What was found as lines: what is wrong comes with its remedy (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from nodecpu.cli.render.text import clean, counted
from nodecpu.preflight.finding import Finding, Grade

_COLOURS: Final = {Grade.FAILED: "1;31", Grade.WARNING: "33"}


def finding_lines(found: Sequence[Finding], *, colour: bool = False) -> Iterator[str]:
    """Yield a line per finding, its remedy below it, and a summary; ``colour`` for terminals: grades that matter."""
    wide = max((len(one.grade.value) for one in found), default=0)
    check = max((len(one.check) for one in found), default=0)
    for one in found:
        line = clean(f"{one.grade.value:<{wide}}  {one.check:<{check}}  {one.seen}".rstrip())
        if colour and (ink := _COLOURS.get(one.grade)):
            line = f"\x1b[{ink}m{line[:wide]}\x1b[0m{line[wide:]}"
        yield line
        if one.remedy and one.grade is not Grade.OK:
            yield clean(f"{'':<{wide}}  {'':<{check}}  -> {one.remedy}")
    yield ""
    grades = Counter(one.grade for one in found)
    parts = [
        counted(grades[Grade.FAILED], "thing") + " to mend" if grades[Grade.FAILED] else "",
        counted(grades[Grade.WARNING], "warning") if grades[Grade.WARNING] else "",
        f"{grades[Grade.UNKNOWN]} unknown" if grades[Grade.UNKNOWN] else "",
    ]
    yield ", ".join(part for part in parts if part) or "all is well"
