"""A node whose state was damaged, lost or replaced while the daemon was away (n4c16, CPU 15 reserved).

Before: a holder on its claim's CPUs, a container with CPUs of its own, a shared one. After any damage these stay where
they are, nobody else gets their CPUs, and what the API server confirms is as before.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import NoCapacity, NodeCpuError
from nodecpu.ids import ContainerID
from nodecpu.policy.facts import QoS
from nodecpu.policy.plan import PreparedDevice
from tests.node import Node, PodShape, Scene, claim
from tests.unit.test_reconcile import Case, case_of

NODE1 = "cpudevnuma001"
HOLDER = PodShape(number=1, claims=("claim-1",))
OWNER = PodShape(number=2, qos=QoS.GUARANTEED, request_mcpu=2000)
SHARER = PodShape(number=3)
PODS = (HOLDER, OWNER, SHARER)


def garbage(path: Path) -> None:
    path.write_bytes(b"garbage" * 1000)


def missing(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


Damage = Callable[[Path], None]


def damage(scene: Scene, file: str, how: Damage) -> None:
    for log in (scene.directory / file).parent.glob("*-wal"):
        log.unlink()
    how(scene.directory / file)


async def settle(node: Node) -> tuple[PreparedDevice, ...]:
    """Bring the node to what it is before the damage; return the answer to the kubelet."""
    node.synchronize()
    answer = await node.prepare(claim(1, (NODE1, 2)))
    for shape in PODS:
        node.service.pod_seen(shape.spec)
        env = node.env_of(claim(1).uid) if shape is HOLDER else {}
        node.create(shape.sandbox, shape.container(f"c{shape.number}", env))
    node.audit()
    return answer


def places(scene: Scene) -> dict[str, CpuSet]:
    return {one: process.cpus for one, process in scene.runtime.processes.items()}


async def confirmed(case: Case) -> None:
    """Let the API server tell all it knows."""
    case.lookup.add(claim(1, (NODE1, 2)), 1)
    case.node.service.pods_listed([shape.spec for shape in PODS])
    await case.look(3)
    case.node.audit()


async def boot(scene: Scene) -> Case:
    case = case_of(scene.boot())
    case.node.service.containers_lost = case.node.started.containers_lost
    return case


STATE, RUN = "state/claims.db", "run/containers.db"
DAMAGES = {
    "claims: garbage": [(STATE, garbage)],
    "claims: missing": [(STATE, missing)],
    "claims: cut": [(STATE, cut)],
    "containers: garbage": [(RUN, garbage)],
    "containers: missing": [(RUN, missing)],
    "both: garbage": [(STATE, garbage), (RUN, garbage)],
    "both: missing": [(STATE, missing), (RUN, missing)],
}


@pytest.mark.parametrize("has_specs", [True, False], ids=["specs there", "CDI directory emptied"])
@pytest.mark.parametrize("damages", DAMAGES.values(), ids=DAMAGES)
def test_nobody_moves_or_gets_anothers_cpus_when_state_is_lost(
    scene: Scene,
    damages: list[tuple[str, Damage]],
    has_specs: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    """R1, R2, U39, U42, U48: fail closed until the API server has told, then as it was, with the same answer."""

    async def story() -> None:
        node = scene.boot()
        answer = await settle(node)
        before, claimed = places(scene), node.service.books.ledger.claims[claim(1).uid].cpus
        await node.crash()
        for file, how in damages:
            damage(scene, file, how)
        if not has_specs:
            shutil.rmtree(scene.directory / "cdi")
        case = await boot(scene)
        node = case.node
        node.synchronize()
        node.audit()
        assert places(scene)["c1"] == before["c1"] == claimed
        assert places(scene)["c2"] == before["c2"]
        await nobody_gets(node, before["c1"] | before["c2"])
        await confirmed(case)
        assert places(scene) == before
        ledger = node.service.books.ledger
        assert ledger.claims[claim(1).uid].cpus == claimed
        assert [link.claim_uid for link in ledger.containers[ContainerID("c1")].links] == [claim(1).uid]
        assert ledger.containers[ContainerID("c2")].exclusive == before["c2"]
        assert await node.prepare(claim(1, (NODE1, 2))) == answer
        assert node.specs.claims() == (claim(1).uid,)
        assert node.counters.forged_claims == 0
        node.check()
        await node.crash()

    asyncio.run(story())


async def nobody_gets(node: Node, cpus: CpuSet) -> None:
    """Ask for everything that could be had."""
    for number in range(10, 20):
        try:
            await node.prepare(claim(number, (f"cpudevnuma{number % 4:03d}", 1 + number % 3)))
        except NodeCpuError:
            continue
        assert node.service.books.ledger.claims[claim(number).uid].cpus.isdisjoint(cpus)
        await node.claims.unprepare(claim(number).uid)
    shape = replace(OWNER, number=9)
    node.service.pod_seen(shape.spec)
    try:
        got = node.create(shape.sandbox, shape.container("c9"))
    except NodeCpuError:
        return
    assert got.isdisjoint(cpus)
    node.stop(ContainerID("c9"))


def test_a_restart_in_the_middle_of_recovery_forgets_nothing(scene: Scene) -> None:
    """R2: two claims were lost, one is confirmed when the daemon is killed again; the other stays in question."""

    async def story() -> None:
        node = scene.boot()
        node.synchronize()
        shapes = [PodShape(number=number, claims=(f"claim-{number}",)) for number in (1, 2)]
        for shape in shapes:
            await node.prepare(claim(shape.number, (NODE1, 2)))
            node.service.pod_seen(shape.spec)
            env = node.env_of(claim(shape.number).uid)
            node.create(shape.sandbox, shape.container(f"c{shape.number}", env))
        before = places(scene)
        await node.crash()
        damage(scene, STATE, garbage)
        case = await boot(scene)
        case.node.synchronize()
        await case.node.claims.adopt(replace(claim(1, (NODE1, 2)), reserved_for=frozenset({shapes[0].spec.uid})))
        await case.node.crash()
        case = await boot(scene)
        case.node.synchronize()
        case.node.audit()
        claims = case.node.service.books.ledger.claims
        assert {uid: one.unproven for uid, one in claims.items()} == {claim(1).uid: False, claim(2).uid: True}
        assert places(scene) == before
        await case.node.crash()

    asyncio.run(story())


@pytest.mark.parametrize("how", [missing, garbage])
def test_restarts_before_containers_that_were_lost_are_judged_move_nobody(scene: Scene, how: Damage) -> None:
    """R1, R2, U39: the API server is away for so long; the second start finds a database that is new, not lost."""

    async def story() -> None:
        node = scene.boot()
        await settle(node)
        before = places(scene)
        await node.crash()
        damage(scene, RUN, how)
        for _ in range(3):
            case = await boot(scene)
            case.node.synchronize()
            case.node.audit()
            assert case.node.service.is_rebuilding
            assert places(scene) == before
            await case.node.crash()
        case = await boot(scene)
        case.node.synchronize()
        await confirmed(case)
        assert places(scene) == before
        owner = case.node.service.books.ledger.containers[ContainerID("c2")]
        assert owner.exclusive == before["c2"]
        await case.node.crash()
        case = await boot(scene)
        assert not case.node.service.containers_lost, "all were judged"
        await case.node.crash()

    asyncio.run(story())


def play(scene: Scene, story: Callable[[Node], Awaitable[None]]) -> None:
    async def whole() -> None:
        node = scene.boot()
        try:
            await story(node)
            node.check()
        finally:
            await node.crash()

    asyncio.run(whole())


def test_reserving_the_cpus_of_a_claim_leaves_them_to_it(scene: Scene) -> None:
    """R3, U51: the start is degraded; holders keep, nothing new comes from there, the reserved group keeps off."""
    system = PodShape(number=7, namespace="kube-system", qos=QoS.BURSTABLE, request_mcpu=100)

    async def before(node: Node) -> None:
        await settle(node)
        node.service.pod_seen(system.spec)
        node.create(system.sandbox, system.container("c7"))

    play(scene, before)
    held = places(scene)["c1"]
    scene.reserved = str(held)

    async def after(node: Node) -> None:
        node.synchronize()
        node.audit()
        assert places(scene)["c1"] == held
        assert places(scene)["c7"].isdisjoint(held)
        with pytest.raises(NodeCpuError):
            await node.prepare(claim(2, (NODE1, 3)))
        await node.claims.unprepare(claim(1).uid)
        node.stop(ContainerID("c1"))
        node.audit()
        assert places(scene)["c7"] == held, "what is free again goes to the reserved group"

    play(scene, after)


def test_a_released_claim_outlives_restarts_while_a_container_holds_it(scene: Scene) -> None:
    """C12, L4, R1: unprepared under its container, its CPUs are nobody's until that has ended; then it is forgotten."""
    late = PodShape(number=4, qos=QoS.GUARANTEED, request_mcpu=2000)

    async def before(node: Node) -> None:
        await settle(node)
        await node.claims.unprepare(claim(1).uid)

    async def is_kept(node: Node) -> None:
        grant = node.service.books.ledger.claims[claim(1).uid]
        assert grant.released
        assert grant.cpus == held
        assert [one.id for one in node.service.books.ledger.holders(claim(1).uid)] == ["c1"]
        with pytest.raises(NodeCpuError, match="not connected"):
            await node.prepare(claim(2, (NODE1, 3)))
        assert node.synchronize() == (), "nothing moves"
        node.audit()
        assert places(scene)["c1"] == held
        with pytest.raises(NoCapacity, match="3 CPUs asked of cpudevnuma001, 2 free"):
            await node.prepare(claim(2, (NODE1, 3)))
        await node.prepare(claim(3, (NODE1, 2)))
        node.service.pod_seen(late.spec)
        others = [node.create(late.sandbox, late.container("c4")), places(scene)["c3"]]
        assert all(cpus.isdisjoint(held) for cpus in others)
        node.stop(ContainerID("c4"))
        await node.claims.unprepare(claim(3).uid)

    async def is_over(node: Node) -> None:
        assert claim(1).uid in node.service.books.ledger.claims, "the container may be there still"
        node.synchronize()
        assert not node.service.books.ledger.claims
        await node.prepare(claim(2, (NODE1, 4)))

    async def is_forgotten(node: Node) -> None:
        assert list(node.service.books.ledger.claims) == [claim(2).uid]

    play(scene, before)
    held = places(scene)["c1"]
    play(scene, is_kept)
    play(scene, is_kept)
    del scene.runtime.processes[ContainerID("c1")]
    play(scene, is_over)
    play(scene, is_forgotten)


