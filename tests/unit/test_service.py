"""Requests of runtime and kubelet against the whole decide-commit-act chain (n4c16, CPU 15 reserved)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.errors import BadRequest, HostError, NoCapacity, NotReady
from nodecpu.ids import ClaimUID, ContainerID, PodUID
from nodecpu.policy.facts import ContainerState, QoS
from nodecpu.reports import CLAIM, POD, Subject
from nodecpu.store.claims import Job
from tests.node import ALL, Node, PodShape, Scene, claim, play

NODES = [f"cpudevnuma{number:03d}" for number in range(4)]


def holder(
    node: Node, number: int, uid: ClaimUID, *, request_mcpu: int | None = None, namespace: str = "shop"
) -> CpuSet:
    """Create a pod's container that holds a claim; return what it runs on."""
    name = node.service.books.ledger.claims[uid].name
    qos = QoS.BURSTABLE if request_mcpu else QoS.BEST_EFFORT
    pod = PodShape(number=number, qos=qos, request_mcpu=request_mcpu, claims=(name,), namespace=namespace)
    node.service.pod_seen(pod.spec)
    return node.create(pod.sandbox, pod.container(f"c{number}", node.env_of(uid)))


async def run_unjudged(node: Node) -> None:
    """Prepare a claim of 4-5 and have c1 run unpinned, of whose pod nothing is known but that it shows the claim."""
    await node.prepare(claim(1, (NODES[1], 2)))
    pod = PodShape(number=1, claims=("claim-1",))
    node.runtime.add(pod.sandbox, pod.container("c1", node.env_of(claim(1).uid)), None)


def besteffort(node: Node, number: int) -> CpuSet:
    pod = PodShape(number=number)
    node.service.pod_seen(pod.spec)
    return node.create(pod.sandbox, pod.container(f"c{number}"))


def runs_on(node: Node, number: int) -> CpuSet:
    return node.runtime.processes[ContainerID(f"c{number}")].cpus


def test_a_claim_for_a_whole_node_gets_all_but_the_reserved_cpu(scene: Scene) -> None:
    """C2, T5."""

    async def story(node: Node) -> None:
        wanted = claim(1, (NODES[3], 3))
        await node.prepare(wanted)
        assert node.service.books.ledger.claims[wanted.uid].cpus == CpuSet.parse("12-14")

    play(scene, story)


def test_the_third_claim_on_a_full_node_is_refused_and_served_after_a_release(scene: Scene) -> None:
    """C2, C8, C12: a core each; what is released is given again."""

    async def story(node: Node) -> None:
        books = node.service.books.ledger.claims
        first, second, third = (claim(number, (NODES[1], 2)) for number in (1, 2, 3))
        await node.prepare(first)
        await node.prepare(second)
        assert [str(books[one.uid].cpus) for one in (first, second)] == ["4-5", "6-7"]
        with pytest.raises(NoCapacity, match="2 CPUs asked of cpudevnuma001, 0 free"):
            await node.prepare(third)
        await node.claims.unprepare(first.uid)
        await node.prepare(third)
        assert str(books[third.uid].cpus) == "4-5"

    play(scene, story)


def test_a_claim_with_two_results_is_all_or_nothing(scene: Scene) -> None:
    """C3."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[0], 2), (NODES[2], 1)))
        cpus = [str(r.cpus) for r in node.service.books.ledger.claims[claim(1).uid].results]
        assert cpus == ["0-1", "8"]
        with pytest.raises(NoCapacity):
            await node.prepare(claim(2, (NODES[0], 2), (NODES[2], 4)))
        assert claim(2).uid not in node.service.books.ledger.claims
        assert node.service.books.ledger.grantable(CpuSet.parse("0-3")) == CpuSet.parse("2-3")

    play(scene, story)


def test_prepare_again_answers_the_same_and_rebuilds_a_missing_spec(scene: Scene) -> None:
    """C6, C11."""

    async def story(node: Node) -> None:
        first = await node.prepare(claim(1, (NODES[1], 2)))
        spec = next((scene.directory / "cdi").glob("*.json"))
        text = spec.read_bytes()
        spec.unlink()
        scene.api.is_answering = False
        assert await node.prepare(claim(1, (NODES[1], 2))) == first
        assert spec.read_bytes() == text

    play(scene, story)


def test_unprepare_twice_and_of_an_unknown_claim_succeeds(scene: Scene) -> None:
    """C6."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[1], 2)))
        await node.claims.unprepare(claim(1).uid)
        await node.claims.unprepare(claim(1).uid)
        await node.claims.unprepare(claim(9).uid)
        assert not node.service.books.ledger.claims
        assert not list((scene.directory / "cdi").glob("*.json"))

    play(scene, story)


