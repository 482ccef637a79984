"""The admin socket, over a real socket: answers, refuses, survives every peer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest

from nodecpu.admin.client import fetch_state, try_objects
from nodecpu.admin.server import MAX_PEERS, MAX_REQUEST_BYTES, AdminServer
from nodecpu.admin.state import NodeState, TrialRow
from nodecpu.errors import HostError, LinkError, NodeCpuError, NotReady, PeerProtocolError
from tests.unit.nodestates import n4c16

REQUEST = b'{"verb": "state"}\n'


Trial = Callable[[Sequence[bytes]], tuple[TrialRow, ...]]


def no_trial(objects: Sequence[bytes]) -> tuple[TrialRow, ...]:
    raise AssertionError(f"nobody asked to try {objects!r}")


@contextlib.asynccontextmanager
async def serving(
    run_dir: Path,
    state: Callable[[], NodeState] = n4c16,
    trial: Trial = no_trial,
    *,
    request_timeout_s: float = 5.0,
    users: Collection[int] | None = None,
) -> AsyncIterator[AdminServer]:
    server = AdminServer(run_dir, state, trial, request_timeout_s=request_timeout_s, users=users)
    server.bind()
    task = asyncio.create_task(server.serve())
    try:
        yield server
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        server.close()


def names(directory: Path) -> list[str]:
    return [file.name for file in directory.iterdir()]


async def exchange(path: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def test_client_gets_the_very_state(tmp_path: Path) -> None:
    async def run() -> NodeState:
        async with serving(tmp_path) as server:
            return await asyncio.to_thread(fetch_state, server.path)

    assert asyncio.run(run()) == n4c16()


def test_objects_to_try_arrive_as_they_are_and_rows_come_back(tmp_path: Path) -> None:
    rows = (TrialRow(kind="claim", name="shop/web", fits=False, code="no-capacity", message="full"),)
    seen: list[bytes] = []

    def trial(objects: Sequence[bytes]) -> tuple[TrialRow, ...]:
        seen.extend(objects)
        return rows

    async def run() -> tuple[TrialRow, ...]:
        async with serving(tmp_path, trial=trial) as server:
            return await asyncio.to_thread(try_objects, server.path, [b'{"a": [1]}', b'"b"'])

    assert asyncio.run(run()) == rows
    assert seen == [b'{"a": [1]}', b'"b"']


def test_every_request_gets_the_state_of_its_moment(tmp_path: Path) -> None:
    states = iter([n4c16(), n4c16()])

    async def run() -> None:
        async with serving(tmp_path, lambda: next(states)) as server:
            for _ in range(2):
                await asyncio.to_thread(fetch_state, server.path)

    asyncio.run(run())
    assert next(states, None) is None


def test_socket_is_for_its_owner_alone_and_goes_with_the_server(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as server:
            assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
            assert names(tmp_path) == ["admin.sock"]

    asyncio.run(run())
    assert names(tmp_path) == []


def test_socket_left_by_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(tmp_path / "admin.sock"))

    async def run() -> None:
        async with serving(tmp_path) as server:
            await asyncio.to_thread(fetch_state, server.path)

    asyncio.run(run())


def test_socket_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path):
            successor.bind()

    successor = AdminServer(tmp_path, n4c16, no_trial)
    asyncio.run(run())
    assert names(tmp_path) == ["admin.sock"]
    successor.close()
    successor.close()
    assert names(tmp_path) == []


def test_missing_directory_is_a_host_error(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be made"):
        AdminServer(tmp_path / "none", n4c16, no_trial).bind()


@pytest.mark.parametrize(
    ("request_line", "code"),
    [
        pytest.param(b'{"verb": "stop"}\n', "unknown-verb", id="unknown verb"),
        pytest.param(b"{\n", "bad-request", id="not JSON"),
        pytest.param(b'{"verb": "state", "x": 1}\n', "bad-request", id="unknown member"),
        pytest.param(b"[1]\n", "bad-request", id="not an object"),
        pytest.param(b"\xff\n", "bad-request", id="not text"),
        pytest.param(
            b'{"verb": "try", "objects": [' + b"[" * 5000 + b"]" * 5000 + b"]}\n", "bad-request", id="nested too deep"
        ),
        pytest.param(b"x" * (MAX_REQUEST_BYTES + 1), "bad-request", id="too long"),
    ],
)
def test_wrong_requests_are_told_so(request_line: bytes, code: str, tmp_path: Path) -> None:
    async def run() -> bytes:
        async with serving(tmp_path) as server:
            return await exchange(server.path, request_line)

    assert json.loads(asyncio.run(run()))["error"]["code"] == code


def test_other_users_are_told_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """U121: by the kernel's word, whoever handed the socket on."""

    async def run(users: Collection[int]) -> bytes:
        async with serving(tmp_path, users=users) as server:
            return await exchange(server.path, REQUEST)

    refusal = json.loads(asyncio.run(run({os.geteuid() + 1})))
    assert refusal == {"error": {"code": "not-allowed", "message": "not for this user", "hint": "run it as root"}}
    assert "admin request of another user refused" in caplog.text
    assert "state" in json.loads(asyncio.run(run({os.geteuid()})))


