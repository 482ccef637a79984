"""What happens on one claim or container while something else about it is under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import ClaimConflict, HostError, NoCapacity, NotReady, StateError
from nodecpu.ids import ClaimUID, ContainerID, PodUID
from nodecpu.policy.facts import ContainerState, QoS
from nodecpu.policy.grants import ClaimGrant
from nodecpu.policy.plan import Change
from nodecpu.store.claims import Job
from tests.node import Node, PodShape, Scene, claim, play

NODES = [f"cpudevnuma{number:03d}" for number in range(4)]


async def until_held(node: Node, uid: ClaimUID) -> None:
    """Let a prepare go on until it waits for the disk."""
    for _ in range(100):
        if uid in node.service.books.ledger.holds:
            return
        await asyncio.sleep(0)
    raise AssertionError("no CPUs are held")


def holder(node: Node, number: int, uid: ClaimUID, container_id: str = "") -> CpuSet:
    name = node.service.books.ledger.claims[uid].name
    pod = PodShape(number=number, claims=(name,))
    node.service.pod_seen(pod.spec)
    return node.create(pod.sandbox, pod.container(container_id or f"c{number}", node.env_of(uid)))


def stored(scene: Scene) -> dict[ClaimUID, CpuSet]:
    """Return what a start would find in the books."""

    async def whole() -> dict[ClaimUID, CpuSet]:
        node = scene.boot()
        node.check()
        found = {
            uid: one.cpus
            for uid, one in node.service.books.ledger.claims.items()
            if not one.released and not one.unproven
        }
        await node.crash()
        return found

    return asyncio.run(whole())


def test_a_claim_prepared_again_survives_a_restart_though_its_last_container_ended_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C12, R1: the row of the released claim is not removed under the one that is being written."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        holder(node, 1, wanted.uid)
        await node.claims.unprepare(wanted.uid)
        written, go_on = threading.Event(), threading.Event()
        write = node.specs.write

        def slow(grant: ClaimGrant) -> bool:
            written.set()
            assert go_on.wait(5)
            return write(grant)

        monkeypatch.setattr(node.specs, "write", slow)
        again = asyncio.create_task(node.prepare(wanted))
        assert await asyncio.to_thread(written.wait, 5)
        node.stop(ContainerID("c1"))
        go_on.set()
        await again
        assert not node.service.books.ledger.claims[wanted.uid].released

    play(scene, story)
    assert stored(scene) == {wanted.uid: CpuSet.parse("4-5")}


def test_a_released_claim_allocated_anew_waits_for_its_last_container(scene: Scene) -> None:
    """C6: its CPUs are given to nobody while the container runs on them."""
    wanted, other = claim(1, (NODES[1], 2)), claim(2, (NODES[1], 4))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        holder(node, 1, wanted.uid)
        await node.claims.unprepare(wanted.uid)
        for one, refusal in ((claim(1, (NODES[2], 2)), NotReady), (other, NoCapacity)):
            with pytest.raises(refusal):
                await node.prepare(one, budget_s=0.2)
        node.stop(ContainerID("c1"))
        await node.prepare(claim(1, (NODES[2], 2)))
        await node.prepare(other)

    play(scene, story)


def test_a_stopped_container_in_the_list_gives_its_cpus_back(scene: Scene) -> None:
    """R2, G11."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        holder(node, 1, wanted.uid)
        await node.claims.unprepare(wanted.uid)
        process = node.runtime.processes[ContainerID("c1")]
        process.container = replace(process.container, state=ContainerState.STOPPED)
        sandboxes, containers = node.runtime.listed()
        process.is_alive = False
        node.service.synchronize(sandboxes, containers)
        assert wanted.uid not in node.service.books.ledger.claims

    play(scene, story)


