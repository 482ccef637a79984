"""The audit brings about what no reply will, by the right means, and leaves alone what is right."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from nodecpu.admin.view import enforcement_state
from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.enforce.audit import Audit, Means, UnitCpusets
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.enforce.systemd import Systemd
from nodecpu.ids import ContainerID
from nodecpu.log import LineFormatter
from nodecpu.policy.facts import ContainerState
from nodecpu.policy.fights import MOST
from nodecpu.policy.pending import Seen
from nodecpu.policy.plan import Placement, Update
from nodecpu.reports import Subject
from tests.node import Node, PodShape, Scene, claim, scene_in_memory

NODE_1 = "cpudevnuma001"
NODE_2 = "cpudevnuma002"
C1 = "/kubepods/c1"


class Kernel(Cgroups):
    """A cgroup tree whose effective sets follow what is written; ``changed`` is set then."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.changed = asyncio.Event()

    def write(self, cgroups_path: str, cpus: CpuSet, mems: NodeSet) -> bool:
        taken = super().write(cgroups_path, cpus, mems)
        self.become(cgroups_path, cpus)
        return taken

    def become(self, cgroups_path: str, cpus: CpuSet, mems: str = "2") -> None:
        where = self.root / cgroups_path.lstrip("/")
        where.mkdir(parents=True, exist_ok=True)
        (where / "cpuset.cpus.effective").write_text(str(cpus))
        (where / "cpuset.mems.effective").write_text(mems)
        self.changed.set()

    def seen_cpus(self, cgroups_path: str) -> str:
        return (self.root / cgroups_path.lstrip("/") / "cpuset.cpus.effective").read_text()

    def written(self, cgroups_path: str) -> str | None:
        path = self.root / cgroups_path.lstrip("/") / "cpuset.cpus"
        return path.read_text() if path.exists() else None


class Unasked:
    """A runtime that takes updates which answer no request, or does not."""

    def __init__(self, kernel: Kernel | None, *, answers: bool = True) -> None:
        self._kernel = kernel
        self._answers = answers
        self.sent: list[Update] = []
        self.meanwhile: Callable[[], Awaitable[object]] | None = None  # what happens while the first one is under way

    async def update(self, update: Update) -> bool:
        self.sent.append(update)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        if self._kernel is not None:
            self._kernel.become(f"/kubepods/{update.container_id}", update.placement.cpus, str(update.placement.mems))
        return self._kernel is not None and self._answers


@pytest.fixture
def scene() -> Iterator[Scene]:
    made, directory = scene_in_memory()
    with directory:
        (made.directory / "cgroup" / "cgroup.controllers").write_text("cpuset\n")
        yield made


