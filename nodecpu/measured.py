"""The kubelet's calls measured: results, how long they took, how many CPUs were given (shell)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from nodecpu.books import Books
from nodecpu.errors import NodeCpuError
from nodecpu.ids import ClaimUID
from nodecpu.metrics import Counters
from nodecpu.policy.plan import PreparedDevice

if TYPE_CHECKING:
    from nodecpu.dra.service import ClaimService


class MeasuredClaims:
    """In front of those who decide about claims."""

    def __init__(
        self, claims: ClaimService, books: Books, counters: Counters, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._claims = claims
        self._books = books
        self._counters = counters
        self._clock = clock

    async def prepare(self, uid: ClaimUID, namespace: str, name: str, *, budget_s: float) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices; raises NodeCpuError."""
        start, known = self._clock(), uid in self._books.ledger.claims
        try:
            devices = await self._claims.prepare(uid, namespace, name, budget_s=budget_s)
        except NodeCpuError:
            self._counters.prepares["error"] += 1
            self._counters.prepare_s.observe(self._clock() - start)
            raise
        self._counters.prepares["success"] += 1
        self._counters.prepare_s.observe(self._clock() - start)
        if not known and (grant := self._books.ledger.claims.get(uid)) is not None:
            self._counters.claim_cpus.observe(len(grant.cpus))
        return devices

    async def unprepare(self, uid: ClaimUID) -> None:
        """Release the claim; raises NodeCpuError."""
        try:
            await self._claims.unprepare(uid)
        except NodeCpuError:
            self._counters.unprepares["error"] += 1
            raise
        self._counters.unprepares["success"] += 1
