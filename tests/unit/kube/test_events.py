"""Reports become events: one object per report, few in all, sent when the API server can take them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodecpu.errors import LinkError
from nodecpu.kube.client import ApiError
from nodecpu.kube.events import MAX_MESSAGE_BYTES, Events
from nodecpu.lab.slicerules import SUBDOMAIN
from nodecpu.reports import CLAIM, POD, Subject

WEB = Subject(kind=POD, namespace="shop", name="web", uid="u1")
CLAIM_A = Subject(kind=CLAIM, namespace="shop", name="a", uid="u2")
BEGIN = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


class FakeApi:
    """Keeps what was sent; answers with errors when told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Mapping[str, Any]]] = []
        self.errors: list[Exception] = []
        self.is_answering = True

    async def get(self, path: str, query: Mapping[str, str] = {}, *, timeout_s: float | None = None) -> bytes:
        raise AssertionError("events are never read: that right is not asked for")

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append((method, path, json.loads(body)))
        return b"{}"

    async def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        for line in tuple[bytes]():
            yield line


class Case:
    def __init__(self) -> None:
        self.api = FakeApi()
        self.at = 0.0
        self.events = Events(
            self.api, node="node1", clock=lambda: self.at, now=lambda: BEGIN + timedelta(seconds=self.at)
        )

    def report(self, subject: Subject = WEB, reason: str = "ContainerRefused", message: str = "no CPUs (wait)") -> None:
        self.events.report(subject, reason, message)

    async def send(self) -> int:
        """Send what can be sent at this moment; return how many went out."""
        before = len(self.api.sent)
        while not await self.events.send_one():
            if len(self.api.sent) == before or not self.events._due:
                break
        return len(self.api.sent) - before


def play(story: Callable[[Case], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story(Case())

    asyncio.run(whole())


def test_event_has_the_errors_words_and_the_subjects_identity() -> None:
    async def story(case: Case) -> None:
        case.report(CLAIM_A, "PrepareRefused", "claim shop/a: 6 CPUs asked, 4 free (release a claim there)")
        await case.send()
        ((method, path, body),) = case.api.sent
        assert (method, path) == ("POST", "/api/v1/namespaces/shop/events")
        assert body["involvedObject"] == {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "namespace": "shop",
            "name": "a",
            "uid": "u2",
        }
        assert body["message"] == "claim shop/a: 6 CPUs asked, 4 free (release a claim there)"
        assert (body["reason"], body["type"], body["count"]) == ("PrepareRefused", "Warning", 1)
        assert body["source"] == {"component": "nodecpu", "host": "node1"}
        assert body["firstTimestamp"] == "2026-11-30T12:00:00Z"
        assert body["metadata"]["name"].startswith("a.")

    play(story)


def test_repeats_are_counted_and_told_after_a_while() -> None:
    async def story(case: Case) -> None:
        for _ in range(6):
            case.report()
            await case.send()
            case.at += 70
        assert [method for method, _, _ in case.api.sent] == ["POST", "PATCH"]
        _, path, body = case.api.sent[1]
        assert path.rpartition("/")[2] == case.api.sent[0][2]["metadata"]["name"]
        assert body == {"count": 6, "lastTimestamp": "2026-11-30T12:05:50Z"}

    play(story)


def test_event_that_the_server_has_dropped_is_made_anew() -> None:
    async def story(case: Case) -> None:
        case.report()
        await case.send()
        case.at += 4000
        case.api.errors = [ApiError("gone", status=404, reason="NotFound")]
        case.report()
        await case.send()
        assert [method for method, _, _ in case.api.sent] == ["POST", "POST"]
        assert case.api.sent[1][2]["count"] == 2

    play(story)


def test_a_flood_is_held_back_and_cut() -> None:
    async def story(case: Case) -> None:
        for number in range(1000):
            case.report(message=f"message {number}")
        assert await case.send() == 20
        case.at += 60
        assert await case.send() == 10
        assert case.events.dropped == 1000 - 128

    play(story)


def test_what_is_remembered_is_bounded() -> None:
    async def story(case: Case) -> None:
        for number in range(2000):
            case.report(message=f"message {number}")
            case.at += 10
            await case.send()
        assert len(case.events._known) <= 512
        assert len(case.api.sent) == 2000

    play(story)


@pytest.mark.parametrize(
    "error",
    [LinkError("away"), ApiError("busy", status=429, reason=""), ApiError("ill", status=500, reason="")],
    ids=["away", "overloaded", "in trouble"],
)
def test_report_waits_for_a_server_that_comes_back_soon(error: Exception) -> None:
    async def story(case: Case) -> None:
        case.report()
        case.api.errors = [error]
        assert await case.events.send_one() > 0
        assert case.api.sent == []
        await case.send()
        assert len(case.api.sent) == 1

    play(story)


def test_report_that_is_stale_is_not_sent_any_more() -> None:
    async def story(case: Case) -> None:
        case.report()
        case.api.errors = [LinkError("away")]
        await case.events.send_one()
        case.at += 400
        assert await case.send() == 0
        assert case.events.dropped == 1

    play(story)


def test_refusal_by_the_server_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def story(case: Case) -> None:
        for number in range(3):
            case.api.errors = [ApiError("forbidden", status=403, reason="Forbidden")]
            case.report(message=f"message {number}")
            await case.events.send_one()
        assert [record.message for record in caplog.records].count(
            "events cannot be written, the journal has them all the same"
        ) == 1
        assert case.events.dropped == 3

    play(story)


def test_message_stays_within_the_limit() -> None:
    async def story(case: Case) -> None:
        case.report(message="ä" * 3000)
        await case.send()
        assert len(case.api.sent[0][2]["message"].encode()) <= MAX_MESSAGE_BYTES

    play(story)


@pytest.mark.parametrize("end", ["-", ".", "-.", "a"])
def test_name_that_is_cut_is_a_name_all_the_same(end: str) -> None:
    """Cut between two labels, or within one before a hyphen, it would end in what no label ends in."""
    name = "p" * (230 - len(end)) + end + "x" * 20

    async def story(case: Case) -> None:
        case.report(Subject(kind=POD, namespace="shop", name=name, uid="u3"))
        await case.send()
        made = case.api.sent[0][2]["metadata"]["name"]
        assert len(made) <= 253
        assert SUBDOMAIN.fullmatch(made)

    play(story)
