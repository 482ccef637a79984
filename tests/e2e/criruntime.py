"""A real runtime as the lab's kubelet sees one: its calls are the CRI's, and what it asked for is remembered.

Runs inside the virtual machine, on the installed package's own modules and ours.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import grpc

from nodecpu.lab.containers import ContainerConfig, ContainerRecord, SandboxConfig, SandboxRecord, cgroups_path
from nodecpu.lab.podspec import CgroupDriver
from nodecpu.lab.runtime import RuntimeFault
from nodecpu.proto import nri_pb2
from tests.containerd import cri_pb2
from tests.containerd.cri import Container, Cri, Pod, RunningPod

PREFIX = "cri-containerd"
ATTEMPTS_OF_A_LIFE = 1000

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


class CriRuntime:
    """The runtime; ``life`` counts the kubelet's: what is left of an earlier one, or of a failed call, has its name."""

    def __init__(self, cri: Cri, *, life: int) -> None:
        self._cri = cri
        self._attempts = itertools.count(life * ATTEMPTS_OF_A_LIFE)
        self._pods: dict[str, RunningPod] = {}
        self._containers: dict[str, ContainerRecord] = {}

    async def run_sandbox(self, config: SandboxConfig) -> SandboxRecord:
        pod = Pod(
            name=config.name,
            uid=config.uid,
            namespace=config.namespace,
            parent=config.cgroup_parent,
            attempt=next(self._attempts),
        )
        running = await _call(self._cri.run_pod, pod)
        self._pods[running.sandbox_id] = running
        return SandboxRecord(id=running.sandbox_id, config=config, pid=0)

    async def create_container(self, sandbox: SandboxRecord, config: ContainerConfig) -> ContainerRecord:
        figures = config.figures
        container = Container(
            name=config.name,
            cdi=config.cdi,
            environment=tuple((key, value) for key, _, value in (pair.partition("=") for pair in config.env)),
            shares=figures.shares,
            quota_us=figures.quota_us or 0,
            attempt=next(self._attempts),
        )
        container_id = await _call(self._cri.create_container, self._pods[sandbox.id], container)
        record = ContainerRecord(
            id=container_id,
            sandbox=sandbox,
            config=config,
            cgroups_path=cgroups_path(sandbox.config.cgroup_parent, container_id, PREFIX, CgroupDriver.SYSTEMD),
            env=list(config.env),
            state=nri_pb2.CONTAINER_CREATED,
            shares=figures.shares,
            quota_us=figures.quota_us,
            period_us=figures.period_us,
            memory_bytes=figures.memory_bytes,
        )
        self._containers[container_id] = record
        return record

    async def start_container(self, record: ContainerRecord) -> None:
        await _call(self._cri.start_container, record.id)
        record.state = nri_pb2.CONTAINER_RUNNING

    async def update_container(self, record: ContainerRecord, wanted: nri_pb2.LinuxResources) -> None:
        cpu = wanted.cpu
        resources = cri_pb2.LinuxContainerResources(
            cpu_shares=cpu.shares.value, cpu_quota=cpu.quota.value, cpu_period=cpu.period.value
        )
        await _call(self._cri.update_container, record.id, resources)

    async def stop_container(self, record: ContainerRecord) -> None:
        await _call(self._cri.stop_container, record.id)
        record.state = nri_pb2.CONTAINER_STOPPED

    def end_process(self, record: ContainerRecord, *, exit_code: int) -> None:
        """Leave it to ``tell_stopped``: what runs here sleeps and ends when it is stopped, not by itself."""

    async def tell_stopped(self, record: ContainerRecord) -> None:
        await self.stop_container(record)

    async def remove_container(self, record: ContainerRecord) -> None:
        await _call(self._cri.remove_container, record.id)
        self._containers.pop(record.id, None)

    async def stop_sandbox(self, sandbox: SandboxRecord) -> None:
        await _call(self._cri.stop_pod, self._pods[sandbox.id])

    async def remove_sandbox(self, sandbox: SandboxRecord) -> None:
        await _call(self._cri.remove_pod, self._pods.pop(sandbox.id))
        for record in self.containers_of(sandbox):
            del self._containers[record.id]

    def containers_of(self, sandbox: SandboxRecord) -> tuple[ContainerRecord, ...]:
        return tuple(record for record in self._containers.values() if record.sandbox is sandbox)


async def _call(method: Callable[_Given, _Answer], *given: _Given.args, **named: _Given.kwargs) -> _Answer:
    """Return what a call of the CRI gives, while everything else goes on. Raises RuntimeFault."""
    try:
        return await asyncio.to_thread(method, *given, **named)
    except grpc.RpcError as error:
        raise RuntimeFault(str(error)) from error
