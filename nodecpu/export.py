"""Files in which containers read what they got (shell; X1).

One small file per container, on a file system in memory, mounted read-only into the container. A mount stays with the
file it was made of, so a file is rewritten in place, never replaced. Only files that are there are rewritten: a
container that was created without one never gets one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from pathlib import Path
from typing import Final

from nodecpu.books import Books
from nodecpu.errors import HostError
from nodecpu.ids import ContainerID
from nodecpu.log import kv
from nodecpu.policy.export import export_text, is_exported
from nodecpu.policy.plan import Mount

_LOG = logging.getLogger(__name__)

IN_CONTAINER: Final = "/.nodecpu/resources"
"""Where containers find their file."""

_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", re.ASCII)
_COALESCE_S: Final = 0.05
_BATCH: Final = 50
"""Files rewritten before anything else gets its turn."""


class Export:
    """The files, below a directory of our own. Nothing is written while ``enabled`` is off."""

    def __init__(self, directory: Path, books: Books, *, enabled: bool) -> None:
        self.enabled = enabled
        self._directory = directory
        self._books = books
        self._told: dict[ContainerID, str] = {}
        self._due = asyncio.Event()

    def create(self, container_id: ContainerID) -> Mount | None:
        """Write the file of a container that is being created and return its mount; None if it gets none.

        A file that cannot be written is no reason to refuse a container: it is logged.
        """
        grant = self._books.ledger.containers.get(container_id)
        if not self.enabled or grant is None or not is_exported(grant) or not _ID.fullmatch(container_id):
            return None
        text = export_text(self._books.ledger, grant)
        try:
            self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._write(container_id, text, os.O_CREAT)
        except OSError as error:
            err = HostError(f"file {self._path(container_id)}: {error.strerror}", hint="the run directory is in memory")
            kv(_LOG, logging.WARNING, "a container cannot be told what it got", container_id=container_id, err=err)
            return None
        self._told[container_id] = text
        return Mount(source=str(self._path(container_id)), destination=IN_CONTAINER)

    def changed(self) -> None:
        """Note that what containers have may differ from what their files say."""
        if self.enabled or self._told:  # else there are no files
            self._due.set()

    async def run(self) -> None:
        """Keep the files as they should be until cancelled."""
        self._due.set()
        while True:
            await self._due.wait()
            await asyncio.sleep(_COALESCE_S)
            self._due.clear()
            await self.refresh()

    async def refresh(self) -> None:
        """Rewrite the files that say something else than what is, and remove those of containers that are gone."""
        for number, container_id in enumerate(self._listed(), start=1):
            grant = self._books.ledger.containers.get(container_id)
            if grant is None:
                self._remove(container_id)
            elif (text := export_text(self._books.ledger, grant)) != self._told.get(container_id):
                self._rewrite(container_id, text)
            if number % _BATCH == 0:
                await asyncio.sleep(0)

    def _rewrite(self, container_id: ContainerID, text: str) -> None:
        try:
            self._write(container_id, text, 0)
        except OSError as error:
            kv(_LOG, logging.WARNING, "a container's file is out of date", container_id=container_id, err=error)
            return
        self._told[container_id] = text

    def _remove(self, container_id: ContainerID) -> None:
        """Remove the file of a container that is gone; one that cannot be removed is told of once, and harms nobody."""
        is_ours = self._told.pop(container_id, None) is not None
        try:
            self._path(container_id).unlink(missing_ok=True)
        except OSError as error:
            if is_ours:
                words = "the file of a container that is gone cannot be removed"
                kv(_LOG, logging.WARNING, words, container_id=container_id, err=error)

    def _write(self, container_id: ContainerID, text: str, flags: int) -> None:
        """Put a text into the file in one write, then cut it to length: for an instant old lines may follow."""
        data = text.encode()
        flags |= os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._path(container_id), flags, 0o644)
        try:
            os.fchmod(descriptor, 0o644)  # whatever the umask
            os.pwrite(descriptor, data, 0)
            os.ftruncate(descriptor, len(data))
        finally:
            os.close(descriptor)

    def _listed(self) -> list[ContainerID]:
        try:
            return [ContainerID(name) for name in sorted(os.listdir(self._directory))]  # noqa: PTH208 - names alone
        except OSError:  # none was made yet; or it is told where one cannot be
            return []

    def _path(self, container_id: ContainerID) -> Path:
        return self._directory / container_id
