"""Which CPUs this node may give, computed in one place for publishing and for allocating alike (pure; T5)."""

from __future__ import annotations

from dataclasses import dataclass

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.policy.picker import Unit, pick


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """A node's CPUs by what they may be used for; the three parts are disjoint.

    ``online`` are those that exist at present, usable or not (None: not told); holders may have others yet (T6).
    """

    reserved: CpuSet
    isolated: CpuSet
    sharable: CpuSet
    online: CpuSet | None = None

    @property
    def grantable(self) -> CpuSet:
        """CPUs that may be given exclusively: isolated plus sharable."""
        return self.isolated | self.sharable

    @property
    def all(self) -> CpuSet:
        """Everything usable, reserved included."""
        return self.reserved | self.isolated | self.sharable


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuChoice:
    """CPUs as an operator chooses them: these, all but these, or an amount of any. At most one is given."""

    cpus: CpuSet = NO_CPUS
    without: CpuSet = NO_CPUS
    mcpu: int = 0

    def __bool__(self) -> bool:
        """Return whether anything is chosen."""
        return bool(self.cpus or self.without or self.mcpu)


NO_CHOICE = CpuChoice()


def chosen_cpus(machine: Unit, choice: CpuChoice, among: CpuSet, *, besides: CpuSet, first: CpuSet = NO_CPUS) -> CpuSet:
    """Return the CPUs that a choice means ``among`` these: an amount as whole CPUs, the same ones each time.

    Those of an amount are picked near each other (K1), ``first`` ones before all, and ``besides`` only if the others do
    not suffice. Fewer than were asked are returned where there are not so many.
    """
    if choice.without:
        return among - choice.without
    if not choice.mcpu:
        return among & choice.cpus
    count = -(-choice.mcpu // 1000)
    taken = NO_CPUS
    for part in (first, among - besides, among):
        left = (part & among) - taken
        taken |= pick(machine, left, min(count - len(taken), len(left))) or NO_CPUS
    return taken


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
    return Usable(reserved=kept, isolated=rest & isolated, sharable=rest - isolated, online=online)