def test_a_stopped_unknown_container_in_the_list_gets_nothing(scene: Scene) -> None:
    """R2."""

    async def story(node: Node) -> None:
        pod = PodShape(number=1, qos=QoS.GUARANTEED, request_mcpu=2000)
        node.service.pod_seen(pod.spec)
        gone = replace(pod.container("c1"), state=ContainerState.STOPPED)
        node.service.synchronize([pod.sandbox], [gone])
        assert not node.service.books.ledger.containers

    play(scene, story)


def test_a_container_id_that_is_created_twice_is_one_container(scene: Scene) -> None:
    """G11: of the same pod, and of another one."""

    async def story(node: Node) -> None:
        pod = PodShape(number=1, qos=QoS.GUARANTEED, request_mcpu=2000)
        node.service.pod_seen(pod.spec)
        first = node.create(pod.sandbox, pod.container("c1"))
        assert node.create(pod.sandbox, pod.container("c1")) == first
        other = PodShape(number=2, qos=QoS.GUARANTEED, request_mcpu=3000)
        node.service.pod_seen(other.spec)
        node.create(other.sandbox, other.container("c1"))
        node.check()
        assert node.service.books.ledger.named(pod.sandbox.uid, "shop", pod.sandbox.name, "main") is None

    play(scene, story)


def test_a_container_created_while_its_claim_is_unprepared_keeps_the_cpus(scene: Scene) -> None:
    """C12, L4: the next one gets nothing of them."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        env = node.env_of(wanted.uid)
        gone = asyncio.create_task(node.claims.unprepare(wanted.uid))
        await asyncio.sleep(0)
        assert holder(node, 1, wanted.uid) == CpuSet.parse("4-5")
        await gone
        with pytest.raises(NoCapacity):
            await node.prepare(claim(2, (NODES[1], 4)), budget_s=0.1)
        pod = PodShape(number=2, claims=("claim-1",))
        node.service.pod_seen(pod.spec)
        cpus = node.create(pod.sandbox, pod.container("c9", env))
        assert cpus.isdisjoint(CpuSet.parse("4-5"))

    play(scene, story)


def test_a_reload_while_a_claim_is_written_does_not_give_its_cpus_away(scene: Scene) -> None:
    """R3, C5."""
    first, second = claim(1, (NODES[1], 4)), claim(2, (NODES[1], 4))

    async def story(node: Node) -> None:
        task = asyncio.create_task(node.prepare(first))
        await until_held(node, first.uid)
        node.reload(scene.config())
        pod = PodShape(number=1, qos=QoS.GUARANTEED, request_mcpu=4000)
        node.service.pod_seen(pod.spec)
        other = asyncio.create_task(node.prepare(second, budget_s=0.1))
        cpus = node.create(pod.sandbox, pod.container("c1"))
        await asyncio.wait([task, other])
        given = [t.exception() is None for t in (task, other)]
        assert given == [True, False], given
        assert cpus.isdisjoint(CpuSet.parse("4-7"))
        assert not node.service.books.ledger.holds

    play(scene, story)


def test_a_reload_that_reserves_cpus_that_are_being_written_is_refused(scene: Scene) -> None:
    """R3."""
    first = claim(1, (NODES[3], 3))

    async def story(node: Node) -> None:
        under_way = asyncio.create_task(node.prepare(first))
        await until_held(node, first.uid)
        scene.reserved = "12-13"
        with pytest.raises(ClaimConflict):
            node.reload(scene.config())
        await under_way
        assert node.service.books.ledger.claims[first.uid].cpus == CpuSet.parse("12-14")

    play(scene, story)


def test_a_claim_that_was_released_unproven_is_live_again_once_confirmed(scene: Scene) -> None:
    """R2, C6."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        node.service.adopting = True
        pod = PodShape(number=1, claims=("claim-1",))
        env = {f"DRA_CPUSET_{wanted.uid}": "4-5"}
        node.runtime.add(pod.sandbox, pod.container("c1", env), None)
        node.runtime.processes[ContainerID("c1")].cpus = CpuSet.parse("4-5")
        node.synchronize()
        assert node.service.books.ledger.claims[wanted.uid].unproven
        await node.claims.unprepare(wanted.uid)
        await node.prepare(wanted)
        node.service.pod_seen(pod.spec)
        assert not node.service.books.ledger.claims[wanted.uid].released

    play(scene, story)


