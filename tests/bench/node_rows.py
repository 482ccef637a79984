"""A node's life over the wire: containers created, held and stopped while their number grows, then idleness.

The daemon is a process that is started, and spoken to only as a runtime and a kubelet would. One pass gives times by
name; what they are compared with is in ``wire``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nodecpu.proto import nri_pb2
from tests.bench.api import CONTAINERS_PER_POD
from tests.bench.kubelet import KubeletEnd
from tests.bench.measure import Took
from tests.bench.messages import Box, Pod, create_call, event_call, stop_call, synchronize_calls
from tests.bench.yard import ApiProcess, Claim, Process, Yard

COUNTS = (0, 100, 500, 1000)
DEVICES = tuple(f"cpudevnuma{number:03d}" for number in range(8))
SUSTAINED = 60
CLAIMS: tuple[tuple[str, ...], ...] = (
    *((DEVICES[number % 8],) for number in range(5 + SUSTAINED)),
    *((DEVICES[number % 8],) for number in range(80)),
    *(DEVICES,) * 20,
)
"""Claims for the rows of the kubelet's calls, for holders on one NUMA node, and for holders on all of them."""


@dataclass(slots=True, kw_only=True)
class Pass:
    """What one pass over a daemon gave: times by name, and other figures by name."""

    times: dict[str, list[Took]] = field(default_factory=dict)
    moved: dict[str, list[int]] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, took: Took) -> None:
        """Note a time."""
        self.times.setdefault(name, []).append(took)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is done of everything."""

    rounds: int = 100
    holders: int = 15
    events: int = 20000
    idle_s: float = 10.0
    counts: Sequence[int] = COUNTS


class Node:
    """The node under a daemon: containers that stay, and the two ends that speak to it."""

    def __init__(self, yard: Yard, api: ApiProcess, process: Process) -> None:
        self.yard = yard
        self.api = api
        self.process = process
        self.kubelet = KubeletEnd(yard.kubelet / "plugins/dra.cpu/dra.sock", process.used_s)
        self.boxes: dict[str, Box] = {}
        self._numbers = itertools.count(1)
        self._others = (Pod(name=pod.name, uid=pod.uid) for pod in api.pods)
        self._places = ((pod, f"c{n}") for pod in self._others for n in range(CONTAINERS_PER_POD))

    def box(self, pod: Pod, name: str, env: Sequence[str] = ()) -> Box:
        """Return a container that does not exist yet."""
        return Box(pod=pod, name=name, id=f"{next(self._numbers):064x}", env=env)

    def create(self, box: Box) -> tuple[Took, int]:
        """Create and start a container; return how long the creation took and how many others it moved."""
        answer = self.yard.runtime.call("CreateContainer", create_call(box))
        reply = nri_pb2.CreateContainerResponse.FromString(answer.payload)
        self.boxes[box.id] = box
        self.yard.place(box, reply.adjust.linux.resources.cpu.cpus)
        self.yard.apply(reply.update, self.boxes)
        for event in (nri_pb2.POST_CREATE_CONTAINER, nri_pb2.START_CONTAINER, nri_pb2.POST_START_CONTAINER):
            self.yard.runtime.call("StateChange", event_call(box, event))
        return answer.took, len(reply.update)

    def stop(self, box: Box) -> Took:
        """Stop and remove a container; return how long the stop took."""
        answer = self.yard.runtime.call("StopContainer", stop_call(box))
        self.yard.remove(box)
        del self.boxes[box.id]
        self.yard.apply(nri_pb2.StopContainerResponse.FromString(answer.payload).update, self.boxes)
        self.yard.runtime.call("StateChange", event_call(box, nri_pb2.REMOVE_CONTAINER))
        return answer.took

    def grow(self, count: int) -> None:
        """Create ordinary containers until there are so many."""
        while len(self.boxes) < count:
            self.create(self.further())
        self.settle()

    def further(self) -> Box:
        """Return the next container of the pods that are there to grow by."""
        pod, name = next(self._places)
        return self.box(pod, name)

    def settle(self) -> Took:
        """Have everybody told where to run, and wait until the daemon has seen that they do.

        Returns what the first call for it took: the stop of a container that nobody knows, which reads back whom the
        reply before has moved.
        """
        nobody = stop_call(self.box(self.api.pods[0], "nobody"))
        end = time.monotonic() + 30
        first: Took | None = None
        while time.monotonic() < end:
            answer = self.yard.runtime.call("StopContainer", nobody)
            first = first or answer.took
            updates = nri_pb2.StopContainerResponse.FromString(answer.payload).update
            if not updates:
                return first
            self.yard.apply(updates, self.boxes)
            time.sleep(0.06)
        raise RuntimeError("containers are told again and again where to run")

    def come_and_go(self, events: int) -> None:
        """Let so many events pass: containers that are created and stopped, five events each."""
        for _ in range(events // 5):
            box = self.ordinary()
            self.create(box)
            self.stop(box)
        self.settle()

    def ordinary(self) -> Box:
        """Return one more container of a pod that stays."""
        return self.box(self.api.pods[-1], "c0")


def one_pass(yard: Yard, tree: Path, effort: Effort) -> Pass:
    """Return the figures of one daemon's life."""
    done = Pass()
    pods = max(effort.counts) // CONTAINERS_PER_POD + 1
    api = ApiProcess(pods=pods, claims=CLAIMS, cpus=1)
    yard.forget_books()
    yard.configure(api.url)
    process = yard.daemon(tree)
    with linked(yard, api, process) as node:
        wait_for_slices(api)
        claims = iter(api.claims)
        _prepare(node, list(itertools.islice(claims, 5 + SUSTAINED)), done)
        wait_for_pods(node, api.claims[-21])
        done.figures["rss at start"] = process.rss_mib
        for count in effort.counts:
            node.grow(count)
            _ordinary(node, count, effort.rounds, done)
            _holders(node, f"holder {count}", list(itertools.islice(claims, effort.holders)), done)
        _holders(node, "holder of all", api.claims[-effort.holders :], done)
        done.figures["rss with 1000"] = process.rss_mib
        _events(node, effort.events, done)
        _idle(process, effort.idle_s, done)
    return done


