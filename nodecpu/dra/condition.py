"""How each device is (pure; D6): healthy, unhealthy with the reason, or unknown.

Unhealthy is what a pod that holds the device suffers from: CPUs that a claim holds are offline, or nothing of the
device is left. CPUs of a device that nobody holds only lower what is offered. While the container runtime is away for
long the CPUs are as they were, but nobody sees to it: unknown, since a healthy pod must not be called ill for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.policy.grants import ClaimGrant

MAX_MESSAGE_BYTES: Final = 1024
"""The kubelet cuts at so many. Source: interfaces.md 2.4."""


class Health(Enum):
    """A device's health, with the numbers of the wire."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A device's health and, unless it is healthy, why."""

    pool: str
    device: str
    health: Health
    message: str = ""


def conditions(
    devices: Mapping[str, CpuSet],
    claims: Iterable[ClaimGrant],
    *,
    pool: str,
    online: CpuSet,
    runtime_away: bool,
) -> tuple[Condition, ...]:
    """Return the condition of every device, and of those of other names that claims still hold (D7); sorted by name.

    ``devices`` are the CPUs behind the names that are published. ``online`` is what the kernel says now.
    """
    held: dict[str, CpuSet] = {}
    for claim in claims:
        for result in claim.results:
            if result.device and not claim.moved and not result.admin_access:
                held[result.device] = held.get(result.device, NO_CPUS) | result.cpus
    return tuple(
        _condition(
            pool,
            name,
            devices.get(name, NO_CPUS) | held.get(name, NO_CPUS),
            lost=held.get(name, NO_CPUS) - online,
            online=online,
            runtime_away=runtime_away,
        )
        for name in sorted({*devices, *held})
    )


def _condition(pool: str, name: str, cpus: CpuSet, *, lost: CpuSet, online: CpuSet, runtime_away: bool) -> Condition:
    health, message = Health.HEALTHY, ""
    if lost:
        health, message = Health.UNHEALTHY, f"CPUs {lost} are offline, claims hold them"
    elif cpus and cpus.isdisjoint(online):
        health, message = Health.UNHEALTHY, f"all its CPUs ({cpus}) are offline"
    elif runtime_away:
        health = Health.UNKNOWN
        message = "the container runtime has not been connected for minutes: cpusets are not looked after"
    return Condition(pool=pool, device=name, health=health, message=_cut(message))


def _cut(message: str) -> str:
    """Return a message within the limit, whole characters only."""
    return message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
