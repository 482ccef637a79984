"""What the outside tells us, as plain values (pure): pods by the API server, containers by the runtime, claims by DRA.

Shells translate wire objects into these; the policy sees nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from nodecpu.cpuset import NO_CPUS, NO_NODES, CpuSet, NodeSet
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.policy.wishes import Wishes


class QoS(Enum):
    """Kubernetes' quality-of-service class of a pod."""

    GUARANTEED = "Guaranteed"
    BURSTABLE = "Burstable"
    BEST_EFFORT = "BestEffort"


class ContainerKind(Enum):
    """Where a container stands in the pod's spec (N1)."""

    ORDINARY = "ordinary"
    INIT = "init"
    SIDECAR = "sidecar"
    EPHEMERAL = "ephemeral"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRef:
    """A container's reference to one of its pod's claims.

    ``claim`` is the ResourceClaim's name in the pod's namespace; None while a generated name is not known yet.
    ``request`` narrows to one request of the claim (base name); None means all of it.
    """

    claim: str | None
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """One container of a pod's spec; amounts in milli-CPU and bytes, None where the spec says nothing."""

    name: str
    kind: ContainerKind = ContainerKind.ORDINARY
    request_mcpu: int | None = None
    limit_mcpu: int | None = None
    request_memory_bytes: int | None = None
    limit_memory_bytes: int | None = None
    claims: tuple[ClaimRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSpec:
    """A pod of this node as the API server last told (N1).

    ``runtime_uid`` is the UID the runtime uses: for a static pod the hash in the annotation
    kubernetes.io/config.mirror, else the pod's own UID. ``terminating``: its deletion was asked for. ``counted_claims``
    are the ResourceClaims whose CPUs the scheduler took from the node's as it does CPU requests; None: not known.
    """

    uid: PodUID
    runtime_uid: PodUID
    namespace: str
    name: str
    qos: QoS
    containers: Mapping[str, ContainerSpec]
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    pod_request_mcpu: int | None = None
    pod_limit_mcpu: int | None = None
    terminating: bool = False
    counted_claims: frozenset[str] | None = None

    @property
    def is_mirror(self) -> bool:
        """Whether this is the mirror of a static pod, by what it says of itself."""
        return self.uid != self.runtime_uid


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A pod sandbox as the runtime tells it."""

    id: SandboxID
    uid: PodUID
    namespace: str
    name: str
    runtime_handler: str = ""
    cgroup_parent: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


class ContainerState(Enum):
    """NRI's container states."""

    UNKNOWN = 0
    CREATED = 1
    PAUSED = 2
    RUNNING = 3
    STOPPED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A device node that a container is given: its path there, ``c`` or ``b``, and its numbers on the host."""

    path: str
    kind: str
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container as the runtime tells it.

    ``claim_env`` holds the variables whose names begin with DRA_CPUSET_, as they stand, the last of equal names
    winning; ``cdi_devices`` the qualified names where the runtime shows them. ``cpus`` and ``mems`` are the runtime's
    idea of the cpuset (empty: none set). ``devices`` and ``mounts`` (host paths) are what it is given. ``shares``,
    ``quota_us``, ``period_us`` are None where it says nothing.
    """

    id: ContainerID
    sandbox_id: SandboxID
    name: str
    state: ContainerState = ContainerState.UNKNOWN
    claim_env: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    mounts: tuple[str, ...] = ()
    cpus: CpuSet = NO_CPUS
    mems: NodeSet = NO_NODES
    shares: int | None = None
    quota_us: int | None = None
    period_us: int | None = None
    memory_limit_bytes: int | None = None
    cgroups_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What an in-place update of a container asks for; None: unchanged."""

    shares: int | None = None
    quota_us: int | None = None
    period_us: int | None = None
    memory_limit_bytes: int | None = None
    cpus: CpuSet = NO_CPUS
    mems: NodeSet = NO_NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationResult:
    """One result of a claim's allocation that names our driver.

    ``cpus`` is how many CPUs of ``device`` were consumed (0 with ``admin_access``, C13); ``request`` as the scheduler
    wrote it, ``main`` or ``main/sub``. By the claim's configuration: ``cpuset``, the very CPUs (C9), and ``wishes``,
    how to pick them (C10); None where it says nothing.
    """

    request: str
    pool: str
    device: str
    cpus: int
    share_id: str | None = None
    admin_access: bool = False
    cpuset: CpuSet | None = None
    wishes: Wishes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedClaim:
    """A ResourceClaim as far as it concerns us: decoded and checked for form, not yet against the books.

    ``pod_claim`` is what the pod calls a claim that was made of a template, empty for others.
    """

    uid: ClaimUID
    namespace: str
    name: str
    results: tuple[AllocationResult, ...]
    reserved_for: frozenset[PodUID] = frozenset()
    pod_claim: str = ""