@contextmanager
def linked(yard: Yard, api: ApiProcess, process: Process) -> Iterator[Node]:
    """Yield the node of a daemon that both ends speak to, each call with its processor time; end all three."""
    try:
        synchronize(yard, ())
        yard.wait_ready()
        yard.runtime.used_s = process.used_s
        node = Node(yard, api, process)
        node.kubelet.wait()
        yield node
        node.kubelet.close()
    finally:
        process.stop()
        yard.runtime.drop()
        api.close()


def synchronize(yard: Yard, boxes: Sequence[tuple[Box, str]]) -> None:
    """Take a connection and synchronise it."""
    yard.runtime.accept()
    for call in synchronize_calls(boxes):
        yard.runtime.call("Synchronize", call)


def wait_for_slices(api: ApiProcess) -> None:
    """Return when devices are published: before, no claim could be allocated."""
    end = time.monotonic() + 30
    while "create resourceslices" not in api.calls():
        if time.monotonic() > end:
            raise RuntimeError("no slices are published")
        time.sleep(0.05)


def _prepare(node: Node, claims: Sequence[Claim], done: Pass) -> None:
    """Prepare claims one after another, and take them back so."""
    before = node.api.calls()
    for number, claim in enumerate(claims):
        done.add("prepare first" if number < 5 else "prepare", node.kubelet.prepare(claim)[0])
    for number, claim in enumerate(claims):
        took = node.kubelet.unprepare(claim)
        if number:
            done.add("unprepare", took)
    after = node.api.calls()
    writes = sum(n - before.get(call, 0) for call, n in after.items() if call.split()[0] in ("update", "create"))
    done.figures["slice writes per claim"] = writes / len(claims)


def wait_for_pods(node: Node, claim: Claim) -> None:
    """Return when the daemon knows its pods: then a holder is let in."""
    env = prepared(node, claim)
    box = node.box(claim.pod, "c0", env)
    end = time.monotonic() + 30
    while True:
        try:
            node.create(box)
            break
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    node.stop(box)
    node.kubelet.unprepare(claim)
    node.settle()


def _ordinary(node: Node, count: int, rounds: int, done: Pass) -> None:
    for number in range(rounds + 5):
        box = node.ordinary()
        created, _ = node.create(box)
        stopped = node.stop(box)
        if number >= 5:
            done.add(f"create {count}", created)
            done.add(f"stop {count}", stopped)


def _holders(node: Node, name: str, claims: Sequence[Claim], done: Pass) -> None:
    """Create the two containers of each claim's pod: the first moves those that share the claim's CPUs."""
    for claim in claims:
        env = prepared(node, claim)
        first, second = (node.box(claim.pod, f"c{n}", env) for n in range(2))
        took, moved = node.create(first)
        done.add(name, took)
        done.moved.setdefault(name, []).append(moved)
        done.add(f"{name}, read back", node.settle())
        done.add(f"{name}, second", node.create(second)[0])
        done.add(f"{name}, nothing to read back", node.settle())
        node.stop(second)
        node.stop(first)
        node.kubelet.unprepare(claim)
        node.settle()


def prepared(node: Node, claim: Claim) -> Sequence[str]:
    """Prepare a claim; return the variables that its CDI specs add to a container."""
    node.kubelet.prepare(claim)
    return variables(node, claim)


def variables(node: Node, claim: Claim) -> Sequence[str]:
    """Return the variables that a prepared claim's CDI specs add to a container."""
    return sorted(set(_variables(node.yard.directory / "cdi", claim)))


def _variables(directory: Path, claim: Claim) -> Iterator[str]:
    for spec in directory.glob(f"*{claim.uid}*"):
        for line in spec.read_text().splitlines():
            text = line.strip().strip('",')
            if text.startswith("DRA_"):
                yield text


def _events(node: Node, events: int, done: Pass) -> None:
    """Let as many events pass as a busy day has, a fifth of them before growth is looked for."""
    node.yard.runtime.used_s = lambda: 0.0  # not measured one by one
    own, start = node.process.used_s(), time.perf_counter()
    node.come_and_go(events // 5)
    warm = node.process.rss_mib
    node.come_and_go(events - events // 5)
    done.figures["rss after events"] = node.process.rss_mib
    done.figures["growth"] = node.process.rss_mib - warm
    done.figures["cpu per event"] = (node.process.used_s() - own) / events * 1e3
    done.figures["events per second"] = events / (time.perf_counter() - start)


def _idle(process: Process, seconds: float, done: Pass) -> None:
    time.sleep(1)  # what the last events left to be done
    own, (loop, others) = process.used_s(), process.wakeups
    time.sleep(seconds)
    loop_then, others_then = process.wakeups
    done.figures["idle cpu"] = (process.used_s() - own) / seconds * 1e3
    done.figures["idle wakeups of the loop"] = (loop_then - loop) / seconds
    done.figures["idle wakeups of other threads"] = (others_then - others) / seconds
