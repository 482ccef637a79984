"""The daemon killed at random moments, during its start as well, while pods are created, restarted and ended."""

from __future__ import annotations

import asyncio
import random
import signal
from dataclasses import dataclass, field, fields

from nodecpu.lab.scheduler import Unschedulable
from tests.crash.kinds import random_kind
from tests.crash.matrix import DAEMON, MACHINE
from tests.crash.world import Broken, Full, World
from tests.crash.yard import opened_yard

WORKERS = 4
QUIET_EVERY = 10
"""After so many kills the load pauses, so that files, books and answers can be compared as well."""


@dataclass
class Figures:
    """What was done and seen. ``settled_s``: the longest time from a synchronisation until all was in order."""

    kills: int = 0
    during_start: int = 0
    checks: int = 0
    pods: int = 0
    restarts: int = 0
    refused: int = 0
    late: int = 0
    settled_s: float = 0.0

    def __add__(self, other: Figures) -> Figures:
        summed = {one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        return Figures(**summed | {"settled_s": max(self.settled_s, other.settled_s)})

    def text(self) -> str:
        """Return the figures in a sentence."""
        return (
            f"{self.kills} kills ({self.during_start} of them during a start), {self.pods} pods and {self.restarts}"
            f" restarts of containers meanwhile, {self.refused} claims refused that did not fit, {self.checks} checks,"
            f" {self.late} containers corrected that were created unpinned, order {self.settled_s:.2f} s after a"
            " synchronisation at the latest; 0 violations"
        )


@dataclass
class Storm:
    """One yard's storm; equal seeds make equal choices (not equal timing)."""

    runtime: str
    seed: int
    figures: Figures = field(default_factory=Figures)
    _quiet: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _busy: int = 0

    async def run(self, kills: int) -> None:
        """Kill the daemon so many times. Raises Broken, or whatever a worker has met."""
        async with opened_yard(runtime=self.runtime, machine=MACHINE, daemon=DAEMON) as yard:
            world = World(yard)
            self._quiet.set()
            try:
                async with asyncio.TaskGroup() as tasks:
                    workers = [tasks.create_task(self._work(world, number)) for number in range(WORKERS)]
                    await self._kill(world, kills)
                    for worker in workers:
                        worker.cancel()
            except BaseExceptionGroup as group:
                log = "\n".join(yard.daemon.log_text().splitlines()[-60:])
                what = _leaf(group)
                raise Broken(
                    f"seed {self.seed}, kill {self.figures.kills}: {type(what).__name__} {what}\n{log}"
                ) from group

    async def _kill(self, world: World, kills: int) -> None:
        rng = random.Random(f"{self.seed}/kills")
        yard = world.yard
        while self.figures.kills < kills:
            starts, synchronized = yard.daemon.starts, yard.stage.runtime.plugins.synchronized
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.2)
            else:
                await yard.up()
                await asyncio.sleep(rng.random() * 0.4)
            self.figures.during_start += not yard.daemon.ready.is_set()
            await yard.daemon.end(signal.SIGKILL)
            await yard.started_after(starts)
            self.figures.kills += 1
            if self.figures.kills % 3 == 0:
                await self._look(world, synchronized)
            if self.figures.kills % QUIET_EVERY == 0:
                await self._look_closely(world)

    async def _look(self, world: World, synchronized: int) -> None:
        """Under load: everybody is where they may be, soon after the next synchronisation."""
        await world.yard.synchronized(after=synchronized)
        self.figures.settled_s = max(self.figures.settled_s, await world.in_order())
        await world.check_running()
        self.figures.late = sum(world.late.values())
        self.figures.checks += 1

    async def _look_closely(self, world: World) -> None:
        self._quiet.clear()
        await self._idle.wait()
        await world.check_all()
        await world.check_published()
        self.figures.checks += 1
        self._quiet.set()

    async def _work(self, world: World, number: int) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        own: list[str] = []
        count = 0
        while True:
            await self._quiet.wait()
            self._busy += 1
            self._idle.clear()
            try:
                if own and (len(own) > 3 or rng.random() < 0.4):
                    await world.stop(own.pop(rng.randrange(len(own))))
                elif own and rng.random() < 0.3:
                    await world.restart_container(rng.choice(own))
                    self.figures.restarts += 1
                else:
                    count += 1
                    name = f"w{number}-{count}"
                    try:
                        await world.start(name, random_kind(rng))
                    except Unschedulable:
                        world.withdraw(name)
                        continue
                    except Full:
                        self.figures.refused += 1
                        continue
                    self.figures.pods += 1
                    own.append(name)
            finally:
                self._busy -= 1
                if not self._busy:
                    self._idle.set()
            await asyncio.sleep(rng.random() * 0.05)


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
