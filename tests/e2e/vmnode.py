"""The virtual machine's kubelet, with the cluster that it belongs to: the lab's, over a real runtime, as a unit.

Runs inside the machine. What a cluster and a kubelet keep on disk outlives a reboot: the objects, and which claims are
prepared. At its start it runs the pods that are there, as a kubelet does, and then takes requests: one line of JSON in,
one out, a connection each. ``seen_at_start`` is what it found before the first of its containers.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import sdnotify

from nodecpu.lab.apiserver import ApiServer
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.jsontree import Json, JsonObject, leaf, nodes, text, texts
from nodecpu.lab.kubelet import ClaimInfo, Kubelet, KubeletFault, KubeletSettings
from nodecpu.lab.objects import CLAIMS, PODS, ApiError, Key
from nodecpu.lab.podspec import CgroupDriver
from nodecpu.lab.scheduler import Unschedulable, Want
from nodecpu.lab.trace import Trace
from nodecpu.proto import dra_pb2
from tests.containerd.cgroups import Cgroups, WriteWatch, find_cgroups
from tests.containerd.cri import Cri
from tests.e2e.criruntime import CriRuntime

DRIVER = "dra.cpu"
NAMESPACE = "shop"
RUNTIME = Path("/run/containerd/containerd.sock")
CDI = Path("/run/cdi")
STATE = Path("/var/lib/lab-kubelet.json")
API_PORT = 6443
PORT = 7000
WAIT_S = 300.0
TRIES = 30
"""A pod's: the daemon gives an API server seconds to answer, which an emulated one may not keep to."""