def test_what_happened_to_containers_while_away_is_taken_in(scene: Scene) -> None:
    """R2, R4, G11: one ended, one was replaced under its name, one is new, one has another cgroup path."""

    async def before(node: Node) -> None:
        await settle(node)

    play(scene, before)
    runtime = scene.runtime
    del runtime.processes[ContainerID("c3")]
    old = runtime.processes.pop(ContainerID("c2"))
    successor, new = OWNER.container("c2b"), PodShape(number=5)
    runtime.add(old.sandbox, successor, None)
    runtime.add(new.sandbox, new.container("c5"), None)

    async def after(node: Node) -> None:
        node.service.pod_seen(new.spec)
        node.synchronize()
        node.audit()
        containers = node.service.books.ledger.containers
        assert sorted(containers) == ["c1", "c2b", "c5"]
        assert len(containers[ContainerID("c2b")].exclusive) == 2
        assert places(scene)["c2b"] == containers[ContainerID("c2b")].exclusive
        assert places(scene)["c5"].isdisjoint(places(scene)["c1"] | places(scene)["c2b"])

    play(scene, after)


def test_a_runtime_may_tell_of_containers_before_pods_twice_late_or_never(scene: Scene) -> None:
    """R2, U58, U61, U78: whatever the order, each container is in the books once and runs where it may."""

    async def story(node: Node) -> None:
        await settle(node)
        before = places(scene)
        sandboxes, containers = scene.runtime.listed()
        node.service.synchronize([], containers)
        assert sorted(node.service.books.ledger.containers) == ["c1", "c2", "c3"]
        node.service.synchronize(sandboxes, [*containers, *containers])
        assert node.service.synchronize(list(reversed(sandboxes)), list(reversed(containers))) == ()
        late = PodShape(number=8)
        node.service.pod_seen(late.spec)
        scene.runtime.add(late.sandbox, late.container("c8"), None)
        node.service.container_seen(late.sandbox, late.container("c8"))
        node.service.container_seen(late.sandbox, late.container("c8"))
        node.audit()
        assert places(scene)["c8"].isdisjoint(before["c1"] | before["c2"])
        assert {one: cpus for one, cpus in places(scene).items() if one in ("c1", "c2")} == {
            one: before[one] for one in ("c1", "c2")
        }
        node.service.synchronize([], [])
        assert not node.service.books.ledger.containers
        assert node.service.books.ledger.claims[claim(1).uid].cpus == before["c1"], "a claim outlives its containers"

    play(scene, story)


