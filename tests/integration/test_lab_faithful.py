"""The lab's own traffic against recordings of real runtimes and a real kubelet: order of calls, fields present.

The same story is played that was played for the recording; what is compared is what the plugin or driver gets.
"""

from __future__ import annotations

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from google.protobuf.message import Message

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.lab.apiserver import now
from nodecpu.lab.cgroups import ModelCgroups
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.containers import ContainerConfig, ContainerRecord, SandboxConfig, SandboxRecord
from nodecpu.lab.flavours import FLAVOURS
from nodecpu.lab.jsontree import JsonObject, text
from nodecpu.lab.kubelet import Kubelet, KubeletFault, KubeletSettings
from nodecpu.lab.objects import EVENTS, SLICES, ObjectStore
from nodecpu.lab.pluginhost import RuntimeSettings
from nodecpu.lab.podspec import CgroupDriver, Figures
from nodecpu.lab.runtime import Runtime, RuntimeFault
from nodecpu.lab.scheduler import Want
from nodecpu.lab.trace import Trace
from nodecpu.proto import dra_pb2, health_pb2, nri_pb2, registration_pb2
from tests.lab_plugin import Driver, KubeletRequest, Plugin, call_name, connected, request_type
from tests.nri_wire import listen, recording
from tests.support import shared_data

pytestmark = pytest.mark.lab

RUNTIMES = {
    "containerd-2.1": "nri-containerd-2.1.9-observe.json",
    "containerd-2.4": "nri-containerd-2.4dev-observe.json",
    "cri-o-1.37": "nri-crio-1.37dev-observe.json",
}
DEVICE = "rec.example/cpu=dev0"
NOT_PLAYED = ("UpdatePodSandbox", "PostUpdatePodSandbox")
"""The lab has no resize of whole pods."""

UNTOLD = ("mounts.", "hooks", "seccomp", "rlimits", "namespaces", "devices", "pids.limit", "intel_rdt")
"""What no CPU driver looks at: the lab's messages hold less of it than real ones."""

