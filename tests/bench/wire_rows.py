"""The rows of what goes over the wire: one pass over the daemon, beside its floors, taken in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from tests.bench.floors import DraFloor, NriFloor, decoding, dra_floor, import_mib, importing, nri_floor
from tests.bench.measure import Floor, Peer, Row, Took, floor_of, median, peers, timed
from tests.bench.node_rows import Effort, Pass, one_pass
from tests.bench.start_rows import Starts, boxes
from tests.bench.yard import yard
from tests.support import ROOT

_PEERS_CREATE = {0: (0.30, 18.0), 100: (0.21, 52.0), 500: (0.21, 191.0), 1000: (0.26, 408.0)}
_PEERS_HOLDER = {0: (0.45, 12.0), 100: (2.6, 42.0), 500: (11.0, 186.0), 1000: (22.0, 392.0)}
_PEERS_STOP = {0: (0.16, 4.8), 100: (0.13, 37.0), 500: (0.12, 165.0), 1000: (0.16, 362.0)}
"""What dra-driver-cpu and topology-aware were recorded to take, in milliseconds, by containers on the node."""

_NONE = (None, None)
_PEERS_START = (Peer(name="dra-driver-cpu", value=1072), Peer(name="topology-aware", value=135, is_rival=False))
_PEERS_FULL = (Peer(name="dra-driver-cpu", value=49, is_rival=False), Peer(name="topology-aware", value=106))
"""In start and memory an interpreter starts behind: nodecpu is to be ahead of one of them."""

_TIMEOUT_MS = 2000
"""What NRI allows a request."""

_BARE = "asyncio, sqlite3, google.protobuf"
_LIBRARIES = "grpc, kubernetes"
_ALL = "asyncio, sqlite3, msgspec, google.protobuf.descriptor_pb2, grpc, grpc.aio, kubernetes.client, kubernetes.config"
_ECHO = "echo plugin + unsynced commit"
_START_ROUNDS = 5


def rows(effort: Effort) -> Iterator[Row]:
    """Yield every row, each as soon as it is known."""
    with yard() as place:
        echo = nri_floor(place, 200)
        claims = dra_floor(place, 60)
        done = one_pass(place, ROOT, effort)
        echo_again = nri_floor(place, 200)
        nri = NriFloor(
            create=median((echo.create, echo_again.create)),
            stop=median((echo.stop, echo_again.stop)),
        )
        yield from _containers(done, nri, effort.counts)
        yield from _holders(done, nri, effort.counts)
        yield from _claims(done, claims)
        yield from _memory(done, effort.events)
        yield from _idle(done, effort)
        starts = Starts(place, ROOT)
        bare, libraries = [], []
        for _ in range(_START_ROUNDS):  # in turn, so that both meet the same noise
            bare.append(importing(_BARE))
            libraries.append(importing(_LIBRARIES))
            starts.measure(1)
        yield from _starts(starts.times, median(bare), median(libraries))
        yield Row(
            what="the driver's own share of all NRI round trips",
            value=place.runtime.own_share * 100,
            unit="%",
            target="≤ 20 %",
            limit=20,
        )


def _containers(done: Pass, nri: NriFloor, counts: Sequence[int]) -> Iterator[Row]:
    create = floor_of(_ECHO, nri.create)
    stop = floor_of(_ECHO, nri.stop)
    for count in counts:
        yield timed(
            f"CreateContainer, shared, {count} containers on the node",
            done.times[f"create {count}"],
            create,
            target="≤ 1.5 ×",
            limit=1.5,
            peers=peers(*_PEERS_CREATE.get(count, _NONE)),
        )
    empty = floor_of(f"with {counts[0]} containers", median(done.times[f"create {counts[0]}"]))
    yield timed(
        f"the same with {counts[-1]} against {counts[0]}",
        done.times[f"create {counts[-1]}"],
        empty,
        target="≤ 1.2 ×",
        limit=1.2,
    )
    for count in counts:
        yield timed(
            f"StopContainer, shared, {count} containers on the node",
            done.times[f"stop {count}"],
            stop,
            peers=peers(*_PEERS_STOP.get(count, _NONE)),
        )


def _holders(done: Pass, nri: NriFloor, counts: Sequence[int]) -> Iterator[Row]:
    floor = floor_of(_ECHO, nri.create)
    for count in counts:
        name = f"holder {count}"
        moved = statistics.median(done.moved[name])
        yield timed(
            f"CreateContainer of a claim holder, {count} containers, {moved:g} of them moved",
            done.times[name],
            floor,
            peers=peers(*_PEERS_HOLDER.get(count, _NONE)),
        )
    last = f"holder {counts[-1]}"
    moved = statistics.median(done.moved["holder of all"])
    yield timed(f"the same, {counts[-1]} containers, {moved:g} of them moved", done.times["holder of all"], floor)
    yield timed(
        f"the same, none moved, with {counts[-1]} containers against {counts[0]}",
        done.times[f"{last}, second"],
        floor_of(f"with {counts[0]}", median(done.times[f"holder {counts[0]}, second"])),
        target="not with N: ≤ 1.2 ×",
        limit=1.2,
    )
    more, less = median(done.times["holder of all"]), median(done.times[last])
    between = moved - statistics.median(done.moved[last])
    yield Row(
        what="CreateContainer of a claim holder, for each container moved",
        value=(more.wall_s - less.wall_s) / between * 1e6,
        cpu=(more.cpu_s - less.cpu_s) / between * 1e6,
        unit="µs",
        target="≤ 5 µs",
        limit=5,
    )
    yield from _read_back(done, last)


def _read_back(done: Pass, last: str) -> Iterator[Row]:
    """Yield what the request after a holder's creation takes, which reads back whom that has moved."""
    nothing = floor_of("nothing to read back", median(done.times[f"{last}, nothing to read back"]))
    some, everybody = (statistics.median(done.moved[name]) for name in (last, "holder of all"))
    yield timed(f"the request after a creation that moved {some:g}", done.times[f"{last}, read back"], nothing)
    took = done.times["holder of all, read back"]
    yield timed(f"the request after a creation that moved {everybody:g}", took, nothing)
    yield Row(
        what="the request after a creation, for each container that it moved",
        value=(median(took).wall_s * 1e3 - nothing.value) / everybody * 1e3,
        unit="µs",
    )


