"""The forgery table: what pods try in order to get CPUs that are not theirs, and what becomes of each attempt.

Each row is played on the whole node in memory: the runtime's messages as bytes, real databases and CDI files. ``shop/
claim-1`` has CPUs 4-5, its holder runs on them, and a thief, ``shop/pod-9``, comes with what the row says. Whatever
that is: the holder keeps its CPUs and is not written to, nobody else is on them, the next prepare answers the same, and
all that is still so after the daemon was killed. A pod's own claim is among the rows to show what the proof is.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import pytest

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.errors import NodeCpuError
from nodecpu.ids import ContainerID, PodUID, SandboxID
from nodecpu.kube.podspec import decode_pod
from nodecpu.lab.jsontree import JsonObject
from nodecpu.log import LineFormatter
from nodecpu.nri.plugin import PLUGIN_SERVICE, Plugin
from nodecpu.policy.facts import ClaimRef, Container, ContainerKind, ContainerSpec, PodSpec, QoS, Sandbox
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.proto import nri_pb2
from tests.node import ALL, PodShape, Scene, claim, scene_in_memory

VICTIM: Final = claim(1, ("cpudevnuma001", 2))
UID: Final = VICTIM.uid
CPUS: Final = CpuSet.parse("4-5")
VARIABLE: Final = f"DRA_CPUSET_{UID}"
HOLDER: Final = PodShape(number=1, claims=(VICTIM.name,))
OTHER_UID: Final = claim(2).uid

IGNORED: Final = "claim variables ignored: the container is not entitled to them"
REFUSED: Final = "container refused"
ANNOTATION: Final = "annotation without effect"
MIRROR: Final = "mirror pod ignored: it names the UID of another pod"
PLACED: Final = "container placed"


class Outcome(Enum):
    """What a thief ends up with."""

    SHARED = "runs with everybody else"
    REFUSED = "is not created; the kubelet tries again"
    OWN = "has the CPUs that are its own, and no others"


class Comes(Enum):
    """When the thief's container is made."""

    EARLY = "before the claim is prepared"
    PREPARED = "after the claim is prepared, before its holder is made"
    LATER = "beside the holder"
    AWAY = "while the link to the runtime is down"
    UNTOLD = "told of only when it runs"


Play = Callable[["Stage"], Awaitable[None]]


async def _nothing(_: Stage) -> None:
    """Do nothing more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One row. ``env`` as the runtime passes it on; ``spec`` None: the API server has not told of the pod.

    ``before`` and ``after`` are what happens besides, just before and after the thief's container is made.
    """

    env: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    pod: PodShape = PodShape(number=9)  # noqa: RUF009 - frozen
    name: str = "main"
    spec: Callable[[PodSpec], PodSpec | None] = lambda spec: spec
    sandbox: Callable[[Sandbox], Sandbox] = lambda sandbox: sandbox
    comes: Comes = Comes.LATER
    before: Play = _nothing
    after: Play = _nothing
    outcome: Outcome = Outcome.SHARED
    own: str = ""
    log: str = IGNORED
    counted: bool | None = None


