"""What the nodes of a large cluster ask of the API server: one daemon is measured, the cluster is its multiple.

``python -m tests.bench.scale [NODES]`` prints the tables of docs/explanation/scale.md. Between the daemon and the API
server's stand-in stands a relay that counts connections, requests and bytes. What comes by the clock is taken from the
daemon's own periods; what pods weigh, and how long they live, are assumptions that stand here.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from tests.bench import large
from tests.bench.cluster import AUDITS_A_DAY, WATCHES_A_DAY, idle_day
from tests.bench.kubelet import KubeletEnd
from tests.bench.node_rows import synchronize
from tests.bench.yard import ApiProcess, yard

NODES: Final = 5000
PODS: Final = 30
CLAIMS: Final = 20
SETTLE_S: Final = 36.0
"""Until the last look at a start, half a minute after it, is over."""

WATCH_S: Final = 450
"""How long a watch lasts on the average: it is asked for 300 to 600 seconds."""

POD_KB: Final = 8.0
"""What a real pod weighs; the stand-in's are small."""

POD_CHANGES: Final = 10
POD_LIFE_S: Final = 3600
RETURN_S: Final = 15
"""The longest pause of a daemon that has lost the API server."""

RECONCILE_S: Final = 600
ROLLOUT_S: Final = 600
"""In how long a rollout to all nodes is done, at the fastest that is sensible."""

MACHINES: Final = {
    "16 CPUs, 1 socket": "1 sockets, 1 nodes, 8 cores, 2 threads",
    "256 CPUs, 2 sockets": "2 sockets, 4 nodes, 16 cores, 2 threads, l3 4",
    "4096 CPUs, 8 sockets": "8 sockets, 4 nodes, 64 cores, 2 threads, l3 8",
}


