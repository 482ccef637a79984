"""One thing that was looked at (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Grade(Enum):
    """How a thing was found. ``WARNING``: it works, but not as well as it could, or not for ever."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was looked at, how it was found, what was seen, and what to do about it."""

    check: str
    grade: Grade
    seen: str
    remedy: str = ""


def ok(check: str, seen: str) -> Finding:
    """Return that a thing is right."""
    return Finding(check=check, grade=Grade.OK, seen=seen)


def unknown(check: str, seen: str, remedy: str = "") -> Finding:
    """Return that nothing tells how a thing is."""
    return Finding(check=check, grade=Grade.UNKNOWN, seen=seen, remedy=remedy)


def warning(check: str, seen: str, remedy: str) -> Finding:
    """Return that a thing could be better."""
    return Finding(check=check, grade=Grade.WARNING, seen=seen, remedy=remedy)


def failed(check: str, seen: str, remedy: str) -> Finding:
    """Return that a thing is wrong."""
    return Finding(check=check, grade=Grade.FAILED, seen=seen, remedy=remedy)
