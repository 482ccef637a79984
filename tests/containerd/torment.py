"""A real containerd and the daemon, killed in turn while pods come and go; the kernel's cpusets are sampled all along.

What must hold: a claim's holders run on its CPUs and nothing else, and the first one's cpuset is never written. Nobody
else is on these CPUs, except a container that was made while the link between the two was down: that one is put right
soon after the next synchronisation, and counted. In the end the claim is answered as it was, and its CPUs come back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import grpc

from nodecpu.admin.client import fetch_state
from nodecpu.admin.state import NodeState
from nodecpu.cpuset import CpuSet
from nodecpu.errors import NodeCpuError
from tests.containerd.cgroups import WriteWatch
from tests.containerd.node import Claim, Node, Started, online

SAMPLE_S: Final = 0.02
PATIENCE_S: Final = 60.0
WORKERS: Final = 2


class Violated(AssertionError):
    """A promise was broken, as seen from the cgroups."""


@dataclass
class Figures:
    """What was done and seen. ``settled_s``: the longest time from a synchronisation until all was in order."""

    runtime_kills: int = 0
    daemon_kills: int = 0
    pods: int = 0
    holders: int = 0
    samples: int = 0
    late: int = 0
    counted: int = 0
    failed_calls: int = 0
    settled_s: float = 0.0

    def text(self) -> str:
        """Return the figures in a sentence."""
        return (
            f"{self.runtime_kills} kills of containerd and {self.daemon_kills} of the daemon, {self.pods} pods"
            f" meanwhile ({self.holders} of them holders of one claim), {self.failed_calls} calls of the kubelet failed"
            f" and were made again; {self.samples} samples of cpusets, {self.late} containers were created unpinned,"
            f" {self.counted} counted as late, in order {self.settled_s:.2f} s after a synchronisation at the latest;"
            " 0 violations"
        )


@dataclass
class _Guest:
    """A container that comes and goes; ``linked``: daemon and runtime were linked all the time it was created."""

    started: Started
    holds: bool
    linked: bool
    seen_late: bool = False


@dataclass
class Torment:
    """One run; ``within_s`` is how long the correction of what was created unpinned may take."""

    node: Node
    within_s: float
    seed: int = 1
    figures: Figures = field(default_factory=Figures)
    _guests: dict[str, _Guest] = field(default_factory=dict)
    _linked_at: float | None = None  # None: the link is down, or may be
    _breaks: int = 0
    _counted_before: int = 0

    async def run(self, *, runtime_kills: int, daemon_kills: int) -> Figures:
        """Kill both so many times, in turn. Raises Violated."""
        claim = await self.node.prepare("one", 1)
        holder = await self.node.run("holder", claim)
        await self._linked()
        rng = random.Random(f"{self.seed}/kills")
        kills = [self._kill_runtime] * runtime_kills + [self._kill_daemon] * daemon_kills
        rng.shuffle(kills)
        with WriteWatch([self.node.cgroups.cpus_file(holder.cgroup)]) as watch:
            async with self._under_load(claim, holder):
                for kill in kills:
                    await asyncio.sleep(rng.random() * 0.5)
                    await kill()
                    await self._in_order(claim)
            if watch.written():
                raise Violated("the cpuset of the first holder was written")
        await self._end(claim, holder)
        return self.figures

    @asynccontextmanager
    async def _under_load(self, claim: Claim, holder: Started) -> AsyncIterator[None]:
        """Have pods come and go, and everybody sampled."""
        ending = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            sampler = tasks.create_task(self._sample(claim, holder))
            workers = [tasks.create_task(self._work(claim, number, ending)) for number in range(WORKERS)]
            yield
            ending.set()
            await asyncio.wait(workers)
            sampler.cancel()

    # The kills

    async def _kill_daemon(self) -> None:
        self._break()
        await self._count()
        await self.node.kill_daemon()
        await self.node.start_daemon()
        await self._linked()
        self.figures.daemon_kills += 1

    async def _kill_runtime(self) -> None:
        self._break()
        before = (await self._state()).counters.nri_reconnects
        await asyncio.to_thread(self.node.containerd.kill)
        await asyncio.to_thread(self.node.containerd.start)
        await self._linked(after=before)
        self.figures.runtime_kills += 1

    def _break(self) -> None:
        self._linked_at = None
        self._breaks += 1

    async def _linked(self, *, after: int = -1) -> None:
        """Wait until the daemon is synchronised, once more than ``after`` reconnections if that is given."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                state = await self._state()
                if state.links.runtime.state == "connected" and state.counters.nri_reconnects > after:
                    break
                await asyncio.sleep(SAMPLE_S)
        self._linked_at = asyncio.get_running_loop().time()

    async def _state(self) -> NodeState:
        path = self.node.containerd.directory / "run-nodecpu" / "admin.sock"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await asyncio.to_thread(fetch_state, path)
                except NodeCpuError:
                    await asyncio.sleep(SAMPLE_S)

    async def _count(self) -> None:
        """Note what the daemon has counted, before it forgets that."""
        self._counted_before += (await self._state()).counters.late_containers
        self.figures.counted = self._counted_before

    # What is seen

    async def _in_order(self, claim: Claim) -> None:
        """Wait until nobody is on the claim's CPUs who should not be. Raises Violated."""
        loop = asyncio.get_running_loop()
        assert self._linked_at is not None
        while self._intruders(claim):
            if loop.time() - self._linked_at > self.within_s:
                raise Violated(f"{self._intruders(claim)} not put right within {self.within_s:g} s")
            await asyncio.sleep(SAMPLE_S)
        self.figures.settled_s = max(self.figures.settled_s, loop.time() - self._linked_at)

    async def _sample(self, claim: Claim, holder: Started) -> None:
        while True:
            if self.node.cpus(holder) != claim.cpus:
                raise Violated(f"the first holder runs on {self.node.cpus(holder)}, its claim has {claim.cpus}")
            for name in self._intruders(claim):
                guest = self._guests[name]
                if guest.linked:
                    raise Violated(f"{name}, created with the link up, runs on {self._cpus(guest)}")
                self.figures.late += not guest.seen_late
                guest.seen_late = True
            self.figures.samples += 1 + len(self._guests)
            await asyncio.sleep(SAMPLE_S)

    def _intruders(self, claim: Claim) -> list[str]:
        """Return who is not where he should be: on the claim's CPUs without holding it, or elsewhere though he does."""
        found = []
        for name, guest in self._guests.items():
            cpus = self._cpus(guest)
            if cpus and (cpus != claim.cpus if guest.holds else not cpus.isdisjoint(claim.cpus)):
                found.append(name)
        return found

    def _cpus(self, guest: _Guest) -> CpuSet:
        try:
            return self.node.cpus(guest.started)
        except OSError:
            return CpuSet()  # it has just gone

    # The load

    async def _work(self, claim: Claim, number: int, ending: asyncio.Event) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        count = 0
        while not ending.is_set():
            count += 1
            name = f"w{number}-{count}"
            holds = rng.random() < 0.4
            guest = await self._made(name, claim if holds else None)
            await asyncio.sleep(rng.random() * 0.5)
            if guest is not None:
                await self._gone(name, guest)

    async def _made(self, name: str, claim: Claim | None) -> _Guest | None:
        """Return a new pod's container; None if the runtime died under it."""
        breaks, was_linked = self._breaks, self._linked_at is not None
        try:
            started = await self.node.run(name, claim)
        except grpc.RpcError:  # no sandbox, so no container either
            self.figures.failed_calls += 1
            await asyncio.sleep(0.1)
            return None
        guest = _Guest(started, claim is not None, was_linked and breaks == self._breaks)
        self._guests[name] = guest
        self.figures.pods += 1
        self.figures.holders += guest.holds
        return guest

    async def _gone(self, name: str, guest: _Guest) -> None:
        """Stop a guest, however long the runtime is away: one that stayed would go on holding what it holds (C12)."""
        del self._guests[name]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await self.node.stop(guest.started)
                except grpc.RpcError:
                    self.figures.failed_calls += 1
                    await asyncio.sleep(0.2)
                else:
                    return

    async def _end(self, claim: Claim, holder: Started) -> None:
        """See the claim off: it is answered as it was, and its CPUs come back."""
        other = await self.node.run("other")
        await self._count()
        if await self.node.prepare_again(claim) != claim.cdi_ids:
            raise Violated("prepared again, the claim is answered otherwise")
        await self.node.stop(holder)
        await self.node.unprepare(claim)
        await self.node.until_cpus(other, online(), timeout_s=PATIENCE_S)
