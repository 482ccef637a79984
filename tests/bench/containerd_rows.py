"""The other end: how long a real containerd takes to apply the updates of others that a CreateContainer reply carries.

No daemon takes part: a plugin answers at once, with as many updates as are asked for. So it is known which part of a
creation is the runtime's. Skipped, with the reason, where there is no containerd.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from nodecpu.nri.ttrpc import Request
from nodecpu.proto import nri_pb2
from tests.bench.echo_nri import EchoLink
from tests.bench.measure import Floor, Row
from tests.containerd.cri import Container, Pod, RunningPod
from tests.containerd.runtime import Containerd, running_containerd

MOVED: Final = (0, 1, 4, 16)
ROUNDS: Final = 9


class _Mover(EchoLink):
    """Answers every creation with updates of ``moved``, each time to other CPUs than before."""

    moved: Sequence[str] = ()
    _turn = 0

    def answer(self, event: Request) -> bytes:
        if event.method == "Configure":
            return nri_pb2.ConfigureResponse(events=1 << (nri_pb2.CREATE_CONTAINER - 1)).SerializeToString()
        if event.method != "CreateContainer":
            return b""
        self._turn += 1
        reply = nri_pb2.CreateContainerResponse()
        for container_id in self.moved:
            entry = reply.update.add(container_id=container_id, ignore_failure=True)
            entry.linux.resources.cpu.cpus = ("0", "0-1")[self._turn % 2]
        return reply.SerializeToString()


def rows() -> Iterator[Row]:
    """Yield the rows; one that tells why there are none where it cannot be measured."""
    try:
        with running_containerd() as containerd, _plugin(containerd.nri_socket) as mover:
            yield from _measured(containerd, mover)
    except pytest.skip.Exception as reason:
        yield Row(what=f"containerd, updates of one reply: not measured ({reason.msg})", value=0)


def _measured(containerd: Containerd, mover: _Mover) -> Iterator[Row]:
    running = containerd.cri.run_pod(Pod(name="bench", uid=str(uuid.uuid4())))
    others = [containerd.cri.run_container(running, Container(name=f"c{n}")) for n in range(max(MOVED))]
    times: dict[int, list[float]] = {count: [] for count in MOVED}
    for number in range(ROUNDS):
        for count in MOVED:  # in turn, so that all meet the same noise
            mover.moved = others[:count]
            times[count].append(_created(containerd, running, f"new-{number}-{count}"))
    medians = {count: statistics.median(found) * 1e3 for count, found in times.items()}
    alone = Floor(what="none moved", value=medians[0])
    for count in MOVED[1:]:
        yield Row(what=f"containerd: create and start, {count} others updated", value=medians[count], floor=alone)
    yield Row(
        what="containerd: for each container that a reply updates",
        value=(medians[MOVED[-1]] - medians[0]) / MOVED[-1],
    )


def _created(containerd: Containerd, running: RunningPod, name: str) -> float:
    start = time.perf_counter()
    container_id = containerd.cri.run_container(running, Container(name=name))
    took = time.perf_counter() - start
    containerd.cri.remove_container(container_id)
    return took


@contextlib.contextmanager
def _plugin(socket: Path) -> Iterator[_Mover]:
    """Serve the runtime from a thread for as long as the block lasts."""
    links: list[_Mover] = []
    loop = asyncio.new_event_loop()

    async def connect() -> None:
        _, link = await loop.create_unix_connection(_Mover, str(socket))
        links.append(link)

    loop.run_until_complete(connect())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield links[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