class SlowSystemd:
    """A systemd that takes its time and then fails, unless it has a kernel; ``meanwhile`` happens in that time."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        self.kernel: Kernel | None = None
        self.is_over = asyncio.Event()

    async def set_cpuset(self, cgroups_path: str, placement: Placement) -> bool:
        if self.meanwhile is not None:
            await self.meanwhile()
        if self.kernel is not None:
            self.kernel.become(cgroups_path, placement.cpus, str(placement.mems))
        self.is_over.set()
        return self.kernel is not None

    async def told(self, cgroups_path: str) -> CpuSet | None:
        del cgroups_path
        return None


Story = Callable[[Node, Audit, Kernel, Unasked], Awaitable[None]]


def play(
    scene: Scene,
    story: Story,
    *,
    is_safe: bool = False,
    answers: bool = True,
    period_s: float = 30.0,
    systemd: UnitCpusets | None = None,
) -> None:
    """Run a story on a node whose one container, c1, runs on 10-11 of node 2 since a claim has 8-9."""
    systemd = systemd or Systemd(booted=scene.directory / "no-systemd")

    async def whole() -> None:
        node = scene.boot()
        kernel = Kernel(scene.directory / "cgroup")
        unasked = Unasked(kernel if is_safe else None, answers=answers)
        means = Means(unasked=unasked, systemd=systemd)
        audit = Audit(node.service, kernel, means, node.counters, period_s=period_s)
        node.synchronize()
        pod = PodShape(number=1)
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c1"))
        await node.prepare(claim(1, (NODE_2, 2)))
        node.audit()
        kernel.become(C1, CpuSet.parse("10-11"))
        kernel.changed.clear()
        task = asyncio.create_task(audit.run())
        try:
            async with asyncio.timeout(20):
                await story(node, audit, kernel, unasked)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await node.crash()

    asyncio.run(whole())


def test_widening_goes_through_a_runtime_known_to_be_safe(scene: Scene) -> None:
    """E1, C12: the second means before the third."""

    async def story(node: Node, audit: Audit, kernel: Kernel, unasked: Unasked) -> None:
        await node.claims.unprepare(claim(1).uid)
        audit.kick()
        await kernel.changed.wait()
        assert [str(update.placement.cpus) for update in unasked.sent] == ["8-11"]
        assert kernel.written(C1) is None

    play(scene, story, is_safe=True)


def test_each_container_is_sent_what_the_books_want_by_then(scene: Scene) -> None:
    """E1, C1: a claim that gets CPUs while one update is under way is not overrun by the next."""

    async def story(node: Node, audit: Audit, kernel: Kernel, unasked: Unasked) -> None:
        pod = PodShape(number=2)
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c2"))
        await node.prepare(claim(2, (NODE_1, 2)))
        kernel.become("/kubepods/c2", CpuSet.parse("6-7"), "1")
        node.audit()
        unasked.meanwhile = lambda: node.prepare(claim(3, (NODE_1, 1)))
        await node.claims.unprepare(claim(1).uid)
        await node.claims.unprepare(claim(2).uid)
        kernel.changed.clear()
        audit.kick()
        while len(unasked.sent) < 2:
            await kernel.changed.wait()
            kernel.changed.clear()
        sent = [(update.container_id, str(update.placement.cpus)) for update in unasked.sent]
        assert sent == [("c1", "8-11"), ("c2", "5-7")]

    play(scene, story, is_safe=True)


def test_what_is_not_wanted_any_more_is_not_written(scene: Scene) -> None:
    """E1, C1: a claim gets the CPUs while systemd is asked to give them to others."""
    systemd = SlowSystemd()

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        systemd.meanwhile = lambda: node.prepare(claim(2, (NODE_2, 2)))
        await node.claims.unprepare(claim(1).uid)
        audit.kick()
        await systemd.is_over.wait()
        assert kernel.written(C1) is None
        pod = PodShape(number=2)
        node.service.pod_seen(pod.spec)
        assert node.service.create_container(pod.sandbox, pod.container("c2")).updates == ()

    play(scene, story, systemd=systemd)


def test_what_systemd_did_though_it_is_not_wanted_any_more_is_not_told_to_the_runtime(scene: Scene) -> None:
    """E1, C1: neither then nor once the cpuset has come right: the claim has those CPUs."""
    systemd = SlowSystemd()

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        systemd.meanwhile, systemd.kernel = lambda: node.prepare(claim(2, (NODE_2, 2))), kernel
        await node.claims.unprepare(claim(1).uid)
        audit.kick()
        await systemd.is_over.wait()
        assert [str(update.placement.cpus) for update in node.service.books.pending.due()] == ["10-11"]
        assert node.service.observe(ContainerID("c1"), Seen(cpus=CpuSet.parse("10-11"), mems=NodeSet.parse("2")))
        assert node.service.books.pending.due() == ()

    play(scene, story, systemd=systemd)


def test_widening_is_written_to_the_cgroup_where_the_runtime_is_not_safe(scene: Scene) -> None:
    """E1, C12; what was written past the runtime is told in the next reply, once."""

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        await node.claims.unprepare(claim(1).uid)
        audit.kick()
        await kernel.changed.wait()
        assert kernel.written(C1) == "8-11"
        pod = PodShape(number=2)
        node.service.pod_seen(pod.spec)
        told = node.service.create_container(pod.sandbox, pod.container("c2")).updates
        assert [one.container_id for one in told] == ["c1"]
        stopped = replace(pod.container("c2"), state=ContainerState.STOPPED)
        assert node.service.stop_container(pod.sandbox, stopped) == ()

    play(scene, story)


def test_a_container_on_the_right_cpus_is_not_written_to(scene: Scene) -> None:
    """R7, G8: rewriting would wipe the affinities that its threads set."""

    async def story(node: Node, audit: Audit, kernel: Kernel, unasked: Unasked) -> None:
        walked = asyncio.Event()
        audit.after_walk = walked.set
        await walked.wait()
        assert not kernel.changed.is_set()
        assert not unasked.sent
        assert not node.counters.repairs

    play(scene, story, period_s=0.05)


def test_a_foreign_change_is_counted_and_put_right(scene: Scene) -> None:
    """E1: drift, here by somebody who wrote to the cgroup."""

    async def story(node: Node, _: Audit, kernel: Kernel, unasked: Unasked) -> None:
        kernel.become(C1, CpuSet.parse("0-15"))
        kernel.changed.clear()
        await kernel.changed.wait()
        assert node.counters.repairs["drift"] == 1
        assert [str(update.placement.cpus) for update in unasked.sent] == ["10-11"]

    play(scene, story, is_safe=True, period_s=0.05)


def test_what_came_about_without_an_answer_is_not_written_again(scene: Scene) -> None:
    """E1: a busy runtime applied the update and answered too late; the second means must not rewrite what is right."""

    async def story(node: Node, audit: Audit, kernel: Kernel, unasked: Unasked) -> None:
        await node.claims.unprepare(claim(1).uid)
        audit.kick()
        await kernel.changed.wait()
        walked = asyncio.Event()
        audit.after_walk = walked.set
        await walked.wait()
        assert len(unasked.sent) == 1
        assert kernel.written(C1) is None

    play(scene, story, is_safe=True, answers=False, period_s=0.05)


def test_a_container_whose_cgroup_comes_late_has_its_whole_period_from_then_on(scene: Scene) -> None:
    """E1: the runtime makes a group and then writes its cpuset; it is not overtaken for having been slow before.

    A group that cannot be read for a moment once it has been there is not gone.
    """

    async def story(node: Node, _: Audit, kernel: Kernel, unasked: Unasked) -> None:
        means = Means(unasked=unasked, systemd=Systemd(booted=scene.directory / "no-systemd"))
        audit = Audit(node.service, kernel, means, node.counters, period_s=30.0)
        pod = PodShape(number=2)
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c2"))
        await audit._look_at_pending(0.0)
        kernel.become("/kubepods/c2", CpuSet.parse("0-15"))
        await audit._look_at_pending(29.0)
        shutil.rmtree(kernel.root / "kubepods/c2")
        await audit._look_at_pending(31.0)
        kernel.become("/kubepods/c2", CpuSet.parse("0-15"))
        await audit._look_at_pending(58.0)
        assert kernel.written("/kubepods/c2") is None
        await audit._look_at_pending(59.0)
        assert kernel.written("/kubepods/c2") is not None

    play(scene, story)


def test_a_container_that_was_judged_late_is_put_right_at_once(scene: Scene) -> None:
    """G9: created while we were away and its pod not known yet: it runs already, and no reply may come for long."""

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        await node.prepare(claim(2, ("cpudevnuma001", 2)))
        pod = PodShape(number=2, claims=(claim(2).name,))
        env = {f"DRA_CPUSET_{claim(2).uid}": "4-5"}
        kernel.become("/kubepods/c2", CpuSet.parse("0-15"))
        running = replace(pod.container("c2", env), state=ContainerState.RUNNING)
        node.service.container_seen(pod.sandbox, running)
        assert "c2" not in node.service.books.ledger.containers
        kernel.changed.clear()
        node.service.pod_seen(pod.spec)
        audit.kick()
        await kernel.changed.wait()
        assert kernel.written("/kubepods/c2") == "4-5"

    play(scene, story, period_s=3600)


def test_a_runtime_that_is_just_applying_a_reply_is_not_overtaken(scene: Scene) -> None:
    """E1: it writes CPUs and memory nodes one after the other; what differs at two looks is put right."""

    async def story(node: Node, _: Audit, kernel: Kernel, unasked: Unasked) -> None:
        means = Means(unasked=unasked, systemd=Systemd(booted=scene.directory / "no-systemd"))
        audit = Audit(node.service, kernel, means, node.counters, period_s=30.0)
        await node.claims.unprepare(claim(1).uid)
        await audit._look_at_pending(0.0)
        assert not unasked.sent
        await audit._look_at_pending(0.1)
        assert [str(update.placement.cpus) for update in unasked.sent] == ["8-11"]

    play(scene, story, is_safe=True)


@pytest.mark.parametrize("half_made", ["4-7", "0-15"])
def test_a_container_that_is_being_made_is_not_judged_by_its_cgroup(scene: Scene, half_made: str) -> None:
    """E1: CPUs, memory nodes and processes come to it one after the other; neither means nor replies interfere."""

    async def story(node: Node, _: Audit, kernel: Kernel, unasked: Unasked) -> None:
        means = Means(unasked=unasked, systemd=Systemd(booted=scene.directory / "no-systemd"))
        audit = Audit(node.service, kernel, means, node.counters, period_s=30.0)
        pod = PodShape(number=2)
        node.service.pod_seen(pod.spec)
        container = pod.container("c2")
        creation = node.service.create_container(pod.sandbox, container)
        assert creation.placement is not None
        await audit._look_at_pending(0.0)  # there is no cgroup yet
        kernel.become(container.cgroups_path, CpuSet.parse(half_made))
        for now in (0.1, 0.2, 0.4):
            await audit._look_at_pending(now)
        assert node.service.books.pending.due() == ()
        kernel.become(container.cgroups_path, creation.placement.cpus, str(creation.placement.mems))
        node.service.container_seen(pod.sandbox, replace(container, state=ContainerState.RUNNING))
        await audit._look_at_pending(0.5)
        assert not node.service.books.pending.is_open
        assert kernel.written(container.cgroups_path) is None
        assert not unasked.sent

    play(scene, story, is_safe=True)


async def walked(audit: Audit, times: int) -> None:
    """Return after so many walks more."""
    for _ in range(times):
        event = asyncio.Event()
        audit.after_walk = event.set
        await event.wait()


@dataclass
class Told:
    """What was reported."""

    reports: list[tuple[str, str]] = field(default_factory=list)

    def report(self, subject: Subject, reason: str, message: str) -> None:
        self.reports.append((reason, message))


def fighting(kernel: Kernel) -> list[CpuSet]:
    """Have somebody else undo each write at once; return what is written, as it grows."""
    written: list[CpuSet] = []
    write = kernel.write

    def fought(cgroups_path: str, cpus: CpuSet, mems: NodeSet) -> bool:
        written.append(cpus)
        taken = write(cgroups_path, cpus, mems)
        kernel.become(cgroups_path, CpuSet.parse("0-15"))
        return taken

    kernel.write = fought  # type: ignore[method-assign]  # this one kernel is not alone
    return written


def test_a_fight_is_given_up_loudly_and_replies_carry_the_wish_on(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """E1, R7."""

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        told = node.service.reports = Told()
        written = fighting(kernel)
        kernel.become(C1, CpuSet.parse("0-15"))
        while not audit.given_up:
            await walked(audit, 1)
        assert written == [CpuSet.parse("10-11")] * MOST
        assert list(audit.given_up) == ["c1"]
        assert node.counters.given_up == 1
        ((reason, message),) = told.reports
        assert reason == "CpusetContested"
        assert "should be 10-11, was found to be 0-15" in message
        assert message.endswith(
            "(find out who else writes cpusets on this node: another NRI plugin, a CPU manager, a tuning daemon)"
        )
        await walked(audit, 3)
        assert len(written) == MOST
        assert caplog.text.count("cpuset given up after repeated fights") == 1
        pod = PodShape(number=2)
        node.service.pod_seen(pod.spec)
        updates = node.service.create_container(pod.sandbox, pod.container("c2")).updates
        assert [(one.container_id, str(one.placement.cpus)) for one in updates] == [("c1", "10-11")]
        kernel.become(C1, CpuSet.parse("10-11"))
        while audit.given_up:
            await walked(audit, 1)
        assert "cpuset given up is right again" in caplog.text

    caplog.set_level(logging.INFO, "nodecpu")
    play(scene, story, period_s=0.02)


def test_a_fight_whose_last_repair_holds_is_not_shown_as_lost(scene: Scene) -> None:
    """E1: the other one comes after each repair but the last, and again much later: then it is left so."""

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        for number in range(MOST):
            kernel.become(C1, CpuSet.parse("0-15"))
            while sum(delay.count for delay in audit.delays.values()) == number:
                await walked(audit, 1)
        assert node.counters.given_up == 1
        assert list(audit.given_up) == []
        await walked(audit, 2)
        assert list(audit.given_up) == []
        kernel.become(C1, CpuSet.parse("0-15"))
        while not audit.given_up:
            await walked(audit, 1)
        await walked(audit, 2)
        assert kernel.seen_cpus(C1) == "0-15"

    play(scene, story, period_s=0.02)


def test_a_record_of_the_runtime_from_before_our_reply_is_not_taken_for_its_doing(scene: Scene) -> None:
    """E1: what the runtime told of at first has been replaced by what it was told since."""

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        pod = PodShape(number=1)
        unpinned = replace(pod.container("c1"), cpus=CpuSet.parse("0-15"), state=ContainerState.RUNNING)
        node.service.container_seen(pod.sandbox, unpinned)
        await walked(audit, 1)
        kernel.become(C1, CpuSet.parse("0-15"))
        while not node.counters.drifts:
            await walked(audit, 1)
        assert "runtime" not in node.counters.drifts

    play(scene, story, is_safe=True, period_s=0.05)


def test_drift_tells_its_likely_cause(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """E1: what the runtime has in its records came through it."""

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        pod = PodShape(number=1)
        changed = replace(pod.container("c1"), cpus=CpuSet.parse("0-15"), state=ContainerState.RUNNING)
        node.service.container_seen(pod.sandbox, changed)
        kernel.become(C1, CpuSet.parse("0-15"))
        while not node.counters.drifts:
            await walked(audit, 1)
        assert node.counters.drifts == {"runtime": 1}
        assert 'state="by way of the runtime' in caplog.text

    caplog.handler.setFormatter(LineFormatter(prefixed=False))
    play(scene, story, is_safe=True, period_s=0.05)


def test_a_container_that_nobody_told_of_is_found(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """E1, U58: by the walk, told once."""

    async def story(_: Node, audit: Audit, kernel: Kernel, __: Unasked) -> None:
        where = kernel.root / "kubepods" / "pod1234" / ("a" * 64)
        where.mkdir(parents=True)
        (where / "cgroup.events").write_text("populated 1\n")
        await walked(audit, 4)
        assert list(audit.strangers) == [f"/kubepods/pod1234/{'a' * 64}"]
        assert caplog.text.count("container that the runtime has not told of") == 1
        shutil.rmtree(where)
        await walked(audit, 2)
        assert list(audit.strangers) == []

    play(scene, story, period_s=0.02)


@pytest.mark.parametrize(("is_safe", "means"), [(True, "unasked"), (False, "written")])
def test_delay_from_sending_to_reading_back_is_measured(scene: Scene, *, is_safe: bool, means: str) -> None:
    """E1: shown in the status."""

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        await node.claims.unprepare(claim(1).uid)
        audit.kick()
        await kernel.changed.wait()
        await walked(audit, 1)
        assert {name: delay.count for name, delay in audit.delays.items() if delay.count} == {means: 1}
        assert 0 <= audit.delays[means].last_s == audit.delays[means].worst_s
        shown = enforcement_state(audit, unasked=is_safe)
        assert shown.unasked is is_safe
        assert list(shown.delays) == [means]

    play(scene, story, is_safe=is_safe, period_s=0.05)


def test_a_walk_goes_on_where_a_released_claim_cannot_be_dropped(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """R1, C12, U42: the file system of the books is full; the claim is over as soon as there is room again."""

    async def story(node: Node, audit: Audit, kernel: Kernel, _: Unasked) -> None:
        pod, wanted = PodShape(number=2, claims=("claim-2",)), claim(2, ("cpudevnuma000", 2))
        await node.prepare(wanted)
        node.service.pod_seen(pod.spec)
        node.create(pod.sandbox, pod.container("c2", node.env_of(wanted.uid)))
        await node.claims.unprepare(wanted.uid)
        node.runtime.processes[ContainerID("c2")].is_alive = False
        database = node.started.container_store._db
        database.execute("PRAGMA query_only=1")
        await walked(audit, 2)
        assert wanted.uid in node.service.books.ledger.claims
        assert "released claims keep their CPUs, it is tried again" in caplog.text
        database.execute("PRAGMA query_only=0")
        await walked(audit, 2)
        assert wanted.uid not in node.service.books.ledger.claims

    play(scene, story, period_s=0.02)
