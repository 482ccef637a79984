"""The played runtime against a plugin of every kind: answers, refusals, silence, conflicts, unsolicited updates."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.lab.cgroups import ModelCgroups
from nodecpu.lab.containers import ContainerConfig, ContainerRecord, SandboxConfig, SandboxRecord
from nodecpu.lab.flavours import FLAVOURS
from nodecpu.lab.pluginhost import RuntimeSettings, cut
from nodecpu.lab.podspec import Figures, cgroup_parent
from nodecpu.lab.runtime import Runtime, RuntimeFault
from nodecpu.lab.trace import Trace
from nodecpu.proto import nri_pb2
from tests.lab_plugin import Plugin, connected

BASIC = 0x7FF


def adjusted(cpus: str) -> nri_pb2.CreateContainerResponse:
    return nri_pb2.CreateContainerResponse(
        adjust=nri_pb2.ContainerAdjustment(linux=nri_pb2.LinuxContainerAdjustment(resources=resources(cpus)))
    )


def resources(cpus: str) -> nri_pb2.LinuxResources:
    return nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(cpus=cpus))


def update(container_id: str, cpus: str) -> nri_pb2.ContainerUpdate:
    return nri_pb2.ContainerUpdate(
        container_id=container_id, linux=nri_pb2.LinuxContainerUpdate(resources=resources(cpus))
    )


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one, unlike pytest's: the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="lab") as room:
        yield Path(room)


class Node:
    """A runtime on a machine of four CPUs."""

    def __init__(self, root: Path, flavour: str, **changes: float) -> None:
        self.cgroups = ModelCgroups(root / "cgroup", cpus=CpuSet.parse("0-3"), mems=NodeSet.parse("0"))
        self.socket = root / "nri.sock"
        settings = RuntimeSettings(
            flavour=FLAVOURS[flavour],
            socket=self.socket,
            cdi_directory=root / "cdi",
            request_timeout_s=changes.get("request_timeout_s", 5.0),
            message_limit_bytes=int(changes.get("message_limit_bytes", 4 << 20)),
        )
        self.runtime = Runtime(settings, self.cgroups, Trace())

    async def sandbox(self, name: str = "pod") -> SandboxRecord:
        parent = cgroup_parent(name, "BestEffort", self.runtime.settings.cgroup_driver)
        config = SandboxConfig(uid=name, namespace="default", name=name, cgroup_parent=parent, figures=Figures())
        return await self.runtime.run_sandbox(config)

    async def container(self, sandbox: SandboxRecord, name: str = "c") -> ContainerRecord:
        record = await self.runtime.create_container(sandbox, ContainerConfig(name=name, figures=Figures()))
        await self.runtime.start_container(record)
        return record

    def cpus(self, record: ContainerRecord) -> str:
        found = self.cgroups.effective(record.directory)
        assert found is not None
        return str(found.cpus)


@asynccontextmanager
async def node(root: Path, flavour: str = "containerd-2.4", **changes: float) -> AsyncIterator[Node]:
    one = Node(root, flavour, **changes)
    one.cgroups.open()
    async with asyncio.TaskGroup() as tasks:
        await one.runtime.start(tasks)
        try:
            yield one
        finally:
            await one.runtime.stop()


def test_adjustment_reaches_the_cgroup_before_the_container_starts(tmp_path: Path) -> None:
    async def play() -> None:
        async with node(tmp_path) as one, connected(Plugin({"CreateContainer": adjusted("1")}), one.socket) as plugin:
            record = await one.container(await one.sandbox())
            assert one.cpus(record) == "1"
            assert 'cpus: "1"' in str(dict(plugin.calls)["PostCreateContainer"])

    asyncio.run(play())


def test_empty_cpuset_changes_nothing_and_is_noticed(tmp_path: Path) -> None:
    async def play() -> None:
        async with node(tmp_path) as one, connected(Plugin({"CreateContainer": adjusted("1")}), one.socket) as plugin:
            record = await one.container(await one.sandbox())
            assert (await plugin.update(update(record.id, ""))).error is None
            assert one.cpus(record) == "1"
            assert "says nothing" in one.runtime.plugins.faults[0]

    asyncio.run(play())


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_silent_plugin_is_dropped_and_the_container_runs_unpinned(flavour: str, tmp_path: Path) -> None:
    async def play() -> None:
        async with node(tmp_path, flavour, request_timeout_s=0.2) as one:
            async with connected(Plugin(events=BASIC), one.socket) as plugin:
                sandbox = await one.sandbox()
                plugin.silent.add("CreateContainer")
                record = await one.container(sandbox)
                assert one.cpus(record) == "0-3"
                await plugin.closed.wait()
            assert one.runtime.plugins.dropped == 1

    asyncio.run(play())


def test_silent_validator_fails_the_creation(tmp_path: Path) -> None:
    async def play() -> None:
        async with node(tmp_path, request_timeout_s=0.2) as one, connected(Plugin(), one.socket) as plugin:
            sandbox = await one.sandbox()
            plugin.silent.add("CreateContainer")
            with pytest.raises(RuntimeFault, match="validator plugin 'observer' failed"):
                await one.container(sandbox)

    asyncio.run(play())


def test_two_plugins_that_set_one_field_conflict(tmp_path: Path) -> None:
    async def play() -> None:
        async with (
            node(tmp_path) as one,
            connected(Plugin({"CreateContainer": adjusted("1")}, index="10"), one.socket),
            connected(Plugin({"CreateContainer": adjusted("2")}, index="20"), one.socket),
        ):
            with pytest.raises(RuntimeFault, match=r"both tried to set cpu\.cpus"):
                await one.container(await one.sandbox())

    asyncio.run(play())


def test_update_of_the_container_being_created_fails_its_creation(tmp_path: Path) -> None:
    class Clumsy(Plugin):
        def _reply(self, method: str, message: object) -> bytes:
            if isinstance(message, nri_pb2.CreateContainerRequest):
                return nri_pb2.CreateContainerResponse(update=[update(message.container.id, "1")]).SerializeToString()
            return super()._reply(method, message)  # type: ignore[arg-type]  # as it came

    async def play() -> None:
        async with node(tmp_path) as one, connected(Clumsy(), one.socket):
            with pytest.raises(RuntimeFault, match="container being created"):
                await one.container(await one.sandbox())

    asyncio.run(play())


def test_updates_of_unknown_containers_are_skipped_and_impossible_ones_fail(tmp_path: Path) -> None:
    async def play() -> None:
        async with node(tmp_path) as one, connected(Plugin({"CreateContainer": adjusted("1")}), one.socket) as plugin:
            record = await one.container(await one.sandbox())
            assert (await plugin.update(update("nobody", "1"))).error is None
            failed = await plugin.update(update(record.id, "9"))
            assert failed.error is not None
            assert failed.error.message == "NRI update of some containers failed"
            assert one.cpus(record) == "1"

    asyncio.run(play())


def test_unsolicited_update_during_a_request_is_a_fault_on_affected_runtimes(tmp_path: Path) -> None:
    async def play(flavour: str) -> list[str]:
        async with node(tmp_path / flavour, flavour) as one, connected(Plugin(events=BASIC), one.socket) as plugin:
            sandbox = await one.sandbox()
            async with asyncio.TaskGroup() as tasks, one.runtime.plugins.lifecycle:
                asked = tasks.create_task(plugin.update(update("nobody", "1")))
                while len(one.runtime.plugins.faults) == 0 and not one.runtime.plugins.waiting:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            assert asked.result().error is None
            assert sandbox.ready
            return one.runtime.plugins.faults

    for flavour in FLAVOURS:
        (tmp_path / flavour).mkdir()
    assert asyncio.run(play("containerd-2.4")) == []
    assert "would have blocked" in asyncio.run(play("containerd-2.1"))[0]


@pytest.mark.parametrize(
    ("plugin", "why"),
    [
        pytest.param(Plugin(events=1 << 20), "mask", id="unknown event"),
        pytest.param(Plugin(index="7"), "index", id="wrong index"),
    ],
)
def test_plugin_that_registers_wrongly_is_not_taken(plugin: Plugin, why: str, tmp_path: Path) -> None:
    async def play() -> None:
        async with node(tmp_path) as one, asyncio.TaskGroup() as tasks:
            tasks.create_task(plugin.run(one.socket))
            if why == "mask":
                async with asyncio.timeout(20):
                    await plugin.closed.wait()
            else:
                async with asyncio.timeout(20):
                    while not one.runtime.plugins.refused:  # noqa: ASYNC110 - nobody tells
                        await asyncio.sleep(0.01)
                plugin.close()
            assert not one.runtime.plugins.plugins

    asyncio.run(play())


def test_containers_outlive_a_restart_and_are_synchronised_again(tmp_path: Path) -> None:
    async def play() -> None:
        async with node(tmp_path) as one, asyncio.TaskGroup() as tasks:
            async with connected(Plugin({"CreateContainer": adjusted("1")}), one.socket) as first:
                record = await one.container(await one.sandbox())
                await one.runtime.stop()
                await first.closed.wait()
            assert one.cpus(record) == "1"
            await one.runtime.start(tasks)
            async with connected(Plugin(), one.socket) as second:
                listed = dict(second.calls)["Synchronize"]
                assert isinstance(listed, nri_pb2.SynchronizeRequest)
                assert [container.linux.resources.cpu.cpus for container in listed.containers] == ["1"]
                await one.runtime.stop_sandbox(record.sandbox)
                await one.runtime.remove_sandbox(record.sandbox)
                assert [method for method, _ in second.calls[2:]] == ["StopContainer", "RemoveContainer"]
            await one.runtime.stop()

    asyncio.run(play())


@pytest.mark.parametrize("count", [0, 1, 9, 100])
def test_large_synchronisation_is_cut_and_loses_nothing(count: int) -> None:
    pods = [nri_pb2.PodSandbox(id=f"p{n}", name="x" * 100) for n in range(count)]
    containers = [nri_pb2.Container(id=f"c{n}", name="y" * 300) for n in range(2 * count)]
    parts = list(cut(pods, containers, 4000))
    assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
    assert [pod.id for part in parts for pod in part.pods] == [pod.id for pod in pods]
    assert [one.id for part in parts for one in part.containers] == [one.id for one in containers]


def test_plugin_gets_a_large_synchronisation_in_parts(tmp_path: Path) -> None:
    async def play() -> None:
        async with node(tmp_path, message_limit_bytes=20000) as one:
            sandbox = await one.sandbox()
            for number in range(30):
                await one.container(sandbox, f"c{number}")
            async with connected(Plugin(), one.socket) as plugin:
                parts = [message for method, message in plugin.calls if method == "Synchronize"]
                assert len(parts) > 1
                assert sum(len(one.containers) for one in parts if isinstance(one, nri_pb2.SynchronizeRequest)) == 30

    asyncio.run(play())