def test_a_claim_allocated_anew_replaces_the_grant_unless_a_container_holds_it(scene: Scene) -> None:
    """C6."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[1], 2)))
        await node.prepare(claim(1, (NODES[2], 3)))
        assert str(node.service.books.ledger.claims[claim(1).uid].cpus) == "8-10"
        holder(node, 1, claim(1).uid)
        with pytest.raises(NotReady, match="allocated anew while pod-1/main still holds what it had"):
            await node.prepare(claim(1, (NODES[0], 1)), budget_s=0)
        assert str(node.service.books.ledger.claims[claim(1).uid].cpus) == "8-10"
        scene.api.is_answering = False
        with pytest.raises(NotReady, match="the API server is away"):  # it has what it had no more
            await node.prepare(claim(1, (NODES[0], 1)), budget_s=0)
        scene.api.is_answering = True
        waiting = asyncio.create_task(node.prepare(claim(1, (NODES[0], 1))))
        await asyncio.sleep(0)
        node.stop(ContainerID("c1"))
        await waiting
        assert str(node.service.books.ledger.claims[claim(1).uid].cpus) == "0"

    play(scene, story)


def test_no_new_claim_gets_cpus_before_the_runtime_is_synchronised_but_old_ones_are_answered(scene: Scene) -> None:
    """C7."""

    async def story(node: Node) -> None:
        with pytest.raises(NotReady, match="runtime is not connected"):
            await node.prepare(claim(1, (NODES[1], 2)), budget_s=0.05)
        waiting = asyncio.create_task(node.prepare(claim(1, (NODES[1], 2))))
        await asyncio.sleep(0)
        node.synchronize()
        assert (await waiting)[0].device == NODES[1]
        node.service.runtime_lost()
        assert await node.prepare(claim(1, (NODES[1], 2)))
        await node.claims.unprepare(claim(1).uid)

    play(scene, story, synchronized=False)


def test_a_spec_that_cannot_be_written_leaves_nothing_behind(scene: Scene) -> None:
    """C7, decide-commit-act: the commit of a new claim is taken back."""

    async def story(node: Node) -> None:
        node.specs.fails = True
        with pytest.raises(HostError, match="No space left"):
            await node.prepare(claim(1, (NODES[1], 2)))
        assert node.started.claim_store.load() == ()
        assert node.service.books.ledger.grantable(CpuSet.parse("4-7")) == CpuSet.parse("4-7")
        node.specs.fails = False
        await node.prepare(claim(1, (NODES[1], 4)))

    play(scene, story)


def test_cpus_under_commit_are_given_to_nobody_else(scene: Scene) -> None:
    """C8: a hold keeps a prepare's CPUs while the disk works."""

    async def story(node: Node) -> None:
        both = await asyncio.gather(
            node.prepare(claim(1, (NODES[1], 3))), node.prepare(claim(2, (NODES[1], 3))), return_exceptions=True
        )
        assert sorted(type(one).__name__ for one in both) == ["NoCapacity", "tuple"]

    play(scene, story)


def test_a_besteffort_container_gives_way_to_a_claim_and_gets_the_cpus_back(scene: Scene) -> None:
    """G9, C12, C14."""

    async def story(node: Node) -> None:
        on = [besteffort(node, number) for number in (1, 2)]
        number = next(n for n, cpus in zip((1, 2), on, strict=True) if cpus == CpuSet.parse("4-7"))
        await node.prepare(claim(1, (NODES[1], 2)))
        assert holder(node, 5, claim(1).uid) == CpuSet.parse("4-5")
        assert runs_on(node, number) == CpuSet.parse("6-7")
        node.stop(ContainerID("c5"))
        await node.claims.unprepare(claim(1).uid)
        assert node.kicks
        node.audit()
        assert runs_on(node, number) == CpuSet.parse("4-7")

    play(scene, story)


