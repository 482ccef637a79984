"""The kinds of values a setting can have: each reads a TOML value, writes it back, says what it allows (pure).

``config.py`` puts them together into the schema. ``read`` raises ValueError: its text, if any, tells more than
``allowed`` does. What ``read`` returned, ``write`` turns into a TOML value that reads as the same.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from nodecpu.quantity import parse_milli

TomlValue = str | int | float | bool | list[str]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

MAX_AMOUNT_MCPU: Final = 65536 * 1000
"""Largest amount of CPU taken from text: more than any machine has."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Form(Protocol[T_co]):
    """One kind of value."""

    @property
    def allowed(self) -> str:
        """What may stand there, to follow "must be"."""

    def read(self, value: object) -> T_co:
        """Return the setting of a TOML value; ValueError if it is not allowed."""

    def write(self, value: object) -> TomlValue:
        """Return the TOML value of a setting."""


def parse_amount(text: str) -> int:
    """Return milli-CPU written as Kubernetes writes CPU amounts: ``10m``, ``2``, ``0.5``; ValueError otherwise."""
    amount = parse_milli(text)
    if not 0 <= amount <= MAX_AMOUNT_MCPU:
        raise ValueError("less than none" if amount < 0 else "more than any machine has")
    return amount


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(_a(value))  # noqa: TRY004 - one kind of error for all wrong values
    return value


def _a(value: object) -> str:
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return f"this is {names.get(type(value), 'a date or time')}"


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    allowed: str = "true or false"

    def read(self, value: object) -> bool:
        """Return the flag."""
        if not isinstance(value, bool):
            raise ValueError(_a(value))  # noqa: TRY004 - see above
        return value

    def write(self, value: object) -> TomlValue:
        """Return it as it is."""
        return bool(value)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within bounds, both included."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        """The bounds."""
        return f"a whole number from {self.low} to {self.high}"

    def read(self, value: object) -> int:
        """Return the number."""
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("" if isinstance(value, float) else _a(value))  # noqa: TRY004 - see above
        if not self.low <= value <= self.high:
            raise ValueError
        return value

    def write(self, value: object) -> TomlValue:
        """Return the number."""
        assert isinstance(value, int)
        return value


@dataclass(frozen=True, slots=True)
class Seconds:
    """A length of time in seconds within bounds, both included."""

    low: float
    high: float

    @property
    def allowed(self) -> str:
        """The bounds."""
        return f"seconds, a number from {self.low:g} to {self.high:g}"

    def read(self, value: object) -> float:
        """Return the seconds; a whole number is taken as well."""
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(_a(value))  # noqa: TRY004 - see above
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        if not self.low <= value <= self.high:
            raise ValueError
        return float(value)

    def write(self, value: object) -> TomlValue:
        """Return the seconds."""
        assert isinstance(value, float)
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a given pattern, of bounded length; ``allowed`` describes the pattern."""

    pattern: str
    allowed: str
    max_length: int = 253

    def read(self, value: object) -> str:
        """Return the text."""
        text = _text(value)
        if len(text) > self.max_length or re.fullmatch(self.pattern, text, re.ASCII) is None:
            raise ValueError
        return text

    def write(self, value: object) -> TomlValue:
        """Return the text."""
        return str(value)


@dataclass(frozen=True, slots=True)
class OneOf(Generic[T]):
    """One of a few words."""

    values: tuple[T, ...]

    @property
    def allowed(self) -> str:
        """The words."""
        *most, last = (f'"{value}"' for value in self.values)
        return f"{', '.join(most)} or {last}" if most else last

    def read(self, value: object) -> T:
        """Return the word."""
        for one in self.values:
            if type(value) is type(one) and value == one:
                return one
        raise ValueError("" if isinstance(value, str) else _a(value))

    def write(self, value: object) -> TomlValue:
        """Return the word."""
        return str(value)


@dataclass(frozen=True, slots=True)
class ListOf(Generic[T]):
    """A list of values of one form, none twice; the order is kept."""

    form: Form[T]

    @property
    def allowed(self) -> str:
        """What each may be."""
        return f"a list without repeats, each {self.form.allowed}"

    def read(self, value: object) -> tuple[T, ...]:
        """Return the values."""
        if not isinstance(value, list):
            raise ValueError(_a(value))  # noqa: TRY004 - see above
        found: list[T] = []
        for number, item in enumerate(value, start=1):
            try:
                one = self.form.read(item)
            except ValueError:
                raise ValueError(f"item {number} is not") from None
            if one in found:
                raise ValueError(f"item {number} repeats an earlier one")
            found.append(one)
        return tuple(found)

    def write(self, value: object) -> TomlValue:
        """Return the list."""
        assert isinstance(value, tuple)
        return [str(self.form.write(item)) for item in value]


@dataclass(frozen=True, slots=True)
class AbsolutePath:
    """An absolute path; empty text stands for ``empty``, if there is one."""

    empty: Path | None = None
    max_bytes: int = 4095

    @property
    def allowed(self) -> str:
        """The form of a path."""
        return f"an absolute path of at most {self.max_bytes} bytes"

    def read(self, value: object) -> Path:
        """Return the path."""
        text = _text(value)
        if not text and self.empty is not None:
            return self.empty
        if not text.startswith("/") or len(text.encode()) > self.max_bytes or _CONTROL.search(text):
            raise ValueError
        return Path(text)

    def write(self, value: object) -> TomlValue:
        """Return the path's text."""
        return str(value)


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of CPU in Kubernetes' notation, held in milli-CPU."""

    allowed: str = 'an amount of CPU such as "10m" or "0.5"'

    def read(self, value: object) -> int:
        """Return milli-CPU."""
        return parse_amount(_text(value))

    def write(self, value: object) -> TomlValue:
        """Return the amount with the suffix m."""
        return f"{value}m"