def test_containers_of_one_name_in_pods_without_a_uid_do_not_supersede_each_other(scene: Scene) -> None:
    """G11: a pod that was made past the kubelet may have none."""

    async def story(node: Node) -> None:
        for number in (1, 2):
            pod = PodShape(number=number)
            sandbox = replace(pod.sandbox, uid=PodUID(""))
            node.create(sandbox, pod.container(f"c{number}"))
        assert set(node.service.books.ledger.containers) == {ContainerID("c1"), ContainerID("c2")}

    play(scene, story)


def test_a_spec_that_is_being_written_is_no_orphan(scene: Scene) -> None:
    """C11: the runtime comes back while a claim is on its way to the disk."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        under_way = asyncio.create_task(node.prepare(wanted))
        await until_held(node, wanted.uid)
        node.service.runtime_lost()
        node.synchronize()
        grants, used = node.claims.specs_due()
        await under_way
        node.specs.restore(grants, used=used)
        assert node.specs.claims() == (wanted.uid,)

    play(scene, story)


def test_a_spec_that_is_being_removed_is_not_written_again(scene: Scene) -> None:
    """C11, C12."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        under_way = asyncio.create_task(node.claims.unprepare(wanted.uid))
        await asyncio.sleep(0)
        grants, used = node.claims.specs_due()
        await under_way
        node.specs.restore(grants, used=used)
        assert node.specs.claims() == ()

    play(scene, story)


def test_a_spec_that_is_removed_behind_a_restore_in_the_queue_is_not_written_again(scene: Scene) -> None:
    """C11, C12: the disk is slow, and both wait for it together."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        begun, gate = threading.Event(), threading.Event()

        def hold_up() -> None:
            begun.set()
            gate.wait(10)

        def restore() -> None:
            node.specs.restore(grants, used=used)

        slow = node.disk.submit(Job(after=hold_up))
        await asyncio.to_thread(begun.wait, 10)
        grants, used = node.claims.specs_due()
        restored = node.disk.submit(Job(after=restore))
        under_way = asyncio.create_task(node.claims.unprepare(wanted.uid))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(slow, restored, under_way)
        assert node.specs.claims() == ()

    play(scene, story)


def test_a_prepare_waits_no_longer_than_configured(scene: Scene) -> None:
    """C7: whatever the kubelet would allow."""
    scene.extra = "[claims]\nwait_s = 0.1"
    wanted = claim(1, (NODES[1], 4))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        holder(node, 1, wanted.uid)
        await node.claims.unprepare(wanted.uid)
        async with asyncio.timeout(5.0):
            with pytest.raises(NoCapacity):
                await node.prepare(claim(2, (NODES[1], 4)), budget_s=60.0)

    play(scene, story)


def test_a_spec_that_cannot_be_written_again_leaves_the_released_claim_on_disk(scene: Scene) -> None:
    """C12, R1: its CPUs are in use, whatever becomes of the second prepare."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        holder(node, 1, wanted.uid)
        await node.claims.unprepare(wanted.uid)
        node.specs.fails = True
        with pytest.raises(HostError):
            await node.prepare(wanted)
        assert node.started.claim_store.load() == (node.service.books.ledger.claims[wanted.uid],)

    play(scene, story)


