"""Opens SQLite files safely and brings their schema to this version (shell).

Directories belong to us alone (0700), files are opened without following links, a second daemon is refused by a lock. A
file that a newer version wrote is left as it is: better not to start than to give CPUs twice. A file whose content
cannot be read is set aside as a copy, and the books are rebuilt from what else tells of them (R2). A disk that takes
nothing is neither: what is there may well be read, and DiskError tells so.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from nodecpu.errors import StateError
from nodecpu.log import kv

_LOG = logging.getLogger(__name__)

_UNREADABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT)
_UNKNOWN_FORMAT = "unsupported file format"
"""What SQLite says of a damaged schema format number; it has no code of its own. Source: sqlite3 prepare.c."""

_REFUSED = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
_REFUSED_BY_KERNEL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
_PRIMARY = 0xFF
"""The part of an extended result code that tells the kind of error. Source: sqlite.org/rescode.html."""

_NO_ROOM_BYTES = 64 << 10
"""With less than this a database cannot even be opened: its shared memory file takes 32 KiB."""

LINK_HINT = "name the directory that it leads to in [paths], or put a directory there"
_SET_ASIDE_HINT = "restart the daemon: a start sets it aside"
_MOST_COPIES = 9
_CACHE_KIB = 256
"""Pages that a connection keeps; all were eight times as much. What is read again comes from the kernel's cache, and a
commit takes no longer that could be measured.
"""


def private_directory(path: Path) -> None:
    """Make a directory that only we may enter, or check that it is one; raises StateError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            raise StateError(
                f"{path} is a symbolic link, which is not followed",
                hint=LINK_HINT,
            )
        if not stat.S_ISDIR(info.st_mode):
            raise StateError(f"{path} is not a directory", hint="remove it; it is made at the next start")
        if info.st_uid != os.geteuid():
            raise StateError(f"{path} belongs to user {info.st_uid}", hint=f"chown it to user {os.geteuid()}")
        if stat.S_IMODE(info.st_mode) & 0o077:
            path.chmod(0o700)
    except OSError as err:
        message = f"cannot use the directory {path}: {err.strerror}{_state_of(_nearest(path))}"
        raise StateError(message, hint=_DIRECTORY_HINTS.get(err.errno or 0, "check its owner and mode")) from err


_ELSEWHERE = "see [paths] in the configuration: it has to be a directory that can be made there"
_DIRECTORY_HINTS = {
    errno.ENOENT: _ELSEWHERE,  # as /proc answers
    errno.ENOTDIR: _ELSEWHERE,
    errno.EEXIST: "remove what is there; a directory is made at the next start",
    errno.ELOOP: "see [paths] in the configuration: a link there leads nowhere",
    errno.EROFS: "mount its file system read-write, or see [paths] in the configuration",
    errno.ENOSPC: "make room on its file system",
}


def _nearest(path: Path) -> Path:
    """Return the path or the nearest directory above it that is there, as far as we may see."""
    for one in (path, *path.parents):
        with suppress(PermissionError):
            if one.exists():
                return one
    return Path(path.anchor)


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


class UnreadableError(StateError):
    """The content of a database file cannot be read, or is not ours."""


class DiskError(StateError):
    """The file system takes nothing: full, read-only or failing. What is there may be readable all the same."""


def failure(path: Path, err: sqlite3.Error) -> StateError:
    """Return the error to raise for one of SQLite's: DiskError where the file system is at fault."""
    kind = DiskError if kind_of(err) in _REFUSED else StateError
    return kind(f"the database {path} failed: {err}{_state_of(path.parent)}", hint=DISK_HINT)


def kind_of(err: sqlite3.Error) -> int:
    """Return the primary result code of an error; 0 for those of the module itself, which have none."""
    code = getattr(err, "sqlite_errorcode", None)
    return code & _PRIMARY if isinstance(code, int) else 0


DISK_HINT = "check the file system: full, read-only? it is tried again by itself"


