"""The rows of what goes over the wire: one pass over the daemon, beside its floors, taken in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from tests.bench.floors import DraFloor, NriFloor, decoding, dra_floor, import_mib, importing, nri_floor
from tests.bench.measure import Floor, Row, Took, floor_of, median, timed
from tests.bench.node_rows import Effort, Pass, one_pass
from tests.bench.start_rows import Starts, boxes
from tests.bench.yard import yard
from tests.support import ROOT

_PEERS_CREATE = {0: "0.30 / 18", 100: "0.21 / 52", 500: "0.21 / 191", 1000: "0.26 / 408"}
_PEERS_HOLDER = {0: "0.45 / 12", 100: "2.6 / 42", 500: "11 / 186", 1000: "22 / 392"}
_PEERS_STOP = {0: "0.16 / 4.8", 100: "0.13 / 37", 500: "0.12 / 165", 1000: "0.16 / 362"}
"""What dra-driver-cpu and topology-aware took on another machine of this kind, in milliseconds."""

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
        yield from _memory(done)
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
            peers=_PEERS_CREATE.get(count, ""),
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
            peers=_PEERS_STOP.get(count, ""),
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
            peers=_PEERS_HOLDER.get(count, ""),
        )
    last = f"holder {counts[-1]}"
    moved = statistics.median(done.moved["holder of all"])
    yield timed(f"the same, {counts[-1]} containers, {moved:g} of them moved", done.times["holder of all"], floor)
    yield timed(f"the same, {counts[-1]} containers, none moved", done.times[f"{last}, second"], floor)
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
        peers="4.5–5.5 / –",
    )
    yield timed(
        "NodePrepareResources, sustained",
        done.times["prepare"],
        prepare,
        target="≤ 1.3 ×",
        limit=1.3,
        peers="138–169 / –",
    )
    first = floor_of("first five", median(done.times["prepare first"]))
    yield timed("sustained against first five", done.times["prepare"], first, target="≤ 1.1 ×", limit=1.1)
    yield timed(
        "NodeUnprepareResources",
        done.times["unprepare"],
        unprepare,
        target="≤ 1.3 ×",
        limit=1.3,
        peers="1.4–1.6 / –",
    )
    yield Row(
        what="slice writes per claim prepared",
        value=done.figures["slice writes per claim"],
        unit="",
        target="0",
        limit=0,
    )


def _memory(done: Pass) -> Iterator[Row]:
    bare = Floor(what="bare import of the same libraries", value=import_mib(_ALL))
    yield Row(
        what="resident memory at the start",
        value=done.figures["rss at start"],
        unit="MiB",
        floor=bare,
        peers="42 / 42",
    )
    for name, peers in (("rss with 1000", "49 / 106"), ("rss after events", "")):
        yield Row(
            what=f"resident memory {name.removeprefix('rss ')}",
            value=done.figures[name],
            unit="MiB",
            floor=bare,
            target="≤ 1.3 ×",
            limit=1.3,
            peers=peers,
        )
    yield Row(what="growth by the events", value=done.figures["growth"], unit="MiB", target="≤ 0.5 MiB", limit=0.5)


def _idle(done: Pass, effort: Effort) -> Iterator[Row]:
    count = effort.counts[-1]
    yield Row(what="processor time of an event", value=done.figures["cpu per event"], unit="ms")
    yield Row(what=f"idle with {count} containers: processor time a second", value=done.figures["idle cpu"])
    yield Row(what=f"idle with {count} containers: wake-ups a second", value=done.figures["idle wakeups"], unit="")


def _starts(times: Mapping[str, Sequence[Took]], bare_took: Took, libraries_took: Took) -> Iterator[Row]:
    decode = floor_of("decoding alone", decoding([(box, "") for box in boxes(1000)]))
    for name, words in (("known", "all in the books"), ("new", "none in the books")):
        yield timed(
            f"Synchronize with 1000 containers, {words}",
            times[f"synchronize {name}"],
            decode,
            target="≤ 3 ×",
            limit=3,
            peers="54 / 119000" if name == "new" else "",
        )
    bare = floor_of(f'python -c "import {_BARE}"', bare_took)
    libraries = floor_of(f'python -c "import {_LIBRARIES}"', libraries_took)
    yield timed("start to synchronised, empty", times["start empty"], bare, peers="1072 / 135")
    yield timed("start to synchronised, 500 containers in the books", times["start 500"], bare, target="≤ 2 ×", limit=2)
    yield timed("start to READY, API server up", times["start to READY"], libraries, target="≤ 1.5 ×", limit=1.5)
