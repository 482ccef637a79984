"""A node for tests: the daemon's own parts over real databases and CDI files, with a runtime that is in memory only.

``FakeRuntime`` keeps what its containers really run on; it applies replies at once, or loses them when told to.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nodecpu.arrangement import arrange
from nodecpu.claims import Claims, Doors
from nodecpu.config import Config, parse
from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.dra.cdi import CdiDirectory, spec_text
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.errors import NodeCpuError, NotReady
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.metrics import Counters
from nodecpu.policy.facts import (
    AllocatedClaim,
    AllocationResult,
    ClaimRef,
    Container,
    ContainerSpec,
    ContainerState,
    PodSpec,
    QoS,
    Sandbox,
)
from nodecpu.policy.grants import ClaimGrant
from nodecpu.policy.ledger import violations
from nodecpu.policy.pending import Seen
from nodecpu.policy.plan import Placement, PreparedDevice, Update
from nodecpu.quotas import QuotaFiles
from nodecpu.reconfigure import reconfigure
from nodecpu.service import Service, Watchers
from nodecpu.startup import node_name, rules_of, start
from nodecpu.store.claims import Disk

ALL = CpuSet(range(16))
ALL_NODES = NodeSet(range(4))


@dataclass
class Process:
    """A container as it really is."""

    sandbox: Sandbox
    container: Container
    cpus: CpuSet
    mems: NodeSet
    is_alive: bool = True
    writes: int = 0


@dataclass
class FakeRuntime:
    """Containers by id; the probe of the service's Protocol."""

    processes: dict[ContainerID, Process] = field(default_factory=dict)
    loses_updates: bool = False
    quotas: QuotaFiles | None = None

    def is_populated(self, cgroups_path: str) -> bool:
        process = self._at(cgroups_path)
        return process is not None and process.is_alive

    def seen(self, cgroups_path: str) -> Seen | None:
        process = self._at(cgroups_path)
        return None if process is None else Seen(cpus=process.cpus, mems=process.mems)

    def add(self, sandbox: Sandbox, container: Container, placement: Placement | None) -> None:
        cpus = ALL if placement is None else placement.cpus
        mems = ALL_NODES if placement is None or not placement.mems else placement.mems
        running = replace(container, state=ContainerState.RUNNING)
        self.processes[container.id] = Process(sandbox, running, cpus, mems)

    def apply(self, updates: tuple[Update, ...]) -> None:
        for update in updates:
            assert update.placement.cpus, "an empty cpuset was sent"
            process = self.processes.get(update.container_id)
            if process is not None and not self.loses_updates:
                process.cpus = update.placement.cpus
                process.mems = update.placement.mems or process.mems
                process.writes += 1

    def listed(self) -> tuple[list[Sandbox], list[Container]]:
        live = [process for process in self.processes.values() if process.is_alive]
        sandboxes = {process.sandbox.id: process.sandbox for process in live}
        containers = [replace(process.container, cpus=process.cpus, mems=process.mems) for process in live]
        return list(sandboxes.values()), containers

    def _at(self, cgroups_path: str) -> Process | None:
        return self.processes.get(ContainerID(cgroups_path.removeprefix("/kubepods/")))


class FakeApi:
    """Claims by name, as the API server has them; away when told to."""

    def __init__(self) -> None:
        self.claims: dict[tuple[str, str], AllocatedClaim] = {}
        self.is_answering = True
        self.calls = 0

    async def fetch(self, uid: ClaimUID, namespace: str, name: str, *, timeout_s: float) -> AllocatedClaim:
        self.calls += 1
        await asyncio.sleep(0)
        if not self.is_answering:
            raise NotReady(f"claim {namespace}/{name}: the API server is away")
        claim = self.claims[namespace, name]
        assert claim.uid == uid
        return claim


class FailingSpecs(CdiDirectory):
    """CDI files that cannot be written when told to."""

    fails = False

    def write(self, grant: ClaimGrant) -> bool:
        if self.fails:
            raise OSError(28, "No space left on device")
        return super().write(grant)