class Stage:
    """The node and everybody on it; containers are made by the runtime's own messages."""

    def __init__(self, scene: Scene, attempt: Attempt) -> None:
        self.scene = scene
        self.attempt = attempt
        self.node = scene.boot()
        self.plugin = Plugin(self.node.service)
        self.refusal: NodeCpuError | None = None
        shape = replace(attempt.pod, annotations=attempt.annotations)
        self.thief = attempt.sandbox(shape.sandbox)
        self.spec = attempt.spec(shape.spec)

    async def play(self) -> None:
        """Play the row up to its end."""
        comes = self.attempt.comes
        self.synchronize()
        self.node.service.pods_listed([HOLDER.spec, *([] if self.spec is None else [self.spec])])
        if comes is Comes.EARLY:
            await self.thieve()
        await self.node.prepare(VICTIM)
        if comes is Comes.PREPARED:
            await self.thieve()
        self.create(HOLDER.sandbox, ContainerID("c1"), "main", env=(f"{VARIABLE}={CPUS}",))
        self.node.audit()
        if comes not in (Comes.EARLY, Comes.PREPARED):
            await self.thieve()
        await self.attempt.after(self)

    async def thieve(self) -> None:
        """Have the thief's container made as the row says."""
        attempt = self.attempt
        await attempt.before(self)
        made = message(ContainerID("c9"), self.thief.id, attempt.name, attempt.env, attempt.devices)
        if attempt.comes in (Comes.AWAY, Comes.UNTOLD):
            container = Container(
                id=ContainerID("c9"),
                sandbox_id=self.thief.id,
                name=attempt.name,
                claim_env=dict(pair.split("=", 1) for pair in attempt.env),
                cdi_devices=attempt.devices,
                cgroups_path="/kubepods/c9",
            )
            self.scene.runtime.add(self.thief, container, None)
            if attempt.comes is Comes.AWAY:
                self.node.service.runtime_lost()
                self.synchronize()
            else:
                made.state = nri_pb2.CONTAINER_RUNNING
                self.call(
                    "PostStartContainer",
                    nri_pb2.PostStartContainerRequest(pod=pod_message(self.thief), container=made),
                )
            return
        try:
            self.create(self.thief, ContainerID("c9"), attempt.name, attempt.env, attempt.devices)
        except NodeCpuError as error:
            self.refusal = error

    def create(
        self,
        sandbox: Sandbox,
        container_id: ContainerID,
        name: str,
        env: tuple[str, ...] = (),
        devices: tuple[str, ...] = (),
    ) -> None:
        """Create and start a container over the wire's form; the runtime does what the reply says."""
        made = message(container_id, sandbox.id, name, env, devices)
        pod = pod_message(sandbox)
        reply = self.call("CreateContainer", nri_pb2.CreateContainerRequest(pod=pod, container=made))
        answer = nri_pb2.CreateContainerResponse.FromString(reply)
        cpu = answer.adjust.linux.resources.cpu
        container = Container(
            id=container_id,
            sandbox_id=sandbox.id,
            name=name,
            claim_env={key: value for key, found, value in (pair.partition("=") for pair in env) if found},
            cdi_devices=devices,
            cgroups_path=f"/kubepods/{container_id}",
        )
        placed = self.node.service.books.placement(container_id)
        assert CpuSet.parse(cpu.cpus) == (NO_CPUS if placed is None else placed.cpus)
        self.scene.runtime.add(sandbox, container, placed)
        for update in answer.update:
            cpus = CpuSet.parse(update.linux.resources.cpu.cpus)
            self.scene.runtime.processes[ContainerID(update.container_id)].cpus = cpus
        made.state = nri_pb2.CONTAINER_RUNNING
        self.call("PostStartContainer", nri_pb2.PostStartContainerRequest(pod=pod, container=made))

    def call(self, method: str, request: nri_pb2.CreateContainerRequest | nri_pb2.PostStartContainerRequest) -> bytes:
        """Make one call of the runtime."""
        return self.plugin.handle(PLUGIN_SERVICE, method, request.SerializeToString())

    def synchronize(self) -> None:
        """Synchronise, read back, and have what is pending written."""
        self.node.synchronize()
        self.node.audit()

    def cpus(self, container_id: str) -> CpuSet:
        """Return what a container really runs on."""
        return self.scene.runtime.processes[ContainerID(container_id)].cpus

    def grant(self, container_id: str) -> ContainerGrant | None:
        """Return what the books have of a container."""
        return self.node.service.books.ledger.containers.get(ContainerID(container_id))

    async def judge(self) -> None:
        """Assert what must be so after every attempt, at once and after a kill."""
        attempt = self.attempt
        refused = attempt.outcome is Outcome.REFUSED
        assert (self.refusal is not None) is refused, self.refusal
        await self._check()
        counted = attempt.log == IGNORED if attempt.counted is None else attempt.counted
        assert (self.node.counters.forged_claims > 0) is counted
        await self.node.crash()
        self.node = self.scene.boot()
        self.plugin = Plugin(self.node.service)
        self.synchronize()
        await self._check()

    async def _check(self) -> None:
        self.node.audit()
        self.node.check()
        ledger = self.node.service.books.ledger
        holder = self.grant("c1")
        assert holder is not None
        assert [link.cpus for link in holder.links] == [CPUS]
        assert self.cpus("c1") == CPUS
        assert self.scene.runtime.processes[ContainerID("c1")].writes == 0
        for container_id, process in self.scene.runtime.processes.items():
            links = {link.claim_uid for link in ledger.containers[container_id].links}
            others = [one.cpus for uid, one in ledger.claims.items() if uid not in links]
            assert all(process.cpus.isdisjoint(cpus) for cpus in others), container_id
        thief = self.grant("c9")
        if self.attempt.outcome is Outcome.REFUSED:
            assert thief is None
        elif self.attempt.outcome is Outcome.SHARED:
            assert thief is not None
            assert (thief.group, thief.links, thief.exclusive) == (Group.SHARED, (), NO_CPUS)
            assert self.cpus("c9") <= ALL - CPUS - CpuSet.parse("15")
        else:
            assert self.cpus("c9") == CpuSet.parse(self.attempt.own)
        (answer,) = await self.node.prepare(VICTIM)
        assert answer.cdi_ids == (f"dra.cpu/cpu=claim-{UID}-0",)
        assert ledger.claims[UID].cpus == CPUS


