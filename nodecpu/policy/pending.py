"""What each container was seen to run on, and what is still to reach it (pure; R7).

Sent is not applied: a later plugin, a validator or a failing update can discard what we say. So a wish stays pending,
and rides on every reply, until its cgroup was read back. A container whose cpuset is right is never written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.ids import ContainerID
from nodecpu.policy.plan import Placement, Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A cpuset as it was read back, or as the runtime reported it where nothing can be read."""

    cpus: CpuSet
    mems: NodeSet


class Pending:
    """Wishes by container id. ``due`` are those for the next reply; a container being created is not due yet."""

    def __init__(self) -> None:
        self._seen: dict[ContainerID, Seen] = {}
        self._wanted: dict[ContainerID, Update] = {}
        self._created: dict[ContainerID, Placement] = {}
        self._untold: dict[ContainerID, Update] = {}
        self._carried: set[ContainerID] = set()
        self._urgent: set[ContainerID] = set()

    @property
    def carried(self) -> tuple[ContainerID, ...]:
        """The containers whose wish an earlier reply has carried: to be looked at before the next one does."""
        return tuple(sorted(self._carried & self._wanted.keys()))

    @property
    def open(self) -> Mapping[ContainerID, Placement]:
        """All wishes that were not seen to be fulfilled, those of containers being created included."""
        return {**self._created, **{container_id: update.placement for container_id, update in self._wanted.items()}}

    def wish(self, container_id: ContainerID) -> Placement | None:
        """Return a container's wish that was not seen to be fulfilled, as in ``open``."""
        update = self._wanted.get(container_id)
        return self._created.get(container_id) if update is None else update.placement

    @property
    def is_open(self) -> bool:
        """Return whether any wish was not seen to be fulfilled."""
        return bool(self._wanted or self._created)

    def seen(self, container_id: ContainerID) -> Seen | None:
        """Return what a container was last seen to run on."""
        return self._seen.get(container_id)

    def create(self, container_id: ContainerID, placement: Placement) -> None:
        """Note what a container is being created with; due only if it is then seen to have something else."""
        self._drop(container_id)
        self._created[container_id] = placement

    def want(self, update: Update) -> None:
        """Note where a container is to run; nothing is to be done if it was seen to run there."""
        container_id = update.container_id
        if container_id in self._created:
            if self._created[container_id] == update.placement:
                return
            del self._created[container_id]
        if fulfils(self._seen.get(container_id), update.placement):
            self._drop(container_id)
        elif self._wanted.get(container_id) != update:
            self._wanted[container_id] = update
            self._carried.discard(container_id)

    def see(self, container_id: ContainerID, seen: Seen, wanted: Placement | None) -> bool:
        """Note what a container runs on; return whether that is what it should. ``wanted`` is by the books."""
        self._seen[container_id] = seen
        self._created.pop(container_id, None)
        if wanted is None or fulfils(seen, wanted):
            self._drop(container_id)
            return True
        self._wanted[container_id] = Update(container_id=container_id, placement=wanted)
        return False

    def repeat(self, container_id: ContainerID, placement: Placement) -> None:
        """Have the next reply carry what was written to the cgroup past the runtime, for the runtime's own record."""
        self._untold[container_id] = Update(container_id=container_id, placement=placement)

    def hurry(self) -> None:
        """Have what is wanted now brought about at once, not by whatever reply comes next."""
        self._urgent = set(self._wanted)

    def is_urgent(self, container_id: ContainerID) -> bool:
        """Return whether a container's wish is to be brought about at once."""
        return container_id in self._urgent

    def replied(self) -> None:
        """Note that a reply carried what was due."""
        self._untold.clear()
        self._carried = set(self._wanted)

    def settle(self, container_id: ContainerID) -> None:
        """Take a wish for fulfilled: its cgroup cannot be read and never will be."""
        placement = self.wish(container_id)
        if placement is not None:
            self.see(container_id, Seen(cpus=placement.cpus, mems=placement.mems), placement)

    def forget(self, container_id: ContainerID) -> None:
        """Drop a container that is gone."""
        self._seen.pop(container_id, None)
        self._created.pop(container_id, None)
        self._untold.pop(container_id, None)
        self._drop(container_id)

    def due(self, *, besides: ContainerID | None = None) -> tuple[Update, ...]:
        """Return the updates for a reply, in order of container id; not for the container that the request is about."""
        if not self._wanted and not self._untold:
            return ()
        wishes = {**self._untold, **self._wanted}
        return tuple([wishes[container_id] for container_id in sorted(wishes) if container_id != besides])

    def _drop(self, container_id: ContainerID) -> None:
        self._wanted.pop(container_id, None)
        self._urgent.discard(container_id)


def fulfils(seen: Seen | None, wanted: Placement) -> bool:
    """Return whether a container runs where it should; memory nodes count only where we set them."""
    return seen is not None and seen.cpus == wanted.cpus and (not wanted.mems or seen.mems == wanted.mems)
