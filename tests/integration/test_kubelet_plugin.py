"""Registration and DRA service over real sockets, the kubelet played by hand (D5, C1, C6, C7)."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from nodecpu.dra.registration import KubeletPlugin, KubeletStatus, registration_socket, service_socket
from nodecpu.errors import HostError, NoCapacity
from nodecpu.policy.plan import PreparedDevice
from nodecpu.proto import dra_pb2
from tests.kubelet import FakeClaims, claim, kubelet_of, run, served, until

DEVICE = PreparedDevice(
    request_names=("cpus",),
    pool="node1",
    device="cpudevnuma001",
    cdi_ids=("dra.cpu/cpu=claim-a-0",),
    share_id="4a7f7009-39aa-4e12-b928-4b7a67ce0bdd",
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY = 4, 6, 7
ACK = 1
PINGS = 8640
"""Source of the numbers: RFC 9113, 3.4 and 6. A ping every ten seconds of a day."""


@pytest.fixture
def root() -> Iterator[Path]:
    """A kubelet directory with a short path: a socket's may have 107 bytes only."""
    with TemporaryDirectory(prefix="k") as path:
        (Path(path) / "plugins_registry").mkdir()
        yield Path(path)


def sockets(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_socket())


def test_sockets_are_private_and_go_at_the_end(root: Path) -> None:
    """D5."""

    async def test() -> None:
        async with served(root, FakeClaims()):
            assert sockets(root) == ["plugins/dra.cpu/dra.sock", "plugins_registry/dra.cpu-reg.sock"]
            for path in (registration_socket(root, "dra.cpu"), service_socket(root, "dra.cpu")):
                assert stat.S_IMODE(path.stat().st_mode) == 0o600
                assert path.stat().st_uid == os.geteuid()
            assert stat.S_IMODE(service_socket(root, "dra.cpu").parent.stat().st_mode) == 0o700

    run(test)
    assert sockets(root) == []
    assert [p for p in root.rglob("*") if not p.is_dir()] == []


def test_kubelet_is_told_who_we_are_and_we_what_it_thinks(root: Path) -> None:
    """D5."""
    told: list[KubeletStatus] = []
    statuses = [KubeletStatus(registered=False, error="endpoint taken"), KubeletStatus(registered=True)]

    async def test() -> None:
        async with (
            served(root, FakeClaims(), on_status=told.append) as plugin,
            kubelet_of(registration_socket(root, "dra.cpu")) as kubelet,
        ):
            info = await kubelet.get_info()
            assert (info.type, info.name) == ("DRAPlugin", "dra.cpu")
            assert list(info.supported_versions) == [
                "v1.DRAPlugin",
                "v1.DRAResourceHealth",
                "v1alpha1.DRAResourceHealth",
            ]
            assert info.endpoint == str(service_socket(root, "dra.cpu"))
            for status in statuses:
                await kubelet.notify(registered=status.registered, error=status.error)
                assert plugin.status == status

    run(test)
    assert told == statuses


def test_stale_socket_is_replaced_and_a_successors_is_left_alone(root: Path) -> None:
    """R5: only our own sockets are removed."""
    path = registration_socket(root, "dra.cpu")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))

    async def test() -> None:
        async with served(root, FakeClaims()), kubelet_of(path) as kubelet:
            assert (await kubelet.get_info()).name == "dra.cpu"
            path.unlink()
            with socket.socket(socket.AF_UNIX) as successor:
                successor.bind(str(path))

    run(test)
    assert sockets(root) == ["plugins_registry/dra.cpu-reg.sock"]


def test_removed_socket_comes_back(root: Path) -> None:
    """D5: calls on connections that exist go on, new ones find the new socket."""

    async def test() -> None:
        claims = FakeClaims({"a": (DEVICE,)})
        claims.gates["a"] = asyncio.Event()
        async with served(root, claims, check_s=0.01), kubelet_of(service_socket(root, "dra.cpu")) as old:
            under_way = asyncio.create_task(old.prepare(claim("a")))
            await claims.called.wait()
            for path in (registration_socket(root, "dra.cpu"), service_socket(root, "dra.cpu")):
                path.unlink()
            await until(lambda: len(sockets(root)) == 2)
            async with kubelet_of(service_socket(root, "dra.cpu")) as new:
                assert (await new.prepare(claim("b")))["b"].error == ""
            async with kubelet_of(registration_socket(root, "dra.cpu")) as new:
                assert (await new.get_info()).name == "dra.cpu"
            claims.gates["a"].set()
            assert (await under_way)["a"].devices[0].device_name == "cpudevnuma001"

    run(test)


