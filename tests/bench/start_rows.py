"""How long a daemon takes from the start of its process, and how long the first Synchronize takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nodecpu.proto import nri_pb2
from tests.bench.api import CONTAINERS_PER_POD
from tests.bench.measure import Took
from tests.bench.messages import Box, Pod, synchronize_calls
from tests.bench.yard import ApiProcess, Yard


def boxes(count: int) -> list[Box]:
    """Return running containers, four to a pod."""
    pods = [
        Pod(name=f"old-{number}", uid=f"{number:08d}-0000-4000-8000-000000000000")
        for number in range(count // CONTAINERS_PER_POD)
    ]
    places = ((pod, f"c{n}") for pod in pods for n in range(CONTAINERS_PER_POD))
    return [Box(pod=pod, name=name, id=f"{number:064x}") for number, (pod, name) in enumerate(places)]


class Starts:
    """Starts the daemon of a tree again and again; ``times`` by name."""

    def __init__(self, yard: Yard, tree: Path) -> None:
        self.times: dict[str, list[Took]] = {}
        self._yard = yard
        self._tree = tree

    def measure(self, rounds: int) -> None:
        """Measure starts on an empty node, with 500 containers in the books and with an API server, and how long
        lists of 1000 containers take that are new to the books, or known.
        """
        self._yard.configure()
        self.empty(rounds)
        listed = self._start("", [(box, "") for box in boxes(500)], fresh=True)
        for _ in range(rounds):
            self._start("start 500", listed)
            self.synchronize(boxes(1000))
        self._ready(rounds)

    def empty(self, rounds: int) -> None:
        """Measure starts on an empty node."""
        for _ in range(rounds):
            self._start("start empty", [], fresh=True)

    def synchronize(self, listed: Sequence[Box]) -> None:
        """Measure how long a list of containers takes that is new to the books, and again when they are known."""
        known = self._start("", [(box, "") for box in listed], fresh=True, name="synchronize new")
        self._start("", known, name="synchronize known")

    def _ready(self, rounds: int) -> None:
        api = ApiProcess(pods=60, claims=[], cpus=1)
        self._yard.configure(api.url)
        try:
            for _ in range(rounds):
                self._start("start empty, API", [], until_ready="start to READY", fresh=True)
        finally:
            api.close()

    def _start(
        self, start: str, listed: list[tuple[Box, str]], *, name: str = "", until_ready: str = "", fresh: bool = False
    ) -> list[tuple[Box, str]]:
        """Start and synchronise a daemon, then end it; return the containers with the cpusets they were given."""
        yard = self._yard
        if fresh:
            yard.forget_books()
            for box, cpus in listed:
                yard.place(box, cpus or "0-255")
        calls = synchronize_calls(listed)
        process = yard.daemon(self._tree)
        yard.runtime.used_s = process.used_s if name else lambda: 0.0
        try:
            yard.runtime.accept()
            answers = [yard.runtime.call("Synchronize", call) for call in calls]
            wall_s = yard.runtime.answered_at - process.started_at
            self._add(start, Took(wall_s=wall_s, cpu_s=process.used_s()))
            self._add(name, sum((answer.took for answer in answers), Took(wall_s=0, cpu_s=0)))
            if until_ready:
                wall_s = yard.wait_ready() - process.started_at
                self._add(until_ready, Took(wall_s=wall_s, cpu_s=process.used_s()))
        finally:
            process.stop()
            yard.runtime.drop()
        updates = nri_pb2.SynchronizeResponse.FromString(answers[-1].payload).update
        yard.apply(updates, {box.id: box for box, _ in listed})
        told = {update.container_id: update.linux.resources.cpu.cpus for update in updates}
        return [(box, told.get(box.id, cpus)) for box, cpus in listed]

    def _add(self, name: str, took: Took) -> None:
        if name:
            self.times.setdefault(name, []).append(took)