def test_error_of_the_daemon_reaches_the_client_with_its_hint(tmp_path: Path) -> None:
    def state() -> NodeState:
        raise NotReady("still reading the books", hint="wait")

    async def run() -> None:
        async with serving(tmp_path, state) as server:
            await asyncio.to_thread(fetch_state, server.path)

    with pytest.raises(NodeCpuError, match="still reading the books") as caught:
        asyncio.run(run())
    assert caught.value.hint == "wait"


def test_silent_peer_is_dropped_and_others_are_served(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, request_timeout_s=0.05) as server:
            silent = [await asyncio.open_unix_connection(str(server.path)) for _ in range(MAX_PEERS + 3)]
            await asyncio.to_thread(fetch_state, server.path)
            for reader, writer in silent:
                assert await reader.read() == b""
                writer.close()
                await writer.wait_closed()

    asyncio.run(run())


def test_peers_that_leave_early_do_no_harm(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as server:
            for data in (b"", b"{", REQUEST):
                with socket.socket(socket.AF_UNIX) as peer:
                    peer.connect(str(server.path))
                    peer.sendall(data)
            await asyncio.to_thread(fetch_state, server.path)

    asyncio.run(run())


def test_server_stops_with_a_peer_still_there(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path) as server:
            _, writer = await asyncio.open_unix_connection(str(server.path))
        writer.close()
        await writer.wait_closed()

    asyncio.run(run())


@contextlib.contextmanager
def odd_daemon(path: Path, reply: bytes | None) -> Iterator[None]:
    """Listen and have one reply ready, or none at all (the connection then waits in the queue)."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(reply or b"")

        thread = threading.Thread(target=answer) if reply is not None else None
        if thread:
            thread.start()
        yield
        if thread:
            thread.join()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        pytest.param(b"", "hung up before", id="nothing"),
        pytest.param(b'{"state": {"ver', "hung up before", id="half a line"),
        pytest.param(b'{"colour": 1}\n', "not understood", id="another version"),
        pytest.param(b"{}\n", "empty answer", id="empty"),
    ],
)
def test_client_says_what_is_wrong_with_an_answer(reply: bytes, words: str, tmp_path: Path) -> None:
    with odd_daemon(tmp_path / "s", reply), pytest.raises(PeerProtocolError, match=words):
        fetch_state(tmp_path / "s")


def test_client_does_not_wait_for_ever(tmp_path: Path) -> None:
    with odd_daemon(tmp_path / "s", None), pytest.raises(LinkError, match="does not answer within"):
        fetch_state(tmp_path / "s", timeout_s=0.05)


def test_client_tells_when_no_daemon_is_there(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="the daemon is not running") as caught:
        fetch_state(tmp_path / "s")
    assert "systemctl status nodecpu" in caught.value.hint
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    with pytest.raises(LinkError, match="the daemon is not running"):
        fetch_state(tmp_path / "s")


def test_client_takes_an_impossible_path_for_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="cannot be asked"):
        fetch_state(tmp_path / ("x" * 200))
