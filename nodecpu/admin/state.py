"""What the daemon shows of itself, as it travels over the admin socket (edge schema, no I/O).

Everything here is for eyes and scripts: sets of CPUs and memory nodes are text in the kernel's list form. The names are
the keys of the JSON that every ``--json`` prints; they only ever gain members.
"""

from __future__ import annotations

import msgspec


class Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all: frozen, keyword only, unknown members refused."""


class LinkState(Shape, frozen=True, kw_only=True):
    """A link to somebody else. ``state``: connected, away, off or a word of that link; name and version: the peer's.

    ``credentials_expire_at``: when those for the API server end, in Unix seconds; left out where that is not known.
    """

    state: str
    name: str = ""
    version: str = ""
    reason: str = ""
    credentials_expire_at: float | msgspec.UnsetType = msgspec.UNSET


class Links(Shape, frozen=True, kw_only=True):
    """All links."""

    runtime: LinkState
    kubelet: LinkState
    api: LinkState


class Core(Shape, frozen=True, kw_only=True):
    """A core and its online CPUs (threads)."""

    label: str
    cpus: str


class Cache(Shape, frozen=True, kw_only=True):
    """Cores that share a last-level cache. ``label`` empty: such caches are not known here."""

    label: str
    cores: tuple[Core, ...]


class Numa(Shape, frozen=True, kw_only=True):
    """A NUMA node's CPUs within one socket."""

    id: int
    memory: str
    memory_bytes: int
    caches: tuple[Cache, ...]


class Socket(Shape, frozen=True, kw_only=True):
    """A package."""

    label: str
    numa: tuple[Numa, ...]


class MemoryNode(Shape, frozen=True, kw_only=True):
    """A NUMA node without CPUs; ``home`` is the nearest one with CPUs."""

    id: int
    memory: str
    memory_bytes: int
    home: int


class Machine(Shape, frozen=True, kw_only=True):
    """The machine as a tree: sockets, NUMA nodes, caches, cores, CPUs. Every online CPU is in it once."""

    online: str
    sockets: tuple[Socket, ...]
    memory_nodes: tuple[MemoryNode, ...] = ()


class UsableState(Shape, frozen=True, kw_only=True):
    """The node's CPUs by what they may be used for. ``available`` is the configured limit, empty for none."""

    reserved: str = ""
    isolated: str = ""
    sharable: str = ""
    available: str = ""


class PoolState(Shape, frozen=True, kw_only=True):
    """A pool. ``shared`` are the CPUs its shared containers run on now; ``load_mcpu`` is what those asked for."""

    name: str
    kind: str
    cpus: str
    shared: str
    mems: str
    load_mcpu: int = 0


class ResultState(Shape, frozen=True, kw_only=True):
    """One result of a claim. ``missed`` are the wishes of its configuration that could not be met."""

    request: str
    device: str
    cpus: str
    missed: tuple[str, ...] = ()


class ClaimState(Shape, frozen=True, kw_only=True):
    """A claim in the books. ``state``: prepared, released (still in use), moved (to be picked anew), unproven."""

    uid: str
    namespace: str
    name: str
    state: str
    cpus: str
    results: tuple[ResultState, ...] = ()


class ContainerRow(Shape, frozen=True, kw_only=True):
    """A container in the books.

    ``cpus`` is where it is to run, ``exclusive`` and ``claimed`` are parts of it; ``confirmed`` is what the kernel said
    when last asked, None before that.
    """

    id: str
    namespace: str
    pod: str
    name: str
    group: str
    pool: str
    cpus: str
    exclusive: str = ""
    claimed: str = ""
    claim_uids: tuple[str, ...] = ()
    mems: str = ""
    confirmed: str | None = None
    reason: str = ""


