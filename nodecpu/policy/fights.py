"""When to stop writing a cpuset that somebody else keeps changing (pure; E1).

A round is the same cpuset written once more to the same container past the replies. After ``MOST`` rounds within
``WINDOW_S`` nothing is written for ``PAUSE_S``, unless the books want another cpuset: two who write in turn wake every
thread of the container each time, and neither wins. Replies to the runtime carry the wish all the same (R7).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nodecpu.ids import ContainerID
from nodecpu.policy.plan import Placement

MOST: Final = 10
"""More than the reloads of systemd that an upgrade of a whole system makes between two looks of ours."""

WINDOW_S: Final = 600.0
PAUSE_S: Final = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fight:
    wanted: Placement
    rounds: tuple[float, ...] = ()
    until: float | None = None
    is_right: bool = False


class Fights:
    """The rounds of each container; times are seconds of one clock that never goes back."""

    def __init__(self) -> None:
        self._fights: dict[ContainerID, _Fight] = {}

    @property
    def given_up(self) -> tuple[ContainerID, ...]:
        """The containers that are left to whoever changed them, in order; not those that are right at present."""
        lost = (one for one, fight in self._fights.items() if fight.until is not None and not fight.is_right)
        return tuple(sorted(lost))

    def may_write(self, container_id: ContainerID, wanted: Placement, now: float) -> bool:
        """Return whether a cpuset may be written once more; a pause that is over begins a new count."""
        fight = self._fights.get(container_id)
        if fight is None or fight.until is None:
            return True
        if fight.wanted == wanted and now < fight.until:
            return False
        del self._fights[container_id]
        return True

    def wrote(self, container_id: ContainerID, wanted: Placement, now: float) -> bool:
        """Note a round; return whether it was the last one for now."""
        fight = self._fights.get(container_id)
        if fight is None or fight.wanted != wanted:
            fight = _Fight(wanted=wanted)
        rounds = (*(at for at in fight.rounds if now - at < WINDOW_S), now)
        is_last = len(rounds) >= MOST
        self._fights[container_id] = replace(fight, rounds=rounds, until=now + PAUSE_S if is_last else None)
        return is_last

    def found(self, container_id: ContainerID, *, is_right: bool) -> None:
        """Note how a container was found: the last round may have been the one that holds. The pause goes on."""
        fight = self._fights.get(container_id)
        if fight is not None and fight.until is not None:
            self._fights[container_id] = replace(fight, is_right=is_right)

    def keep(self, container_ids: frozenset[ContainerID], now: float) -> None:
        """Forget all containers but these, and of these whose pause is over."""
        self._fights = {
            one: fight
            for one, fight in self._fights.items()
            if one in container_ids and (fight.until is None or now < fight.until)
        }

    def settle(self, container_id: ContainerID) -> bool:
        """Note that a container given up was seen to be right; return whether it was not before.

        The pause goes on: a reply has carried the wish, say, and the other one comes again.
        """
        fight = self._fights.get(container_id)
        if fight is None or fight.until is None:
            return False
        self._fights[container_id] = replace(fight, is_right=True)
        return not fight.is_right
