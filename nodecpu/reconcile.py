"""The books against the API server: who is confirmed is adopted, who is proved gone is released (shell; R2, U41, U92).

Load: one GET for each claim that no container uses, spread out, once a period; claims in use are not asked for, since
nothing would follow. A LIST would be one call, but of all claims of the cluster, from every node. So an ordinary pass
asks nothing at all.

Gone means: under its name there is no claim, one of another UID, or one that nobody may use here any more (deallocated,
reserved for nobody, allocated on another node: the kubelet lost its own books or was forced), at two looks
``gone_after_s`` apart, longer than the kubelet takes to unprepare by itself, each of which found the Node object with
the UID that the books know. A Node of another UID is another cluster, or a node made anew: it is taken for ours once a
claim of the books is found there by UID. While the API server is away nothing follows from anything.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from nodecpu.claims import Claims
from nodecpu.errors import NodeCpuError, NotReady
from nodecpu.ids import ClaimUID
from nodecpu.kube.claims import FoundClaim
from nodecpu.kube.watch import Backoff
from nodecpu.log import kv
from nodecpu.policy.facts import AllocatedClaim, PodSpec
from nodecpu.policy.grants import ClaimGrant
from nodecpu.reports import CLAIM, Subject
from nodecpu.service import Service
from nodecpu.store.claims import ADOPTED, NODE_UID

_LOG = logging.getLogger(__name__)

_SPACING_S: Final = 0.2
"""Between two GETs: a node never asks more than five times a second."""

_FIRST_PROOFS_S: Final = 5.0
_IDLE_S: Final = 600.0
"""A prepared claim that nobody uses for so long is worth a word to its owner."""

_JITTER: Final = 0.1
_POLL_S: Final = 1.0


class Clock(Protocol):
    """Time that tests can drive."""

    def now(self) -> float:
        """Return seconds that never go back."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""