@pytest.mark.parametrize("places", [(service_socket,), (service_socket, registration_socket)], ids=["one", "both"])
def test_socket_that_cannot_come_back_yet_is_tried_again(
    root: Path, caplog: pytest.LogCaptureFixture, places: Sequence[Callable[[Path, str], Path]]
) -> None:
    """D5: the daemon does not end for it, which would take the link to the runtime along; it is told once each time."""

    def is_told(times: int) -> bool:
        return caplog.text.count("cannot be opened") >= times

    async def test() -> None:
        async with served(root, FakeClaims(), check_s=0.01):
            paths = [place(root, "dra.cpu") for place in places]
            for told in (len(paths), 2 * len(paths)):
                for path in paths:
                    path.unlink()
                    path.parent.rename(root / f"away-{told}-{path.parent.name}")
                    path.parent.write_text("")
                await until(partial(is_told, told))
                await asyncio.sleep(0.05)
                assert caplog.text.count("cannot be opened") == told
                for path in paths:
                    path.parent.unlink()
                await until(lambda: all(path.is_socket() for path in paths))
            async with kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
                assert (await kubelet.prepare(claim("b")))["b"].error == ""

    run(test)


def test_socket_is_shown_again_to_a_kubelet_that_has_not_seen_it(root: Path) -> None:
    """D5, U86: its watch may have failed; once it has said something, no more."""

    async def test() -> None:
        path = registration_socket(root, "dra.cpu")
        async with served(root, FakeClaims(), check_s=0.01, expected_s=0.05):
            first = path.stat().st_ino
            await until(lambda: path.exists() and path.stat().st_ino != first)
            async with kubelet_of(path) as kubelet:
                assert (await kubelet.get_info()).name == "dra.cpu"
                await kubelet.notify(registered=True)
        async with served(root, FakeClaims(), check_s=0.01, expected_s=0.05) as plugin:
            async with kubelet_of(path) as kubelet:
                await kubelet.notify(registered=False, error="no room")
            assert plugin.status is not None
            assert plugin.status.error == "no room"

    run(test)


def test_path_that_is_too_long_is_refused_by_its_limit(root: Path) -> None:
    deep = root / ("d" * 80)
    plugin = KubeletPlugin(driver="dra.cpu", kubelet=deep, claims=FakeClaims())

    async def test() -> None:
        with pytest.raises(HostError, match=r"bytes, Linux allows 107.*shorten the kubelet directory"):
            await plugin.run()

    run(test)
    assert not deep.exists()


def test_directory_that_cannot_be_used_is_named(root: Path) -> None:
    (root / "plugins").write_text("")

    async def test() -> None:
        with pytest.raises(ExceptionGroup) as raised:
            await KubeletPlugin(driver="dra.cpu", kubelet=root, claims=FakeClaims()).run()
        (error,) = raised.value.exceptions
        assert isinstance(error, HostError)
        assert "plugins/dra.cpu/dra.sock" in error.message

    run(test)


def test_each_claim_of_a_call_has_its_own_answer(root: Path) -> None:
    """C1: one that fails does not affect the others; exactly one entry for each UID."""
    refused = NoCapacity("claim shop/b: 6 CPUs asked on numa 1, 4 free (4-7)", hint="free a claim there")

    async def test() -> None:
        claims = FakeClaims({"a": (DEVICE,), "b": refused, "c": ()})
        async with served(root, claims), kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
            answers = await kubelet.prepare(claim("a"), claim("b"), claim("../x"), claim("c"), claim("a"))
            assert set(answers) == {"a", "b", "c", "../x"}
            assert answers["a"] == dra_pb2.NodePrepareResourceResponse(
                devices=[
                    dra_pb2.Device(
                        request_names=["cpus"],
                        pool_name="node1",
                        device_name="cpudevnuma001",
                        cdi_device_ids=["dra.cpu/cpu=claim-a-0"],
                        share_id=DEVICE.share_id,
                    )
                ]
            )
            assert answers["b"].error == str(refused)
            assert answers["c"] == dra_pb2.NodePrepareResourceResponse()
            assert "malformed" in answers["../x"].error
            assert len(claims.calls) == 3
            assert await kubelet.unprepare(claim("a"), claim("b")) == {"a": "", "b": str(refused)}
            assert await kubelet.prepare() == {}
            assert await kubelet.unprepare() == {}

    run(test)


def test_claims_of_a_call_are_worked_on_side_by_side(root: Path) -> None:
    async def test() -> None:
        claims = FakeClaims()
        claims.gates["a"] = asyncio.Event()
        async with served(root, claims), kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
            under_way = asyncio.create_task(kubelet.prepare(claim("a"), claim("b")))
            await until(lambda: claims.done == ["prepare shop/web b"])
            claims.gates["a"].set()
            await under_way

    run(test)