TIMES = {"container.started_at", "container.finished_at", "container.exit_code", "container.state", "container.pid"}
"""Not always there in Stop and Remove of real runtimes: a container may never have been started."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one, unlike pytest's: the path of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="lab") as room:
        yield Path(room)


class Story:
    """The pods of the recording ``observe``."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._uid = 0
        self.sandboxes: dict[str, SandboxRecord] = {}
        self.containers: dict[str, ContainerRecord] = {}
        self.faults: list[str] = []

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except RuntimeFault as fault:
            self.faults.append(str(fault))
            raise

    async def sandbox(self, name: str) -> None:
        self._uid += 1
        uid = f"00000000-0000-4000-8000-{self._uid:012}"
        config = SandboxConfig(
            uid=uid,
            namespace="default",
            name=name,
            cgroup_parent=f"/kubepods/burstable/pod{uid}",
            figures=Figures(shares=1024),
        )
        with self._noted():
            self.sandboxes[name] = await self._runtime.run_sandbox(config)

    async def create(self, pod: str, name: str, *, device: str = "", runnable: bool = True) -> None:
        figures = Figures(shares=1024, quota_us=100000, memory_bytes=64 << 20, oom_score_adj=984)
        config = ContainerConfig(
            name=name, figures=figures, env=("A=b",), cdi=(device,) if device else (), runnable=runnable
        )
        with self._noted():
            self.containers[name] = await self._runtime.create_container(self.sandboxes[pod], config)

    async def start(self, name: str) -> None:
        with self._noted():
            await self._runtime.start_container(self.containers[name])

    async def stop(self, name: str) -> None:
        await self._runtime.stop_container(self.containers[name])

    async def exit(self, name: str, code: int) -> None:
        self._runtime.end_process(self.containers[name], exit_code=code)
        await self._runtime.tell_stopped(self.containers[name])

    async def remove(self, name: str) -> None:
        await self._runtime.remove_container(self.containers[name])

    async def stop_pod(self, name: str) -> None:
        await self._runtime.stop_sandbox(self.sandboxes[name])

    async def remove_pod(self, name: str) -> None:
        await self._runtime.remove_sandbox(self.sandboxes[name])

    async def play_first_part(self) -> None:
        await self.sandbox("pod-b")
        await self.create("pod-b", "b1", device=DEVICE)
        await self.start("b1")
        cpu = nri_pb2.LinuxCPU(
            shares=nri_pb2.OptionalUInt64(value=2048),
            quota=nri_pb2.OptionalInt64(value=150000),
            period=nri_pb2.OptionalUInt64(value=100000),
        )
        await self._runtime.update_container(self.containers["b1"], nri_pb2.LinuxResources(cpu=cpu))
        await self.stop("b1")
        await self.remove("b1")
        await self.create("pod-b", "b2")
        await self.start("b2")
        await self.exit("b2", 3)
        await self.stop("b2")
        await self.remove("b2")
        await self.create("pod-b", "b3")
        await self.start("b3")
        await self.stop("b3")
        await self.create("pod-b", "b4")
        await self.remove("b4")
        with pytest.raises(RuntimeFault, match="unresolvable CDI devices"):
            await self.create("pod-b", "b6", device="rec.example/cpu=nosuch")
        with suppress(RuntimeFault):  # CRI-O fails in the first, containerd in the second
            await self.create("pod-b", "b7", runnable=False)
            await self.start("b7")
        await self.stop_pod("pod-b")
        await self.remove_pod("pod-b")
        await self.sandbox("pod-c")
        await self.create("pod-c", "c1", device=DEVICE)
        await self.start("c1")
        await self.create("pod-c", "c2")
        await self.start("c2")
        await self.exit("c2", 0)
        await self.create("pod-c", "c3")

    async def play_without_plugin(self) -> None:
        await self.sandbox("pod-d")
        await self.create("pod-d", "d1")
        await self.start("d1")
        await self.stop("a1")
        await self.sandbox("pod-e")
        await self.stop_pod("pod-e")

    async def play_second_part(self, plugin: Plugin) -> None:
        for pod in ("pod-a", "pod-c", "pod-d"):
            await self.stop_pod(pod)
            await self.remove_pod(pod)
        await self.remove_pod("pod-e")
        await self.sandbox("pod-f")
        plugin.refuse.add("CreateContainer")
        with pytest.raises(RuntimeFault, match="refused by plugin"):
            await self.create("pod-f", "f1")
        await self.create("pod-f", "f1")
        plugin.refuse.add("StartContainer")
        with suppress(RuntimeFault):
            await self.start("f1")
        plugin.refuse = {"RunPodSandbox"}
        with suppress(RuntimeFault):
            await self.sandbox("pod-g")
        for pod in ("pod-f", "pod-g"):
            if pod in self.sandboxes:
                await self.stop_pod(pod)
                await self.remove_pod(pod)


async def observed(runtime_name: str, root: Path) -> tuple[list[tuple[str, Message]], list[str]]:
    """Return what a plugin gets while the story of ``observe`` is played in the lab, and the failures."""
    cgroups = ModelCgroups(root / "cgroup", cpus=CpuSet((0, 1)), mems=NodeSet((0,)))
    cgroups.open()
    cdi = root / "cdi"
    cdi.mkdir()
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "rec.example/cpu",
        "devices": [{"name": "dev0", "containerEdits": {"env": ["REC_CPUS=1"]}}],
    }
    (cdi / "rec.json").write_text(json.dumps(spec))
    settings = RuntimeSettings(
        flavour=FLAVOURS[runtime_name],
        socket=root / "nri.sock",
        cdi_directory=cdi,
        cgroup_driver=CgroupDriver.CGROUPFS,
    )
    runtime = Runtime(settings, cgroups, Trace())
    story = Story(runtime)
    async with asyncio.TaskGroup() as tasks:
        await runtime.start(tasks)
        try:
            await story.sandbox("pod-a")
            await story.create("pod-a", "a1")
            await story.start("a1")
            async with connected(Plugin(), settings.socket) as first:
                await story.play_first_part()
            await story.play_without_plugin()
            async with connected(Plugin(), settings.socket) as second:
                await story.play_second_part(second)
        finally:
            await runtime.stop()
    return first.calls + second.calls, story.faults


def recorded(file: str) -> list[tuple[str, Message]]:
    """Return what the plugin got in a recording."""
    found: list[tuple[str, Message]] = []
    for connection in recording(file):
        for exchange in listen(connection).exchanges:
            if exchange.request.service.endswith(".Plugin"):
                message = request_type(exchange.request.method).FromString(exchange.request.payload)
                found.append((exchange.request.method, message))
    return found


