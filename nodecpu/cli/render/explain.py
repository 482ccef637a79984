"""Why a claim or container runs where it runs, why it was refused, and what would have to change, in words (pure)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Final

from nodecpu.admin.state import (
    ClaimState,
    ContainerRow,
    Machine,
    NodeState,
    RefusalState,
    ResultState,
    Shape,
    TrialRow,
)
from nodecpu.cli.render.owners import pod_container
from nodecpu.cli.render.text import clean, counted
from nodecpu.cpuset import CpuSet
from nodecpu.errors import NodeCpuError

_WIDTH: Final = 8

_GROUPS: Final = {
    "reserved": "It belongs to the reserved group and runs on the reserved CPUs.",
    "shared": "It shares CPUs with others.",
    "mixed": "It has a CPU of its own, and its fraction on shared ones.",
    "multi": "It has CPUs of its own.",
    "claimed": "It runs on the CPUs of its claims alone.",
    "ignored": "It is left alone, on whatever CPUs the runtime gives it.",
}

_GROUP_CHANGES: Final = {
    "reserved": "policy.reserved_namespaces, or the annotation prefer-reserved-cpus, decides who is in this group",
    "shared": "for CPUs of its own: a claim, or a Guaranteed pod that asks for whole CPUs",
    "ignored": "policy.ignored_handlers, or the annotation cpu.preserve, decides who is left alone",
}

_STATE_CHANGES: Final = {
    "prepared": "it keeps these CPUs until the kubelet unprepares it",
    "moved": "the machine changed over a reboot: it gets other CPUs at the next prepare",
    "unproven": "it was found by its traces; the API server has to confirm it",
}


class Explanation(Shape, frozen=True, kw_only=True):
    """What there is to say about a claim, a container, or something that is not in the books (``kind`` refused)."""

    kind: str
    name: str
    uid: str
    cpus: str = ""
    why: tuple[str, ...] = ()
    change: tuple[str, ...] = ()
    refusals: tuple[RefusalState, ...] = ()


def explained(state: NodeState, what: str) -> tuple[Explanation, ...]:
    """Return what there is to say about everything of that name; NodeCpuError if there is nothing."""
    claims = [_claim(state, one) for one in state.claims if what in _claim_names(one)]
    containers = [_container(state, one) for one in state.containers if what in _container_names(one)]
    told = [refusal for one in (*claims, *containers) for refusal in one.refusals]
    others: dict[tuple[str, str, str], list[RefusalState]] = {}
    for one in state.refusals:
        key = ("claim" if one.kind == "claim" else "container", one.name, one.uid)
        if one not in told and what in (one.uid, *_tails(one.name, pod=one.kind != "claim")):
            others.setdefault(key, []).append(one)
    refused = [
        Explanation(kind="refused", name=f"{kind} {name}", uid=uid, refusals=tuple(found))
        for (kind, name, uid), found in others.items()
    ]
    if found := (*claims, *containers, *refused):
        return found
    near = " or ".join(clean(one) for one in _near(state, what))
    raise NodeCpuError(
        f"nothing of the name {clean(what)} is in the books, and nothing of that name was refused lately",
        hint=f"did you mean {near}?" if near else "see nodecpu claims and nodecpu containers",
    )


def _near(state: NodeState, what: str) -> list[str]:
    """Return some names that may be meant: first of claims made for that pod, which are called POD-CLAIM-SUFFIX."""
    names = [name for claim in state.claims for name in _claim_names(claim)]
    refused = [name for one in state.refusals for name in (one.name, one.name.partition("/")[2])]
    names += [name for container in state.containers for name in _container_names(container)]
    pods = tuple(f"{pod}-" for pod in (what, what.rpartition("/")[0]) if pod)
    made_for = [name for name in (*refused, *names) if name.startswith(pods)]
    return list(dict.fromkeys((*made_for, *difflib.get_close_matches(what, (*names, *refused), n=3))))[:3]


def explanation_lines(found: Iterable[Explanation]) -> Iterator[str]:
    """Yield explanations as lines, with an empty one between two."""
    for number, one in enumerate(found):
        if number:
            yield ""
        yield clean(one.name if one.kind == "refused" else f"{one.kind} {one.name}")
        if one.kind == "refused":
            yield from _fields("now", ["not in the books"])
        elif one.cpus:
            yield from _fields("runs on" if one.kind == "container" else "has", [f"CPUs {one.cpus}"])
        yield from _fields("why", one.why)
        yield from _fields("change", one.change)
        for refusal in one.refusals:
            times = f"{refusal.count} times, the last at" if refusal.count > 1 else "once, at"
            kind = "resize refused" if refusal.kind == "resize" else "refused"
            yield from _fields(kind, [f"{times} {refusal.last} ({refusal.code})", refusal.message])
            yield from _fields("to do", [refusal.hint])
        yield from _fields("uid", [one.uid])


def trial_lines(rows: Iterable[TrialRow]) -> Iterator[str]:
    """Yield what would become of the things in a file."""
    for number, row in enumerate(rows):
        if number:
            yield ""
        yield clean(f"{row.kind} {row.name}: {'fits' if row.fits else 'would be refused'}")
        if not row.fits:
            yield from _fields("why", [f"{row.message} ({row.code})"])
            yield from _fields("to do", [row.hint])
            continue
        yield from _fields("gets" if row.kind == "claim" else "runs on", [f"CPUs {row.cpus}" if row.cpus else ""])
        yield from _fields("parts", [f"{one.request}: {one.cpus} of {one.device}" for one in row.results])
        where = f", pool {row.pool}" if row.pool else ""
        yield from _fields("why", [f"{row.reason}{where}" if row.reason else ""])
        yield from _fields("moves", row.moves)


def _fields(name: str, texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        if text:
            yield f"  {name:<{_WIDTH}}  {clean(text)}"
            name = ""


def _claim_names(claim: ClaimState) -> tuple[str, ...]:
    return (claim.name, f"{claim.namespace}/{claim.name}", claim.uid)


def _container_names(container: ContainerRow) -> tuple[str, ...]:
    name = f"{container.namespace}/{container.pod}/{container.name}"
    return (container.id, container.id[:12], *_tails(name, pod=True))


def _tails(name: str, *, pod: bool) -> tuple[str, ...]:
    """Return how people may call a thing of a full name: with its namespace or not, a container by its pod."""
    short = name.partition("/")[2]
    return (name, short, name.rpartition("/")[0], short.partition("/")[0]) if pod else (name, short)


def _claim(state: NodeState, claim: ClaimState) -> Explanation:
    name = f"{claim.namespace}/{claim.name}"
    holders = [pod_container(one) for one in state.containers if claim.uid in one.claim_uids]
    change = _STATE_CHANGES.get(claim.state, "")
    if claim.state == "released":
        change = f"it is released: its CPUs return when {' and '.join(holders) or 'its last container'} has ended"
    return Explanation(
        kind="claim",
        name=name,
        uid=claim.uid,
        cpus=claim.cpus,
        why=(
            *(_result(state.machine, one) for one in claim.results),
            f"held by {', '.join(holders)}" if holders else "no container holds it",
        ),
        change=(change,) if change else (),
        refusals=tuple(one for one in state.refusals if one.kind == "claim" and one.uid == claim.uid),
    )


def _result(machine: Machine, result: ResultState) -> str:
    if not result.cpus:
        return f"request {result.request}: admin access to {result.device}, no CPUs of its own"
    cpus = CpuSet.parse(result.cpus)
    text = f"request {result.request}: {counted(len(cpus), 'CPU')} of device {result.device}, as the scheduler chose"
    text += f"; {result.cpus} were free there: {_whereabouts(machine, cpus)}"
    return f"{text}; without {' and '.join(result.missed)}, which could not be had" if result.missed else text


def _whereabouts(machine: Machine, cpus: CpuSet) -> str:
    """Return where CPUs are: nodes, caches if several of a node could be meant, cores whole or in part."""
    nodes, caches, whole, part = [], [], 0, 0
    for node in (node for socket in machine.sockets for node in socket.numa):
        for cache in node.caches:
            for core in (CpuSet.parse(core.cpus) for core in cache.cores):
                if core.isdisjoint(cpus):
                    continue
                whole, part = whole + (core <= cpus), part + (not core <= cpus)
                nodes += [str(node.id)] if str(node.id) not in nodes else []
                if cache.label and len(node.caches) > 1 and cache.label not in caches:
                    caches.append(cache.label)
    parts = [f"NUMA {'nodes' if len(nodes) > 1 else 'node'} {', '.join(nodes)}"]
    parts += [f"L3 {', '.join(caches)}"] if caches else []
    parts += [counted(whole, "whole core")] if whole else []
    parts += [f"{counted(part, 'core')} in part"] if part else []
    return ", ".join(parts)


def _container(state: NodeState, one: ContainerRow) -> Explanation:
    name = pod_container(one)
    why = [_GROUPS.get(one.group, one.group), one.reason]
    claims = [f"{c.namespace}/{c.name}" for c in state.claims if c.uid in one.claim_uids]
    if claims:
        why.append(f"CPUs {one.claimed} by claim {', '.join(claims)}")
    if one.exclusive:
        why.append(f"CPUs {one.exclusive} are its own")
    if one.group in ("shared", "mixed") or (one.group == "multi" and one.cpus != one.exclusive):
        why.append(_pool(state, one.pool))
    change = [_GROUP_CHANGES.get(one.group, "")]
    if one.group == "shared" and claims:
        change = ["for its claims' CPUs alone: no CPU request beside them, or one that repeats the claims"]
    if one.confirmed is not None and one.cpus and CpuSet.parse(one.confirmed) != CpuSet.parse(one.cpus):
        change.append(f"the kernel has it on CPUs {one.confirmed} at the moment: this is being put right")
    return Explanation(
        kind="container",
        name=name,
        uid=one.id,
        cpus=one.cpus,
        why=tuple(text for text in why if text),
        change=tuple(text for text in change if text),
        refusals=tuple(r for r in state.refusals if r.kind != "claim" and r.name == name),
    )


def _pool(state: NodeState, name: str) -> str:
    pool = next((one for one in state.pools if one.name == name), None)
    if pool is None:
        return f"pool {name}"
    return f"pool {name} shares CPUs {pool.shared} among containers that ask for {pool.load_mcpu}m in all"
