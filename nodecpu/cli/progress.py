"""How far long work has come: one line on a terminal, written over again and again; nothing anywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self, TextIO

_WIDTH: Final = 30
_ERASED: Final = "\r\x1b[K"


class Progress:
    """A line that tells what is done at the moment, with a bar where it is known how much there is of it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_shown = stream.isatty()
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the line away."""
        if self._last:
            self._stream.write(_ERASED)
            self._stream.flush()

    def show(self, what: str, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` are done; a total of 0 is not known. Nothing is written twice."""
        filled = _WIDTH * done // total if total else 0
        bar = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {100 * done // total:3}% " if total else ""
        if self._is_shown and (line := f"{bar}{what}") != self._last:
            self._last = line
            self._stream.write(f"{_ERASED}{line}")
            self._stream.flush()
