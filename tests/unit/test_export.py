"""What containers read of what they got (X1)."""

# ruff: noqa: ASYNC240 - the files are in memory

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nodecpu.export import IN_CONTAINER, Export
from nodecpu.ids import ContainerID
from nodecpu.nri.convert import creation_reply
from nodecpu.policy.export import export_text
from nodecpu.policy.facts import QoS
from nodecpu.policy.plan import Change, Creation, Mount
from nodecpu.proto import nri_pb2
from tests.node import Node, PodShape, scene_in_memory
from tests.node import claim as node_claim
from tests.unit.policy.given import claim, create, prepare
from tests.unit.policy.machines import N4C16, Shape, books


def lines(text: str) -> dict[str, str]:
    return {name: value.strip('"') for name, _, value in (line.partition("=") for line in text.splitlines())}


def test_every_kind_of_cpu_is_told_and_together_they_are_what_it_runs_on() -> None:
    """X1."""
    node = books()
    held = prepare(node, claim(1, (1, 1), (1, 1)))
    grant = create(node, "a", mcpu=3500, claims=[held], qos=QoS.GUARANTEED)
    told = lines(export_text(node.ledger, node.ledger.containers[grant.id]))
    assert told["CLAIMED_CPUS"] == "4-5"
    assert told["CLAIM_1"] == f"{held.uid} shop/claim-1 * 4-5"
    assert told["EXCLUSIVE_CPUS"] == str(grant.exclusive)
    assert told["ISOLATED_CPUS"] == ""
    assert told["ALL_MEMS"] == told["DRAM_MEMS"] == "1"
    shared = create(node, "b")
    assert lines(export_text(node.ledger, shared))["SHARED_CPUS"] == "8-11"


def test_isolated_cpus_are_told_apart() -> None:
    """X1."""
    node = books(Shape(cores=4, isolated="2-3"), reserved="")
    told = lines(export_text(node.ledger, create(node, "a", mcpu=2000)))
    assert (told["EXCLUSIVE_CPUS"], told["ISOLATED_CPUS"]) == ("", "2-3")


def test_reserved_containers_are_told_the_reserved_cpus() -> None:
    """X1."""
    node = books(N4C16)
    told = lines(export_text(node.ledger, create(node, "a", mcpu=100, namespace="kube-system")))
    assert (told["SHARED_CPUS"], told["ALL_MEMS"]) == ("15", "0-3")


def play(story: Callable[[Node, Export, Path], Awaitable[None]]) -> None:
    async def run() -> None:
        scene, directory = scene_in_memory()
        with directory:
            node = scene.boot()
            place = scene.directory / "run" / "export"
            export = Export(place, node.service.books, enabled=True)
            node.service.mount_of = export.create
            node.synchronize()
            await story(node, export, place)
            await node.crash()

    asyncio.run(run())


def test_file_is_there_when_the_container_is_created_and_is_mounted_read_only() -> None:
    """X1."""

    async def story(node: Node, export: Export, place: Path) -> None:
        pod = PodShape(number=1)
        node.service.pod_seen(pod.spec)
        creation = node.service.create_container(pod.sandbox, pod.container("c1"))
        assert creation.mount == Mount(source=str(place / "c1"), destination=IN_CONTAINER)
        assert stat.S_IMODE((place / "c1").stat().st_mode) == 0o644
        assert lines((place / "c1").read_text())["SHARED_CPUS"] == "8-11"
        reply = nri_pb2.CreateContainerResponse.FromString(creation_reply(creation, ContainerID("c1")))
        (mount,) = reply.adjust.mounts
        assert (mount.source, mount.destination, mount.type) == (str(place / "c1"), IN_CONTAINER, "bind")
        assert {"bind", "ro"} <= set(mount.options)

    play(story)


def test_file_is_rewritten_in_place_when_what_it_says_changes() -> None:
    """X1: the mount stays with the file it was made of."""

    async def story(node: Node, export: Export, place: Path) -> None:
        pod = PodShape(number=1)
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c1"))
        opened = os.open(place / "c1", os.O_RDONLY)
        try:
            await node.prepare(node_claim(1, ("cpudevnuma002", 3)))
            await export.refresh()
            assert lines(os.pread(opened, 4096, 0).decode())["SHARED_CPUS"] == "11"
            await node.claims.unprepare(node_claim(1).uid)
            await export.refresh()
            assert lines(os.pread(opened, 4096, 0).decode())["SHARED_CPUS"] == "8-11"
            before = os.fstat(opened).st_mtime_ns
            await export.refresh()
            assert os.fstat(opened).st_mtime_ns == before, "nothing changed, nothing is written"
        finally:
            os.close(opened)

    play(story)


def test_file_goes_with_its_container_and_others_stay_without() -> None:
    """X1: also what a crash left behind."""

    async def story(node: Node, export: Export, place: Path) -> None:
        for number in (1, 2):
            pod = PodShape(number=number)
            node.service.pod_seen(pod.spec)
            export.enabled = number == 1
            node.create(pod.sandbox, pod.container(f"c{number}"))
        (place / "left-over").write_text("x")
        await export.refresh()
        assert sorted(path.name for path in place.iterdir()) == ["c1"]
        node.service.books.enact(Change(drop_containers=(ContainerID("c1"),)))
        await export.refresh()
        assert list(place.iterdir()) == []

    play(story)


def test_file_that_cannot_be_written_refuses_no_container() -> None:
    """X1."""

    async def story(node: Node, export: Export, place: Path) -> None:
        place.write_text("in the way")
        pod = PodShape(number=1)
        node.service.pod_seen(pod.spec)
        assert node.service.create_container(pod.sandbox, pod.container("c1")).mount is None
        assert export.create(ContainerID("../c1")) is None

    play(story)


def test_file_that_cannot_be_removed_or_listed_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """X1: whatever stands in the directory, or in its place; it is told once."""

    async def story(node: Node, export: Export, place: Path) -> None:
        (place / "not-ours").mkdir(parents=True)
        pod = PodShape(number=1)
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c1"))
        (place / "c1").unlink()
        (place / "c1").mkdir()
        node.service.books.enact(Change(drop_containers=(ContainerID("c1"),)))
        await export.refresh()
        await export.refresh()
        words = "the file of a container that is gone cannot be removed"
        assert [record.message for record in caplog.records].count(words) == 1
        shutil.rmtree(place)
        place.write_text("in the way")
        await export.refresh()

    play(story)


def test_creation_without_a_file_mounts_nothing() -> None:
    reply = nri_pb2.CreateContainerResponse.FromString(creation_reply(Creation(placement=None), ContainerID("c1")))
    assert not reply.adjust.mounts


def test_change_is_written_by_itself() -> None:
    """X1."""

    async def story(node: Node, export: Export, place: Path) -> None:
        node.service.books.exported = export.changed
        running = asyncio.create_task(export.run())
        pod = PodShape(number=1)
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c1"))
        await node.prepare(node_claim(1, ("cpudevnuma002", 3)))
        async with asyncio.timeout(5):
            while lines((place / "c1").read_text())["SHARED_CPUS"] != "11":  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(story)
