"""What the played runtime knows about its sandboxes and containers, and how it tells NRI plugins.

A record changes only in ``runtime``; messages are built anew for every event and show what plugins adjusted before.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from nodecpu.lab.cgroups import directory
from nodecpu.lab.flavours import Flavour
from nodecpu.lab.podspec import CgroupDriver, Figures
from nodecpu.proto import nri_pb2

_IMAGE = "localhost/busybox:1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """What the kubelet asks of the runtime for a pod. ``handler`` is the runtime class's."""

    uid: str
    namespace: str
    name: str
    cgroup_parent: str
    figures: Figures
    handler: str = ""
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerConfig:
    """What the kubelet asks of the runtime for a container; ``runnable``: its command exists."""

    name: str
    figures: Figures
    env: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    attempt: int = 0
    runnable: bool = True


@dataclass(slots=True, kw_only=True)
class SandboxRecord:
    """A sandbox; ``old`` once the runtime was restarted after its making."""

    id: str
    config: SandboxConfig
    pid: int
    ready: bool = True
    old: bool = False


@dataclass(slots=True, kw_only=True)
class ContainerRecord:
    """A container with its resources as they are now; quota 0 and None both mean none."""

    id: str
    sandbox: SandboxRecord
    config: ContainerConfig
    cgroups_path: str
    env: list[str]
    annotations: dict[str, str] = field(default_factory=dict)
    state: nri_pb2.ContainerState.ValueType = nri_pb2.CONTAINER_UNKNOWN
    cpus: str = ""
    mems: str = ""
    shares: int
    quota_us: int | None
    period_us: int
    memory_bytes: int | None
    pid: int = 0
    created_ns: int = 0
    started_ns: int = 0
    finished_ns: int = 0
    exit_code: int = 0
    stop_told: bool = False
    applied: int = 0

    @property
    def directory(self) -> str:
        """Return the container's cgroup directory below the cgroup root."""
        return directory(self.cgroups_path)

    @property
    def label(self) -> str:
        """Return ``pod/container``, as scenarios name it."""
        return f"{self.sandbox.config.name}/{self.config.name}"


class PodRuntime(Protocol):
    """What a kubelet asks of a runtime: the played one, or a real one by its CRI. Every call raises RuntimeFault."""

    async def run_sandbox(self, config: SandboxConfig) -> SandboxRecord:
        """Return a pod's sandbox, made."""

    async def create_container(self, sandbox: SandboxRecord, config: ContainerConfig) -> ContainerRecord:
        """Return a container, made but not started."""

    async def start_container(self, record: ContainerRecord) -> None:
        """Start a container."""

    async def update_container(self, record: ContainerRecord, wanted: nri_pb2.LinuxResources) -> None:
        """Change a container's resources."""

    async def stop_container(self, record: ContainerRecord) -> None:
        """Stop a container; nothing if it has ended."""

    def end_process(self, record: ContainerRecord, *, exit_code: int) -> None:
        """Let a container's process end by itself."""

    async def tell_stopped(self, record: ContainerRecord) -> None:
        """Have everybody know that a container's process has ended."""

    async def remove_container(self, record: ContainerRecord) -> None:
        """Remove a container."""

    async def stop_sandbox(self, sandbox: SandboxRecord) -> None:
        """Stop a sandbox with what runs in it."""

    async def remove_sandbox(self, sandbox: SandboxRecord) -> None:
        """Remove a sandbox with what is in it."""

    def containers_of(self, sandbox: SandboxRecord) -> tuple[ContainerRecord, ...]:
        """Return a sandbox's containers, oldest first."""


def cgroups_path(parent: str, container_id: str, prefix: str, driver: CgroupDriver) -> str:
    """Return ``cgroups_path`` in the form of the cgroup driver."""
    if driver is CgroupDriver.SYSTEMD:
        return f"{parent.rsplit('/', 1)[-1]}:{prefix}:{container_id}"
    return f"{parent}/{container_id}"


def pod_message(sandbox: SandboxRecord, flavour: Flavour, driver: CgroupDriver) -> nri_pb2.PodSandbox:
    """Return a sandbox as the runtime tells it."""
    config = sandbox.config
    gone = not sandbox.ready
    return nri_pb2.PodSandbox(
        id=sandbox.id,
        name=config.name,
        uid=config.uid,
        namespace=config.namespace,
        labels={
            "io.kubernetes.pod.name": config.name,
            "io.kubernetes.pod.namespace": config.namespace,
            "io.kubernetes.pod.uid": config.uid,
        },
        annotations={
            "io.kubernetes.cri.container-type": "sandbox",
            "io.kubernetes.cri.sandbox-id": sandbox.id,
            "kubernetes.io/config.source": "api",
            **dict(config.annotations),
        },
        runtime_handler=config.handler,
        pid=sandbox.pid if flavour.shows_pod_pid and not gone else 0,
        linux=nri_pb2.LinuxPodSandbox(
            pod_overhead=_pod_resources(0, 0, 0),
            pod_resources=_pod_resources(config.figures.shares, config.figures.quota_us or 0, config.figures.period_us),
            cgroup_parent=config.cgroup_parent,
            cgroups_path=cgroups_path(config.cgroup_parent, sandbox.id, flavour.cgroup_prefix, driver),
            namespaces=[nri_pb2.LinuxNamespace(type=kind) for kind in ("pid", "ipc", "mount")],
            resources=nri_pb2.LinuxResources(
                cpu=nri_pb2.LinuxCPU(shares=nri_pb2.OptionalUInt64(value=2)),
                devices=[nri_pb2.LinuxDeviceCgroup(access="rwm")],
            ),
        ),
    )


