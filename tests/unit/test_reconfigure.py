"""Another configuration while running: whole or not at all, claims first, nothing moves that need not (R3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import ClaimConflict, NoCapacity, StateError
from nodecpu.ids import ContainerID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.plan import Change
from tests.node import Node, PodShape, Scene, claim, scene_in_memory

# n4c16: node 0 = 0-3, node 1 = 4-7, node 2 = 8-11, node 3 = 12-15; CPU 15 reserved.


@asynccontextmanager
async def node_of(scene: Scene) -> AsyncIterator[Node]:
    node = scene.boot()
    node.synchronize()
    try:
        yield node
    finally:
        await node.crash()


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    scene, directory = scene_in_memory()
    with directory:
        asyncio.run(_run(story, scene))


async def _run(story: Callable[[Scene], Awaitable[None]], scene: Scene) -> None:
    await story(scene)


def create(node: Node, pod: PodShape) -> CpuSet:
    node.service.pod_seen(pod.spec)
    return node.create(pod.sandbox, pod.container(f"c{pod.number}"))


def where(node: Node, number: int) -> str:
    """Return what a pod's container really runs on, after the audit."""
    node.audit()
    return str(node.runtime.processes[ContainerID(f"c{number}")].cpus)


def books_of(node: Node) -> tuple[object, ...]:
    ledger = node.service.books.ledger
    return dict(ledger.claims), dict(ledger.containers), ledger.tree.usable, node.service.rules


GUARANTEED = PodShape(number=1, qos=QoS.GUARANTEED, request_mcpu=2000)
SHARED = PodShape(number=2)
SYSTEM = PodShape(number=3, namespace="kube-system")


def test_same_configuration_changes_nothing_and_sends_nothing() -> None:
    """R3."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            await node.prepare(claim(1, ("cpudevnuma001", 2)))
            for pod in (GUARANTEED, SHARED, SYSTEM):
                create(node, pod)
            node.audit()
            before = books_of(node)
            kicks = node.kicks
            node.reload(scene.config())
            assert books_of(node) == before
            assert not node.service.books.pending.is_open
            assert node.kicks == kicks
            node.check()

    play(story)


def test_a_claim_and_a_container_of_one_id_survive_a_reconfiguration_and_a_restart() -> None:
    """R3, R1, C4: "a claim and a container with the same ID both surviving a reconfiguration and a round trip"."""

    async def story(scene: Scene) -> None:
        uid = claim(1).uid
        async with node_of(scene) as node:
            await node.prepare(claim(1, ("cpudevnuma001", 2)))
            node.service.pod_seen(GUARANTEED.spec)
            own = node.create(GUARANTEED.sandbox, GUARANTEED.container(str(uid)))
            scene.reserved = "12-15"
            node.reload(scene.config())
            ledger = node.service.books.ledger
            assert (ledger.claims[uid].cpus, ledger.containers[ContainerID(uid)].exclusive) == (CpuSet([4, 5]), own)
            node.check()
        async with node_of(scene) as node:
            ledger = node.service.books.ledger
            assert (ledger.claims[uid].cpus, ledger.containers[ContainerID(uid)].exclusive) == (CpuSet([4, 5]), own)

    play(story)


def test_a_holder_stays_on_its_claim_across_a_reconfiguration() -> None:
    """R3, L4: "A container holding a claim stays on it across a reconfiguration." """

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            await node.prepare(claim(1, ("cpudevnuma001", 2)))
            pod = PodShape(number=4, claims=(claim(1).name,))
            node.service.pod_seen(pod.spec)
            node.create(pod.sandbox, pod.container("c4", node.env_of(claim(1).uid)))
            scene.reserved = "6-7,15"
            node.reload(scene.config())
            assert where(node, 4) == "4-5"
            assert node.runtime.processes[ContainerID("c4")].writes == 0
            node.check()

    play(story)


def test_more_reserved_cpus_move_only_those_who_have_to() -> None:
    """R3, G8: the exclusive container keeps its CPUs, the others follow."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            assert create(node, GUARANTEED) == CpuSet([8, 9])
            create(node, SHARED)
            create(node, SYSTEM)
            scene.reserved = "12-15"
            node.reload(scene.config())
            assert where(node, 1) == "8-9"
            assert where(node, 3) == "12-15"
            shared = CpuSet.parse(where(node, 2))
            assert shared.isdisjoint(CpuSet.parse("8-9,12-15"))
            node.check()

    play(story)


def test_exclusive_cpus_that_are_taken_away_are_replaced() -> None:
    """R3."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            create(node, GUARANTEED)
            scene.reserved = "8-9"
            node.reload(scene.config())
            cpus = CpuSet.parse(where(node, 1))
            assert len(cpus) == 2
            assert cpus.isdisjoint(CpuSet([8, 9]))
            node.check()

    play(story)


def test_configuration_that_takes_cpus_from_claims_is_refused_with_their_names() -> None:
    """R3."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            await node.prepare(claim(1, ("cpudevnuma001", 2)))
            await node.prepare(claim(2, ("cpudevnuma002", 2), name="other"))
            create(node, SHARED)
            node.audit()
            before = books_of(node)
            scene.reserved = "5,9,15"
            with pytest.raises(ClaimConflict) as caught:
                node.reload(scene.config())
            told = "takes CPUs from 2 claims: shop/claim-1 (5), shop/other (9)"
            assert told in str(caught.value)
            assert books_of(node) == before
            assert not node.service.books.pending.is_open

    play(story)


