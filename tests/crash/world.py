"""What users and the kubelet do on a node whose daemon may die at any moment, and what must hold whatever happens.

Everything is judged from outside: cgroups, CDI files, the kubelet's checkpoint, the admin socket. ``first`` keeps what
a claim had when it was seen first, ``own`` what a container was given: they have to keep that for their lives.
``writes`` is how often a cpuset was written past the runtime and by it, until it was right.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from nodecpu.admin.client import fetch_state
from nodecpu.admin.state import NodeState
from nodecpu.cpuset import CpuSet, union
from nodecpu.errors import NodeCpuError
from nodecpu.lab.cdi import read_specs
from nodecpu.lab.cgroups import ModelCgroups
from nodecpu.lab.claimbook import holdings
from nodecpu.lab.containers import ContainerRecord
from nodecpu.lab.jsontree import Json, JsonObject, text
from nodecpu.lab.kubelet import KubeletFault, PodRun
from nodecpu.lab.objects import CLAIMS, PODS, SLICES, Key
from nodecpu.lab.scheduler import Want
from nodecpu.proto import nri_pb2
from tests.crash.kinds import NAMESPACE, Kind
from tests.crash.room import Room
from tests.crash.yard import PATIENCE_S, Yard

TRIES = 200
SETTLE_S = 2.0
"""Source: quality.md and rule G9: what was created meanwhile is corrected within two seconds of synchronisation."""

NO_PLUGIN = "no plugin"
STATE_S = 5.0
"""How long the daemon's own view may take to agree: it looks at released claims once in a period."""

_NO_CAPACITY = re.compile(r"[0-9]+ CPUs asked of [a-z0-9]+, [0-9]+ free")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class Broken(AssertionError):
    """An invariant does not hold."""


class Lost(Broken):
    """What was promised for good does not hold: no death of the daemon is an excuse for that."""


class Full(Exception):
    """A claim's CPUs are taken: the scheduler did not know yet of containers that have CPUs of their own (D1, U18).

    What is published follows those after a while only, and a daemon that dies meanwhile publishes it later still. So
    the scheduler may allocate what is gone, and prepare has to refuse that (C8). Counted from outside, it must not fit.
    """


