"""One kind of object, listed and then watched for ever (shell).

The cycle: list, tell what is there, watch from the list's resource version, tell what changes. A watch that ends is
taken up where it stopped; one whose past the server has forgotten (410) starts the cycle again. Failures wait ever
longer, with jitter: a thousand nodes must not come back in step after an outage. What the sink could not record is told
again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from enum import Enum
from typing import Final, Protocol, TypeVar

import msgspec

from nodecpu.errors import LinkError, NodeCpuError, StateError
from nodecpu.kube.client import MAX_ANSWER_BYTES, Api, ApiError
from nodecpu.log import kv

PAGE: Final = 250
"""Objects of one answer to a list."""

MAX_PAGES: Final = 1000
"""Answers to one list, which together are no longer than one may be: a node has hundreds of pods, and fewer slices."""

_WATCH_S: Final = (300, 600)
_SILENCE_S: Final = 150.0
"""The API server sends a bookmark about once a minute; longer silence is a dead connection."""

_BACKOFF_S: Final = (0.5, 15.0)
_GONE: Final = 410

_T = TypeVar("_T")

_log = logging.getLogger(__name__)


class Change(Enum):
    """What a watch tells."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class WatchSink(Protocol):
    """Who is told, on the loop. Objects are JSON; one that cannot be read is the sink's to report.

    StateError: it could not be recorded.
    """

    def listing(self) -> None:
        """Take it that all objects are asked for now."""
        ...

    def listed(self, objects: Sequence[msgspec.Raw], version: str) -> None:
        """Take all objects there were at a resource version: what was known then and is not among them is gone."""
        ...

    def changed(self, change: Change, value: msgspec.Raw) -> None:
        """Take one object, added, modified or deleted."""
        ...


class Backoff:
    """How long to wait after failures: doubling up to a cap, each time between half and all of it."""

    def __init__(self, *, first_s: float = _BACKOFF_S[0], cap_s: float = _BACKOFF_S[1]) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._next_s = first_s

    def reset(self) -> None:
        """Start anew: something worked."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """Return the seconds to wait now."""
        whole, self._next_s = self._next_s, min(self._next_s * 2, self._cap_s)
        return whole * random.uniform(0.5, 1.0)


def asked_to_wait_s(error: NodeCpuError) -> float:
    """Return the seconds that the API server asked to be left alone for, and as many as a tenth more by chance."""
    wanted_s = error.retry_after_s if isinstance(error, ApiError) else 0.0
    return wanted_s * random.uniform(1.0, 1.1)


class _ListMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _ListMeta
    items: tuple[msgspec.Raw, ...] | None = None


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    type: Change
    object: msgspec.Raw


class _ObjectMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    resource_version: str = ""


class _Object(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _ObjectMeta = _ObjectMeta()
    code: int = 0
    message: str = ""
    reason: str = ""


class Watcher:
    """The objects at a path that a field selector lets pass."""

    def __init__(
        self,
        api: Api,
        *,
        path: str,
        selector: str,
        sink: WatchSink,
        wait_s: float = _BACKOFF_S[0],
        opening: Callable[[], None] = lambda: None,
    ) -> None:
        """``wait_s`` is the first pause after a watch has ended, well or not; ``opening`` is called before each."""
        self._api = api
        self._path = path
        self._selector = selector
        self._sink = sink
        self._backoff = Backoff(first_s=wait_s)
        self._opening = opening
        self._version = ""
        self._failing = False

    async def run(self) -> None:
        """List and watch until cancelled; failures are tried again, and logged once for each outage."""
        while True:
            least_s = 0.0
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except (LinkError, ApiError, StateError) as error:
                least_s = asked_to_wait_s(error)
                if isinstance(error, ApiError) and error.status == _GONE:
                    self._version = ""
                elif not self._failing:
                    self._failing = True
                    kv(_log, logging.WARNING, "watch failed, tried again for ever", path=self._path, err=error)
            # After a clean end too: a server that ends each watch at once must not be asked in a tight loop.
            await asyncio.sleep(max(least_s, self._backoff.next_s()))

    def _works(self) -> None:
        self._backoff.reset()
        if self._failing:
            self._failing = False
            kv(_log, logging.INFO, "watch works again", path=self._path)

    async def _list(self) -> None:
        query = {"fieldSelector": self._selector, "limit": str(PAGE)}
        objects: list[msgspec.Raw] = []
        size = pages = 0
        self._sink.listing()
        while True:
            answer = await self._api.get(self._path, query)
            page = _decoded(answer, _List, self._path)
            objects += page.items or ()
            if not page.metadata.continue_:
                break
            size, pages = size + len(answer), pages + 1
            if size > MAX_ANSWER_BYTES or pages >= MAX_PAGES:
                raise LinkError(f"API server: {self._path}: a list without end: {size} bytes in {pages} answers")
            query["continue"] = page.metadata.continue_
        self._sink.listed(objects, page.metadata.resource_version)
        self._version = page.metadata.resource_version

    async def _watch(self) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "fieldSelector": self._selector,
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*_WATCH_S)),
        }
        self._opening()
        async with aclosing(self._api.watch(self._path, query, silence_s=_SILENCE_S)) as lines:
            async for line in lines:
                event = _decoded(line, _Event, self._path)
                value = _decoded(event.object, _Object, self._path)
                if event.type is Change.ERROR:
                    raise ApiError(f"watch of {self._path}: {value.message}", status=value.code, reason=value.reason)
                if event.type is not Change.BOOKMARK:
                    self._sink.changed(event.type, event.object)
                self._version = value.metadata.resource_version or self._version
                self._works()


def _decoded(data: bytes | msgspec.Raw, type_: type[_T], path: str) -> _T:
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise LinkError(f"API server: {path}: malformed answer: {str(error)[:200]}") from error