class HistogramState(Shape, frozen=True, kw_only=True):
    """How many values came up to each bound (beyond the one before), and beyond the last; ``total`` is their sum."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    total: float = 0.0


class CounterState(Shape, frozen=True, kw_only=True):
    """What was counted since the daemon's start (Unix time); the mappings go by reason, cause and error code."""

    started_at: float = 0.0
    forged_claims: int = 0
    given_up: int = 0
    gone_claims: int = 0
    late_containers: int = 0
    nri_reconnects: int = 0
    annotations: dict[str, int] = {}
    repairs: dict[str, int] = {}
    drifts: dict[str, int] = {}
    refusals: dict[str, int] = {}
    prepares: dict[str, int] = {}
    unprepares: dict[str, int] = {}
    prepare_s: HistogramState = HistogramState()
    claim_cpus: HistogramState = HistogramState()


class DelayState(Shape, frozen=True, kw_only=True):
    """How long a cpuset took from being sent until it was read back, in milliseconds."""

    count: int = 0
    last_ms: float = 0.0
    worst_ms: float = 0.0


class EnforcementState(Shape, frozen=True, kw_only=True):
    """How cpusets are seen to.

    ``unasked``: whether the runtime may be sent updates that answer no request. ``delays`` go by means: unasked (such
    an update), written (systemd or the cgroup file). ``given_up`` are the ids of containers whose cpusets somebody else
    keeps changing, ``strangers`` the cgroups of containers that the runtime has not told of.
    """

    unasked: bool = False
    delays: dict[str, DelayState] = {}
    given_up: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()


class RefusalState(Shape, frozen=True, kw_only=True):
    """A request that was refused. ``kind``: claim, container or resize; ``name``: namespace, pod or claim, container.

    ``uid`` is the claim's or the pod's. ``count`` equal ones were met, the last at ``last`` (UTC).
    """

    kind: str
    name: str
    uid: str
    code: str
    message: str
    hint: str
    count: int
    last: str


class FindingState(Shape, frozen=True, kw_only=True):
    """Something that was looked at around the daemon. ``grade``: ok, unknown, warning or failed."""

    check: str
    grade: str
    seen: str
    remedy: str = ""


class NodeState(Shape, frozen=True, kw_only=True):
    """Everything at one moment. ``aside`` says why nothing is pinned, if that is so.

    ``terminating`` are containers whose pods are to end (namespace/pod/container): a planned restart waits for them.
    ``published``: the API server has the devices as they are now.
    """

    version: str
    node: str
    links: Links
    machine: Machine
    usable: UsableState
    pools: tuple[PoolState, ...] = ()
    claims: tuple[ClaimState, ...] = ()
    containers: tuple[ContainerRow, ...] = ()
    counters: CounterState = CounterState()
    refusals: tuple[RefusalState, ...] = ()
    preflight: tuple[FindingState, ...] = ()
    aside: str = ""
    enforcement: EnforcementState = EnforcementState()
    terminating: tuple[str, ...] = ()
    published: bool = False


class Request(Shape, frozen=True, kw_only=True):
    """One line to the daemon. ``verb``: state, or try with the Kubernetes objects to be tried in turn."""

    verb: str
    objects: tuple[msgspec.Raw, ...] = ()


class TrialRow(Shape, frozen=True, kw_only=True):
    """What would become of a claim or a container now. ``moves`` tells who would run elsewhere then.

    ``code``, ``message`` and ``hint`` are set where it would be refused (``fits`` false).
    """

    kind: str
    name: str
    fits: bool
    cpus: str = ""
    claimed: str = ""
    exclusive: str = ""
    group: str = ""
    pool: str = ""
    reason: str = ""
    results: tuple[ResultState, ...] = ()
    moves: tuple[str, ...] = ()
    code: str = ""
    message: str = ""
    hint: str = ""


class Refusal(Shape, frozen=True, kw_only=True):
    """Why there is no answer; ``code`` is an error's stable code."""

    code: str
    message: str
    hint: str = ""


class Reply(Shape, frozen=True, kw_only=True, omit_defaults=True):
    """One line from the daemon: exactly one of these."""

    state: NodeState | None = None
    trial: tuple[TrialRow, ...] | None = None
    error: Refusal | None = None
