"""NRI's messages to and from the plain values of ``policy`` (pure; protobuf types stop here and in ``plugin``).

Where a runtime writes 0 for a number it has nothing to say about, the value becomes None.
Source: api.proto; interfaces.md 1.9, 1.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from nodecpu.cpuset import NO_CPUS, NO_NODES, CpuSet, NodeSet
from nodecpu.errors import LocalProtocolError
from nodecpu.ids import ContainerID, PodUID, SandboxID
from nodecpu.policy.facts import Container, ContainerState, DeviceNode, Resources, Sandbox
from nodecpu.policy.plan import Creation, Placement, Update
from nodecpu.policy.scheduling import IoClass, SchedulingClass, SchedulingPolicy
from nodecpu.proto import nri_pb2, nri_read_pb2

CLAIM_PREFIX: Final = "DRA_CPUSET_"
"""Only variables that begin so can name a claim. Source: semantics.md C11."""

CLAIM_MARK: Final = CLAIM_PREFIX.encode()
"""A message without these bytes has no such variable: cheaper to look for than to go through the environment."""

MIN_SHARES: Final = 2
MAX_SHARES: Final = 262144
"""The kernel's range of CPU shares. Source: kernel/sched/sched.h, MIN_SHARES and MAX_SHARES."""

_POLICIES: Final = {
    SchedulingPolicy.OTHER: nri_pb2.SCHED_OTHER,
    SchedulingPolicy.FIFO: nri_pb2.SCHED_FIFO,
    SchedulingPolicy.RR: nri_pb2.SCHED_RR,
    SchedulingPolicy.BATCH: nri_pb2.SCHED_BATCH,
    SchedulingPolicy.IDLE: nri_pb2.SCHED_IDLE,
    SchedulingPolicy.DEADLINE: nri_pb2.SCHED_DEADLINE,
}
_FLAGS: Final = {
    "reset-on-fork": nri_pb2.SCHED_FLAG_RESET_ON_FORK,
    "reclaim": nri_pb2.SCHED_FLAG_RECLAIM,
    "dl-overrun": nri_pb2.SCHED_FLAG_DL_OVERRUN,
    "keep-policy": nri_pb2.SCHED_FLAG_KEEP_POLICY,
    "keep-params": nri_pb2.SCHED_FLAG_KEEP_PARAMS,
    "util-clamp-min": nri_pb2.SCHED_FLAG_UTIL_CLAMP_MIN,
    "util-clamp-max": nri_pb2.SCHED_FLAG_UTIL_CLAMP_MAX,
}
_IO_CLASSES: Final = {
    IoClass.REALTIME: nri_pb2.IOPRIO_CLASS_RT,
    IoClass.BEST_EFFORT: nri_pb2.IOPRIO_CLASS_BE,
    IoClass.IDLE: nri_pb2.IOPRIO_CLASS_IDLE,
}
"""Scheduling classes as NRI has them. Source: api.proto, LinuxSchedulerPolicy, LinuxSchedulerFlag, IOPrioClass."""

_MOUNT_OPTIONS: Final = ("bind", "ro", "nosuid", "nodev", "noexec", "rprivate")

_RUNTIMES_OWN: Final = "io.kubernetes."
"""Runtimes add annotations of their own to those of a pod, by the dozen. Nothing in them asks for CPUs, and they are
most of what a sandbox takes in memory. Source: containerd pkg/cri/annotations, CRI-O pkg/annotations.
"""

Entry_co = TypeVar("Entry_co", covariant=True)


class RepeatedComposite(Protocol[Entry_co]):
    """A repeated message field, as far as it is used here."""

    def add(self) -> Entry_co:
        """Append an empty message and return it."""


_NO_ENV: Final[Mapping[str, str]] = MappingProxyType({})
_STATES: Final = tuple(ContainerState)


