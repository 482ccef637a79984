"""Reads a database past a file system that takes nothing (shell): a copy of it in memory.

SQLite makes files beside a database even to read it, so on a file system that is full or read-only it may not open one
at all. The file and its write-ahead log are copied to another file system, opened there, and taken into memory: all
that was ever committed is in these two.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nodecpu.errors import StateError
from nodecpu.store.database import connected, open_database, open_to_read


def read_elsewhere(path: Path, spare: Path, *, migrations: Sequence[str]) -> sqlite3.Connection:
    """Return a database in memory with the content of a file, empty where there is none; ``spare`` takes the copy.

    Nothing is changed beside ``path``. Raises StateError; UnreadableError if the content is at fault.
    """
    try:
        with tempfile.TemporaryDirectory(dir=spare, prefix="reading-") as directory:
            copy = Path(directory) / path.name
            for end in ("", "-wal"):
                _copy(path.with_name(path.name + end), copy.with_name(copy.name + end))
            return in_memory(open_database(copy, migrations=migrations, synced=False))
    except (OSError, sqlite3.Error) as err:
        raise StateError(
            f"the database {path} can neither be opened nor copied to {spare}: {err}",
            hint="make room on both file systems, and mount them read-write",
        ) from err


def in_memory(connection: sqlite3.Connection) -> sqlite3.Connection:
    """Return what a connection sees, in memory, and close it; raises sqlite3.Error and leaves it open."""
    memory = connected(":memory:")
    try:
        connection.backup(memory)
    except sqlite3.Error:
        memory.close()
        raise
    connection.close()
    return memory


def _copy(source: Path, target: Path) -> None:
    if not os.path.lexists(source):
        return
    with os.fdopen(open_to_read(source), "rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written)
