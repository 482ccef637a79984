"""A state file system that is full or read-only: what holds keeps holding, what is new is refused, nothing is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import StateError
from nodecpu.ids import ContainerID
from nodecpu.policy.facts import QoS
from tests.node import Node, PodShape, Scene, claim

NODE1 = "cpudevnuma001"
HOLDER = PodShape(number=1, claims=("claim-1",))
LONG = "n" * 5000
"""Longer than a page: it never fits into what is allocated already."""

FULL = ("PRAGMA max_page_count=1", "PRAGMA max_page_count=100000")
READ_ONLY = ("PRAGMA query_only=1", "PRAGMA query_only=0")
FAULTS = pytest.mark.parametrize("fault", [FULL, READ_ONLY], ids=["full", "read-only"])


def play(scene: Scene, story: Callable[[Node], Awaitable[None]]) -> None:
    """Run a story on a node with a holder on its claim's CPUs."""

    async def whole() -> None:
        node = scene.boot()
        try:
            node.synchronize()
            await node.prepare(claim(1, (NODE1, 2)))
            node.service.pod_seen(HOLDER.spec)
            node.create(HOLDER.sandbox, HOLDER.container("c1", node.env_of(claim(1).uid)))
            before = scene.runtime.processes[ContainerID("c1")].cpus
            await story(node)
            node.check()
            assert scene.runtime.processes[ContainerID("c1")].cpus == before
        finally:
            await node.crash()

    asyncio.run(whole())


@FAULTS
def test_prepare_fails_retryably_and_leaves_nothing(scene: Scene, fault: tuple[str, str]) -> None:
    """C6, C11: also a restart finds nothing; with the disk back the next try succeeds."""
    wanted = replace(claim(2, (NODE1, 2)), name=LONG)

    async def story(node: Node) -> None:
        database = node.started.claim_store._db
        database.execute(fault[0])
        with pytest.raises(StateError, match="check the file system: full, read-only"):
            await node.prepare(wanted)
        assert list(node.service.books.ledger.claims) == [claim(1).uid]
        assert node.specs.claims() == (claim(1).uid,)
        assert await node.prepare(claim(1, (NODE1, 2))), "a prepared claim needs no disk"
        database.execute(fault[1])
        assert [one.uid for one in node.started.claim_store.load()] == [claim(1).uid]
        await node.prepare(wanted)
        assert node.specs.claims() == (claim(1).uid, claim(2).uid)

    play(scene, story)


@FAULTS
def test_unprepare_fails_retryably_and_keeps_the_cpus(scene: Scene, fault: tuple[str, str]) -> None:
    """C12: what is not on disk as released is not released."""

    async def story(node: Node) -> None:
        database = node.started.claim_store._db
        await node.prepare(claim(2, (NODE1, 2)))
        held = node.service.books.ledger.claims[claim(2).uid].cpus
        if fault is FULL:
            return  # a row that gets no longer needs no room
        database.execute(fault[0])
        with pytest.raises(StateError):
            await node.claims.unprepare(claim(2).uid)
        assert node.service.books.ledger.grantable(held) == CpuSet()
        database.execute(fault[1])
        await node.claims.unprepare(claim(2).uid)
        assert claim(2).uid not in node.service.books.ledger.claims

    play(scene, story)


@FAULTS
def test_a_container_that_cannot_be_recorded_is_refused_and_leaves_nothing(
    scene: Scene, fault: tuple[str, str]
) -> None:
    """The runtime's directory is a file system of its own: prepared claims do not suffer."""
    shape = PodShape(number=2, qos=QoS.GUARANTEED, request_mcpu=2000)

    async def story(node: Node) -> None:
        database = node.started.container_store._db
        node.service.pod_seen(shape.spec)
        free = node.service.books.ledger.grantable(CpuSet(range(16)))
        database.execute(fault[0])
        with pytest.raises(StateError):
            node.service.create_container(shape.sandbox, shape.container(f"c2{LONG}"))
        assert list(node.service.books.ledger.containers) == ["c1"]
        assert node.service.books.ledger.grantable(CpuSet(range(16))) == free
        database.execute(fault[1])
        assert len(node.create(shape.sandbox, shape.container("c2"))) == 2

    play(scene, story)


def test_a_claim_that_cannot_make_room_is_taken_back(scene: Scene) -> None:
    """C14, C5: the claim is on disk already when lifting the shared containers fails."""
    shape = PodShape(number=3, qos=QoS.BURSTABLE, request_mcpu=3000)

    async def story(node: Node) -> None:
        node.service.pod_seen(shape.spec)
        node.create(shape.sandbox, shape.container("c3"))
        pool = node.service.books.ledger.containers[ContainerID("c3")].pool
        device = f"cpudevnuma{int(pool.removeprefix('numa ')):03d}"
        amount = 2 if device == NODE1 else 3
        node.started.container_store._db.execute(READ_ONLY[0])
        with pytest.raises(StateError):
            await node.prepare(claim(4, (device, amount)))
        assert claim(4).uid not in node.service.books.ledger.claims
        assert [one.uid for one in node.started.claim_store.load()] == [claim(1).uid]
        assert node.specs.claims() == (claim(1).uid,)
        node.started.container_store._db.execute(READ_ONLY[1])
        await node.prepare(claim(4, (device, amount)))

    play(scene, story)
