"""Small kernel files read below one root (thin shell).

One job: a file's content as text, number, CPU or node list, or None when it is missing, unreadable or odd (T1). Nothing
outside the root is opened by name, nothing is written, nothing waits. Opens are counted, so that a test can show what a
discovery costs.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.errors import HostError

_CHUNK: Final = 4096
"""sysfs hands out at most one page per read. Source: Linux fs/kernfs/file.c, kernfs_file_read_iter."""

_MAX_BYTES: Final = 1 << 18
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # non-blocking: a FIFO in a made-up tree must not hang us


class KernelFiles:
    """Reads files below ``root``; a context manager, since it holds one directory open meanwhile."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.opens = 0
        self._fd = -1
        self._sets: dict[str, CpuSet | None] = {}

    def __enter__(self) -> Self:
        try:
            self._fd = os.open(self.root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        except OSError as err:
            raise _unreadable(self.root, err) from err
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._fd)
        self._fd = -1

    def text(self, path: str) -> str | None:
        """Return the file's text without white space and NULs around it; None if it cannot be read."""
        try:
            return self._read(path)
        except OSError:
            return None

    def required(self, path: str) -> str:
        """Return the file's text; HostError, naming path and remedy, if it cannot be read."""
        try:
            return self._read(path)
        except OSError as err:
            raise _unreadable(self.root / path, err) from err

    def number(self, path: str) -> int | None:
        """Return the file's decimal number, negative ones included."""
        try:
            return int(self._bytes(path))
        except (OSError, ValueError):
            return None

    def cpus(self, path: str) -> CpuSet | None:
        """Return the CPUs of a list file; an empty file is the empty set."""
        text = self.text(path)
        if text is None:
            return None
        if text not in self._sets:  # the lists of a core and of its caches have the same text
            try:
                self._sets[text] = CpuSet.parse(text)
            except ValueError:
                self._sets[text] = None
        return self._sets[text]

    def cpu_mask(self, path: str) -> CpuSet | None:
        """Return the CPUs of a mask file such as ``00000000,0000ffff``, the older form of a list."""
        try:
            mask = int(self._read(path).replace(",", ""), 16)
        except (OSError, ValueError):
            return None
        return CpuSet.from_mask(mask) if mask >= 0 else None

    def nodes(self, path: str) -> NodeSet | None:
        """Return the NUMA nodes of a list file; an empty file is the empty set."""
        try:
            return NodeSet.parse(self._read(path))
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none if it cannot be read."""
        self.opens += 1
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY, dir_fd=self._fd)
        except OSError:
            return []
        try:
            return sorted(os.listdir(fd))  # noqa: PTH208 - by descriptor: the path is relative to the root
        except OSError:
            return []
        finally:
            os.close(fd)

    def link_name(self, path: str) -> str | None:
        """Return the last part of a symbolic link's target, which is how sysfs names drivers and buses."""
        self.opens += 1
        try:
            return os.readlink(path, dir_fd=self._fd).rpartition("/")[2]
        except OSError:
            return None

    def _read(self, path: str) -> str:
        return self._bytes(path).decode("ascii", "replace")

    def _bytes(self, path: str) -> bytes:
        self.opens += 1
        fd = os.open(path, _FLAGS, dir_fd=self._fd)
        try:
            data = os.read(fd, _CHUNK)
            if len(data) == _CHUNK:
                data = _read_on(fd, data)
        finally:
            os.close(fd)
        return data.strip(b" \t\r\n\0")


def _read_on(fd: int, data: bytes) -> bytes:
    parts = [data]
    size = len(data)
    while data and size < _MAX_BYTES:
        data = os.read(fd, _CHUNK)
        parts.append(data)
        size += len(data)
    return b"".join(parts)


def _unreadable(path: Path, err: OSError) -> HostError:
    return HostError(
        f"cannot read {path}: {err.strerror}",
        hint="the kernel's sysfs has to be mounted below the configured root (paths.root)",
    )
