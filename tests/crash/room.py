"""Whether a claim that was refused would have had room, counted from outside and never from the daemon's books."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nodecpu.cpuset import CpuSet
from nodecpu.lab.containers import ContainerRecord
from nodecpu.lab.jsontree import nodes, text
from nodecpu.lab.objects import CLAIMS, Key
from nodecpu.lab.stage import Stage
from nodecpu.proto import nri_pb2
from tests.crash.kinds import Kind

RESERVED: Final = CpuSet.parse("15")
"""What the daemon is told to reserve."""


class Room:
    """The devices of one stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def fits(self, pods: Mapping[str, Kind], name: str) -> bool:
        """Return whether a pod's claim has room, whatever the other claims and exclusive containers may hold."""
        kind = pods[name]
        device = self._device(name, kind)
        offered = self._offered(device)
        free = len(offered) - kind.claim
        for other, one in pods.items():
            if other == name:
                continue
            if one.claim and self._device(other, one) == device:
                free -= one.claim
            if one.limit:
                free -= self._own_at_most(other, one, offered)
        return free >= 0

    def wrongly_published(self, own: CpuSet) -> str:
        """Return how the published capacities differ from what claims may have; ``own`` are containers' own CPUs."""
        published = self._stage.cluster.capacities()
        there = {name: len(self._offered(name) - own) for name in published}
        return "" if published and published == there else f"published are {published}, there are {there}"

    def _device(self, name: str, kind: Kind) -> str:
        """Return the device that was allocated to a pod's claim, "" if it is allocated no more."""
        claim = self._stage.cluster.store.get(Key(kind=CLAIMS, namespace=kind.namespace, name=name))
        results = nodes(claim, "status", "allocation", "devices", "results")
        return text(results[0], "device") if results else ""

    def _offered(self, device: str) -> CpuSet:
        """Return the CPUs of a device that are not reserved."""
        number = int(device.removeprefix("cpudevnuma"))
        listed = self._stage.machine_root / f"sys/devices/system/node/node{number}/cpulist"
        return CpuSet.parse(listed.read_text()) - RESERVED

    def _own_at_most(self, name: str, kind: Kind, cpus: CpuSet) -> int:
        """Return how many of ``cpus`` an exclusive pod's container may hold: all it asked for, or what it runs on."""
        asked = int(kind.limit)
        run = self._stage.kubelet.runs.get((kind.namespace, name))
        record = None if run is None else run.containers.get("main")
        if record is None or record.state != nri_pb2.CONTAINER_RUNNING:
            return asked  # it is being started, restarted or stopped
        runs_on = self._runs_on(record)
        return len(runs_on & cpus) if len(runs_on) == asked else asked

    def _runs_on(self, record: ContainerRecord) -> CpuSet:
        effective = self._stage.cgroups.effective(record.directory)
        return CpuSet() if effective is None else effective.cpus
