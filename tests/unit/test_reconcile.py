"""The books against the API server, by a clock that the tests drive (n4c16, CPU 15 reserved)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import NotReady
from nodecpu.ids import ClaimUID, ContainerID, PodUID
from nodecpu.kube.claims import FoundClaim
from nodecpu.policy.facts import AllocatedClaim
from nodecpu.reconcile import Notes, Reconciler
from nodecpu.reports import Subject
from nodecpu.store.claims import ADOPTED, NODE_UID
from tests.node import Node, PodShape, Scene, claim

NODE1 = "cpudevnuma001"
PERIOD_S = 600.0
UID = claim(1).uid


@dataclass
class FakeClock:
    """Time goes on when somebody sleeps; ``meanwhile`` is what happens then."""

    at: float = 1000.0
    meanwhile: Callable[[], Awaitable[object]] | None = None

    def now(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        await (asyncio.sleep(0) if self.meanwhile is None else self.meanwhile())


@dataclass
class FakeLookup:
    """Claims by namespace and name; ``uid`` is the Node's."""

    found: dict[tuple[str, str], FoundClaim] = field(default_factory=dict)
    uid: str | None = "node-uid"
    is_away: bool = False
    asked: list[str] = field(default_factory=list)
    meanwhile: Callable[[], Awaitable[object]] | None = None
    """What happens between what is seen of a claim and its being told."""

    def add(self, one: AllocatedClaim, *pods: int) -> None:
        reserved = frozenset(PodUID(f"pod-{number}") for number in pods)
        self.found[one.namespace, one.name] = FoundClaim(uid=one.uid, allocated=replace(one, reserved_for=reserved))

    async def find(self, namespace: str, name: str) -> FoundClaim | None:
        self._answer(f"{namespace}/{name}")
        found = self.found.get((namespace, name))
        if self.meanwhile is not None:
            await self.meanwhile()
        return found

    async def node_uid(self) -> str | None:
        self._answer("node")
        return self.uid

    def _answer(self, what: str) -> None:
        if self.is_away:
            raise NotReady("the API server is away")
        self.asked.append(what)


@dataclass
class Case:
    """A node, what the API server tells, and the reconciler between them."""

    node: Node
    lookup: FakeLookup
    clock: FakeClock
    reconciler: Reconciler
    stored: dict[str, str]

    async def look(self, times: int = 1) -> None:
        """Make passes, each when it is due."""
        for _ in range(times):
            await self.clock.sleep(await self.reconciler.look())

    @property
    def claims(self) -> dict[ClaimUID, str]:
        return {uid: str(one.cpus) for uid, one in self.node.service.books.ledger.claims.items()}


async def seen_to_be_over(case: Case) -> AllocatedClaim:
    """Return a claim that is prepared, and told to be over in one look: the next would have it released."""
    case.node.synchronize()
    one = claim(1, (NODE1, 2))
    await case.node.prepare(one)
    case.lookup.found[one.namespace, one.name] = FoundClaim(uid=UID, allocated=None, is_over=True)
    await case.look()
    return one


def case_of(node: Node, lookup: FakeLookup | None = None, node_uid: str | None = "node-uid") -> Case:
    stored: dict[str, str] = {}
    node.service.adopting = node.started.adopting
    lookup, clock = lookup or FakeLookup(), FakeClock()
    reconciler = Reconciler(
        node.claims,
        node.service,
        lookup,
        notes=Notes(node_uid=node_uid, store=stored.__setitem__),
        period_s=PERIOD_S,
        gone_after_s=90.0,
        clock=clock,
    )
    return Case(node, lookup, clock, reconciler, stored)


def play(scene: Scene, story: Callable[[Case], Awaitable[None]], *, node_uid: str | None = "node-uid") -> None:
    """Run a story on a fresh node that is not synchronised yet."""

    async def whole() -> None:
        node = scene.boot()
        try:
            await story(case_of(node, node_uid=node_uid))
            node.check()
        finally:
            await node.crash()

    asyncio.run(whole())


def running(scene: Scene, shape: PodShape, container_id: str, cpus: str, **env: str) -> None:
    """Have a container run that nobody told the daemon of."""
    scene.runtime.add(shape.sandbox, shape.container(container_id, env), None)
    scene.runtime.processes[ContainerID(container_id)].cpus = CpuSet.parse(cpus)


def variable(uid: str, value: str) -> dict[str, str]:
    return {f"DRA_CPUSET_{uid}": value}