def order(calls: Iterable[tuple[str, Message]]) -> list[tuple[str, str, str]]:
    """Return (call, pod, container) in order; what real runtimes do in no fixed order is put into one.

    These are the ends of several containers in a row, and the end of c2, which exits at once, around its start.
    """
    found: list[tuple[str, str, str]] = []
    for method, message in calls:
        pod, container = getattr(message, "pod", None), getattr(message, "container", None)
        name = call_name(method, message)
        if name not in NOT_PLAYED:
            found.append((name, pod.name if pod else "", container.name if container else ""))
    ordered: list[tuple[str, str, str]] = []
    run: list[tuple[str, str, str]] = []
    for call in [*found, ("", "", "")]:
        if call[0] in ("StopContainer", "RemoveContainer") or call == ("PostStartContainer", "pod-c", "c2"):
            run.append(call)
        else:
            ordered += [*sorted(run, key=lambda one: (one[2], one[0] == "RemoveContainer", one[0])), call]
            run = []
    return ordered


def fields(message: Message, prefix: str = "") -> set[str]:
    """Return the paths of all fields present; lists are looked through, maps and scalars are leaves."""
    found: set[str] = set()
    for descriptor, value in message.ListFields():
        path = prefix + descriptor.name
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            found.add(path)
        elif isinstance(value, Message):
            found |= fields(value, f"{path}.")
        else:
            found = found.union(*(fields(child, f"{path}.") for child in value))
    return {path for path in found if not any(part in path for part in UNTOLD)}


def kinds(calls: Sequence[tuple[str, Message]]) -> dict[str, list[set[str]]]:
    found: dict[str, list[set[str]]] = {}
    for method, message in calls:
        found.setdefault(call_name(method, message), []).append(fields(message))
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_runtime_calls_in_the_order_of_the_real_one(runtime: str, tmp_path: Path) -> None:
    real = order(recorded(RUNTIMES[runtime]))
    assert order(asyncio.run(observed(runtime, tmp_path))[0]) == real


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_runtime_fills_the_fields_of_the_real_one(runtime: str, tmp_path: Path) -> None:
    real, lab = kinds(recorded(RUNTIMES[runtime])), kinds(asyncio.run(observed(runtime, tmp_path))[0])
    assert real.keys() - lab.keys() <= set(NOT_PLAYED)
    for kind, seen in lab.items():
        untold = TIMES if kind in ("StopContainer", "RemoveContainer") else set()
        always = {path for path in real[kind][0] if all(path in one for one in real[kind])}
        ever = {path for one in real[kind] for path in one}
        lab_always = {path for path in seen[0] if all(path in one for one in seen)}
        lab_ever = {path for one in seen for path in one}
        assert lab_ever <= ever, f"{kind}: fields that the real one never fills"
        assert always - lab_always <= untold, f"{kind}: fields that the real one always fills"
        assert ever - lab_ever <= untold, f"{kind}: fields that the real one sometimes fills"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_runtime_fails_in_the_words_of_the_real_one(runtime: str, tmp_path: Path) -> None:
    """But for what an OCI runtime says, and for the name of the recording plugin's error."""
    actions = shared_data("wire", RUNTIMES[runtime].replace(".json", ".actions.json"))
    real = [
        item["error"].removeprefix("UNKNOWN: ").replace("RuntimeError: ", "")
        for item in json.loads(actions.read_text())
        if item["action"].startswith("cri<") and "error" in item and "UpdatePodSandbox" not in item["action"]
    ]
    faults = asyncio.run(observed(runtime, tmp_path))[1]
    assert [_without_oci(one) for one in faults] == [_without_oci(one) for one in real]


def _without_oci(fault: str) -> str:
    found = re.match("failed to create containerd task|container create failed", fault)
    return found[0] if found else fault


@asynccontextmanager
async def playing_kubelet(
    root: Path, *, absence_s: float = 30.0
) -> AsyncIterator[tuple[Kubelet, Cluster, asyncio.TaskGroup]]:
    store = ObjectStore(now=now)
    cluster = Cluster(store, node_name="node1", driver="rec.example")
    cluster.populate()
    cgroups = ModelCgroups(root / "cgroup", cpus=CpuSet((0, 1)), mems=NodeSet((0,)))
    cgroups.open()
    trace = Trace()
    (root / "cdi").mkdir()
    settings = RuntimeSettings(flavour=FLAVOURS["containerd-2.4"], socket=root / "nri.sock", cdi_directory=root / "cdi")
    runtime = Runtime(settings, cgroups, trace)
    async with asyncio.TaskGroup() as tasks:
        await runtime.start(tasks)
        kubelet = Kubelet(
            KubeletSettings(directory=root / "kubelet", retry_s=0.01, notice_s=0.0, absence_s=absence_s),
            cluster,
            runtime,
            trace,
        )
        try:
            yield kubelet, cluster, tasks
        finally:
            await runtime.stop()