class VmNode:
    """Cluster and kubelet of the machine."""

    def __init__(self, host: str, cgroups: Cgroups, state: JsonObject) -> None:
        life = leaf(state, "life")
        self.life = (life if isinstance(life, int) else 0) + 1
        trace = Trace()
        self.api = ApiServer(trace, port=API_PORT)
        self.cluster = Cluster(self.api.store, node_name=host, driver=DRIVER)
        self.cgroups = cgroups
        self.cri = Cri(RUNTIME, logs=Path("/var/log/pods"), timeout_s=WAIT_S)
        settings = KubeletSettings(directory=Path("/var/lib/kubelet"), cgroup_driver=CgroupDriver.SYSTEMD, retry_s=2.0)
        self.kubelet = Kubelet(settings, self.cluster, CriRuntime(self.cri, life=self.life), trace)
        self._watch: WriteWatch | None = None
        self._seen_at_start: JsonObject = {"cdi": [path.name for path in sorted(CDI.glob("*.json"))]}
        self._restore(state)

    async def run(self) -> None:
        """Start what is there, then serve until this is cancelled."""
        async with asyncio.TaskGroup() as tasks:
            await self.api.start(tasks)
            tasks.create_task(self.kubelet.run())
            await asyncio.to_thread(self.cri.wait)
            for pod in sorted(self.api.store.find(PODS), key=lambda one: text(one, "metadata", "creationTimestamp")):
                await self.registered()
                await self.kubelet.start_pod(pod, tries=TRIES)
            server = await asyncio.start_server(self._serve, "0.0.0.0", PORT)
            sdnotify.SystemdNotifier().notify("READY=1")
            await server.serve_forever()

    # --- requests ----------------------------------------------------------------------------------------------------

    async def registered(self) -> JsonObject:
        """Wait until the driver is known to the kubelet and has published, which it does once it has the runtime."""
        async with asyncio.timeout(WAIT_S):
            while DRIVER not in self.kubelet.registry.drivers or not self.cluster.slices():  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.1)
        return {"capacities": dict(self.cluster.capacities()), "seen_at_start": self._seen_at_start, "life": self.life}

    async def hold(self, name: str, wants: list[dict[str, str]], namespace: str = NAMESPACE) -> JsonObject:
        """Have a claim made and allocated: for each result ``cpus``, and ``numa`` or ``device`` where it has to be."""
        wanted = [
            Want(
                request=f"cpus-{number}",
                cpus=want["cpus"],
                numa=int(want["numa"]) if "numa" in want else None,
                device=want.get("device"),
            )
            for number, want in enumerate(wants)
        ]
        self.cluster.create_claim(namespace, name, wanted)
        self.cluster.allocate(namespace, name, wanted)
        return {}

    async def again(self, name: str) -> JsonObject:
        """Have a prepared claim prepared once more; tell what was answered before and now, and its UID."""
        claim = self.api.store.get(Key(kind=CLAIMS, namespace=NAMESPACE, name=name))
        uid = text(claim, "metadata", "uid")
        info = self.kubelet.checkpoint[uid]
        before = list(info.devices)
        self.kubelet.forget(uid)
        await self.kubelet.prepare([claim])
        answered, info.devices = info.devices[len(before) :], before
        return {"uid": uid, "before": _told(before), "again": _told(answered)}

    async def unprepare(self, uids: list[str]) -> JsonObject:
        """Have claims unprepared, one call each, whether or not they are known; tell what was wrong with each."""
        errors: list[Json] = []
        for uid in uids:
            claim = dra_pb2.Claim(namespace=NAMESPACE, uid=uid, name="gone")
            request = dra_pb2.NodeUnprepareResourcesRequest(claims=[claim])
            answer = await self.kubelet.registry.driver(DRIVER).unprepare(request)
            errors.append(answer.claims[uid].error if uid in answer.claims else "no answer")
        return {"errors": errors}

    async def start(
        self,
        name: str,
        claims: list[str],
        *,
        namespace: str = NAMESPACE,
        tries: int = TRIES,
        environment: dict[str, str] | None = None,
        **amounts: str,
    ) -> JsonObject:
        """Run a pod of one container that has all these claims; its CPU ``request`` and ``limit`` are none if empty."""
        resources: JsonObject = {"claims": [{"name": claim} for claim in claims]}
        resources |= {f"{word}s": {"cpu": amount} for word, amount in amounts.items() if amount}
        variables: list[Json] = [{"name": key, "value": value} for key, value in (environment or {}).items()]
        spec: JsonObject = {
            "containers": [{"name": "app", "image": "test", "resources": resources, "env": variables}],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        }
        pod = self.cluster.create_pod(namespace, name, spec, {})
        try:
            await self.kubelet.start_pod(pod, tries=tries)
        except KubeletFault:
            self._forget(pod)
            raise
        return await self.look(name, namespace)

    async def look(self, name: str, namespace: str = NAMESPACE) -> JsonObject:
        """Tell on what the kernel runs a pod's container."""
        cgroup = self.kubelet.runs[namespace, name].containers["app"].directory
        return {"cpus": str(self.cgroups.cpus(cgroup)), "mems": str(self.cgroups.mems(cgroup)), "cgroup": cgroup}

    async def end(self, name: str, namespace: str = NAMESPACE) -> JsonObject:
        """End a pod, and its claims with it."""
        await self.kubelet.stop_pod(namespace, name, tries=3)
        return {}

    async def watch(self) -> JsonObject:
        """Begin to watch for writes to the cpusets of all containers."""
        records = [record for run in self.kubelet.runs.values() for record in run.containers.values()]
        self._unwatch()
        self._watch = WriteWatch(self.cgroups.cpus_file(record.directory) for record in records)
        return {"files": len(records)}

    async def written(self) -> JsonObject:
        """Tell whether anybody wrote one since then, and end watching."""
        assert self._watch is not None, "watch comes first"
        written = self._watch.written()
        self._unwatch()
        return {"written": written}

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.__exit__()
        self._watch = None

    def _forget(self, pod: JsonObject) -> None:
        """Have a pod that did not start deleted, and the claims that it alone had."""
        uid, name = text(pod, "metadata", "uid"), text(pod, "metadata", "name")
        namespace = text(pod, "metadata", "namespace")
        self.api.store.remove(Key(kind=PODS, namespace=namespace, name=name))
        for one in nodes(pod, "spec", "resourceClaims"):
            claim = text(one, "resourceClaimName")
            self.cluster.release(namespace, claim, uid)
            users = nodes(
                self.api.store.get(Key(kind=CLAIMS, namespace=namespace, name=claim)), "status", "reservedFor"
            )
            if not users:
                self.cluster.delete_claim(namespace, claim)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            try:
                answer = await getattr(self, request.pop("verb"))(**request)
            except (ApiError, KubeletFault, Unschedulable, TimeoutError, AssertionError, OSError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            self.save()
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        finally:
            writer.close()

    # --- what outlives it --------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write down what a cluster and a kubelet keep."""
        claims: list[Json] = [
            {
                "namespace": info.namespace,
                "name": info.name,
                "uid": info.uid,
                "drivers": list(info.drivers),
                "pods": sorted(info.pods),
                "devices": [device.SerializeToString().hex() for device in info.devices],
            }
            for info in self.kubelet.checkpoint.values()
        ]
        state: JsonObject = {"life": self.life, "objects": self.api.store.saved(), "claims": claims}
        new = STATE.with_suffix(".new")
        new.write_text(json.dumps(state))
        new.replace(STATE)

    def _restore(self, state: JsonObject) -> None:
        if not state:
            self.cluster.populate()
            return
        self.api.store.restore(nodes(state, "objects"))
        for one in nodes(state, "claims"):
            self.kubelet.checkpoint[text(one, "uid")] = ClaimInfo(
                namespace=text(one, "namespace"),
                name=text(one, "name"),
                uid=text(one, "uid"),
                drivers=texts(one, "drivers"),
                devices=[dra_pb2.Device.FromString(bytes.fromhex(device)) for device in texts(one, "devices")],
                pods=set(texts(one, "pods")),
            )


def _told(devices: list[dra_pb2.Device]) -> list[Json]:
    return [device.SerializeToString(deterministic=True).hex() for device in devices]


def main() -> None:
    """Be the node's kubelet."""
    cgroups = find_cgroups()
    assert cgroups is not None, "the machine has no cpusets"
    state: JsonObject = {}
    with suppress(FileNotFoundError):
        state = json.loads(STATE.read_text())
    host = Path("/proc/sys/kernel/hostname").read_text().strip()
    asyncio.run(VmNode(host, cgroups, state).run())


if __name__ == "__main__":
    main()
