"""The audit: reads cpusets back, tells the service, and mends what no reply will reach (shell; E1, R7, C12).

After a change the containers concerned are read again and again, at growing intervals, until they are as they should
be. Now and then all are. Widening is done at once, narrowing when no reply has carried it for a period: by an update
that answers no request where the runtime is known to survive one, else by writing the cgroup; what was written also
rides on the next reply, so that the runtime's own record agrees.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nodecpu.enforce.cgroups import Cgroups
from nodecpu.ids import ContainerID
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.policy.pending import Seen, fulfils
from nodecpu.policy.plan import Placement, Update
from nodecpu.service import Service

_LOG = logging.getLogger(__name__)

_FIRST_LOOK_S = 0.05
"""A runtime applies updates right after the last plugin's reply; a first look before that would be in vain."""

_BATCH = 50
"""Containers read without letting the event loop go on: some 20 us each."""


async def _nothing() -> None:
    """Do nothing before a walk."""


class CgroupProbe:
    """The service's view of a container's cgroup."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups

    def is_populated(self, cgroups_path: str) -> bool:
        """Return whether its cgroup is there and has processes."""
        return self._cgroups.is_populated(cgroups_path)

    def seen(self, cgroups_path: str) -> Seen | None:
        """Return its effective cpuset; None if it cannot be read."""
        found = self._cgroups.effective(cgroups_path)
        return None if found is None else Seen(cpus=found.cpus, mems=found.mems)


class Unasked(Protocol):
    """Sends updates that answer no request."""

    async def update(self, update: Update) -> bool:
        """Send one; return whether the runtime took it. False at once where it may not be sent."""


class UnitCpusets(Protocol):
    """Sets the cpuset of a container's scope."""

    async def set_cpuset(self, cgroups_path: str, placement: Placement) -> bool:
        """Set it until the scope ends; return whether that was taken. False at once where there is no scope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How a cpuset is brought about without a reply, beside writing the cgroup file (E1)."""

    unasked: Unasked
    systemd: UnitCpusets


class Audit:
    """Runs beside the service for the daemon's life; ``kick`` makes it look now."""

    def __init__(
        self, service: Service, cgroups: Cgroups, means: Means, counters: Counters, *, period_s: float
    ) -> None:
        self._service = service
        self._cgroups = cgroups
        self._probe = CgroupProbe(cgroups)
        self._unasked = means.unasked
        self._systemd = means.systemd
        self._counters = counters
        self.period_s = period_s
        self.before_walk: Callable[[], Awaitable[None]] = _nothing
        self.after_walk: Callable[[], None] = lambda: None
        self.is_aside: Callable[[], bool] = lambda: False  # then nothing is changed past the replies
        self._kicked = asyncio.Event()
        self._since: dict[ContainerID, float] = {}  # when a pending container was first looked at, by the loop's clock

    def kick(self) -> None:
        """Have pending containers looked at soon."""
        self._kicked.set()

    async def run(self) -> None:
        """Look when kicked and once a period, until cancelled."""
        loop = asyncio.get_running_loop()
        next_walk = loop.time() + self.period_s
        pause = _FIRST_LOOK_S
        while True:
            busy = self._service.books.pending.is_open
            await self._pause(min(pause if busy else self.period_s, max(next_walk - loop.time(), 0.01)))
            if self._kicked.is_set():
                self._kicked.clear()
                pause = _FIRST_LOOK_S
                await asyncio.sleep(_FIRST_LOOK_S)
            if loop.time() >= next_walk:
                await self._walk()
                next_walk = loop.time() + self.period_s
            await self._look_at_pending(loop.time())
            pause = min(pause * 2, self.period_s)

    async def _pause(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._kicked.wait()
        except TimeoutError:
            pass

    async def _look_at_pending(self, now: float) -> None:
        """Read every pending container; mend those that no reply will reach in time."""
        wishes = self._service.books.pending.open
        for container_id in [one for one in self._since if one not in wishes]:
            del self._since[container_id]
        for container_id, wanted in wishes.items():
            grant = self._service.books.ledger.containers.get(container_id)
            if grant is None:
                continue
            seen = self._probe.seen(grant.path)
            if seen is None:
                if self._is_lost(container_id, now):
                    self._service.observe(container_id, None)
                continue
            if self._service.observe(container_id, seen):
                continue
            is_new = container_id not in self._since  # the runtime may be at it: it writes CPUs, then memory nodes
            overdue = now - self._since.setdefault(container_id, now) >= self.period_s
            if overdue or (seen.cpus <= wanted.cpus and not is_new):
                await self._mend(container_id, grant.path, seen, wanted)

    def _is_lost(self, container_id: ContainerID, now: float) -> bool:
        """Return whether a container's cgroup could not be read for a whole period."""
        return now - self._since.setdefault(container_id, now) >= self.period_s

    async def _write(self, path: str, wanted: Placement) -> bool:
        """Set a cpuset past the runtime: by systemd, which would undo what it does not know, else in the cgroup."""
        if await self._systemd.set_cpuset(path, wanted) and fulfils(self._probe.seen(path), wanted):
            return True
        return self._cgroups.write(path, wanted.cpus, wanted.mems)

    async def _mend(self, container_id: ContainerID, path: str, seen: Seen, wanted: Placement) -> None:
        """Bring a cpuset about without a reply, and read it back; never while we stand aside (E2)."""
        if self.is_aside():
            return
        if not await self._unasked.update(Update(container_id=container_id, placement=wanted)):
            if self._service.books.pending.open.get(container_id) != wanted:
                return  # changed its mind while we waited
            if (now := self._probe.seen(path)) is not None and self._service.observe(container_id, now):
                return  # it came about while we waited, and what is right is not written to
            if not await self._write(path, wanted):
                return
            self._service.books.pending.repeat(container_id, wanted)
        cause = "widened" if seen.cpus <= wanted.cpus else "overdue"
        self._counters.repairs[cause] += 1
        kv(_LOG, logging.INFO, "cpuset corrected", container_id=container_id, cpus=wanted.cpus, state=cause)
        if (now := self._probe.seen(path)) is not None:
            self._service.observe(container_id, now)

    async def _walk(self) -> None:
        """Compare all containers with the books, and look for released claims whose containers are gone."""
        await self.before_walk()
        ids: Sequence[ContainerID] = tuple(self._service.books.ledger.containers)
        for start in range(0, len(ids), _BATCH):
            for container_id in ids[start : start + _BATCH]:
                self._compare(container_id)
            await asyncio.sleep(0)
        ledger = self._service.books.ledger
        self._service.release_over([uid for uid, claim in ledger.claims.items() if claim.released])
        if not self.is_aside():
            self._service.check_quotas()
        self.after_walk()

    def _compare(self, container_id: ContainerID) -> None:
        grant = self._service.books.ledger.containers.get(container_id)
        if grant is None or container_id in self._service.books.pending.open:
            return
        seen = self._probe.seen(grant.path)
        if seen is not None and not self._service.observe(container_id, seen):
            self._counters.repairs["drift"] += 1
            kv(
                _LOG,
                logging.WARNING,
                "cpuset differs from the books",
                pod=f"{grant.namespace}/{grant.pod}",
                container=grant.name,
                container_id=container_id,
                cpus=seen.cpus,
            )
