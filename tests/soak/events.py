"""Events as plain numbers, so that any part of a stream is a stream: what a number means is decided when it is played.

Equal seeds give equal streams, and equal streams equal lives.
"""

from __future__ import annotations

import random
from typing import Final, NamedTuple

WEIGHTS: Final = {
    "prepare": 120,
    "unprepare": 50,
    "create": 140,
    "create_holder": 120,
    "create_forged": 20,
    "create_unknown_pod": 10,
    "create_while_away": 40,
    "restart_container": 60,
    "stop": 100,
    "stop_untold": 40,
    "stop_again": 20,
    "late_event": 20,
    "seen_again": 30,
    "update_container": 30,
    "remove_sandbox": 20,
    "synchronize": 40,
    "lose_link": 15,
    "lose_updates": 10,
    "drift": 15,
    "audit": 60,
    "pods_listed": 10,
    "pod_gone": 20,
    "api_away": 10,
    "disk_fails": 6,
    "lose_specs": 4,
    "kill": 8,
    "reboot": 1,
    "other_reserved": 2,
}
"""How often each kind occurs among the others."""

_KINDS: Final = tuple(WEIGHTS)
_FREQUENCIES: Final = tuple(WEIGHTS.values())


class Event(NamedTuple):
    """One event: its kind and three numbers to make choices by."""

    kind: str
    a: int
    b: int
    c: int


def stream(seed: int, life: int, count: int) -> list[Event]:
    """Return the events of one life."""
    rng = random.Random(f"{seed}/{life}")
    kinds = rng.choices(_KINDS, _FREQUENCIES, k=count)
    return [Event(kind, rng.randrange(1 << 16), rng.randrange(1 << 16), rng.randrange(1 << 16)) for kind in kinds]
