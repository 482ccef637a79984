"""The crash matrix: one short life of a node, the daemon killed at every named point of every step of it."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodecpu.failpoints import POINTS
from nodecpu.lab.jsontree import JsonObject
from tests.crash.kinds import Kind
from tests.crash.room import RESERVED
from tests.crash.world import Broken, World
from tests.crash.yard import opened_yard

MACHINE: Final = "2 sockets, 2 nodes, 2 cores, 2 threads"
DAEMON: Final[JsonObject] = {
    "policy": {"reserved": str(RESERVED)},
    "enforce": {"period_s": 0.6},
    "claims": {"wait_s": 2.0},
    "log": {"level": "info"},
}
Step = Callable[[World], Awaitable[None]]


async def _restart(world: World) -> None:
    daemon, starts = world.yard.daemon, world.yard.daemon.starts
    await daemon.end(signal.SIGTERM)
    await world.yard.started_after(starts)
    await world.yard.up()


STEPS: Final[dict[str, Step]] = {
    "start bare": lambda w: w.start("bare", Kind()),
    "start burstable": lambda w: w.start("burstable", Kind(cpu="300m")),
    "start system": lambda w: w.start("system", Kind(cpu="100m", namespace="kube-system")),
    "start holder": lambda w: w.start("web", Kind(claim=4, numa=0)),
    "start exclusive": lambda w: w.start("own", Kind(cpu="2", limit="2")),
    "start second holder": lambda w: w.start("batch", Kind(claim=2, numa=1)),
    "resize": lambda w: w.resize("burstable", "500m"),
    "restart holder": lambda w: w.restart_container("web"),
    "drift": lambda w: w.drift("bare"),
    "wipe slices": lambda w: w.wipe_slices(),
    "stop holder": lambda w: w.stop("web"),
    "restart daemon": _restart,
    "start third holder": lambda w: w.start("third", Kind(claim=3, numa=0)),
    "stop exclusive": lambda w: w.stop("own"),
    "stop second holder": lambda w: w.stop("batch"),
    "stop third holder": lambda w: w.stop("third"),
    "stop burstable": lambda w: w.stop("burstable"),
    "stop system": lambda w: w.stop("system"),
    "stop bare": lambda w: w.stop("bare"),
}

REACHED_IN: Final = {
    "start-books-loaded": "restart daemon",
    "start-specs-restored": "restart daemon",
    "socket-open": "restart daemon",
    "socket-bound": "restart daemon",
    "socket-renamed": "restart daemon",
    "socket-remove": "restart daemon",
    "socket-removed": "restart daemon",
    "admin-bound": "restart daemon",
    "admin-renamed": "restart daemon",
    "admin-removed": "restart daemon",
    "slice-write": "wipe slices",
    "slice-written": "wipe slices",
    "cgroup-write": "drift",
    "cgroup-mems-written": "drift",
    "cgroup-written": "drift",
    "update-send": "drift",
    "update-sent": "drift",
    "cdi-remove": "stop holder",
    "cdi-removed": "stop holder",
    "unprepare-reply": "stop holder",
}
"""The step that a short matrix uses; points not named here are reached when a holder is started."""


BY_UPDATE: Final = ("update-send", "update-sent")
"""Reached on runtimes that are sent updates which answer no request; the others have their cgroups written."""


@dataclass
class Tally:
    """What was done: kills by point and step, and all steps played with a point armed."""

    kills: Counter[tuple[str, str]] = field(default_factory=Counter)
    steps: int = 0

    @property
    def points(self) -> set[str]:
        return {point for point, _ in self.kills}


async def play(tally: Tally, runtime: str, points: Sequence[str], *, is_short: bool) -> None:
    """Play the life once per point (short: once, every point at the step where it is reached). Raises Broken."""
    async with opened_yard(runtime=runtime, machine=MACHINE, daemon=DAEMON) as yard:
        world = World(yard)
        if is_short:
            await _life(tally, world, points, is_short=True)
            return
        for point in points:
            await _life(tally, world, [point], is_short=False)


async def _life(tally: Tally, world: World, points: Sequence[str], *, is_short: bool) -> None:
    for name, step in STEPS.items():
        due = [point for point in points if not is_short or REACHED_IN.get(point, "start holder") == name]
        for number, point in enumerate(due):
            if number:
                await _again(world, name)
            await _killed(tally, world, point, name, step)
        if not due:
            await step(world)


async def _again(world: World, name: str) -> None:
    """Bring the world to where a step can be done once more."""
    if name == "start holder":
        await world.stop("web")
    if name == "stop holder":
        await world.start("web", Kind(claim=4, numa=0))


async def _killed(tally: Tally, world: World, point: str, name: str, step: Step) -> None:
    yard = world.yard
    deaths = yard.deaths
    yard.daemon.arm(point)
    try:
        async with asyncio.timeout(60):
            await step(world)
            await world.check_all()
    except (Broken, TimeoutError, Exception) as error:
        log = "\n".join(yard.daemon.log_text().splitlines()[-40:])
        raise Broken(f"killed at {point} in step {name!r}: {type(error).__name__} {error}\n{log}") from error
    finally:
        yard.daemon.disarm()
    tally.steps += 1
    if yard.deaths > deaths:
        tally.kills[point, name] += 1


def unreached(tally: Tally) -> list[str]:
    """Return the points at which nobody was killed."""
    return [point for point in POINTS if point not in tally.points]
