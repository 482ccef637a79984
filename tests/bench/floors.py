"""What figures of the wire are measured against: the same round trips with nothing decided, and bare imports."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import urllib3

from nodecpu.proto import nri_read_pb2
from tests.bench.kubelet import KubeletEnd
from tests.bench.measure import Took, measured, median
from tests.bench.messages import Box, Pod, create_call, stop_call, synchronize_calls
from tests.bench.node_rows import synchronize
from tests.bench.yard import ApiProcess, Process, Yard
from tests.support import ROOT

_POD = Pod(name="echo", uid="00000000-0000-4000-8000-000000000000")
_SPEC_BYTES = b"x" * 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NriFloor:
    """What a call takes that an echo plugin answers after one unsynced commit."""

    create: Took
    stop: Took


@dataclass(frozen=True, slots=True, kw_only=True)
class DraFloor:
    """What the parts of a prepared claim take: the bare call, one GET, one durable commit, one file."""

    prepare: Took
    unprepare: Took
    get: Took
    commit: Took
    file: Took


def nri_floor(yard: Yard, rounds: int) -> NriFloor:
    """Return what the echo plugin takes."""
    database = yard.directory / "echo.db"
    database.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.bench.echo_nri", str(yard.directory / "nri.sock"), str(database)]
    process = Process(command, tree=ROOT, log=yard.log)
    try:
        synchronize(yard, ())
        yard.runtime.used_s = process.used_s
        created: list[Took] = []
        stopped: list[Took] = []
        for number in range(rounds + 10):
            box = Box(pod=_POD, name="c0", id=f"{number:064x}")
            for method, call, times in (
                ("CreateContainer", create_call(box), created),
                ("StopContainer", stop_call(box), stopped),
            ):
                times.append(yard.runtime.call(method, call).took)
        return NriFloor(create=median(created[10:]), stop=median(stopped[10:]))
    finally:
        process.stop()
        yard.runtime.drop()


def dra_floor(yard: Yard, rounds: int) -> DraFloor:
    """Return what the parts of a prepared claim take, one by one."""
    socket = yard.directory / "echo.sock"
    api = ApiProcess(pods=1, claims=[[f"cpudevnuma{0:03d}"]] * rounds, cpus=1)
    process = Process([sys.executable, "-m", "tests.bench.echo_grpc", str(socket)], tree=ROOT, log=yard.log)
    kubelet = KubeletEnd(socket, process.used_s)
    try:
        kubelet.wait()
        prepared = [kubelet.prepare(claim)[0] for claim in api.claims]
        unprepared = [kubelet.unprepare(claim) for claim in api.claims]
        pool = urllib3.PoolManager()
        path = f"{api.url}/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims/claim-0"
        get = measured(lambda: pool.request("GET", path, retries=False), rounds=rounds)
        return DraFloor(
            prepare=median(prepared),
            unprepare=median(unprepared),
            get=get,
            commit=_commit(yard, rounds),
            file=_file(yard.directory, rounds),
        )
    finally:
        kubelet.close()
        process.stop()
        api.close()


def _commit(yard: Yard, rounds: int) -> Took:
    """Return what one durable commit takes where the daemon's state lies."""
    with tempfile.TemporaryDirectory(dir=yard.disk) as directory:
        database = sqlite3.connect(f"{directory}/floor.db", isolation_level=None)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=FULL")
        database.execute("CREATE TABLE claims (uid TEXT PRIMARY KEY, row BLOB NOT NULL) WITHOUT ROWID")
        numbers = iter(range(rounds + 1))
        statement = "INSERT OR REPLACE INTO claims VALUES (?, ?)"
        took = measured(lambda: database.execute(statement, (f"{next(numbers):036d}", _SPEC_BYTES)), rounds=rounds)
        database.close()
    return took


def _file(directory: Path, rounds: int) -> Took:
    """Return what writing one small file takes: a new one, renamed to its name."""
    numbers = iter(range(rounds + 1))

    def write() -> None:
        path = directory / f"floor-{next(numbers)}.json"
        fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(fd, _SPEC_BYTES)
        os.close(fd)
        Path(f"{path}.tmp").rename(path)

    return measured(write, rounds=rounds)


def decoding(boxes: Sequence[tuple[Box, str]]) -> Took:
    """Return what decoding the Synchronize calls alone takes, with the daemon's own schema."""
    calls = synchronize_calls(boxes)
    return measured(lambda: [nri_read_pb2.Listing.FromString(call) for call in calls], rounds=7)


def importing(modules: str) -> Took:
    """Return what a process takes that only imports these modules, until it has: its end is not in a start either."""
    code = f"import {modules}; import time; print(time.process_time(), flush=True); input()"
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        cpu_s = float(process.stdout.readline())
        end = time.perf_counter()
        process.stdin.write("\n")
    return Took(wall_s=end - start, cpu_s=cpu_s)


def import_mib(modules: str) -> float:
    """Return the resident memory of a process that only imports these modules."""
    told = _run(f"import {modules}; print(open('/proc/self/status').read())")
    line = next(line for line in told.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout
