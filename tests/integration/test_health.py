"""The kubelet's health streams over the real socket (D6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import pytest

from nodecpu.dra.condition import Condition, Health
from nodecpu.dra.health import HealthService
from nodecpu.proto import health_pb2 as pb
from tests.kubelet import FakeClaims, kubelet_of, run, served

WELL = Condition(pool="node1", device="cpudevnuma000", health=Health.HEALTHY)
ILL = Condition(pool="node1", device="cpudevnuma001", health=Health.UNHEALTHY, message="CPUs 5 are offline")


@pytest.mark.parametrize("version", ["v1", "v1alpha1"])
def test_stream_begins_with_all_devices(tmp_path: Path, version: str) -> None:
    """D6: in both versions, on the DRA service's socket."""

    async def test() -> None:
        health = HealthService(lambda: (WELL, ILL), heartbeat_s=60)
        async with (
            served(tmp_path, FakeClaims(), health=health),
            kubelet_of(tmp_path / "plugins/dra.cpu/dra.sock") as kubelet,
        ):
            first = await anext(kubelet.watch_health(version))
            assert [
                (one.device.pool_name, one.device.device_name, one.health, one.message) for one in first.devices
            ] == [
                ("node1", "cpudevnuma000", pb.HEALTHY, ""),
                ("node1", "cpudevnuma001", pb.UNHEALTHY, "CPUs 5 are offline"),
            ]
            assert all(one.last_updated_time > 1_700_000_000 for one in first.devices)
            assert {one.health_check_timeout_seconds for one in first.devices} == {30}

    run(test)


def test_heartbeat_repeats_the_list_and_tells_what_changed(tmp_path: Path) -> None:
    """D6."""
    found = [WELL]

    async def test() -> None:
        health = HealthService(lambda: tuple(found), heartbeat_s=0.01)
        async with (
            served(tmp_path, FakeClaims(), health=health),
            kubelet_of(tmp_path / "plugins/dra.cpu/dra.sock") as kubelet,
        ):
            stream = kubelet.watch_health()
            assert len((await anext(stream)).devices) == 1
            assert len((await anext(stream)).devices) == 1
            found.append(ILL)
            while len((await anext(stream)).devices) == 1:
                pass

    run(test)


def test_change_is_told_at_once_to_all_streams(tmp_path: Path) -> None:
    """D6."""
    found = [WELL]

    async def test() -> None:
        health = HealthService(lambda: tuple(found), heartbeat_s=600)
        async with (
            served(tmp_path, FakeClaims(), health=health),
            kubelet_of(tmp_path / "plugins/dra.cpu/dra.sock") as kubelet,
        ):
            streams = [kubelet.watch_health(), kubelet.watch_health("v1")]
            for stream in streams:
                await anext(stream)
            found.append(ILL)
            health.changed()
            for stream in streams:
                assert len((await anext(stream)).devices) == 2

    run(test)


def test_open_streams_end_at_once_when_the_daemon_stops(tmp_path: Path) -> None:
    """R5, D6: the stop does not wait for the grace of calls in hand."""

    async def test() -> None:
        health = HealthService(lambda: (WELL,), heartbeat_s=600)
        loop = asyncio.get_running_loop()
        async with kubelet_of(tmp_path / "plugins/dra.cpu/dra.sock") as kubelet:
            async with served(tmp_path, FakeClaims(), health=health):
                stream = kubelet.watch_health()
                await anext(stream)
                begin = loop.time()
            with pytest.raises((StopAsyncIteration, grpc.aio.AioRpcError)):
                await anext(stream)
            assert loop.time() - begin < 4, "the grace is five seconds"

    run(test)
