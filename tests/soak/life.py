"""One life of a node: events are played on the daemon's own parts, and what must hold is checked after each.

What was answered to the kubelet and who holds what is recorded here, apart from the daemon's books.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from nodecpu.cpuset import CpuSet, union
from nodecpu.dra.cdi import cdi_ids
from nodecpu.errors import NodeCpuError, StateError
from nodecpu.ids import ClaimUID, ContainerID
from nodecpu.policy.facts import AllocatedClaim, ContainerState, QoS, Resources
from nodecpu.policy.grants import Group
from nodecpu.policy.plan import Placement
from nodecpu.store.claims import ClaimStore
from tests.node import ALL, PodShape, claim, scene_in_memory
from tests.soak.events import Event

T = TypeVar("T")
PODS: Final = 10
CLAIMS: Final = 7
KINDS: Final = (
    ("shop", QoS.BEST_EFFORT, None),
    ("shop", QoS.BEST_EFFORT, None),
    ("shop", QoS.BURSTABLE, 300),
    ("shop", QoS.GUARANTEED, 1000),
    ("shop", QoS.GUARANTEED, 2000),
    ("shop", QoS.GUARANTEED, 1500),
    ("kube-system", QoS.BURSTABLE, 100),
)


class Broken(AssertionError):
    """An invariant does not hold."""


class Database:
    """A claims database that can be told to take only so many commits more; it is whole again at the next start."""

    def __init__(self, store: ClaimStore) -> None:
        self.commits_left: int | None = None
        self._write = store._write
        store._write = self._take  # type: ignore[method-assign]  # the file system of this one is full now and then

    def _take(self, puts: Iterable[tuple[ClaimUID, bytes]], drops: Iterable[tuple[ClaimUID]]) -> None:
        if self.commits_left is not None:
            if not self.commits_left:
                raise StateError("the disk is full")
            self.commits_left -= 1
        self._write(puts, drops)


class Life:
    """A node from its first boot on; made within the event loop, an asynchronous context manager."""

    def __init__(self) -> None:
        self.scene, self._directory = scene_in_memory()
        self.scene.extra = "[claims]\nwait_s = 0.0"
        self.runtime, self.api = self.scene.runtime, self.scene.api
        self._boots = 0
        self.allocated: dict[ClaimUID, AllocatedClaim] = {}
        self.asked: dict[ClaimUID, AllocatedClaim] = {}
        self.kept: dict[ClaimUID, AllocatedClaim] = {}
        self.answered: dict[ClaimUID, CpuSet] = {}
        self.running: dict[ContainerID, PodShape] = {}
        self.holding: dict[ContainerID, ClaimUID] = {}
        self.adrift: set[ContainerID] = set()
        self.resized: set[ContainerID] = set()
        self.ended: list[tuple[PodShape, ContainerID]] = []
        self.count = 0
        self.is_linked = False
        self.fails = False
        self._new_boot()
        self.node = self.scene.boot()
        self._database = Database(self.node.started.claim_store)
        self.on_synchronize(0, 0, 0)

    async def __aenter__(self) -> Life:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.node.crash()
        self._directory.cleanup()

    async def play(self, event: Event) -> None:
        """Play one event and check everything. Raises Broken, or whatever must not be raised."""
        done = getattr(self, f"on_{event.kind}")(event.a, event.b, event.c)
        if done is not None:
            await done
        self.check()

    # Claims

    async def on_prepare(self, a: int, b: int, c: int) -> None:
        uid = claim(a % CLAIMS).uid
        results = [(f"cpudevnuma{b % 4:03d}", 1 + c % 4), (f"cpudevnuma{b // 4 % 4:03d}", 1 + c // 4 % 3)]
        wanted = self._known_allocation(uid) or claim(a % CLAIMS, *results[: 1 + (b >> 8) % 2])
        self.asked[uid] = wanted
        try:
            devices = await self.node.prepare(wanted)
        except NodeCpuError as error:
            if uid in self.answered and not self.fails:
                raise Broken(f"claim {uid} was prepared and is refused: {error}") from error
            if self.fails:
                self.kept[uid] = wanted
            return
        cpus = self.node.service.books.ledger.claims[uid].cpus
        _require(self.answered.setdefault(uid, cpus) == cpus, "prepared again, a claim is answered otherwise")
        _require(len(cpus) == sum(one.cpus for one in wanted.results), "a claim has not what was allocated")
        ids = cdi_ids("dra.cpu", self.node.service.books.ledger.claims[uid])
        _require({one for device in devices for one in device.cdi_ids} >= set(ids), "a CDI id was not answered")
        self.allocated[uid] = wanted

    async def on_unprepare(self, a: int, _b: int, _c: int) -> None:
        """The kubelet unprepares when the pods have ended; here also before that, of pods that the daemon knows."""
        uid = claim(a % CLAIMS).uid
        known = self.node.service.books.ledger.containers
        for container_id in [one for one, held in self.holding.items() if held == uid and one not in known]:
            self._end(container_id)
        try:
            await self.node.claims.unprepare(uid)
        except NodeCpuError as error:
            _require(self.fails, f"claim {uid} cannot be unprepared: {error}")
            return
        self.answered.pop(uid, None)
        self.allocated.pop(uid, None)
        self.asked.pop(uid, None)
        self.kept.pop(uid, None)

    # Containers

    def on_create(self, a: int, b: int, _c: int) -> None:
        if self.is_linked:
            self._create(self._shape(a, b), None, {})

    def on_create_holder(self, a: int, b: int, c: int) -> None:
        if uid := self._some(sorted(self.answered), b):
            pod = self._holder(a, c, uid)
            if self.is_linked:
                self._create(pod, uid, self.node.env_of(uid))
            else:
                self._create_unpinned(pod, uid, self.node.env_of(uid))

    def on_create_forged(self, a: int, b: int, _c: int) -> None:
        if self.is_linked and (uid := self._some(sorted(self.answered), b)):
            before = self.node.counters.forged_claims
            self._create(PodShape(number=a % PODS), None, self.node.env_of(uid))
            _require(self.node.counters.forged_claims > before, "a forged variable was not noticed")

    def on_create_unknown_pod(self, a: int, b: int, _c: int) -> None:
        """A holder whose pod the API server has not told of: refused, or shared if it shows nothing."""
        uid = self._some(sorted(self.answered), b)
        if self.is_linked and uid:
            pod = PodShape(number=PODS + a % 1000)
            try:
                self.node.service.create_container(pod.sandbox, pod.container(self._next(), self.node.env_of(uid)))
            except NodeCpuError:
                return
            raise Broken("a holder was let in without its pod's word")

    def on_create_while_away(self, a: int, b: int, _c: int) -> None:
        if not self.is_linked:
            self._create_unpinned(self._shape(a, b), None, {})

    def on_restart_container(self, a: int, _b: int, _c: int) -> None:
        """A container ends and its successor is made in the same sandbox before the stop event comes."""
        old = self._some(sorted(self.running), a)
        if old is None or not self.is_linked:
            return
        pod, uid = self.running[old], self.holding.get(old)
        ledger = self.node.service.books.ledger
        uid = uid if uid in self.answered else None
        shows = {} if uid is None else self.node.env_of(uid)
        before = ledger.containers[old].exclusive if old in ledger.containers else CpuSet()
        made = self._create(pod if uid or old not in self.holding else self._shape(pod.number, 0), uid, shows)
        if made is not None and old not in self.resized and old not in self.holding and before:
            now = ledger.containers[made].exclusive
            _require(now == before or len(now) != len(before), "a restarted container got other CPUs of its own")

    def on_stop(self, a: int, _b: int, _c: int) -> None:
        if self.is_linked and (container_id := self._some(sorted(self.running), a)):
            process = self.runtime.processes[container_id]
            self._end(container_id)
            self.runtime.apply(self.node.service.stop_container(process.sandbox, process.container))

    def on_stop_untold(self, a: int, _b: int, _c: int) -> None:
        if container_id := self._some(sorted(self.running), a):
            self._end(container_id)

    def on_stop_again(self, a: int, _b: int, _c: int) -> None:
        """Stop and remove events that come late, twice, or for a container that was replaced."""
        if self.is_linked and self.ended:
            pod, container_id = self.ended[a % len(self.ended)]
            gone = replace(pod.container(container_id), state=ContainerState.STOPPED)
            self.runtime.apply(self.node.service.stop_container(pod.sandbox, gone))
            self.node.service.remove_container(None, gone)

    def on_late_event(self, a: int, _b: int, _c: int) -> None:
        """An event of a container that nobody ever heard of."""
        if self.is_linked:
            gone = replace(PodShape(number=99).container(f"old{a % 30}"), state=ContainerState.STOPPED)
            self.node.service.container_seen(PodShape(number=99).sandbox, gone)
            self.runtime.apply(self.node.service.stop_container(None, gone))

    def on_seen_again(self, a: int, _b: int, _c: int) -> None:
        if self.is_linked and (container_id := self._some(sorted(self.running), a)):
            process = self.runtime.processes[container_id]
            self.node.service.container_seen(process.sandbox, process.container)

    def on_update_container(self, a: int, b: int, _c: int) -> None:
        """An in-place resize that names other CPUs as well: ours stay."""
        if not self.is_linked or not (container_id := self._some(sorted(self.running), a)):
            return
        self.resized.add(container_id)
        process = self.runtime.processes[container_id]
        wanted = Resources(shares=2 + b % 4000, cpus=ALL)
        try:
            updates = self.node.service.update_container(process.sandbox, process.container, wanted)
        except NodeCpuError:
            return
        self.runtime.apply(updates)
        if self.runtime.loses_updates:
            self.adrift.add(container_id)  # what it was narrowed to has not reached it yet
        placement = self.node.service.books.placement(container_id)
        own = [one.placement for one in updates if one.container_id == container_id]
        _require(placement is None or [one.cpus for one in own] == [placement.cpus], "an update lost its own entry")

    def on_remove_sandbox(self, a: int, _b: int, _c: int) -> None:
        for container_id in [one for one, pod in self.running.items() if pod.number == a % PODS]:
            self._end(container_id)
        if self.is_linked:
            self.node.service.remove_sandbox(PodShape(number=a % PODS).sandbox)

    # Links and faults

    def on_synchronize(self, _a: int, _b: int, _c: int) -> None:
        self.runtime.loses_updates = False
        self.node.synchronize()
        self.is_linked = True
        self.adrift.clear()

    def on_lose_link(self, _a: int, _b: int, _c: int) -> None:
        self.node.service.runtime_lost()
        self.is_linked = False

    def on_lose_updates(self, a: int, _b: int, _c: int) -> None:
        self.runtime.loses_updates = bool(a % 2)

    def on_drift(self, a: int, b: int, _c: int) -> None:
        if container_id := self._some(sorted(self.running), a):
            self.runtime.processes[container_id].cpus = CpuSet(range(b % 16, 16)) or ALL
            self.adrift.add(container_id)

    def on_audit(self, _a: int, _b: int, _c: int) -> None:
        """Once everything is read back, every container runs where the books say, and nobody on others' CPUs."""
        if not self.is_linked:
            return
        self.runtime.loses_updates = False
        self.node.audit()
        self.adrift.clear()
        ledger = self.node.service.books.ledger
        for container_id, process in self.runtime.processes.items():
            placement = self.node.service.books.placement(container_id)
            _require(placement is not None and process.cpus == placement.cpus, f"{container_id} was not put right")
            own = ledger.containers[container_id]
            others = union(one.cpus for one in ledger.claims.values() if not one.moved) - own.claimed
            others |= union(one.exclusive for one in ledger.containers.values()) - own.exclusive
            _require(process.cpus.isdisjoint(others), f"{container_id} runs on others' CPUs")

    def on_pods_listed(self, _a: int, _b: int, _c: int) -> None:
        self.node.service.pods_listed([pod.spec for pod in {p.number: p for p in self.running.values()}.values()])

    def on_pod_gone(self, a: int, _b: int, _c: int) -> None:
        """A pod's object goes. Before a synchronisation only of pods that do not run: else nobody could judge them."""
        if self.is_linked or all(pod.number != a % PODS for pod in self.running.values()):
            self.node.service.pod_gone(PodShape(number=a % PODS).spec.uid)

    def on_api_away(self, a: int, _b: int, _c: int) -> None:
        self.api.is_answering = bool(a % 2)

    def on_disk_fails(self, a: int, b: int, _c: int) -> None:
        """CDI specs cannot be written, or the database takes one or two commits more and then none; or all is well."""
        self.fails = bool(a % 2)
        self.node.specs.fails = self.fails and bool(b % 3)
        self._database.commits_left = 1 + b // 3 % 2 if self.fails and b % 3 < 2 else None

    def on_lose_specs(self, _a: int, _b: int, _c: int) -> None:
        """Somebody empties the CDI directory; the next synchronisation has the daemon write it anew."""
        for path in self.node.config.paths.cdi.glob("*"):
            path.unlink()
        self._restore_specs()

    async def on_kill(self, _a: int, _b: int, _c: int) -> None:
        before = {one: process.cpus for one, process in self.runtime.processes.items()}
        await self._start_again()
        after = {one: process.cpus for one, process in self.runtime.processes.items()}
        _require(before == after, "a restart moved a container")

    async def on_reboot(self, _a: int, _b: int, _c: int) -> None:
        """All containers are gone, and what is on temporary file systems; claims keep their CPUs (T7)."""
        for container_id in list(self.running):
            self._end(container_id)
        await self.node.crash()
        for directory in (self.node.config.paths.run, self.node.config.paths.cdi):
            for path in directory.glob("*"):
                path.unlink()
        self._new_boot()
        await self._boot_again()

    async def on_other_reserved(self, a: int, _b: int, _c: int) -> None:
        """A restart with other reserved CPUs: who has them keeps them, nothing new comes from there (R3)."""
        self.scene.reserved = ("15", "14-15", "0,15", "3")[a % 4]
        await self._start_again()

    # What must hold

    def check(self) -> None:
        """Raise Broken if an invariant does not hold."""
        self.node.check()
        ledger = self.node.service.books.ledger
        for uid, cpus in self.answered.items():
            _require(uid in ledger.claims and not ledger.claims[uid].released, f"claim {uid} was lost")
            _require(ledger.claims[uid].cpus == cpus, f"claim {uid} was moved")
        for container_id, uid in self.holding.items():
            if container_id in self.adrift:
                continue
            process, grant = self.runtime.processes[container_id], ledger.containers[container_id]
            _require(ledger.claims[uid].cpus <= process.cpus, f"holder {container_id} lost CPUs")
            narrow = grant.group is not Group.CLAIMED or ledger.claims[uid].cpus == process.cpus
            _require(narrow, f"holder {container_id} runs on more than its claim")
        for process in self.runtime.processes.values():
            _require(bool(process.cpus) and process.cpus <= ALL, "a container is without CPUs")

    # Parts

    def _known_allocation(self, uid: ClaimUID) -> AllocatedClaim | None:
        """Return a claim's allocation unless it may be another: one that was refused, while the API server is there.

        The kubelet has read the claim there just before it asks. What was refused on a failing disk is unprepared
        before it is allocated anew: a row may be left behind, which a start would take for an answer.
        """
        known = self.allocated.get(uid) or self.kept.get(uid)
        return known or (None if self.api.is_answering else self.asked.get(uid))

    def _create(self, pod: PodShape, uid: ClaimUID | None, env: Mapping[str, str]) -> ContainerID | None:
        for old in [one for one, shape in self.running.items() if shape.number == pod.number]:
            self._end(old)  # the kubelet makes a successor only when the old one has ended; its event may be late
        self.node.service.pod_seen(pod.spec)
        container_id = self._next()
        try:
            self.node.create(pod.sandbox, pod.container(container_id, env))
        except NodeCpuError:
            return None
        self.running[container_id] = pod
        if uid is not None:
            self.holding[container_id] = uid
        return container_id

    def _create_unpinned(self, pod: PodShape, uid: ClaimUID | None, env: Mapping[str, str]) -> None:
        for old in [one for one, shape in self.running.items() if shape.number == pod.number]:
            self._end(old)
        self.node.service.pod_seen(pod.spec)
        container_id = self._next()
        nowhere: Placement | None = None
        self.runtime.add(pod.sandbox, pod.container(container_id, env), nowhere)
        self.running[container_id] = pod
        if uid is not None:
            self.holding[container_id] = uid
            self.adrift.add(container_id)

    def _end(self, container_id: ContainerID) -> None:
        pod = self.running.pop(container_id)
        self.runtime.processes.pop(container_id, None)
        self.holding.pop(container_id, None)
        self.adrift.discard(container_id)
        self.ended = [*self.ended[-20:], (pod, container_id)]

    def _shape(self, a: int, b: int) -> PodShape:
        namespace, qos, request = KINDS[b % len(KINDS)]
        return PodShape(number=a % PODS, namespace=namespace, qos=qos, request_mcpu=request)

    def _holder(self, a: int, c: int, uid: ClaimUID) -> PodShape:
        request = (None, None, 100, 1000, 3000)[c % 5]
        qos = QoS.BEST_EFFORT if request is None else QoS.GUARANTEED
        return PodShape(number=a % PODS, qos=qos, request_mcpu=request, claims=(self.allocated[uid].name,))

    def _next(self) -> ContainerID:
        self.count += 1
        return ContainerID(f"c{self.count}")

    def _some(self, among: Sequence[T], number: int) -> T | None:
        return among[number % len(among)] if among else None

    async def _start_again(self) -> None:
        await self.node.crash()
        await self._boot_again()

    async def _boot_again(self) -> None:
        self.node = self.scene.boot()
        self._database = Database(self.node.started.claim_store)
        self.fails = False
        self._restore_specs()
        self.is_linked = False

    def _restore_specs(self) -> None:
        if not self.fails:
            self.node.specs.restore(self.node.service.books.ledger.claims.values())
            _require(set(self.node.specs.claims()) >= set(self.answered), "a CDI spec was not restored")

    def _new_boot(self) -> None:
        self._boots += 1
        path = self.scene.directory / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"boot-{self._boots}\n")


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise Broken(otherwise)
