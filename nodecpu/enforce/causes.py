"""Who has changed a cpuset, as far as it can be told from outside (shell, read-only; E1).

The kernel does not say who wrote. But what stands there now, and who else knows that very value, points to somebody.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from nodecpu.cpuset import CpuSet
from nodecpu.policy.pending import Seen
from nodecpu.policy.plan import Placement


class Cause(Enum):
    """Where a foreign cpuset comes from; the values label the metric."""

    PARENT = "parent"
    RUNTIME = "runtime"
    SYSTEMD = "systemd"
    RESET = "reset"
    UNKNOWN = "unknown"


WORDS = {
    Cause.PARENT: "a cgroup above it does not have these CPUs",
    Cause.RUNTIME: "by way of the runtime, which has it in its records: the kubelet or another NRI plugin",
    Cause.SYSTEMD: "by systemd, whose unit says so (daemon-reload writes that again)",
    Cause.RESET: "nothing is set any more",
    Cause.UNKNOWN: "written to the cgroup, nobody else knows of it",
}


class Files(Protocol):
    """Reads what is set, as opposed to what has effect."""

    def configured(self, cgroups_path: str) -> CpuSet | None:
        """Return the CPUs that are set in a cgroup; None if it cannot be read."""


class Units(Protocol):
    """Tells what systemd would write."""

    async def told(self, cgroups_path: str) -> CpuSet | None:
        """Return the CPUs of a container's scope; None where there is no scope or systemd does not say."""


async def cause_of(
    files: Files, units: Units, path: str, *, seen: Seen, wanted: Placement, record: CpuSet | None
) -> Cause:
    """Return the likeliest cause of a container's being elsewhere; ``record`` is what the runtime last told of it."""
    configured = files.configured(path)
    if configured == wanted.cpus:
        return Cause.PARENT
    if record is not None and record == seen.cpus:
        return Cause.RUNTIME
    if not configured:
        return Cause.RESET
    return Cause.SYSTEMD if await units.told(path) == configured else Cause.UNKNOWN
