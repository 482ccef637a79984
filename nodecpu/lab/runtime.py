"""A container runtime as far as NRI plugins, CDI and cpusets go (asyncio); a kubelet's CRI calls are methods.

The order of events, what they carry and what errors do follow the flavour. Containers outlive a restart of the
runtime. A process ends apart from the event that tells of it, so that the event can be late.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nodecpu.lab.adjusting import Merge, PluginConflict, fields_set, with_edits
from nodecpu.lab.cdi import CdiError, inject, read_specs
from nodecpu.lab.cgroups import CgroupError, Cgroups, directory
from nodecpu.lab.containers import (
    ContainerConfig,
    ContainerRecord,
    SandboxConfig,
    SandboxRecord,
    apply_resources,
    cgroups_path,
    container_message,
    pod_message,
)
from nodecpu.lab.pluginhost import PluginHost, RuntimeSettings, Subject
from nodecpu.lab.pluginlink import PluginGone
from nodecpu.lab.trace import Trace
from nodecpu.nri.ttrpc import CallError, Code
from nodecpu.proto import nri_pb2

_ALIVE: Final = (nri_pb2.CONTAINER_CREATED, nri_pb2.CONTAINER_RUNNING)


class RuntimeFault(Exception):
    """A CRI call failed; the text is what the kubelet puts into the pod's event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resources:
    cpus: str
    mems: str
    shares: int
    quota_us: int | None
    period_us: int
    memory_bytes: int | None

    @classmethod
    def of(cls, record: ContainerRecord) -> _Resources:
        return cls(
            cpus=record.cpus,
            mems=record.mems,
            shares=record.shares,
            quota_us=record.quota_us,
            period_us=record.period_us,
            memory_bytes=record.memory_bytes,
        )

    def restore(self, record: ContainerRecord) -> None:
        record.cpus, record.mems, record.shares = self.cpus, self.mems, self.shares
        record.quota_us, record.period_us, record.memory_bytes = self.quota_us, self.period_us, self.memory_bytes


