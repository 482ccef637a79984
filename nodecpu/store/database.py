"""Opens SQLite files safely and brings their schema to this version (shell).

Directories belong to us alone (0700), files are opened without following links, a second daemon is refused by a lock. A
file that cannot be read, or that a newer version wrote, is left as it is: better not to start than to give CPUs twice.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nodecpu.errors import StateError


def private_directory(path: Path) -> None:
    """Make a directory that only we may enter, or check that it is one; raises StateError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode):
            raise StateError(f"{path} is not a directory", hint="remove it; it is made at the next start")
        if info.st_uid != os.geteuid():
            raise StateError(f"{path} belongs to user {info.st_uid}", hint=f"chown it to user {os.geteuid()}")
        if stat.S_IMODE(info.st_mode) & 0o077:
            path.chmod(0o700)
    except OSError as err:
        raise StateError(f"cannot use the directory {path}: {err.strerror}", hint="check its owner and mode") from err


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file while the body runs; raises StateError if another process holds it."""
    fd = _open_no_follow(path)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            raise StateError(
                f"{path} is held by another process", hint="another nodecpu daemon runs on this node: stop it first"
            ) from err
        yield
    finally:
        os.close(fd)


def open_database(path: Path, *, migrations: Sequence[str], synced: bool) -> sqlite3.Connection:
    """Return a connection in autocommit mode whose schema is this version's.

    ``migrations[n]`` brings version n to n + 1. ``synced``: every commit is on disk before it returns; otherwise it
    survives the process but not the machine. Raises StateError.
    """
    os.close(_open_no_follow(path))
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=32)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'OFF'}")
        connection.execute("PRAGMA trusted_schema=OFF")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(migrations):
            connection.close()
            raise StateError(
                f"{path} is of schema {version}, this version knows up to {len(migrations)}",
                hint="install the newer version again, or drain the node and move the file away",
            )
        for number, script in enumerate(migrations[version:], start=version + 1):
            connection.executescript(f"BEGIN; {script}; PRAGMA user_version={number}; COMMIT;")
    except sqlite3.Error as err:
        raise StateError(
            f"cannot use the database {path}: {err}",
            hint="nothing was changed; if the file is broken and no claim is live on this node, move it away",
        ) from err
    return connection


def _open_no_follow(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StateError(f"{path} is not a regular file", hint="remove it")
    except OSError as err:
        raise StateError(
            f"cannot open {path}: {err.strerror}", hint="it must be a regular file of ours, no link"
        ) from err
    return fd
