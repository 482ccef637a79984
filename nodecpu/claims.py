"""Prepare and unprepare: what the kubelet asks of a claim (shell around the policy; C6 to C8, C11, C12).

Prepare: decide, hold the CPUs, commit on the disk thread together with the CDI spec, take into the books, reply. The
hold keeps the CPUs from everybody else while the disk works; nothing outside sees it.

Unprepare: remove the CDI spec, mark the claim released on disk, then in the books; its CPUs return when no container
holds it any more.

The caller sees to it that there is one operation per claim at a time, and that none is cancelled before the daemon
ends: then the books end too, and the next start reads what is on disk.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from typing import Protocol

from nodecpu.books import Books
from nodecpu.errors import ClaimConflict, LinkError, NoCapacity, NodeCpuError, NotReady
from nodecpu.ids import ClaimUID
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.policy.allocate import claim_grant, same_allocation
from nodecpu.policy.facts import AllocatedClaim, AllocationResult
from nodecpu.policy.grants import ClaimGrant
from nodecpu.policy.plan import Change, PreparedDevice
from nodecpu.service import Service
from nodecpu.store.claims import Job

_LOG = logging.getLogger(__name__)

_GLANCE_S = 1.0
"""How long a repeated prepare may look whether the allocation changed; without an answer the books hold."""


class ClaimSource(Protocol):
    """Where allocations come from: the API server."""

    @property
    def is_answering(self) -> bool:
        """Return whether the last call was answered."""

    async def fetch(self, uid: ClaimUID, namespace: str, name: str, *, timeout_s: float) -> AllocatedClaim:
        """Return the claim; raises LinkError or NotReady where a retry helps, ClaimError otherwise."""


class DiskQueue(Protocol):
    """The thread that waits for the disk."""

    def submit(self, job: Job) -> asyncio.Future[None]:
        """Queue a job, in order."""


class SpecFiles(Protocol):
    """The CDI spec files; blocking, only for the disk thread."""

    def write(self, grant: ClaimGrant) -> bool:
        """Write a claim's spec if it is not there as it should be."""

    def remove(self, uid: ClaimUID) -> None:
        """Remove a claim's spec if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """What claims need of the outside."""

    source: ClaimSource
    disk: DiskQueue
    specs: SpecFiles


class Claims:
    """All claims of the node; different claims side by side."""

    def __init__(self, service: Service, doors: Doors, counters: Counters, *, wait_s: float) -> None:
        self._service = service
        self._books: Books = service.books
        self._doors = doors
        self._counters = counters
        self.wait_s = wait_s
        self._news = asyncio.Event()

    def notify(self) -> None:
        """Wake waiting prepares: CPUs were freed, or a link came up."""
        self._news.set()
        self._news = asyncio.Event()

    def forget_row(self, uid: ClaimUID) -> None:
        """Queue the removal of a released claim's row; not waited for, since a row left over is harmless."""
        self._doors.disk.submit(Job(drops=(uid,))).add_done_callback(_log_failure)

    async def prepare(self, uid: ClaimUID, namespace: str, name: str, *, budget_s: float) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices; raises NodeCpuError. What can come right soon is waited for (C7)."""
        deadline = asyncio.get_running_loop().time() + min(budget_s, self.wait_s)
        try:
            return await self._prepare(uid, namespace, name, deadline)
        except NodeCpuError as err:
            self._counters.refusals[err.code] += 1
            claim = f"{namespace}/{name}"
            kv(_LOG, logging.WARNING, "claim refused", claim=claim, claim_uid=uid, state=err.code, err=err)
            raise

    async def unprepare(self, uid: ClaimUID) -> None:
        """Release a claim; an unknown one is released already (C6). Raises NodeCpuError if the disk fails."""
        grant = self._books.ledger.claims.get(uid)
        released = () if grant is None or grant.released else (replace(grant, released=True),)
        await self._doors.disk.submit(Job(puts=released, before=lambda: self._doors.specs.remove(uid)))
        for claim in released:
            self._books.enact(Change(put_claims=(claim,)))
            kv(_LOG, logging.INFO, "claim released", claim=f"{claim.namespace}/{claim.name}", claim_uid=uid)
        self._service.release_over([uid])

    async def _prepare(self, uid: ClaimUID, namespace: str, name: str, deadline: float) -> tuple[PreparedDevice, ...]:
        grant = self._books.ledger.claims.get(uid)
        if grant is not None and not grant.released and not grant.moved:
            told = await self._glance(uid, namespace, name)
            if told is None or same_allocation(grant, told):
                return await self._answer_again(grant)
            if holders := self._books.ledger.holders(uid):
                holder = f"{holders[0].pod}/{holders[0].name}"
                raise ClaimConflict(
                    f"claim {namespace}/{name} was allocated anew while {holder} still holds it",
                    hint="it is prepared again when its containers are gone",
                )
            await self.unprepare(uid)
        loop = asyncio.get_running_loop()
        claim: AllocatedClaim | None = None
        while True:
            news = self._news
            left = deadline - loop.time()
            try:
                if claim is None:
                    claim = await self._told(uid, namespace, name, left)
                if not claim.results:
                    return ()
                return await self._prepare_new(claim)
            except (NotReady, LinkError, NoCapacity) as err:
                left = deadline - loop.time()
                if left <= 0 or (isinstance(err, NoCapacity) and not self._may_come_free()):
                    raise
                await _wait(news, min(left, 0.5 if isinstance(err, LinkError | NotReady) else left))

    async def _told(self, uid: ClaimUID, namespace: str, name: str, left_s: float) -> AllocatedClaim:
        """Return the allocation: by the books for a claim whose machine changed (T7), else by the API server."""
        old = self._books.ledger.claims.get(uid)
        if old is not None and old.moved:
            return _allocation_of(old)
        return await self._doors.source.fetch(uid, namespace, name, timeout_s=max(left_s, 0.1))

    async def _glance(self, uid: ClaimUID, namespace: str, name: str) -> AllocatedClaim | None:
        """Return the allocation if the API server says it at once: a prepared claim needs no API server."""
        if not self._doors.source.is_answering:
            return None
        try:
            return await self._doors.source.fetch(uid, namespace, name, timeout_s=_GLANCE_S)
        except NodeCpuError:
            return None

    async def _answer_again(self, grant: ClaimGrant) -> tuple[PreparedDevice, ...]:
        await self._doors.disk.submit(Job(after=lambda: _write(self._doors.specs, grant)))
        return _devices(grant)

    async def _prepare_new(self, claim: AllocatedClaim) -> tuple[PreparedDevice, ...]:
        if not self._service.is_synchronized:
            raise NotReady(
                f"claim {claim.namespace}/{claim.name}: the container runtime is not connected",
                hint="check that NRI is on in the runtime and that its socket is the one of [nri] socket",
            )
        ledger = self._books.ledger
        old = ledger.claims.get(claim.uid)
        if old is not None and not old.moved and same_allocation(old, claim):
            grant = replace(old, released=False)  # prepared again while its last container is still there
        else:
            grant = claim_grant(ledger, self._service.machine, self._service.rules, claim)
        await self._commit(grant)
        kv(
            _LOG,
            logging.INFO,
            "claim prepared",
            claim=f"{claim.namespace}/{claim.name}",
            claim_uid=claim.uid,
            cpus=grant.cpus,
            device=",".join(result.device for result in grant.results),
        )
        return _devices(grant)

    async def _commit(self, grant: ClaimGrant) -> None:
        """Bring a decided claim to disk and into the books, both or neither."""
        disk, specs = self._doors.disk, self._doors.specs
        old = self._books.ledger.claims.get(grant.uid)
        before = () if old is None else (old,)
        self._books.ledger.hold(grant.uid, grant.cpus)
        try:
            await disk.submit(Job(puts=(grant,), after=lambda: _write(specs, grant), undo=before))
        finally:
            self._books.ledger.unhold(grant.uid)
        try:
            self._books.enact_claim(grant)
        except NodeCpuError:
            await disk.submit(Job(puts=before, drops=(grant.uid,), before=lambda: specs.remove(grant.uid)))
            raise
        self._service.tell_pending()

    def _may_come_free(self) -> bool:
        """Return whether CPUs are about to return: of released claims whose containers have not ended yet."""
        return any(claim.released for claim in self._books.ledger.claims.values())


async def _wait(news: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await news.wait()
    except TimeoutError:
        pass


def _write(specs: SpecFiles, grant: ClaimGrant) -> None:
    specs.write(grant)


def _allocation_of(grant: ClaimGrant) -> AllocatedClaim:
    """Return the allocation that a grant was made for: the same devices and amounts."""
    return AllocatedClaim(
        uid=grant.uid,
        namespace=grant.namespace,
        name=grant.name,
        results=tuple(
            AllocationResult(
                request=result.request,
                pool=result.pool,
                device=result.device,
                cpus=len(result.cpus),
                share_id=result.share_id,
                admin_access=result.admin_access,
            )
            for result in grant.results
        ),
    )


def _devices(grant: ClaimGrant) -> tuple[PreparedDevice, ...]:
    return tuple(
        PreparedDevice(
            request_names=(result.base_request,),
            pool=result.pool,
            device=result.device,
            cdi_ids=(cdi_id,),
            share_id=result.share_id,
        )
        for result, cdi_id in zip(grant.results, grant.cdi_ids, strict=True)
    )


def _log_failure(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (err := done.exception()) is not None:
        kv(_LOG, logging.ERROR, "a released claim's row could not be removed", err=err)
