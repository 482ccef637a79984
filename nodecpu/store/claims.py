"""The claims database and the one thread that may wait for a disk (shell).

A job is: something before the commit, rows to put and drop, something after it. Jobs that wait together share one
commit. If the part before fails, nothing is written; if the part after fails, the rows put are taken back: whoever
waits gets the error, and nothing has happened. Jobs without rows need no commit, so they do not fail with the others;
they are done whole in their turn: what a later job removes is not written again by an earlier one.

On a file system that takes nothing the store is read all the same, past it if need be. What a start writes is owed
then, and so are rows that cannot be taken back or that may go later: each commit carries what is owed, or fails. So
nothing new is on disk before what it builds upon.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nodecpu.errors import HostError, NodeCpuError, StateError
from nodecpu.failpoints import reach
from nodecpu.ids import ClaimUID
from nodecpu.log import kv
from nodecpu.policy.grants import ClaimGrant
from nodecpu.store.database import (
    DiskError,
    UnreadableError,
    copy_aside,
    failure,
    kind_of,
    open_database,
    open_rebuildable,
)
from nodecpu.store.elsewhere import in_memory, read_elsewhere
from nodecpu.store.rows import Rows, readable, to_row

_LOG = logging.getLogger(__name__)

MIGRATIONS = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE claims (uid TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID",
)

ADOPTED = "adopted"
"""The fact that claims which the books did not know were looked for and judged."""

ADOPTING = "adopting"
"""The fact that such claims are being looked for."""

COUNTED = "counted"
"""Key of the meta table: ``yes`` while the scheduler counts claims as CPU requests of their pods (G13)."""

NODE_UID = "node_uid"
"""The UID of the Node object under which the claims were prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the disk thread does in one go. The two callables run on that thread.

    ``undo`` are the rows that stood where ``puts`` go, for the case that the part after fails. ``owed``: the rows
    need no commit of their own, they go with the next one. ``settles``: claims of which no row may be
    owed any more when the job is done.
    """

    puts: tuple[ClaimGrant, ...] = ()
    drops: tuple[ClaimUID, ...] = ()
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    undo: tuple[ClaimGrant, ...] = ()
    owed: bool = False
    settles: tuple[ClaimUID, ...] = ()

    @property
    def has_rows(self) -> bool:
        """Return whether a commit may be due before the part after."""
        return bool(self.puts or self.drops or self.settles)

    @property
    def needs_commit(self) -> bool:
        """Return whether there is something to commit now."""
        return bool(self.puts or self.drops) and not self.owed


@dataclass(frozen=True, slots=True)
class _Queued:
    job: Job
    done: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop


class ClaimStore:
    """Claim grants by UID; loaded before anything else starts, written only by the disk thread.

    ``is_rebuilt`` tells that claims may have been lost because they could not be read, ``trouble`` why nothing can be
    written now; None: the last commit succeeded.
    """

    def __init__(self, path: Path, *, spare: Path | None = None) -> None:
        """``spare``: a directory of another file system, over which to read if this one takes nothing.

        Raises StateError; without ``spare`` DiskError too.
        """
        self.trouble: StateError | None = None
        self.is_rebuilt = False
        self._path = path
        self._owed_facts: dict[str, str | None] = {}
        self._owed_rows: dict[ClaimUID, bytes | None] = {}
        self._opens_anew = False  # the connection cannot write, whatever becomes of the file system
        try:
            self._db, copy = open_rebuildable(path, migrations=MIGRATIONS, synced=True)
            self.is_rebuilt = copy is not None
        except DiskError as err:
            if spare is None:
                raise
            self._db = self._read_past(spare)
            self._hurt(err)

    def load(self) -> tuple[ClaimGrant, ...]:
        """Return all claims that can be read; raises StateError."""
        try:
            found = readable(
                ClaimGrant, "claim", self._db.execute("SELECT uid, row FROM claims ORDER BY uid").fetchall()
            )
        except sqlite3.Error as err:
            raise failure(self._path, err) from err
        if found.failure is not None:
            self.is_rebuilt = True
            self._owed_facts[ADOPTED] = None
            self._drop_unreadable(found, found.failure)
            self.pay()
        return found.good

    def meta(self, key: str) -> str | None:
        """Return a fact about the file, such as the fingerprint of the machine it was written on."""
        if key in self._owed_facts:
            return self._owed_facts[key]
        try:
            found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as err:
            raise failure(self._path, err) from err
        return None if found is None else str(found[0])

    def set_meta(self, key: str, value: str) -> None:
        """Store a fact about the file; owed if that cannot be written now. What is stored is not written again."""
        if self.meta(key) != value:
            self._owed_facts[key] = value
            self.pay()

    def owe(self, puts: Iterable[ClaimGrant] = (), drops: Iterable[ClaimUID] = ()) -> None:
        """Write rows, now if that can be, else with the next commit that succeeds."""
        self._note(puts, drops)
        self.pay()

    def pay(self) -> None:
        """Try to write what is owed; while there is trouble, whether anything can be written. Raises nothing."""
        try:
            if self._owed_facts or self._owed_rows or self.trouble is not None:
                self._write((), ())
        except StateError as err:
            self._hurt(err)

    def commit(self, jobs: list[Job]) -> None:
        """Write the rows of several jobs in one synced commit; raises StateError and leaves the file as it was."""
        for job in jobs:
            if job.owed:
                self._note(job.puts, job.drops)
        due = [job for job in jobs if job.needs_commit]
        puts = [(claim.uid, to_row(claim)) for job in due for claim in job.puts]
        drops = [(uid,) for job in due for uid in job.drops]
        reach("claims-commit")
        if puts or drops or any(map(self.is_waiting, jobs)):
            try:
                self._write(puts, drops)
            except StateError as err:
                self._hurt(err)
                raise
        reach("claims-committed")

    def is_waiting(self, job: Job) -> bool:
        """Return whether a job has to wait for a commit: for rows of its own, or for owed ones."""
        return job.needs_commit or not self._owed_rows.keys().isdisjoint(job.settles)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _note(self, puts: Iterable[ClaimGrant], drops: Iterable[ClaimUID]) -> None:
        """Take rows for owed; what is put and dropped is put."""
        self._owed_rows |= dict.fromkeys(drops)
        self._owed_rows |= {claim.uid: to_row(claim) for claim in puts}

    def _write(self, puts: Iterable[tuple[ClaimUID, bytes]], drops: Iterable[tuple[ClaimUID]]) -> None:
        """Write what is owed and then these rows, all or nothing; raises StateError."""
        if self._opens_anew:
            self._open_anew()
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._write_owed()
                self._db.executemany("DELETE FROM claims WHERE uid = ?", drops)
                self._db.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?)", puts)
                reach("claims-written")
                self._db.execute("COMMIT")
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as err:
            # Opened on a read-only file system, a file stays read-only for this connection.
            self._opens_anew = self._opens_anew or kind_of(err) == sqlite3.SQLITE_READONLY
            raise failure(self._path, err) from err
        self._owed_facts.clear()
        self._owed_rows.clear()
        self._opens_anew = False
        if self.trouble is not None:
            self.trouble = None
            kv(_LOG, logging.INFO, "state can be written again", path=self._path)

    def _write_owed(self) -> None:
        facts = dict(self._owed_facts)
        if self.trouble is not None:
            # A row that differs from what is there: writing nothing would succeed on any file system.
            (times,) = self._db.execute("SELECT coalesce(max(value), 0) + 1 FROM meta WHERE key = 'mended'").fetchone()
            facts["mended"] = str(times)
        gone = [(key,) for key, value in facts.items() if value is None]
        self._db.executemany("DELETE FROM meta WHERE key = ?", gone)
        kept = [(key, value) for key, value in facts.items() if value is not None]
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", kept)
        dropped = [(uid,) for uid, row in self._owed_rows.items() if row is None]
        self._db.executemany("DELETE FROM claims WHERE uid = ?", dropped)
        rows = [(uid, row) for uid, row in self._owed_rows.items() if row is not None]
        self._db.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?)", rows)

    def _read_past(self, spare: Path) -> sqlite3.Connection:
        """Return what the file holds, in memory: the file itself is opened again when something is to be written."""
        self._opens_anew = True
        try:
            return read_elsewhere(self._path, spare, migrations=MIGRATIONS)
        except UnreadableError as err:
            kv(_LOG, logging.ERROR, "database cannot be read, the books are rebuilt", path=self._path, err=err.message)
            self.is_rebuilt = True
            return read_elsewhere(spare / "none", spare, migrations=MIGRATIONS)

    def _open_anew(self) -> None:
        """Open the file again; one whose content could not be read becomes a copy. Raises StateError.

        Not beside the connection that was: SQLite has all of a process share what the first found to be read-only.
        """
        try:
            self._db = in_memory(self._db)
        except sqlite3.Error as err:
            raise failure(self._path, err) from err
        before = self._db
        if self.is_rebuilt:
            self._db, _ = open_rebuildable(self._path, migrations=MIGRATIONS, synced=True)
        else:
            self._db = open_database(self._path, migrations=MIGRATIONS, synced=True)
        before.close()

    def _drop_unreadable(self, found: Rows[ClaimGrant], why: StateError) -> None:
        """Have rows that cannot be read dropped once there is a copy; else they are found again at the next start."""
        try:
            copy_aside(self._db, self._path, why)
            self._owed_rows |= dict.fromkeys(map(ClaimUID, found.bad))
        except sqlite3.Error as err:
            self._hurt(failure(self._path, err))
        except OSError as err:
            self._hurt(DiskError(f"no copy of {self._path} can be made: {err.strerror}", hint=why.hint))

    def _hurt(self, err: StateError) -> None:
        """Take note that nothing can be written, and tell it once."""
        if self.trouble is None:
            kv(
                _LOG,
                logging.ERROR,
                "state cannot be written: no new claim is served, those that are prepared are",
                err=err.message,
                hint=err.hint,
            )
        self.trouble = err


class Disk:
    """The disk thread. What ``submit`` returns is awaited without holding up the event loop.

    An error of a kind that no job is to raise is a fault of this program: nothing is done from then on, who waits is
    answered with it, and ``watch`` raises it.
    """

    def __init__(self, store: ClaimStore) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._end: concurrent.futures.Future[None] = concurrent.futures.Future()

    def start(self) -> None:
        """Start the thread."""
        self._end.set_running_or_notify_cancel()  # from now on it is the thread's alone to set
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs and does what it is told."""
        return self._thread.is_alive() and not self._end.done()

    async def watch(self) -> None:
        """Return when the thread has been stopped; raises what it failed by, as soon as that happens."""
        await asyncio.wrap_future(self._end)

    def submit(self, job: Job) -> asyncio.Future[None]:
        """Queue a job, in order; the future tells when it is on disk, or why not."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.put(_Queued(job, done, loop))
        return done

    async def stop(self) -> None:
        """Finish what is queued and end the thread."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        for batch in self._batches():
            if self._end.done():
                _tell_all(batch, self._end.exception())
                continue
            try:
                self._run_batch(batch)
            except Exception as err:  # noqa: BLE001 - whatever it is: whoever waits must not wait for ever
                kv(_LOG, logging.ERROR, "the disk thread failed, the daemon ends", err=f"{type(err).__name__}: {err}")
                self._end.set_exception(err)
                _tell_all(batch, err)
        if not self._end.done():
            self._end.set_result(None)

    def _batches(self) -> Iterator[list[_Queued]]:
        """Yield what waits together, until told to stop."""
        while (first := self._queue.get()) is not None:
            batch = [first]
            while not self._queue.empty():
                further = self._queue.get()
                if further is None:
                    yield batch
                    return
                batch.append(further)
            yield batch

    def _run_batch(self, batch: list[_Queued]) -> None:
        ready = []
        for one in batch:
            if not self._step(one, one.job.before):
                continue
            if one.job.has_rows:
                ready.append(one)
            elif self._step(one, one.job.after):
                _tell(one, None)
        try:
            if ready:
                self._store.commit([one.job for one in ready])
        except StateError as err:
            waiting = [one for one in ready if self._store.is_waiting(one.job)]
            _tell_all(waiting, err)
            ready = [one for one in ready if one not in waiting]
        for one in ready:
            if self._step(one, one.job.after, undo=one.job):
                _tell(one, None)

    def _step(self, one: _Queued, action: Callable[[], None] | None, undo: Job | None = None) -> bool:
        """Run one side of a job; on failure take the job's rows back, tell who waits and return False."""
        if action is None:
            return True
        try:
            action()
        except (NodeCpuError, OSError) as err:
            told = err if isinstance(err, NodeCpuError) else HostError(f"writing failed: {err}", hint="check the disk")
            if undo is not None:
                self._store.owe(puts=undo.undo, drops=(claim.uid for claim in undo.puts))
                told = self._store.trouble or told
            _tell(one, told)
            return False
        return True


def _tell_all(batch: Iterable[_Queued], err: BaseException | None) -> None:
    """Answer everybody who has no answer yet."""
    for one in batch:
        _tell(one, err)


def _tell(one: _Queued, err: BaseException | None) -> None:
    def deliver() -> None:
        if one.done.done():
            return
        if err is None:
            one.done.set_result(None)
        else:
            one.done.set_exception(err)

    one.loop.call_soon_threadsafe(deliver)
