"""The operator's choices as the policy needs them (pure); built from the configuration by the composition root."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase

from nodecpu.cpuset import CpuSet
from nodecpu.policy.facts import QoS
from nodecpu.policy.pools import Level
from nodecpu.policy.priority import Priority
from nodecpu.policy.scheduling import SchedulingClass
from nodecpu.policy.wishes import NO_WISHES, Wishes


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
    node-allocatable mapping is on the published devices, for pods that do not tell themselves (G13).
    ``token_request_mcpu`` is G15's limit. ``may_*`` are the namespaces (globs) whose pods may ask for what takes from
    others (A). ``namespace_scheduling`` gives namespaces (globs) a scheduling class, the first that matches;
    ``qos_scheduling`` gives one to QoS classes.
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
    wishes: Wishes = NO_WISHES
    """How exclusive CPUs are picked where nobody says otherwise (K2)."""
    hint_sources: frozenset[str] = frozenset()
    """What topology hints are taken from where no annotation says it: ``devices``, ``mounts`` (S)."""
    colocate_pods: bool = False
    colocate_namespaces: bool = False
    """Whether containers of a pod, or of a namespace, are drawn to each other (S)."""
    require_cpuset: bool = False
    """Whether a claim on the device of the whole machine has to say which CPUs (C9)."""
    prefer_shared: bool = False
    priority: Priority = Priority.NONE
    unlimited_burstable: Level | None = None
    lift_exclusive_quota: bool = True
    lift_pod_quota: bool = True
    ignored_handlers: tuple[str, ...] = ("kata", "kata-*")
    annotation_domain: str = "resource-policy.nri.io"
    may_preserve: tuple[str, ...] = ("kube-system",)
    may_use_reserved: tuple[str, ...] = ("kube-system",)
    may_be_realtime: tuple[str, ...] = ("kube-system",)
    scheduling_classes: Mapping[str, SchedulingClass] = field(default_factory=dict)
    namespace_scheduling: tuple[tuple[str, str], ...] = ()
    qos_scheduling: tuple[tuple[QoS, str], ...] = ()

    def is_reserved(self, namespace: str) -> bool:
        """Return whether a namespace belongs to the reserved group (globs)."""
        return not self.is_flat and self.matches(namespace, self.reserved_namespaces)

    def scheduling_of(self, namespace: str, qos: QoS, asked: str | None) -> SchedulingClass | None:
        """Return the scheduling class of a container: the one it asks for, else its namespace's, else its pod's."""
        by_namespace = (name for glob, name in self.namespace_scheduling if self.matches(namespace, (glob,)))
        name = asked or next(by_namespace, None) or dict(self.qos_scheduling).get(qos)
        return None if name is None else self.scheduling_classes.get(name)

    def is_ignored(self, runtime_handler: str) -> bool:
        """Return whether containers of a runtime handler are left alone (G17)."""
        return bool(runtime_handler) and self.matches(runtime_handler, self.ignored_handlers)

    @staticmethod
    def matches(name: str, globs: Iterable[str]) -> bool:
        """Return whether one of the globs matches a name."""
        return any(fnmatchcase(name, glob) for glob in globs)

    def least_shared(self, reserved: CpuSet) -> int:
        """Return how many sharable CPUs the node must keep free, so that shared containers always have one (C14)."""
        return max(self.min_shared, 0 if self.fallback_reserved and reserved else 1)

    def unpublished(self, reserved: CpuSet) -> int:
        """Return how many CPUs are kept out of the published capacity (C14)."""
        return self.min_shared if self.min_shared >= 0 else int(not reserved)
