"""What a pod's annotations ask for (pure; rules, section A).

A key is ``<key>.<domain>``, and after it nothing, ``/pod`` or ``/container.<name>``: the container's form beats the
pod's, that beats the bare one, and where none is given the configuration decides. What cannot be understood, or may not
be asked for in its namespace, is reported and otherwise counts as not written: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from nodecpu.policy.pools import Level
from nodecpu.policy.priority import Priority
from nodecpu.policy.rules import Rules
from nodecpu.topology.model import MemoryKind

T = TypeVar("T")

_BARE, _POD, _CONTAINER = range(3)
"""The scopes of a key, the strongest last."""


class HintSource(Enum):
    """Where topology hints may come from."""

    MOUNTS = "mounts"
    DEVICES = "devices"
    POD_RESOURCES = "pod-resources"


class Fault(Enum):
    """Why an annotation counts as not written; the values label the metric."""

    UNKNOWN = "unknown"
    VALUE = "value"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An annotation that has no effect. ``text`` names it and says why."""

    fault: Fault
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What is asked for one container; None: nothing, the configuration decides.

    Lists of paths and affinity expressions stand as they were written.
    """

    prefer_shared: bool | None = None
    prefer_isolated: bool | None = None
    require_isolated: bool | None = None
    prefer_reserved: bool | None = None
    priority: Priority | None = None
    hide_hyperthreads: bool | None = None
    unlimited_burstable: Level | None = None
    preserve_cpu: bool | None = None
    preserve_memory: bool | None = None
    claimed_cpus_only: bool | None = None
    memory_types: tuple[MemoryKind, ...] | None = None
    hints: frozenset[HintSource] | None = None
    strict_hints: bool | None = None
    pick_by_hints: bool | None = None
    allow_hints: str | None = None
    deny_hints: str | None = None
    affinity: str | None = None
    anti_affinity: str | None = None
    scheduling_class: str | None = None


NO_PREFERENCES: Final = Preferences()


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotated:
    """What was asked for, and what was not understood or not allowed."""

    preferences: Preferences = NO_PREFERENCES
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """A key that is known: the field it sets, how its value is read, what it may be."""

    field: str
    read: Callable[[str], object]
    allowed: str


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


def _word(words: Mapping[str, T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        if text not in words:
            raise ValueError
        return words[text]

    return read


def _hints(text: str) -> frozenset[HintSource]:
    words = {source.value: frozenset({source}) for source in HintSource}
    words |= {"true": frozenset(HintSource), "all": frozenset(HintSource), "false": frozenset(), "none": frozenset()}
    found = [_word(words)(part) for part in _parts(text)]
    return frozenset[HintSource]().union(*found)


_KINDS: Final = (MemoryKind.DRAM, MemoryKind.HBM, MemoryKind.PMEM)


def _memory(text: str) -> tuple[MemoryKind, ...]:
    words = {kind.value: (kind,) for kind in _KINDS} | {"mixed": _KINDS}
    return tuple(dict.fromkeys(kind for part in _parts(text) for kind in _word(words)(part)))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


def _allowed(words: Iterable[str]) -> str:
    *most, last = (f'"{word}"' for word in words)
    return f"{', '.join(most)} or {last}"


_LEVELS: Final = {
    "system": Level.ROOT,
    "package": Level.SOCKET,
    "socket": Level.SOCKET,
    "die": Level.DIE,
    "numa": Level.NUMA,
    "l3cache": Level.L3,
}
_PRIORITIES: Final = {one.value: one for one in Priority}


def _flag_key(field: str) -> _Key:
    return _Key(field=field, read=_flag, allowed='"true" or "false"')


KEYS: Final[Mapping[str, _Key]] = {
    "prefer-shared-cpus": _flag_key("prefer_shared"),
    "prefer-isolated-cpus": _flag_key("prefer_isolated"),
    "require-isolated-cpus": _flag_key("require_isolated"),
    "prefer-reserved-cpus": _flag_key("prefer_reserved"),
    "prefer-cpu-priority": _Key(field="priority", read=_word(_PRIORITIES), allowed=_allowed(_PRIORITIES)),
    "hide-hyperthreads": _flag_key("hide_hyperthreads"),
    "unlimited-burstable": _Key(field="unlimited_burstable", read=_word(_LEVELS), allowed=_allowed(_LEVELS)),
    "cpu.preserve": _flag_key("preserve_cpu"),
    "memory.preserve": _flag_key("preserve_memory"),
    "claimed-cpus-only": _flag_key("claimed_cpus_only"),
    "memory-type": _Key(field="memory_types", read=_memory, allowed='a list of "dram", "hbm" and "pmem", or "mixed"'),
    "topologyhints": _Key(
        field="hints",
        read=_hints,
        allowed='"true", "false", "all", "none", or a list of "mounts", "devices" and "pod-resources"',
    ),
    "strict.topologyhints": _flag_key("strict_hints"),
    "pick-resources-by-hints": _flag_key("pick_by_hints"),
    "allow.topologyhints": _Key(field="allow_hints", read=_text, allowed="a list of paths"),
    "deny.topologyhints": _Key(field="deny_hints", read=_text, allowed="a list of paths"),
    "affinity": _Key(field="affinity", read=_text, allowed="affinity expressions"),
    "anti-affinity": _Key(field="anti_affinity", read=_text, allowed="affinity expressions"),
    "scheduling-class": _Key(field="scheduling_class", read=_text, allowed="the name of a scheduling class"),
}
"""Every key there is, by its name before the domain."""

OF_THE_POD: Final = ("affinity", "anti-affinity")
"""Keys that may also be written ``<domain>/<key>``: one expression for the whole pod, by container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """An annotation of our domain, taken apart. ``container`` is set in that scope only."""

    name: str
    key: str
    scope: int
    container: str
    value: str


