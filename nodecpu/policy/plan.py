"""A decision: the change to the ledger, and what has to be told to whom (pure).

Life of a grant:

- Prepare: the claim's CPUs are picked and held, the claim is committed, shared grants that lost their room are lifted,
  the CDI spec is written, the reply leaves. Repeats answer the same from the books.
- CreateContainer: the container is linked to its claims (for its life), gets its own CPUs, is committed; the reply
  carries its cpuset and updates for exactly the containers whose cpuset changed.
- StopContainer: its own CPUs return, the reply carries the updates that follow. A released claim without links returns.
- Unprepare: the CDI spec goes, the claim is marked released; its CPUs return when no linked container is left.
- Synchronize: the runtime's list decides which containers exist, the books who owns what; only differences are sent.
- Restart: books first, then sockets; grants are taken from the databases, never from what pods say.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.ids import ClaimUID, ContainerID
from nodecpu.policy.grants import ClaimGrant, ContainerGrant
from nodecpu.policy.scheduling import SchedulingClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to the ledger, applied only after its commit. Puts replace what stands under the same key."""

    put_claims: tuple[ClaimGrant, ...] = ()
    drop_claims: tuple[ClaimUID, ...] = ()
    put_containers: tuple[ContainerGrant, ...] = ()
    drop_containers: tuple[ContainerID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a container is to run: never an empty cpuset. ``mems`` empty and None mean: leave as it is.

    ``quota_us`` is its CFS quota per ``period_us``, below 0: none.
    """

    cpus: CpuSet
    mems: NodeSet
    shares: int | None = None
    quota_us: int | None = None
    period_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A change to another container, for a reply or for the cgroup."""

    container_id: ContainerID
    placement: Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file of the host that a container sees, read-only."""

    source: str
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """The answer to CreateContainer. ``placement`` None: the container is left where it is."""

    placement: Placement | None
    updates: tuple[Update, ...] = ()
    scheduling: SchedulingClass | None = None
    mount: Mount | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One device of a prepared claim, as the kubelet is told (request names are base names)."""

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None