class Relay:
    """Passes bytes between the daemon and the server, and counts."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = str(parts.hostname), int(parts.port or 80)
        self.requests: Counter[str] = Counter()
        self.sent = 0
        self.received = 0
        self.open = 0
        self.port = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def url(self) -> str:
        """The address for the daemon."""
        return f"http://127.0.0.1:{self.port}"

    def taken(self) -> Mapping[str, float]:
        """Return what was counted since the last call: requests by kind, bytes both ways."""
        found = dict(self.requests) | {"bytes sent": self.sent, "bytes received": self.received}
        self.requests.clear()
        self.sent = self.received = 0
        return found

    def close(self) -> None:
        """Stop passing."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen())
        self._ready.set()
        self._loop.run_forever()

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self.open += 1
        try:
            await asyncio.gather(self._ask(reader, back), self._answer(there, writer))
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            back.close()
            writer.close()

    async def _ask(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            self.sent += len(data)
            words = data.split(b"\r\n", 1)[0].split(b" ")
            if len(words) == 3 and words[2].startswith(b"HTTP/"):
                self.requests[_kind(words[0].decode(), words[1].decode())] += 1
            back.write(data)
            await back.drain()
        back.close()

    async def _answer(self, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await there.read(1 << 16):
            self.received += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()


def _kind(method: str, target: str) -> str:
    """Return a request as a verb and a plural."""
    parts = urlsplit(target)
    plurals = [word for word in parts.path.split("/") if word in _PLURALS]
    verb = "watch" if "watch=1" in parts.query or "watch=true" in parts.query else method.lower()
    verb = "try" if "dryRun=" in parts.query else verb
    return f"{verb} {plurals[-1] if plurals else parts.path}"


_PLURALS: Final = ("nodes", "pods", "resourceslices", "resourceclaims", "events", "selfsubjectaccessreviews")


def lines(nodes: int) -> Iterator[str]:
    """Yield the tables."""
    yield "| machine | requests of a start | writes | KB received | KB sent | watches | connections open |"
    yield "|---|---|---|---|---|---|---|"
    start: Mapping[str, float] = {}
    claim: Mapping[str, float] = {}
    for name, machine in MACHINES.items():
        start, claim, still_open = _measured(machine)
        cells = (
            name,
            f"{_count(start, ALL)}",
            f"{_count(start, WRITES)}",
            f"{start['bytes received'] / 1000:.0f}",
            f"{start['bytes sent'] / 1000:.0f}",
            f"{_count(start, WATCHES)}",
            f"{still_open}",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield f"The requests of the last: {_named(start)}."
    yield ""
    yield from _cluster(nodes, start, claim)
    for table in (large.machines(), large.slices(), large.burst()):
        yield ""
        yield from table


ALL: Final = ("get", "post", "put", "patch", "delete", "watch", "try")
WRITES: Final = ("put resourceslices", "post resourceslices", "delete resourceslices", "post events", "patch events")
WATCHES: Final = ("watch",)


def _count(counted: Mapping[str, float], kinds: Sequence[str]) -> float:
    """Return how many of these kinds there were, or of these verbs."""
    return sum(count for kind, count in counted.items() if kind in kinds or kind.split()[0] in kinds)


def _named(counted: Mapping[str, float]) -> str:
    return ", ".join(f"{n:g} {kind}" for kind, n in sorted(counted.items()) if kind.split()[0] in ALL)


def _cluster(nodes: int, start: Mapping[str, float], claim: Mapping[str, float]) -> Iterator[str]:
    watches, requests = _count(start, WATCHES), _count(start, ALL)
    by_clock = watches / WATCH_S + 1 / RECONCILE_S
    yield f"| {nodes} nodes | per node | all |"
    yield "|---|---|---|"
    yield f"| watches held | {watches:g} | {watches * nodes:g} |"
    yield f"| requests by the clock, idle | {by_clock * 86400:.0f} a day | {by_clock * nodes:.0f} a second |"
    writes = asyncio.run(idle_day(audits=AUDITS_A_DAY, watches=WATCHES_A_DAY)).writes
    yield f"| writes, idle | {writes} a day | {writes * nodes} a day |"
    all_at_once = f"{requests * nodes / ROLLOUT_S:.0f} a second"
    yield f"| requests of a rollout to all in {ROLLOUT_S // 60} minutes | {requests:g} | {all_at_once} |"
    yield f"| requests per claim, prepared and released | {_count(claim, ALL):g} | |"
    yield f"| writes per claim | {_count(claim, WRITES):g} | |"
    yield f"| bytes received per claim | {claim['bytes received']:.0f} | |"
    real_kb = start["bytes received"] / 1000 + PODS * (POD_KB - start["pod bytes"] / 1000)
    yield f"| KB received by a start, {PODS} pods of {POD_KB:g} KB | {real_kb:.0f} | {real_kb * nodes / 1000:.0f} MB |"
    pods_kb = PODS * POD_CHANGES * POD_KB / POD_LIFE_S
    lives = f"{PODS} pods that live {POD_LIFE_S // 60} minutes, {POD_CHANGES} changes each"
    yield f"| KB received a second, {lives} | {pods_kb:.2f} | {pods_kb * nodes / 1000:.1f} MB |"
    back = 2 * watches
    apart = f"{back * nodes:g}, over {RETURN_S} s: {back * nodes / RETURN_S:.0f} a second"
    yield f"| lists and watches when the API server is back | {back:g} | {apart} |"


def _measured(machine: str) -> tuple[Mapping[str, float], Mapping[str, float], int]:
    """Return what a start costs, what a claim costs, and the connections that stay open."""
    device = "cpudevnuma000"
    with yard(machine) as place:
        api = ApiProcess(pods=PODS - CLAIMS, claims=[[device]] * CLAIMS, cpus=1)  # each claim has its pod
        relay = Relay(api.url)
        place.configure(relay.url, reserved="0")
        process = place.daemon()
        try:
            synchronize(place, ())
            place.wait_ready()
            time.sleep(SETTLE_S)
            start, still_open = {**relay.taken(), "pod bytes": api.pod_bytes}, relay.open
            kubelet = KubeletEnd(place.kubelet / "plugins/dra.cpu/dra.sock", lambda: 0.0)
            kubelet.wait()
            for claim in api.claims:
                kubelet.prepare(claim)
                kubelet.unprepare(claim)
            kubelet.close()
            claims = {kind: count / CLAIMS for kind, count in relay.taken().items()}
        finally:
            process.stop()
            relay.close()
            api.close()
    return start, claims, still_open


if __name__ == "__main__":
    logging.getLogger("nodecpu").setLevel(logging.ERROR)  # each watch that is ended to be counted would be told
    for line in lines(int(sys.argv[1]) if len(sys.argv) > 1 else NODES):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
