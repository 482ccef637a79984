"""List and watch, against an API server that does as it is told, step by step."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence

import msgspec
import pytest

from nodecpu.errors import LinkError, StateError
from nodecpu.kube.client import MAX_ANSWER_BYTES, ApiError
from nodecpu.kube.watch import MAX_PAGES, Backoff, Change, Watcher

GONE = ApiError("too old", status=410, reason="Expired")
AWAY = LinkError("away")


class Finished(Exception):
    """The script is over."""


class ScriptedApi:
    """Answers each list and each watch with the next step: pages or lines, or an error."""

    def __init__(self, *steps: Sequence[bytes] | Exception) -> None:
        self.steps = list(steps)
        self.asked: list[Mapping[str, str]] = []
        self.is_answering = True

    def _next(self) -> Sequence[bytes]:
        if not self.steps:
            raise Finished
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def get(self, path: str, query: Mapping[str, str] = {}, *, timeout_s: float | None = None) -> bytes:
        self.asked.append(dict(query))
        (answer,) = self._next()
        return answer

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        raise NotImplementedError("a watch writes nothing")

    async def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        self.asked.append(dict(query))
        for line in self._next():
            yield line


class Told:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.asked = False

    def listing(self) -> None:
        self.asked = True

    def listed(self, objects: Sequence[msgspec.Raw], version: str) -> None:
        assert version
        assert self.asked
        self.words.append("listed " + ",".join(self._name(one) for one in objects))

    def changed(self, change: Change, value: msgspec.Raw) -> None:
        self.words.append(f"{change.value} {self._name(value)}")

    @staticmethod
    def _name(value: msgspec.Raw) -> str:
        return str(json.loads(bytes(value))["metadata"]["name"])


def page(version: str, *names: str, more: str = "") -> list[bytes]:
    items = [{"metadata": {"name": name}} for name in names]
    return [json.dumps({"metadata": {"resourceVersion": version, "continue": more}, "items": items}).encode()]


def event(kind: str, name: str, version: str) -> bytes:
    return json.dumps({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": version}}}).encode()


def error(code: int) -> bytes:
    return json.dumps({"type": "ERROR", "object": {"code": code, "message": "no", "reason": "Expired"}}).encode()


def play(*steps: Sequence[bytes] | Exception, sink: Told | None = None) -> tuple[list[str], list[str]]:
    """Return what the sink was told, and the resource versions asked for ("list" for a list)."""
    api, told = ScriptedApi(*steps), sink or Told()

    async def main() -> None:
        with pytest.raises(Finished):
            await Watcher(api, path="/api/v1/pods", selector="a=b", sink=told, wait_s=0.0).run()

    asyncio.run(main())
    assert all(query["fieldSelector"] == "a=b" for query in api.asked)
    return told.words, [query.get("resourceVersion", "list") for query in api.asked]


def test_list_then_changes_from_where_it_stood() -> None:
    words, asked = play(
        page("5", "a"), [event("ADDED", "b", "6"), event("DELETED", "a", "7")], [event("MODIFIED", "b", "8")]
    )
    assert words == ["listed a", "ADDED b", "DELETED a", "MODIFIED b"]
    assert asked == ["list", "5", "7", "8"]


def test_long_list_comes_in_pages_and_is_told_as_one() -> None:
    words, asked = play(page("5", "a", more="x"), page("5", "b"), [])
    assert words == ["listed a,b"]
    assert asked == ["list", "list", "5", "5"]


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["many", "large"])
def test_list_without_end_is_given_up_and_begun_anew(size: int) -> None:
    """Whatever a server answers, what is kept of it is bounded."""
    endless = [page("5", "a" * size, more="x")] * (MAX_PAGES if size == 1 else MAX_ANSWER_BYTES // size)
    words, asked = play(*endless, page("6", "b"), [])
    assert words == ["listed b"]
    assert asked == ["list"] * (len(endless) + 1) + ["6", "6"]


def test_bookmark_moves_on_without_a_word() -> None:
    words, asked = play(page("5"), [event("BOOKMARK", "", "90")], [])
    assert words == ["listed "]
    assert asked == ["list", "5", "90", "90"]


@pytest.mark.parametrize("gone", [[error(410)], GONE], ids=["event", "status"])
def test_forgotten_past_is_listed_anew(gone: Sequence[bytes] | Exception) -> None:
    words, asked = play(page("5", "a"), gone, page("9", "b"), [])
    assert words == ["listed a", "listed b"]
    assert asked == ["list", "5", "list", "9", "9"]


@pytest.mark.parametrize(
    "failure",
    [AWAY, [error(500)], [b"{"], [b'{"type":"NEW","object":{}}'], [b"\xff"], [b"[" * 100_000]],
    ids=["link", "error", "cut", "unknown", "text", "deep"],
)
def test_other_failures_are_taken_up_where_it_stood(failure: Sequence[bytes] | Exception) -> None:
    words, asked = play(AWAY, page("5", "a"), [event("ADDED", "b", "6")], failure, [event("ADDED", "c", "7")])
    assert words == ["listed a", "ADDED b", "ADDED c"]
    assert asked == ["list", "list", "5", "6", "6", "7"]


class FullDisk(Told):
    """Cannot record what it is told at the first ``failures``, or once of the object ``full_at``."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self._failures = failures
        self.full_at = ""

    def listed(self, objects: Sequence[msgspec.Raw], version: str) -> None:
        self._failures -= 1
        if self._failures >= 0:
            raise StateError("the database failed: database or disk is full")
        super().listed(objects, version)

    def changed(self, change: Change, value: msgspec.Raw) -> None:
        if self._name(value) == self.full_at:
            self.full_at = ""
            raise StateError("the database failed: database or disk is full")
        super().changed(change, value)


def test_what_cannot_be_recorded_is_told_again() -> None:
    """R1, U42: a full file system under the books ends nobody, and nothing of the pods is missed."""
    told, again = event("ADDED", "b", "6"), event("MODIFIED", "b", "7")
    words, asked = play(page("5", "a"), page("5", "a"), [told, again], sink=FullDisk(1))
    assert words == ["listed a", "ADDED b", "MODIFIED b"]
    assert asked == ["list", "list", "5", "7"]
    sink = FullDisk(0)
    sink.full_at = "b"
    words, asked = play(page("5"), [told], [told, again], sink=sink)
    assert words == ["listed ", "ADDED b", "MODIFIED b"]
    assert asked == ["list", "5", "5", "7"]


def test_outage_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="nodecpu")
    play(AWAY, AWAY, page("5"), AWAY, [event("ADDED", "a", "6")], AWAY, [event("ADDED", "b", "7")])
    assert [record.message for record in caplog.records] == [
        "watch failed, tried again for ever",
        "watch works again",
    ] * 2


def test_pauses_double_to_a_cap_and_start_anew_after_success() -> None:
    backoff = Backoff(first_s=1.0, cap_s=4.0)
    waits = [backoff.next_s() for _ in range(5)]
    assert all(whole / 2 <= wait <= whole for wait, whole in zip(waits, [1, 2, 4, 4, 4], strict=True))
    backoff.reset()
    assert backoff.next_s() <= 1.0
