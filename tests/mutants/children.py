"""Runs trials in child processes, some at a time, each with as much CPU time as it may need and no more."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
WAIT_PER_CPU_S = 20.0
"""How much longer than its CPU time a child may take: other programs run too."""
MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Generic[Key]):
    """Something to run in a child: it answers whether all was well. ``cpu_s``: what it may take."""

    key: Key
    run: Callable[[], bool]
    cpu_s: float


def outcomes(trials: Iterator[Trial[Key]], jobs: int) -> Iterator[tuple[Key, bool]]:
    """Run trials, so many at a time, and yield as they end whether all was well; who hangs or crashes says no."""
    running: dict[int, tuple[Trial[Key], float]] = {}
    is_more = True
    while is_more or running:
        while is_more and len(running) < jobs:
            trial = next(trials, None)
            if trial is None:
                is_more = False
            else:
                running[_start(trial)] = trial, time.monotonic() + WAIT_PER_CPU_S * (trial.cpu_s + 1)
        ended = [*_ended(running)]
        for child, status in ended:
            yield running.pop(child)[0].key, os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0
        if not ended:
            time.sleep(0.005)


def allow_cpu(seconds: float) -> None:
    """End this process when it has taken so much more CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))


def _start(trial: Trial[Key]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        allow_cpu(trial.cpu_s)
        is_well = trial.run()
    except BaseException:  # noqa: BLE001 - whatever it is, it was noticed
        is_well = False
    sys.stdout.flush()
    os._exit(0 if is_well else 1)


def _ended(running: dict[int, tuple[Trial[Key], float]]) -> Iterator[tuple[int, int]]:
    for child, (_, deadline) in list(running.items()):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            yield os.waitpid(child, 0)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            yield ended, status
