"""Which CPUs this node may give, computed in one place for publishing and for allocating alike (pure; T5)."""

from __future__ import annotations

from dataclasses import dataclass

from nodecpu.cpuset import CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """A node's CPUs by what they may be used for; the three parts are disjoint."""

    reserved: CpuSet
    isolated: CpuSet
    sharable: CpuSet

    @property
    def grantable(self) -> CpuSet:
        """CPUs that may be given exclusively: isolated plus sharable."""
        return self.isolated | self.sharable

    @property
    def all(self) -> CpuSet:
        """Everything usable, reserved included."""
        return self.reserved | self.isolated | self.sharable


def usable_cpus(
    *,
    online: CpuSet,
    isolated: CpuSet,
    available: CpuSet | None,
    kubepods: CpuSet | None,
    reserved: CpuSet,
) -> Usable:
    """Return the usable CPUs: online ∩ available ∩ the cpuset that kubepods effectively has (None: no cut).

    Reserved is taken out first; a CPU both reserved and isolated is reserved.
    """
    cpus = online
    for cut in (available, kubepods):
        if cut is not None:
            cpus &= cut
    kept = cpus & reserved
    rest = cpus - kept
    return Usable(reserved=kept, isolated=rest & isolated, sharable=rest - isolated)
