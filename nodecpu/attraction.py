"""What draws a container to a place, by configuration and by annotation (shell around the policy; S, A)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from nodecpu.ids import ContainerID
from nodecpu.locality import Wanted, patterns
from nodecpu.policy.affinity import MAX_TEXT, Subject, affinities_of, weights
from nodecpu.policy.annotations import Fault, HintSource, Preferences, Problem
from nodecpu.policy.facts import Container, PodSpec, Sandbox
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.pull import NO_PULL, Hint, Pull, colocated
from nodecpu.policy.rules import Rules

_HINTS_KEY: Final = "topologyhints"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attraction:
    """Where a container is drawn to, and annotations about it that have no effect."""

    pull: Pull
    problems: tuple[Problem, ...] = ()


class Nearness(Protocol):
    """Looks where devices and mounts are."""

    def hints(self, container: Container, wanted: Wanted) -> tuple[Hint, ...]:
        """Return a hint for each that is close to a NUMA node."""


def attraction(  # noqa: PLR0913 - each is a fact of its own
    rules: Rules,
    ledger: Ledger,
    spec_of: Callable[[ContainerGrant], PodSpec | None],
    sandbox: Sandbox,
    container: Container,
    preferences: Preferences,
    locality: Nearness | None = None,
) -> Attraction:
    """Return what draws a container to others that are in the books, and to what it uses."""
    if rules.is_flat:  # there is one pool
        return Attraction(pull=NO_PULL)
    drawn: dict[ContainerID, int] = {}
    problems: list[Problem] = []
    if rules.colocate_pods or rules.colocate_namespaces:
        drawn |= colocated(
            ledger.containers.values(),
            sandbox.uid,
            sandbox.namespace,
            pods=rules.colocate_pods,
            namespaces=rules.colocate_namespaces,
        )
    for key, text, sign in (("affinity", preferences.affinity, 1), ("anti-affinity", preferences.anti_affinity, -1)):
        if text is None:
            continue
        try:
            found = affinities_of(container.name, _yaml(text), sign)
        except ValueError as error:
            problems.append(Problem(fault=Fault.VALUE, text=f"{rules.annotation_domain}/{key}: {error}"))
            continue
        subjects = [Subject(grant=grant, pod=spec_of(grant)) for grant in ledger.containers.values()]
        for container_id, weight in weights(found, sandbox.uid, subjects).items():
            drawn[container_id] = drawn.get(container_id, 0) + weight
    wanted, faults = _wanted(rules, preferences)
    problems += faults
    hints = locality.hints(container, wanted) if locality is not None and wanted.sources else ()
    strict, picks = bool(hints and preferences.strict_hints), bool(hints and preferences.pick_by_hints)
    return Attraction(pull=Pull(weights=drawn, hints=hints, strict=strict, picks=picks), problems=tuple(problems))


def asks_kubelet(rules: Rules, sandbox: Sandbox) -> bool:
    """Return whether the devices that the kubelet gave can matter for containers of a pod (S)."""
    if rules.is_flat:
        return False
    return HintSource.POD_RESOURCES.value in rules.hint_sources or any(
        _HINTS_KEY in key and text not in ("false", "none") for key, text in sandbox.annotations.items()
    )


def _wanted(rules: Rules, preferences: Preferences) -> tuple[Wanted, list[Problem]]:
    """Return whose locality counts, and which lists of paths have no effect."""
    sources = preferences.hints
    if sources is None:
        sources = frozenset(HintSource(word) for word in rules.hint_sources)
    found: dict[str, tuple[str, ...]] = {}
    problems: list[Problem] = []
    for key, text in (("allow", preferences.allow_hints), ("deny", preferences.deny_hints)):
        try:
            found[key] = patterns(text)
        except ValueError as error:
            problems.append(Problem(fault=Fault.VALUE, text=f"{key}.{_HINTS_KEY}.{rules.annotation_domain}: {error}"))
    return Wanted(sources=sources, allow=found.get("allow", ()), deny=found.get("deny", ())), problems


def _yaml(text: str) -> object:
    """Return what YAML says; raises ValueError."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"longer than {MAX_TEXT} characters")
    if "&" in text and "*" in text:
        raise ValueError("aliases are not taken")  # they could make much of little
    try:
        tree: object = msgspec.yaml.decode(text)  # loads the YAML library when it is first used
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"not YAML: {(str(error).splitlines() or [''])[0][:100]}") from error
    return tree