def message(
    container_id: ContainerID, sandbox_id: SandboxID, name: str, env: tuple[str, ...], devices: tuple[str, ...]
) -> nri_pb2.Container:
    """Return a container as the runtime tells it."""
    made = nri_pb2.Container(
        id=container_id,
        pod_sandbox_id=sandbox_id,
        name=name,
        env=env,
        CDI_devices=[nri_pb2.CDIDevice(name=device) for device in devices],
    )
    made.linux.cgroups_path = f"/kubepods/{container_id}"
    return made


def pod_message(sandbox: Sandbox) -> nri_pb2.PodSandbox:
    """Return a pod as the runtime tells it."""
    return nri_pb2.PodSandbox(
        id=sandbox.id,
        uid=sandbox.uid,
        namespace=sandbox.namespace,
        name=sandbox.name,
        annotations=sandbox.annotations,
        runtime_handler=sandbox.runtime_handler,
    )


# What happens besides


async def _prepared_under_the_same_name(stage: Stage) -> None:
    """The claim is deleted and made again, and its successor prepared; the old one is not unprepared yet."""
    await stage.node.prepare(replace(claim(2, ("cpudevnuma002", 2)), name=VICTIM.name))


async def _prepared_elsewhere(stage: Stage) -> None:
    await stage.node.prepare(replace(claim(2, ("cpudevnuma002", 2)), namespace="bank", name=VICTIM.name))


async def _prepared(stage: Stage) -> None:
    """The thief has a claim of its own, of two requests, with CPUs 8-9 and 10."""
    await stage.node.prepare(claim(2, ("cpudevnuma002", 2), ("cpudevnuma002", 1)))


async def _over(stage: Stage) -> None:
    """A claim of the thief's was prepared and unprepared: its UID and CPUs are history."""
    await stage.node.prepare(claim(2, ("cpudevnuma002", 2)))
    await stage.node.claims.unprepare(OTHER_UID)
    assert OTHER_UID not in stage.node.service.books.ledger.claims


async def _over_but_in_use(stage: Stage) -> None:
    """Another claim is unprepared while its last container is still there."""
    await stage.node.prepare(claim(2, ("cpudevnuma002", 2)))
    user = PodShape(number=2, claims=("claim-2",))
    stage.node.service.pod_seen(user.spec)
    stage.create(user.sandbox, ContainerID("c2"), "main", (f"DRA_CPUSET_{OTHER_UID}=8-9",))
    await stage.node.claims.unprepare(OTHER_UID)


async def _being_prepared(stage: Stage) -> None:
    """A claim is decided and on its way to the disk."""
    stage.node.service.books.ledger.hold(OTHER_UID, CpuSet.parse("8-9"))