class Node:
    """One run of the daemon's parts; ``crash`` ends it like kill -9, the next one finds what it left."""

    def __init__(self, root: Path, runtime: FakeRuntime, api: FakeApi, config: Config) -> None:
        self.config = config
        self.runtime = runtime
        self.api = api
        self.started = start(config, Cgroups(config.paths.cgroup))
        self.disk = Disk(self.started.claim_store)
        self.disk.start()
        self.specs = FailingSpecs(config.paths.cdi, driver="dra.cpu")
        self.counters = Counters()
        self.kicks = 0
        self.hinted: list[Sandbox] = []  # of which pods the kubelet was to be asked
        self.service = Service(
            self.started.books,
            self.started.arranged.machine,
            rules_of(config),
            pods=self.started.container_store,
            probe=runtime,
            counters=self.counters,
            quotas=runtime.quotas,
            watchers=Watchers(
                pending=self._kicked,
                freed=lambda: self.claims.notify(),
                released=lambda uid: self.claims.forget_row(uid),
                hinted=self.hinted.append,
            ),
        )
        self.service.pods.restore(self.started.pods)
        doors = Doors(source=api, disk=self.disk, specs=self.specs)
        self.claims = Claims(self.service, doors, self.counters, wait_s=config.claims.wait_s)

    def _kicked(self) -> None:
        self.kicks += 1

    def reload(self, config: Config) -> None:
        """Take in another configuration as the daemon does at SIGHUP."""
        units = self.service.machine.units
        kubepods = Cgroups(config.paths.cgroup).kubepods()
        arranged = arrange(config, self.started.topology, kubepods, node=node_name(config), units=units)
        reconfigure(self.service, arranged, rules_of(config))
        self.config = config

    async def crash(self) -> None:
        """Drop everything as a kill would: what is queued for the disk may or may not get there."""
        await self.disk.stop()
        self.started.claim_store.close()
        self.started.container_store.close()

    async def prepare(self, claim: AllocatedClaim, budget_s: float = 5.0) -> tuple[PreparedDevice, ...]:
        self.api.claims[claim.namespace, claim.name] = claim
        return await self.claims.prepare(claim.uid, claim.namespace, claim.name, budget_s=budget_s)

    def synchronize(self) -> tuple[Update, ...]:
        updates = self.service.synchronize(*self.runtime.listed())
        self.runtime.apply(updates)
        return updates

    def create(self, sandbox: Sandbox, container: Container) -> CpuSet:
        """Create and start a container; return what it runs on."""
        creation = self.service.create_container(sandbox, container)
        self.runtime.add(sandbox, container, creation.placement)
        self.runtime.apply(creation.updates)
        self.service.container_seen(sandbox, replace(container, state=ContainerState.RUNNING))
        return self.runtime.processes[container.id].cpus

    def stop(self, container_id: ContainerID) -> None:
        process = self.runtime.processes.pop(container_id)
        self.runtime.apply(self.service.stop_container(process.sandbox, process.container))

    def audit(self) -> None:
        """Read everything back and write what is pending, as the audit does in the end."""
        for container_id in list(self.service.books.ledger.containers):
            self.service.observe(container_id, self.runtime.seen(f"/kubepods/{container_id}"))
        for container_id, wanted in self.service.books.pending.open.items():
            self.runtime.apply((Update(container_id=container_id, placement=wanted),))
            self.service.observe(container_id, self.runtime.seen(f"/kubepods/{container_id}"))

    def env_of(self, uid: ClaimUID) -> Mapping[str, str]:
        """Return the variables that the runtime injects for all devices of a claim, taken from its CDI spec."""
        text = spec_text("dra.cpu", self.service.books.ledger.claims[uid]).decode()
        pairs = [line.strip().strip('",') for line in text.splitlines() if "DRA_CPUSET_" in line]
        return dict(pair.split("=", 1) for pair in pairs)

    def check(self) -> None:
        """Assert what always holds."""
        assert violations(self.service.books.ledger) == []


