"""``python -m tests.crash [KILLS [SEED]]``: the matrix on every runtime, so many kills at random, peers come and go."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

from nodecpu.failpoints import POINTS
from tests.crash.links import come_and_go
from tests.crash.matrix import STEPS, Tally, play, unreached
from tests.crash.storm import Storm

RUNTIMES: Final = ("containerd-2.1", "containerd-2.4", "cri-o-1.37")
RESTARTS: Final = 100

ROUND: Final = 125
"""Kills on one stage: after that a fresh one, so that what a stage gathers does not slow it down."""


async def _matrix(runtime: str) -> Tally:
    tally = Tally()
    await play(tally, runtime, POINTS, is_short=False)
    return tally


async def _storms(runtime: str, seeds: list[int]) -> list[Storm]:
    done = []
    for seed in seeds:
        done.append(Storm(runtime, seed))
        await done[-1].run(ROUND)
    return done


async def _main(kills: int, seed: int) -> int:
    began = time.monotonic()
    tallies = await asyncio.gather(*(_matrix(runtime) for runtime in RUNTIMES))
    for runtime, tally in zip(RUNTIMES, tallies, strict=True):
        _say(
            f"{runtime}: {len(POINTS)} points x {len(STEPS)} steps, {tally.kills.total()} kills,"
            f" {len(tally.points)} points reached, not reached: {', '.join(unreached(tally)) or 'none'}; 0 violations"
        )
    missed = set.intersection(*(set(unreached(tally)) for tally in tallies))
    _say(f"matrix: {sum(tally.kills.total() for tally in tallies)} kills in {time.monotonic() - began:.0f} s")
    rounds = -(-kills // ROUND)
    seeds = [[seed + number for number in range(rounds) if number % 2 == half] for half in range(2)]
    began = time.monotonic()
    halves = await asyncio.gather(*(_storms(RUNTIMES[half], seeds[half]) for half in range(2)))
    storms = [storm for half in halves for storm in half]
    _say(
        f"random: {sum(s.kills for s in storms)} kills ({sum(s.during_start for s in storms)} of them during a start),"
        f" {sum(s.pods for s in storms)} pods and {sum(s.restarts for s in storms)} restarts of containers meanwhile,"
        f" {sum(s.checks for s in storms)} checks, {sum(s.late for s in storms)} containers corrected that were created"
        f" unpinned, the last one at most {max((s.settled_s for s in storms), default=0):.2f} s after synchronisation;"
        f" 0 violations; seeds {seed} to {seed + rounds - 1}, {time.monotonic() - began:.0f} s"
    )
    began = time.monotonic()
    first, last = await come_and_go(RUNTIMES[0], RESTARTS)
    _say(
        f"links: {RESTARTS} restarts each of runtime, kubelet and API server, no restart of the daemon, no cpuset"
        f" written; memory {first.memory_mib:.1f} and {last.memory_mib:.1f} MiB, open files {first.files} and"
        f" {last.files}; {time.monotonic() - began:.0f} s"
    )
    return 1 if missed else 0


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    kills, seed = [*numbers, *(1000, 1)[len(numbers) :]]
    sys.exit(asyncio.run(_main(kills, seed)))
