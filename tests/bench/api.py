"""The lab's API server as a process of its own, filled with what a run needs: nodes, pods and allocated claims.

The first line of its output is JSON: address, pods and claims. A line of input asks for the calls so far, by name.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Mapping

from nodecpu.lab.apiserver import ApiServer
from nodecpu.lab.jsontree import Json, JsonObject, text
from nodecpu.lab.objects import CLAIMS, NODES, PODS, Key, ObjectStore
from nodecpu.lab.trace import Trace
from tests.bench.messages import CPUS_PER_CONTAINER, NAMESPACE

NODE = "node"
CONTAINERS_PER_POD = 4


def fill(store: ObjectStore, wanted: Mapping[str, Json]) -> JsonObject:
    """Put in ``pods`` ordinary pods, and for each list of devices in ``claims`` a claim of ``cpus`` of each, with a
    pod; return their names and UIDs.
    """
    store.create(NODES, "", {"metadata": {"name": NODE}})
    pods: list[Json] = []
    for number in range(int(str(wanted["pods"]))):
        resources: Json = {"requests": {"cpu": CPUS_PER_CONTAINER}}
        boxes: list[Json] = [{"name": f"c{n}", "resources": resources} for n in range(CONTAINERS_PER_POD)]
        pods.append(_pod(store, f"web-{number}", {"containers": boxes}))
    claims: list[Json] = []
    devices = wanted["claims"]
    assert isinstance(devices, list)
    for number, names in enumerate(devices):
        name = f"claim-{number}"
        claim = _claim(store, name, names, str(wanted["cpus"]))
        boxes = [{"name": f"c{n}", "resources": {"claims": [{"name": "cpus"}]}} for n in range(2)]
        spec: JsonObject = {
            "containers": boxes,
            "resourceClaims": [{"name": "cpus", "resourceClaimName": name}],
        }
        claims.append({"name": name, "uid": claim, "pod": _pod(store, f"holder-{number}", spec)})
    return {"pods": pods, "claims": claims}


def _pod_bytes(store: ObjectStore) -> float:
    """Return what a pod weighs on the average."""
    pods = store.find(PODS)
    return sum(len(json.dumps(pod)) for pod in pods) / max(len(pods), 1)


def _pod(store: ObjectStore, name: str, spec: JsonObject) -> JsonObject:
    made = store.create(PODS, NAMESPACE, {"metadata": {"name": name}, "spec": {"nodeName": NODE, **spec}})
    return {"name": name, "uid": text(made, "metadata", "uid")}


def _claim(store: ObjectStore, name: str, devices: Json, cpus: str) -> str:
    made = store.create(CLAIMS, NAMESPACE, {"metadata": {"name": name}, "spec": {}})
    assert isinstance(devices, list)
    results: list[Json] = [
        {
            "request": f"cpus-{number}",
            "driver": "dra.cpu",
            "pool": NODE,
            "device": device,
            "consumedCapacity": {"dra.cpu/cpu": cpus},
            "shareID": f"{number:08d}-0000-4000-8000-000000000000",
        }
        for number, device in enumerate(devices)
    ]
    made["status"] = {"allocation": {"devices": {"results": results}}}
    store.update(Key(kind=CLAIMS, namespace=NAMESPACE, name=name), made, status=True)
    return text(made, "metadata", "uid")


async def main(wanted: Mapping[str, Json]) -> None:
    """Serve until the input ends."""
    trace = Trace()
    server = ApiServer(trace)
    filled = fill(server.store, wanted)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with asyncio.TaskGroup() as tasks:
        await server.start(tasks)
        _say({"url": server.url, **filled, "pod bytes": _pod_bytes(server.store)})
        while await reader.readline():
            calls = (call.split("/")[0] for call in trace.calls("api", "node"))
            _say(dict(Counter(calls)))
        await server.stop()


def _say(what: Mapping[str, Json]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