async def _preparation_ends(stage: Stage) -> None:
    stage.node.service.books.ledger.unhold(OTHER_UID)


async def _asks_for_their_cpus(stage: Stage) -> None:
    """An in-place update asks for the holder's CPUs."""
    made = message(ContainerID("c9"), stage.thief.id, "main", (), ())
    request = nri_pb2.UpdateContainerRequest(pod=pod_message(stage.thief), container=made)
    request.linux_resources.cpu.cpus = str(CPUS)
    reply = stage.plugin.handle(PLUGIN_SERVICE, "UpdateContainer", request.SerializeToString())
    (own,) = [one for one in nri_pb2.UpdateContainerResponse.FromString(reply).update if one.container_id == "c9"]
    assert CpuSet.parse(own.linux.resources.cpu.cpus).isdisjoint(CPUS)


async def _forges_a_mirror(stage: Stage) -> None:
    """Another pod says that it is the mirror of the thief's, with a reference to the claim."""
    stage.node.service.pod_seen(decode_pod(json.dumps(mirror_of(PodUID("pod-9"), "pod-8")).encode()))


def mirror_of(uid: PodUID, name: str) -> JsonObject:
    """Return a pod that names the UID of another one as a static pod's mirror does."""
    return {
        "metadata": {
            "uid": "mirror",
            "namespace": "shop",
            "name": name,
            "annotations": {"kubernetes.io/config.mirror": uid},
        },
        "spec": {
            "resourceClaims": [{"name": "cpus", "resourceClaimName": VICTIM.name}],
            "containers": [{"name": "main", "resources": {"claims": [{"name": "cpus"}]}}],
        },
    }


async def _shown_at_a_first_start(stage: Stage) -> None:
    """The daemon has never run here: what running containers show is kept until the API server has judged."""
    stage.node.service.adopting = True


async def _disproved(stage: Stage) -> None:
    stage.node.service.disprove(OTHER_UID)


# Specs


def _unknown(_: PodSpec) -> None:
    """Return what the API server has told so far."""


def _of(kind: ContainerKind, name: str = "extra") -> Callable[[PodSpec], PodSpec]:
    """Have a second container without a reference in a pod whose main container references the claim."""

    def changed(spec: PodSpec) -> PodSpec:
        refs = (ClaimRef(claim=VICTIM.name),)
        main, other = ContainerSpec(name="main", claims=refs), ContainerSpec(name=name, kind=kind)
        return replace(spec, containers={"main": main, name: other})

    return changed


def _debugged(spec: PodSpec) -> PodSpec:
    """Return the holder's own pod, to which somebody has attached an ephemeral container."""
    extra = ContainerSpec(name="debugger", kind=ContainerKind.EPHEMERAL)
    main = HOLDER.spec.containers["main"]
    del spec
    return replace(HOLDER.spec, containers={"main": main, "debugger": extra})


def _mirrored(spec: PodSpec) -> PodSpec:
    return replace(spec, uid=PodUID("mirror-9"))


RIGHT: Final = (f"{VARIABLE}={CPUS}",)
OWN: Final = PodShape(number=9, claims=("claim-2",))
OWN_ENV: Final = (
    f"DRA_CPUSET_{OTHER_UID}=8-10",
    f"DRA_CPUSET_{OTHER_UID}_cpus_0=8-9",
    f"DRA_CPUSET_{OTHER_UID}_cpus_1=10",
)