def _state_of(directory: Path) -> str:
    """Return what is wrong with a file system, as the end of a sentence; empty if that does not show."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return ""
    if found.f_flag & os.ST_RDONLY:
        return f"; the file system of {directory} is read-only"
    if found.f_blocks and found.f_bfree * found.f_frsize < _NO_ROOM_BYTES:
        return f"; the file system of {directory} is full"
    return f"; the file system of {directory} has no inodes left" if found.f_files and not found.f_ffree else ""


def open_rebuildable(path: Path, *, migrations: Sequence[str], synced: bool) -> tuple[sqlite3.Connection, Path | None]:
    """Return a connection as ``open_database`` does, and the copy if what was there had to be set aside.

    Then the database is empty. Raises StateError.
    """
    try:
        return open_database(path, migrations=migrations, synced=synced), None
    except UnreadableError as err:
        copy = _free_name(path)
        try:
            for end in ("", "-wal", "-shm"):
                part = path.with_name(path.name + end)
                if part.exists():
                    part.rename(copy.with_name(copy.name + end))
        except OSError as second:
            kind = DiskError if second.errno in _REFUSED_BY_KERNEL else StateError
            raise kind(f"cannot set {path} aside: {second.strerror}", hint="move it away by hand") from second
        _tell_set_aside(path, copy, err)
        return open_database(path, migrations=migrations, synced=synced), copy


def copy_aside(connection: sqlite3.Connection, path: Path, err: StateError) -> Path:
    """Return a copy of a database some rows of which cannot be read; raises sqlite3.Error."""
    copy = _free_name(path)
    copy.unlink(missing_ok=True)
    connection.execute("VACUUM INTO ?", (str(copy),))
    _tell_set_aside(path, copy, err)
    return copy


def _tell_set_aside(path: Path, copy: Path, err: StateError) -> None:
    kv(
        _LOG,
        logging.ERROR,
        "database cannot be read, the books are rebuilt from what else tells of them",
        path=path,
        err=err.message,
        hint=f"keep the copy {copy} for a report, delete it when it is not needed",
    )


def _free_name(path: Path) -> Path:
    """Return a name for a copy that is not taken; the last one is taken again and again."""
    names = [path.with_name(f"{path.name}.unreadable-{number}") for number in range(1, _MOST_COPIES + 1)]
    return next((name for name in names if not name.exists()), names[-1])


def open_database(path: Path, *, migrations: Sequence[str], synced: bool) -> sqlite3.Connection:
    """Return a connection in autocommit mode whose schema is this version's.

    ``migrations[n]`` brings version n to n + 1. ``synced``: every commit is on disk before it returns; otherwise it
    survives the process but not the machine. Raises StateError; UnreadableError if only the content is at fault.
    """
    os.close(_open_no_follow(path))
    connection = connected(path)
    try:
        _set_up(connection, path, migrations, synced=synced)
    except sqlite3.Error as err:
        connection.close()
        if kind_of(err) in _UNREADABLE or str(err) == _UNKNOWN_FORMAT:
            raise UnreadableError(f"cannot use the database {path}: {err}", hint=_SET_ASIDE_HINT) from err
        raise failure(path, err) from err
    except UnicodeDecodeError as err:  # of a message that quotes what is damaged
        connection.close()
        raise UnreadableError(f"cannot use the database {path}: its schema is damaged", hint=_SET_ASIDE_HINT) from err
    except StateError:
        connection.close()
        raise
    return connection


def connected(path: Path | str) -> sqlite3.Connection:
    """Return a connection in autocommit mode, for one thread at a time; nothing is read yet."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=32)
    connection.text_factory = lambda data: data.decode("utf-8", "replace")  # a spoilt key must not hide good rows
    return connection


def _set_up(connection: sqlite3.Connection, path: Path, migrations: Sequence[str], *, synced: bool) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if synced else 'OFF'}")
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute(f"PRAGMA cache_size={-_CACHE_KIB}")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise StateError(
            f"{path} is of schema {version}, this version knows up to {len(migrations)}",
            hint="install the newer version again, or drain the node and move the file away",
        )
    tables = _tables(connection)
    if version < 0 or not _tables_of(migrations[:version]).items() <= tables.items() or (tables and not version):
        raise UnreadableError(f"the database {path} is not ours: it holds {', '.join(sorted(tables)) or 'nothing'}")
    (sound,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if sound != "ok":
        raise UnreadableError(f"the database {path} is damaged: {str(sound)[:200]}")
    for number, script in enumerate(migrations[version:], start=version + 1):
        connection.executescript(f"BEGIN; {script}; PRAGMA user_version={number}; COMMIT;")


def _tables_of(migrations: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the tables that migrations make, with the names of their columns."""
    with closing(connected(":memory:")) as made:
        for script in migrations:
            made.executescript(script)
        return _tables(made)


def _tables(connection: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Return the tables of a database, with the names of their columns."""
    names = [str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    columns = {name: connection.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall() for name in names}
    return {name: tuple(str(column) for (column,) in found) for name, found in columns.items()}


def open_to_read(path: Path) -> int:
    """Return a descriptor of a file of ours that is there already; raises StateError."""
    return _open_no_follow(path, os.O_RDONLY)


def _open_no_follow(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int:
    try:
        fd = _opened(path, flags)
        found = os.fstat(fd)
    except OSError as err:
        message = f"cannot open {path}: {err.strerror}"
        if err.errno in _REFUSED_BY_KERNEL:
            raise DiskError(f"{message}{_state_of(path.parent)}", hint=DISK_HINT) from err
        raise StateError(message, hint=_OPEN_HINTS.get(err.errno or 0, _OPEN_HINT)) from err
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid != os.geteuid():
        os.close(fd)
        raise StateError(
            f"{path} is not a regular file of ours alone (user {found.st_uid}, {found.st_nlink} links)",
            hint="find out who made it, then remove it",
        )
    return fd


def _opened(path: Path, flags: int) -> int:
    """Return a descriptor; on a read-only file system one that can only be read."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as err:
        if err.errno != errno.EROFS or flags == os.O_RDONLY or not path.exists():
            raise
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


_OPEN_HINT = "it must be a regular file of ours, no link"
_OPEN_HINTS = {
    errno.EACCES: "run the daemon as root; is a security module in the way?",
    errno.EMFILE: "raise LimitNOFILE= of the unit",
    errno.ENOENT: "its directory has to be there",
}
