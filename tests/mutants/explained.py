"""Changes that no test can notice, each with the reason: they are counted apart, never as noticed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A change that is none: where it is, its words as the tool prints them, and why it changes nothing."""

    where: str
    what: str
    why: str


EXPLAINED: dict[str, tuple[Explained, ...]] = {}
"""By module."""
