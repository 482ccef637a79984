"""What a container may read of what it got, as text (pure; X1)."""

from __future__ import annotations

from nodecpu.cpuset import CpuSet
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.shared import placement


def export_text(ledger: Ledger, grant: ContainerGrant) -> str:
    """Return lines that a shell can read: NAME="value", CPUs and memory nodes in the kernel's list form.

    The four kinds of CPUs together are what the container runs on. Isolated are those of its exclusive CPUs that the
    kernel isolates. One line per claim: UID, name, requests (* for all), CPUs. Empty lists are written too.
    """
    where = placement(ledger, grant)
    runs_on = CpuSet() if where is None else where.cpus
    isolated = grant.exclusive & ledger.tree.usable.isolated & runs_on
    exclusive = (grant.exclusive & runs_on) - isolated
    lines = [
        _line("SHARED_CPUS", runs_on - grant.claimed - grant.exclusive),
        _line("EXCLUSIVE_CPUS", exclusive),
        _line("ISOLATED_CPUS", isolated),
        _line("CLAIMED_CPUS", grant.claimed),
    ]
    for number, link in enumerate(grant.links, start=1):
        claim = ledger.claims.get(link.claim_uid)
        name = "-" if claim is None else f"{claim.namespace}/{claim.name}"
        requests = ",".join(link.requests) or "*"
        lines.append(_line(f"CLAIM_{number}", f"{link.claim_uid} {name} {requests} {link.cpus}"))
    root = ledger.tree.root
    mems = grant.mems or root.mems
    lines.append(_line("ALL_MEMS", mems))
    for kind, nodes in sorted(root.memory.items(), key=lambda one: one[0].value):
        lines.append(_line(f"{kind.value.upper()}_MEMS", nodes & mems))
    return "".join(lines)


def is_exported(grant: ContainerGrant) -> bool:
    """Return whether a container is ours to tell anything: one that is left alone is not."""
    return grant.group is not Group.IGNORED


def _line(name: str, value: object) -> str:
    return f'{name}="{value}"\n'
