"""One node whose runtime is real: containerd, runc and the kernel's cgroups; API server and kubelet are the lab's.

The daemon under test runs in a process of its own and meets all of them over their real sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import pytest
import tomli_w

from nodecpu.admin.client import fetch_state
from nodecpu.admin.state import NodeState
from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.errors import NodeCpuError
from nodecpu.export import IN_CONTAINER
from nodecpu.lab.apiserver import ApiServer
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.jsontree import JsonObject, text
from nodecpu.lab.objects import PODS, Key
from nodecpu.lab.podspec import mcpu, quota_us
from nodecpu.lab.registry import Registry
from nodecpu.lab.scheduler import Want
from nodecpu.lab.stage import DRIVER, Daemon
from nodecpu.lab.trace import Trace
from nodecpu.proto import dra_pb2
from tests.containerd.cri import Container, Pod, RunningPod
from tests.containerd.runtime import Containerd, running_containerd

NODE_NAME = "test-node"
NAMESPACE = "shop"
START_TIMEOUT_S = 30.0
CREATE_TIMEOUT_S = 60.0
CREATE_RETRY_S = 0.2
SYSTEM = Path("/sys/devices/system")
POLL_S = 0.01
"""Between two looks at what sends no event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A prepared claim: what the kubelet knows after the driver's answer."""

    name: str
    uid: str
    cdi_ids: tuple[str, ...]
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A container in its pod."""

    running: RunningPod
    container_id: str

    @property
    def cgroup(self) -> str:
        return self.running.cgroup_of(self.container_id)


class Node:
    """The parts, and what a kubelet does with them."""

    def __init__(self, containerd: Containerd, tasks: asyncio.TaskGroup, *, period_s: float = 1.0) -> None:
        self.containerd = containerd
        self.cgroups = containerd.cgroups
        base = containerd.directory
        trace = Trace()
        self.api = ApiServer(trace)
        self.cluster = Cluster(self.api.store, node_name=NODE_NAME, driver=DRIVER)
        self.registry = Registry(base / "kubelet" / "plugins_registry", trace)
        self.daemon = Daemon(base / "nodecpu.toml", base / "daemon.log", base / "notify.sock")
        self.period_s = period_s
        self._tasks = tasks
        self._registry: asyncio.Task[None] | None = None

    async def start_daemon(self) -> None:
        """Start the daemon and wait until it is ready and the kubelet has registered it."""
        await self.daemon.start()
        await self.until(self.daemon.ready.is_set, "READY=1")
        await self.until(lambda: DRIVER in self.registry.drivers, "registration with the kubelet")

    async def kill_daemon(self) -> None:
        """End the daemon with no chance to clean up."""
        assert await self.daemon.end(signal.SIGKILL) == -signal.SIGKILL

    async def until(self, condition: Callable[[], bool], what: str, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until something holds; the test fails if it does not, or if the daemon ends meanwhile."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if self.daemon.exit_code is not None and not self.daemon.is_running:
                        pytest.fail(f"the daemon ended with {self.daemon.exit_code}:\n{self.daemon.log_text()}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pytest.fail(f"no {what} within {timeout_s:g} s:\n{self.daemon.log_text()}")

    async def until_cpus(self, started: Started, wanted: CpuSet, *, timeout_s: float) -> None:
        """Wait until the kernel runs a container on ``wanted``."""
        what = f"{started.running.pod.name} on {wanted}"
        await self.until(lambda: self.cpus(started) == wanted, what, timeout_s=timeout_s)

    async def prepare(self, name: str, cpus: int) -> Claim:
        """Have a claim of some CPUs allocated and prepared, as scheduler and kubelet do."""
        wants = [Want(request="cpus", cpus=str(cpus))]
        self.cluster.create_claim(NAMESPACE, name, wants)
        allocated = self.cluster.allocate(NAMESPACE, name, wants)
        uid = text(allocated, "metadata", "uid")
        cdi_ids = await self._prepare(name, uid)
        return Claim(name=name, uid=uid, cdi_ids=cdi_ids, cpus=self._cpus_in_cdi(uid))

    async def prepare_again(self, claim: Claim) -> tuple[str, ...]:
        """Have a prepared claim prepared once more; return the CDI ids that are answered."""
        return await self._prepare(claim.name, claim.uid)

    async def _prepare(self, name: str, uid: str) -> tuple[str, ...]:
        request = dra_pb2.NodePrepareResourcesRequest(claims=[self._message(name, uid)])
        answer = (await self.registry.driver(DRIVER).prepare(request)).claims[uid]
        assert answer.error == ""
        return tuple(cdi_id for device in answer.devices for cdi_id in device.cdi_device_ids)

    async def unprepare(self, claim: Claim) -> None:
        """Have a claim given back."""
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=[self._message(claim.name, claim.uid)])
        answer = (await self.registry.driver(DRIVER).unprepare(request)).claims[claim.uid]
        assert answer.error == ""

    async def run(self, name: str, claim: Claim | None = None, *, limit: str = "") -> Started:
        """Run a pod with one container, which holds the claim if there is one: BestEffort without a CPU limit.

        With one, the pod's cgroup gets the quota as well, before the container is created.
        """
        spec, container = _pod_spec(claim, limit)
        return await self._run(name, spec, container)

    async def run_in_vain(self, name: str, claim: Claim) -> str:
        """Try once to run a pod with one container, which holds the claim; return why the runtime refuses that."""
        spec, container = _pod_spec(claim, "")
        with pytest.raises(grpc.RpcError) as refused:
            await self._create(await self._sandbox(name, spec, container), container)
        return str(refused.value)

    async def run_forged(self, name: str, environment: tuple[tuple[str, str], ...]) -> Started:
        """Run a pod without any claim whose container sets variables of its own."""
        container: JsonObject = {"name": "main", "image": "test"}
        return await self._run(name, {"containers": [container]}, Container(environment=environment))

    async def _run(self, name: str, spec: JsonObject, container: Container) -> Started:
        running = await self._sandbox(name, spec, container)
        async with asyncio.timeout(CREATE_TIMEOUT_S):
            for attempt in itertools.count():
                tried = replace(container, attempt=attempt)
                try:
                    return await self._create(running, tried)
                except grpc.RpcError:
                    await asyncio.sleep(CREATE_RETRY_S)  # a kubelet tries again too, only later
        raise AssertionError("the time limit ends it")

    async def _sandbox(self, name: str, spec: JsonObject, container: Container) -> RunningPod:
        """Create a pod and run its sandbox; the pod's cgroup gets the container's quota, if it has one."""
        made = self.cluster.create_pod(NAMESPACE, name, spec, {})
        pod = Pod(name=name, uid=text(made, "metadata", "uid"), namespace=NAMESPACE)
        running = await asyncio.to_thread(self.containerd.cri.run_pod, pod)
        if container.quota_us:
            self.cgroups.limit(pod.cgroup, container.quota_us)
        return running

    async def _create(self, running: RunningPod, container: Container) -> Started:
        container_id = await asyncio.to_thread(self.containerd.cri.run_container, running, container)
        return Started(running=running, container_id=container_id)

    async def stop(self, started: Started) -> None:
        """Stop a pod and remove it, in the runtime first, as a kubelet does."""
        await asyncio.to_thread(self.containerd.cri.remove_container, started.container_id)
        await asyncio.to_thread(self.containerd.cri.remove_pod, started.running)

    async def stop_gracefully(self, started: Started, *, grace_s: int) -> None:
        """Have a pod deleted and its container stopped with a grace, as a kubelet does; it has ended afterwards."""
        key = Key(kind=PODS, namespace=NAMESPACE, name=started.running.pod.name)
        self.api.store.mark_deleted(key, grace_s=grace_s)
        await asyncio.to_thread(self.containerd.cri.stop_container, started.container_id, grace_s=grace_s)

    async def state(self) -> NodeState:
        """Return what the daemon tells of itself; a daemon that does not answer yet is asked again."""
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                try:
                    return await asyncio.to_thread(fetch_state, self.containerd.directory / "run-nodecpu/admin.sock")
                except NodeCpuError:
                    await asyncio.sleep(POLL_S)

    async def until_state(self, holds: Callable[[NodeState], bool], what: str) -> None:
        """Wait until the daemon tells so of itself."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while True:
                    if holds(await self.state()):
                        return
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            pytest.fail(f"no {what} within {START_TIMEOUT_S:g} s:\n{self.daemon.log_text()}")

    def pids(self, started: Started) -> tuple[int, ...]:
        """Return the container's processes."""
        listed = self.cgroups.cpus_file(started.cgroup).with_name("cgroup.procs").read_text()
        return tuple(int(pid) for pid in listed.split())

    def cpus(self, started: Started) -> CpuSet:
        """Return the CPUs on which the kernel runs a container."""
        return self.cgroups.cpus(started.cgroup)

    def environment(self, started: Started) -> dict[str, str]:
        """Return a container's variables as they stand in the OCI spec that the runtime made."""
        info = json.loads(self.containerd.cri.state(started.container_id).info["info"])
        return dict(variable.split("=", 1) for variable in info["runtimeSpec"]["process"]["env"])

    def told(self, started: Started) -> dict[str, str]:
        """Return what a container reads of what it got, as its processes see the file."""
        lines = Path(f"/proc/{self.pids(started)[0]}/root{IN_CONTAINER}").read_text().splitlines()
        return {name: value.strip('"') for name, _, value in (line.partition("=") for line in lines)}

    async def open(self) -> None:
        """Start the API server and the kubelet's plugin manager, and write the daemon's configuration."""
        await self.api.start(self._tasks)
        self.cluster.populate()
        self._registry = self._tasks.create_task(self.registry.run())
        self._write_configuration()

    async def close(self) -> None:
        """Stop the daemon and what ``open`` started."""
        await self.daemon.put_down()
        if self._registry is not None:
            self._registry.cancel()
        await self.api.stop()

    def _message(self, name: str, uid: str) -> dra_pb2.Claim:
        return dra_pb2.Claim(namespace=NAMESPACE, name=name, uid=uid)

    def _cpus_in_cdi(self, uid: str) -> CpuSet:
        spec = json.loads((self.containerd.cdi_dir / f"{DRIVER}-cpu_{uid}.json").read_text())
        (value,) = {
            variable.partition("=")[2]
            for device in spec["devices"]
            for variable in device["containerEdits"]["env"]
            if variable.startswith(f"DRA_CPUSET_{uid}=")
        }
        return CpuSet.parse(value)

    def _write_configuration(self) -> None:
        base = self.containerd.directory
        entry = {"name": "test", "cluster": {"server": self.api.url}}
        user = {"name": "test", "user": {"token": uuid.uuid4().hex}}
        context = {"name": "test", "context": {"cluster": "test", "user": "test"}}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [entry],
            "users": [user],
            "contexts": [context],
            "current-context": "test",
        }
        (base / "kubeconfig").write_text(json.dumps(kubeconfig))
        configuration = {
            "node": {"name": NODE_NAME},
            "paths": {
                "cdi": str(self.containerd.cdi_dir),
                "kubelet": str(base / "kubelet"),
                "state": str(base / "state-nodecpu"),
                "run": str(base / "run-nodecpu"),
            },
            "nri": {"socket": str(self.containerd.nri_socket)},
            "kube": {"kubeconfig": str(base / "kubeconfig")},
            "enforce": {"period_s": self.period_s},
            "export": {"enabled": True},
            "log": {"level": "debug"},
        }
        self.daemon.config.write_text(tomli_w.dumps(configuration))