def test_holders_run_on_the_claim_and_the_memory_of_its_node(scene: Scene) -> None:
    """G2, G5, L3: two containers share it; one with a request of its own runs on shared CPUs as well (G3)."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[2], 2)))
        assert holder(node, 1, claim(1).uid) == CpuSet.parse("8-9")
        assert holder(node, 2, claim(1).uid) == CpuSet.parse("8-9")
        assert holder(node, 3, claim(1).uid, request_mcpu=100) == CpuSet.parse("8-11")
        assert {p.mems for p in node.runtime.processes.values()} == {NodeSet.parse("2")}

    play(scene, story)


def test_a_second_pod_shares_a_prepared_claim_without_a_further_prepare(scene: Scene) -> None:
    """L1: what a pod may hold comes from its own spec."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[2], 2)))
        holder(node, 1, claim(1).uid)
        calls = scene.api.calls
        assert holder(node, 2, claim(1).uid) == CpuSet.parse("8-9")
        assert scene.api.calls == calls

    play(scene, story)


def test_a_forged_variable_gains_nothing_and_is_counted(scene: Scene) -> None:
    """L1: right value, but the pod's spec does not reference the claim."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[2], 2)))
        pod = PodShape(number=7)
        node.service.pod_seen(pod.spec)
        cpus = node.create(pod.sandbox, pod.container("c7", node.env_of(claim(1).uid)))
        assert cpus.isdisjoint(CpuSet.parse("8-9"))
        assert node.counters.forged_claims == 1

    play(scene, story)


def test_a_correct_variable_of_an_unknown_pod_fails_the_creation_retryably(scene: Scene) -> None:
    """L1."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[2], 2)))
        pod = PodShape(number=7, claims=("claim-1",))
        with pytest.raises(NotReady, match="spec is not known yet"):
            node.create(pod.sandbox, pod.container("c7", node.env_of(claim(1).uid)))
        node.service.pod_seen(pod.spec)
        assert node.create(pod.sandbox, pod.container("c8", node.env_of(claim(1).uid))) == CpuSet.parse("8-9")

    play(scene, story)


def test_killed_between_prepare_and_creation_nothing_is_lost_and_nothing_is_rewritten(scene: Scene) -> None:
    """R1."""

    async def before(node: Node) -> None:
        besteffort(node, 1)
        await node.prepare(claim(1, (NODES[0], 2)))

    async def after(node: Node) -> None:
        assert node.synchronize() == ()
        assert holder(node, 5, claim(1).uid) == CpuSet.parse("0-1")
        assert runs_on(node, 1) == CpuSet.parse("8-11")
        assert node.runtime.processes[ContainerID("c1")].writes == 0

    play(scene, before)
    play(scene, after, synchronized=False)