def community_spec(scene: Scene, **devices: str) -> None:
    """Write the file of the community driver: one for all claims."""
    directory = scene.directory / "cdi"
    directory.mkdir(exist_ok=True)
    written = [
        {"name": f"claim-{uid}", "containerEdits": {"env": [f"DRA_CPUSET_{uid}={cpus}"]}}
        for uid, cpus in devices.items()
    ]
    text = json.dumps({"cdiVersion": "0.8.0", "kind": "dra.k8s.io/cpu", "devices": written})
    (directory / "dra.cpu.json").write_text(text)


# Claims whose object is gone (R2, U41, U92)


def test_claim_is_released_when_two_looks_ninety_seconds_apart_find_it_gone(scene: Scene) -> None:
    """R2, C12: the CDI spec goes too, and the row."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        begin = case.clock.now()
        await case.look()
        assert case.claims == {UID: "4-5"}
        await case.look()
        assert case.claims == {}
        assert 90 <= case.clock.now() - begin - PERIOD_S <= 90 * 1.1 + PERIOD_S * 0.1 + 2
        assert case.node.specs.claims() == ()
        assert case.node.counters.gone_claims == 1

    play(scene, story)


def test_claim_made_anew_under_its_name_is_another_one(scene: Scene) -> None:
    """R2, C6."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        case.lookup.add(claim(2, (NODE1, 2), name="claim-1"))
        await case.look(2)
        assert case.claims == {}

    play(scene, story)


def test_claim_that_is_there_or_in_use_is_never_released(scene: Scene) -> None:
    """R2: a claim in use is not even asked for."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        await case.node.prepare(claim(2, (NODE1, 2)))
        case.lookup.add(claim(1, (NODE1, 2)))
        pod = PodShape(number=2, claims=("claim-2",))
        case.node.service.pod_seen(pod.spec)
        case.node.create(pod.sandbox, pod.container("c2", case.node.env_of(claim(2).uid)))
        await case.look(5)
        assert case.claims == {UID: "4-5", claim(2).uid: "6-7"}
        assert "shop/claim-2" not in case.lookup.asked
        case.node.stop(ContainerID("c2"))
        await case.look(2)
        assert case.claims == {UID: "4-5"}

    play(scene, story)


def test_claim_that_nobody_may_use_here_any_more_is_released_after_two_looks(scene: Scene) -> None:
    """U41, U92: deallocated while the kubelet had lost its books, it holds no CPUs for ever; in use, it stays."""

    async def story(case: Case) -> None:
        node = case.node
        node.synchronize()
        one = claim(1, (NODE1, 2))
        await node.prepare(one)
        over = FoundClaim(uid=UID, allocated=None, is_over=True)
        case.lookup.found[one.namespace, one.name] = over
        await case.look()
        assert case.claims == {UID: "4-5"}
        case.lookup.add(one, 1)
        await case.look()
        case.lookup.found[one.namespace, one.name] = over
        await case.look()
        assert case.claims == {UID: "4-5"}
        await case.look()
        assert case.claims == {}

    play(scene, story)


def test_claim_that_is_prepared_again_is_not_released_for_what_was_told_before(scene: Scene) -> None:
    """U41: made by hand, it is reserved for the next pod; that pod would wait for ever for CPUs it was told of."""

    async def story(case: Case) -> None:
        node, one = case.node, await seen_to_be_over(case)
        grant = node.service.books.ledger.claims[UID]
        under_way = asyncio.create_task(node.prepare(one))
        await asyncio.sleep(0)
        assert not await node.claims.release_gone(grant, answers=node.claims.answers)
        await under_way
        assert case.claims == {UID: "4-5"}
        case.clock.meanwhile = lambda: node.prepare(one)
        await case.reconciler.look()
        assert case.claims == {UID: "4-5"}

    play(scene, story)


def test_claim_that_was_prepared_again_while_the_answer_was_on_its_way_is_not_released(scene: Scene) -> None:
    """U41: the look that would be its second was made before, and came back after."""

    async def story(case: Case) -> None:
        node, one = case.node, await seen_to_be_over(case)
        case.lookup.meanwhile = lambda: node.prepare(one)
        await case.look()
        assert case.claims == {UID: "4-5"}
        case.lookup.meanwhile = None
        await case.look()
        assert case.claims == {}

    play(scene, story)


def test_nothing_to_prove_asks_nothing(scene: Scene) -> None:
    """R2: an idle node, or one whose claims are all in use, makes no call but the first."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.look(10)
        assert case.lookup.asked == []

    play(scene, story)