class KubeletStory:
    """The pods p1 to p4 of the recording of the kubelet, as far as the driver sees them."""

    def __init__(self, root: Path, kubelet: Kubelet, cluster: Cluster, tasks: asyncio.TaskGroup) -> None:
        self._root = root
        self._kubelet = kubelet
        self._cluster = cluster
        self._tasks = tasks
        self.driver = Driver("rec.example", root / "kubelet" / "plugins_registry")

    async def registered(self, *, there: bool = True) -> None:
        async with asyncio.timeout(20):
            while ("rec.example" in self._kubelet.registry.drivers) is not there:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)

    def publish(self) -> None:
        capacity: JsonObject = {
            "value": "8",
            "requestPolicy": {"default": "1", "validRange": {"min": "1", "step": "1"}},
        }
        devices: list[JsonObject] = [
            {"name": name, "allowMultipleAllocations": True, "capacity": {"rec.example/cpu": capacity}}
            for name in ("dev0", "dev1")
        ]
        pool: JsonObject = {"name": "node1", "generation": 1, "resourceSliceCount": 1}
        spec: JsonObject = {"driver": "rec.example", "nodeName": "node1", "pool": pool, "devices": list(devices)}
        self._cluster.create(SLICES, "", {"metadata": {"name": "node1-rec"}, "spec": spec})

    def claim(self, name: str) -> None:
        wants = (Want(request="r", cpus="2"),)
        self._cluster.create_claim("default", name, wants)
        self._cluster.allocate("default", name, wants)

    async def start(self, name: str, *claims: str, tries: int = 1) -> None:
        spec: JsonObject = {
            "containers": [{"name": "c", "resources": {}}],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        }
        pod = self._cluster.create_pod("default", name, spec, {})
        await self._kubelet.start_pod(pod, tries=tries)

    async def play(self) -> None:
        first = self._tasks.create_task(self._kubelet.run())
        async with self.driver.serving():
            await self.registered()
            await asyncio.sleep(2 * self._kubelet.settings.wipe_s)
            self.publish()
            self.claim("c1")
            self.driver.fail["c1"] = "not enough CPUs"
            await self.start("p1", "c1", tries=2)
            await self._kubelet.restart_container(self._kubelet.runs["default", "p1"], "c")
            await self.start("p2", "c1")
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            second = self._tasks.create_task(self._kubelet.run())
            await asyncio.sleep(2 * self._kubelet.settings.wipe_s)
            assert not self._cluster.slices(), "the kubelet deletes the node's slices at every start"
            await self.registered()
            self.publish()
        await self.registered(there=False)
        async with self.driver.serving():
            await self.registered()
            await self.start("p3", "c1")
            self.claim("p4-own-sdftj")
            self.driver.fail["p4-own-sdftj"] = "status"
            await self.start("p4", "p4-own-sdftj", "c1", tries=2)
            for pod in ("p4", "p3", "p2"):
                await self._kubelet.stop_pod("default", pod)
        await self.registered(there=False)
        with pytest.raises(KubeletFault, match="not registered"):
            await self._kubelet.stop_pod("default", "p1")
        async with self.driver.serving():
            await self.registered()
            await self._kubelet.stop_pod("default", "p1")
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)


def test_kubelet_calls_in_the_order_of_the_real_one(tmp_path: Path) -> None:
    real = []
    for item in json.loads(shared_data("wire", "kubelet-1.36.2-dra.json").read_text()):
        method = item["method"].rsplit("/", 1)[-1]
        if item["kind"] == "request" and method != "NodeWatchResources":
            real.append((method, _claims(method, bytes.fromhex(item["hex"]))))

    async def play() -> list[tuple[str, tuple[str, ...]]]:
        async with playing_kubelet(tmp_path) as (kubelet, cluster, tasks):
            story = KubeletStory(tmp_path, kubelet, cluster, tasks)
            await story.play()
            return story.driver.calls

    assert asyncio.run(play()) == real