def preferences_of(
    rules: Rules,
    namespace: str,
    container: str,
    annotations: Mapping[str, str],
    *,
    containers: Collection[str] = (),
) -> Annotated:
    """Return what a pod's annotations ask for one of its containers.

    ``containers`` are the names of all of its containers, where known: annotations for others are reported.
    """
    problems: list[Problem] = []
    chosen: dict[str, tuple[int, object]] = {}
    for one in _found(rules.annotation_domain, annotations, problems):
        key = KEYS.get(one.key)
        if key is None:
            problems.append(Problem(fault=Fault.UNKNOWN, text=f"{one.name}: there is no such key"))
            continue
        if one.container and containers and one.container not in containers:
            problems.append(Problem(fault=Fault.UNKNOWN, text=f"{one.name}: the pod has no such container"))
            continue
        if one.container and one.container != container:
            continue
        try:
            value = key.read(one.value)
        except ValueError:
            shown = one.value if len(one.value) <= 40 else one.value[:37] + "..."
            problems.append(Problem(fault=Fault.VALUE, text=f"{one.name}: {shown!r} is not {key.allowed}"))
            continue
        if (refusal := _forbidden(rules, namespace, key.field, value)) is not None:
            problems.append(Problem(fault=Fault.FORBIDDEN, text=f"{one.name}: {refusal}"))
            continue
        if key.field not in chosen or chosen[key.field][0] < one.scope:
            chosen[key.field] = (one.scope, value)
    if not chosen and not problems:
        return Annotated()
    make: Callable[..., Preferences] = Preferences
    return Annotated(
        preferences=make(**{field: value for field, (_, value) in chosen.items()}),
        problems=tuple(problems),
    )


def _found(domain: str, annotations: Mapping[str, str], problems: list[Problem]) -> Iterator[_Found]:
    """Yield the annotations of a domain, in order of their names; what has no scope of ours becomes a problem."""
    for name in sorted(name for name in annotations if domain in name):
        prefix, slash, rest = name.partition("/")
        if prefix == domain and rest in OF_THE_POD:
            yield _Found(name=name, key=rest, scope=_BARE, container="", value=annotations[name])
            continue
        if prefix != domain and not prefix.endswith(f".{domain}"):
            continue
        key = prefix.removesuffix(domain).removesuffix(".")
        scope, container = _BARE, ""
        if slash:
            container = rest.removeprefix("container.") if rest.startswith("container.") else ""
            scope = _CONTAINER if container else _POD
        if slash and rest != "pod" and not container:
            problems.append(Problem(fault=Fault.UNKNOWN, text=f"{name}: neither for the pod nor for a container of it"))
        else:
            yield _Found(name=name, key=key, scope=scope, container=container, value=annotations[name])


def _forbidden(rules: Rules, namespace: str, field: str, value: object) -> str | None:
    """Return why a namespace may not ask for what takes from others; None if it may."""
    if field in ("preserve_cpu", "preserve_memory") and value is True:
        setting, globs = "may_preserve", rules.may_preserve
    elif field == "prefer_reserved" and value is True:
        setting, globs = "may_use_reserved", rules.may_use_reserved
        if rules.is_reserved(namespace):
            return None
    elif field == "scheduling_class":
        known = rules.scheduling_classes.get(str(value))
        if known is None:
            return "there is no scheduling class of that name"
        if not known.takes_from_others:
            return None
        setting, globs = "may_be_realtime", rules.may_be_realtime
    else:
        return None
    if rules.matches(namespace, globs):
        return None
    return f"not allowed in namespace {namespace} (see annotations.{setting})"
