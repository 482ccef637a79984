"""Everything that can go wrong by other than our own bugs (pure).

A message names what failed, on which object and what was seen; the hint says what to do next. The same situation gives
the same words, since they may land in pod events on each retry.
"""

from __future__ import annotations

from typing import ClassVar, Final

TRIED_AGAIN: Final = "it is tried again"
"""The hint where nobody has to do anything, unless it lasts."""


class NodeCpuError(Exception):
    """Root of all errors that are reported instead of crashing."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ConfigError(NodeCpuError):
    """The configuration cannot be used; ``problems`` lists every mistake found, sorted."""

    code = "config"
    exit_code = 78

    def __init__(self, message: str, *, hint: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class HostError(NodeCpuError):
    """sysfs, cgroups, CDI directory, permissions."""

    code = "host"


class StateError(NodeCpuError):
    """A database cannot be opened, read or written, or is of a newer schema."""

    code = "state"


class ClaimError(NodeCpuError):
    """A claim cannot be prepared; the text is the claim's own error in the gRPC reply."""

    code = "claim"


class BadRequest(ClaimError):
    """The allocation is malformed or names what we do not have: no retry helps before it is changed."""

    code = "bad-request"


class NoCapacity(ClaimError):
    """Not enough free CPUs now; a later try may succeed."""

    code = "no-capacity"


class ClaimConflict(ClaimError):
    """Held by somebody else, or changed while in use; a later try may succeed."""

    code = "conflict"


class NotReady(ClaimError):
    """Something that decides is not known yet (runtime link, pod, API server); a later try may succeed."""

    code = "not-ready"


class ProtocolError(NodeCpuError):
    """A wire protocol was violated."""

    code = "protocol"


class LocalProtocolError(ProtocolError):
    """By us: a bug; nothing was sent."""

    code = "protocol-local"


class PeerProtocolError(ProtocolError):
    """By the peer: the connection is dead, every grant is kept."""

    code = "protocol-peer"


class LinkError(NodeCpuError):
    """Kubelet, runtime or API server away; retried."""

    code = "link"
