"""Forms of settings that have a small language of their own: choices of CPUs, scheduling classes (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from nodecpu.config_forms import TomlValue, parse_amount
from nodecpu.cpuset import CpuSet
from nodecpu.policy.facts import QoS
from nodecpu.policy.scheduling import REALTIME, IoClass, SchedulingClass, SchedulingPolicy
from nodecpu.policy.usable import CpuChoice

T = TypeVar("T")

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_GLOB: Final = re.compile(r"[a-z0-9*?\[\]!-]{1,63}", re.ASCII)

_FLAGS: Final = (
    "reset-on-fork",
    "reclaim",
    "dl-overrun",
    "keep-policy",
    "keep-params",
    "util-clamp-min",
    "util-clamp-max",
)
"""Source: sched_setattr(2); NRI api.proto, LinuxSchedulerFlag."""

_MAX_PRIORITY: Final = 99
_NICE: Final = (-20, 19)
_MAX_IO_PRIORITY: Final = 7
"""Bounds of the kernel. Source: sched(7), ioprio_set(2)."""


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if re.fullmatch(r"-?[0-9]{1,15}", text, re.ASCII) is None or not low <= int(text) <= high:
            raise ValueError(f"{text} is not from {low} to {high}")
        return int(text)

    return read


def _policy(text: str) -> SchedulingPolicy:
    try:
        return SchedulingPolicy(text)
    except ValueError:
        raise ValueError(f"there is no policy {text}") from None


def _flags(text: str) -> tuple[str, ...]:
    flags = tuple(text.split(","))
    if unknown := [flag for flag in flags if flag not in _FLAGS]:
        raise ValueError(f"there is no flag {unknown[0]}")
    return flags


_WORDS: Final[Mapping[str, tuple[str, Callable[[str], object]]]] = {
    "policy": ("policy", _policy),
    "priority": ("priority", _number(1, _MAX_PRIORITY)),
    "nice": ("nice", _number(*_NICE)),
    "flags": ("flags", _flags),
    "runtime_ns": ("runtime_ns", _number(1, 10**12)),
    "deadline_ns": ("deadline_ns", _number(1, 10**12)),
    "period_ns": ("period_ns", _number(1, 10**12)),
}


@dataclass(frozen=True, slots=True)
class ClassText:
    """A scheduling class in a line."""

    allowed: str = 'a scheduling class such as "batch: policy=batch nice=10 io=idle"'

    def read(self, value: object) -> SchedulingClass:
        """Return the class; ValueError says what is wrong."""
        name, colon, rest = str(value).partition(":")
        if not isinstance(value, str) or not colon or _NAME.fullmatch(name) is None:
            raise ValueError("no name before a colon")
        fields: dict[str, object] = {}
        for word in rest.split():
            key, _, text = word.partition("=")
            if key == "io":
                fields |= _io(text)
            elif key in _WORDS and _WORDS[key][0] not in fields:
                fields[_WORDS[key][0]] = _WORDS[key][1](text)
            else:
                raise ValueError(f"{key} is unknown or twice there")
        make: Callable[..., SchedulingClass] = SchedulingClass
        made = make(name=name, **fields)
        _check(made)
        return made

    def write(self, value: object) -> TomlValue:
        """Return the line."""
        assert isinstance(value, SchedulingClass)
        words = [
            f"{key}={','.join(what) if isinstance(what, tuple) else getattr(what, 'value', what)}"
            for key, (field, _) in _WORDS.items()
            if (what := getattr(value, field))
        ]
        if value.io_class is not None:
            words.append(f"io={value.io_class.value}/{value.io_priority}")
        return f"{value.name}: {' '.join(words)}".rstrip()


def _io(text: str) -> dict[str, object]:
    word, slash, priority = text.partition("/")
    try:
        io_class = IoClass(word)
    except ValueError:
        raise ValueError(f"there is no I/O class {word}") from None
    return {"io_class": io_class, "io_priority": _number(0, _MAX_IO_PRIORITY)(priority) if slash else 0}


def _check(made: SchedulingClass) -> None:
    """Raise ValueError for what the kernel would refuse when the container starts. Source: sched(7)."""
    policy = made.policy
    is_deadline = policy is SchedulingPolicy.DEADLINE
    if (policy in REALTIME and not is_deadline) != bool(made.priority):
        raise ValueError("a priority goes with fifo and rr, and with nothing else")
    if is_deadline != bool(made.runtime_ns) or is_deadline != bool(made.deadline_ns):
        raise ValueError("runtime_ns and deadline_ns go with deadline, and with nothing else")
    if made.nice and policy not in (SchedulingPolicy.OTHER, SchedulingPolicy.BATCH):
        raise ValueError("a nice value goes with other and batch, and with nothing else")


@dataclass(frozen=True, slots=True)
class NamespaceClass:
    """Which scheduling class the pods of namespaces get."""

    allowed: str = 'namespaces and a class such as "batch-*: batch"'

    def read(self, value: object) -> tuple[str, str]:
        """Return the glob and the name of the class."""
        return _pair(value, lambda text: text if _GLOB.fullmatch(text) else None)

    def write(self, value: object) -> TomlValue:
        """Return both."""
        assert isinstance(value, tuple)
        return f"{value[0]}: {value[1]}"


@dataclass(frozen=True, slots=True)
class QosClass:
    """Which scheduling class the pods of a QoS class get."""

    allowed: str = 'a QoS class and a scheduling class such as "BestEffort: idle"'

    def read(self, value: object) -> tuple[QoS, str]:
        """Return both."""
        return _pair(value, {one.value: one for one in QoS}.get)

    def write(self, value: object) -> TomlValue:
        """Return both."""
        assert isinstance(value, tuple)
        return f"{value[0].value}: {value[1]}"


def _pair(value: object, left: Callable[[str], T | None]) -> tuple[T, str]:
    first, _, second = (part.strip() for part in str(value).partition(":"))
    found = left(first)
    if not isinstance(value, str) or found is None or _NAME.fullmatch(second) is None:
        raise ValueError
    return found, second


@dataclass(frozen=True, slots=True)
class CpuChoiceText:
    """CPUs by number, all but some, or an amount of any; empty text is no choice."""

    allowed: str = (
        'a CPU list such as "0-3,8", the same after "cpuset:" or "exclude-cpuset:", or an amount such as "750m" or 1.5'
    )

    def read(self, value: object) -> CpuChoice:
        """Return the choice. A number is an amount; a text of digits alone is the CPU of that number."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return CpuChoice(mcpu=parse_amount(f"{value:g}" if isinstance(value, int) else repr(value)))
        if not isinstance(value, str):
            raise ValueError("this is neither text nor a number")  # noqa: TRY004 - one kind of error for wrong values
        for prefix, field in (("cpuset:", "cpus"), ("exclude-cpuset:", "without")):
            if value.startswith(prefix):
                cpus = CpuSet.parse(value.removeprefix(prefix))
                return CpuChoice(cpus=cpus) if field == "cpus" else CpuChoice(without=cpus)
        if value.endswith("m") or "." in value:
            return CpuChoice(mcpu=parse_amount(value))
        return CpuChoice(cpus=CpuSet.parse(value))

    def write(self, value: object) -> TomlValue:
        """Return the shortest text that reads as the choice."""
        assert isinstance(value, CpuChoice)
        if value.without:
            return f"exclude-cpuset:{value.without}"
        return f"{value.mcpu}m" if value.mcpu else str(value.cpus)
