"""A node's life as a state machine: prepare, unprepare, create, stop, synchronize, crash and restart, in any order.

After every step the invariants of the books hold, and what containers really run on is compared with who owns what. The
machine's own record (what was answered, who holds what) is kept apart from the daemon's, and says beforehand whether a
refusal is due: any other one fails, and so does an answer where one is due.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.errors import BadRequest, ClaimConflict, ClaimError, NoCapacity, NodeCpuError, NotReady
from nodecpu.ids import ClaimUID, ContainerID
from nodecpu.policy.facts import AllocatedClaim, ContainerState, QoS
from nodecpu.policy.grants import Group
from tests.node import ALL, FakeRuntime, Node, PodShape, claim, scene_in_memory

T = TypeVar("T")
CLAIMS = st.integers(1, 6)
PODS = st.integers(1, 8)
DEVICES = {f"cpudevnuma{number:03d}": CpuSet(range(4 * number, 4 * number + 4)) for number in range(4)}
RESULTS = st.lists(st.tuples(st.sampled_from(sorted(DEVICES)), st.integers(1, 4)), min_size=1, max_size=2)
RESERVED = st.sampled_from(["15", "11,15", "3,7", "12-13"])

EXPECTED = frozenset(
    {
        "prepare: answered",
        "prepare: bad-request",
        "prepare: no-capacity",
        "prepare: not-ready",
        "create: holder, not exclusive",
        "create: no claim, exclusive",
        "create: no claim, not exclusive",
        "reload: done",
        "crash: with a released claim under its holder",
    }
)
"""What a run has to come across, or it proves little."""


@dataclass(frozen=True, kw_only=True)
class Had:
    """What a container was given: exclusive CPUs, what it shares in whole CPUs, and the claim that it holds."""

    pod: PodShape
    exclusive: CpuSet = NO_CPUS
    shared: int = 0
    uid: ClaimUID | None = None


class NodeMachine(RuleBasedStateMachine):
    """One node with one runtime.

    ``answered`` is what the kubelet was told, by claim; ``released`` are the claims that it has given up. ``had`` is
    what containers were given, until the daemon was told that they have ended. ``reached`` counts what has happened.
    """

    def __init__(self, reached: Counter[str]) -> None:
        super().__init__()
        self.reached = reached
        self.scene, self.directory = scene_in_memory()
        self.scene.extra = "[claims]\nwait_s = 0.0"
        self.loop = asyncio.new_event_loop()
        self.allocated: dict[ClaimUID, AllocatedClaim] = {}
        self.answered: dict[ClaimUID, CpuSet] = {}
        self.released: dict[ClaimUID, tuple[AllocatedClaim, CpuSet]] = {}
        self.had: dict[ContainerID, Had] = {}
        self.running: dict[ContainerID, PodShape] = {}
        self.holding: dict[ContainerID, ClaimUID] = {}
        self.count = 0
        self.is_linked = False
        self.node = self.wait(self._boot())
        self.synchronize()

    async def _boot(self) -> Node:
        return self.scene.boot()

    def wait(self, work: Coroutine[None, None, T]) -> T:
        return self.loop.run_until_complete(work)

    def call(self, function: Callable[[], T]) -> T:
        """Call what has to run on the event loop, as the daemon's shells do."""

        async def work() -> T:
            return function()

        return self.wait(work())

    def teardown(self) -> None:
        self.wait(self.node.crash())
        self.loop.close()
        self.directory.cleanup()

    @property
    def runtime(self) -> FakeRuntime:
        return self.scene.runtime

    # The machine's own count

    @property
    def held(self) -> dict[ClaimUID, tuple[AllocatedClaim, CpuSet]]:
        """The released claims that a container still holds, as far as the daemon was told."""
        holders = {had.uid for had in self.had.values()}
        return {uid: kept for uid, kept in self.released.items() if uid in holders}

    def free(self, besides: Callable[[ContainerID], bool] = lambda container_id: False) -> CpuSet:
        """Return the CPUs that nobody was given, those of some containers counted as free."""
        taken = union([*self.answered.values(), *(cpus for _, cpus in self.held.values())])
        taken |= union(had.exclusive for one, had in self.had.items() if not besides(one))
        return ALL - CpuSet.parse(self.scene.reserved) - taken

    def refusals_of(self, wanted: AllocatedClaim) -> frozenset[type[ClaimError]]:
        """Return which refusals of a prepare are due; none of them: an answer is (C2, C3, C6 to C8)."""
        if wanted.uid in self.answered:
            return frozenset()
        if not self.is_linked:
            return frozenset({NotReady})
        if wanted.uid in self.held:
            return frozenset() if self.held[wanted.uid][0].results == wanted.results else frozenset({NotReady})
        due: set[type[ClaimError]] = set()
        asked = Counter[str]()
        free = self.free()
        for one in wanted.results:
            asked[one.device] += one.cpus
            if one.cpus > len(DEVICES[one.device] - CpuSet.parse(self.scene.reserved)):
                due.add(BadRequest)
            if asked[one.device] > len(free & DEVICES[one.device]):
                due.add(NoCapacity)
        return frozenset(due)

    def must_fit(self, exclusive: int) -> bool:
        """Return whether a creation has to succeed: a need for exclusive CPUs alone may be refused (G16).

        It must not where every shared container's request, rounded up, is covered besides (P3). What has ended is no
        reason (G11), but for what it shared and for the claims that it held: only an event tells of these.
        """
        live = self.running.keys()
        shared = sum(had.shared for one, had in self.had.items() if one in live or not had.exclusive)
        free = self.free(besides=lambda one: one not in live and bool(self.had[one].exclusive))
        return not exclusive or exclusive <= len(free) - shared

    @rule(number=CLAIMS, results=RESULTS, is_as_before=st.booleans())
    def prepare(self, number: int, results: list[tuple[str, int]], is_as_before: bool) -> None:  # noqa: FBT001 - Hypothesis passes it by name
        uid = claim(number).uid
        wanted = self.allocated.get(uid) or claim(number, *results)
        if is_as_before and uid in self.held:
            wanted = self.held[uid][0]
        due = self.refusals_of(wanted)
        refusal = _refusal(lambda: self.wait(self.node.prepare(wanted)))
        if refusal is not None:
            assert type(refusal) in due, f"{refusal}: not due"
            self.reached[f"prepare: {refusal.code}"] += 1
            return
        assert not due, "answered though a refusal is due"
        cpus = self.node.service.books.ledger.claims[uid].cpus
        assert self.answered.setdefault(uid, cpus) == cpus, "prepare answered something else"
        assert len(cpus) == sum(result.cpus for result in wanted.results)
        assert cpus.isdisjoint(CpuSet.parse(self.scene.reserved))
        if uid in self.held:
            assert cpus == self.held[uid][1], "its container still runs on others"
            self.reached["prepare: again under a holder"] += 1
        self.released.pop(uid, None)
        self.allocated[uid] = wanted
        self.reached["prepare: answered"] += 1

    @rule(number=CLAIMS, is_held=st.booleans())
    def unprepare(self, number: int, is_held: bool) -> None:  # noqa: FBT001 - Hypothesis passes it by name
        self._unprepare(min(self.holding.values()) if is_held and self.holding else claim(number).uid)

    def _unprepare(self, uid: ClaimUID) -> None:
        self.wait(self.node.claims.unprepare(uid))
        if uid in self.answered:
            self.released[uid] = self.allocated.pop(uid), self.answered.pop(uid)
        if uid in self.released:  # its holders are looked at (C12)
            for one in [one for one, had in self.had.items() if had.uid == uid and one not in self.running]:
                del self.had[one]

    @precondition(lambda self: self.is_linked)
    @rule(number=PODS, kind=st.sampled_from(["bare", "burstable", "one", "two", "mixed", "system"]))
    def create(self, number: int, kind: str) -> None:
        self._create(_shape(number, kind), None)

    @precondition(lambda self: self.is_linked and self.answered)
    @rule(number=PODS, data=st.data(), request=st.sampled_from([None, 100, 1000, 3000]))
    def create_holder(self, number: int, data: st.DataObject, request: int | None) -> None:
        self._create_holder(number, data.draw(st.sampled_from(sorted(self.answered))), request)

    def _create_holder(self, number: int, uid: ClaimUID, request: int | None) -> None:
        qos = QoS.BEST_EFFORT if request is None else QoS.GUARANTEED
        name = self.allocated[uid].name
        self._create(PodShape(number=number, qos=qos, request_mcpu=request, claims=(name,)), uid)

    @precondition(lambda self: self.is_linked)
    @rule(number=CLAIMS, results=RESULTS, pod=PODS, request=st.sampled_from([None, 100, 1000, 3000, 5000]))
    def start_pod_with_claim(self, number: int, results: list[tuple[str, int]], pod: int, request: int | None) -> None:
        """What the kubelet does for a pod: both, one after the other."""
        self.prepare(number, results, is_as_before=True)
        if (uid := claim(number).uid) in self.answered:
            self._create_holder(pod, uid, request)

    @precondition(lambda self: self.is_linked and self.answered)
    @rule(number=PODS, data=st.data())
    def create_forged(self, number: int, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.answered)))
        before = self.node.counters.forged_claims
        self._create(PodShape(number=number), None, dict(self.node.env_of(uid)))
        assert self.node.counters.forged_claims > before

    def _create(self, pod: PodShape, uid: ClaimUID | None, env: dict[str, str] | None = None) -> None:
        self.count += 1
        container_id = ContainerID(f"c{self.count}")
        for old in [one for one, shape in self.running.items() if shape.number == pod.number]:
            self._end(old)  # the kubelet creates a successor only when the old one has ended; its event may be late
        self.call(lambda: self.node.service.pod_seen(pod.spec))
        claimed = NO_CPUS
        if uid is not None:
            env, claimed = dict(self.node.env_of(uid)), self.answered[uid]
        exclusive, shared = _asked(pod, len(claimed))
        must = self.must_fit(exclusive)
        ledger = self.node.service.books.ledger
        refusal = _refusal(lambda: self.call(lambda: self.node.create(pod.sandbox, pod.container(container_id, env))))
        # What it superseded or reclaimed is gone; of what is dead it may be as much as it sees fit.
        self.had = {one: had for one, had in self.had.items() if one in self.running or one in ledger.containers}
        if refusal is not None:
            assert type(refusal) is NoCapacity, f"{refusal}: nothing else can be wrong"
            assert not must, f"{refusal}: it fits"
            self.reached["create: refused"] += 1
            return
        cpus = self.runtime.processes[container_id].cpus
        grant = ledger.containers[container_id]
        assert len(grant.exclusive) == exclusive
        assert grant.claimed == claimed
        assert claimed | grant.exclusive <= cpus
        assert shared or pod.namespace == "kube-system" or cpus == claimed | grant.exclusive
        self.running[container_id] = pod
        self.had[container_id] = Had(pod=pod, exclusive=grant.exclusive, shared=shared, uid=uid)
        if uid is not None:
            self.holding[container_id] = uid
        self.reached[f"create: {'holder' if claimed else 'no claim'}, {'' if exclusive else 'not '}exclusive"] += 1

    def _end(self, container_id: ContainerID) -> None:
        self.runtime.processes.pop(container_id, None)
        self.running.pop(container_id, None)
        self.holding.pop(container_id, None)

    @precondition(lambda self: not self.is_linked)
    @rule(number=PODS, kind=st.sampled_from(["bare", "burstable", "two", "system"]))
    def create_while_away(self, number: int, kind: str) -> None:
        pod = _shape(number, kind)
        for old in [one for one, shape in self.running.items() if shape.number == number]:
            self._end(old)
        self.count += 1
        container_id = ContainerID(f"c{self.count}")
        self.call(lambda: self.node.service.pod_seen(pod.spec))
        self.runtime.add(pod.sandbox, pod.container(container_id), None)
        self.running[container_id] = pod

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_told=st.booleans())
    def stop(self, data: st.DataObject, is_told: bool) -> None:  # noqa: FBT001 - Hypothesis passes it by name
        container_id = data.draw(st.sampled_from(sorted(self.running)))
        process = self.runtime.processes[container_id]
        self._end(container_id)
        if is_told and self.is_linked:
            del self.had[container_id]
            self.runtime.apply(self.call(lambda: self.node.service.stop_container(process.sandbox, process.container)))

    @rule(number=st.integers(1, 30))
    def late_event_of_an_unknown_container(self, number: int) -> None:
        pod = PodShape(number=99)
        gone = replace(pod.container(f"old{number}"), state=ContainerState.STOPPED)
        if self.is_linked:
            self.runtime.apply(self.call(lambda: self.node.service.stop_container(None, gone)))
            self.call(lambda: self.node.service.remove_container(None, gone))

    @rule(number=PODS)
    def remove_sandbox(self, number: int) -> None:
        for container_id in [one for one, shape in self.running.items() if shape.number == number]:
            self._end(container_id)
        if self.is_linked:
            self.call(lambda: self.node.service.remove_sandbox(PodShape(number=number).sandbox))
            self.had = {one: had for one, had in self.had.items() if had.pod.number != number}

    @rule()
    def synchronize(self) -> None:
        self.runtime.loses_updates = False
        self.call(self.node.synchronize)
        self.is_linked = True
        self.had = {one: self.had.get(one, Had(pod=pod)) for one, pod in self.running.items()}
        self._look_at_containers()

    def _look_at_containers(self) -> None:
        """Note what containers have that were not created by a request, or that were placed anew."""
        grants = self.node.service.books.ledger.containers
        for container_id, had in self.had.items():
            exclusive, shared = _asked(had.pod, len(grants[container_id].claimed))
            own = grants[container_id].exclusive
            assert len(own) in {0, exclusive}
            if exclusive and not own:  # it was created while they were not free, and shares (G16)
                shared = -(-(had.pod.request_mcpu or 0) // 1000)
            self.had[container_id] = replace(had, exclusive=own, shared=shared)

    @precondition(lambda self: self.is_linked)
    @rule()
    def lose_link(self) -> None:
        self.node.service.runtime_lost()
        self.is_linked = False

    @rule(does=st.booleans())
    def lose_updates(self, does: bool) -> None:  # noqa: FBT001 - Hypothesis passes it by name
        self.runtime.loses_updates = does

    @rule()
    def reload(self) -> None:
        """R3: the same configuration again changes nothing and sends nothing."""
        before = self._state()
        self.call(lambda: self.node.reload(self.scene.config()))
        assert self._state() == before

    @precondition(lambda self: self.is_linked)
    @rule(reserved=RESERVED)
    def reload_with_other_reserved_cpus(self, reserved: str) -> None:
        """R3: refused as a whole, with reason, or every claim keeps its CPUs."""
        before, old = self._state(), self.scene.reserved
        taking = CpuSet.parse(reserved)
        takes_claims = any(
            cpus & taking for cpus in (*self.answered.values(), *(cpus for _, cpus in self.held.values()))
        )
        takes_others = any(had.exclusive & taking for had in self.had.values())
        self.scene.reserved = reserved
        refusal = _refusal(lambda: self.call(lambda: self.node.reload(self.scene.config())))
        if refusal is not None:
            assert type(refusal) is (ClaimConflict if takes_claims else NoCapacity), f"{refusal}: not due"
            assert takes_claims or takes_others, "nobody would have lost anything"
            self.scene.reserved = old
            assert self._state() == before
            self.reached[f"reload: {refusal.code}"] += 1
            return
        assert not takes_claims
        self._look_at_containers()
        self.reached["reload: done"] += 1

    def _state(self) -> object:
        books = self.node.service.books
        return dict(books.ledger.claims), dict(books.ledger.containers), books.pending.open, books.ledger.tree.usable

    @rule(is_away=st.sampled_from([False, False, True]), releases=st.booleans())
    def crash(self, is_away: bool, releases: bool) -> None:  # noqa: FBT001 - Hypothesis passes them by name
        if releases and self.holding:
            self._unprepare(min(self.holding.values()))
        before = {one: process.cpus for one, process in self.runtime.processes.items()}
        self.wait(self.node.crash())
        self.node = self.wait(self._boot())
        self.is_linked = False
        assert {one: process.cpus for one, process in self.runtime.processes.items()} == before
        if self.held:
            self.reached["crash: with a released claim under its holder"] += 1
        if not is_away:
            self.synchronize()

    @precondition(lambda self: self.is_linked)
    @rule()
    def audit(self) -> None:
        """Once everything is read back, every container runs where the books say, and nobody on others' CPUs."""
        self.runtime.loses_updates = False
        self.call(self.node.audit)
        ledger = self.node.service.books.ledger
        for container_id, process in self.runtime.processes.items():
            placement = self.node.service.books.placement(container_id)
            assert placement is not None
            assert process.cpus == placement.cpus
            own = ledger.containers[container_id]
            others = union(one.cpus for one in ledger.claims.values()) - own.claimed
            others |= union(g.exclusive for g in ledger.containers.values()) - own.exclusive
            assert process.cpus.isdisjoint(others), f"{container_id} runs on others' CPUs"

    @invariant()
    def books_hold(self) -> None:
        self.node.check()

    @invariant()
    def no_claim_is_lost(self) -> None:
        claims = self.node.service.books.ledger.claims
        for uid, cpus in self.answered.items():
            assert claims[uid].cpus == cpus
            assert not claims[uid].released

    @invariant()
    def released_claims_stay_while_held(self) -> None:
        claims = self.node.service.books.ledger.claims
        assert {uid: claims[uid].cpus for uid in self.held} == {uid: cpus for uid, (_, cpus) in self.held.items()}

    @invariant()
    def holders_keep_their_cpus(self) -> None:
        ledger = self.node.service.books.ledger
        for container_id, uid in self.holding.items():
            process, grant = self.runtime.processes[container_id], ledger.containers[container_id]
            assert ledger.claims[uid].cpus <= process.cpus
            if grant.group is Group.CLAIMED:
                assert ledger.claims[uid].cpus == process.cpus

    @invariant()
    def nobody_is_without_cpus(self) -> None:
        for process in self.runtime.processes.values():
            assert process.cpus
            assert process.cpus <= ALL


def _shape(number: int, kind: str) -> PodShape:
    namespace = "kube-system" if kind == "system" else "shop"
    requests = {"bare": None, "burstable": 300, "one": 1000, "two": 2000, "mixed": 1500, "system": 100}
    qos = {"bare": QoS.BEST_EFFORT, "burstable": QoS.BURSTABLE, "system": QoS.BURSTABLE}.get(kind, QoS.GUARANTEED)
    return PodShape(number=number, namespace=namespace, qos=qos, request_mcpu=requests[kind])


def _refusal(work: Callable[[], object]) -> NodeCpuError | None:
    """Return the error with which something was refused, None if it was done."""
    try:
        work()
    except NodeCpuError as err:
        return err
    return None


def _asked(pod: PodShape, claimed: int) -> tuple[int, int]:
    """Return the exclusive CPUs that are due to a container, and its shared portion in whole CPUs, rounded up.

    Without a claim by G1, else by G2, G3 and G13: the request pays for the claim. A portion of nothing counts one CPU.
    """
    mcpu = pod.request_mcpu or 0
    if pod.namespace == "kube-system" or (claimed and mcpu in {0, 1000 * claimed}):
        return 0, 0
    if pod.qos is not QoS.GUARANTEED or mcpu < 1000 * max(claimed, 1):
        return 0, max(1, -(-mcpu // 1000))
    own = mcpu - 1000 * claimed
    return own // 1000, int(own % 1000 > 0)


def test_whatever_happens_on_a_node_the_books_hold_and_nothing_is_refused_without_need() -> None:
    """C2, C3, C6 to C8, C12, G1 to G5, G9, G11, G16, L4, R1 to R4."""
    reached = Counter[str]()

    class Counted(NodeMachine):
        def __init__(self) -> None:
            super().__init__(reached)

    run_state_machine_as_test(Counted, settings=settings(max_examples=80, stateful_step_count=40))
    assert EXPECTED - reached.keys() == set(), reached
