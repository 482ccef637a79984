"""What the daemon has to remember and cannot write: told, tried again, never a reason to end (shell; R1, C11).

Who is killed while the disk is full starts again while it is full. The books are read, containers pinned, prepared
claims answered; only what is new waits for the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from nodecpu.errors import NodeCpuError
from nodecpu.log import kv
from nodecpu.preflight.finding import Finding, failed
from nodecpu.store.claims import ClaimStore, Disk, Job

_LOG = logging.getLogger(__name__)


class Remembering:
    """The claims database and the claims' files, as far as they are behind the books.

    ``restore`` has the files written that are missing; the future tells whether that was done.
    """

    def __init__(self, store: ClaimStore, disk: Disk, restore: Callable[[], asyncio.Future[None]]) -> None:
        self._store = store
        self._disk = disk
        self._restore = restore
        self._is_files_due = False

    async def restore_files(self) -> None:
        """Have claims' files written that are missing; where that fails containers of their claims cannot start."""
        try:
            await self._restore()
        except NodeCpuError as err:
            kv(_LOG, logging.ERROR, "claims' files cannot be restored, it is tried again", err=err)
            self._is_files_due = True

    def try_again(self) -> None:
        """Have what failed tried again on the disk thread; what fails again is not told again."""
        if self._store.trouble is not None:
            self._disk.submit(Job(after=self._store.pay))
        if self._is_files_due:
            self._restore().add_done_callback(self._restored)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What is wrong with the claims database, if anything is."""
        trouble = self._store.trouble
        if trouble is None:
            return ()
        return (failed("state", f"no new claim is served: {trouble.message}", trouble.hint),)

    @property
    def words(self) -> str:
        """The beginning of a status line; empty if all is well."""
        return "" if self._store.trouble is None else "state cannot be written, see nodecpu status; "

    def _restored(self, done: asyncio.Future[None]) -> None:
        self._is_files_due = done.cancelled() or done.exception() is not None
