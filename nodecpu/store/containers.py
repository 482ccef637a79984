"""The containers database (shell): grants, links and pods as last seen, on a file system that a reboot empties.

Committed inline and never synced: a commit costs microseconds and survives kill -9, which is all it has to survive. A
boot id that is not today's means that the file outlived its containers: it is emptied (T7).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from nodecpu.failpoints import reach
from nodecpu.ids import PodUID
from nodecpu.policy.facts import PodSpec
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.plan import Change
from nodecpu.store.database import copy_aside, failure, open_rebuildable
from nodecpu.store.rows import readable, to_row

MIGRATIONS = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE containers (id TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE pods (uid TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID",
)

_LOST = "lost"
"""Key of the meta table: containers may run that the books lost, and not all were judged since."""


class ContainerStore:
    """Container grants and pods by id. Every method raises StateError if the file fails.

    ``is_rebuilt`` tells that something was lost because it could not be read, or that there was no file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db, copy = open_rebuildable(path, migrations=MIGRATIONS, synced=False)
        self.is_rebuilt = copy is not None

    def load(self, boot_id: str) -> tuple[tuple[ContainerGrant, ...], tuple[PodSpec, ...]]:
        """Return all grants and pods of this boot; what is left of another boot is dropped.

        That something was lost is remembered until ``rebuilt``, whatever becomes of this process.
        """
        with _failing(self._path):
            facts = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
            if facts.get("boot_id") != boot_id:
                self.is_rebuilt = self.is_rebuilt or "boot_id" not in facts
                self._begin_anew(boot_id)
            else:
                self.is_rebuilt = self.is_rebuilt or _LOST in facts
            containers = self._db.execute("SELECT id, row FROM containers ORDER BY id").fetchall()
            pods = self._db.execute("SELECT uid, row FROM pods ORDER BY uid").fetchall()
            grants = readable(ContainerGrant, "container", containers)
            specs = readable(PodSpec, "pod", pods)
            if failure := grants.failure or specs.failure:
                copy_aside(self._db, self._path, failure)
                self._db.execute("BEGIN")
                self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, 'yes')", (_LOST,))
                self._db.executemany("DELETE FROM containers WHERE id = ?", [(key,) for key in grants.bad])
                self._db.executemany("DELETE FROM pods WHERE uid = ?", [(key,) for key in specs.bad])
                self._db.execute("COMMIT")
                self.is_rebuilt = True
        return grants.good, specs.good

    def rebuilt(self) -> None:
        """Forget that something was lost: all that runs was judged."""
        with _failing(self._path):
            self._db.execute("DELETE FROM meta WHERE key = ?", (_LOST,))
        self.is_rebuilt = False

    def _begin_anew(self, boot_id: str) -> None:
        """Drop what another boot left; nothing is lost by that."""
        facts = [("boot_id", boot_id)] + ([(_LOST, "yes")] if self.is_rebuilt else [])
        self._db.execute("BEGIN")
        for table in ("containers", "pods", "meta"):
            self._db.execute(f"DELETE FROM {table}")
        self._db.executemany("INSERT INTO meta VALUES (?, ?)", facts)
        self._db.execute("COMMIT")

    def commit(self, change: Change) -> None:
        """Write the containers of a change, all or nothing; without any nothing is written."""
        if not change.put_containers and not change.drop_containers:
            return
        puts = [(grant.id, to_row(grant)) for grant in change.put_containers]
        drops = [(container_id,) for container_id in change.drop_containers]
        reach("containers-commit")
        with _failing(self._path):
            if len(puts) == 1 and not drops:
                self._db.execute("INSERT OR REPLACE INTO containers VALUES (?, ?)", puts[0])
            elif len(drops) == 1 and not puts:
                self._db.execute("DELETE FROM containers WHERE id = ?", drops[0])
            else:
                self._all_or_nothing("DELETE FROM containers WHERE id = ?", drops, "containers", puts)
        reach("containers-committed")

    def commit_pods(self, puts: Iterable[PodSpec], drops: Iterable[PodUID]) -> None:
        """Write pods, all or nothing."""
        rows = [(pod.uid, to_row(pod)) for pod in puts]
        reach("pods-commit")
        with _failing(self._path):
            self._all_or_nothing("DELETE FROM pods WHERE uid = ?", [(uid,) for uid in drops], "pods", rows)
        reach("pods-committed")

    def _all_or_nothing(
        self, drop: str, drops: Sequence[tuple[str]], table: str, rows: Sequence[tuple[str, bytes]]
    ) -> None:
        self._db.execute("BEGIN")
        try:
            self._db.executemany(drop, drops)
            self._db.executemany(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.Error:
            if self._db.in_transaction:  # SQLite ends it itself where the file system is full
                self._db.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the file; what was committed stays."""
        self._db.close()


class _failing:  # noqa: N801 - reads as a word in a with statement
    """Translate SQLite's errors."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, err: BaseException | None, trace: object) -> None:
        if isinstance(err, sqlite3.Error):
            raise failure(self._path, err) from err
