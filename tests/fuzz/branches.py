"""Which branches of some modules were taken: by the interpreter's own tracing, no tool needed.

A branch is one way out of a conditional jump of the bytecode, so conditions joined by ``and`` count each. Tracing every
instruction is slow: it is done for a sample of the inputs.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

_LOOP: Final = "FOR_ITER"

Spot = tuple[str, int, str, int]
"""A conditional jump: file, first line and name of the code it is in, offset there."""


class Branches:
    """Use as a context; while it is entered this thread is traced."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._all: dict[str, dict[Spot, int]] = {}
        for module in modules:
            file = str(module.__file__)
            code = compile(Path(file).read_text(), file, "exec", dont_inherit=True)
            self._all[file] = {spot: after for one in _codes(code) for spot, after in _jumps(one)}
        self._taken: set[tuple[Spot, bool]] = set()

    def __enter__(self) -> Branches:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def lines(self) -> Iterator[str]:
        """Yield a line per module, and one for all together."""
        total = most = 0
        for file, jumps in sorted(self._all.items()):
            taken = sum(spot[0] == file for spot, _ in self._taken)
            total, most = total + taken, most + 2 * len(jumps)
            yield f"  {'/'.join(Path(file).parts[-2:]):<28} {_share(taken, 2 * len(jumps))}"
        yield f"  {'all':<28} {_share(total, most)}"

    def _called(self, frame: FrameType, _event: str, _arg: object) -> Any:
        """Return what traces a frame. Source: sys.settrace, "opcode" events."""
        code = frame.f_code
        jumps = self._all.get(code.co_filename)
        if jumps is None:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before: Spot | None = None

        def step(frame: FrameType, event: str, _arg: object) -> Any:
            nonlocal before
            if event != "opcode":
                before = None
                return step
            if before is not None:
                self._taken.add((before, frame.f_lasti == jumps[before]))
            here = (code.co_filename, code.co_firstlineno, code.co_name, frame.f_lasti)
            before = here if here in jumps else None
            return step

        return step


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _jumps(code: CodeType) -> Iterator[tuple[Spot, int]]:
    """Yield each conditional jump with the offset that follows if it is not taken."""
    found = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    for at, one in enumerate(found[:-1]):
        if one.opname == _LOOP or ("JUMP" in one.opname and "_IF_" in one.opname):
            after = found[at + 1]
            if after.opname == "NOT_TAKEN" and at + 2 < len(found):
                after = found[at + 2]
            yield (code.co_filename, code.co_firstlineno, code.co_name, one.offset), after.offset


def _share(taken: int, most: int) -> str:
    return f"{100 * taken // max(most, 1):3d} % ({taken} of {most} branches)"
