"""How the runtimes that the lab can play differ on the wire, as recorded from real ones.

Source: recorded traffic of containerd 2.1.9, containerd 2.4 development and CRI-O 1.37 development.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from nodecpu.proto import nri_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavour:
    """One runtime's behaviour.

    ``own_rpcs``: every event has an RPC of its own, else StateChange. ``shows_...``: these fields of containers (the
    pid: of pods) are filled. ``tells_start``: PostStartContainer says RUNNING with the time; ``tells_end``:
    StopContainer says STOPPED with the exit code. ``keeps_pid``, ``keeps_pod_cgroup``: RemoveContainer and
    RemovePodSandbox still show them. ``cgroup_at_create``: the cgroup exists before the start. ``buries_refused``: a
    refused container is stopped and removed by events. ``strict_updates``: an update that fails, fails the request.
    ``start_can_fail``: a plugin's error to StartContainer counts. ``unsolicited_safe``: no deadlock (NRI 0.12.1).
    ``forgets_old_sandboxes``: no sandbox events for sandboxes from before a restart. ``cgroup_prefix``: of scopes.
    ``removed_state``: what RemoveContainer shows. ``wraps_errors``: failures say what they were about.
    """

    runtime_name: str
    runtime_version: str
    nri_version: str
    last_event: int
    own_rpcs: bool
    shows_cdi: bool
    shows_times: bool
    shows_image: bool
    shows_pod_pid: bool
    tells_start: bool
    tells_end: bool
    keeps_pid: bool
    keeps_pod_cgroup: bool
    cgroup_at_create: bool
    buries_refused: bool
    strict_updates: bool
    start_can_fail: bool
    unsolicited_safe: bool
    forgets_old_sandboxes: bool
    cgroup_prefix: str
    removed_state: nri_pb2.ContainerState.ValueType
    wraps_errors: bool

    @property
    def known_events(self) -> int:
        """Return the mask of all events that the runtime knows."""
        return (1 << (self.last_event - 1)) - 1


CONTAINERD_2_4: Final = Flavour(
    runtime_name="containerd",
    runtime_version="v2.4.0-beta.0-70-g301026e58",
    nri_version="v0.12.2",
    last_event=nri_pb2.LAST,
    own_rpcs=True,
    shows_cdi=True,
    shows_times=True,
    shows_image=True,
    shows_pod_pid=True,
    tells_start=True,
    tells_end=True,
    keeps_pid=False,
    keeps_pod_cgroup=True,
    cgroup_at_create=False,
    buries_refused=True,
    strict_updates=False,
    start_can_fail=True,
    unsolicited_safe=True,
    forgets_old_sandboxes=True,
    cgroup_prefix="cri-containerd",
    removed_state=nri_pb2.CONTAINER_UNKNOWN,
    wraps_errors=True,
)
CONTAINERD_2_1: Final = Flavour(
    runtime_name="containerd",
    runtime_version="2.1.9+unknown",
    nri_version="",
    last_event=nri_pb2.UPDATE_POD_SANDBOX,
    own_rpcs=False,
    shows_cdi=False,
    shows_times=False,
    shows_image=False,
    shows_pod_pid=True,
    tells_start=True,
    tells_end=False,
    keeps_pid=False,
    keeps_pod_cgroup=False,
    cgroup_at_create=False,
    buries_refused=True,
    strict_updates=False,
    start_can_fail=False,
    unsolicited_safe=False,
    forgets_old_sandboxes=True,
    cgroup_prefix="cri-containerd",
    removed_state=nri_pb2.CONTAINER_STOPPED,
    wraps_errors=True,
)
CRIO_1_37: Final = Flavour(
    runtime_name="cri-o",
    runtime_version="1.37.0",
    nri_version="v0.12.0",
    last_event=nri_pb2.LAST,
    own_rpcs=True,
    shows_cdi=False,
    shows_times=True,
    shows_image=False,
    shows_pod_pid=False,
    tells_start=False,
    tells_end=True,
    keeps_pid=True,
    keeps_pod_cgroup=True,
    cgroup_at_create=True,
    buries_refused=False,
    strict_updates=True,
    start_can_fail=False,
    unsolicited_safe=False,
    forgets_old_sandboxes=False,
    cgroup_prefix="crio",
    removed_state=nri_pb2.CONTAINER_STOPPED,
    wraps_errors=False,
)
FLAVOURS: Final[Mapping[str, Flavour]] = MappingProxyType(
    {"containerd-2.4": CONTAINERD_2_4, "containerd-2.1": CONTAINERD_2_1, "cri-o-1.37": CRIO_1_37}
)
