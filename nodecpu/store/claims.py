"""The claims database and the one thread that may wait for a disk (shell).

A job is: something before the commit, rows to put and drop, something after it. Jobs that wait together share one
commit. If the part before fails, nothing is written; if the part after fails, the rows put are taken back: whoever
waits gets the error, and nothing has happened.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nodecpu.errors import HostError, NodeCpuError, StateError
from nodecpu.failpoints import reach
from nodecpu.ids import ClaimUID
from nodecpu.policy.grants import ClaimGrant
from nodecpu.store.database import copy_aside, open_rebuildable
from nodecpu.store.rows import readable, to_row

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

    ``undo`` are the rows that stood where ``puts`` go, for the case that the part after fails.
    """

    puts: tuple[ClaimGrant, ...] = ()
    drops: tuple[ClaimUID, ...] = ()
    before: Callable[[], None] | None = None
    after: Callable[[], None] | None = None
    undo: tuple[ClaimGrant, ...] = ()


@dataclass(frozen=True, slots=True)
class _Queued:
    job: Job
    done: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop


class ClaimStore:
    """Claim grants by UID; loaded before anything else starts, written only by the disk thread.

    ``is_rebuilt`` tells that claims may have been lost because they could not be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db, copy = open_rebuildable(path, migrations=MIGRATIONS, synced=True)
        self.is_rebuilt = copy is not None

    def load(self) -> tuple[ClaimGrant, ...]:
        """Return all claims that can be read; raises StateError."""
        try:
            found = readable(
                ClaimGrant, "claim", self._db.execute("SELECT uid, row FROM claims ORDER BY uid").fetchall()
            )
            if found.failure is not None:
                copy_aside(self._db, self._path, found.failure)
                self._db.executemany("DELETE FROM claims WHERE uid = ?", [(uid,) for uid in found.bad])
                self._db.execute("DELETE FROM meta WHERE key = ?", (ADOPTED,))
                self.is_rebuilt = True
        except sqlite3.Error as err:
            raise self._failed(err) from err
        return found.good

    def meta(self, key: str) -> str | None:
        """Return a fact about the file, such as the fingerprint of the machine it was written on."""
        try:
            found = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as err:
            raise self._failed(err) from err
        return None if found is None else str(found[0])

    def set_meta(self, key: str, value: str) -> None:
        """Store a fact about the file."""
        try:
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        except sqlite3.Error as err:
            raise self._failed(err) from err

    def commit(self, jobs: list[Job]) -> None:
        """Write the rows of several jobs in one synced commit; raises StateError and leaves the file as it was."""
        puts = [(claim.uid, to_row(claim)) for job in jobs for claim in job.puts]
        drops = [(uid,) for job in jobs for uid in job.drops]
        reach("claims-commit")
        try:
            self._db.execute("BEGIN")
            try:
                self._db.executemany("DELETE FROM claims WHERE uid = ?", drops)
                self._db.executemany("INSERT OR REPLACE INTO claims VALUES (?, ?)", puts)
                reach("claims-written")
                self._db.execute("COMMIT")
            except sqlite3.Error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as err:
            raise self._failed(err) from err
        reach("claims-committed")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _failed(self, err: sqlite3.Error) -> StateError:
        return StateError(f"the database {self._path} failed: {err}", hint="check the file system: full, read-only?")


class Disk:
    """The disk thread. What ``submit`` returns is awaited without holding up the event loop."""

    def __init__(self, store: ClaimStore) -> None:
        self._store = store
        self._queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

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
        while (first := self._queue.get()) is not None:
            batch = [first]
            ending = False
            while not self._queue.empty():
                further = self._queue.get()
                if further is None:
                    ending = True
                    break
                batch.append(further)
            self._run_batch(batch)
            if ending:
                return

    def _run_batch(self, batch: list[_Queued]) -> None:
        ready = [one for one in batch if self._step(one, one.job.before)]
        try:
            if ready:
                self._store.commit([one.job for one in ready])
        except StateError as err:
            for one in ready:
                _tell(one, err)
            return
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
            try:
                if undo is not None:
                    self._store.commit([Job(puts=undo.undo, drops=tuple(claim.uid for claim in undo.puts))])
            except StateError as second:
                told = second
            _tell(one, told)
            return False
        return True


def _tell(one: _Queued, err: NodeCpuError | None) -> None:
    def deliver() -> None:
        if one.done.done():
            return
        if err is None:
            one.done.set_result(None)
        else:
            one.done.set_exception(err)

    one.loop.call_soon_threadsafe(deliver)