def _pod_spec(claim: Claim | None, limit: str) -> tuple[JsonObject, Container]:
    """Return a pod's spec and its one container."""
    described: JsonObject = {"name": "main", "image": "test"}
    spec: JsonObject = {"containers": [described]}
    resources: JsonObject = {"limits": {"cpu": limit}, "requests": {"cpu": limit}} if limit else {}
    if claim is not None:
        resources["claims"] = [{"name": "cpus"}]
        spec["resourceClaims"] = [{"name": "cpus", "resourceClaimName": claim.name}]
    described["resources"] = resources
    quota = quota_us(mcpu(limit)) if limit else 0
    return spec, Container(cdi=() if claim is None else claim.cdi_ids, quota_us=quota)


@contextlib.asynccontextmanager
async def opened_node(*, period_s: float = 1.0) -> AsyncIterator[Node]:
    """Yield a node on which everything runs but the daemon, which is to audit once a period; it is gone afterwards."""
    with running_containerd() as containerd, _notify_socket(containerd) as notify:
        async with asyncio.TaskGroup() as tasks:
            node = Node(containerd, tasks, period_s=period_s)
            listener = tasks.create_task(_listen(notify, node.daemon))
            try:
                await node.open()
                yield node
            finally:
                await node.close()
                listener.cancel()


@contextlib.contextmanager
def _notify_socket(containerd: Containerd) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notify:
        notify.bind(str(containerd.directory / "notify.sock"))
        yield notify


async def _listen(notify: socket.socket, daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    while True:
        daemon.notified((await loop.sock_recv(notify, 4096)).decode())


def online() -> CpuSet:
    """Return this machine's online CPUs."""
    return CpuSet.parse((SYSTEM / "cpu/online").read_text())


def memory() -> NodeSet:
    """Return this machine's nodes with memory."""
    return NodeSet.parse((SYSTEM / "node/has_memory").read_text())