ENVIRONMENT: Final = {
    "the right variable of somebody else's claim": Attempt(env=RIGHT),
    "the CPUs in another order": Attempt(env=(f"{VARIABLE}=5,4",)),
    "more CPUs than the claim has": Attempt(env=(f"{VARIABLE}=4-9",)),
    "fewer CPUs than the claim has": Attempt(env=(f"{VARIABLE}=4",)),
    "all CPUs": Attempt(env=(f"{VARIABLE}=0-15",)),
    "an empty value": Attempt(env=(f"{VARIABLE}=",)),
    "no value at all": Attempt(env=(VARIABLE,)),
    "two values, the right one last": Attempt(env=(f"{VARIABLE}=0-1", *RIGHT)),
    "two values, the right one first": Attempt(env=(*RIGHT, f"{VARIABLE}=0-1")),
    "an equals sign in the value": Attempt(env=(f"{VARIABLE}=={CPUS}",)),
    "digits of another script": Attempt(env=(f"{VARIABLE}=\u0664-\u0665",)),
    "a value with a line break": Attempt(env=(f"{VARIABLE}=4-5\n0-3",)),
    "a value with a zero byte": Attempt(env=(f"{VARIABLE}=4-5\x00",)),
    "a value of 100,000 digits": Attempt(env=(f"{VARIABLE}=0-{'9' * 100_000}",)),
    "a list of 20,000 CPUs": Attempt(env=(f"{VARIABLE}={','.join(str(n) for n in range(20_000))}",)),
    "20,000 variables, the right one among them": Attempt(
        env=(*(f"DRA_CPUSET_{n:036d}=0" for n in range(20_000)), *RIGHT)
    ),
    "the variable's name in small letters": Attempt(env=(f"{VARIABLE.lower()}={CPUS}",), log=""),
    "a blank before the name": Attempt(env=(f" {VARIABLE}={CPUS}",), log=""),
    "the UID in capitals": Attempt(env=(f"DRA_CPUSET_{'ABCDEF01' + UID[8:]}={CPUS}",)),
    "the UID cut short": Attempt(env=(f"{VARIABLE[:-1]}={CPUS}",)),
    "no UID": Attempt(env=(f"DRA_CPUSET_={CPUS}",)),
    "a request's variable alone": Attempt(env=(f"{VARIABLE}_cpus={CPUS}",)),
    "a request that the claim has not": Attempt(env=(f"{VARIABLE}_more={CPUS}",)),
    "a name that looks like a line of the log": Attempt(
        env=(f"DRA_CPUSET_x\nclaim prepared claim=shop/claim-1 claim_uid={UID}=1",)
    ),
}

CLAIMS: Final = {
    "a CDI device of somebody else's claim": Attempt(devices=(f"dra.cpu/cpu=claim-{UID}-0",)),
    "a CDI device with an index that the claim has not": Attempt(devices=(f"dra.cpu/cpu=claim-{UID}-7",)),
    "a CDI device of a vendor that looks like ours": Attempt(devices=(f"evil.dra.cpu/cpu=claim-{UID}-0",), log=""),
    "a UID that nobody has": Attempt(env=(f"DRA_CPUSET_{claim(77).uid}={CPUS}",)),
    "a reference to a claim of the same name in another namespace": Attempt(
        pod=PodShape(number=9, namespace="bank", claims=(VICTIM.name,)),
        env=(*RIGHT, f"DRA_CPUSET_{OTHER_UID}=8-9"),
        before=_prepared_elsewhere,
        outcome=Outcome.OWN,
        own="8-9",
    ),
    "somebody else's claim beside its own": Attempt(
        pod=OWN, env=(*OWN_ENV, *RIGHT), before=_prepared, outcome=Outcome.OWN, own="8-10"
    ),
    "its own claim, with somebody else's CPUs added": Attempt(
        pod=OWN,
        env=(f"DRA_CPUSET_{OTHER_UID}=4-5,8-10",),
        before=_prepared,
        outcome=Outcome.REFUSED,
        log=REFUSED,
        counted=False,
    ),
    "its own claim, nothing else": Attempt(
        pod=OWN, env=OWN_ENV, before=_prepared, outcome=Outcome.OWN, own="8-10", log=PLACED
    ),
    "the predecessor of its claim, made again under the same name": Attempt(
        pod=PodShape(number=9, claims=(VICTIM.name,)),
        env=(*RIGHT, f"DRA_CPUSET_{OTHER_UID}=8-9"),
        before=_prepared_under_the_same_name,
        outcome=Outcome.REFUSED,
        log=REFUSED,
    ),
    "a claim of its own that is over": Attempt(
        pod=OWN, env=(f"DRA_CPUSET_{OTHER_UID}=8-9",), before=_over, log=IGNORED
    ),
    "a claim that was unprepared while its last container is there": Attempt(
        pod=OWN, env=(f"DRA_CPUSET_{OTHER_UID}=8-9",), before=_over_but_in_use
    ),
}