def show_pod(node: Node, pod: PodShape, container_id: str) -> None:
    node.service.run_sandbox(pod.sandbox)


def show_container(node: Node, pod: PodShape, container_id: str) -> None:
    node.service.container_seen(pod.sandbox, pod.container(container_id))


def show_sibling(node: Node, pod: PodShape, container_id: str) -> None:
    node.create(pod.sandbox, replace(pod.container(f"{container_id}b"), name="second"))


@pytest.mark.parametrize("tell", [show_pod, show_container, show_sibling])
def test_a_container_that_is_listed_without_its_pod_is_kept_off_what_others_own_and_placed_when_that_comes(
    scene: Scene, tell: Callable[[Node, PodShape, str], None]
) -> None:
    """G9, R2, R4, U58: pod and container were made while the runtime listed first the pods and then the containers."""

    async def story(node: Node) -> None:
        await settle(node)
        late = PodShape(number=8)
        scene.runtime.add(late.sandbox, late.container("c8"), None)
        sandboxes, containers = scene.runtime.listed()
        owned = places(scene)["c1"] | places(scene)["c2"]
        updates = node.service.synchronize([one for one in sandboxes if one != late.sandbox], containers)
        scene.runtime.apply(updates)
        assert places(scene)["c8"].isdisjoint(owned)
        assert ContainerID("c8") in node.service.known_ids, "told of, so no stranger"
        node.service.pod_seen(late.spec)
        assert ContainerID("c8") not in node.service.books.ledger.containers
        tell(node, late, "c8")
        assert ContainerID("c8") in node.service.books.ledger.containers
        node.audit()
        placement = node.service.books.placement(ContainerID("c8"))
        assert placement is not None
        assert places(scene)["c8"] == placement.cpus
        assert places(scene)["c8"].isdisjoint(owned)

    play(scene, story)


def test_a_container_whose_pod_is_never_told_of_holds_no_claim_up(scene: Scene) -> None:
    """R2: also where the books of containers were lost."""

    async def story(node: Node) -> None:
        node.service.containers_lost = True
        late = PodShape(number=8)
        scene.runtime.add(late.sandbox, late.container("c8"), None)
        node.service.synchronize([], scene.runtime.listed()[1])
        assert await node.prepare(claim(5, (NODE1, 1)))
        node.service.stop_container(None, late.container("c8"))
        assert node.service.known_ids == frozenset()

    play(scene, story)
