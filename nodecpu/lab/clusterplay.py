"""The verbs about the API server, and about many claims and pods at once (asyncio); methods are named after them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.lab.apiserver import Fault
from nodecpu.lab.claimbook import ClaimBook
from nodecpu.lab.jsontree import Json, JsonObject, leaf, node, text, views
from nodecpu.lab.objects import PODS, SLICES, Key
from nodecpu.lab.scenario import Scenario, Step, features_of
from nodecpu.lab.stage import DRIVER, Stage
from nodecpu.lab.steps import StepFailed, attempt, eventually
from nodecpu.lab.trace import Sent
from nodecpu.lab.verbs import STEP_TIMEOUT_S
from nodecpu.proto import dra_pb2

_WRITES: Final = ("create", "update", "patch", "delete")


class ClusterVerbs:
    """Those of one performance; ``pod_of`` returns a pod's object by its name in the scenario."""

    def __init__(self, stage: Stage, scenario: Scenario, book: ClaimBook, pod_of: Callable[[str], JsonObject]) -> None:
        self._stage = stage
        self._scenario = scenario
        self._book = book
        self._pod_of = pod_of
        self._mark = 0
        self.verbs: Mapping[str, Callable[[Step], Awaitable[None]]] = {
            "api": self._api,
            "fault": self._fault,
            "peer": self._peer,
            "unpublish": self._unpublish,
            "claim_all": self._claim_all,
            "prepare_all": self._prepare_all,
            "unprepare_all": self._unprepare_all,
            "start_all": self._start_all,
            "contend": self._contend,
            "terminate": self._terminate,
            "deallocate": self._deallocate,
            "see_devices": self._see_devices,
            "see_slices": self._see_slices,
            "see_calls": self._see_calls,
            "see_faults": self._see_faults,
            "see_topology": self._see_topology,
        }

    def mark(self) -> None:
        """Count calls to the API server from now on."""
        self._mark = len(self._stage.trace)

    # --- the API server ----------------------------------------------------------------------------------------------

    async def _api(self, step: Step) -> None:
        api = self._stage.api
        if step.target in ("stop", "restart"):
            await self._stage.stop_api()
        if step.options.keys() & {"kubernetes", "gates"}:
            api.features = features_of(step.options)
        if step.target in ("start", "restart"):
            await self._stage.start_api()
        if step.target == "break":
            await api.break_connections()
        if step.target == "forget":
            api.store.forget()
            await api.break_connections()
        if step.target == "heal":
            api.clear_faults()

    async def _terminate(self, step: Step) -> None:
        plan = self._scenario.pods[step.target]
        self._stage.api.store.mark_deleted(Key(kind=PODS, namespace=plan.namespace, name=plan.name), grace_s=30)

    async def _fault(self, step: Step) -> None:
        verb, _, plural = step.target.partition(" ")
        drop = leaf(step.options, "drop")
        self._stage.api.add_fault(
            Fault(
                verb=verb,
                plural=plural or "*",
                status=step.whole("status", 0),
                retry_after_s=step.whole("retry_after_s", 0),
                delay_s=step.seconds("delay_s", 0.0),
                drop=tuple(str(path) for path in drop) if isinstance(drop, list) else (),
                close=step.flag("close", default=False),
                times=step.whole("times", -1),
            )
        )

    async def _peer(self, step: Step) -> None:
        if step.target == "stop":
            await self._stage.peer.stop()
            return
        await self._stage.peer.start()
        await self._stage.until_registered(self._stage.peer_name)

    async def _unpublish(self, step: Step) -> None:
        names = [text(one, "metadata", "name") for one in self._stage.cluster.slices()]
        if not names:
            raise StepFailed("there are no slices")
        for name in names if step.target == "all" else names[len(names) // 2 :][:1]:
            self._stage.api.store.remove(Key(kind=SLICES, namespace="", name=name))

    async def _see_devices(self, step: Step) -> None:
        def unlike() -> str:
            have: Mapping[str, Json] = self._stage.cluster.capacities()
            return "" if have == step.table else f"published are {have}, not {dict(step.table)}"

        await eventually(unlike, step.seconds("within_s", STEP_TIMEOUT_S))

    async def _see_slices(self, step: Step) -> None:
        store, wanted = self._stage.api.store, step.table
        looked_at, found = -1, ""

        def unlike() -> str:
            nonlocal looked_at, found
            if store.version != looked_at:  # to look takes long where there are many
                looked_at, found = store.version, look()
            return found

        def look() -> str:
            slices = self._stage.cluster.slices()
            have = published(slices)
            wrong = [f"{key} is {have[key]}" for key in wanted if key in have and have[key] != wanted[key]]
            wrong += [] if have["complete"] else ["the pool is incomplete"]
            told = json.dumps(slices)
            wrong += [f"no {word!r} in them" for word in [text(wanted, "with")] if word not in told]
            wrong += [f"{word!r} is in them" for word in [text(wanted, "without")] if word and word in told]
            return ", ".join(wrong)

        await eventually(unlike, step.seconds("within_s", STEP_TIMEOUT_S))

    async def _see_calls(self, step: Step) -> None:
        sent = [one for one in self._stage.trace.since(self._mark) if one.link == "api" and one.sender == "node"]
        writes = [one for one in sent if _is_write(one, step.target)]
        refused = [one for one in sent if one.text.startswith("422") and f"/{step.target}" in one.call]
        refused = [one for one in refused if not one.call.startswith("TRY ")]
        for word, found in (("writes", writes), ("refused", refused)):
            if (wanted := step.whole(word, len(found))) != len(found):
                raise StepFailed(f"{len(found)} {word} of {step.target}, not {wanted}: {[one.call for one in found]}")

    async def _see_faults(self, step: Step) -> None:
        del step
        if left := self._stage.api.pending_faults:
            raise StepFailed(f"faults are still to happen, {left} times")

    async def _see_topology(self, step: Step) -> None:
        def unlike() -> str:
            have, writes = self._stage.cluster.topology(step.target), self._topology_writes()
            if have != (wanted := step.text("value")):
                return f"{step.target} is {have!r}, not {wanted!r}"
            return "" if writes == step.whole("writes", writes) else f"it was written {writes} times"

        await eventually(unlike, step.seconds("within_s", STEP_TIMEOUT_S))

    def _topology_writes(self) -> int:
        calls = self._stage.trace.calls("api", "node")
        return sum(call.startswith(("create noderes", "update noderes")) for call in calls)

    # --- many at once ------------------------------------------------------------------------------------------------

    async def _claim_all(self, step: Step) -> None:
        del step
        for plan in self._scenario.claims.values():
            self._stage.cluster.create_claim(plan.namespace, plan.name, plan.wants, template=plan.template)
            self._stage.cluster.allocate(plan.namespace, plan.name, plan.wants)

    async def _prepare_all(self, step: Step) -> None:
        kubelet, mark = self._stage.kubelet, len(self._stage.trace)
        claims = [self._book.object(plan) for plan in self._scenario.claims.values()]
        batches = [claims] if step.target == "together" else [[claim] for claim in claims]
        await asyncio.gather(*(kubelet.prepare(batch) for batch in batches))
        calls = self._stage.trace.calls("dra", "kubelet", since=mark).count("NodePrepareResources")
        if calls != len(batches):
            raise StepFailed(f"{calls} prepare calls were made, not {len(batches)}")
        self._check_disjoint(step.whole("size", 0))

    def _check_disjoint(self, size: int) -> None:
        taken = NO_CPUS
        for name, cpus in self._claimed():
            if cpus & taken:
                raise StepFailed(f"claim {name} has {cpus & taken} of another claim")
            if len(cpus) != (size or len(cpus)):
                raise StepFailed(f"claim {name} has {cpus}, which are not {size}")
            taken |= cpus

    def _claimed(self) -> Iterator[tuple[str, CpuSet]]:
        for name, plan in self._scenario.claims.items():
            cpus = self._book.cpus(plan)
            if cpus is None:
                raise StepFailed(f"claim {name} has no CPUs")
            yield name, cpus

    async def _unprepare_all(self, step: Step) -> None:
        del step
        claims = [self._book.object(plan) for plan in self._scenario.claims.values()]
        await asyncio.gather(*(self._stage.kubelet.unprepare(claim) for claim in claims))

    async def _start_all(self, step: Step) -> None:
        tries = step.whole("tries", 1)
        pods = [self._pod_of(name) for name in self._scenario.pods]

        async def start() -> None:
            await asyncio.gather(*(self._stage.kubelet.start_pod(pod, tries=tries) for pod in pods))

        await attempt(step, start)
        self._check_disjoint(0)

    async def _contend(self, step: Step) -> None:
        """Prepare and unprepare at once, again and again; what is answered last must be what is so."""
        claim = self._book.object(self._scenario.claims[step.target])
        metadata = node(claim, "metadata")
        told = dra_pb2.Claim(
            namespace=text(metadata, "namespace"), uid=text(metadata, "uid"), name=text(metadata, "name")
        )
        driver = self._stage.kubelet.registry.driver(DRIVER)
        prepare = dra_pb2.NodePrepareResourcesRequest(claims=[told])
        unprepare = dra_pb2.NodeUnprepareResourcesRequest(claims=[told])
        for _ in range(step.whole("times", 10)):
            calls = (driver.prepare(prepare), driver.unprepare(unprepare), driver.prepare(prepare))
            first, _, last = await asyncio.gather(*calls)
            for answer in (first, last):
                if error := answer.claims[told.uid].error:
                    raise StepFailed(f"prepare was refused: {error}")

    async def _deallocate(self, step: Step) -> None:
        plan = self._scenario.claims[step.target]
        self._book.object(plan)
        self._stage.cluster.deallocate(plan.namespace, plan.name)
        if step.flag("forgotten", default=False):
            self._stage.kubelet.lose_checkpoint()


def published(slices: Sequence[Mapping[str, Json]]) -> JsonObject:
    """Return what slices amount to: their number, devices in all and in the largest, generation, whether complete."""
    devices = [views(one, "spec", "devices") for one in slices]
    generations = {leaf(one, "spec", "pool", "generation") for one in slices}
    counts = {leaf(one, "spec", "pool", "resourceSliceCount") for one in slices}
    names = {text(device, "name") for page in devices for device in page}
    return {
        "slices": len(slices),
        "devices": len(names),
        "most": max((len(page) for page in devices), default=0),
        "generation": next(iter(generations)) if len(generations) == 1 else None,
        "complete": len(generations) == 1 and counts == {len(slices)},
    }


def _is_write(sent: Sent, plural: str) -> bool:
    verb, _, rest = sent.call.partition(" ")
    return verb in _WRITES and rest.partition("/")[0] == plural