def test_a_released_claim_stays_out_of_reach_until_its_last_container_is_gone(scene: Scene) -> None:
    """C12, C7: a prepare waits for it."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[1], 4)))
        holder(node, 1, claim(1).uid)
        await node.claims.unprepare(claim(1).uid)
        assert node.service.books.ledger.grantable(CpuSet.parse("4-7")) == CpuSet()
        waiting = asyncio.create_task(node.prepare(claim(2, (NODES[1], 4))))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        node.stop(ContainerID("c1"))
        await waiting
        assert node.service.books.ledger.claims[claim(2).uid].cpus == CpuSet.parse("4-7")

    play(scene, story)


def test_a_released_claim_returns_when_its_containers_processes_are_gone_without_an_event(scene: Scene) -> None:
    """C12, G11."""

    async def story(node: Node) -> None:
        await node.prepare(claim(1, (NODES[1], 4)))
        holder(node, 1, claim(1).uid)
        node.runtime.processes[ContainerID("c1")].is_alive = False
        await node.claims.unprepare(claim(1).uid)
        assert not node.service.books.ledger.claims

    play(scene, story)


def test_a_restarted_container_supersedes_its_predecessor_and_keeps_its_cpus(scene: Scene) -> None:
    """G11, L4: the late stop event of the old one changes nothing."""

    async def story(node: Node) -> None:
        pod = PodShape(number=1, qos=QoS.GUARANTEED, request_mcpu=2000)
        other = PodShape(number=2, qos=QoS.GUARANTEED, request_mcpu=2000)
        for one in (pod, other):
            node.service.pod_seen(one.spec)
        first = node.create(pod.sandbox, pod.container("old"))
        node.create(other.sandbox, other.container("c2"))
        old = node.runtime.processes.pop(ContainerID("old"))
        assert node.create(pod.sandbox, pod.container("new")) == first
        node.service.stop_container(old.sandbox, old.container)
        assert node.service.books.ledger.containers[ContainerID("new")].exclusive == first

    play(scene, story)


def test_exclusive_cpus_of_a_dead_container_are_reclaimed_before_a_refusal(scene: Scene) -> None:
    """G11: stop events can come late."""

    async def story(node: Node) -> None:
        pods = [PodShape(number=n, qos=QoS.GUARANTEED, request_mcpu=8000 if n == 1 else 12000) for n in (1, 2)]
        for pod in pods:
            node.service.pod_seen(pod.spec)
        node.create(pods[0].sandbox, pods[0].container("c1"))
        with pytest.raises(NoCapacity, match="12 exclusive CPUs asked, 7 can be spared"):
            node.create(pods[1].sandbox, pods[1].container("c2"))
        node.runtime.processes[ContainerID("c1")].is_alive = False
        assert len(node.create(pods[1].sandbox, pods[1].container("c3"))) == 12

    play(scene, story)


def test_containers_created_while_away_are_placed_and_counted_at_synchronisation(scene: Scene) -> None:
    """G9, R4."""

    async def before(node: Node) -> None:
        await node.prepare(claim(1, (NODES[1], 4)))

    async def after(node: Node) -> None:
        pod = PodShape(number=1)
        node.service.pod_seen(pod.spec)
        scene.runtime.add(pod.sandbox, pod.container("c1"), None)
        node.synchronize()
        assert runs_on(node, 1).isdisjoint(CpuSet.parse("4-7"))
        assert node.counters.late_containers == 1

    play(scene, before)
    play(scene, after, synchronized=False)


def test_a_holder_found_at_synchronisation_is_left_alone_until_its_pod_is_known(scene: Scene) -> None:
    """R2: unproven is not forged."""

    async def after(node: Node) -> None:
        assert node.synchronize() == ()
        node.service.pod_seen(PodShape(number=1, claims=("claim-1",)).spec)
        node.audit()
        assert runs_on(node, 1) == CpuSet.parse("4-5")

    play(scene, run_unjudged)
    play(scene, after, synchronized=False)


def test_a_container_that_cannot_be_judged_yet_is_kept_off_what_others_own(scene: Scene) -> None:
    """G9, R2: it keeps the claim that it shows, until its pod is known."""

    async def before(node: Node) -> None:
        await run_unjudged(node)
        await node.prepare(claim(2, (NODES[2], 2)))
        holder(node, 2, claim(2).uid)

    async def after(node: Node) -> None:
        node.synchronize()
        assert runs_on(node, 1) == ALL - CpuSet.parse("8-9")
        node.service.pod_seen(PodShape(number=1, claims=("claim-1",)).spec)
        node.audit()
        assert runs_on(node, 1) == CpuSet.parse("4-5")
        assert runs_on(node, 2) == CpuSet.parse("8-9")

    play(scene, before)
    play(scene, after, synchronized=False)


def test_a_container_that_cannot_be_judged_yet_moves_off_what_others_get(scene: Scene) -> None:
    """G9, C12: with the reply that creates the other's container."""

    async def after(node: Node) -> None:
        node.synchronize()
        assert runs_on(node, 1) == ALL
        await node.prepare(claim(2, (NODES[2], 2)))
        holder(node, 2, claim(2).uid)
        assert runs_on(node, 1) == ALL - CpuSet.parse("8-9")

    play(scene, run_unjudged)
    play(scene, after, synchronized=False)


def test_a_container_that_could_not_be_judged_goes_with_its_sandbox(scene: Scene) -> None:
    """C12: a runtime may tell nothing more of it, and its claim would be in use for ever."""

    async def after(node: Node) -> None:
        node.synchronize()
        await node.claims.unprepare(claim(1).uid)
        assert node.service.is_used(claim(1).uid)
        node.service.remove_sandbox(PodShape(number=1).sandbox)
        assert not node.service.books.ledger.claims

    play(scene, run_unjudged)
    play(scene, after, synchronized=False)


def test_an_update_that_was_lost_rides_on_the_next_reply(scene: Scene) -> None:
    """R7: sent is not applied."""

    async def story(node: Node) -> None:
        besteffort(node, 1)
        await node.prepare(claim(1, (NODES[2], 2)))
        scene.runtime.loses_updates = True
        holder(node, 5, claim(1).uid)
        assert runs_on(node, 1) == CpuSet.parse("8-11")
        scene.runtime.loses_updates = False
        besteffort(node, 2)
        assert runs_on(node, 1) == CpuSet.parse("10-11")

    play(scene, story)


