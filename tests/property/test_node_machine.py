"""A node's life as a state machine: prepare, unprepare, create, stop, synchronize, crash and restart, in any order.

After every step the invariants of the books hold, and what containers really run on is compared with who owns what. The
machine's own record (what was answered, who holds what) is kept apart from the daemon's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodecpu.cpuset import CpuSet, union
from nodecpu.errors import ClaimError, NodeCpuError
from nodecpu.ids import ClaimUID, ContainerID
from nodecpu.policy.facts import AllocatedClaim, ContainerState, QoS
from nodecpu.policy.grants import Group
from tests.node import ALL, FakeRuntime, Node, PodShape, claim, scene_in_memory

T = TypeVar("T")
CLAIMS = st.integers(1, 6)
PODS = st.integers(1, 8)
DEVICES = st.sampled_from([f"cpudevnuma{number:03d}" for number in range(4)])
RESULTS = st.lists(st.tuples(DEVICES, st.integers(1, 4)), min_size=1, max_size=2)
RESERVED = st.sampled_from(["15", "11,15", "3,7", "12-13"])


class NodeMachine(RuleBasedStateMachine):
    """One node with one runtime; ``answered`` is what the kubelet was told, by claim."""

    def __init__(self) -> None:
        super().__init__()
        self.scene, self.directory = scene_in_memory()
        self.scene.extra = "[claims]\nwait_s = 0.0"
        self.loop = asyncio.new_event_loop()
        self.allocated: dict[ClaimUID, AllocatedClaim] = {}
        self.answered: dict[ClaimUID, CpuSet] = {}
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

    @rule(number=CLAIMS, results=RESULTS)
    def prepare(self, number: int, results: list[tuple[str, int]]) -> None:
        uid = claim(number).uid
        wanted = self.allocated.get(uid) or claim(number, *results)
        try:
            self.wait(self.node.prepare(wanted))
        except ClaimError:
            assert uid not in self.answered, "a prepared claim was refused"
            return
        cpus = self.node.service.books.ledger.claims[uid].cpus
        assert self.answered.setdefault(uid, cpus) == cpus, "prepare answered something else"
        assert len(cpus) == sum(result.cpus for result in wanted.results)
        assert cpus.isdisjoint(CpuSet.parse(self.scene.reserved))
        self.allocated[uid] = wanted

    @rule(number=CLAIMS)
    def unprepare(self, number: int) -> None:
        uid = claim(number).uid
        self.wait(self.node.claims.unprepare(uid))
        self.answered.pop(uid, None)
        self.allocated.pop(uid, None)

    @precondition(lambda self: self.is_linked)
    @rule(number=PODS, kind=st.sampled_from(["bare", "burstable", "one", "two", "mixed", "system"]))
    def create(self, number: int, kind: str) -> None:
        self._create(_shape(number, kind), None)

    @precondition(lambda self: self.is_linked and self.answered)
    @rule(number=PODS, data=st.data(), request=st.sampled_from([None, 100, 1000, 3000]))
    def create_holder(self, number: int, data: st.DataObject, request: int | None) -> None:
        uid = data.draw(st.sampled_from(sorted(self.answered)))
        qos = QoS.BEST_EFFORT if request is None else QoS.GUARANTEED
        name = self.allocated[uid].name
        self._create(PodShape(number=number, qos=qos, request_mcpu=request, claims=(name,)), uid)

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
        if uid is not None:
            env = dict(self.node.env_of(uid))
        try:
            self.call(lambda: self.node.create(pod.sandbox, pod.container(container_id, env)))
        except NodeCpuError:
            return
        self.running[container_id] = pod
        if uid is not None:
            self.holding[container_id] = uid

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

    @rule()
    def synchronize(self) -> None:
        self.runtime.loses_updates = False
        self.call(self.node.synchronize)
        self.is_linked = True

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
        """R3: refused as a whole, or every claim keeps its CPUs."""
        before, old = self._state(), self.scene.reserved
        self.scene.reserved = reserved
        try:
            self.call(lambda: self.node.reload(self.scene.config()))
        except NodeCpuError:
            self.scene.reserved = old
            assert self._state() == before

    def _state(self) -> object:
        books = self.node.service.books
        return dict(books.ledger.claims), dict(books.ledger.containers), books.pending.open, books.ledger.tree.usable

    @rule()
    def crash(self) -> None:
        before = {one: process.cpus for one, process in self.runtime.processes.items()}
        self.wait(self.node.crash())
        self.node = self.wait(self._boot())
        self.is_linked = False
        assert {one: process.cpus for one, process in self.runtime.processes.items()} == before

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


TestNodeMachine = NodeMachine.TestCase
TestNodeMachine.settings = settings(max_examples=60, stateful_step_count=40)