PODS: Final = {
    "a pod that the API server has not told of": Attempt(
        env=RIGHT, spec=_unknown, outcome=Outcome.REFUSED, log=REFUSED
    ),
    "wrong CPUs, of a pod that the API server has not told of": Attempt(env=(f"{VARIABLE}=4-9",), spec=_unknown),
    "the UID of the holder's pod": Attempt(
        env=RIGHT,
        sandbox=lambda sandbox: replace(sandbox, uid=PodUID("pod-1")),
        outcome=Outcome.REFUSED,
        log=REFUSED,
    ),
    "the UID of the holder's pod, and nothing else": Attempt(
        sandbox=lambda sandbox: replace(sandbox, uid=PodUID("pod-1")), log=PLACED, counted=False
    ),
    "the holder's name, with a UID of its own": Attempt(
        env=RIGHT, sandbox=lambda sandbox: replace(sandbox, name="pod-1"), outcome=Outcome.REFUSED, log=REFUSED
    ),
    "no UID at all": Attempt(
        env=RIGHT, sandbox=lambda sandbox: replace(sandbox, uid=PodUID("")), outcome=Outcome.REFUSED, log=REFUSED
    ),
    "a pod made again under its name, of which only the first is known": Attempt(
        pod=PodShape(number=9, claims=(VICTIM.name,)),
        env=RIGHT,
        sandbox=lambda sandbox: replace(sandbox, uid=PodUID("pod-9-again")),
        outcome=Outcome.REFUSED,
        log=REFUSED,
    ),
    "a static pod": Attempt(env=RIGHT, spec=_mirrored),
    "a pod that says it is the mirror of the thief's": Attempt(
        env=RIGHT, before=_forges_a_mirror, log=MIRROR, counted=True
    ),
    "an init container beside one that references the claim": Attempt(
        env=RIGHT, name="extra", spec=_of(ContainerKind.INIT)
    ),
    "a sidecar beside one that references the claim": Attempt(env=RIGHT, name="extra", spec=_of(ContainerKind.SIDECAR)),
    "an ephemeral container in the holder's own pod": Attempt(
        env=RIGHT,
        name="debugger",
        pod=PodShape(number=1),
        spec=_debugged,
    ),
    "an ephemeral container that the spec does not show yet": Attempt(
        env=RIGHT,
        name="debugger",
        pod=PodShape(number=1),
        spec=lambda spec: replace(spec, containers=HOLDER.spec.containers),
    ),
    "a container name with separators": Attempt(env=RIGHT, name="../pod-1/main"),
    "a namespace with separators": Attempt(env=RIGHT, pod=PodShape(number=9, namespace="shop/pod-1")),
    "a namespace that begins like a reserved one": Attempt(
        env=RIGHT, pod=PodShape(number=9, namespace="kube-system-2")
    ),
    "a request for exclusive CPUs, with the variable": Attempt(
        env=RIGHT,
        pod=PodShape(number=9, qos=QoS.GUARANTEED, request_mcpu=2000, limit_mcpu=2000),
        outcome=Outcome.OWN,
        own="8-9",
    ),
    "a request for more CPUs than there are": Attempt(
        pod=PodShape(number=9, qos=QoS.GUARANTEED, request_mcpu=10**12, limit_mcpu=10**12),
        outcome=Outcome.REFUSED,
        log=REFUSED,
    ),
}

