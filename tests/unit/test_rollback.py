"""A disk that fails at taking back what it has just written: no start finds a CPU with two owners (R1, U37, U42)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import StateError
from nodecpu.ids import ClaimUID, ContainerID
from nodecpu.policy.facts import QoS
from nodecpu.policy.plan import Change
from nodecpu.store.claims import Job
from tests.node import Node, PodShape, Scene, claim, play

NUMA_1 = "cpudevnuma001"
FIRST, SECOND = claim(1, (NUMA_1, 2)), claim(2, (NUMA_1, 2))


def fail_after(node: Node, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the claims database take so many commits more, and then none."""
    write = node.started.claim_store._write
    left = [writes]

    def failing(puts: Iterable[tuple[ClaimUID, bytes]], drops: Iterable[tuple[ClaimUID]]) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise StateError("the disk is full")
        write(puts, drops)

    monkeypatch.setattr(node.started.claim_store, "_write", failing)


def stored(node: Node) -> dict[str, str]:
    return {one.name: str(one.cpus) for one in node.started.claim_store.load()}


async def leave_row(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the spec of the first claim fail to be written, and the disk at the row that is on it."""
    with monkeypatch.context() as broken:
        fail_after(node, 1, broken)
        node.specs.fails = True
        with pytest.raises(StateError, match="the disk is full"):
            await node.prepare(FIRST, budget_s=0)
        node.specs.fails = False
    assert stored(node) == {"claim-1": "4-5"}


def test_row_that_could_not_be_taken_back_goes_with_the_next_claims_commit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The containers' database refuses a claim, and the disk fails at the row that is on it."""

    async def story(node: Node) -> None:
        crowd = PodShape(number=7)
        node.create(crowd.sandbox, crowd.container("c7"))
        await refuse_by_containers(node, monkeypatch)
        assert FIRST.uid not in node.service.books.ledger.claims
        await node.prepare(SECOND)
        assert stored(node) == {"claim-2": "4-5"}

    play(scene, story)


def test_row_of_a_claim_that_a_container_still_holds_is_brought_back_with_the_next_claims_commit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C12: it was prepared again, which the containers' database refuses; then the disk fails."""

    async def story(node: Node) -> None:
        await node.prepare(FIRST)
        pod = PodShape(number=1, claims=(FIRST.name,))
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c1", node.env_of(FIRST.uid)))
        await node.claims.unprepare(FIRST.uid)
        with monkeypatch.context() as broken:
            fail_after(node, 1, broken)
            broken.setattr(node.started.container_store, "commit", _refusing)
            with pytest.raises(StateError, match="no space in /run"):
                await node.prepare(FIRST, budget_s=0)
        assert [one.released for one in node.started.claim_store.load()] == [False]
        await node.prepare(SECOND)
        assert [(one.name, one.released) for one in node.started.claim_store.load()] == [
            ("claim-1", True),
            ("claim-2", False),
        ]

    play(scene, story)


def test_row_left_by_a_spec_that_could_not_be_written_goes_as_well(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(node: Node) -> None:
        await leave_row(node, monkeypatch)
        await node.prepare(SECOND)
        assert stored(node) == {"claim-2": "4-5"}
        await node.prepare(FIRST)
        assert stored(node) == {"claim-1": "6-7", "claim-2": "4-5"}

    play(scene, story)


def test_row_left_behind_is_gone_when_its_claim_is_unprepared(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: it may be allocated anew then, which no start could tell from the row; others are not held up."""

    async def story(node: Node) -> None:
        await leave_row(node, monkeypatch)
        with monkeypatch.context() as broken:
            fail_after(node, 0, broken)
            with pytest.raises(StateError, match="the disk is full"):
                await node.claims.unprepare(FIRST.uid)
            await node.claims.unprepare(SECOND.uid)
        await node.claims.unprepare(FIRST.uid)
        assert stored(node) == {}

    play(scene, story)


def test_row_left_behind_is_not_dropped_once_its_claim_is_prepared_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: nor by a claim that is committed after it and before the books know of it."""

    async def story(node: Node) -> None:
        await leave_row(node, monkeypatch)
        commit = node.started.claim_store.commit
        with monkeypatch.context() as single:
            single.setattr(node.started.claim_store, "commit", lambda jobs: [commit([job]) for job in jobs])
            await asyncio.gather(node.prepare(FIRST), node.prepare(SECOND))
        assert stored(node).keys() == {"claim-1", "claim-2"}

    play(scene, story)


def test_claims_that_share_cpus_in_the_database_are_told_apart_at_the_start(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever has a container keeps the CPUs; the other one is picked anew at its next prepare."""

    async def whole() -> None:
        node = scene.boot()
        node.synchronize()
        await node.prepare(FIRST)
        await node.prepare(SECOND)
        pod = PodShape(number=2, claims=(SECOND.name,))
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c2", node.env_of(SECOND.uid)))
        grant = node.service.books.ledger.claims[FIRST.uid]
        result = replace(grant.results[0], cpus=CpuSet.parse("6-7"))
        node.started.claim_store.commit([Job(puts=(replace(grant, results=(result,)),))])
        await node.crash()
        again = scene.boot()
        again.check()
        assert "claim has CPUs of another one in the database" in caplog.text
        again.synchronize()
        assert scene.runtime.processes[ContainerID("c2")].cpus == CpuSet.parse("6-7")
        await again.prepare(FIRST)
        assert again.service.books.ledger.claims[FIRST.uid].cpus == CpuSet.parse("4-5")
        again.check()
        await again.crash()

    asyncio.run(whole())


def crowd_onto(node: Node, cpus: CpuSet) -> ContainerID:
    """Create containers with CPUs of their own until one of them has these; return which."""
    for number in range(50, 58):
        pod = PodShape(number=number, qos=QoS.GUARANTEED, request_mcpu=2000, limit_mcpu=2000)
        node.service.pod_seen(pod.spec)
        if node.create(pod.sandbox, pod.container(f"c{number}")) == cpus:
            return ContainerID(f"c{number}")
    raise AssertionError(f"nobody got {cpus}")


async def refuse_by_containers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the containers' database refuse the first claim, and the disk fail at the row that is on it."""
    with monkeypatch.context() as broken:
        fail_after(node, 1, broken)
        broken.setattr(node.started.container_store, "commit", _refusing)
        with pytest.raises(StateError, match="no space in /run"):
            await node.prepare(FIRST, budget_s=0)
    assert stored(node) == {"claim-1": "4-5"}


@pytest.mark.parametrize("refuse", [leave_row, refuse_by_containers], ids=["no-spec", "no-containers-row"])
def test_container_keeps_the_cpus_of_a_refused_claim_whose_row_is_still_there_at_the_next_start(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refuse: Callable[[Node, pytest.MonkeyPatch], Awaitable[None]],
) -> None:
    """R1: killed before any claim's commit took the row along; nobody was told of that claim, so it gets others."""

    async def whole() -> None:
        node = scene.boot()
        node.synchronize()
        crowd = PodShape(number=7)
        node.create(crowd.sandbox, crowd.container("c7"))
        await refuse(node, monkeypatch)
        owner = crowd_onto(node, CpuSet.parse("4-5"))
        await node.crash()
        again = scene.boot()
        again.check()
        assert "claim was refused, but the disk failed before its row was taken back" in caplog.text
        again.synchronize()
        assert scene.runtime.processes[owner].cpus == CpuSet.parse("4-5")
        assert scene.runtime.processes[owner].writes == 0
        await again.crash()
        scene.runtime.processes.pop(owner)
        third = scene.boot()
        third.synchronize()
        # Its CPUs are free again, and other claims may get them: it does not come back to them by itself.
        await third.prepare(SECOND)
        await third.crash()
        last = scene.boot()
        last.check()
        last.synchronize()
        assert last.service.books.ledger.claims[SECOND.uid].cpus == CpuSet.parse("4-5")
        assert not last.service.books.ledger.claims[SECOND.uid].moved
        await last.crash()

    asyncio.run(whole())


def test_claim_to_be_picked_anew_follows_what_was_allocated_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6: it was deallocated and allocated again, which the books do not know yet."""
    other = replace(FIRST, results=claim(1, ("cpudevnuma000", 1)).results)

    async def whole() -> None:
        node = scene.boot()
        node.synchronize()
        await leave_row(node, monkeypatch)
        crowd_onto(node, CpuSet.parse("4-5"))
        await node.crash()
        again = scene.boot()
        again.synchronize()
        (device,) = await again.prepare(other, budget_s=0)
        assert device.device == "cpudevnuma000"
        again.check()
        await again.crash()

    asyncio.run(whole())


def _refusing(_: Change) -> None:
    raise StateError("no space in /run")
