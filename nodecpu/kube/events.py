"""Reports become Events of core/v1 on pods and claims (shell).

Nobody waits for them and nothing depends on them. The same report is one object with a count: the first is sent at
once, repeats are counted and sent after a while. All in all there are few: a bucket of tokens holds back a node where
everything goes wrong at once, and what does not fit is dropped and counted. While the API server is away reports are
kept for some minutes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from nodecpu.errors import LinkError
from nodecpu.kube.client import Api, ApiError, api_path
from nodecpu.log import kv
from nodecpu.reports import CLAIM, Subject

MAX_MESSAGE_BYTES: Final = 1024
"""Longer notes are refused by events.k8s.io. Source: pkg/apis/core/validation/events.go."""

_MAX_STEM: Final = 230
"""A name has at most 253 characters, of which a dot and sixteen digits follow."""

_COMPONENT: Final = "nodecpu"
_KNOWN: Final = 512
_WAITING: Final = 128
_AGAIN_S: Final = 300.0
_BURST: Final = 20
_REFILL_S: Final = 6.0
_STALE_S: Final = 300.0
_API_VERSIONS: Final = {CLAIM: "resource.k8s.io/v1"}

_log = logging.getLogger(__name__)

_Key = tuple[str, str, str]


@dataclass(slots=True, kw_only=True)
class _Event:
    """One report: how often it came, and under which name it was told."""

    subject: Subject
    reason: str
    message: str
    first: str
    count: int = 0
    last: str = ""
    last_at: float = 0.0
    told_at: float = float("-inf")
    name: str = ""


class Events:
    """Sends reports. ``run`` works until it is cancelled; ``dropped`` counts what was never sent."""

    def __init__(
        self,
        api: Api,
        *,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(tz=UTC),
    ) -> None:
        self.dropped = 0
        self._api = api
        self._node = node
        self._clock = clock
        self._now = now
        self._known: OrderedDict[_Key, _Event] = OrderedDict()
        self._due: OrderedDict[_Key, None] = OrderedDict()
        self._waiting = asyncio.Event()
        self._tokens = float(_BURST)
        self._filled_at = clock()
        self._refused = False

    def report(self, subject: Subject, reason: str, message: str) -> None:
        """Have a report sent, or counted if it was sent a short while ago."""
        key = (subject.uid, reason, message)
        event = self._known.pop(key, None)
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        if event is None:
            if len(self._due) >= _WAITING:
                self.dropped += 1
                return
            event = _Event(subject=subject, reason=reason, message=_cut(message), first=stamp)
        self._known[key] = event
        if len(self._known) > _KNOWN:
            del self._known[next(one for one in self._known if one not in self._due)]
        event.count += 1
        event.last, event.last_at = stamp, self._clock()
        if key in self._due or self._clock() - event.told_at < _AGAIN_S:
            return
        self._due[key] = None
        self._waiting.set()

    async def run(self) -> None:
        """Send what is due, for ever, whatever happens to the API server."""
        while True:
            await self._waiting.wait()
            pause = await self.send_one()
            if not self._due:
                self._waiting.clear()
            elif pause:
                await asyncio.sleep(pause)

    async def send_one(self) -> float:
        """Send the oldest report that is due; return how many seconds to wait before the next."""
        while self._due:
            key = next(iter(self._due))
            event = self._known[key]
            if self._clock() - event.last_at > _STALE_S:
                del self._due[key]
                self.dropped += 1
                continue
            if wait := self._wait_for_token():
                return wait
            try:
                await self._send(event)
            except LinkError:
                self._tokens += 1
                return _REFILL_S
            except ApiError as error:
                if error.is_transient:
                    self._tokens += 1
                    return _REFILL_S
                self._report_refusal(error)
                self.dropped += 1
            self._due.pop(key, None)
            return 0.0
        return 0.0

    async def _send(self, event: _Event) -> None:
        count = event.count
        events = api_path("api", "v1", "namespaces", event.subject.namespace, "events")
        if event.name:
            body = msgspec.json.encode({"count": count, "lastTimestamp": event.last})
            try:
                await self._api.send("PATCH", events + api_path(event.name), body)
            except ApiError as error:
                if error.status != 404:
                    raise
                event.name = ""  # events live for an hour
        if not event.name:
            name = f"{_stem(event.subject.name)}.{secrets.token_hex(8)}"
            await self._api.send("POST", events, msgspec.json.encode(self._object(event, name, count)))
            event.name = name
        event.told_at = self._clock()

    def _object(self, event: _Event, name: str, count: int) -> dict[str, object]:
        subject = event.subject
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": subject.namespace},
            "involvedObject": {
                "apiVersion": _API_VERSIONS.get(subject.kind, "v1"),
                "kind": subject.kind,
                "namespace": subject.namespace,
                "name": subject.name,
                "uid": subject.uid,
            },
            "reason": event.reason,
            "message": event.message,
            "type": "Warning",
            "count": count,
            "firstTimestamp": event.first,
            "lastTimestamp": event.last,
            "source": {"component": _COMPONENT, "host": self._node},
            "reportingComponent": _COMPONENT,
            "reportingInstance": self._node,
        }

    def _wait_for_token(self) -> float:
        """Take a token, or return the seconds until there is one."""
        now = self._clock()
        self._tokens = min(_BURST, self._tokens + (now - self._filled_at) / _REFILL_S)
        self._filled_at = now
        if self._tokens < 1:
            return (1 - self._tokens) * _REFILL_S
        self._tokens -= 1
        return 0.0

    def _report_refusal(self, error: ApiError) -> None:
        if not self._refused:
            self._refused = True
            kv(_log, logging.WARNING, "events cannot be written, the journal has them all the same", err=error)


def _stem(name: str) -> str:
    """Return as much of an object's name as an event's has room for: labels that end as a label may."""
    return name[:_MAX_STEM].rstrip("-.")


def _cut(message: str) -> str:
    return message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
