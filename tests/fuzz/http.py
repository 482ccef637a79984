"""Hostile answers of an API server: status lines, headers, chunks, encodings, bodies that go on, connections that end.

Deterministic: answer number n of a seed is always the same. ``python -m tests.fuzz.http [COUNT [SEED]]`` gives COUNT
answers (10,000) to a list and to a watch, by turns. Whatever comes is lines, a body or our typed error, within
``HANG_S``; any other error would end the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import random
import resource
import sys
import time
import warnings
import zlib
from collections import Counter
from typing import Final

from nodecpu.errors import NodeCpuError
from nodecpu.kube.client import KubeClient
from tests.fuzz.nri import mutated

HANG_S: Final = 4.0
_SILENCE_S: Final = 0.1
_LIST: Final = b'{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[]}'
_EVENT: Final = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8"}}}\n'


def _answer(status: str, *headers: str, body: bytes = b"") -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status}", *headers, "", "")).encode() + body


def _chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


GOOD: Final = (
    _answer(
        "200 OK",
        "Content-Type: application/json",
        "Date: Tue, 01 Dec 2026 04:00:00 GMT",
        f"Content-Length: {len(_LIST)}",
        body=_LIST,
    ),
    _answer("200 OK", "Transfer-Encoding: chunked", body=_chunked(_EVENT * 3)),
    _answer("200 OK", "Content-Encoding: gzip", "Connection: close", body=gzip.compress(_LIST)),
    _answer("200 OK", "Content-Encoding: deflate", "Transfer-Encoding: chunked", body=_chunked(zlib.compress(_EVENT))),
    _answer("302 Found", "Location: http://127.0.0.1:1/api", "Content-Length: 0"),
    _answer("401 Unauthorized", "WWW-Authenticate: Bearer", "Content-Length: 2", body=b"{}"),
    _answer("403 Forbidden", "Connection: close", body=b'{"reason":"Forbidden","message":"not you"}'),
    _answer("410 Gone", "Content-Length: 18", body=b'{"reason":"Gone"} '),
    _answer("429 Too Many Requests", "Retry-After: 1", "Content-Length: 2", body=b"{}"),
    b"HTTP/1.1 100 Continue\r\n\r\n" + _answer("200 OK", f"Content-Length: {len(_LIST)}", body=_LIST),
)
"""Answers as they should be, of all the kinds that there are."""

_ODD: Final = (
    *(b"\r\n", b"\n", b"\x00", b"\xff", b":::", b"-1", b"9" * 20, b"9" * 5000, b"HTTP/9.9 200\r\n"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 5, 6\r\n", b"Content-Length: -1\r\n", b"Connection: keep-alive\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Encoding: gzip\r\n", b"Content-Encoding: gzip, deflate\r\n"),
    *(b"Location: http://[::1\r\n", b"Location: //\xe9\r\n", b"Location: /again\r\n", b"Set-Cookie: a=b\r\n"),
    *(b"Retry-After: 9e9\r\n", b"Retry-After: -5\r\n", b"Retry-After: Tue, 99 Foo\r\n"),
    *(b"Date: Mon, 01 Jan 0001 0:00:7770040000\r\n", b"Date: 9\r\n", b"A" * 70_000 + b": b\r\n", b"a: b\r\n" * 200),
    *(b'{"items":', b"[" * 5000, b"f" * 30, b"ffffffff\r\n"),
)
"""What stands where it should not: most of it among the headers."""


def spoilt(number: int, seed: int) -> bytes:
    """Return an answer of which something may be wrong."""
    rng = random.Random(f"{seed}/{number}")
    good = rng.choice(GOOD)
    if rng.random() < 0.5:
        return mutated(good, rng)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = good.find(b"\r\n") + 2 if rng.random() < 0.6 else rng.randrange(len(good) + 1)
        good = good[:at] + rng.choice(_ODD) + good[at:]
    return good


class _Server:
    """Gives one answer after the other, whatever it is asked."""

    def __init__(self) -> None:
        self.answer = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a request, then end the connection: half an answer is half an answer."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.answer)
            await writer.drain()
        writer.close()


async def _asked(client: KubeClient, *, watched: bool) -> str:
    """Make one call; return what came of it. Raises whatever is not ours."""
    try:
        if not watched:
            await client.get("/api/v1/pods")
            return "value"
        async with contextlib.aclosing(client.watch("/api/v1/pods", {}, silence_s=_SILENCE_S)) as lines:
            async for _ in lines:
                pass
    except NodeCpuError as error:
        return type(error).__name__
    return "lines"


async def _play(count: int, seed: int) -> Counter[str]:
    server, outcomes = _Server(), Counter[str]()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        client = KubeClient(_kubeconfig(port), timeout_s=_SILENCE_S)
        for number in range(count):
            server.answer = spoilt(number, seed)
            began = time.monotonic()
            try:
                outcomes[await _asked(client, watched=number % 2 == 1)] += 1
            except Exception as error:
                raise AssertionError(f"answer {seed}/{number}, {server.answer[:200]!r}: {error!r}") from error
            if time.monotonic() - began > HANG_S:
                raise AssertionError(f"answer {seed}/{number} took too long: {server.answer[:200]!r}")
        client.close()
    return outcomes


def _kubeconfig(port: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "it", "user": {"token": "none"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "current-context": "it",
    }


def run(count: int, seed: int) -> Counter[str]:
    """Give so many answers; return how often each thing came of it. Raises AssertionError, with seed and number."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the library's, of headers that it could not read
            return asyncio.run(_play(count, seed))
    finally:
        logging.disable(logging.NOTSET)


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 10_000
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    outcomes = run(count, seed)
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = dict(outcomes.most_common())
    print(f"API server: {count} answers of seed {seed}, 0 failures, at most {mib:.0f} MiB resident: {told}")  # noqa: T201 - output
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
