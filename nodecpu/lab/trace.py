"""What went over the lab's sockets, in order: for printing under each step, and for comparing with recordings."""

from __future__ import annotations

import time
from dataclasses import dataclass

from google.protobuf.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One message. ``link`` is nri, dra, registration or api; ``text`` a short description of what it says."""

    at_ms: float
    link: str
    sender: str
    call: str
    text: str
    message: Message | None = None


class Trace:
    """The messages so far."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._sent: list[Sent] = []

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, link: str, sender: str, call: str, text: str, message: Message | None = None) -> None:
        """Note a message."""
        at_ms = (time.monotonic() - self._start) * 1000
        self._sent.append(Sent(at_ms=at_ms, link=link, sender=sender, call=call, text=text, message=message))

    def since(self, mark: int) -> tuple[Sent, ...]:
        """Return what came after ``len(trace)`` was ``mark``."""
        return tuple(self._sent[mark:])

    def calls(self, link: str, sender: str, *, since: int = 0) -> list[str]:
        """Return the names of one sender's calls on one link, in order."""
        return [sent.call for sent in self._sent[since:] if sent.link == link and sent.sender == sender]