def sandbox(pod: nri_read_pb2.Pod) -> Sandbox:
    """Return the pod sandbox as a plain value."""
    return Sandbox(
        id=SandboxID(pod.id),
        uid=PodUID(pod.uid),
        namespace=pod.namespace,
        name=pod.name,
        runtime_handler=pod.runtime_handler,
        cgroup_parent=pod.linux.cgroup_parent,
        annotations={name: pod.annotations[name] for name in pod.annotations if not name.startswith(_RUNTIMES_OWN)},
    )


def container(message: nri_read_pb2.Container, *, claims: bool) -> Container:
    """Return the container as a plain value; ``claims`` False: the environment is known to name no claim."""
    linux = message.linux
    resources = linux.resources
    cpu = resources.cpu
    devices = message.CDI_devices
    return Container(
        id=ContainerID(message.id),
        sandbox_id=SandboxID(message.pod_sandbox_id),
        name=message.name,
        state=_state(message.state),
        claim_env=_claim_env(message.env) if claims else _NO_ENV,
        cdi_devices=tuple([device.name for device in devices]) if devices else (),
        devices=_devices(linux.devices) if linux.devices else (),
        mounts=tuple([mount.source for mount in message.mounts]),
        cpus=_cpus(cpu.cpus),
        mems=_mems(cpu.mems),
        shares=cpu.shares.value or None,
        quota_us=cpu.quota.value or None,
        period_us=cpu.period.value or None,
        memory_limit_bytes=resources.memory.limit.value or None,
        cgroups_path=linux.cgroups_path,
    )


def resources(message: nri_read_pb2.Resources) -> Resources:
    """Return what an in-place update asks for. A number of 0 is "unchanged" [seen on all runtimes recorded]."""
    cpu = message.cpu
    return Resources(
        shares=cpu.shares.value or None,
        quota_us=cpu.quota.value or None,
        period_us=cpu.period.value or None,
        memory_limit_bytes=message.memory.limit.value or None,
        cpus=_cpus(cpu.cpus),
        mems=_mems(cpu.mems),
    )


def _state(number: int) -> ContainerState:
    return _STATES[number] if 0 <= number < len(_STATES) else ContainerState.UNKNOWN


def _devices(found: Iterable[nri_read_pb2.LinuxDevice]) -> tuple[DeviceNode, ...]:
    return tuple([DeviceNode(path=one.path, kind=one.type, major=one.major, minor=one.minor) for one in found])


def _claim_env(env: Iterable[str]) -> Mapping[str, str]:
    found = [entry.partition("=") for entry in env if entry.startswith(CLAIM_PREFIX)]
    return {name: value for name, _, value in found} if found else _NO_ENV


# A list that does not parse (another plugin may use the kernel's stride form) counts as none: it is only what the
# runtime believes, the cgroup tells what is, and one odd container must not keep a node from being synchronised.
def _cpus(text: str) -> CpuSet:
    if not text:
        return NO_CPUS
    try:
        return CpuSet.parse(text)
    except ValueError:
        return NO_CPUS


def _mems(text: str) -> NodeSet:
    if not text:
        return NO_NODES
    try:
        return NodeSet.parse(text)
    except ValueError:
        return NO_NODES


def creation_reply(creation: Creation, created: ContainerID) -> bytes:
    """Return the CreateContainerResponse, serialized. Raises LocalProtocolError for what a runtime would misread."""
    reply = nri_pb2.CreateContainerResponse()
    if creation.placement is not None:
        _fill(reply.adjust.linux.resources.cpu, creation.placement)
    if creation.scheduling is not None:
        _schedule(reply.adjust.linux, creation.scheduling)
    if creation.mount is not None:
        mount = reply.adjust.mounts.add()
        mount.source, mount.destination, mount.type = creation.mount.source, creation.mount.destination, "bind"
        mount.options.extend(_MOUNT_OPTIONS)
    if creation.updates:
        if created in {update.container_id for update in creation.updates}:
            # It does not exist yet: the runtime would fail the creation.
            raise LocalProtocolError(f"container {created} is updated in the reply that creates it")
        _add(reply.update, creation.updates)
    return reply.SerializeToString()


