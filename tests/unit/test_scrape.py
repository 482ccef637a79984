"""The metrics' little server: local only, bounded, and it never ends the daemon."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodecpu.config import parse
from nodecpu.config_listen import NOWHERE, Listen, ListenText
from nodecpu.errors import ConfigError
from nodecpu.scrape import ScrapeServer

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


def body() -> bytes:
    return b"nodecpu_aside 0.0\n"


@asynccontextmanager
async def serving(
    listen: Listen, render: Callable[[], bytes] = body, *, timeout_s: float = 5.0
) -> AsyncIterator[ScrapeServer]:
    server = ScrapeServer(listen, render, timeout_s=timeout_s, again_s=0.01)
    task = asyncio.create_task(server.run())
    try:
        yield server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def fetch(listen: Listen, request: bytes) -> bytes:
    opened = (
        asyncio.open_unix_connection(listen.path) if listen.path else asyncio.open_connection(listen.host, listen.port)
    )
    reader, writer = await opened
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def _asked(listen: Listen, request: bytes) -> bytes:
    async with serving(listen) as server:
        await server.bound.wait()
        return await fetch(listen, request)


def test_metrics_are_served_on_loopback() -> None:
    answer = asyncio.run(_asked(Listen(host="127.0.0.1", port=free_port()), GET))
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/plain; version=0.0.4" in head
    assert text == body()


def test_socket_file_is_for_owner_and_group_replaces_an_old_one_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(path))

    async def run() -> None:
        async with serving(Listen(path=str(path))) as server:
            await server.bound.wait()
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
            assert (await fetch(Listen(path=str(path)), GET)).endswith(body())

    asyncio.run(run())
    assert not path.exists()


def test_plain_file_of_that_name_is_left_alone_and_binding_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.sock"
    path.write_text("precious")

    async def run() -> None:
        async with serving(Listen(path=str(path))) as server:
            await asyncio.sleep(0.05)
            assert not server.bound.is_set()
            assert path.read_text() == "precious"
            path.unlink()
            async with asyncio.timeout(10):
                await server.bound.wait()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../x HTTP/1.1\r\n\r\n", b"404"),
        (b"\x16\x03\x01\r\n\r\n", b"405"),
        (b"x" * 8200, b"400"),
    ],
)
def test_other_requests_are_told_so(request_bytes: bytes, status: bytes, tmp_path: Path) -> None:
    answer = asyncio.run(_asked(Listen(path=str(tmp_path / "s")), request_bytes))
    assert answer.split(b" ")[1] == status
    if request_bytes.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")


def test_silent_peer_is_dropped_and_others_are_served(tmp_path: Path) -> None:
    listen = Listen(path=str(tmp_path / "s"))

    async def run() -> None:
        async with serving(listen, timeout_s=0.05) as server:
            await server.bound.wait()
            reader, writer = await asyncio.open_unix_connection(listen.path)
            assert await reader.read() == b""
            writer.close()
            assert (await fetch(listen, GET)).endswith(body())

    asyncio.run(run())


def test_nowhere_is_nowhere() -> None:
    server = ScrapeServer(NOWHERE, body)
    asyncio.run(server.run())
    assert not server.bound.is_set()


@pytest.mark.parametrize(
    "text",
    ["", "127.0.0.1:9103", "127.9.9.9:1", "[::1]:9103", "unix:/run/nodecpu/metrics.sock"],
)
def test_local_addresses_read_back(text: str) -> None:
    assert ListenText().write(ListenText().read(text)) == text


@pytest.mark.parametrize(
    "value",
    [
        *(
            "0.0.0.0:9103",
            "10.0.0.1:9103",
            "[::]:9103",
            ":9103",
            "9103",
            "localhost:1",
            "127.0.0.1:0",
            "127.0.0.1:65536",
        ),
        *("127.0.0.1", "unix:run/x", "unix:/a/../b", "unix:/a/", "unix:/" + "x" * 120, "999.1.1.1:1", 9103, True),
    ],
)
def test_addresses_that_others_could_reach_are_refused(value: object) -> None:
    """U123: never on all interfaces."""
    with pytest.raises(ValueError, match=r"^"):
        ListenText().read(value)


def test_mistake_in_the_file_says_why() -> None:
    with pytest.raises(ConfigError) as caught:
        parse('[metrics]\nlisten = "0.0.0.0:9103"\n', "x")
    assert "others could reach this address" in caught.value.problems[0]