DOMAIN: Final = "resource-policy.nri.io"
ANNOTATIONS: Final = {
    "to be left on all CPUs": Attempt(annotations={f"cpu.preserve.{DOMAIN}/pod": "true"}, log=ANNOTATION),
    "to be left on all CPUs, by the container's name": Attempt(
        annotations={f"cpu.preserve.{DOMAIN}/container.main": "true"}, log=ANNOTATION
    ),
    "to be left on all CPUs, by another container's name": Attempt(
        annotations={f"cpu.preserve.{DOMAIN}/container.main/../main": "true"}, log=ANNOTATION
    ),
    "the reserved CPUs": Attempt(annotations={f"prefer-reserved-cpus.{DOMAIN}": "true"}, log=ANNOTATION),
    "a scheduling class that there is not": Attempt(
        annotations={f"scheduling-class.{DOMAIN}": "realtime"}, log=ANNOTATION
    ),
    "a key that there is not": Attempt(annotations={f"exclusive-cpus.{DOMAIN}": "4-5"}, log=ANNOTATION),
    "another domain": Attempt(annotations={"cpu.preserve.example.com": "true"}, log=""),
    "a CDI device": Attempt(annotations={"cdi.k8s.io/claim": f"dra.cpu/cpu=claim-{UID}-0"}, log=""),
    "a value of a megabyte": Attempt(annotations={f"cpu.preserve.{DOMAIN}": "true" * (1 << 18)}, log=ANNOTATION),
    "only the claimed CPUs, without a claim": Attempt(annotations={f"claimed-cpus-only.{DOMAIN}": "true"}, env=RIGHT),
}

TIMING: Final = {
    "before the claim is prepared, its CPUs guessed": Attempt(env=RIGHT, comes=Comes.EARLY),
    "after the claim is prepared, before its holder is made": Attempt(env=RIGHT, comes=Comes.PREPARED),
    "while another claim is on its way to the disk": Attempt(
        pod=OWN, env=(f"DRA_CPUSET_{OTHER_UID}=8-9",), before=_being_prepared, after=_preparation_ends
    ),
    "while the link to the runtime is down": Attempt(env=RIGHT, comes=Comes.AWAY),
    "told of only when it runs": Attempt(env=RIGHT, comes=Comes.UNTOLD),
    "at a first start, on its claim's word alone": Attempt(
        env=(f"DRA_CPUSET_{OTHER_UID}=8-9",),
        before=_shown_at_a_first_start,
        comes=Comes.AWAY,
    ),
    "an in-place update that names the holder's CPUs": Attempt(after=_asks_for_their_cpus, log=PLACED, counted=False),
}

TABLE: Final = {
    f"{kind}: {words}": attempt
    for kind, rows in (
        ("environment", ENVIRONMENT),
        ("claims", CLAIMS),
        ("pods", PODS),
        ("annotation", ANNOTATIONS),
        ("timing", TIMING),
    )
    for words, attempt in rows.items()
}


@pytest.fixture
def scene() -> Iterator[Scene]:
    made, directory = scene_in_memory()
    with directory:
        yield made


@pytest.mark.parametrize("attempt", TABLE.values(), ids=list(TABLE))
def test_attempt_ends_as_the_table_says(attempt: Attempt, scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """L1, L3, C6, C8, G9, N1, R2, A, U48, U116, U118."""
    caplog.handler.setFormatter(LineFormatter(prefixed=False))
    caplog.set_level(logging.INFO, "nodecpu")

    async def whole() -> None:
        stage = Stage(scene, attempt)
        try:
            await stage.play()
            lines = caplog.text.splitlines()
            assert len(lines) == len(caplog.records), "a value from outside has broken a line"
            mine = [one for one in lines if "container_id=c9" in one or one.startswith(MIRROR)]
            assert not attempt.log or any(one.startswith(attempt.log) for one in mine), caplog.text
            assert attempt.log or not any(one.startswith((IGNORED, ANNOTATION, REFUSED)) for one in mine)
            await stage.judge()
        finally:
            await stage.node.crash()

    asyncio.run(whole())


def test_table_is_long_enough() -> None:
    assert len(TABLE) >= 60
    assert {attempt.outcome for attempt in TABLE.values()} == set(Outcome)
    assert {attempt.comes for attempt in TABLE.values()} == set(Comes)
