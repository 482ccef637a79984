"""The operator's choices as the policy needs them (pure); built from the configuration by the composition root."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from nodecpu.cpuset import CpuSet


class Sharing(Enum):
    """Who may share a claim (L3)."""

    ALLOW = "allow"
    POD = "pod"
    CONTAINER = "container"


class Mirrored(Enum):
    """What a holder's own CPU request means (G13)."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Choices of the configuration's [policy] and [claims].

    ``is_flat``: exclusive CPUs by claim only, a holder's own request is accounting, no reserved group (P1).
    ``min_shared`` below 0 means: none with reserved CPUs, else one (C14). ``mapping_published`` tells whether the
    node-allocatable mapping is on the published devices (G13). ``token_request_mcpu`` is G15's limit.
    """

    driver: str = "dra.cpu"
    is_flat: bool = False
    reserved_namespaces: tuple[str, ...] = ("kube-system",)
    sharing: Sharing = Sharing.ALLOW
    mirrored: Mirrored = Mirrored.AUTO
    mapping_published: bool = False
    token_request_mcpu: int = 10
    fallback_reserved: bool = True
    min_shared: int = -1
    pin_memory: bool = True
    prefer_isolated: bool = True

    def is_reserved(self, namespace: str) -> bool:
        """Return whether a namespace belongs to the reserved group (globs)."""
        return not self.is_flat and any(fnmatchcase(namespace, glob) for glob in self.reserved_namespaces)

    def least_shared(self, reserved: CpuSet) -> int:
        """Return how many sharable CPUs the node must keep free, so that shared containers always have one (C14)."""
        return max(self.min_shared, 0 if self.fallback_reserved and reserved else 1)

    def unpublished(self, reserved: CpuSet) -> int:
        """Return how many CPUs are kept out of the published capacity (C14)."""
        return self.min_shared if self.min_shared >= 0 else int(not reserved)