class Runtime:
    """The runtime; ``start`` and ``stop`` may alternate."""

    def __init__(self, settings: RuntimeSettings, cgroups: Cgroups, trace: Trace) -> None:
        self.settings = settings
        self.sandboxes: dict[str, SandboxRecord] = {}
        self.containers: dict[str, ContainerRecord] = {}
        self.plugins = PluginHost(settings, self, trace)
        self._flavour = settings.flavour
        self._cgroups = cgroups
        self._pid = 4000

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start the process: the socket is made anew, containers that run are known."""
        for sandbox in self.sandboxes.values():
            sandbox.old = self._flavour.forgets_old_sandboxes
        await self.plugins.start(tasks)

    async def stop(self) -> None:
        """End as on SIGTERM: connections close, the socket's file stays behind, containers run on."""
        await self.plugins.stop()

    def listed(self) -> tuple[Sequence[nri_pb2.PodSandbox], Sequence[nri_pb2.Container]]:
        """Return what Synchronize shows: all sandboxes, and the containers created or running."""
        pods = [self._pod(sandbox) for sandbox in self.sandboxes.values()]
        alive = [record for record in self.containers.values() if record.state in _ALIVE]
        return pods, [container_message(record, self._flavour) for record in alive]

    def apply(self, updates: Iterable[nri_pb2.ContainerUpdate], *, strict: bool) -> None:
        """Apply plugins' updates: unknown and ended containers are skipped without a word, failed ones keep the old."""
        failed: CgroupError | None = None
        for update in updates:
            record = self.containers.get(update.container_id)
            if record is None or record.state not in _ALIVE:
                continue
            if not fields_set(update.linux.resources):
                self.plugins.faults.append(f"update of {record.label} says nothing: an empty cpuset changes nothing")
            before = _Resources.of(record)
            apply_resources(record, update.linux.resources)
            try:
                self._write(record)
            except CgroupError as error:
                before.restore(record)
                failed = failed if update.ignore_failure else error
        if strict and failed is not None:
            raise failed

    def _fault(self, during: str, error: Exception) -> RuntimeFault:
        """Return a failure in the runtime's words."""
        if not self._flavour.wraps_errors:
            return RuntimeFault(error.message if isinstance(error, CallError) else str(error))
        if isinstance(error, CallError):
            return RuntimeFault(f"{during}: rpc error: code = Unknown desc = {error.message}")
        return RuntimeFault(f"{during}: {error}")

    async def run_sandbox(self, config: SandboxConfig) -> SandboxRecord:
        """Return the sandbox made; its process exists when plugins are told. Raises RuntimeFault."""
        self._pid += 1
        sandbox = SandboxRecord(id=secrets.token_hex(32), config=config, pid=self._pid)
        async with self.plugins.lifecycle:
            self.sandboxes[sandbox.id] = sandbox
            self._cgroups.create(self._sandbox_directory(sandbox))
            # The kubelet's doing, before it has the sandbox made.
            self._cgroups.write_quota(config.cgroup_parent, config.figures.quota_us or 0, config.figures.period_us)
            try:
                await self.plugins.tell(nri_pb2.RUN_POD_SANDBOX, self._about_pod(sandbox))
            except CallError as error:
                if self._flavour.own_rpcs:
                    await self._remove_sandbox(sandbox, stop=True)
                    raise self._fault("NRI RunPodSandbox failed", error) from error
        return sandbox

    async def create_container(self, sandbox: SandboxRecord, config: ContainerConfig) -> ContainerRecord:
        """Return the container made, adjusted by plugins. Raises RuntimeFault."""
        async with self.plugins.lifecycle:
            try:
                edits = inject(read_specs(self.settings.cdi_directory), config.cdi)
            except CdiError as error:
                raise self._fault("failed to create containerd container", error) from error
            record = self._new_record(sandbox, config, edits.env)
            try:
                merge = await self._ask(record)
                self.apply(merge.updates.values(), strict=self._flavour.strict_updates)
            except (CallError, PluginConflict, CgroupError) as error:
                if self._flavour.buries_refused:
                    await self._remove(record)
                during = "failed to create containerd container: failed to get NRI adjustment for container"
                raise self._fault(during, error) from error
            if not config.runnable and self._flavour.cgroup_at_create:
                raise RuntimeFault("container create failed: exec: no such file or directory")
            apply_resources(record, merge.adjusted)
            record.env = with_edits(record.env, merge.env)
            record.annotations.update({key: value for key, value in merge.annotations.items() if value is not None})
            record.state, record.created_ns = nri_pb2.CONTAINER_CREATED, time.time_ns()
            self.containers[record.id] = record
            if self._flavour.cgroup_at_create:
                self._make_cgroup(record)
            await self.plugins.tell_quietly(nri_pb2.POST_CREATE_CONTAINER, self._about(record))
        return record

    async def start_container(self, record: ContainerRecord) -> None:
        """Start a container; its cgroup has its cpuset before its command runs. Raises RuntimeFault."""
        if not record.config.runnable:
            raise RuntimeFault("failed to create containerd task: exec: no such file or directory")
        async with self.plugins.lifecycle:
            if not self._flavour.cgroup_at_create:
                self._make_cgroup(record)
            try:
                await self.plugins.tell(nri_pb2.START_CONTAINER, self._about(record))
            except CallError as error:
                if self._flavour.start_can_fail:
                    self.end_process(record, exit_code=137)
                    await self._tell_stop(record)
                    raise self._fault("NRI container start failed", error) from error
            about = self._about(record)
            record.state = nri_pb2.CONTAINER_RUNNING
            record.started_ns = time.time_ns()
            if self._flavour.tells_start:
                about = self._about(record)
            await self.plugins.tell_quietly(nri_pb2.POST_START_CONTAINER, about)

    async def update_container(self, record: ContainerRecord, wanted: nri_pb2.LinuxResources) -> None:
        """Change a container's resources as an in-place resize does; plugins' own figures win. Raises RuntimeFault."""
        async with self.plugins.lifecycle:
            merge = Merge(record.id)
            try:
                for plugin in self.plugins.subscribed(nri_pb2.UPDATE_CONTAINER):
                    request = nri_pb2.UpdateContainerRequest(
                        pod=self._pod(record.sandbox),
                        container=container_message(record, self._flavour),
                        linux_resources=wanted,
                    )
                    reply = nri_pb2.UpdateContainerResponse
                    with suppress(PluginGone):
                        answer = await self.plugins.call(plugin, "UpdateContainer", request, reply, record.label)
                        merge.update(plugin.label, answer.update, creating=False)
                own = merge.updates.pop(record.id, None)
                self.apply(merge.updates.values(), strict=self._flavour.strict_updates)
            except (CallError, PluginConflict, CgroupError) as error:
                raise RuntimeFault(f"NRI container update failed: {error}") from error
            apply_resources(record, wanted)
            if own is not None:
                apply_resources(record, own.linux.resources)
            self._write(record)
            await self.plugins.tell_quietly(nri_pb2.POST_UPDATE_CONTAINER, self._about(record))

    async def stop_container(self, record: ContainerRecord) -> None:
        """Stop a container: its process ends, then plugins are told; nothing if it had ended and been told before."""
        self.end_process(record, exit_code=0)
        await self.tell_stopped(record)

    def end_process(self, record: ContainerRecord, *, exit_code: int) -> None:
        """Let a container's process end; plugins are told by ``tell_stopped``."""
        if record.state in _ALIVE:
            self._cgroups.kill(record.directory)
        if record.started_ns and record.state in _ALIVE:
            record.finished_ns, record.exit_code = time.time_ns(), exit_code
            record.state = nri_pb2.CONTAINER_STOPPED

    async def tell_stopped(self, record: ContainerRecord) -> None:
        """Tell plugins, once, that a container has stopped; their updates for others are applied."""
        async with self.plugins.lifecycle:
            await self._tell_stop(record)

    async def remove_container(self, record: ContainerRecord) -> None:
        """Remove a container; plugins that were not told of its end are told first."""
        self.end_process(record, exit_code=137)
        async with self.plugins.lifecycle:
            await self._remove(record)

    async def stop_sandbox(self, sandbox: SandboxRecord) -> None:
        """Stop a sandbox and the containers that still run in it."""
        for record in self.containers_of(sandbox):
            never_started = record.state == nri_pb2.CONTAINER_CREATED and self._flavour.cgroup_at_create
            if record.state == nri_pb2.CONTAINER_RUNNING or never_started:
                await self.stop_container(record)
        async with self.plugins.lifecycle:
            sandbox.ready = False
            self._cgroups.kill(self._sandbox_directory(sandbox))
            if not sandbox.old:
                await self.plugins.tell_quietly(nri_pb2.STOP_POD_SANDBOX, self._about_pod(sandbox))

    async def remove_sandbox(self, sandbox: SandboxRecord) -> None:
        """Remove a sandbox with all its containers."""
        async with self.plugins.lifecycle:
            for record in self.containers_of(sandbox):
                self.end_process(record, exit_code=137)
                await self._remove(record)
            await self._remove_sandbox(sandbox, stop=False)

    def containers_of(self, sandbox: SandboxRecord) -> tuple[ContainerRecord, ...]:
        """Return a sandbox's containers, oldest first."""
        return tuple(record for record in self.containers.values() if record.sandbox is sandbox)

    def _new_record(self, sandbox: SandboxRecord, config: ContainerConfig, env: Sequence[str]) -> ContainerRecord:
        container_id = secrets.token_hex(32)
        parent, prefix = sandbox.config.cgroup_parent, self._flavour.cgroup_prefix
        return ContainerRecord(
            id=container_id,
            sandbox=sandbox,
            config=config,
            cgroups_path=cgroups_path(parent, container_id, prefix, self.settings.cgroup_driver),
            env=["PATH=/bin", "HOSTNAME=lab", *config.env, *env],
            shares=config.figures.shares,
            quota_us=config.figures.quota_us,
            period_us=config.figures.period_us,
            memory_bytes=config.figures.memory_bytes,
        )

    async def _ask(self, record: ContainerRecord) -> Merge:
        merge = Merge(record.id)
        for plugin in self.plugins.subscribed(nri_pb2.CREATE_CONTAINER):
            request = nri_pb2.CreateContainerRequest(
                pod=self._pod(record.sandbox), container=container_message(record, self._flavour)
            )
            request.container.linux.resources.MergeFrom(merge.adjusted)
            reply = nri_pb2.CreateContainerResponse
            try:
                answer = await self.plugins.call(plugin, "CreateContainer", request, reply, record.label)
            except PluginGone:
                if plugin.wants(nri_pb2.VALIDATE_CONTAINER_ADJUSTMENT):
                    raise CallError(Code.UNKNOWN, f"validator plugin {plugin.name!r} failed: ttrpc: closed") from None
                continue  # fail open: the container goes on as if the plugin had nothing to say
            merge.adjust(plugin.label, answer.adjust)
            merge.update(plugin.label, answer.update, creating=True)
        await self._validate(record, merge)
        return merge

    async def _validate(self, record: ContainerRecord, merge: Merge) -> None:
        for plugin in self.plugins.subscribed(nri_pb2.VALIDATE_CONTAINER_ADJUSTMENT):
            linux = nri_pb2.LinuxContainerAdjustment(resources=merge.adjusted)
            request = nri_pb2.ValidateContainerAdjustmentRequest(
                pod=self._pod(record.sandbox),
                container=container_message(record, self._flavour),
                adjust=nri_pb2.ContainerAdjustment(linux=linux),
                update=merge.updates.values(),
                plugins=[nri_pb2.PluginInstance(name=one.name, index=one.index) for one in self.plugins.plugins],
            )
            reply = nri_pb2.ValidateContainerAdjustmentResponse
            try:
                answer = await self.plugins.call(plugin, "ValidateContainerAdjustment", request, reply, record.label)
            except PluginGone as error:
                raise CallError(Code.UNKNOWN, f"validator plugin {plugin.name!r} failed: ttrpc: closed") from error
            if answer.reject:
                raise CallError(Code.UNKNOWN, f"validator plugin {plugin.name!r} rejected: {answer.reason}")

    def _make_cgroup(self, record: ContainerRecord) -> None:
        try:
            record.pid = self._cgroups.create(record.directory, record.cpus, record.mems)
        except CgroupError as error:
            self._cgroups.kill(record.directory)
            raise RuntimeFault(f"OCI runtime create failed: {error}") from error
        self._cgroups.write_quota(record.directory, record.quota_us or 0, record.period_us)

    def _write(self, record: ContainerRecord) -> None:
        if record.pid:  # else only the stored spec changes
            self._cgroups.write_cpuset(record.directory, record.cpus, record.mems)
            self._cgroups.write_quota(record.directory, record.quota_us or 0, record.period_us)

    async def _tell_stop(self, record: ContainerRecord) -> None:
        if record.stop_told:
            return
        record.stop_told = True
        container = container_message(record, self._flavour)
        if record.state == nri_pb2.CONTAINER_STOPPED and not self._flavour.tells_end:
            container.state = nri_pb2.CONTAINER_RUNNING
        for plugin in self.plugins.subscribed(nri_pb2.STOP_CONTAINER):
            request = nri_pb2.StopContainerRequest(pod=self._pod(record.sandbox), container=container)
            reply = nri_pb2.StopContainerResponse
            with suppress(PluginGone, CallError):
                answer = await self.plugins.call(plugin, "StopContainer", request, reply, record.label)
                self.apply(answer.update, strict=False)

    async def _remove(self, record: ContainerRecord) -> None:
        await self._tell_stop(record)
        if not self._flavour.keeps_pid:
            record.pid = 0
        if record.started_ns:
            record.state = self._flavour.removed_state
        await self.plugins.tell_quietly(nri_pb2.REMOVE_CONTAINER, self._about(record))
        self.containers.pop(record.id, None)

    async def _remove_sandbox(self, sandbox: SandboxRecord, *, stop: bool) -> None:
        for event in (nri_pb2.STOP_POD_SANDBOX,) * stop + (nri_pb2.REMOVE_POD_SANDBOX,):
            about = self._about_pod(sandbox)
            if event == nri_pb2.REMOVE_POD_SANDBOX and not self._flavour.keeps_pod_cgroup:
                about.pod.linux.ClearField("cgroups_path")
                about.pod.linux.ClearField("resources")
            if not sandbox.old:
                await self.plugins.tell_quietly(event, about)
        sandbox.ready = False
        self._cgroups.kill(sandbox.config.cgroup_parent)
        self.sandboxes.pop(sandbox.id, None)

    def _sandbox_directory(self, sandbox: SandboxRecord) -> str:
        parent, prefix = sandbox.config.cgroup_parent, self._flavour.cgroup_prefix
        return directory(cgroups_path(parent, sandbox.id, prefix, self.settings.cgroup_driver))

    def _pod(self, sandbox: SandboxRecord) -> nri_pb2.PodSandbox:
        return pod_message(sandbox, self._flavour, self.settings.cgroup_driver)

    def _about_pod(self, sandbox: SandboxRecord) -> Subject:
        return Subject(note=sandbox.config.name, pod=self._pod(sandbox))

    def _about(self, record: ContainerRecord) -> Subject:
        container = container_message(record, self._flavour)
        return Subject(note=record.label, pod=self._pod(record.sandbox), container=container)