def test_what_a_reply_brought_about_does_not_ride_on_the_next(scene: Scene) -> None:
    """R1, R7: nobody has read it back yet, and it is right: it is not written again."""

    async def story(node: Node) -> None:
        besteffort(node, 1)
        await node.prepare(claim(1, (NODES[2], 2)))
        holder(node, 5, claim(1).uid)
        besteffort(node, 2)
        besteffort(node, 3)
        assert runs_on(node, 1) == CpuSet.parse("10-11")
        assert scene.runtime.processes[ContainerID("c1")].writes == 1

    play(scene, story)


def test_refuse_mode_refuses_the_last_shared_cpus(scene: Scene) -> None:
    """C14: with policy.shared_fallback = "refuse"."""
    scene.extra = 'shared_fallback = "refuse"'

    async def story(node: Node) -> None:
        besteffort(node, 1)
        for number in range(3):
            await node.prepare(claim(number + 1, (NODES[number], 4)))
        with pytest.raises(NoCapacity, match="for shared containers"):
            await node.prepare(claim(4, (NODES[3], 3)))
        assert runs_on(node, 1)

    play(scene, story)


def test_shared_containers_go_to_the_reserved_cpus_when_claims_take_everything(scene: Scene) -> None:
    """C14: lifted to the socket, to the root, at last to the reserved CPUs."""

    async def story(node: Node) -> None:
        besteffort(node, 1)
        assert runs_on(node, 1) == CpuSet.parse("8-11")
        for number, expected in ((2, "12-14"), (3, "0-7"), (0, "4-7"), (1, "15")):
            await node.prepare(claim(number + 1, (NODES[number], 3 if number == 3 else 4)))
            node.audit()
            assert runs_on(node, 1) == CpuSet.parse(expected)

    play(scene, story)


def test_a_claim_that_asks_for_more_than_its_device_has_is_a_bad_request(scene: Scene) -> None:
    """C1."""

    async def story(node: Node) -> None:
        with pytest.raises(BadRequest, match="4 CPUs asked of cpudevnuma003, which has 3"):
            await node.prepare(claim(1, (NODES[3], 4)))
        with pytest.raises(BadRequest, match="there is no device cpudevnuma009"):
            await node.prepare(claim(2, ("cpudevnuma009", 1)))

    play(scene, story)


def test_a_node_without_a_usable_cpu_does_not_start(scene: Scene) -> None:
    """T5: said plainly, with what to look at."""
    scene.reserved = ""
    scene.extra = 'available = "40-41"'
    with pytest.raises(HostError, match="no CPU is left to use"):
        scene.boot()


def test_a_result_of_another_nodes_pool_is_a_bad_request(scene: Scene) -> None:
    """C1."""

    async def story(node: Node) -> None:
        wanted = claim(1, (NODES[1], 2))
        foreign = replace(wanted, results=(replace(wanted.results[0], pool="other"),))
        with pytest.raises(BadRequest, match="is of pool other, this node's is node"):
            await node.prepare(foreign)

    play(scene, story)


def test_after_a_reboot_containers_are_dropped_and_claims_keep_their_cpus(scene: Scene) -> None:
    """T7: the same machine."""

    async def before(node: Node) -> None:
        await node.prepare(claim(1, (NODES[1], 2)))
        holder(node, 1, claim(1).uid)

    async def after(node: Node) -> None:
        assert not node.service.books.ledger.containers
        assert node.service.books.ledger.claims[claim(1).uid].cpus == CpuSet.parse("4-5")

    play(scene, before)
    _reboot(scene, Path("proc/sys/kernel/random/boot_id"), "another")
    scene.runtime.processes.clear()
    play(scene, after)


def test_after_a_reboot_into_another_machine_claims_are_picked_anew_within_their_devices(scene: Scene) -> None:
    """T7: the fingerprint differs; the amounts and devices are known without the API server."""

    async def before(node: Node) -> None:
        await node.prepare(claim(1, (NODES[1], 2)))

    async def after(node: Node) -> None:
        scene.api.is_answering = False
        assert node.service.books.ledger.claims[claim(1).uid].moved
        await node.claims.prepare(claim(1).uid, "shop", "claim-1", budget_s=5)
        assert node.service.books.ledger.claims[claim(1).uid].cpus == CpuSet.parse("6-7")

    play(scene, before)
    _reboot(scene, Path("proc/sys/kernel/random/boot_id"), "another")
    _reboot(scene, Path("sys/devices/system/cpu/online"), "0-3,6-15")
    play(scene, after)


def _reboot(scene: Scene, path: Path, text: str) -> None:
    (scene.directory / path).write_text(text + "\n")