class Scene:
    """A directory with a machine in it, and the nodes that run there one after the other."""

    def __init__(self, directory: Path, machine: str = "2 sockets, 2 nodes, 2 cores, 2 threads") -> None:
        self.directory = directory
        self.runtime = FakeRuntime()
        self.api = FakeApi()
        self.reserved = "15"
        self.extra = ""
        write_machine(parse_machine(machine), directory)
        (directory / "cgroup").mkdir()

    def config(self) -> Config:
        paths = {"root": "", "cgroup": "cgroup", "cdi": "cdi", "kubelet": "kubelet", "state": "state", "run": "run"}
        lines = [f'{key} = "{self.directory / name}"' for key, name in paths.items()]
        for name in ("state", "run"):
            (self.directory / name).mkdir(exist_ok=True)
        text = "\n".join(
            ["[node]", 'name = "node"', "[paths]", *lines, "[policy]", f'reserved = "{self.reserved}"', self.extra]
        )
        return parse(text, "test.toml")

    def boot(self) -> Node:
        """Start a node on what is in the directory."""
        return Node(self.directory, self.runtime, self.api, self.config())


def scene_in_memory() -> tuple[Scene, tempfile.TemporaryDirectory[str]]:
    """Return a scene on a memory file system, where a synced commit costs nothing."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    directory = tempfile.TemporaryDirectory(dir=base, prefix="nodecpu-")
    return Scene(Path(directory.name)), directory


def claim(number: int, *results: tuple[str, int], name: str = "", request: str = "cpus") -> AllocatedClaim:
    """Return an allocated claim: each result a device and an amount; one request per result if there are several."""
    return AllocatedClaim(
        uid=ClaimUID(f"{number:08d}-0000-4000-8000-000000000000"),
        namespace="shop",
        name=name or f"claim-{number}",
        results=tuple(
            AllocationResult(
                request=request if len(results) == 1 else f"{request}-{index}", pool="node", device=device, cpus=cpus
            )
            for index, (device, cpus) in enumerate(results)
        ),
    )


@dataclass(frozen=True, kw_only=True)
class PodShape:
    """A pod of one container, ``main``, in a namespace."""

    number: int
    namespace: str = "shop"
    qos: QoS = QoS.BEST_EFFORT
    request_mcpu: int | None = None
    claims: tuple[str, ...] = ()
    limit_mcpu: int | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    handler: str = ""

    @property
    def spec(self) -> PodSpec:
        refs = tuple(ClaimRef(claim=name) for name in self.claims)
        main = ContainerSpec(name="main", request_mcpu=self.request_mcpu, limit_mcpu=self.limit_mcpu, claims=refs)
        uid = PodUID(f"pod-{self.number}")
        return PodSpec(
            uid=uid,
            runtime_uid=uid,
            namespace=self.namespace,
            name=f"pod-{self.number}",
            qos=self.qos,
            containers={"main": main},
            annotations=self.annotations,
        )

    @property
    def sandbox(self) -> Sandbox:
        uid = PodUID(f"pod-{self.number}")
        return Sandbox(
            id=SandboxID(f"s{self.number}"),
            uid=uid,
            namespace=self.namespace,
            name=f"pod-{self.number}",
            runtime_handler=self.handler,
            annotations=self.annotations,
        )

    def container(self, container_id: str, env: Mapping[str, str] | None = None) -> Container:
        return Container(
            id=ContainerID(container_id),
            sandbox_id=SandboxID(f"s{self.number}"),
            name="main",
            claim_env=env or {},
            cgroups_path=f"/kubepods/{container_id}",
        )


def play(scene: Scene, story: Callable[[Node], Awaitable[None]], *, synchronized: bool = True) -> None:
    """Run a story on a fresh node; in the end its books hold."""

    async def whole() -> None:
        node = scene.boot()
        try:
            if synchronized:
                node.synchronize()
            await story(node)
            node.check()
        finally:
            await node.crash()

    asyncio.run(whole())


__all__ = ["FakeApi", "FakeRuntime", "Node", "NodeCpuError", "PodShape", "Scene", "claim", "play", "scene_in_memory"]