@dataclass
class World:
    """The pods and claims of one yard."""

    yard: Yard
    kinds: dict[str, Kind] = field(default_factory=dict)
    first: dict[str, CpuSet] = field(default_factory=dict)
    own: dict[str, CpuSet] = field(default_factory=dict)
    writes: dict[str, tuple[int, int]] = field(default_factory=dict)
    late: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stage = self.yard.stage
        assert isinstance(self.stage.cgroups, ModelCgroups)
        self.cgroups = self.stage.cgroups
        self.room = Room(self.stage)

    # What happens

    async def start(self, name: str, kind: Kind) -> None:
        """Have a pod created, with its claim if it has one, and started however often that takes. Raises Full."""
        cluster = self.stage.cluster
        requests: JsonObject = {"cpu": kind.cpu, "memory": "64Mi"} if kind.cpu else {}
        limits: JsonObject = {"cpu": kind.limit, "memory": "64Mi"} if kind.limit else {}
        container: JsonObject = {"name": "main", "resources": {"requests": requests, "limits": limits}}
        spec: JsonObject = {"containers": [container]}
        if kind.claim:
            wants = [Want(request="cpus", cpus=str(kind.claim), numa=kind.numa)]
            cluster.create_claim(kind.namespace, name, wants)
            cluster.allocate(kind.namespace, name, wants)
            container["resources"] = {"requests": requests, "limits": limits, "claims": [{"name": "cpus"}]}
            spec["resourceClaims"] = [{"name": "cpus", "resourceClaimName": name}]
        pod = cluster.create_pod(kind.namespace, name, spec, {})
        self.kinds[name] = kind
        for is_last in (False, True):
            try:
                await self.stage.kubelet.start_pod(pod, tries=TRIES)
            except KubeletFault as error:
                if not (kind.claim and _NO_CAPACITY.search(str(error))):
                    raise
                if not self.room.fits(self.kinds, name):
                    self._give_up(name, kind)
                    raise Full(str(error)) from error
                if is_last:  # once, something may have come free since it was refused
                    raise Lost(f"{name}: refused again though there is room: {error}") from error
            else:
                return

    async def stop(self, name: str) -> None:
        """Have a pod ended and its claim unprepared and deleted."""
        kind = self.kinds[name]
        await self.stage.kubelet.stop_pod(kind.namespace, name, tries=TRIES)
        if kind.claim:
            self.stage.cluster.delete_claim(kind.namespace, name)
        del self.kinds[name]

    async def check_published(self) -> None:
        """With nothing in hand: what the scheduler may still allocate is in time what is there (D1). Raises Broken."""
        state = await self.state()
        own = union(CpuSet.parse(row.exclusive) for row in state.containers)
        await self.eventually(lambda: self.room.wrongly_published(own), PATIENCE_S)

    def _give_up(self, name: str, kind: Kind) -> None:
        """Have a pod deleted whose claim was never prepared."""
        kubelet = self.stage.kubelet
        for uid in [
            uid for uid, one in kubelet.checkpoint.items() if (one.namespace, one.name) == (kind.namespace, name)
        ]:
            del kubelet.checkpoint[uid]
        self.stage.cluster.store.remove(Key(kind=PODS, namespace=kind.namespace, name=name))
        self.stage.cluster.delete_claim(kind.namespace, name)
        del self.kinds[name]

    def withdraw(self, name: str) -> None:
        """Delete a claim that fits nowhere."""
        self.stage.cluster.delete_claim(NAMESPACE, name)

    async def restart_container(self, name: str) -> None:
        """Have a container crash and its successor started."""
        kubelet, runtime, run = self.stage.kubelet, self.stage.runtime, self.run(name)
        old = run.containers["main"]
        runtime.end_process(old, exit_code=137)
        await runtime.tell_stopped(old)
        await kubelet.start_container(run, "main", tries=TRIES)
        await runtime.remove_container(old)

    async def resize(self, name: str, cpu: str) -> None:
        """Change a running container's request in place."""
        pod = self.stage.cluster.resize(self.kinds[name].namespace, name, "main", {"requests": {"cpu": cpu}})
        for _ in range(TRIES):
            try:
                await self.stage.kubelet.resize(self.run(name), "main", pod)
            except KubeletFault:
                await asyncio.sleep(0.1)
            else:
                return

    async def drift(self, name: str) -> None:
        """Have somebody else widen a container's cpuset, and wait until that is put right."""
        record = self.run(name).containers["main"]
        before = self.cgroups.effective(record.directory)
        (self.cgroups.root / record.directory.lstrip("/") / "cpuset.cpus").write_text("0-15\n")
        assert before is not None

        def unlike() -> str:
            now = self.cgroups.effective(record.directory)
            return "" if now is not None and now.cpus == before.cpus else f"{name} has drifted to {now}"

        await self.eventually(unlike, 10.0)

    async def wipe_slices(self) -> None:
        """Have somebody delete the slices, and wait until they are back."""
        for found in self.stage.cluster.slices():
            self.stage.cluster.store.delete(Key(kind=SLICES, namespace="", name=text(found, "metadata", "name")))
        await self.eventually(lambda: "" if self.stage.cluster.slices() else "the slices are not back", 20.0)

    def run(self, name: str) -> PodRun:
        return self.stage.kubelet.runs[self.kinds[name].namespace, name]

    # What must hold

    async def eventually(self, unlike: Callable[[], str], within_s: float) -> None:
        """Wait until ``unlike`` has nothing to say. Raises Broken with what it says at the end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while reason := unlike():
            if loop.time() > deadline:
                raise Broken(reason)
            await asyncio.sleep(0.02)

    async def check_running(self) -> None:
        """After a synchronisation: everybody runs where they may, within the time that is allowed. Raises Broken."""
        await self.learn()
        await self.in_order()

    async def in_order(self) -> float:
        """Wait until everybody runs where they may; return how long that took from the synchronisation on.

        While the daemon is not linked yet, which takes long on a slow machine, no time counts. Raises Broken.
        """
        loop = asyncio.get_running_loop()
        plugins = self.stage.runtime.plugins
        began = loop.time()
        while reason := self.disorder():
            if reason == NO_PLUGIN:
                await self.stage.until(lambda: bool(plugins.plugins or plugins.faults), "plugin", timeout_s=PATIENCE_S)
                began = loop.time()
            if loop.time() - began > SETTLE_S:
                raise Broken(reason)
            await asyncio.sleep(0.02)
        return loop.time() - began

    async def learn(self) -> None:
        """Take note of who was given CPUs of their own, by the daemon's word; it must not change. Raises Lost."""
        state = await self.state()
        self.late[self.yard.daemon.starts] = state.counters.late_containers
        for row in state.containers:
            if (cpus := CpuSet.parse(row.exclusive)) and self.own.setdefault(row.id, cpus) != cpus:
                raise Lost(f"{row.pod}/{row.name} was given {self.own[row.id]}, now {cpus}")

    def disorder(self) -> str:
        """Return what is wrong with the running containers, "" if nothing is."""
        plugins = self.stage.runtime.plugins
        if plugins.faults:
            return plugins.faults[0]
        if not plugins.plugins:
            return NO_PLUGIN
        running = self.running()
        for record in running:
            if self._is_unpinned(record):
                return f"{record.label} runs without a cpuset of its own"
        places = self._places(running)
        return _intrusion(running, places) or self._misplaced(running, places)

    def _is_unpinned(self, record: ContainerRecord) -> bool:
        """Return whether nobody has set a container's cpuset, neither the runtime nor the daemon past it (E1)."""
        with suppress(FileNotFoundError):
            return not self.cgroups.configured(record.directory)[0]
        return False  # it has just gone

    def _places(self, running: list[ContainerRecord]) -> dict[str, CpuSet]:
        """Return what each container runs on. The kernel is played once for all: it costs a walk of the whole tree."""
        self.cgroups.refresh()
        found = {}
        for record in running:
            with suppress(FileNotFoundError):
                file = self.cgroups.root / record.directory.lstrip("/") / "cpuset.cpus.effective"
                found[record.id] = CpuSet.parse(file.read_text())
        return found

    def _misplaced(self, running: list[ContainerRecord], places: Mapping[str, CpuSet]) -> str:
        for record in running:
            cpus = places.get(record.id, CpuSet())
            if claimed := holdings(record):
                if reason := self._misplaced_holder(record, claimed, cpus):
                    return reason
            elif record.id in self.own:
                if record.id in self.writes and cpus != self.own[record.id]:
                    raise Lost(f"{record.label} ran on {self.own[record.id]} and runs on {cpus}")
                if cpus != self.own[record.id]:
                    return f"{record.label} runs on {cpus}, was given {self.own[record.id]}"
                self._must_stay(record)
            for other in running:
                if other is not record and cpus & self.own.get(other.id, CpuSet()):
                    return f"{record.label} runs on {cpus & self.own[other.id]} of {other.label}"
        return ""

    def _misplaced_holder(self, record: ContainerRecord, claimed: Mapping[str, CpuSet], cpus: CpuSet) -> str:
        ((uid, shown),) = claimed.items()
        first = self.first.setdefault(uid, shown)
        if record.id in self.writes and cpus != first:
            raise Lost(f"holder {record.label} ran on {first} and runs on {cpus}")
        if not first == shown == cpus:
            return f"holder {record.label} runs on {cpus}, its claim had {first}, shows {shown}"
        self._must_stay(record)
        return ""

    def _must_stay(self, record: ContainerRecord) -> None:
        """Raise Lost if a cpuset that was right was ever written again.

        What the daemon had to write past a slow runtime also rides on its next reply (E1): then the runtime writes once
        more for each of these.
        """
        past = self.cgroups.foreign_noticed(record.directory)
        by_runtime = self.cgroups.writes_noticed(record.directory) - past
        had_past, had_by_runtime = self.writes.setdefault(record.id, (past, by_runtime))
        if past != had_past or by_runtime > had_by_runtime + past:
            raise Lost(f"the cpuset of {record.label} was right and was written again")

    def running(self) -> list[ContainerRecord]:
        return [one for one in self.stage.runtime.containers.values() if one.state == nri_pb2.CONTAINER_RUNNING]

    async def check_all(self) -> None:
        """With nothing in hand: files, books and answers agree too. Raises Broken.

        On a slow machine a point can be reached so late that the daemon dies under the check. Then what was not put
        right in time is looked at once more, since a point kills once; what is lost is told at once.
        """
        daemon = self.yard.daemon
        await self.yard.up()
        starts = daemon.starts
        try:
            await self._check_once()
        except Broken as error:
            if isinstance(error, Lost) or (daemon.starts == starts and daemon.is_running):
                raise
        if daemon.starts != starts or not daemon.is_running:
            await self.yard.up()
            await self._check_once()

    async def _check_once(self) -> None:
        await self.check_running()
        await self.eventually(self.wrong_files, SETTLE_S)
        deadline = asyncio.get_running_loop().time() + STATE_S
        while reason := self.wrong_state(await self.state()):
            if asyncio.get_running_loop().time() > deadline:
                raise Broken(reason)
            await asyncio.sleep(0.05)
        await self.prepare_again()
        if reason := self.disorder() or self.wrong_files():
            raise Broken(reason)

    def answered(self) -> dict[str, CpuSet]:
        """Return the claims that the kubelet was told to be prepared, with the CPUs their devices give."""
        found: dict[str, CpuSet] = {}
        devices = read_specs(self.stage.cdi).devices
        for uid, info in self.stage.kubelet.checkpoint.items():
            for cdi_id in info.cdi_ids(None):
                for variable in devices[cdi_id].env if cdi_id in devices else ():
                    name, _, value = variable.partition("=")
                    if name == f"DRA_CPUSET_{uid}":
                        found[uid] = CpuSet.parse(value)
        return found

    def wrong_files(self) -> str:
        """Return what is wrong with the CDI files: a device lost, something left over.

        Raises Lost if one has changed or a CPU was given twice.
        """
        have = self.answered()
        for uid, info in self.stage.kubelet.checkpoint.items():
            if not info.devices:
                continue
            if uid not in have:
                return f"claim {uid} was answered and has no CDI device"
            if self.first.setdefault(uid, have[uid]) != have[uid]:
                raise Lost(f"claim {uid} had {self.first[uid]} and has {have[uid]}")
        seen = CpuSet()
        for uid, cpus in have.items():
            if seen & cpus:
                raise Lost(f"claim {uid} was given {seen & cpus}, which another claim has")
            seen |= cpus
        for path in self.stage.cdi.iterdir():
            known = _UUID.search(path.name)
            if path.suffix != ".json" or known is None or known[0] not in have:
                return f"{path.name} is left over"
        return ""

    async def state(self) -> NodeState:
        for _ in range(TRIES):
            try:
                return await asyncio.to_thread(fetch_state, self.stage.root / "run" / "admin.sock")
            except NodeCpuError:
                await asyncio.sleep(0.05)
        raise Broken("the daemon does not answer")

    def wrong_state(self, state: NodeState) -> str:
        """Return where the daemon's books differ from what is so outside."""
        have = self.answered()
        books = {claim.uid: CpuSet.parse(claim.cpus) for claim in state.claims}
        if books != have:
            return f"the books have claims {books}, answered were {have}"
        bad = [claim.uid for claim in state.claims if claim.state != "prepared"]
        if bad:
            return f"claims {bad} are not prepared"
        running = {record.id for record in self.running()}
        known = {row.id for row in state.containers}
        if running != known:
            return f"the books have containers {sorted(known)}, running are {sorted(running)}"
        seen = CpuSet()
        for cpus in [*books.values(), *(CpuSet.parse(row.exclusive) for row in state.containers)]:
            if seen & cpus:
                return f"CPUs {seen & cpus} have two owners"
            seen |= cpus
        return ""

    async def prepare_again(self) -> None:
        """Have every prepared claim prepared again: the answer must be the same. Raises Broken."""
        kubelet = self.stage.kubelet
        for uid, info in list(kubelet.checkpoint.items()):
            before = [device.SerializeToString(deterministic=True) for device in info.devices]
            if not before:
                continue
            claim: Json = self._claim(info.namespace, info.name)
            assert isinstance(claim, dict)
            for attempt in range(TRIES):
                kubelet.forget(uid)
                try:
                    await kubelet.prepare([claim])
                except KubeletFault as error:
                    if attempt + 1 == TRIES:
                        raise Broken(f"claim {uid} was prepared and is refused: {error}") from error
                    await asyncio.sleep(0.05)
                else:
                    break
            again = [device.SerializeToString(deterministic=True) for device in info.devices[len(before) :]]
            del info.devices[len(before) :]
            if again != before[: len(again)] or not again:
                raise Lost(f"claim {uid}: prepared again it is answered otherwise")

    def _claim(self, namespace: str, name: str) -> JsonObject:
        return self.stage.cluster.store.get(Key(kind=CLAIMS, namespace=namespace, name=name))


def _intrusion(running: list[ContainerRecord], places: Mapping[str, CpuSet]) -> str:
    """Return who runs on CPUs of a claim that others hold, "" if nobody does (G9)."""
    held: dict[str, CpuSet] = {}
    for record in running:
        for uid, cpus in holdings(record).items():
            held[uid] = held.get(uid, CpuSet()) | cpus
    for record in running:
        cpus, own = places.get(record.id, CpuSet()), holdings(record)
        for uid, claimed in held.items():
            if uid not in own and cpus & claimed:
                return f"{record.label} runs on {cpus & claimed} of claim {uid}"
    return ""