def test_repeat_waits_for_what_is_under_way(root: Path) -> None:
    """C6: one operation for a claim at a time, in their order."""

    async def test() -> None:
        claims = FakeClaims()
        claims.gates["a"] = asyncio.Event()
        async with served(root, claims), kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
            first = asyncio.create_task(kubelet.prepare(claim("a")))
            await claims.called.wait()
            second = asyncio.create_task(kubelet.unprepare(claim("a")))
            assert (await kubelet.prepare(claim("b")))["b"].error == ""
            assert claims.calls == ["prepare shop/web a", "prepare shop/web b"]
            claims.gates["a"].set()
            await first
            await second
            assert claims.calls[-1] == "unprepare a"

    run(test)


def test_operation_outlives_its_call(root: Path) -> None:
    """C7: the answer leaves before the deadline, and the next call finds what was done."""

    async def test() -> None:
        claims = FakeClaims({"a": (DEVICE,)})
        claims.gates["a"] = asyncio.Event()
        async with served(root, claims), kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
            # gRPC rounds the time that is left up: a little less than twice the budget below.
            answers = await kubelet.prepare(claim("a"), claim("b"), timeout_s=0.39)
            assert answers["a"].error.startswith("claim UID a: prepare takes longer than the call may")
            assert answers["b"].error == ""
            assert 0 < claims.budgets[0] <= 0.2
            gone = asyncio.create_task(kubelet.prepare(claim("c")))
            claims.gates["c"] = asyncio.Event()
            await until(lambda: len(claims.calls) == 3)
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            claims.gates["a"].set()
            claims.gates["c"].set()
            await until(lambda: len(claims.done) == 3)
            assert (await kubelet.prepare(claim("a")))["a"].devices[0].device_name == "cpudevnuma001"

    run(test)


def test_calls_in_hand_end_before_the_service_does(root: Path) -> None:
    """R5."""

    async def test() -> None:
        claims = FakeClaims({"a": (DEVICE,)})
        claims.gates["a"] = asyncio.Event()
        plugin = KubeletPlugin(driver="dra.cpu", kubelet=root, claims=claims)
        running = asyncio.create_task(plugin.run())
        await plugin.bound.wait()
        async with kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
            under_way = asyncio.create_task(kubelet.prepare(claim("a")))
            await claims.called.wait()
            running.cancel()
            await until(lambda: sockets(root) == [])
            claims.gates["a"].set()
            assert (await under_way)["a"].devices[0].device_name == "cpudevnuma001"
        with pytest.raises(asyncio.CancelledError):
            await running

    run(test)


def test_hostile_bytes_are_refused_and_the_service_goes_on(root: Path) -> None:
    async def test() -> None:
        async with served(root, FakeClaims()), kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
            for method in ("NodePrepareResources", "NodeUnprepareResources", "Nothing"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await kubelet.call(f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}", b"\xff\xff\xff")
            assert (await kubelet.prepare(claim("a")))["a"].error == ""

    run(test)


def test_connection_that_only_pings_is_kept_however_often_it_does(root: Path) -> None:
    """U87: the pings of a day without calls, in a moment; a server may take them for abuse and end the connection."""

    async def test() -> None:
        async with served(root, FakeClaims()):
            reader, writer = await asyncio.open_unix_connection(service_socket(root, "dra.cpu"))
            writer.write(PREFACE + http2_frame(SETTINGS))
            for number in range(PINGS):
                writer.write(http2_frame(PING, number.to_bytes(8, "big")))
            answered = 0
            async with asyncio.timeout(20):
                while answered < PINGS:
                    kind, flags, payload = await read_frame(reader)
                    assert kind != GOAWAY, payload
                    if kind == PING and flags == ACK:
                        assert int.from_bytes(payload, "big") == answered
                        answered += 1
            writer.close()
            await writer.wait_closed()

    run(test)


def test_peers_that_connect_and_say_nothing_more_hold_up_nobody(root: Path) -> None:
    """U87: half a greeting, or none, from peers of whom nothing is heard again."""

    async def test() -> None:
        async with served(root, FakeClaims()):
            silent = [await asyncio.open_unix_connection(service_socket(root, "dra.cpu")) for _ in range(50)]
            for _, writer in silent[::2]:
                writer.write(PREFACE[:9])
            async with kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
                assert (await kubelet.prepare(claim("a")))["a"].error == ""
            for _, writer in silent:
                writer.close()
                await writer.wait_closed()

    run(test)


def http2_frame(kind: int, payload: bytes = b"") -> bytes:
    """Return a frame that concerns the connection."""
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + bytes(4) + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, int, bytes]:
    """Return the next frame's kind, flags and payload."""
    head = await reader.readexactly(9)
    return head[3], head[4], await reader.readexactly(int.from_bytes(head[:3], "big"))