def test_claim_being_prepared_keeps_its_cpus_too() -> None:
    """R3, C5: a prepare that waits for the disk is not overtaken."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            preparing = asyncio.create_task(node.prepare(claim(1, ("cpudevnuma001", 2))))
            while not node.service.books.ledger.holds:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0)
            scene.reserved = "4"
            with pytest.raises(ClaimConflict, match="one being prepared"):
                node.reload(scene.config())
            scene.reserved = "12,15"
            node.reload(scene.config())
            await preparing
            ledger = node.service.books.ledger
            assert [str(one.cpus) for one in ledger.claims.values()] == ["4-5"]
            assert not ledger.holds
            node.check()

    play(story)


def test_container_that_could_not_be_served_any_more_refuses_the_whole() -> None:
    """R3: containers after claims, and all or nothing."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            await node.prepare(claim(1, ("cpudevnuma000", 4), ("cpudevnuma001", 4)))
            create(node, PodShape(number=1, qos=QoS.GUARANTEED, request_mcpu=4000))
            before = books_of(node)
            scene.reserved = "8,12-15"
            with pytest.raises(NoCapacity, match="4 exclusive CPUs asked"):
                node.reload(scene.config())
            assert books_of(node) == before

    play(story)


class _Failing:
    def commit(self, change: Change) -> None:
        raise StateError("the disk is full", hint="make room")


def test_failed_commit_changes_nothing() -> None:
    """R3: one transaction."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            create(node, GUARANTEED)
            before = books_of(node)
            node.service.books._store = _Failing()
            scene.reserved = "8-9"
            with pytest.raises(StateError):
                node.reload(scene.config())
            assert books_of(node) == before

    play(story)


def test_switch_to_flat_shares_exclusive_cpus_and_back() -> None:
    """P1, R3: claims keep theirs."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            await node.prepare(claim(1, ("cpudevnuma000", 2)))
            create(node, GUARANTEED)
            create(node, SYSTEM)
            scene.extra = 'mode = "flat"'
            node.reload(scene.config())
            assert where(node, 1) == "2-14"
            assert where(node, 3) == "2-14"
            scene.extra = ""
            node.reload(scene.config())
            assert len(CpuSet.parse(where(node, 1))) == 2
            assert where(node, 3) == "15"
            node.check()

    play(story)


def test_other_levels_settle_containers_into_what_there_is() -> None:
    """P1, R3."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            create(node, PodShape(number=2, qos=QoS.BURSTABLE, request_mcpu=500))
            assert where(node, 2) == "8-11"
            scene.extra = 'levels = ["socket"]'
            node.reload(scene.config())
            assert where(node, 2) in ("0-7", "8-14")
            grant: ContainerGrant = node.service.books.ledger.containers[ContainerID("c2")]
            assert grant.pool.startswith("socket")
            node.check()

    play(story)


def test_books_on_disk_are_those_of_the_new_configuration() -> None:
    """R1, R3: what is restored after a restart is what was in force."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            create(node, GUARANTEED)
            create(node, SHARED)
            scene.reserved = "8-9"
            node.reload(scene.config())
            node.audit()
            before = books_of(node)
        async with node_of(scene) as again:
            assert books_of(again) == before
            assert not again.service.books.pending.is_open

    play(story)


def test_start_with_a_conflicting_configuration_is_degraded_not_refused() -> None:
    """R3: the holder keeps its CPUs, nothing new comes from them, and a reload of the same is no conflict."""

    async def story(scene: Scene) -> None:
        async with node_of(scene) as node:
            await node.prepare(claim(1, ("cpudevnuma001", 2)))
        scene.reserved = "4-7"
        async with node_of(scene) as node:
            assert [str(one.cpus) for one in node.service.books.ledger.claims.values()] == ["4-5"]
            create(node, SYSTEM)
            assert where(node, 3) == "6-7"
            node.reload(scene.config())
            assert [str(one.cpus) for one in node.service.books.ledger.claims.values()] == ["4-5"]
            await node.claims.unprepare(claim(1).uid)
            assert not node.service.books.ledger.claims
            assert where(node, 3) == "4-7"

    play(story)


def test_waiting_prepare_is_served_when_the_new_configuration_makes_room() -> None:
    """C7, R3."""

    async def story(scene: Scene) -> None:
        scene.reserved = "4-7"
        async with node_of(scene) as node:
            await node.prepare(claim(2, ("cpudevnuma000", 4)))
            scene.reserved = "15"
            node.reload(scene.config())
            devices = await node.prepare(claim(1, ("cpudevnuma001", 4)))
            assert len(devices) == 1

    play(story)
