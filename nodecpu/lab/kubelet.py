"""A kubelet as a DRA driver and a runtime see it (asyncio): prepares a pod's claims, runs its containers, cleans up.

What is prepared is remembered in memory only, the devices with their CDI ids in a checkpoint that survives a restart of
the kubelet; so after a restart the next pod prepares again and its ids are listed twice.
Source: Kubernetes 1.36, pkg/kubelet/cm/dra and kuberuntime; recorded traffic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodecpu.lab.cluster import Cluster
from nodecpu.lab.containers import ContainerConfig, ContainerRecord, PodRuntime, SandboxConfig, SandboxRecord
from nodecpu.lab.jsontree import Json, JsonObject, node, nodes, text
from nodecpu.lab.objects import CLAIMS, PODS, SLICES, Key
from nodecpu.lab.podspec import (
    CgroupDriver,
    cgroup_parent,
    claim_names,
    claim_uses,
    figures,
    pod_figures,
    qos_class,
)
from nodecpu.lab.registry import DriverFault, Registry
from nodecpu.lab.runtime import RuntimeFault
from nodecpu.lab.trace import Trace
from nodecpu.proto import dra_pb2, nri_pb2

_PREPARE_FAILED: Final = "FailedPrepareDynamicResources"


class KubeletFault(Exception):
    """A pod cannot be started or ended now; the text is the event's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """How a kubelet is set up.

    The real one waits more than a minute after a failed prepare (``retry_s``), one second after a failed unprepare,
    half a second before it deletes the slices at its start (``wipe_s``), and takes a fifth of a second from a pod's
    creation to its first call (``notice_s``). Slices of a driver go when it was away for ``absence_s``.
    """

    directory: Path
    cgroup_driver: CgroupDriver = CgroupDriver.SYSTEMD
    cgroup_root: str = ""
    retry_s: float = 0.3
    unprepare_retry_s: float = 1.0
    wipe_s: float = 0.05
    notice_s: float = 0.1
    absence_s: float = 30.0


@dataclass(slots=True, kw_only=True)
class ClaimInfo:
    """What the checkpoint knows of a claim."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]
    devices: list[dra_pb2.Device] = field(default_factory=list)
    pods: set[str] = field(default_factory=set)

    def cdi_ids(self, request: str | None) -> list[str]:
        """Return the CDI ids for a container that uses one request of the claim, or all."""
        wanted = [
            one for one in self.devices if request is None or not one.request_names or request in one.request_names
        ]
        return [cdi_id for device in wanted for cdi_id in device.cdi_device_ids]


@dataclass(slots=True, kw_only=True)
class PodRun:
    """A pod as it runs."""

    pod: JsonObject
    sandbox: SandboxRecord
    containers: dict[str, ContainerRecord] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)