def test_events_of_failed_prepares_are_in_the_words_of_the_real_kubelet(tmp_path: Path) -> None:
    """A claim that the driver refuses, and a driver that is not there."""
    real = [
        item["message"]
        for name in ("events-p1.json", "events-q2.json")
        for item in json.loads(shared_data("wire", "api", name).read_text())
        if item["type"] == "Warning"
    ]

    async def play() -> list[str]:
        async with playing_kubelet(tmp_path) as (kubelet, cluster, tasks):
            story = KubeletStory(tmp_path, kubelet, cluster, tasks)
            story.publish()
            story.claim("c1")
            life = tasks.create_task(kubelet.run())
            async with story.driver.serving():
                await story.registered()
                story.driver.fail["c1"] = "not enough CPUs"
                with pytest.raises(KubeletFault):
                    await story.start("p1", "c1")
            await story.registered(there=False)
            with pytest.raises(KubeletFault):
                await story.start("q2", "c1")
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
            events = cluster.store.find(EVENTS)
            assert {text(one, "reason") for one in events} == {"FailedPrepareDynamicResources"}
            return [text(one, "message") for one in events]

    assert sorted(asyncio.run(play())) == sorted(real)


REQUESTS: Mapping[str, type[Message]] = {
    "GetInfo": registration_pb2.InfoRequest,
    "NotifyRegistrationStatus": registration_pb2.RegistrationStatus,
    "NodePrepareResources": dra_pb2.NodePrepareResourcesRequest,
    "NodeUnprepareResources": dra_pb2.NodeUnprepareResourcesRequest,
    "NodeWatchResources": health_pb2.NodeWatchResourcesRequest,
}
DEADLINES_S = (1.0, 5.0, 45.0)
"""All that a kubelet gives."""


def test_kubelet_fills_the_fields_of_the_real_one_and_gives_the_same_time(tmp_path: Path) -> None:
    """Whole requests: no field more or less, and a deadline where the real one sets it; the health stream has none."""
    real = {
        (
            method := item["method"].rsplit("/", 1)[-1],
            _shape(method, bytes.fromhex(item["hex"])),
            item.get("deadline_s"),
        )
        for item in json.loads(shared_data("wire", "kubelet-1.36.2-dra.json").read_text())
        if item["kind"] == "request"
    }

    async def play() -> list[KubeletRequest]:
        async with playing_kubelet(tmp_path) as (kubelet, cluster, tasks):
            story = KubeletStory(tmp_path, kubelet, cluster, tasks)
            await story.play()
            return story.driver.requests

    requests = asyncio.run(play())
    assert {one.method for one in requests} == REQUESTS.keys()
    assert {(one.method, _shape(one.method, one.data), _given_s(one.left_s)) for one in requests} == real


def _shape(method: str, data: bytes) -> tuple[str, ...]:
    """Return the fields present in a request; those that our messages do not know are told as such."""
    message = REQUESTS[method].FromString(data)
    known = message.SerializeToString(deterministic=True)
    message.DiscardUnknownFields()
    extra = () if message.SerializeToString(deterministic=True) == known else ("unknown fields",)
    return (*sorted(fields(message)), *extra)


def _given_s(left_s: float | None) -> float | None:
    """Return the deadline behind the time that was left when a request was looked at; gRPC rounds it up a little."""
    return None if left_s is None else min((one for one in DEADLINES_S if left_s <= 1.1 * one), default=left_s)


def _claims(method: str, data: bytes) -> tuple[str, ...]:
    if method == "NotifyRegistrationStatus":
        error = registration_pb2.RegistrationStatus.FromString(data).error
        return (error,) if error else ()
    if method == "GetInfo":
        return ()
    return tuple(claim.name for claim in dra_pb2.NodePrepareResourcesRequest.FromString(data).claims)


def test_slices_go_when_the_driver_stays_away(tmp_path: Path) -> None:
    """Not in the recordings; source: Kubernetes 1.36, pkg/kubelet/cm/dra (30 seconds there)."""

    async def play() -> None:
        async with playing_kubelet(tmp_path, absence_s=0.01) as (kubelet, cluster, tasks):
            story = KubeletStory(tmp_path, kubelet, cluster, tasks)
            life = tasks.create_task(kubelet.run())
            async with story.driver.serving():
                await story.registered()
                await asyncio.sleep(2 * kubelet.settings.wipe_s)
                story.publish()
            async with asyncio.timeout(20):
                while cluster.slices():  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.01)
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)

    asyncio.run(play())