def test_commits_that_wait_together_are_all_answered(scene: Scene) -> None:
    """Grouped commits: each prepare still gets its own answer."""

    async def story(node: Node) -> None:
        wanted = [claim(number, (NODES[number % 3], 1)) for number in range(1, 10)]
        devices = await asyncio.gather(*(node.prepare(one) for one in wanted))
        assert [one[0].device for one in devices] == [one.results[0].device for one in wanted]
        assert {stored.uid for stored in node.started.claim_store.load()} == {one.uid for one in wanted}
        await node.disk.submit(Job())

    play(scene, story)


def test_metadata_ids_are_answered_with_the_first_device_of_each_request(scene: Scene) -> None:
    """C11, D6: and again after a restart, though it was turned off meanwhile."""

    async def before(node: Node) -> None:
        node.claims.with_metadata = True
        first = await node.prepare(claim(1, (NODES[1], 1), (NODES[1], 1)))
        uid = claim(1).uid
        assert [one.cdi_ids for one in first] == [
            (f"dra.cpu/cpu=claim-{uid}-0", f"dra.cpu/metadata={uid}_cpus-0"),
            (f"dra.cpu/cpu=claim-{uid}-1", f"dra.cpu/metadata={uid}_cpus-1"),
        ]

    async def after(node: Node) -> None:
        assert len((await node.prepare(claim(1, (NODES[1], 1), (NODES[1], 1))))[0].cdi_ids) == 2
        assert len((await node.prepare(claim(2, (NODES[2], 1))))[0].cdi_ids) == 1

    play(scene, before)
    play(scene, after)


class FakeReports:
    """Keeps what was reported."""

    def __init__(self) -> None:
        self.told: list[tuple[Subject, str, str]] = []

    def report(self, subject: Subject, reason: str, message: str) -> None:
        self.told.append((subject, reason, message))


def test_refusals_are_reported_on_claim_and_pod_in_the_errors_words(scene: Scene) -> None:
    """C8: the claim, or the pod by the UID that the API server has (N1), a static pod's being its mirror's."""

    async def story(node: Node) -> None:
        reports = node.claims.reports = node.service.reports = FakeReports()
        await node.prepare(claim(1, (NODES[1], 4)))
        with pytest.raises(NoCapacity) as refused:
            await node.prepare(claim(2, (NODES[1], 2)))
        subject = Subject(kind=CLAIM, namespace="shop", name="claim-2", uid=claim(2).uid)
        assert reports.told == [(subject, "PrepareRefused", str(refused.value))]
        pod = PodShape(number=1, claims=("claim-1",))
        node.service.pod_seen(replace(pod.spec, uid=PodUID("mirror")))
        with pytest.raises(NotReady) as late:
            node.create(pod.sandbox, pod.container("c1"))
        subject = Subject(kind=POD, namespace="shop", name="pod-1", uid="mirror")
        assert reports.told[1:] == [(subject, "ContainerRefused", str(late.value))]

    play(scene, story)


def test_forged_variable_is_reported_without_the_claims_name(scene: Scene) -> None:
    """L1: the forger learns nothing of whose claim it is."""

    async def story(node: Node) -> None:
        reports = node.service.reports = FakeReports()
        await node.prepare(claim(1, (NODES[1], 2)))
        pod = PodShape(number=2)
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c2", node.env_of(claim(1).uid)))
        ((_, reason, message),) = reports.told
        assert reason == "ClaimNotEntitled"
        assert "claim-1" not in message
        assert claim(1).uid not in message

    play(scene, story)


def test_a_listed_container_that_is_not_started_is_compared_by_the_runtimes_record(scene: Scene) -> None:
    """E1, R1: killed while a container is made, the next one does not write to what is right already."""

    async def story(node: Node) -> None:
        pod = PodShape(number=1)
        node.service.pod_seen(pod.spec)
        created = replace(pod.container("c1"), state=ContainerState.CREATED)
        placement = node.service.create_container(pod.sandbox, created).placement
        assert placement is not None
        node.runtime.add(pod.sandbox, created, placement)
        process = node.runtime.processes[created.id]
        process.cpus = CpuSet(range(16))  # its cgroup, so far
        for cpus, expected in ((placement.cpus, ()), (CpuSet(), (created.id,))):
            listed = replace(created, cpus=cpus, mems=placement.mems if cpus else NodeSet())
            updates = node.service.synchronize([pod.sandbox], [listed])
            assert tuple(update.container_id for update in updates) == expected
            assert node.service.books.pending.is_open, "it is read back once it runs"

    play(scene, story)
