"""Which CPUs are faster than others, in three classes (pure; K4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.topology.model import CoreType, Cpu, Topology


class Priority(Enum):
    """What kind of CPUs is preferred; the values are the words of annotations and configuration."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedClasses:
    """A machine's CPUs by priority. All are normal where nothing tells them apart."""

    high: CpuSet = NO_CPUS
    normal: CpuSet = NO_CPUS
    low: CpuSet = NO_CPUS

    def widening(self, priority: Priority, free: CpuSet) -> Iterator[CpuSet]:
        """Yield parts of ``free`` to try one after the other: the wanted class, then with it the next, at last all.

        Who wants normal or low ones leaves the high ones alone as long as possible.
        """
        order = {
            Priority.HIGH: (self.high, self.normal),
            Priority.NORMAL: (self.normal, self.low),
            Priority.LOW: (self.low, self.normal),
            Priority.NONE: (),
        }[priority]
        tried = NO_CPUS
        for part in order:
            wider = tried | (free & part)
            if wider != tried and wider != free:
                yield wider
            tried = wider
        yield free


ALL_ALIKE: Final = SpeedClasses()

_EPP: Final[Mapping[str, int]] = {
    "performance": 0,
    "balance_performance": 128,
    "default": 128,
    "balance_power": 192,
    "power": 255,
}
"""What the words of energy_performance_preference stand for. Source: kernel intel_pstate document."""


def speed_classes(topology: Topology) -> SpeedClasses:
    """Return the classes of a machine's online CPUs: by core type where there are several, else by base frequency,
    else by the energy performance preference. Fastest is high, slowest low, what lies between or is not told normal.
    """
    cpus = topology.cpus.values()
    for measure in (_by_type, _by_base, _by_preference):
        ranks = {cpu.id: rank for cpu in cpus if (rank := measure(cpu)) is not None}
        if len(set(ranks.values())) > 1:
            best, worst = max(ranks.values()), min(ranks.values())
            high, low = _with(ranks, best.__eq__), _with(ranks, worst.__eq__)
            return SpeedClasses(high=high, normal=topology.online - high - low, low=low)
    return SpeedClasses(normal=topology.online)


def _with(ranks: Mapping[int, int], wanted: Callable[[int], bool]) -> CpuSet:
    found: Iterable[int] = (cpu for cpu, rank in ranks.items() if wanted(rank))
    return CpuSet(found)


def _by_type(cpu: Cpu) -> int | None:
    return None if cpu.core_type is CoreType.STANDARD else int(cpu.core_type is CoreType.PERFORMANCE)


def _by_base(cpu: Cpu) -> int | None:
    return cpu.base_khz


def _by_preference(cpu: Cpu) -> int | None:
    if cpu.epp is None:
        return None
    value = _EPP.get(cpu.epp, int(cpu.epp) if re.fullmatch("[0-9]{1,9}", cpu.epp) else None)
    return None if value is None else -value
