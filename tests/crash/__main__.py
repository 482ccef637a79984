"""``python -m tests.crash [KILLS [SEED]]``: the matrix on every runtime, so many kills at random, peers come and go.

Two stages at a time, each in a process of its own: whoever plays the peers must not be slow himself.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final

from nodecpu.failpoints import POINTS
from tests.crash.links import Held, come_and_go
from tests.crash.matrix import STEPS, Tally, play, unreached
from tests.crash.storm import Figures, Storm

RUNTIMES: Final = ("containerd-2.1", "containerd-2.4", "cri-o-1.37")
STAGES: Final = 2
RESTARTS: Final = 100

PART: Final = 4
"""Points of the matrix on one stage."""

ROUND: Final = 50
"""Kills on one stage: after that a fresh one, so that what a stage gathers does not slow it down."""


def matrix(runtime: str, points: Sequence[str]) -> tuple[str, Tally]:
    """Play some points of the matrix, in all steps, on one runtime."""
    tally = Tally()
    asyncio.run(play(tally, runtime, points, is_short=False))
    return runtime, tally


def storm(seed: int, kills: int) -> Figures:
    """Kill at random; the seed also chooses the runtime."""
    one = Storm(RUNTIMES[seed % len(RUNTIMES)], seed)
    asyncio.run(one.run(kills))
    return one.figures


def links(runtime: str) -> tuple[Held, Held]:
    """Have the peers restart."""
    return asyncio.run(come_and_go(runtime, RESTARTS))


def main(kills: int, seed: int) -> int:
    with ProcessPoolExecutor(STAGES) as pool:
        missed = _tell_matrix(pool)
        began = time.monotonic()
        sizes = [min(ROUND, kills - done) for done in range(0, kills, ROUND)]
        done = Figures()
        for one in as_completed([pool.submit(storm, seed + number, size) for number, size in enumerate(sizes)]):
            done += one.result()
            _say(f"random so far: {done.kills} kills, {time.monotonic() - began:.0f} s")
        _say(f"random: {done.text()}; seeds {seed} to {seed + len(sizes) - 1}, {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        first, last = pool.submit(links, RUNTIMES[0]).result()
        _say(
            f"links: {RESTARTS} restarts each of runtime, kubelet and API server, none of the daemon, no cpuset written"
            f" again; memory {first.memory_mib:.1f} and {last.memory_mib:.1f} MiB, open files {first.files} and"
            f" {last.files}; {time.monotonic() - began:.0f} s"
        )
    return 1 if missed else 0


def _tell_matrix(pool: ProcessPoolExecutor) -> Iterable[str]:
    """Play the matrix on all runtimes; return the points that none of them reached."""
    began = time.monotonic()
    tallies = {runtime: Tally() for runtime in RUNTIMES}
    parts = [(runtime, POINTS[at : at + PART]) for at in range(0, len(POINTS), PART) for runtime in RUNTIMES]
    for one in as_completed([pool.submit(matrix, *part) for part in parts]):
        runtime, tally = one.result()
        whole = tallies[runtime]
        whole.kills += tally.kills
        whole.steps += tally.steps
        _say(
            f"matrix, {runtime}: {whole.steps} of {len(POINTS) * len(STEPS)} steps, {whole.kills.total()} kills,"
            f" 0 violations, {time.monotonic() - began:.0f} s"
        )
    missed = set(POINTS)
    for runtime, whole in tallies.items():
        missed &= set(unreached(whole))
        _say(f"matrix, {runtime}: points not reached: {', '.join(unreached(whole)) or 'none'}")
    return missed


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - output


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*[*numbers, *(1000, 1)[len(numbers) :]]))
