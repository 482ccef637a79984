"""Everybody that the daemon of a booted machine meets: API server, runtime and kubelet of the lab, at the usual places.

Runs inside the machine, on the installed package's own modules. It takes one JSON request a line and answers each with
one line: ``hold`` runs a pod whose claim has so many CPUs, ``look`` tells where a pod's container runs and how often
its cpuset was written, ``terminate`` asks for the pod's deletion, ``release`` ends it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.lab.apiserver import ApiServer
from nodecpu.lab.cgroups import ModelCgroups
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.flavours import FLAVOURS
from nodecpu.lab.jsontree import JsonObject
from nodecpu.lab.kubelet import Kubelet, KubeletFault, KubeletSettings
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.lab.objects import PODS, ApiError, Key
from nodecpu.lab.pluginhost import RuntimeSettings
from nodecpu.lab.podspec import CgroupDriver
from nodecpu.lab.runtime import Runtime
from nodecpu.lab.scheduler import Unschedulable, Want
from nodecpu.lab.trace import Trace

DRIVER = "dra.cpu"
CGROUPS = Path("/run/lab-cgroup")
"""A model of the cgroup tree, as files."""

MACHINE = "n4c16"
MACHINE_ROOT = Path("/run/lab-machine")
"""Another machine's sysfs: the one that the tests run on may have too few CPUs to give some away."""

KUBECONFIG = Path("/run/lab-kubeconfig")
WAIT_S = 60.0


class Peers:
    """The three, and what they are asked for."""

    def __init__(self, node: str) -> None:
        trace = Trace()
        self.api = ApiServer(trace)
        self.cluster = Cluster(self.api.store, node_name=node, driver=DRIVER)
        self.cgroups = ModelCgroups(CGROUPS, cpus=CpuSet.parse("0-15"), mems=NodeSet.parse("0-3"))
        settings = RuntimeSettings(
            flavour=FLAVOURS["containerd-2.4"],
            socket=Path("/run/nri/nri.sock"),
            cdi_directory=Path("/run/cdi"),
            cgroup_driver=CgroupDriver.SYSTEMD,
        )
        self.runtime = Runtime(settings, self.cgroups, trace)
        kubelet = KubeletSettings(directory=Path("/var/lib/kubelet"), cgroup_driver=CgroupDriver.SYSTEMD)
        self.kubelet = Kubelet(kubelet, self.cluster, self.runtime, trace)

    async def run(self) -> None:
        """Serve until standard input ends."""
        async with asyncio.TaskGroup() as tasks:
            write_machine(parse_machine(MACHINE), MACHINE_ROOT)
            self.cgroups.open()
            self.cgroups.make("/kubepods.slice")
            await self.api.start(tasks)
            self.cluster.populate()
            _write_private(KUBECONFIG, json.dumps(_kubeconfig(self.api.url)))
            await self.runtime.start(tasks)
            kubelet = tasks.create_task(self.kubelet.run())
            _say({"ready": True})
            while line := await asyncio.to_thread(sys.stdin.readline):
                request = json.loads(line)
                try:
                    _say(await getattr(self, request.pop("verb"))(**request))
                except (ApiError, KubeletFault, Unschedulable, TimeoutError) as error:
                    _say({"error": f"{type(error).__name__}: {error}"})
            kubelet.cancel()
            with suppress(asyncio.CancelledError):
                await kubelet
            await self.runtime.stop()
            await self.api.stop()

    async def registered(self) -> JsonObject:
        """Wait until the driver is known to the kubelet and has published, and the runtime has the plugin."""
        async with asyncio.timeout(WAIT_S):
            while not self._is_complete():  # noqa: ASYNC110 - the lab's parts have no event for it
                await asyncio.sleep(0.05)
        return {}

    def _is_complete(self) -> bool:
        known = DRIVER in self.kubelet.registry.drivers
        return known and bool(self.cluster.slices()) and bool(self.runtime.plugins.plugins)

    async def hold(self, name: str, cpus: str) -> JsonObject:
        """Run a pod whose one container has a claim."""
        wants = [Want(request="cpus", cpus=cpus)]
        self.cluster.create_claim("shop", name, wants)
        self.cluster.allocate("shop", name, wants)
        container: JsonObject = {
            "name": "app",
            "image": "localhost/busybox:1",
            "resources": {"claims": [{"name": name}]},
        }
        spec: JsonObject = {
            "containers": [container],
            "resourceClaims": [{"name": name, "resourceClaimName": name}],
        }
        await self.kubelet.start_pod(self.cluster.create_pod("shop", name, spec, {}), tries=3)
        return await self.look(name)

    async def look(self, name: str) -> JsonObject:
        """Tell where the pod's container runs, and how often that was written."""
        record = self.kubelet.runs["shop", name].containers["app"]
        effective = self.cgroups.effective(record.directory)
        cpus = "" if effective is None else str(effective.cpus)
        return {"cpus": cpus, "writes": self.cgroups.writes(record.directory)}

    async def terminate(self, name: str) -> JsonObject:
        """Have the pod's deletion asked for, which the kubelet is slow to see to."""
        self.api.store.mark_deleted(Key(kind=PODS, namespace="shop", name=name), grace_s=30)
        return {}

    async def release(self, name: str) -> JsonObject:
        """End the pod, with its claim."""
        await self.kubelet.stop_pod("shop", name, tries=3)
        return {}


def _kubeconfig(url: str) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "users": [{"name": "lab", "user": {"token": "lab"}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "current-context": "lab",
    }


def _write_private(path: Path, content: str) -> None:
    path.touch(mode=0o600)
    path.write_text(content)


def _say(answer: JsonObject) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(Peers(sys.argv[1]).run())
