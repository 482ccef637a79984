"""What was given, to whom: the rows of the ledger (pure).

Claims are keyed by claim UID and containers by container id: two key spaces (C4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nodecpu.cpuset import NO_CPUS, NO_NODES, CpuSet, NodeSet, union
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.policy.facts import ContainerState, QoS
from nodecpu.policy.wishes import Wishes
from nodecpu.topology.model import MemoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultGrant:
    """The CPUs of one allocation result (C3); none with ``admin_access`` (C13).

    ``wishes`` are the claim's own, ``missed`` those that could not be met, in words (C10).
    """

    request: str
    pool: str
    device: str
    cpus: CpuSet
    share_id: str | None = None
    admin_access: bool = False
    wishes: Wishes | None = None
    missed: tuple[str, ...] = ()

    @property
    def base_request(self) -> str:
        """The request's name without its sub-request, as the kubelet wants it."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimGrant:
    """A claim's CPUs: exclusive, in no shared portion, without memory (C4).

    ``released`` is set by unprepare: the CPUs stay out of reach until no linked container is left (C12).
    ``moved`` means that the machine changed under it and the CPUs are to be picked anew at the next prepare (T7).
    ``pod_claim`` is what the pod calls a claim that was made of a template, empty for others.
    ``unproven``: known by its traces alone, its CPUs are kept from others until the API server was asked (R2).
    ``cdi_ids`` are all the CDI names ever answered (C11).
    """

    uid: ClaimUID
    namespace: str
    name: str
    results: tuple[ResultGrant, ...]
    cdi_ids: tuple[str, ...] = ()
    released: bool = False
    moved: bool = False
    unproven: bool = False
    pod_claim: str = ""

    @property
    def cpus(self) -> CpuSet:
        """The whole claim's CPUs."""
        return union(r.cpus for r in self.results)

    def request_cpus(self, base_request: str) -> CpuSet:
        """Return the union of all CPUs of one request (base name); empty if it has none."""
        return union(r.cpus for r in self.results if r.base_request == base_request)


class Group(Enum):
    """How a container's own CPUs are found (G1)."""

    RESERVED = "reserved"
    SHARED = "shared"
    MIXED = "mixed"
    MULTI = "multi"
    CLAIMED = "claimed"
    """Nothing of its own: it runs on its claims alone."""
    IGNORED = "ignored"
    """Left alone: neither its cpuset nor its quota is ours to set (G17, preserve)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A container's hold on a claim, decided once at creation (L4). ``requests`` empty: all of it (L2)."""

    claim_uid: ClaimUID
    cpus: CpuSet
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerGrant:
    """What one container was given.

    ``pool`` is the pool's name. ``portion_mcpu`` is its part of the pool's shared CPUs (or of the reserved ones, in
    that group) in milli-CPU: 0 with ``uses_shared`` is a container without a request. ``shares`` None: the runtime's
    figure stands, and so for ``quota_us`` (below 0: no quota). ``told_mcpu`` and ``limit_mcpu`` are the CPU request and
    limit that this was decided by. ``hides_threads``: it sees one thread of each
    core. ``memory_bytes`` is what it counts for in its memory nodes, ``memory_kinds`` what it wants there. ``path`` is
    the runtime's cgroups_path. ``reason`` tells what was decided and why.
    """

    id: ContainerID
    sandbox_id: SandboxID
    pod_uid: PodUID
    namespace: str
    pod: str
    name: str
    group: Group
    pool: str
    qos: QoS
    exclusive: CpuSet = NO_CPUS
    portion_mcpu: int = 0
    uses_shared: bool = False
    links: tuple[Link, ...] = ()
    mems: NodeSet = NO_NODES
    shares: int | None = None
    told_mcpu: int = 0
    limit_mcpu: int | None = None
    quota_us: int | None = None
    hides_threads: bool = False
    memory_bytes: int = 0
    memory_kinds: tuple[MemoryKind, ...] = ()
    state: ContainerState = ContainerState.CREATED
    path: str = ""
    reason: str = ""

    @property
    def claimed(self) -> CpuSet:
        """The CPUs it holds by claims."""
        return union(link.cpus for link in self.links) if self.links else NO_CPUS  # asked for seven times a decision

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"container {self.namespace}/{self.pod}/{self.name}"
