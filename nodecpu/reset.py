"""Gives shared containers room again when the daemon is stopped for good (shell; R5, U128).

Whoever runs on CPUs of its own, or on a claim's, is left as it is, and so are those CPUs, unless all are to be given.
The books stay as they are: a daemon that is started again puts right what differs from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from nodecpu.arrangement import Arrangement, arrange
from nodecpu.config import Config
from nodecpu.cpuset import CpuSet, union
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.errors import HostError
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.plan import Placement
from nodecpu.startup import node_name
from nodecpu.store.containers import ContainerStore
from nodecpu.store.database import locked
from nodecpu.topology.sysfs import read_boot_id, read_topology

_SHARING: Final = (Group.SHARED, Group.RESERVED)


class Outcome(Enum):
    """What became of a container."""

    WIDENED = "widened"
    WIDE = "wide already"
    LEFT = "left, it has CPUs of its own"
    GONE = "gone"
    FAILED = "failed"


class UnitCpusets(Protocol):
    """Sets the cpuset of a container's scope."""

    async def set_cpuset(self, cgroups_path: str, placement: Placement) -> bool:
        """Set it until the scope ends; return whether that was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Where shared containers run now, and what became of each container in the books, by name."""

    cpus: CpuSet
    outcomes: Mapping[str, Outcome]


def reset(config: Config, systemd: UnitCpusets, *, everything: bool = False, try_only: bool = False) -> Report:
    """Widen shared containers to all usable CPUs that nobody has as its own; with ``everything`` to those as well.

    Raises StateError while the daemon runs, HostError where the machine cannot be read. ``try_only`` changes nothing.
    """
    run_dir = config.paths.run
    if not (run_dir / "containers.db").exists():
        raise HostError(
            f"{run_dir} has no books of containers: nothing can be reset",
            hint="is it the configuration that the daemon ran with? after a reboot there is nothing to reset",
        )
    with locked(run_dir / "lock"):
        cgroups = Cgroups(config.paths.cgroup)
        topology = read_topology(config.paths.root)
        arranged = arrange(config, topology, cgroups.kubepods(), node=node_name(config))
        store = ContainerStore(run_dir / "containers.db")
        try:
            grants, _ = store.load(read_boot_id(config.paths.root))
        finally:
            store.close()
        alive = {grant.id: cgroups.effective(grant.path) for grant in grants}
        there = [grant for grant in grants if alive[grant.id] is not None]
        wide = _wide(arranged, there, everything=everything)
        outcomes = {}
        for grant in grants:
            seen = alive[grant.id]
            if seen is None:
                outcome = Outcome.GONE
            elif grant.group not in _SHARING or grant.exclusive or grant.links:
                outcome = Outcome.LEFT
            elif seen.cpus == wide.cpus:
                outcome = Outcome.WIDE
            else:
                done = try_only or asyncio.run(_widen(cgroups, systemd, grant.path, wide))
                outcome = Outcome.WIDENED if done else Outcome.FAILED
            outcomes[grant.label.removeprefix("container ")] = outcome
    return Report(cpus=wide.cpus, outcomes=outcomes)


def _wide(arranged: Arrangement, there: list[ContainerGrant], *, everything: bool) -> Placement:
    """Return where shared containers are to run: never nowhere."""
    usable = arranged.usable.all
    held = union(grant.exclusive | grant.claimed for grant in there)
    cpus = usable if everything else (usable - held) or usable
    return Placement(cpus=cpus, mems=arranged.tree.root.mems)


async def _widen(cgroups: Cgroups, systemd: UnitCpusets, path: str, wide: Placement) -> bool:
    """Set a cpuset by systemd, which would undo what it does not know, else in the cgroup; return whether it holds."""
    if not await systemd.set_cpuset(path, wide):
        cgroups.write(path, wide.cpus, wide.mems)
    now = cgroups.effective(path)
    return now is not None and now.cpus == wide.cpus