def _schedule(linux: nri_pb2.LinuxContainerAdjustment, wanted: SchedulingClass) -> None:
    if wanted.policy is not None:
        linux.scheduler.policy = _POLICIES[wanted.policy]
        linux.scheduler.priority = wanted.priority
        linux.scheduler.nice = wanted.nice
        linux.scheduler.runtime = wanted.runtime_ns
        linux.scheduler.deadline = wanted.deadline_ns
        linux.scheduler.period = wanted.period_ns
        linux.scheduler.flags.extend(_FLAGS[flag] for flag in wanted.flags)
    if wanted.io_class is not None:
        setattr(linux.io_priority, "class", _IO_CLASSES[wanted.io_class])  # a keyword in Python
        linux.io_priority.priority = wanted.io_priority


def update_reply(updates: Sequence[Update], updated: ContainerID) -> bytes:
    """Return the UpdateContainerResponse, serialized; the entry of ``updated`` is merged over what was asked for."""
    reply = nri_pb2.UpdateContainerResponse()
    _add(reply.update, updates, strict=updated)
    return reply.SerializeToString()


def stop_reply(updates: Sequence[Update]) -> bytes:
    """Return the StopContainerResponse, serialized."""
    reply = nri_pb2.StopContainerResponse()
    _add(reply.update, updates)
    return reply.SerializeToString()


def synchronize_reply(updates: Sequence[Update]) -> bytes:
    """Return the SynchronizeResponse to the last message, serialized."""
    reply = nri_pb2.SynchronizeResponse()
    _add(reply.update, updates)
    return reply.SerializeToString()


def update_request(update: Update) -> bytes:
    """Return the UpdateContainersRequest for one container, serialized.

    One only: a runtime that fails an entry loses the list of those that failed on the wire (interfaces.md 1.10).
    """
    request = nri_pb2.UpdateContainersRequest()
    _add(request.update, (update,), strict=update.container_id)
    return request.SerializeToString()


def _add(
    entries: RepeatedComposite[nri_pb2.ContainerUpdate],
    updates: Sequence[Update],
    *,
    strict: ContainerID | None = None,
) -> None:
    """Add the updates to a reply.

    All but the one of ``strict`` say ignore_failure. The others belong to a request about another container, and
    CRI-O fails that request (and closes the plugin during Synchronize) if one of them has gone meanwhile or another
    plugin has touched it: an innocent pod would pay. Nothing is lost, since what was sent counts only once its cgroup
    was read back (R7). The container that the request is about is the exception: better no resize than one without
    our cpuset.
    """
    encoded: dict[tuple[int | None, ...], bytes] = {}  # most move to the same CPUs: all but the id is encoded once
    for update in updates:
        placement = update.placement
        key = (
            placement.cpus.mask,
            placement.mems.mask,
            placement.shares,
            placement.quota_us,
            placement.period_us,
        )
        alike = encoded.get(key)
        if alike is None:
            linux = nri_pb2.LinuxContainerUpdate()
            _fill(linux.resources.cpu, placement)
            alike = encoded[key] = nri_pb2.ContainerUpdate(linux=linux).SerializeToString()
        entry = entries.add()
        entry.MergeFromString(alike)
        entry.container_id = update.container_id
        entry.ignore_failure = update.container_id != strict


def _fill(cpu: nri_pb2.LinuxCPU, placement: Placement) -> None:
    if not placement.cpus:
        raise LocalProtocolError("an empty cpuset would tell the runtime to leave the container where it is")
    cpu.cpus = str(placement.cpus)
    if placement.mems:
        cpu.mems = str(placement.mems)
    if placement.shares is not None:
        if not MIN_SHARES <= placement.shares <= MAX_SHARES:
            raise LocalProtocolError(f"CPU shares {placement.shares} are not within {MIN_SHARES}-{MAX_SHARES}")
        cpu.shares.value = placement.shares
    if placement.quota_us is not None:
        cpu.quota.value = placement.quota_us
    if placement.period_us is not None:
        cpu.period.value = placement.period_us
