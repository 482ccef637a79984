"""Where the processor time of a path goes: ``python -m tests.bench.profile`` prints a table of shares for each.

The daemon is the process that the bench measures, with a profiler in its main thread that signals switch on and off
around the calls. A part is a function with all that it calls, less the parts that lie in it. A profiler makes small
functions look dearer than they are; of other threads only the sum is told.
"""

from __future__ import annotations

import cProfile
import marshal
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nodecpu.cli import main as nodecpu
from nodecpu.proto import nri_pb2
from tests.bench.messages import create_call, synchronize_calls
from tests.bench.node_rows import CLAIMS, linked, wait_for_slices
from tests.bench.start_rows import boxes
from tests.bench.yard import ApiProcess, Process, Yard, yard
from tests.support import ROOT

_CALLS: Final = 60
_PAUSE_S: Final = 0.2
"""A signal is heard within milliseconds, and what a call leaves to be done is done by then."""

PARTS: Final[Mapping[str, Sequence[str]]] = {
    "decoding": ("convert.py container", "convert.py sandbox", "FromString"),
    "what is asked for": ("asking.py of",),
    "decision": ("service.py _decide", "claims.py claim_grant", "room.py make_room"),
    "commit of containers": ("containers.py commit",),
    "ledger, and who else moves": ("books.py enact",),
    "cgroup read back": ("audit.py seen, by service.py",),
    "cpuset by the books": ("books.py placement",),
    "line for the journal": ("log.py kv",),
    "answer": ("convert.py creation_reply", "convert.py synchronize_reply", "service.py _prepared", "pending.py due"),
    "GET and disk, handed to their threads": ("client.py _run", "claims.py submit"),
    "other work on the call": ("connection.py data_received", "service.py _operate"),
    "event loop, gRPC": (),
}
"""Parts by file and name of the functions at their top, or by that and the file that calls them.

Those before the last two lie in the last but one.
"""

_INNER: Final = {"commit of containers": "ledger, and who else moves"}

_Function = tuple[str, int, str]
_Stats = dict[_Function, tuple[int, int, float, float, dict[_Function, tuple[int, int, float, float]]]]


class Watched:
    """A daemon whose main thread is profiled while ``window`` lasts."""

    def __init__(self, place: Yard) -> None:
        self._stats = place.directory / "profile"
        command = [sys.executable, "-m", "tests.bench.profile", str(self._stats), "daemon"]
        command += ["--config", str(place.directory / "nodecpu.toml")]
        self.process = Process(command, tree=ROOT, log=place.log, notify=place.directory / "notify")
        self._others_s = 0.0

    @contextmanager
    def window(self) -> Iterator[None]:
        """Profile what is done meanwhile."""
        self.process.send(signal.SIGUSR1)
        time.sleep(_PAUSE_S)
        all_s, main_s = self.process.used_s(), self.process.main_s()
        yield
        self._others_s = self.process.used_s() - all_s - (self.process.main_s() - main_s)
        self.process.send(signal.SIGUSR2)
        time.sleep(_PAUSE_S)

    def table(self, path: str, calls: int) -> Iterator[str]:
        """Yield the lines of a path's table, the largest share first."""
        stats: _Stats = marshal.loads(self._stats.read_bytes())
        main_s = sum(own_s for _, _, own_s, _, _ in stats.values())
        whole: dict[str, float] = {}
        for (file, _, name), (_, _, _, whole_s, callers) in stats.items():
            top = "FromString" if "FromString" in name else f"{Path(file).name} {name}"
            whole[top] = whole.get(top, 0.0) + whole_s
            for (by, _, _), (_, _, _, part_s) in callers.items():
                key = f"{top}, by {Path(by).name}"
                whole[key] = whole.get(key, 0.0) + part_s
        found = {part: sum(whole.get(top, 0.0) for top in tops) for part, tops in PARTS.items()}
        for inner, outer in _INNER.items():
            found[outer] -= found[inner]
        *parts, work, loop = found
        found[loop] = main_s - found[work]
        found[work] -= sum(found[part] for part in parts)
        yield f"\n| {path}, main thread | share |\n|---|---|"
        for part, seconds in sorted(found.items(), key=lambda item: -item[1]):
            if seconds >= main_s / 100:
                yield f"| {part} | {seconds / main_s:.0%} |"
        yield f"\nother threads: {max(0.0, self._others_s) / calls * 1e3:.1f} ms a call"


def tables() -> Iterator[str]:
    """Yield all tables."""
    with yard() as place:
        yield from _served(place)
        yield from _synchronized(place)


def _served(place: Yard) -> Iterator[str]:
    """Yield the tables of claims that are prepared one after another, and of creations of ordinary containers."""
    api = ApiProcess(pods=40, claims=CLAIMS, cpus=1)
    place.configure(api.url)
    watched = Watched(place)
    with linked(place, api, watched.process) as node:
        wait_for_slices(api)
        warm, *claims = api.claims[: _CALLS + 1]
        node.kubelet.prepare(warm)
        with watched.window():
            for claim in claims:
                node.kubelet.prepare(claim)
        yield from watched.table("NodePrepareResources", _CALLS)
        node.grow(20)
        calls = [create_call(node.further()) for _ in range(_CALLS)]
        with watched.window():
            for call in calls:
                place.runtime.call("CreateContainer", call)
        yield from watched.table("CreateContainer", _CALLS)


def _synchronized(place: Yard) -> Iterator[str]:
    """Yield the tables of a list of 1000 containers, of which the books know none, and of all that they know."""
    place.forget_books()
    place.configure()
    listed = boxes(1000)
    for box in listed:
        place.place(box, "0-255")
    told = [(box, "0-255") for box in listed]
    for words in ("none in the books", "all in the books"):
        watched = Watched(place)
        try:
            place.runtime.accept()
            with watched.window():
                answers = [place.runtime.call("Synchronize", call) for call in synchronize_calls(told)]
            yield from watched.table(f"Synchronize, 1000 containers, {words}", 1)
        finally:
            watched.process.stop()
            place.runtime.drop()
        updates = nri_pb2.SynchronizeResponse.FromString(answers[-1].payload).update
        place.apply(updates, {box.id: box for box in listed})


def _daemon(stats: str, arguments: Sequence[str]) -> int:
    """Run the daemon; from SIGUSR1 to SIGUSR2 its main thread is profiled, then the figures are written."""
    profiler: list[cProfile.Profile] = []

    def begin(*_: object) -> None:
        profiler[:] = [cProfile.Profile(time.thread_time)]
        profiler[0].enable()

    def end(*_: object) -> None:
        profiler[0].disable()
        profiler[0].dump_stats(stats)

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    return nodecpu(arguments)


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(_daemon(sys.argv[1], sys.argv[2:]))
    for line in tables():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