def _claims(done: Pass, floor: DraFloor) -> Iterator[Row]:
    parts = floor.commit + floor.file
    prepare = floor_of("echo service + GET + durable commit + file", floor.prepare + floor.get + parts)
    unprepare = floor_of("echo service + durable commit + file", floor.unprepare + parts)
    yield timed(
        "NodePrepareResources, first five",
        done.times["prepare first"],
        prepare,
        target="≤ 1.3 ×",
        limit=1.3,
        peers=peers(4.5, None),
    )
    yield timed(
        "NodePrepareResources, sustained",
        done.times["prepare"],
        prepare,
        target="≤ 1.3 ×",
        limit=1.3,
        peers=peers(138, None),
    )
    first = floor_of("first five", median(done.times["prepare first"]))
    yield timed("sustained against first five", done.times["prepare"], first, target="≤ 1.1 ×", limit=1.1)
    yield timed(
        "NodeUnprepareResources",
        done.times["unprepare"],
        unprepare,
        target="≤ 1.3 ×",
        limit=1.3,
        peers=peers(1.4, None),
    )
    yield Row(
        what="slice writes per claim prepared",
        value=done.figures["slice writes per claim"],
        unit="",
        target="0",
        limit=0,
    )


def _memory(done: Pass, events: int) -> Iterator[Row]:
    bare = Floor(what="bare import of the same libraries", value=import_mib(_ALL))
    yield Row(
        what="resident memory at the start",
        value=done.figures["rss at start"],
        unit="MiB",
        floor=bare,
        peers=tuple(Peer(name=name, value=42, is_rival=False) for name in ("dra-driver-cpu", "topology-aware")),
    )
    for name, recorded in (("rss with 1000", _PEERS_FULL), ("rss after events", ())):
        yield Row(
            what=f"resident memory {name.removeprefix('rss ')}",
            value=done.figures[name],
            unit="MiB",
            floor=bare,
            target="≤ 1.3 ×",
            limit=1.3,
            peers=recorded,
        )
    more = events - events // 5
    yield Row(
        what=f"growth by {more} events after {events // 5} (a million: python -m tests.bench.growth)",
        value=done.figures["growth"],
        unit="MiB",
        target="none: ≤ 0.5 MiB",
        limit=0.5,
    )


def _idle(done: Pass, effort: Effort) -> Iterator[Row]:
    count = effort.counts[-1]
    yield Row(what="processor time of an event", value=done.figures["cpu per event"], unit="ms")
    yield Row(what=f"idle with {count} containers: processor time a second", value=done.figures["idle cpu"])
    for who, target, limit in (
        ("the loop", "audit, heartbeat, watchdog, links: ≤ 1", 1),
        ("other threads", "none: ≤ 0.1", 0.1),
    ):
        yield Row(
            what=f"idle with {count} containers: wake-ups of {who} a second",
            value=done.figures[f"idle wakeups of {who}"],
            unit="",
            target=target,
            limit=limit,
        )


def _starts(times: Mapping[str, Sequence[Took]], bare_took: Took, libraries_took: Took) -> Iterator[Row]:
    decode = floor_of("decoding alone", decoding([(box, "") for box in boxes(1000)]))
    for name, words in (("known", "all in the books"), ("new", "none in the books")):
        took = timed(
            f"Synchronize with 1000 containers, {words}",
            times[f"synchronize {name}"],
            decode,
            target="≤ 3 ×",
            limit=3,
            peers=peers(54, 119_000) if name == "new" else (),
        )
        yield took
        yield Row(
            what=f"the slowest of these, {words}",
            value=took.p99 or took.value,
            floor=Floor(what="what NRI allows", value=_TIMEOUT_MS),
            target="≤ a tenth",
            limit=0.1,
        )
    bare = floor_of(f'python -c "import {_BARE}"', bare_took)
    libraries = floor_of(f'python -c "import {_LIBRARIES}"', libraries_took)
    yield timed("start to synchronised, empty", times["start empty"], bare, peers=_PEERS_START)
    yield timed("start to synchronised, 500 containers in the books", times["start 500"], bare, target="≤ 2 ×", limit=2)
    yield timed("start to READY, API server up", times["start to READY"], libraries, target="≤ 1.5 ×", limit=1.5)