def _pod_resources(shares: int, quota_us: int, period_us: int) -> nri_pb2.LinuxResources:
    return nri_pb2.LinuxResources(
        memory=nri_pb2.LinuxMemory(limit=nri_pb2.OptionalInt64()),
        cpu=nri_pb2.LinuxCPU(
            shares=nri_pb2.OptionalUInt64(value=shares),
            quota=nri_pb2.OptionalInt64(value=quota_us),
            period=nri_pb2.OptionalUInt64(value=period_us),
        ),
    )


def container_message(record: ContainerRecord, flavour: Flavour) -> nri_pb2.Container:
    """Return a container as the runtime tells it."""
    config = record.sandbox.config
    message = nri_pb2.Container(
        id=record.id,
        pod_sandbox_id=record.sandbox.id,
        name=record.config.name,
        state=record.state,
        labels={
            "io.kubernetes.container.name": record.config.name,
            "io.kubernetes.pod.name": config.name,
            "io.kubernetes.pod.namespace": config.namespace,
            "io.kubernetes.pod.uid": config.uid,
        },
        annotations={
            "io.kubernetes.container.restartCount": str(record.config.attempt),
            "io.kubernetes.cri.container-name": record.config.name,
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.image-name": _IMAGE,
            "io.kubernetes.cri.sandbox-id": record.sandbox.id,
            **record.annotations,
        },
        args=["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"],
        env=record.env,
        mounts=[nri_pb2.Mount(destination="/proc", type="proc", source="proc", options=["nosuid", "noexec", "nodev"])],
        hooks=nri_pb2.Hooks(),
        pid=record.pid,
        linux=nri_pb2.LinuxContainer(
            namespaces=[nri_pb2.LinuxNamespace(type=kind) for kind in ("pid", "ipc", "uts", "mount", "network")],
            resources=resources_message(record),
            oom_score_adj=nri_pb2.OptionalInt(value=record.config.figures.oom_score_adj),
            cgroups_path=record.cgroups_path,
        ),
    )
    if flavour.shows_cdi:
        message.CDI_devices.extend(nri_pb2.CDIDevice(name=name) for name in record.config.cdi)
    if flavour.shows_times:
        message.created_at = record.created_ns
        message.started_at = record.started_ns
        message.finished_at = record.finished_ns
        message.exit_code = record.exit_code
        message.user.additional_gids.append(0)
    if flavour.shows_image:
        message.image.name = _IMAGE
        message.image.digest = message.image.config_digest = "sha256:" + "0" * 64
    return message


def resources_message(record: ContainerRecord) -> nri_pb2.LinuxResources:
    """Return a container's resources as they are."""
    resources = nri_pb2.LinuxResources(
        memory=nri_pb2.LinuxMemory(),
        cpu=nri_pb2.LinuxCPU(
            shares=nri_pb2.OptionalUInt64(value=record.shares),
            period=nri_pb2.OptionalUInt64(value=record.period_us),
            cpus=record.cpus,
            mems=record.mems,
        ),
        devices=[nri_pb2.LinuxDeviceCgroup(access="rwm")],
    )
    if record.quota_us is not None:
        resources.cpu.quota.value = record.quota_us
    if record.memory_bytes is not None:
        resources.memory.limit.value = resources.memory.swap.value = record.memory_bytes
    return resources


def apply_resources(record: ContainerRecord, wanted: nri_pb2.LinuxResources) -> None:
    """Change a record's resources; what is absent, empty or (memory) zero stays. Source: NRI, "Clearing a cpuset"."""
    cpu = wanted.cpu
    record.cpus = cpu.cpus or record.cpus
    record.mems = cpu.mems or record.mems
    if cpu.HasField("shares"):
        record.shares = cpu.shares.value
    if cpu.HasField("quota"):
        record.quota_us = cpu.quota.value
    if cpu.HasField("period") and cpu.period.value:
        record.period_us = cpu.period.value
    if wanted.memory.limit.value:
        record.memory_bytes = wanted.memory.limit.value
