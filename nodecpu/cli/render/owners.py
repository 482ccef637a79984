"""Who owns each CPU, and the mark that stands for the owner in pictures (pure).

Marks: capitals for claims, small letters for containers with CPUs of their own, signs for the rest. They follow from
the order of names, so equal states give equal pictures, and they tell owners apart without any colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nodecpu.admin.state import ClaimState, ContainerRow, NodeState
from nodecpu.cli.render.text import clean, counted
from nodecpu.cpuset import NO_CPUS, CpuSet

SHARED: Final = "."
RESERVED: Final = "="
ISOLATED: Final = ":"
UNUSABLE: Final = "x"
CONFLICT: Final = "!"
SEVERAL: Final = "/"

_CLAIM_STYLES: Final = tuple(f"bold black on {c}" for c in ("cyan", "green", "yellow", "magenta", "blue", "red"))
_CONTAINER_STYLES: Final = tuple(f"bold {c}" for c in ("cyan", "green", "yellow", "magenta", "blue", "red"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One line of the legend. ``text`` says who it is, ``note`` what else there is to say."""

    mark: str
    style: str
    text: str
    cpus: CpuSet
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """All owners in the order of the legend, and the owner of each online CPU."""

    all: tuple[Owner, ...]
    by_cpu: Mapping[int, Owner]

    @property
    def mark_width(self) -> int:
        """Columns that hold any mark."""
        return max((len(owner.mark) for owner in self.all), default=1)


def owners_of(state: NodeState) -> Owners:
    """Return who owns what. A CPU with two owners, which must never be, gets a mark of its own."""
    named = [*_claims(state), *_containers(state)]
    taken = twice = NO_CPUS
    for owner in named:
        twice |= taken & owner.cpus
        taken |= owner.cpus
    online = CpuSet.parse(state.machine.online)
    rest = [*_groups(state, taken)]
    if twice:
        rest.append(Owner(mark=CONFLICT, style="bold white on red", text="two owners: report this", cpus=twice))
    by_cpu = {cpu: owner for owner in (*named, *rest) for cpu in owner.cpus & online}
    if lost := CpuSet(cpu for cpu in online if cpu not in by_cpu):
        outside = Owner(mark=UNUSABLE, style="dim", text="not to be used", cpus=lost)
        rest.append(outside)
        by_cpu |= dict.fromkeys(lost, outside)
    return Owners(all=(*named, *rest), by_cpu=by_cpu)


def pod_container(container: ContainerRow) -> str:
    """Return how a container is named to people."""
    return clean(f"{container.namespace}/{container.pod}/{container.name}")


def _claims(state: NodeState) -> Iterator[Owner]:
    claims = sorted(state.claims, key=lambda c: (c.namespace, c.name, c.uid))
    for number, claim in enumerate(claims):
        yield Owner(
            mark=_letters(number, "A"),
            style=_CLAIM_STYLES[number % len(_CLAIM_STYLES)],
            text=clean(f"claim {claim.namespace}/{claim.name}"),
            cpus=NO_CPUS if claim.state == "moved" else CpuSet.parse(claim.cpus),
            note=_claim_note(claim, state),
        )


def _claim_note(claim: ClaimState, state: NodeState) -> str:
    if claim.state == "moved":
        return "the machine changed: picked anew at the next prepare"
    holders = sorted(pod_container(c) for c in state.containers if claim.uid in c.claim_uids)
    held = f"held by {', '.join(holders)}" if holders else ""
    if claim.state == "prepared":
        return held or "no container yet"
    return ", ".join(filter(None, (clean(claim.state), held)))


def _containers(state: NodeState) -> Iterator[Owner]:
    own = sorted((c for c in state.containers if c.exclusive), key=lambda c: (c.namespace, c.pod, c.name, c.id))
    for number, container in enumerate(own):
        yield Owner(
            mark=_letters(number, "a"),
            style=_CONTAINER_STYLES[number % len(_CONTAINER_STYLES)],
            text=f"container {pod_container(container)}",
            cpus=CpuSet.parse(container.exclusive),
        )


def _groups(state: NodeState, taken: CpuSet) -> Iterator[Owner]:
    usable = state.usable
    parts = (
        (RESERVED, "bold", "reserved", usable.reserved, _users(state, "reserved")),
        (ISOLATED, "cyan", "isolated, free", usable.isolated, ""),
        (SHARED, "", "shared", usable.sharable, _users(state, "shared", "mixed")),
    )
    for mark, style, text, cpus, note in parts:
        if left := CpuSet.parse(cpus) - taken:
            yield Owner(mark=mark, style=style, text=text, cpus=left, note=note)


def _users(state: NodeState, *groups: str) -> str:
    number = sum(1 for c in state.containers if c.group in groups)
    return f"by {counted(number, 'container')}" if number else ""


def _letters(number: int, first: str) -> str:
    """Return the number in letters as columns of a spreadsheet are: A to Z, AA, AB, ..."""
    text = ""
    number += 1
    while number:
        number, digit = divmod(number - 1, 26)
        text = chr(ord(first) + digit) + text
    return text
