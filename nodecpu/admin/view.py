"""The node's state as the operator sees it, made of the books at the moment of asking (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from nodecpu import __version__
from nodecpu.admin.state import (
    ClaimState,
    ContainerRow,
    CounterState,
    DelayState,
    EnforcementState,
    FindingState,
    Links,
    Machine,
    NodeState,
    PoolState,
    RefusalState,
    ResultState,
    UsableState,
)
from nodecpu.books import Books
from nodecpu.cpuset import CpuSet
from nodecpu.ids import ContainerID
from nodecpu.policy.grants import ClaimGrant, ContainerGrant
from nodecpu.policy.shared import shared_cpus
from nodecpu.preflight.finding import Finding
from nodecpu.refusals import Refused


class Delayed(Protocol):
    """How long something took, in seconds."""

    count: int
    last_s: float
    worst_s: float


class Audited(Protocol):
    """What the audit has found."""

    @property
    def delays(self) -> Mapping[str, Delayed]:
        """By means."""

    @property
    def given_up(self) -> tuple[ContainerID, ...]:
        """Containers whose cpusets are left to others."""

    @property
    def strangers(self) -> tuple[str, ...]:
        """Cgroups of containers that nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the books do not know."""

    node: str
    machine: Machine
    available: CpuSet | None


def node_state(
    books: Books, around: Surroundings, links: Links, counters: CounterState, refusals: Iterable[Refused] = ()
) -> NodeState:
    """Return everything at this moment."""
    ledger = books.ledger
    usable = ledger.tree.usable
    return NodeState(
        version=__version__,
        node=around.node,
        links=links,
        machine=around.machine,
        usable=UsableState(
            reserved=str(usable.reserved),
            isolated=str(usable.isolated),
            sharable=str(usable.sharable),
            available="" if around.available is None else str(around.available),
        ),
        pools=tuple(
            PoolState(
                name=pool.name,
                kind=pool.level.value,
                cpus=str(pool.cpus),
                shared=str(shared_cpus(ledger, pool)),
                mems=str(pool.mems),
                load_mcpu=ledger.need_mcpu(pool),
            )
            for pool in ledger.tree.pools
        ),
        claims=tuple(_claim(claim) for _, claim in sorted(ledger.claims.items())),
        containers=tuple(_container(books, grant) for _, grant in sorted(ledger.containers.items())),
        counters=counters,
        refusals=tuple(_refusal(one) for one in refusals),
    )


def _claim(claim: ClaimGrant) -> ClaimState:
    return ClaimState(
        uid=claim.uid,
        namespace=claim.namespace,
        name=claim.name,
        state=_claim_state(claim),
        cpus=str(claim.cpus),
        results=results_of(claim),
    )


def results_of(claim: ClaimGrant) -> tuple[ResultState, ...]:
    """Return a claim's results as they are shown."""
    return tuple(
        ResultState(request=r.request, device=r.device, cpus=str(r.cpus), missed=r.missed) for r in claim.results
    )


def finding_states(findings: Iterable[Finding]) -> tuple[FindingState, ...]:
    """Return findings as they are shown."""
    return tuple(FindingState(check=f.check, grade=f.grade.value, seen=f.seen, remedy=f.remedy) for f in findings)


def enforcement_state(audit: Audited, *, unasked: bool) -> EnforcementState:
    """Return how cpusets are seen to, as it is shown."""
    delays = {
        means: DelayState(
            count=delay.count, last_ms=round(delay.last_s * 1000, 1), worst_ms=round(delay.worst_s * 1000, 1)
        )
        for means, delay in audit.delays.items()
        if delay.count
    }
    return EnforcementState(unasked=unasked, delays=delays, given_up=audit.given_up, strangers=audit.strangers)


def _refusal(one: Refused) -> RefusalState:
    return RefusalState(
        kind=one.kind,
        name=one.name,
        uid=one.uid,
        code=one.code,
        message=one.message,
        hint=one.hint,
        count=one.count,
        last=datetime.fromtimestamp(one.last_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def _claim_state(claim: ClaimGrant) -> str:
    if claim.unproven:
        return "unproven"
    return "moved" if claim.moved else "released" if claim.released else "prepared"


def _container(books: Books, grant: ContainerGrant) -> ContainerRow:
    placement = books.placement(grant.id)
    seen = books.pending.seen(grant.id)
    return ContainerRow(
        id=grant.id,
        namespace=grant.namespace,
        pod=grant.pod,
        name=grant.name,
        group=grant.group.value,
        pool=grant.pool,
        cpus="" if placement is None else str(placement.cpus),
        exclusive=str(grant.exclusive),
        claimed=str(grant.claimed),
        claim_uids=tuple(link.claim_uid for link in grant.links),
        mems="" if placement is None else str(placement.mems),
        confirmed=None if seen is None else str(seen.cpus),
        reason=grant.reason,
    )
