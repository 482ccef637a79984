"""Plays lives one after the other; a failure is told with its seed and the shortest stream found that shows it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.soak.events import Event, stream
from tests.soak.life import Life

LENGTH: Final = 2000
"""Events of one life: long enough for the rare ones to meet, short enough to be made shorter when it fails."""

SHORTEN_S: Final = 60.0

Play = Callable[[list[Event]], tuple[int, str] | None]
"""Plays one life; returns how far it came and what failed, None if nothing did."""


@dataclass
class Report:
    """What was played, and what the process holds: resident memory in MiB and open files, at first and at last."""

    seed: int
    events: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    seconds: float = 0.0
    memory: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def text(self) -> str:
        """Return the figures in a few lines."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.events.most_common())
        return (
            f"seed {self.seed}: {self.events.total()} events, {self.lives} lives, {self.seconds:.0f} s, 0 violations\n"
            f"memory {self.memory[0]:.1f} MiB after the first life, {self.memory[-1]:.1f} MiB after the last;"
            f" open files {self.files[0]} and {self.files[-1]}\n{kinds}"
        )


def soak(events: int, seed: int) -> Report:
    """Play so many events. Raises AssertionError with the seed and a minimal stream."""
    report = Report(seed)
    began = time.monotonic()
    logging.disable(logging.CRITICAL)  # most of the time would go into log lines
    try:
        while report.events.total() < events:
            played = stream(seed, report.lives, min(LENGTH, events - report.events.total()))
            if failure := fails(played):
                raise AssertionError(_told(seed, report.lives, played, failure))
            report.lives += 1
            report.events.update(event.kind for event in played)
            if report.lives == 1 or report.lives % 10 == 0 or report.events.total() >= events:
                gc.collect()
                report.memory.append(_resident_mib())
                report.files.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - without opening more than one
    finally:
        logging.disable(logging.NOTSET)
    report.seconds = time.monotonic() - began
    return report


def fails(events: list[Event]) -> tuple[int, str] | None:
    """Play one life; return how far it came and what failed, None if nothing did."""
    return asyncio.run(_fails(events))


async def _fails(events: list[Event]) -> tuple[int, str] | None:
    async with Life() as life:
        for number, event in enumerate(events):
            try:
                await life.play(event)
            except Exception as error:  # noqa: BLE001 - any exception is a find
                where = traceback.extract_tb(error.__traceback__)[-1]
                return number, f"{type(error).__name__} in {where.name} ({Path(where.filename).name}): {error}"
    return None


def shorten(events: list[Event], failure: str, *, fails: Play = fails) -> list[Event]:
    """Return a shorter stream that fails alike: parts are left out, ever smaller ones, until nothing more can go."""
    deadline = time.monotonic() + SHORTEN_S
    kind = _without_ids(failure)
    size = max(len(events) // 2, 1)
    while time.monotonic() < deadline:
        at, before = 0, len(events)
        while at < len(events) and time.monotonic() < deadline:
            candidate = events[:at] + events[at + size :]
            found = fails(candidate)
            if found is not None and _without_ids(found[1]) == kind:
                events = candidate[: found[0] + 1]
            else:
                at += size
        if size == 1 and len(events) == before:
            break
        size = max(size // 2, 1)
    return events


def _without_ids(failure: str) -> str:
    return re.sub(r"[0-9a-f]*[0-9][0-9a-f-]*", "N", failure)


def _told(seed: int, life: int, events: list[Event], failure: tuple[int, str]) -> str:
    number, what = failure
    short = shorten(events[: number + 1], what)
    lines = "\n".join(f"    Event{tuple(event)!r}," for event in short)
    return f"seed {seed}, life {life}, event {number}: {what}\n{len(short)} events show it:\n[\n{lines}\n]"


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
