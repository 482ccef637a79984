"""Plays a scenario's steps on a stage and checks what is expected, and after each step what must always hold (asyncio).

The verbs' methods are named after them. A step fails with one sentence; a step that must fail passes if it fails with
the words it names.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Mapping
from signal import SIGKILL, SIGTERM
from typing import Final, Protocol

from nodecpu.cpuset import CpuSet, NodeSet, union
from nodecpu.lab.cdi import read_specs
from nodecpu.lab.cgroups import Effective
from nodecpu.lab.claimbook import ClaimBook
from nodecpu.lab.clusterplay import ClusterVerbs
from nodecpu.lab.containers import ContainerRecord
from nodecpu.lab.jsontree import Json, JsonObject, leaf, node, text
from nodecpu.lab.kubelet import KubeletFault, PodRun
from nodecpu.lab.objects import EVENTS, PODS, ApiError, Key
from nodecpu.lab.podbuild import pod_spec
from nodecpu.lab.predecessor import hand_over
from nodecpu.lab.scenario import PodPlan, Scenario, Step, wants_of
from nodecpu.lab.scheduler import Unschedulable
from nodecpu.lab.stage import DRIVER, Stage, StageError
from nodecpu.lab.steps import POLL_S, StepFailed, attempt, eventually, expected, not_expected
from nodecpu.lab.trace import Sent
from nodecpu.lab.verbs import PATIENCE, STEP_TIMEOUT_S
from nodecpu.proto import nri_pb2

_SETTLE_S: Final = 10.0
"""G9 gives two seconds to correct what was created while the link was down; a busy machine gets more here."""


class Reporter(Protocol):
    """Who shows the play to people."""

    def begin(self, step: Step) -> None:
        """Show that a step begins."""

    def done(self, sent: tuple[Sent, ...], names: Mapping[str, str], changes: tuple[str, ...], *, well: bool) -> None:
        """Show what was sent during the step, which containers run elsewhere after it, and whether all is as wanted."""


class Player:
    """One performance. ``play`` raises StepFailed with the step's number, verb and reason."""

    def __init__(self, stage: Stage, scenario: Scenario, reporter: Reporter) -> None:
        self._stage = stage
        self._scenario = scenario
        self._reporter = reporter
        self._book = ClaimBook(stage.cluster, stage.cdi)
        self._marks: dict[str, int] = {}
        self._verbs: dict[str, Callable[[Step], Awaitable[None]]] = {
            "daemon": self._daemon,
            "runtime": self._runtime,
            "kubelet": self._kubelet,
            "claim": self._claim,
            "reallocate": self._reallocate,
            "delete": self._delete,
            "prepare": self._prepare,
            "unprepare": self._unprepare,
            "pod": self._make_pod,
            "start": self._start,
            "sandbox": self._sandbox,
            "run": self._run,
            "crash": self._crash,
            "end": self._end,
            "resize": self._resize,
            "stop": self._stop,
            "lose": self._lose,
            "forget": self._forget,
            "predecessor": self._predecessor,
            "mark": self._mark,
            "see": self._see,
            "see_claim": self._see_claim,
            "see_metadata": self._see_metadata,
            "see_unwritten": self._see_unwritten,
            "see_log": self._see_log,
            "see_event": self._see_event,
            "see_claim_event": self._see_claim_event,
            "online": self._online,
            "see_health": self._see_health,
            "see_state": self._see_state,
        }
        self._cluster_verbs = ClusterVerbs(stage, scenario, self._book, self._pod)
        self._verbs |= self._cluster_verbs.verbs

    async def play(self) -> None:
        """Play all steps in order."""
        for step in self._scenario.steps:
            self._reporter.begin(step)
            mark, before = len(self._stage.trace), self._places()
            try:
                await self._verbs[step.verb](step)
                await eventually(self._disorder, _SETTLE_S)
            except (StepFailed, StageError, KubeletFault, Unschedulable, ApiError) as error:
                self._show(mark, before, well=False)
                raise StepFailed(f"step {step.number} ({step.verb} {step.target}): {error}") from error
            self._show(mark, before, well=True)

    # --- processes ---------------------------------------------------------------------------------------------------

    async def _daemon(self, step: Step) -> None:
        if changes := node(step.options, "config"):
            self._stage.configure(changes)
        if step.target in ("stop", "restart"):
            code = await self._stage.daemon.end(SIGTERM)
            if code:
                raise StepFailed(f"the daemon ended with {code} on SIGTERM")
        if step.target == "kill":
            await self._stage.daemon.end(SIGKILL)
        if step.target in ("start", "restart"):
            await self._stage.start_daemon(wait=step.flag("wait", default=True))
        if step.target == "reload":
            await self._stage.reload_daemon(wait=step.flag("wait", default=True))

    async def _runtime(self, step: Step) -> None:
        plugins = self._stage.runtime.plugins
        synchronized = plugins.synchronized
        if step.target == "drop":
            plugins.drop_plugins()
        if step.target in ("stop", "restart"):
            await self._stage.runtime.stop()
        if step.target in ("start", "restart"):
            await self._stage.start_runtime()
        if step.target != "stop" and self._stage.daemon.is_running:
            await self._stage.until(
                lambda: plugins.synchronized > synchronized, "synchronisation", timeout_s=step.seconds("within_s", 30)
            )

    async def _kubelet(self, step: Step) -> None:
        if step.target in ("stop", "restart"):
            await self._stage.stop_kubelet()
        if step.target in ("start", "restart"):
            self._stage.start_kubelet()
            if self._stage.daemon.is_running:
                await self._stage.until_registered()

    # --- claims ------------------------------------------------------------------------------------------------------

    async def _claim(self, step: Step) -> None:
        plan = self._scenario.claims[step.target]
        self._stage.cluster.create_claim(plan.namespace, plan.name, plan.wants, template=plan.template)
        try:
            self._stage.cluster.allocate(plan.namespace, plan.name, plan.wants)
        except Unschedulable as error:
            expected(step, str(error))
        else:
            not_expected(step)

    async def _reallocate(self, step: Step) -> None:
        plan = self._scenario.claims[step.target]
        self._stage.cluster.deallocate(plan.namespace, plan.name)
        self._stage.cluster.allocate(plan.namespace, plan.name, wants_of(step))

    async def _delete(self, step: Step) -> None:
        plan = self._scenario.claims[step.target]
        self._stage.cluster.delete_claim(plan.namespace, plan.name)

    async def _prepare(self, step: Step) -> None:
        plan = self._scenario.claims[step.target]
        claim = self._book.object(plan)
        uid = text(claim, "metadata", "uid")
        if step.flag("again", default=False):
            self._stage.kubelet.forget(uid)
        for left in reversed(range(_tries(step))):  # a busy machine may be late to answer: the kubelet asks again
            try:
                await self._stage.kubelet.prepare([claim])
            except KubeletFault as error:
                if not left:
                    expected(step, str(error))
                    return
                await asyncio.sleep(self._stage.kubelet.settings.retry_s)
            else:
                break
        not_expected(step)
        info = self._stage.kubelet.prepared(uid)
        known = read_specs(self._stage.cdi).devices
        missing = [cdi_id for cdi_id in (info.cdi_ids(None) if info else ()) if cdi_id not in known]
        if missing:
            raise StepFailed(f"answered CDI id cannot be resolved: {missing[0]}")
        self._same("claim's CPUs", step.text("cpus"), self._book.cpus(plan))

    async def _unprepare(self, step: Step) -> None:
        plan = self._scenario.claims.get(step.target)
        claim = self._book.unknown(step.target) if plan is None else self._book.object(plan)
        try:
            await self._stage.kubelet.unprepare(claim)
        except KubeletFault as error:
            expected(step, str(error))
        else:
            not_expected(step)

    async def _lose(self, step: Step) -> None:
        for file in self._book.files(self._scenario.claims[step.target]):
            file.unlink()

    async def _forget(self, step: Step) -> None:
        root = self._stage.root
        for name in ("state", "run") if step.target == "everything" else ("state",):
            shutil.rmtree(root / name, ignore_errors=True)

    async def _predecessor(self, step: Step) -> None:
        del step
        hand_over(self._stage.cdi, DRIVER, self._stage.kubelet.checkpoint.values(), self._running())

    # --- pods --------------------------------------------------------------------------------------------------------

    async def _make_pod(self, step: Step) -> None:
        self._pod(step.target)

    async def _start(self, step: Step) -> None:
        mark = len(self._stage.trace)
        await attempt(step, lambda: self._stage.kubelet.start_pod(self._pod(step.target), tries=_tries(step)))
        calls = self._stage.trace.calls("dra", "kubelet", since=mark).count("NodePrepareResources")
        if step.whole("prepares", calls) != calls:
            raise StepFailed(f"{calls} prepare calls were made, not {step.whole('prepares', calls)}")

    async def _sandbox(self, step: Step) -> None:
        await attempt(step, lambda: self._stage.kubelet.start_sandbox(self._pod(step.target), tries=_tries(step)))

    async def _run(self, step: Step) -> None:
        run, name = self._run_of(step), step.target.partition("/")[2]
        await attempt(step, lambda: self._stage.kubelet.start_container(run, name, tries=_tries(step)))

    async def _crash(self, step: Step) -> None:
        late = step.flag("late", default=False)
        await self._stage.kubelet.restart_container(self._run_of(step), step.target.partition("/")[2], late=late)

    async def _end(self, step: Step) -> None:
        record = self._record(step)
        self._stage.runtime.end_process(record, exit_code=0)
        if step.flag("told", default=True):
            await self._stage.runtime.tell_stopped(record)

    async def _resize(self, step: Step) -> None:
        run, name = self._run_of(step), step.target.partition("/")[2]
        resources: JsonObject = {}
        if (cpu := step.text("cpu")) is not None:
            resources["requests"] = {"cpu": cpu}
        if (limit := step.text("cpu_limit")) is not None:
            resources["limits"] = {"cpu": limit}
        namespace, pod_name = text(run.pod, "metadata", "namespace"), text(run.pod, "metadata", "name")
        pod = self._stage.cluster.resize(namespace, pod_name, name, resources)
        await attempt(step, lambda: self._stage.kubelet.resize(run, name, pod))

    async def _stop(self, step: Step) -> None:
        plan = self._scenario.pods[step.target]
        kubelet = self._stage.kubelet
        await attempt(step, lambda: kubelet.stop_pod(plan.namespace, plan.name, tries=_tries(step)))

    # --- looking -----------------------------------------------------------------------------------------------------

    async def _mark(self, step: Step) -> None:
        del step
        self._cluster_verbs.mark()
        self._marks = {record.id: self._stage.cgroups.writes(record.directory) for record in self._running()}

    async def _see(self, step: Step) -> None:
        record = self._record(step)
        await eventually(lambda: self._unlike(record, step), step.seconds("within_s", STEP_TIMEOUT_S))

    def _unlike(self, record: ContainerRecord, step: Step) -> str:
        effective = self._stage.cgroups.effective(record.directory)
        if effective is None:
            return f"{record.label} has no cgroup"
        wrong = unlike(record, effective, step) or self._throttled(record, step)
        return wrong or (self._written(record) if step.flag("unwritten", default=False) else "")

    def _throttled(self, record: ContainerRecord, step: Step) -> str:
        wanted, have = step.options.get("time"), self._stage.cgroups.cpus_allowed_by_quota(record.directory)
        if wanted is None or wanted == ("all" if have is None else have):
            return ""
        return f"quotas leave {record.label} {'all' if have is None else have} CPUs of time, not {wanted}"

    async def _see_claim(self, step: Step) -> None:
        plan = self._scenario.claims[step.target]

        def unlike() -> str:
            have = self._book.cpus(plan)
            wanted, spec = step.text("cpus"), step.options.get("spec")
            if spec is not None and spec != bool(self._book.files(plan)):
                return f"claim {plan.name} has {'no ' if spec else 'a '}CDI spec"
            if wanted is not None and (have is None or CpuSet.parse(wanted) != have):
                return f"claim {plan.name} has {have}, not {wanted}"
            return ""

        await eventually(unlike, step.seconds("within_s", STEP_TIMEOUT_S))

    async def _see_metadata(self, step: Step) -> None:
        told = self._book.metadata(self._record(step))
        self._same("CPUs in the metadata", step.text("cpus"), union(told.values()))
        if (part := step.text("path")) is not None and not any(part in path for path in told):
            raise StepFailed(f"mounted are {', '.join(told) or 'none'}, not {part}")

    async def _see_unwritten(self, step: Step) -> None:
        del step
        found = next(filter(None, (self._written(record) for record in self._running())), "")
        if found:
            raise StepFailed(found)

    async def _see_log(self, step: Step) -> None:
        wanted = step.whole("times", 1)

        def unlike() -> str:
            times = self._stage.daemon.log_text().count(step.target)
            return "" if times >= wanted else f"{step.target!r} is {times} times in the log, not {wanted}"

        await eventually(unlike, step.seconds("within_s", STEP_TIMEOUT_S))

    async def _see_event(self, step: Step) -> None:
        plan = self._scenario.pods[step.target]
        await self._event_of(step, "Pod", plan.namespace, plan.name)

    async def _see_claim_event(self, step: Step) -> None:
        plan = self._scenario.claims[step.target]
        await self._event_of(step, "ResourceClaim", plan.namespace, plan.name)

    async def _event_of(self, step: Step, kind: str, namespace: str, name: str) -> None:
        wanted, reason = step.text("text") or "", step.text("reason")
        selector = f"involvedObject.name={name},involvedObject.kind={kind}"

        def unlike() -> str:
            told = [
                (text(event, "reason"), text(event, "message"))
                for event in self._stage.cluster.store.find(EVENTS, namespace, selector)
            ]
            found = any(wanted in message and reason in (None, word) for word, message in told)
            return "" if found else f"events are {told}"

        await eventually(unlike, step.seconds("within_s", STEP_TIMEOUT_S))

    async def _online(self, step: Step) -> None:
        self._stage.set_online(CpuSet.parse(step.target))

    async def _see_health(self, step: Step) -> None:
        def unlike() -> str:
            told = self._stage.kubelet.registry.driver(DRIVER).health.get(step.target, ("untold", ""))
            right = told[0] == (step.text("health") or told[0]) and (step.text("text") or "") in told[1]
            return "" if right else f"{step.target} is told to be {told}"

        await eventually(unlike, step.seconds("within_s", STEP_TIMEOUT_S))

    async def _see_state(self, step: Step) -> None:
        deadline = asyncio.get_running_loop().time() + step.seconds("within_s", STEP_TIMEOUT_S)
        while reason := self._state_unlike(step, await self._state()):
            if asyncio.get_running_loop().time() > deadline:
                raise StepFailed(reason)
            await asyncio.sleep(POLL_S)

    def _state_unlike(self, step: Step, state: JsonObject) -> str:
        have = leaf(state, *step.target.split("."))
        wanted, bound = step.options.get("value"), step.options.get("at_least")
        if wanted is not None and have != wanted:
            return f"{step.target} is {have!r}, not {wanted!r}"
        if isinstance(bound, (int, float)) and not (isinstance(have, (int, float)) and have >= bound):
            return f"{step.target} is {have!r}, not at least {bound}"
        return ""

    async def _state(self) -> JsonObject:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nodecpu", "status", "--json", "--config", str(self._stage.daemon.config)),
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
        state: Json = json.loads(output or b"{}")
        return state if isinstance(state, dict) else {}

    # --- parts -------------------------------------------------------------------------------------------------------

    def _same(self, what: str, wanted: str | None, have: CpuSet | None) -> None:
        if wanted is not None and (have is None or CpuSet.parse(wanted) != have):
            raise StepFailed(f"{what}: {have}, not {wanted}")

    def _pod(self, name: str) -> JsonObject:
        plan: PodPlan = self._scenario.pods[name]
        store = self._stage.cluster.store
        try:
            return store.get(Key(kind=PODS, namespace=plan.namespace, name=plan.name))
        except ApiError:
            claims = self._scenario.claims
            spec = pod_spec(plan, claims, lambda key: self._book.resolve(claims, key))
            generated = {one.template: one.name for one in claims.values() if one.template}
            return self._stage.cluster.create_pod(
                plan.namespace, plan.name, spec, dict(plan.annotations), generated=generated
            )

    def _run_of(self, step: Step) -> PodRun:
        plan = self._scenario.pods[step.target.partition("/")[0]]
        found = self._stage.kubelet.runs.get((plan.namespace, plan.name))
        if found is None:
            raise StepFailed(f"pod {plan.name} is not running")
        return found

    def _record(self, step: Step) -> ContainerRecord:
        name = step.target.partition("/")[2]
        found = self._run_of(step).containers.get(name)
        if found is None:
            raise StepFailed(f"container {step.target} is not running")
        return found

    def _running(self) -> list[ContainerRecord]:
        return [one for one in self._stage.runtime.containers.values() if one.state == nri_pb2.CONTAINER_RUNNING]

    def _written(self, record: ContainerRecord) -> str:
        times = self._stage.cgroups.writes(record.directory) - self._marks.get(record.id, 0)
        return f"the cpuset of {record.label} was written {times} times since the mark" if times else ""

    def _disorder(self) -> str:
        stage = self._stage
        if stage.runtime.plugins.faults:
            return stage.runtime.plugins.faults[0]
        if not (stage.daemon.is_running and stage.runtime.plugins.plugins):
            return ""
        running = self._running()
        unmanaged = next((one.label for one in running if not one.cpus), "")
        if unmanaged:
            return f"{unmanaged} runs without a cpuset of its own"
        return self._book.intrusion(running, stage.cgroups)

    def _places(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for record in self._running():
            effective = self._stage.cgroups.effective(record.directory)
            if effective is not None:
                found[record.label] = f"CPUs {effective.cpus}, memory {effective.mems}"
        return found

    def _show(self, mark: int, before: Mapping[str, str], *, well: bool) -> None:
        after = self._places()
        changes = [f"{label} runs on {place}" for label, place in after.items() if before.get(label) != place]
        changes += [f"{label} has ended" for label in before if label not in after]
        names = {record.id: record.label for record in self._stage.runtime.containers.values()}
        self._reporter.done(self._stage.trace.since(mark), names, tuple(changes), well=well)


def _tries(step: Step) -> int:
    return step.whole("tries", PATIENCE if step.text("error") is None else 1)


def unlike(record: ContainerRecord, effective: Effective, step: Step) -> str:
    """Return what about a container is not as a step wants it, "" if all is."""
    cpus, mems, within = step.text("cpus"), step.text("mems"), step.text("within")
    size, shares, quota = (step.options.get(key) for key in ("size", "shares", "quota_us"))
    label, have = record.label, effective.cpus
    quota_us = record.quota_us or -1
    complaints = (
        (cpus is not None and have != CpuSet.parse(cpus), f"{label} runs on {have}, not on {cpus}"),
        (within is not None and not have <= CpuSet.parse(within), f"{label} runs on {have}, not within {within}"),
        (size is not None and size != len(have), f"{label} runs on {have}, which are not {size}"),
        (
            mems is not None and effective.mems != NodeSet.parse(mems),
            f"{label} has memory of {effective.mems}, not of {mems}",
        ),
        (shares is not None and shares != record.shares, f"{label} has {record.shares} shares, not {shares}"),
        (quota is not None and quota != quota_us, f"{label} has a quota of {quota_us} us, not {quota}"),
    )
    return next((text for wrong, text in complaints if wrong), "")
