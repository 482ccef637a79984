"""What draws a container to a place on the machine: other containers, and the devices and files it uses (pure; S, A).

Weights are by container: above 0 near it, below 0 far from it. A hint names the CPUs that something is close to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodecpu.cpuset import CpuSet
from nodecpu.ids import ContainerID, PodUID
from nodecpu.policy.grants import ContainerGrant

COLOCATION_WEIGHT: Final = 10
"""How much a container is drawn to others of its pod or namespace where that is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """The CPUs that are close to something a container uses. ``source`` names it, for people."""

    source: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Where a container is drawn to. ``strict``: it may not be anywhere else than its hints say.

    ``picks``: its exclusive CPUs are picked among those of the hints where they suffice.
    """

    weights: Mapping[ContainerID, int] = field(default_factory=dict)
    hints: tuple[Hint, ...] = ()
    strict: bool = False
    picks: bool = False

    def __bool__(self) -> bool:
        """Return whether anything draws it anywhere."""
        return bool(self.weights or self.hints)


NO_PULL: Final = Pull()


def colocated(
    containers: Iterable[ContainerGrant], pod: PodUID, namespace: str, *, pods: bool, namespaces: bool
) -> dict[ContainerID, int]:
    """Return the weights of the containers that a new one of this pod is to be near to."""
    weights: dict[ContainerID, int] = {}
    for grant in containers:
        weight = COLOCATION_WEIGHT * ((pods and grant.pod_uid == pod) + (namespaces and grant.namespace == namespace))
        if weight:
            weights[grant.id] = weight
    return weights


def near(hints: Iterable[Hint], cpus: CpuSet) -> CpuSet:
    """Return those of the CPUs that every hint names."""
    for hint in hints:
        cpus &= hint.cpus
    return cpus


def unmet(hints: Iterable[Hint], cpus: CpuSet) -> Hint | None:
    """Return the first hint that does not hold for all of these CPUs; None if all do."""
    return next((hint for hint in hints if not cpus <= hint.cpus), None)
