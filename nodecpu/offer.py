"""What of the arranged machine is offered to the cluster, to whom it is told, and how each device is (shell).

One arrangement holds at a time: who asks for devices, their health or the machine's parts asks here. Publishing the
same again costs nothing: the publisher compares.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nodecpu.arrangement import Arrangement
from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.dra.condition import Condition, conditions
from nodecpu.dra.devices import gone_devices, offered_devices
from nodecpu.errors import NodeCpuError
from nodecpu.log import kv
from nodecpu.reports import CLAIM, Reports, Subject
from nodecpu.service import Service
from nodecpu.topology.sysfs import read_online

if TYPE_CHECKING:
    from nodecpu.dra.publish import PublishStatus, SlicePublisher
    from nodecpu.topology.model import Topology

_LOG = logging.getLogger(__name__)


class Offer:
    """The devices of the arrangement in force.

    ``is_open`` says whether claims could be served now: until it is so for the first time nothing is published.
    ``is_closed`` says whether no more pods are to be sent here (D5).
    """

    def __init__(
        self,
        service: Service,
        arranged: Arrangement,
        *,
        is_open: Callable[[], bool],
        is_closed: Callable[[], bool],
        node: str,
    ) -> None:
        self.arranged = arranged
        self.counted = False
        """Whether the slices are to say what a device takes of the node's allocatable CPUs (D3)."""
        self.publisher: SlicePublisher | None = None
        self._service = service
        self._is_open = is_open
        self._is_closed = is_closed
        self._node = node

    @property
    def published(self) -> PublishStatus | None:
        """What became of publishing; None while there is no API server."""
        return None if self.publisher is None else self.publisher.status

    def publish(self) -> None:
        """Have the devices published as they are now; what is published already is not written again."""
        if self.publisher is None or not self._is_open():
            return
        ledger = self._service.books.ledger
        usable = ledger.tree.usable
        self.publisher.publish(
            offered_devices(
                self.arranged.devices,
                usable=usable,
                held=union(container.exclusive for container in ledger.containers.values()),
                claimed=self._claimed(),
                min_shared=self._service.rules.unpublished(usable.reserved),
                cores=self.arranged.cores,
            ),
            closed=self._is_closed(),
            counted=self.counted,
        )

    def arrange_anew(self, arranged: Arrangement) -> None:
        """Let another arrangement hold; devices that are gone stay published while claims hold parts of them."""
        gone = gone_devices(self.arranged.devices, arranged.devices, self._claimed())
        self.arranged = replace(arranged, devices=(*arranged.devices, *gone))

    def conditions(
        self, root: Path, topology: Topology, reports: Reports, *, runtime_away: bool
    ) -> tuple[Condition, ...]:
        """Return how each device is (D6), by the kernel below ``root``, else by the last look, ``topology``."""
        try:
            online = read_online(root)
        except NodeCpuError as err:
            kv(_LOG, logging.WARNING, "the online CPUs cannot be read, taken for unchanged", err=err)
            online = topology.online
        for claim in self._service.books.ledger.claims.values():
            if claim.name and not claim.moved and (lost := claim.cpus - online):
                reports.report(
                    Subject(kind=CLAIM, namespace=claim.namespace, name=claim.name, uid=claim.uid),
                    "CPUsOffline",
                    f"claim {claim.namespace}/{claim.name}: CPUs {lost} are offline"
                    " (bring them online, or delete the pods and the claim, to be allocated anew)",
                )
        return conditions(
            {device.name: device.cpus for device in self.arranged.devices},
            self._service.books.ledger.claims.values(),
            pool=self._node,
            online=online,
            runtime_away=runtime_away,
        )

    def _claimed(self) -> Mapping[str, CpuSet]:
        """Return the CPUs that claims hold, by the device they were allocated from."""
        claimed: dict[str, CpuSet] = {}
        for claim in self._service.books.ledger.claims.values():
            for result in claim.results:
                claimed[result.device] = claimed.get(result.device, NO_CPUS) | result.cpus
        return claimed
