"""The audit: reads cpusets back, tells the service, and mends what no reply will reach (shell; E1, R7, C12).

After a change the containers concerned are read again and again, at growing intervals, until they are as they should
be. Now and then all are. What the runtime has not started is not judged before a period: its cgroup comes about in
steps. Widening is done at the second look, since at the first the runtime may be at it; so is what comes of a container
that was judged late (G9); narrowing when no reply has carried it for a period: by an update that answers no request
where the runtime is known to survive one, else by writing the cgroup; what was written also rides on the next reply, so
that the runtime's own record agrees. Where somebody else writes again and again, writing past the replies is given up
for a while, loudly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from nodecpu.cpuset import CpuSet
from nodecpu.enforce.causes import WORDS, cause_of
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.enforce.strangers import Strangers
from nodecpu.errors import StateError
from nodecpu.ids import ContainerID
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.policy.fights import PAUSE_S, Fights
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.pending import Seen, fulfils
from nodecpu.policy.plan import Placement, Update
from nodecpu.service import Service

_LOG = logging.getLogger(__name__)

_CONTESTED = "find out who else writes cpusets on this node: another NRI plugin, a CPU manager, a tuning daemon"

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

    async def told(self, cgroups_path: str) -> CpuSet | None:
        """Return the CPUs of a container's scope; None where there is no scope or systemd does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How a cpuset is brought about without a reply, beside writing the cgroup file (E1)."""

    unasked: Unasked
    systemd: UnitCpusets


