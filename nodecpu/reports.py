"""What users of the cluster are told about their pods and claims (pure: the words, not the sending).

The message is the error's: cause, then the remedy in parentheses. It names the subject's own things only: whoever may
read a pod's events need not know of other pods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An object of the cluster, by its identity."""

    kind: str
    namespace: str
    name: str
    uid: str


CLAIM: Final = "ResourceClaim"
POD: Final = "Pod"


class Reports(Protocol):
    """Takes reports. Never waits, never fails; the same report again and again is one."""

    def report(self, subject: Subject, reason: str, message: str) -> None:
        """Tell something that went wrong. ``reason`` is one word in camel case, the same for the same cause."""


class NoReports:
    """Tells nobody."""

    def report(self, subject: Subject, reason: str, message: str) -> None:
        """Forget it."""
