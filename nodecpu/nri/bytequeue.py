"""Bytes of one stream in order of arrival, handed out in runs (pure; for the codecs).

What arrived in one piece is handed out without a copy; what arrived in many is copied once into one growing buffer.
So a message costs time and memory in proportion to its length, even if it comes byte by byte, and what was handed out
is not kept for long: at most as much as is stored.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, final

_EMPTY: Final = b""


@final
class ByteQueue:
    """A queue of bytes; ``len()`` is how many are stored."""

    __slots__ = ("_data", "_end", "_growing", "_start")

    def __init__(self) -> None:
        self._data: bytes | bytearray | memoryview = _EMPTY
        self._start = 0
        self._end = 0
        self._growing = False  # _data is a bytearray that nobody else looks at

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, data: bytes | memoryview) -> None:
        """Store ``data`` behind what is there; it must not change afterwards."""
        if self._start == self._end:
            self._data, self._start, self._end, self._growing = data, 0, len(data), False
            return
        if not self._growing:
            self._data = bytearray(memoryview(self._data)[self._start : self._end])
            self._start, self._growing = 0, True
        assert isinstance(self._data, bytearray)
        if self._start > len(self._data) // 2:  # what was handed out goes, even if the queue is never quite empty
            del self._data[: self._start]
            self._start = 0
        self._data += data
        self._end = len(self._data)

    def peek(self, form: Struct) -> tuple[int, ...]:
        """Return the first bytes as numbers laid out by ``form``; they stay stored, and ``form.size`` must be there."""
        return form.unpack_from(self._data, self._start)

    def take(self, count: int) -> memoryview:
        """Return the first ``count`` bytes (at most ``len()``) and forget them; the view stays valid."""
        start = self._start
        view = memoryview(self._data)[start : start + count]
        self._advance(count)
        self._growing = False  # a bytearray that is looked at cannot be resized
        return view

    def take_bytes(self, count: int) -> bytes:
        """Like ``take``, as bytes of their own."""
        start = self._start
        taken = bytes(memoryview(self._data)[start : start + count])
        self._advance(count)
        return taken

    def drop(self, count: int) -> int:
        """Forget the first ``count`` bytes, or all if there are fewer; return how many were forgotten."""
        dropped = min(count, self._end - self._start)
        self._advance(dropped)
        return dropped

    def _advance(self, count: int) -> None:
        self._start += count
        if self._start == self._end:  # let go of the memory
            self._data, self._start, self._end, self._growing = _EMPTY, 0, 0, False
