"""What decisions need to know of the machine beside the books (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodecpu.cpuset import CpuSet
from nodecpu.policy.picker import Unit
from nodecpu.policy.priority import ALL_ALIKE, SpeedClasses


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What decisions need to know of the machine beside the books: the picker's units, and the devices of its pool.

    ``devices`` are those of every grouping, so that what was allocated under another one is still served (D7);
    ``published`` names those that the configuration offers, for messages;
    ``whole`` names those that stand for the whole machine. ``pool`` is the resource pool's name (the node's); empty:
    not checked. ``speeds`` tells faster CPUs from slower ones.
    """

    units: Unit
    devices: Mapping[str, CpuSet]
    pool: str = ""
    published: tuple[str, ...] = ()
    whole: frozenset[str] = frozenset()
    speeds: SpeedClasses = ALL_ALIKE