def test_owner_of_a_claim_that_nobody_uses_is_told(scene: Scene) -> None:
    """C12: its CPUs stay, since the kubelet has not unprepared it."""

    class Reports:
        told: ClassVar[list[tuple[str, str]]] = []

        def report(self, subject: Subject, reason: str, message: str) -> None:
            assert message.startswith(f"claim {subject.namespace}/{subject.name} holds CPUs 4-5")
            self.told.append((subject.name, reason))

    async def story(case: Case) -> None:
        case.node.claims.reports = Reports()
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        case.lookup.add(claim(1, (NODE1, 2)))
        await case.look()
        assert Reports.told == []
        await case.look()
        assert Reports.told == [("claim-1", "ClaimNotUsed")]
        assert case.claims == {UID: "4-5"}

    play(scene, story)


def test_proofs_are_asked_for_ever_more_seldom(scene: Scene) -> None:
    """R2: a container of an unknown pod must not have the API server asked every few seconds for hours."""
    running(scene, PodShape(number=1), "c1", "6-7", **variable(UID, "6-7"))

    async def story(case: Case) -> None:
        case.node.synchronize()
        case.node.service.pods_listed([PodShape(number=2, claims=("claim-2",)).spec])
        begin = case.clock.now()
        while case.clock.now() - begin < 24 * 3600:
            await case.look()
        assert len(case.lookup.asked) < 24 * 3600 / PERIOD_S * 2 + 30

    play(scene, story)


def test_a_look_that_finds_the_claim_begins_the_count_anew(scene: Scene) -> None:
    """R2."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        await case.look()
        case.lookup.add(claim(1, (NODE1, 2)))
        await case.look()
        case.lookup.found.clear()
        await case.look()
        assert case.claims == {UID: "4-5"}

    play(scene, story)


def test_hours_without_the_api_server_release_nothing(scene: Scene) -> None:
    """R2: from its absence nothing follows, and the first look after it is a first one."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        case.lookup.is_away = True
        for _ in range(100):
            with pytest.raises(NotReady):
                await case.reconciler.look()
            await case.clock.sleep(120)
        case.lookup.is_away = False
        await case.look()
        assert case.claims == {UID: "4-5"}

    play(scene, story)


@pytest.mark.parametrize("other", ["another", None], ids=["another cluster", "no such node"])
def test_nothing_is_released_under_another_node_object(scene: Scene, other: str | None) -> None:
    """R2: the Node's UID has to be ours at both looks."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        await case.look()
        case.lookup.uid = other
        await case.look(3)
        assert case.claims == {UID: "4-5"}
        case.lookup.uid = "node-uid"
        await case.look()
        assert case.claims == {UID: "4-5"}
        await case.look()
        assert case.claims == {}

    play(scene, story)


@pytest.mark.parametrize("known", ["before", None], ids=["made anew", "never noted"])
def test_node_object_is_ours_once_a_claim_of_the_books_is_found_there(scene: Scene, known: str | None) -> None:
    """R2: a Node deleted and registered again gets another UID."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        await case.node.prepare(claim(2, (NODE1, 2)))
        await case.look()
        assert NODE_UID not in case.stored
        case.lookup.add(claim(2, (NODE1, 2)))
        await case.look()
        assert case.stored[NODE_UID] == "node-uid"
        await case.look(2)
        assert case.claims == {claim(2).uid: "6-7"}

    play(scene, story, node_uid=known)


