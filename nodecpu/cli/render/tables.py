"""The node's state as tables and lines (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from nodecpu.admin.state import ContainerRow, LinkState, NodeState, RefusalState
from nodecpu.cli.render.owners import pod_container
from nodecpu.cli.render.text import aligned, clean, counted, utc
from nodecpu.cpuset import CpuSet, union
from nodecpu.ending import listed

_MOST_REFUSALS: Final = 5
"""As many as fit on a screen with the rest."""


def status_lines(state: NodeState) -> Iterator[str]:
    """Yield the state at a glance."""
    yield f"{clean(state.node)}, nodecpu {clean(state.version)}{_since(state.counters.started_at)}"
    rows = [("aside", f"nothing is pinned: {state.aside}; see nodecpu check")] if state.aside else []
    rows += [
        ("runtime", _link(state.links.runtime)),
        ("kubelet", _link(state.links.kubelet)),
        ("api server", _link(state.links.api)),
        ("devices", _published(state)),
        ("cpus", _cpus(state)),
        ("claims", _by(len(state.claims), (c.state for c in state.claims))),
        ("containers", _by(len(state.containers), (c.group for c in state.containers))),
        ("confirmed", _confirmed(state.containers)),
        ("counted", _counted(state)),
    ]
    rows += _enforcement(state)
    if state.terminating:
        rows.append(("ending", f"{listed(state.terminating)}: a planned restart waits for that"))
    rows += [("state", f"{one.seen} ({one.remedy})") for one in state.preflight if one.check == "state"]
    if wrong := [one.grade for one in state.preflight if one.grade in ("failed", "warning")]:
        rows.append(("preflight", f"{_by(len(wrong), wrong)}; see nodecpu check"))
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        yield f"  {name:<{width}}  {clean(text)}"
    yield from _refusals(state.refusals)
    yield ""
    yield from pool_lines(state)


def _since(started_at: float) -> str:
    return f", since {utc(started_at)}" if started_at else ""


def _refusals(refusals: Sequence[RefusalState]) -> Iterator[str]:
    """Yield the last refusals, the latest first: who was refused is what ``nodecpu explain`` has to be asked about."""
    rows = [
        (
            one.last,
            "once" if one.count == 1 else f"{one.count} times",
            one.message if one.name in one.message else f"{one.kind} {one.name}: {one.message}",
        )
        for one in reversed(refusals)
    ]
    if rows:
        yield ""
        yield from aligned(("REFUSED LAST", "", "WHY"), rows[:_MOST_REFUSALS])
        more = len(rows) - _MOST_REFUSALS
        yield f"{f'and {more} others; ' if more > 0 else ''}nodecpu explain NAME tells what to do"


def pool_lines(state: NodeState) -> Iterator[str]:
    """Yield the table of pools."""
    rows = [(p.name, p.cpus, p.shared, f"{p.load_mcpu}m", p.mems) for p in state.pools]
    yield from aligned(("POOL", "CPUS", "SHARED NOW", "ASKED", "MEMORY"), rows)


def claim_lines(state: NodeState) -> Iterator[str]:
    """Yield the table of claims, one line per result."""
    rows = []
    for claim in sorted(state.claims, key=lambda c: (c.namespace, c.name, c.uid)):
        holders = sorted(f"{c.pod}/{c.name}" for c in state.containers if claim.uid in c.claim_uids)
        name = f"{claim.namespace}/{claim.name}"
        rows += [
            (name, claim.state, r.request, r.device, r.cpus, ", ".join(holders), claim.uid) for r in claim.results
        ] or [(name, claim.state, "", "", claim.cpus, ", ".join(holders), claim.uid)]
    yield from aligned(("CLAIM", "STATE", "REQUEST", "DEVICE", "CPUS", "HELD BY", "UID"), rows)


def container_lines(state: NodeState) -> Iterator[str]:
    """Yield the table of containers."""
    rows = [
        (
            pod_container(c),
            c.group,
            c.pool,
            c.cpus,
            c.claimed,
            c.exclusive,
            c.mems,
            "not yet" if c.confirmed is None else "yes" if _is_confirmed(c) else f"no: {c.confirmed}",
            c.id[:12],
            c.reason,
        )
        for c in sorted(state.containers, key=lambda c: (c.namespace, c.pod, c.name, c.id))
    ]
    header = ("CONTAINER", "GROUP", "POOL", "CPUS", "CLAIMED", "OWN", "MEMORY", "CONFIRMED", "ID", "WHY")
    yield from aligned(header, rows)


def _link(link: LinkState) -> str:
    peer = f"{link.name} {link.version}".strip()
    return ", ".join(filter(None, (link.state, peer, link.reason)))


def _published(state: NodeState) -> str:
    if state.links.api.state == "off":
        return "not published: there is no API server to publish them to"
    return "published" if state.published else "not published as they are now"


def _cpus(state: NodeState) -> str:
    claimed = union(CpuSet.parse(c.cpus) for c in state.claims if c.state != "moved")
    own = union(CpuSet.parse(c.exclusive) for c in state.containers)
    reserved, isolated, sharable = (
        CpuSet.parse(text) for text in (state.usable.reserved, state.usable.isolated, state.usable.sharable)
    )
    parts = [
        (len(claimed), "claimed"),
        (len(own), "exclusive"),
        (len(sharable - claimed - own), "shared"),
        (len(isolated - claimed - own), "isolated and free"),
        (len(reserved), "reserved"),
    ]
    online = len(CpuSet.parse(state.machine.online))
    return f"{online} online: {', '.join(f'{number} {what}' for number, what in parts if number)}"


def _by(total: int, words: Iterable[str]) -> str:
    parts = ", ".join(f"{number} {word}" for word, number in sorted(Counter(words).items()))
    return f"{total}: {parts}" if parts else f"{total}"


def _is_confirmed(container: ContainerRow) -> bool:
    return container.confirmed is not None and CpuSet.parse(container.confirmed) == CpuSet.parse(container.cpus)


def _confirmed(containers: Iterable[ContainerRow]) -> str:
    asked = [c for c in containers if c.confirmed is not None]
    wrong = [c for c in asked if not _is_confirmed(c)]
    text = f"{counted(len(asked) - len(wrong), 'container')} run where they should"
    return f"{text}, {len(wrong)} do not" if wrong else text


def _enforcement(state: NodeState) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of how cpusets are seen to."""
    found = state.enforcement
    if found.delays:
        told = (
            f"{name} {delay.last_ms:g} ms (worst {delay.worst_ms:g}, {delay.count} times)"
            for name, delay in sorted(found.delays.items())
        )
        yield "delays", ", ".join(told)
    names = {c.id: pod_container(c) for c in state.containers}
    if found.given_up:
        yield "given up", f"somebody else changes {', '.join(names.get(one, one) for one in found.given_up)}"
    if found.strangers:
        yield "unknown", f"the runtime has not told of {', '.join(found.strangers)}"


def _counted(state: NodeState) -> str:
    counts = state.counters
    parts = [
        (counts.forged_claims, "forged claim"),
        (counts.late_containers, "late container"),
        (counts.nri_reconnects, "runtime reconnect"),
        (sum(counts.repairs.values()), "repair"),
        (counts.given_up, "lost fight"),
        (sum(counts.refusals.values()), "refusal"),
    ]
    return ", ".join(counted(number, what) for number, what in parts if number) or "nothing out of the ordinary"