class Kubelet:
    """The kubelet; ``run`` is one life of its process, everything else may be called while it runs."""

    def __init__(self, settings: KubeletSettings, cluster: Cluster, runtime: PodRuntime, trace: Trace) -> None:
        self.settings = settings
        self.runs: dict[tuple[str, str], PodRun] = {}
        self.checkpoint: dict[str, ClaimInfo] = {}
        self.registry = Registry(settings.directory / "plugins_registry", trace)
        self._prepared: set[str] = set()
        self._cluster = cluster
        self._runtime = runtime
        self._trace = trace

    async def run(self) -> None:
        """Live: forget what was prepared, delete the node's slices, register drivers."""
        self._prepared.clear()
        self.registry = Registry(self.settings.directory / "plugins_registry", self._trace)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.registry.run())
            await asyncio.sleep(self.settings.wipe_s)
            self._wipe_slices("", "the kubelet starts")
            while True:
                driver = await self.registry.lost()
                tasks.create_task(self._wipe_if_away(driver))

    async def _wipe_if_away(self, driver: str) -> None:
        await asyncio.sleep(self.settings.absence_s)
        if driver not in self.registry.drivers:
            self._wipe_slices(f",spec.driver={driver}", "the driver is away")

    def _wipe_slices(self, selector: str, why: str) -> None:
        store = self._cluster.store
        for found in store.find(SLICES, "", f"spec.nodeName={self._cluster.node_name}{selector}"):
            name = text(found, "metadata", "name")
            self._trace.add("api", "kubelet", f"delete resourceslices/{name}", why)
            store.delete(Key(kind=SLICES, namespace="", name=name))

    # --- claims ------------------------------------------------------------------------------------------------------

    async def prepare(self, claims: Sequence[JsonObject]) -> None:
        """Have claims prepared that are not yet, one call per driver. Raises KubeletFault."""
        needed: dict[str, list[JsonObject]] = {}
        for claim in claims:
            drivers = claim_drivers(claim)
            uid = text(claim, "metadata", "uid")
            for driver in drivers:
                self._registered(driver)
                if uid not in self._prepared:
                    needed.setdefault(driver, []).append(claim)
        for driver, wanted in needed.items():
            await self._prepare_by(driver, wanted)
        self._prepared.update(text(claim, "metadata", "uid") for claim in claims)

    async def _prepare_by(self, driver: str, claims: Sequence[JsonObject]) -> None:
        request = dra_pb2.NodePrepareResourcesRequest(claims=[_claim_message(claim) for claim in claims])
        try:
            answer = await self.registry.driver(driver).prepare(request)
        except DriverFault as error:
            raise KubeletFault(f"prepare dynamic resources: NodePrepareResources failed: {error}") from error
        uids = [claim.uid for claim in request.claims]
        if unknown := sorted(set(answer.claims) - set(uids)):
            raise KubeletFault(
                f"prepare dynamic resources: NodePrepareResources returned unknown claim UID {unknown[0]}"
            )
        if skipped := [uid for uid in uids if uid not in answer.claims]:
            raise KubeletFault(f"prepare dynamic resources: NodePrepareResources skipped {len(skipped)} ResourceClaims")
        for claim in claims:
            uid = text(claim, "metadata", "uid")
            result = answer.claims[uid]
            if result.error:
                raise KubeletFault(
                    "prepare dynamic resources: NodePrepareResources failed for ResourceClaim "
                    f"{text(claim, 'metadata', 'name')}: {result.error}"
                )
            self._info(claim).devices.extend(result.devices)  # a repeat appends, as the real one's checkpoint does

    def prepared(self, claim_uid: str) -> ClaimInfo | None:
        """Return what the checkpoint knows of a claim, None if it was never prepared."""
        return self.checkpoint.get(claim_uid)

    def forget(self, claim_uid: str) -> None:
        """Forget that a claim is prepared, as a restart does: the next ``prepare`` calls the driver again."""
        self._prepared.discard(claim_uid)

    def lose_checkpoint(self) -> None:
        """Know of no claim any more, as after the state file was removed."""
        self._prepared.clear()
        self.checkpoint.clear()

    async def unprepare(self, claim: JsonObject) -> None:
        """Have a claim unprepared, known or not. Raises KubeletFault."""
        uid = text(claim, "metadata", "uid")
        info = self.checkpoint.get(uid)
        drivers = info.drivers if info else claim_drivers(claim)
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[_claim_message(claim)])
        for driver in drivers:
            try:
                answer = await self.registry.driver(driver).unprepare(request)
            except DriverFault as error:
                raise KubeletFault(f"unprepare dynamic resources: {error}") from error
            result = answer.claims.get(uid)
            if result is None or result.error:
                reason = "no answer for the claim" if result is None else result.error
                raise KubeletFault(f"unprepare dynamic resources: {reason}")
        self._prepared.discard(uid)
        self.checkpoint.pop(uid, None)

    def _info(self, claim: JsonObject) -> ClaimInfo:
        uid = text(claim, "metadata", "uid")
        return self.checkpoint.setdefault(
            uid,
            ClaimInfo(
                namespace=text(claim, "metadata", "namespace"),
                name=text(claim, "metadata", "name"),
                uid=uid,
                drivers=claim_drivers(claim),
            ),
        )

    def _registered(self, driver: str) -> None:
        try:
            self.registry.driver(driver)
        except DriverFault as error:
            raise KubeletFault(f"prepare dynamic resources: {error}") from error

    # --- pods --------------------------------------------------------------------------------------------------------

    async def start_pod(self, pod: JsonObject, *, tries: int = 1) -> PodRun:
        """Return a pod with all its containers running. Raises KubeletFault when all tries have failed."""
        run = await self.start_sandbox(pod, tries=tries)
        for container in nodes(pod, "spec", "initContainers"):
            record = await self.start_container(run, text(container, "name"), tries=tries)
            if text(container, "restartPolicy") != "Always":
                self._runtime.end_process(record, exit_code=0)
                await self._runtime.tell_stopped(record)
        for container in nodes(pod, "spec", "containers"):
            await self.start_container(run, text(container, "name"), tries=tries)
        self._set_phase(pod, "Running")
        return run

    async def start_sandbox(self, pod: JsonObject, *, tries: int = 1) -> PodRun:
        """Return a pod with its claims prepared and its sandbox made, no container yet. Raises KubeletFault."""
        last = ""
        await asyncio.sleep(self.settings.notice_s)
        for attempt in range(tries):
            if attempt:
                await asyncio.sleep(self.settings.retry_s)
            try:
                await self._prepare_pod(pod)
                sandbox = await self._runtime.run_sandbox(self._sandbox_config(pod))
            except (KubeletFault, RuntimeFault) as error:
                if isinstance(error, KubeletFault):
                    self._cluster.note_event(pod, _PREPARE_FAILED, f"Failed to prepare dynamic resources: {error}")
                else:
                    self._cluster.note_event(pod, "FailedCreatePodSandBox", str(error))
                last = str(error)
                continue
            run = PodRun(pod=pod, sandbox=sandbox)
            self.runs[_pod_key(pod)] = run
            return run
        raise KubeletFault(last)

    async def start_container(self, run: PodRun, name: str, *, tries: int = 1) -> ContainerRecord:
        """Return a container of a pod after its creation and start. Raises KubeletFault."""
        last = ""
        for attempt in range(tries):
            if attempt:
                await asyncio.sleep(self.settings.retry_s)
            try:
                record = await self._runtime.create_container(run.sandbox, self._container_config(run, name))
                await self._runtime.start_container(record)
            except RuntimeFault as error:
                self._cluster.note_event(run.pod, "Failed", f"Error: {error}")
                last = str(error)
                continue
            run.containers[name] = record
            return record
        raise KubeletFault(last)

    async def restart_container(self, run: PodRun, name: str, *, late: bool = False) -> ContainerRecord:
        """Return the container that follows one that crashed; ``late``: the stop event comes after the new one is made.

        The old one is removed after the new one was started. Raises KubeletFault.
        """
        old = run.containers[name]
        self._runtime.end_process(old, exit_code=137)
        if not late:
            await self._runtime.tell_stopped(old)
        record = await self.start_container(run, name)
        await self._runtime.remove_container(old)
        return record

    async def resize(self, run: PodRun, name: str, pod: JsonObject) -> None:
        """Change a running container to the resources that the pod's spec now has. Raises KubeletFault."""
        run.pod = pod
        wanted = figures(_container_of(pod, name), qos_class(node(pod, "spec")), node(pod, "spec"))
        cpu = nri_pb2.LinuxCPU(
            shares=nri_pb2.OptionalUInt64(value=wanted.shares), period=nri_pb2.OptionalUInt64(value=wanted.period_us)
        )
        if wanted.quota_us is not None:
            cpu.quota.value = wanted.quota_us
        try:
            await self._runtime.update_container(run.containers[name], nri_pb2.LinuxResources(cpu=cpu))
        except RuntimeFault as error:
            raise KubeletFault(str(error)) from error

    async def stop_pod(self, namespace: str, name: str, *, tries: int = 1) -> None:
        """End a pod: containers, sandbox, claims it was the last user of, then the object. Raises KubeletFault."""
        run = self.runs[namespace, name]
        uid = text(run.pod, "metadata", "uid")
        key = Key(kind=PODS, namespace=namespace, name=name)
        self._cluster.store.mark_deleted(key, grace_s=30)
        for record in self._runtime.containers_of(run.sandbox):
            if record.state == nri_pb2.CONTAINER_RUNNING:
                await self._runtime.stop_container(record)
        await self._runtime.stop_sandbox(run.sandbox)
        for info in [info for info in self.checkpoint.values() if uid in info.pods]:
            if info.pods == {uid}:
                await self._unprepare_patiently(info, tries)
            info.pods.discard(uid)
        for record in self._runtime.containers_of(run.sandbox):
            await self._runtime.remove_container(record)
        self._cluster.store.remove(key)
        for claim in claim_names(run.pod).values():
            self._cluster.release(namespace, claim, uid)
        await self._runtime.remove_sandbox(run.sandbox)
        del self.runs[namespace, name]

    async def _unprepare_patiently(self, info: ClaimInfo, tries: int) -> None:
        claim: JsonObject = {"metadata": {"namespace": info.namespace, "name": info.name, "uid": info.uid}}
        for attempt in range(tries):
            try:
                await self.unprepare(claim)
            except KubeletFault:
                if attempt + 1 == tries:
                    raise
                await asyncio.sleep(self.settings.unprepare_retry_s)
            else:
                return

    async def _prepare_pod(self, pod: JsonObject) -> None:
        namespace, uid = text(pod, "metadata", "namespace"), text(pod, "metadata", "uid")
        claims = []
        for name in claim_names(pod).values():
            claim = self._cluster.store.get(Key(kind=CLAIMS, namespace=namespace, name=name))
            users = [text(user, "uid") for user in nodes(claim, "status", "reservedFor")]
            if uid not in users:
                raise KubeletFault(f"prepare dynamic resources: pod {uid} is not allowed to use resourceclaim {name}")
            known = [info for info in self.checkpoint.values() if (info.namespace, info.name) == (namespace, name)]
            if any(info.uid != text(claim, "metadata", "uid") for info in known):
                raise KubeletFault(f"prepare dynamic resources: claim {name} was replaced while it is in use")
            claims.append(claim)
        await self.prepare(claims)
        for claim in claims:
            self._info(claim).pods.add(uid)

    def _sandbox_config(self, pod: JsonObject) -> SandboxConfig:
        spec = node(pod, "spec")
        qos, uid = qos_class(spec), text(pod, "metadata", "uid")
        annotations = node(pod, "metadata", "annotations")
        return SandboxConfig(
            uid=uid,
            namespace=text(pod, "metadata", "namespace"),
            name=text(pod, "metadata", "name"),
            cgroup_parent=cgroup_parent(uid, qos, self.settings.cgroup_driver, root=self.settings.cgroup_root),
            figures=pod_figures(spec, qos),
            handler=text(spec, "runtimeClassName"),
            annotations=tuple((key, value) for key, value in annotations.items() if isinstance(value, str)),
        )

    def _container_config(self, run: PodRun, name: str) -> ContainerConfig:
        container = _container_of(run.pod, name)
        attempt = run.attempts.get(name, 0)
        run.attempts[name] = attempt + 1
        return ContainerConfig(
            name=name,
            figures=figures(container, qos_class(node(run.pod, "spec")), node(run.pod, "spec")),
            env=tuple(f"{text(one, 'name')}={text(one, 'value')}" for one in nodes(container, "env")),
            cdi=tuple(self._cdi_ids(run.pod, container)),
            attempt=attempt,
        )

    def _cdi_ids(self, pod: JsonObject, container: JsonObject) -> Iterable[str]:
        names = claim_names(pod)
        for use in claim_uses(container):
            place = text(pod, "metadata", "namespace"), names.get(use.name, "")
            for info in self.checkpoint.values():
                if (info.namespace, info.name) == place:
                    yield from info.cdi_ids(use.request)

    def _set_phase(self, pod: JsonObject, phase: str) -> None:
        namespace, name = _pod_key(pod)
        key = Key(kind=PODS, namespace=namespace, name=name)
        stored = self._cluster.store.get(key)
        self._cluster.update(key, stored | {"status": node(stored, "status") | {"phase": phase}}, status=True)


def claim_drivers(claim: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the drivers in a claim's allocation. Raises KubeletFault if it has none."""
    results = nodes(claim, "status", "allocation", "devices", "results")
    if not results:
        raise KubeletFault(f"prepare dynamic resources: claim {text(claim, 'metadata', 'name')} is not allocated")
    return tuple(dict.fromkeys(text(result, "driver") for result in results))


def _claim_message(claim: Mapping[str, Json]) -> dra_pb2.Claim:
    metadata = node(claim, "metadata")
    return dra_pb2.Claim(namespace=text(metadata, "namespace"), uid=text(metadata, "uid"), name=text(metadata, "name"))


def _container_of(pod: JsonObject, name: str) -> JsonObject:
    for container in nodes(pod, "spec", "initContainers") + nodes(pod, "spec", "containers"):
        if text(container, "name") == name:
            return container
    raise KeyError(name)


def _pod_key(pod: JsonObject) -> tuple[str, str]:
    return text(pod, "metadata", "namespace"), text(pod, "metadata", "name")
