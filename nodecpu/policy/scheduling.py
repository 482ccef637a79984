"""Scheduling classes: policy, priority, nice value and I/O class of a container's processes (pure; A)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class SchedulingPolicy(Enum):
    """Linux's scheduling policies, in the words of the configuration. Source: sched(7)."""

    OTHER = "other"
    FIFO = "fifo"
    RR = "rr"
    BATCH = "batch"
    IDLE = "idle"
    DEADLINE = "deadline"


class IoClass(Enum):
    """Linux's I/O scheduling classes. Source: ioprio_set(2)."""

    REALTIME = "rt"
    BEST_EFFORT = "be"
    IDLE = "idle"


REALTIME = frozenset({SchedulingPolicy.FIFO, SchedulingPolicy.RR, SchedulingPolicy.DEADLINE})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingClass:
    """One class. Times are nanoseconds, for the deadline policy only; None: left to the runtime."""

    name: str
    policy: SchedulingPolicy | None = None
    priority: int = 0
    nice: int = 0
    flags: tuple[str, ...] = ()
    runtime_ns: int = 0
    deadline_ns: int = 0
    period_ns: int = 0
    io_class: IoClass | None = None
    io_priority: int = 0

    @property
    def takes_from_others(self) -> bool:
        """Return whether it puts its processes before those of other pods."""
        return self.policy in REALTIME or self.nice < 0 or self.io_class is IoClass.REALTIME