class LoopClock:
    """The event loop's time."""

    def now(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the loop."""
        await asyncio.sleep(seconds)


class Lookup(Protocol):
    """The API server; both raise NotReady where it does not tell."""

    async def find(self, namespace: str, name: str) -> FoundClaim | None:
        """Return the claim of that name, None if there is none."""

    async def node_uid(self) -> str | None:
        """Return the Node object's UID, None if there is no such node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What outlives the process: ``node_uid`` as the books know it, and how to store a fact under a name."""

    node_uid: str | None
    store: Callable[[str, str], None]


class Reconciler:
    """Keeps comparing. ``period_s`` and ``gone_after_s`` may be changed while it runs."""

    def __init__(  # noqa: PLR0913 - its doors, given by the composition root
        self,
        claims: Claims,
        service: Service,
        lookup: Lookup,
        *,
        notes: Notes,
        period_s: float,
        gone_after_s: float,
        clock: Clock | None = None,
    ) -> None:
        self.period_s = period_s
        self.gone_after_s = gone_after_s
        self.proved: Callable[[], None] = lambda: None  # claims were adopted or dropped: devices offer something else
        self._claims = claims
        self._service = service
        self._lookup = lookup
        self._clock = clock or LoopClock()
        self._node_uid = notes.node_uid
        self._store = notes.store
        self._missing: dict[ClaimUID, float] = {}
        self._proofs = Backoff(first_s=_FIRST_PROOFS_S, cap_s=period_s)
        self._idle: dict[ClaimUID, float] = {}
        self._stranger = ""
        self._unfit: set[ClaimUID] = set()

    async def run(self) -> None:
        """Compare until cancelled, whatever happens to the API server."""
        backoff = Backoff(first_s=_POLL_S, cap_s=60.0)
        while True:
            try:
                pause = await self.look()
                backoff.reset()
            except NotReady as error:
                pause = backoff.next_s()
                kv(_LOG, logging.DEBUG, "the books cannot be compared with the API server yet", err=error)
            except NodeCpuError as error:
                pause = self.period_s
                kv(_LOG, logging.ERROR, "a claim could not be adopted or released", err=error)
            await self._clock.sleep(pause)

    async def look(self) -> float:
        """Make one pass; return after how many seconds the next is due. Raises NotReady and StateError."""
        if not self._service.is_synchronized:
            return _POLL_S
        if self._service.unproven_claims:
            if not self._service.pods.are_listed:
                return _POLL_S
            await self._prove()
        elif self._service.adopting:
            self._service.adoption_done()
            self._store(ADOPTED, "yes")
        await self._look_for_gone()
        if self._service.adopting:
            return self._proofs.next_s()
        self._proofs.reset()
        return self._jittered(self.gone_after_s if self._missing else self.period_s)

    # Claims known by their traces

    async def _prove(self) -> None:
        """Ask for every claim that a pod of this node references; adopt those in question, drop what nobody has."""
        asked = self._service.unproven_claims
        pods = tuple(self._service.pods)
        told: set[ClaimUID] = set()
        for namespace, name in sorted(_referenced(pods)):
            found = await self._lookup.find(namespace, name)
            await self._clock.sleep(_SPACING_S)
            if found is None or found.uid not in asked:
                continue
            if found.allocated is None or not _is_entitled(found.allocated, pods):
                continue
            told.add(found.uid)
            if not await self._claims.adopt(found.allocated) and found.uid not in self._unfit:
                self._unfit.add(found.uid)
                kv(
                    _LOG,
                    logging.ERROR,
                    "claim runs on other CPUs than its allocation allows, left as it is",
                    claim=f"{namespace}/{name}",
                    claim_uid=found.uid,
                    hint="delete its pods, so that it is prepared anew",
                )
        complete = not _has_unnamed(pods) and tuple(self._service.pods) == pods
        for uid in asked:
            if complete and uid not in told and not self._service.has_strangers(uid):
                self._service.disprove(uid)
        if self._service.unproven_claims != asked:
            self.proved()

    # Claims whose object is gone

    async def _look_for_gone(self) -> None:
        unused = self._unused()
        self._missing = {uid: at for uid, at in self._missing.items() if uid in unused}
        self._idle = {uid: at for uid, at in self._idle.items() if uid in unused}
        if (unused or self._node_uid is None) and not await self._is_our_cluster():
            self._missing.clear()
            return
        for uid, grant in sorted(unused.items()):
            now, answers = self._clock.now(), self._claims.answers
            found = await self._lookup.find(grant.namespace, grant.name)
            if found is not None and found.uid == uid and not found.is_over:
                self._missing.pop(uid, None)
                self._note_idle(grant, now)
            else:
                since = self._missing.setdefault(uid, now)
                # At once: a claim that is over may be reserved again and prepared meanwhile.
                if now - since >= self.gone_after_s and await self._claims.release_gone(grant, answers=answers):
                    del self._missing[uid]
            await self._clock.sleep(_SPACING_S)

    def _note_idle(self, grant: ClaimGrant, now: float) -> None:
        """Tell the owner of a claim that holds CPUs and that no container has used for long."""
        if now - self._idle.setdefault(grant.uid, now) < _IDLE_S or not grant.cpus:
            return
        self._claims.reports.report(
            Subject(kind=CLAIM, namespace=grant.namespace, name=grant.name, uid=grant.uid),
            "ClaimNotUsed",
            f"claim {grant.namespace}/{grant.name} holds CPUs {grant.cpus}, but no container has used them for long"
            " (name the claim in resources.claims of a container)",
        )

    def _unused(self) -> dict[ClaimUID, ClaimGrant]:
        return {
            uid: grant
            for uid, grant in self._service.books.ledger.claims.items()
            if not grant.released and not grant.unproven and not self._service.is_used(uid)
        }

    async def _is_our_cluster(self) -> bool:
        """Return whether the Node object is the one that the books know; learn another one if it proves to be ours."""
        uid = await self._lookup.node_uid()
        if uid is None or uid == self._node_uid:
            return uid is not None
        if (self._node_uid is None and not self._service.books.ledger.claims) or await self._is_known_there():
            self._node_uid = uid
            self._store(NODE_UID, uid)
            return False  # what was missing before counts from now on
        if self._stranger != uid:
            self._stranger = uid
            kv(
                _LOG,
                logging.WARNING,
                "the Node object is not the one that the claims were prepared under, none is released for its absence",
                count=len(self._service.books.ledger.claims),
                hint="this ends when a claim of this node is found in the cluster; is the kubeconfig the right one?",
            )
        return False

    async def _is_known_there(self) -> bool:
        """Return whether any claim of the books is in that cluster."""
        for uid, grant in sorted(self._service.books.ledger.claims.items()):
            if not grant.unproven:
                found = await self._lookup.find(grant.namespace, grant.name)
                await self._clock.sleep(_SPACING_S)
                if found is not None and found.uid == uid:
                    return True
        return False

    def _jittered(self, seconds: float) -> float:
        return seconds * random.uniform(1.0, 1.0 + _JITTER)


def _referenced(pods: Iterable[PodSpec]) -> set[tuple[str, str]]:
    return {
        (pod.namespace, ref.claim)
        for pod in pods
        for container in pod.containers.values()
        for ref in container.claims
        if ref.claim is not None
    }


def _has_unnamed(pods: Iterable[PodSpec]) -> bool:
    """Return whether a pod references a claim whose generated name is not known yet."""
    return any(ref.claim is None for pod in pods for c in pod.containers.values() for ref in c.claims)


def _is_entitled(claim: AllocatedClaim, pods: Iterable[PodSpec]) -> bool:
    """Return whether a claim is allocated of our devices, and reserved for a pod of this node."""
    return bool(claim.results) and any(pod.uid in claim.reserved_for for pod in pods)