def test_node_object_is_noted_while_the_books_are_empty(scene: Scene) -> None:
    """R2."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.look()
        assert case.stored[NODE_UID] == "node-uid"

    play(scene, story, node_uid=None)


# Claims that the books do not know: migration, and books that were lost (R2)


def test_community_drivers_claim_is_adopted_with_its_container(scene: Scene) -> None:
    """R2, R1: running holders keep their CPUs over a change from dra-driver-cpu; nobody else gets these meanwhile."""
    holder, other = PodShape(number=1, claims=("claim-1",)), PodShape(number=2)
    community_spec(scene, **{UID: "6-7"})
    running(scene, holder, "c1", "6-7", **variable(UID, "6-7"))
    running(scene, other, "c2", "0-5,8-14")

    async def story(case: Case) -> None:
        updates = case.node.synchronize()
        assert all(update.container_id != "c1" for update in updates)
        assert case.claims == {UID: "6-7"}
        await case.look()
        assert case.claims == {UID: "6-7"}, "pods are not known yet"
        case.lookup.add(claim(1, (NODE1, 2)), 1)
        case.node.service.pods_listed([holder.spec, other.spec])
        assert scene.runtime.processes[ContainerID("c1")].cpus == CpuSet.parse("6-7")
        await case.look(2)
        grant = case.node.service.books.ledger.claims[UID]
        assert not grant.unproven
        assert [(r.request, r.device, str(r.cpus)) for r in grant.results] == [("cpus", NODE1, "6-7")]
        case.node.audit()
        assert scene.runtime.processes[ContainerID("c1")].cpus == CpuSet.parse("6-7")
        assert case.node.service.books.ledger.holders(UID)[0].id == "c1"
        assert case.node.specs.claims() == (UID,)
        assert case.stored[ADOPTED] == "yes"
        assert case.node.counters.forged_claims == 0
        case.node.started.claim_store.set_meta(ADOPTED, case.stored[ADOPTED])

    async def restarted(case: Case) -> None:
        assert not case.node.started.adopting
        assert case.node.synchronize() == ()
        assert case.claims == {UID: "6-7"}

    play(scene, story)
    play(scene, restarted)


def test_claim_told_by_a_variable_alone_is_adopted(scene: Scene) -> None:
    """R2: the CDI spec is gone, the container runs."""
    holder = PodShape(number=1, claims=("claim-1",))
    running(scene, holder, "c1", "6-7", **variable(UID, "6-7"))

    async def story(case: Case) -> None:
        case.node.synchronize()
        case.lookup.add(claim(1, (NODE1, 2)), 1)
        case.node.service.pods_listed([holder.spec])
        await case.look()
        assert case.claims == {UID: "6-7"}
        assert case.node.service.unproven_claims == ()

    play(scene, story)


@pytest.mark.parametrize("why", ["not there", "not reserved", "another driver's", "not allocated"])
def test_claim_that_is_not_confirmed_gives_nothing(scene: Scene, why: str) -> None:
    """R2, L1: what is disproved goes to the shared pool, and is counted."""
    forger = PodShape(number=1, claims=("claim-1",))
    running(scene, forger, "c1", "6-7", **variable(UID, "6-7"))
    running(scene, PodShape(number=2), "c2", "0-14")

    async def story(case: Case) -> None:
        case.node.synchronize()
        assert case.claims == {UID: "6-7"}
        one = claim(1, (NODE1, 2))
        if why == "not reserved":
            case.lookup.add(one, 7)
        elif why == "another driver's":
            case.lookup.add(replace(one, results=()), 1)
        elif why == "not allocated":
            case.lookup.found["shop", "claim-1"] = FoundClaim(uid=one.uid, allocated=None)
        case.node.service.pods_listed([forger.spec, PodShape(number=2).spec])
        await case.look()
        assert case.claims == {}
        assert case.node.counters.forged_claims == 1
        case.node.audit()
        for container_id in ("c1", "c2"):
            placement = case.node.service.books.placement(ContainerID(container_id))
            assert placement is not None
            assert scene.runtime.processes[ContainerID(container_id)].cpus == placement.cpus
            assert not case.node.service.books.ledger.containers[ContainerID(container_id)].links

    play(scene, story)


def test_container_of_a_pod_that_references_no_claim_blocks_nothing_for_long(scene: Scene) -> None:
    """R2, L1: its spec disproves it at once."""
    forger = PodShape(number=1)
    running(scene, forger, "c1", "6-7", **variable(UID, "6-7"))

    async def story(case: Case) -> None:
        case.node.service.pods_listed([forger.spec])
        case.node.synchronize()
        await case.look()
        assert case.claims == {}
        assert case.node.counters.forged_claims == 1

    play(scene, story)


@pytest.mark.parametrize("value", ["0-14", "6-7", "0-14,16-40"], ids=["all", "some of its own", "more than there are"])
def test_variable_in_a_shared_container_keeps_nothing_from_others(scene: Scene, value: str) -> None:
    """L1, R2: a pod that sets the variable itself runs on more than it names, or leaves nothing to anybody."""
    running(scene, PodShape(number=1, claims=("claim-1",)), "c1", "0-14", **variable(UID, value))

    async def story(case: Case) -> None:
        case.node.synchronize()
        assert case.claims == {}
        assert case.node.counters.forged_claims == 1

    play(scene, story)


def test_container_of_an_unknown_pod_stays_where_it_is(scene: Scene) -> None:
    """R2: a wrong cluster or a pod that is being force-deleted proves nothing."""
    running(scene, PodShape(number=1), "c1", "6-7", **variable(UID, "6-7"))

    async def story(case: Case) -> None:
        case.node.synchronize()
        case.node.service.pods_listed([])
        await case.look(5)
        assert case.claims == {UID: "6-7"}
        assert scene.runtime.processes[ContainerID("c1")].cpus == CpuSet.parse("6-7")
        case.node.stop(ContainerID("c1"))
        await case.look()
        assert case.claims == {}

    play(scene, story)


def test_stale_spec_without_container_or_pod_is_dropped(scene: Scene) -> None:
    """R2."""
    community_spec(scene, **{UID: "6-7"})

    async def story(case: Case) -> None:
        case.node.synchronize()
        assert case.claims == {UID: "6-7"}
        case.node.service.pods_listed([])
        await case.look()
        assert case.claims == {}
        await case.node.prepare(claim(2, (NODE1, 4)))

    play(scene, story)


def test_prepare_confirms_a_claim_known_by_its_traces(scene: Scene) -> None:
    """R2, C6: the kubelet asks again after its restart; the CPUs stay."""
    community_spec(scene, **{UID: "6-7"})

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 2)))
        assert case.claims == {UID: "6-7"}
        assert case.node.service.unproven_claims == ()

    play(scene, story)


def test_prepare_with_another_amount_gives_other_cpus(scene: Scene) -> None:
    """R2, C6: the traces are of an earlier allocation, nobody runs there."""
    community_spec(scene, **{UID: "6-7"})

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.prepare(claim(1, (NODE1, 1)))
        assert len(CpuSet.parse(case.claims[UID])) == 1

    play(scene, story)


def test_unprepare_of_a_claim_known_by_its_traces_releases_it(scene: Scene) -> None:
    """C6, C12."""
    community_spec(scene, **{UID: "6-7"})

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.node.claims.unprepare(UID)
        assert case.claims == {}

    play(scene, story)


def test_claim_on_cpus_that_its_allocation_does_not_allow_stays_as_it_is(scene: Scene) -> None:
    """R2: it is reported, and released by unprepare."""
    holder = PodShape(number=1, claims=("claim-1",))
    running(scene, holder, "c1", "8-9", **variable(UID, "8-9"))

    async def story(case: Case) -> None:
        case.node.synchronize()
        case.lookup.add(claim(1, (NODE1, 2)), 1)
        case.node.service.pods_listed([holder.spec])
        await case.look(3)
        assert case.claims == {UID: "8-9"}
        assert scene.runtime.processes[ContainerID("c1")].cpus == CpuSet.parse("8-9")
        case.node.stop(ContainerID("c1"))
        await case.node.claims.unprepare(UID)
        assert case.claims == {}

    play(scene, story)


def test_new_container_of_an_unproven_claim_is_refused_for_now(scene: Scene) -> None:
    """R2, L1: it restarts while the API server is away."""
    community_spec(scene, **{UID: "6-7"})
    holder = PodShape(number=1, claims=("claim-1",))

    async def story(case: Case) -> None:
        case.node.service.pods_listed([holder.spec])
        case.node.synchronize()
        with pytest.raises(NotReady, match="not confirmed"):
            case.node.create(holder.sandbox, holder.container("c1", variable(UID, "6-7")))

    play(scene, story)


def test_books_that_were_lost_are_found_again(scene: Scene) -> None:
    """R2: from our own CDI specs and from what the containers' database still knows."""
    holder = PodShape(number=1, claims=("claim-1",))

    async def before(case: Case) -> None:
        case.node.synchronize()
        await case.look()
        await case.node.prepare(claim(1, (NODE1, 2), (NODE1, 1)))
        case.node.service.pod_seen(holder.spec)
        case.node.create(holder.sandbox, holder.container("c1", case.node.env_of(UID)))

    async def after(case: Case) -> None:
        assert case.node.started.adopting
        assert case.node.synchronize() == ()
        case.lookup.add(claim(1, (NODE1, 2), (NODE1, 1)), 1)
        case.node.service.pods_listed([holder.spec])
        await case.look(2)
        grant = case.node.service.books.ledger.claims[UID]
        assert [(r.request, str(r.cpus)) for r in grant.results] == [("cpus-0", "4-5"), ("cpus-1", "6")]
        assert case.node.service.books.ledger.holders(UID)[0].id == "c1"
        assert scene.runtime.processes[ContainerID("c1")].writes == 0

    play(scene, before)
    for path in (scene.directory / "state").glob("claims.db*"):
        path.unlink()
    play(scene, after)


def test_a_first_start_on_an_empty_node_is_over_at_the_first_look(scene: Scene) -> None:
    """R2: later variables of unknown claims are forged."""

    async def story(case: Case) -> None:
        case.node.synchronize()
        await case.look()
        assert not case.node.service.adopting
        running(scene, PodShape(number=1), "c1", "6-7", **variable(UID, "6-7"))
        case.node.service.pod_seen(PodShape(number=1).spec)
        case.node.synchronize()
        assert case.claims == {}
        assert case.node.counters.forged_claims == 1

    play(scene, story)
