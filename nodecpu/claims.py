"""Prepare and unprepare: what the kubelet asks of a claim (shell around the policy; C6 to C8, C11, C12).

Prepare: decide, hold the CPUs, commit on the disk thread together with the CDI spec, take into the books, reply. The
hold keeps the CPUs from everybody else while the disk works; nothing outside sees it.

Unprepare: remove the CDI spec, mark the claim released on disk, then in the books; its CPUs return when no container
holds it any more.

Work on one claim is done in turn. The caller sees to it that none is cancelled before the daemon ends: then the books
end too, and the next start reads what is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Protocol

from nodecpu.books import Books
from nodecpu.dra.metadata import metadata_ids, requests_of
from nodecpu.errors import ClaimConflict, LinkError, NoCapacity, NodeCpuError, NotReady
from nodecpu.ids import ClaimUID
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.policy.claims import claim_grant, same_allocation
from nodecpu.policy.evidence import adopted_grant
from nodecpu.policy.facts import AllocatedClaim, AllocationResult
from nodecpu.policy.grants import ClaimGrant
from nodecpu.policy.plan import Change, PreparedDevice
from nodecpu.reports import CLAIM, NoReports, Reports, Subject
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


class _Turn:
    """Who works on a claim, and who waits for that: ``users`` in all."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Claims:
    """All claims of the node; different claims side by side."""

    def __init__(self, service: Service, doors: Doors, counters: Counters, *, wait_s: float) -> None:
        self._service = service
        self._books: Books = service.books
        self._doors = doors
        self._counters = counters
        self.wait_s = wait_s
        self.with_metadata = False
        self.reports: Reports = NoReports()
        self._news = asyncio.Event()
        self._turns: dict[ClaimUID, _Turn] = {}
        self.answers = 0
        """How often a prepare was answered; who asks the API server of a claim sees by it whether one was meanwhile."""

    def notify(self) -> None:
        """Wake waiting prepares: CPUs were freed, or a link came up."""
        self._news.set()
        self._news = asyncio.Event()

    def specs_due(self) -> tuple[tuple[ClaimGrant, ...], frozenset[ClaimUID] | None]:
        """Return the claims whose CDI specs are to be there, and those whose specs stay besides (None: all; C11).

        Claims that somebody works on are left to that one: the books do not know yet what becomes of their specs.
        """
        busy = frozenset(self._turns)
        grants = tuple(grant for uid, grant in self._books.ledger.claims.items() if uid not in busy)
        return grants, busy | self._service.used_claims if self._service.is_synchronized else None

    def forget_row(self, uid: ClaimUID) -> None:
        """Have a claim's row dropped by the next claim's commit: that of a released claim is harmless until then.

        A commit of its own would have the disk sync once more for each claim. A start drops released rows as well.
        """
        self._doors.disk.submit(Job(drops=(uid,), owed=True))

    async def prepare(self, uid: ClaimUID, namespace: str, name: str, *, budget_s: float) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices; raises NodeCpuError. What can come right soon is waited for (C7)."""
        deadline = asyncio.get_running_loop().time() + min(budget_s, self.wait_s)
        try:
            async with self._turn(uid):
                devices = await self._prepare(uid, namespace, name, deadline)
                self.answers += 1
                return devices
        except NodeCpuError as err:
            claim = f"{namespace}/{name}"
            self._counters.refused(err, "claim", claim, uid)
            kv(_LOG, logging.WARNING, "claim refused", claim=claim, claim_uid=uid, state=err.code, err=err)
            subject = Subject(kind=CLAIM, namespace=namespace, name=name, uid=uid)
            self.reports.report(subject, "PrepareRefused", str(err))
            raise

    async def unprepare(self, uid: ClaimUID) -> None:
        """Release a claim; an unknown one is released already (C6). Raises NodeCpuError if the disk fails."""
        async with self._turn(uid):
            await self._unprepare(uid)

    async def release_gone(self, grant: ClaimGrant, *, answers: int) -> bool:
        """Release a claim that is proved gone or over, unless it changed or a container uses it; return whether (R2).

        Nor if somebody works on it, or a prepare was answered since there were ``answers``, before the proof was asked
        for: that one may have been told that the claim is reserved again. Raises NodeCpuError if the disk fails.
        """
        if grant.uid in self._turns or self.answers != answers:
            return False
        async with self._turn(grant.uid):
            if self._books.ledger.claims.get(grant.uid) != grant or self._service.is_used(grant.uid):
                return False
            claim = f"{grant.namespace}/{grant.name}"
            kv(
                _LOG,
                logging.WARNING,
                "claim is over and was never unprepared",
                claim=claim,
                claim_uid=grant.uid,
            )
            await self._unprepare(grant.uid)
            self._counters.gone_claims += 1
            return True

    async def adopt(self, claim: AllocatedClaim) -> bool:
        """Take over a claim that the API server has confirmed, with the CPUs it runs on; return whether that fits (R2).

        Raises NodeCpuError if the disk fails.
        """
        async with self._turn(claim.uid):
            old = self._books.ledger.claims.get(claim.uid)
            if old is None or not old.unproven or old.released:
                return True
            grant = self._adopted(old, claim)
            if grant is None:
                return False
            await self._commit(grant)
        kv(
            _LOG,
            logging.INFO,
            "claim adopted",
            claim=f"{claim.namespace}/{claim.name}",
            claim_uid=claim.uid,
            cpus=grant.cpus,
        )
        self._service.judge()
        return True

    @contextlib.asynccontextmanager
    async def _turn(self, uid: ClaimUID) -> AsyncIterator[None]:
        """Wait for other work on the same claim: the kubelet's calls, and what the API server tells of it."""
        turn = self._turns.setdefault(uid, _Turn())
        turn.users += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[uid]

    async def _unprepare(self, uid: ClaimUID) -> None:
        grant = self._books.ledger.claims.get(uid)
        released = () if grant is None or grant.released else (replace(grant, released=True),)
        # Of a claim that was refused a row may still be owed its end: no start may find it once this is answered.
        job = Job(puts=released, settles=(uid,), before=lambda: self._doors.specs.remove(uid))
        await self._doors.disk.submit(job)
        for claim in released:
            self._books.enact(Change(put_claims=(claim,)))
            kv(_LOG, logging.INFO, "claim released", claim=f"{claim.namespace}/{claim.name}", claim_uid=uid)
        self._service.release_over([uid])

    async def _prepare(self, uid: ClaimUID, namespace: str, name: str, deadline: float) -> tuple[PreparedDevice, ...]:
        grant = self._books.ledger.claims.get(uid)
        if grant is not None and not grant.released and not grant.moved and not grant.unproven:
            told = await self._glance(uid, namespace, name)
            if told is None or same_allocation(grant, told):
                return await self._answer_again(grant)
            await self._unprepare(uid)  # whoever holds it still: it is not to be answered with what it had any more
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
        """Return the allocation; by the books if the API server is away and the claim is to be picked anew (T7)."""
        old = self._books.ledger.claims.get(uid)
        if old is not None and old.moved:
            return await self._glance(uid, namespace, name) or _allocation_of(old)
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
        return _devices(self._service.rules.driver, grant)

    async def _prepare_new(self, claim: AllocatedClaim) -> tuple[PreparedDevice, ...]:
        if not self._service.is_synchronized:
            raise NotReady(
                f"claim {claim.namespace}/{claim.name}: the container runtime is not connected",
                hint="check that NRI is on in the runtime and that its socket is the one of [nri] socket",
            )
        if self._service.is_rebuilding:
            raise NotReady(
                f"claim {claim.namespace}/{claim.name}: the books of containers were lost and are being rebuilt",
                hint="this ends when the API server has told of the pods",
            )
        ledger = self._books.ledger
        old = ledger.claims.get(claim.uid)
        if old is not None and old.unproven:
            grant = self._confirmed(old, claim)
        elif old is not None and not old.moved and same_allocation(old, claim):
            grant = replace(old, released=False)  # prepared again while its last container is still there
        elif holders := ledger.holders(claim.uid):
            raise NotReady(
                f"claim {claim.namespace}/{claim.name} was allocated anew while {holders[0].pod}/{holders[0].name}"
                " still holds what it had",
                hint="it is prepared again when its containers are gone",
            )
        else:
            grant = self._new_grant(claim)
        await self._commit(grant)
        kv(
            _LOG,
            logging.INFO,
            "claim prepared",
            claim=f"{claim.namespace}/{claim.name}",
            claim_uid=claim.uid,
            cpus=grant.cpus,
            device=",".join(result.device for result in grant.results),
            state=_compromise(grant),
        )
        return _devices(self._service.rules.driver, grant)

    def _adopted(self, old: ClaimGrant, claim: AllocatedClaim) -> ClaimGrant | None:
        machine, driver = self._service.machine, self._service.rules.driver
        return adopted_grant(old, claim, units=machine.units, devices=machine.devices, driver=driver)

    def _confirmed(self, old: ClaimGrant, claim: AllocatedClaim) -> ClaimGrant:
        """Return the grant for a claim that was known by its traces only: the kubelet asks for it, so it is live."""
        grant = self._adopted(old, claim)
        if grant is not None:
            return grant
        if self._service.is_used(old.uid):
            raise ClaimConflict(
                f"claim {claim.namespace}/{claim.name} is in use on CPUs {old.cpus}, which its allocation does not fit",
                hint="it is prepared when the containers that run there are gone",
            )
        self._service.disprove(old.uid)
        return self._new_grant(claim)

    def _new_grant(self, claim: AllocatedClaim) -> ClaimGrant:
        """Return the grant for a claim that is not in the books, with all the CDI ids that will be answered for it."""
        rules = self._service.rules
        grant = claim_grant(self._books.ledger, self._service.machine, rules, claim)
        if not self.with_metadata:
            return replace(grant, pod_claim=claim.pod_claim)
        ids = metadata_ids(rules.driver, grant.uid, grant.results)
        return replace(grant, pod_claim=claim.pod_claim, cdi_ids=(*grant.cdi_ids, *ids))

    async def _commit(self, grant: ClaimGrant) -> None:
        """Bring a decided claim to disk and into the books, both or neither."""
        disk, specs = self._doors.disk, self._doors.specs
        old = self._books.ledger.claims.get(grant.uid)
        before = () if old is None or old.unproven else (old,)
        self._books.ledger.hold(grant.uid, grant.cpus)
        try:
            await disk.submit(Job(puts=(grant,), after=lambda: _write(specs, grant), undo=before))
        except NodeCpuError:
            self._books.ledger.unhold(grant.uid)
            self._service.release_over([grant.uid])  # its last container may have ended meanwhile
            raise
        finally:
            self._books.ledger.unhold(grant.uid)
        try:
            self._books.enact_claim(grant)
        except NodeCpuError:
            await self._take_back(grant, before)
            raise
        self._service.tell_pending()

    async def _take_back(self, grant: ClaimGrant, before: tuple[ClaimGrant, ...]) -> None:
        """Bring a claim's row back to what it was; if the disk fails at that too, the next claim's commit drops it.

        Its CPUs are free in the books, and the next claim may get them: dropping the one and writing the other is one
        commit, so no start ever finds both. Should a container get them, a start gives way to that (``Books.restore``).
        """
        disk, specs = self._doors.disk, self._doors.specs
        back = Job(puts=before, drops=(grant.uid,))
        disk.submit(replace(back, owed=True))
        try:
            await disk.submit(replace(back, before=lambda: specs.remove(grant.uid)))
        except NodeCpuError as err:
            claim = f"{grant.namespace}/{grant.name}"
            kv(_LOG, logging.ERROR, "a claim's row is not taken back yet", claim=claim, claim_uid=grant.uid, err=err)

    def _may_come_free(self) -> bool:
        """Return whether CPUs may return soon: of released claims still in use, or of claims not confirmed yet."""
        return any(claim.released or claim.unproven for claim in self._books.ledger.claims.values())


async def _wait(news: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await news.wait()
    except TimeoutError:
        pass


def _write(specs: SpecFiles, grant: ClaimGrant) -> None:
    specs.write(grant)


def _compromise(grant: ClaimGrant) -> str | None:
    """Return what a claim wished for and did not get; None if there is nothing."""
    missed = sorted({words for result in grant.results for words in result.missed})
    return f"without {', '.join(missed)}" if missed else None


def _allocation_of(grant: ClaimGrant) -> AllocatedClaim:
    """Return the allocation that a grant was made for: the same devices, amounts and wishes."""
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
                wishes=result.wishes,
            )
            for result in grant.results
        ),
    )


def _devices(driver: str, grant: ClaimGrant) -> tuple[PreparedDevice, ...]:
    """Return the answer for a grant: for each result its CDI id, with the first of each request its metadata's."""
    metadata = dict(requests_of(driver, grant))
    return tuple(
        PreparedDevice(
            request_names=(result.base_request,),
            pool=result.pool,
            device=result.device,
            cdi_ids=(cdi_id, *filter(None, (metadata.pop(result.base_request, ""),))),
            share_id=result.share_id,
        )
        for result, cdi_id in zip(grant.results, grant.cdi_ids, strict=False)
    )