def test_what_cannot_come_free_is_refused_at_once(scene: Scene) -> None:
    """C7: nothing is released, so there is nothing to wait for."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[1], 4)))
        async with asyncio.timeout(5.0):
            with pytest.raises(NoCapacity):
                await node.prepare(claim(2, (NODES[1], 1)), budget_s=60.0)

    play(scene, story)


def test_a_claim_that_the_books_cannot_take_leaves_nothing_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5, R1: both databases or neither."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        def fail(_change: Change) -> None:
            raise StateError("the database failed")

        with monkeypatch.context() as patch:
            patch.setattr(node.started.container_store, "commit", fail)
            with pytest.raises(StateError):
                await node.prepare(wanted)
        assert node.started.claim_store.load() == ()
        assert node.specs.claims() == ()
        await node.prepare(wanted)

    play(scene, story)


def test_one_claim_prepared_twice_at_once_is_decided_once(scene: Scene) -> None:
    """C6."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        answers = await asyncio.gather(node.prepare(wanted), node.prepare(wanted))
        assert answers[0] == answers[1]
        assert node.service.books.ledger.claims[wanted.uid].cpus == CpuSet.parse("4-5")
        assert node.started.claim_store.load() == (node.service.books.ledger.claims[wanted.uid],)

    play(scene, story)


def test_a_claim_that_is_gone_but_in_use_is_not_released(scene: Scene) -> None:
    """R2: it was used after it was looked for."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        holder(node, 1, wanted.uid)
        assert not await node.claims.release_gone(
            node.service.books.ledger.claims[wanted.uid], answers=node.claims.answers
        )
        assert not node.service.books.ledger.claims[wanted.uid].released

    play(scene, story)


def test_a_prepared_claim_asks_no_api_server_that_is_away(scene: Scene) -> None:
    """C6, C7."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        node.api.is_answering = False
        calls = node.api.calls
        await node.prepare(wanted)
        assert node.api.calls == calls

    play(scene, story)


def test_a_container_that_has_not_started_yet_holds_its_claim(scene: Scene) -> None:
    """C12, G11: without processes it is not dead."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        pod = PodShape(number=1, claims=("claim-1",))
        node.service.pod_seen(pod.spec)
        node.service.create_container(pod.sandbox, pod.container("c1", node.env_of(wanted.uid)))
        await node.claims.unprepare(wanted.uid)
        assert wanted.uid in node.service.books.ledger.claims

    play(scene, story)


def test_a_claim_shown_by_a_container_that_cannot_be_judged_is_not_over(scene: Scene) -> None:
    """R2: unproven is not forged."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        pod = PodShape(number=1, claims=("claim-1",))
        node.runtime.add(pod.sandbox, pod.container("c1", node.env_of(wanted.uid)), None)
        node.synchronize()
        await node.claims.unprepare(wanted.uid)
        assert wanted.uid in node.service.books.ledger.claims
        node.stop(ContainerID("c1"))
        assert wanted.uid not in node.service.books.ledger.claims

    play(scene, story)


def test_no_new_claim_gets_cpus_after_the_link_was_lost(scene: Scene) -> None:
    """C7."""

    async def story(node: Node) -> None:
        node.service.runtime_lost()
        with pytest.raises(NotReady):
            await node.prepare(claim(1, (NODES[1], 2)), budget_s=0.1)

    play(scene, story)


@pytest.mark.parametrize(
    "tell", [lambda node, _: node.service.pods_listed([]), lambda node, uid: node.service.pod_gone(uid)]
)
def test_a_pod_that_is_gone_is_known_while_its_containers_run(
    scene: Scene, tell: Callable[[Node, PodUID], None]
) -> None:
    """N1, L4: a container that starts again is still entitled."""
    wanted = claim(1, (NODES[1], 2))

    async def story(node: Node) -> None:
        await node.prepare(wanted)
        holder(node, 1, wanted.uid)
        pod = PodShape(number=1, claims=("claim-1",))
        tell(node, pod.spec.uid)
        assert node.create(pod.sandbox, pod.container("c2", node.env_of(wanted.uid))) == CpuSet.parse("4-5")

    play(scene, story)
