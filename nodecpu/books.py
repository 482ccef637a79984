"""The writer: takes decided changes into both the databases and the ledger, in that order (shell).

Containers are committed inline. A claim is committed by the disk thread first (``service`` waits for it); only then
does it come here, together with the shared grants that move out of its way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.ids import ClaimUID, ContainerID
from nodecpu.log import kv
from nodecpu.policy.grants import ClaimGrant, ContainerGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.pending import Pending
from nodecpu.policy.plan import Change, Placement, Update
from nodecpu.policy.room import make_room
from nodecpu.policy.shared import placement, shared_updates

_LOG = logging.getLogger(__name__)


class ContainerCommit(Protocol):
    """Where container grants are kept."""

    def commit(self, change: Change) -> None:
        """Write a change, all or nothing; raises StateError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What the claims database is to be told after a start: rows that can go, and claims to be picked anew."""

    over: tuple[ClaimUID, ...]
    parted: tuple[ClaimGrant, ...]


def _apart(claims: Iterable[ClaimGrant], held: Collection[ClaimUID], owned: CpuSet) -> Iterator[ClaimGrant]:
    """Yield claims so that no CPU has two owners, whatever the file says; those that containers hold come first.

    A claim that nobody holds gives way to a container that has one of its CPUs, which are in ``owned``: its prepare was
    refused, but the disk did not take back its row. Of two claims with the same CPU the later one gives way. Who gives
    way is picked anew at the next prepare, as after a change of the machine.
    """
    taken = NO_CPUS
    for claim in sorted(claims, key=lambda one: (one.uid not in held, one.released, one.uid)):
        others = taken if claim.uid in held else taken | owned
        if claim.moved or others.isdisjoint(claim.cpus):
            yield claim
            taken |= NO_CPUS if claim.moved else claim.cpus
            continue
        _tell_parted(claim, taken, owned)
        yield replace(claim, moved=True)


def _tell_parted(claim: ClaimGrant, taken: CpuSet, owned: CpuSet) -> None:
    """Log that a claim is to get other CPUs than the database says."""
    name = f"{claim.namespace}/{claim.name}"
    if shared := claim.cpus & taken:
        kv(
            _LOG,
            logging.ERROR,
            "claim has CPUs of another one in the database, it gets others",
            claim=name,
            claim_uid=claim.uid,
            cpus=shared,
            hint="a fault of this program: keep a copy of the database for a report",
        )
    else:
        kv(
            _LOG,
            logging.WARNING,
            "claim was refused, but the disk failed before its row was taken back: a container has its CPUs, it gets"
            " others",
            claim=name,
            claim_uid=claim.uid,
            cpus=claim.cpus & owned,
        )


class Books:
    """Ledger, pending updates and the containers database as one.

    ``changed`` and ``exported`` are told after each change.
    """

    def __init__(self, ledger: Ledger, store: ContainerCommit) -> None:
        self.ledger = ledger
        self.pending = Pending()
        self.changed: Callable[[], None] = lambda: None
        self.exported: Callable[[], None] = lambda: None
        self.records: dict[ContainerID, CpuSet] = {}  # of a container's cpuset, as told by or to the runtime last
        self._store = store

    def enact(self, change: Change) -> None:
        """Commit a change and take it into the ledger; StateError means that nothing has happened."""
        self._store.commit(change)
        flipped = self.ledger.apply(change)
        for container_id in change.drop_containers:
            self.pending.forget(container_id)
            self.records.pop(container_id, None)
        for update in shared_updates(self.ledger, change, flipped):
            self.pending.want(update)
        self.changed()
        self.exported()

    def enact_claim(self, grant: ClaimGrant) -> None:
        """Take in a claim that is on disk already, and lift the shared grants that lose their room (C14)."""
        self.enact(Change(put_claims=(grant,), put_containers=make_room(self.ledger, grant.cpus)))

    def placement(self, container_id: ContainerID) -> Placement | None:
        """Return where a container runs by the books; None if it is unknown or not ours to set."""
        grant = self.ledger.containers.get(container_id)
        return None if grant is None else placement(self.ledger, grant)

    def exchange(self, ledger: Ledger, changed: Iterable[ContainerGrant]) -> None:
        """Put other books in the place of these (R3); ``changed`` are the grants that are not the same in both.

        One commit: StateError means that nothing has happened. Only containers that run elsewhere now are to be told.
        """
        self._store.commit(Change(put_containers=tuple(changed)))
        before, self.ledger = self.ledger, ledger
        for grant in ledger.containers.values():
            now = placement(ledger, grant)
            if now is not None and now != placement(before, before.containers[grant.id]):
                self.pending.want(Update(container_id=grant.id, placement=now))
        self.changed()
        self.exported()

    def restore(self, claims: Iterable[ClaimGrant], containers: Iterable[ContainerGrant]) -> Restored:
        """Fill an empty ledger from the databases: claims first; nothing moves that need not.

        Rows can go of claims that were released and that no container holds any more. Containers whose pool is not
        there any more are settled into the nearest one that covers them.
        """
        grants = list(containers)
        held = {link.claim_uid for grant in grants for link in grant.links}
        keep: dict[ClaimUID, ClaimGrant] = {}
        over: list[ClaimUID] = []
        for claim in claims:
            if claim.released and claim.uid not in held:
                over.append(claim.uid)
            else:
                keep[claim.uid] = claim
        apart = tuple(_apart(keep.values(), held, union(grant.exclusive for grant in grants)))
        self.ledger.apply(Change(put_claims=apart))
        known = self.ledger.claims
        settled = [
            replace(
                grant,
                pool=self.ledger.pool_of(grant).name,
                links=tuple(link for link in grant.links if link.claim_uid in known),
            )
            for grant in grants
        ]
        self.ledger.apply(Change(put_containers=tuple(settled)))
        moved = make_room(self.ledger)
        self._store.commit(Change(put_containers=moved))
        self.ledger.apply(Change(put_containers=moved))
        # Traces have no row: they are found again.
        parted = tuple(one for one in apart if one.moved and not keep[one.uid].moved and not one.unproven)
        return Restored(over=tuple(over), parted=parted)