@dataclass(slots=True)
class Delay:
    """How long it took from sending a cpuset past the replies until it was read back right, in seconds."""

    count: int = 0
    last_s: float = 0.0
    worst_s: float = 0.0

    def note(self, seconds: float) -> None:
        """Take in one more."""
        self.count, self.last_s, self.worst_s = self.count + 1, seconds, max(self.worst_s, seconds)


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
        self.delays = {"unasked": Delay(), "written": Delay()}
        self.strangers: tuple[str, ...] = ()
        self._strangers = Strangers(cgroups.base)
        self._fights = Fights()
        self._contested: set[ContainerID] = set()  # changed by others, or not brought about by the last attempt
        self._kicked = asyncio.Event()
        self._since: dict[ContainerID, float] = {}  # when a pending container's cgroup was first read, by the loop
        self._unread: dict[ContainerID, float] = {}  # since when it cannot be read

    @property
    def given_up(self) -> tuple[ContainerID, ...]:
        """The containers whose cpusets are left to whoever changes them."""
        return self._fights.given_up

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
        for times in (self._since, self._unread):
            for container_id in [one for one in times if one not in wishes]:
                del times[container_id]
        for container_id in wishes:
            grant = self._service.books.ledger.containers.get(container_id)
            if grant is None:
                continue
            seen = self._probe.seen(grant.path)
            if seen is None:
                if self._is_lost(container_id, now):
                    self._service.observe(container_id, None)
                continue
            self._unread.pop(container_id, None)
            if self._service.observe(container_id, seen):
                self._settled(container_id)
                continue
            # The runtime may be at it: it writes CPUs, then memory nodes.
            may_change = container_id not in self._since or self._service.is_being_made(container_id)
            is_overdue = now - self._since.setdefault(container_id, now) >= self.period_s
            wanted = self._service.books.placement(container_id)  # as of now: mending those before took its time
            if wanted is not None and (is_overdue or not (may_change or self._may_wait(container_id, seen, wanted))):
                await self._mend(grant, seen, wanted)

    def _may_wait(self, container_id: ContainerID, seen: Seen, wanted: Placement) -> bool:
        """Return whether a cpuset is left to the replies for a period: one that only loses CPUs, and is not urgent."""
        return not (seen.cpus <= wanted.cpus or self._service.books.pending.is_urgent(container_id))

    def _is_lost(self, container_id: ContainerID, now: float) -> bool:
        """Return whether a container's cgroup could not be read for a whole period."""
        return now - self._unread.setdefault(container_id, now) >= self.period_s

    async def _write(self, grant: ContainerGrant, wanted: Placement) -> bool:
        """Set a cpuset past the runtime: by systemd, which would undo what it does not know, else in the cgroup.

        Not the latter where the books have come to want another one while systemd was at it.
        """
        if await self._systemd.set_cpuset(grant.path, wanted) and fulfils(self._probe.seen(grant.path), wanted):
            return True
        return self._is_wanted(grant, wanted) and self._cgroups.write(grant.path, wanted.cpus, wanted.mems)

    def _is_wanted(self, grant: ContainerGrant, placement: Placement) -> bool:
        return self._service.books.placement(grant.id) == placement

    async def _mend(self, grant: ContainerGrant, seen: Seen, wanted: Placement) -> None:
        """Bring a cpuset about without a reply, and read it back; never while we stand aside (E2) or have given up."""
        loop = asyncio.get_running_loop()
        container_id, began = grant.id, loop.time()
        if self.is_aside() or not self._fights.may_write(container_id, wanted, began):
            return
        is_last = container_id in self._contested and self._fights.wrote(container_id, wanted, began)
        means, is_done = "unasked", await self._unasked.update(Update(container_id=container_id, placement=wanted))
        if not is_done:
            if self._service.books.pending.wish(container_id) != wanted:
                return  # changed its mind while we waited
            if (now := self._probe.seen(grant.path)) is not None and self._service.observe(container_id, now):
                self._settled(container_id)  # it came about while we waited, and what is right is not written to
                return
            means, began = "written", loop.time()
            is_done = await self._write(grant, wanted)
        now = self._probe.seen(grant.path)
        is_right = now is not None and self._service.observe(container_id, now)
        if not self._is_wanted(grant, wanted):
            return  # changed its mind while that was done; what came of it is known now
        if is_done:
            self._done(container_id, seen, wanted, means)
        if is_right:
            self._contested.discard(container_id)
            self.delays[means].note(loop.time() - began)
        if is_last or not is_right:
            self._not_brought_about(grant, seen, wanted, is_last=is_last)
        self._fights.found(container_id, is_right=is_right)

    def _done(self, container_id: ContainerID, seen: Seen, wanted: Placement, means: str) -> None:
        if means == "written":
            self._service.books.pending.repeat(container_id, wanted)
        cause = "widened" if seen.cpus <= wanted.cpus else "overdue"
        self._counters.repairs[cause] += 1
        kv(_LOG, logging.INFO, "cpuset corrected", container_id=container_id, cpus=wanted.cpus, state=cause)

    def _not_brought_about(self, grant: ContainerGrant, seen: Seen, wanted: Placement, *, is_last: bool) -> None:
        """Note that somebody or something is against a cpuset; after the last attempt tell everybody."""
        self._contested.add(grant.id)
        if not is_last:
            return
        self._counters.given_up += 1
        words = (
            f"the cpuset of container {grant.name} is changed again and again by somebody else: it should be"
            f" {wanted.cpus}, was found to be {seen.cpus}; left so for {PAUSE_S / 60:.0f} minutes"
        )
        kv(
            _LOG,
            logging.ERROR,
            "cpuset given up after repeated fights",
            pod=f"{grant.namespace}/{grant.pod}",
            container=grant.name,
            container_id=grant.id,
            cpus=wanted.cpus,
            hint=_CONTESTED,
        )
        self._service.tell(grant, "CpusetContested", f"{words} ({_CONTESTED})")

    def _settled(self, container_id: ContainerID) -> None:
        self._contested.discard(container_id)
        if self._fights.settle(container_id):
            kv(_LOG, logging.INFO, "cpuset given up is right again", container_id=container_id)

    async def _walk(self) -> None:
        """Compare all containers with the books, and look for released claims whose containers are gone."""
        await self.before_walk()
        ids: Sequence[ContainerID] = tuple(self._service.books.ledger.containers)
        for start in range(0, len(ids), _BATCH):
            adrift = [found for one in ids[start : start + _BATCH] if (found := self._compare(one)) is not None]
            for grant, seen in adrift:
                await self._tell_drift(grant, seen)
            await asyncio.sleep(0)
        self._fights.keep(frozenset(ids), asyncio.get_running_loop().time())
        self._contested &= set(ids)
        await self._look_for_strangers()
        self._release_over()
        if not self.is_aside():
            self._service.check_quotas()
        self.after_walk()

    def _release_over(self) -> None:
        """Drop released claims whose containers are gone; what cannot be recorded is tried again at the next walk."""
        ledger = self._service.books.ledger
        try:
            self._service.release_over([uid for uid, claim in ledger.claims.items() if claim.released])
        except StateError as err:
            kv(_LOG, logging.ERROR, "released claims keep their CPUs, it is tried again", err=err)

    def _compare(self, container_id: ContainerID) -> tuple[ContainerGrant, Seen] | None:
        """Return a container that was right and is not any more, with what it runs on now."""
        grant = self._service.books.ledger.containers.get(container_id)
        if grant is None or self._service.books.pending.wish(container_id) is not None:
            return None
        seen = self._probe.seen(grant.path)
        if seen is None:
            return None
        is_right = self._service.observe(container_id, seen)
        self._fights.found(container_id, is_right=is_right)
        if is_right:
            return None
        self._contested.add(container_id)
        return grant, seen

    async def _tell_drift(self, grant: ContainerGrant, seen: Seen) -> None:
        books = self._service.books
        wanted = books.placement(grant.id)
        if wanted is None:
            return
        cause = await cause_of(
            self._cgroups, self._systemd, grant.path, seen=seen, wanted=wanted, record=books.records.get(grant.id)
        )
        self._counters.repairs["drift"] += 1
        self._counters.drifts[cause.value] += 1
        kv(
            _LOG,
            logging.WARNING,
            "cpuset differs from the books",
            pod=f"{grant.namespace}/{grant.pod}",
            container=grant.name,
            container_id=grant.id,
            cpus=seen.cpus,
            state=WORDS[cause],
        )

    async def _look_for_strangers(self) -> None:
        """Find containers that the runtime has told nothing of; told once each. Only while it is there to tell."""
        if not self._service.is_synchronized:
            return
        before = self.strangers
        self.strangers = await asyncio.to_thread(self._strangers.look, self._service.known_ids)
        for place in self.strangers:
            if place not in before:
                kv(
                    _LOG,
                    logging.ERROR,
                    "container that the runtime has not told of runs on whatever CPUs it likes",
                    path=place,
                    hint="delete its pod; if this comes again, restart the runtime when no container is being stopped",
                )
