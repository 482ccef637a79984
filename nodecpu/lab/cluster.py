"""What the rest of a cluster does to the API objects of one node: scheduler, claim controller, users.

All of it is admitted to the object store as the API server would; the node's daemon sees it through its watches.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

from nodecpu.lab.admission import admitted
from nodecpu.lab.apiserver import now
from nodecpu.lab.jsontree import Json, JsonObject, leaf, node, nodes, text
from nodecpu.lab.objects import (
    CLAIMS,
    CLASSES,
    EVENTS,
    NODES,
    PODS,
    SLICES,
    TOPOLOGIES,
    ApiError,
    Key,
    Kind,
    ObjectStore,
)
from nodecpu.lab.podspec import claim_names, mcpu, qos_class, with_defaults
from nodecpu.lab.scheduler import Want, allocate, counted, pool_of
from nodecpu.lab.slicerules import DEFAULT, Features

_FINALIZER = "resource.kubernetes.io/delete-protection"


class Cluster:
    """One cluster with one node, and one driver of interest; ``features`` tells what its API server knows by now."""

    def __init__(
        self, store: ObjectStore, *, node_name: str, driver: str, features: Callable[[], Features] = lambda: DEFAULT
    ) -> None:
        self.store = store
        self.node_name = node_name
        self.driver = driver
        self._features = features

    def create(self, kind: Kind, namespace: str, body: JsonObject) -> JsonObject:
        """Return an object made as the API server makes it; ApiError for one that it refuses."""
        return self.store.create(kind, namespace, admitted(kind, body, None, status=False, features=self._features()))

    def update(self, key: Key, body: JsonObject, *, status: bool = False) -> JsonObject:
        """Return an object changed as the API server changes it; ApiError for what it refuses."""
        stored = admitted(key.kind, body, self.store.get(key), status=status, features=self._features())
        return self.store.update(key, stored, status=status)

    def populate(self) -> None:
        """Make the Node and the DeviceClass."""
        made = self.create(NODES, "", {"metadata": {"name": self.node_name}, "spec": {}})
        ready: JsonObject = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        self.update(
            Key(kind=NODES, namespace="", name=self.node_name), made | {"status": {"conditions": [ready]}}, status=True
        )
        selector: JsonObject = {"cel": {"expression": f'device.driver == "{self.driver}"'}}
        self.create(CLASSES, "", {"metadata": {"name": self.driver}, "spec": {"selectors": [selector]}})

    def slices(self) -> list[JsonObject]:
        """Return the driver's slices."""
        return self.store.find(SLICES, "", f"spec.driver={self.driver}")

    def create_claim(self, namespace: str, name: str, wants: Sequence[Want], *, template: str = "") -> JsonObject:
        """Return a claim, not allocated yet, that asks for amounts of CPUs; ``template``: the pod's name for it."""
        requests: dict[str, JsonObject] = {}
        for want in wants:
            base, _, sub = want.request.partition("/")
            one: JsonObject = {"allocationMode": "ExactCount", "count": 1, "deviceClassName": self.driver}
            if want.cpus:
                one["capacity"] = {"requests": {f"{self.driver}/cpu": want.cpus}}
            if sub:
                before = nodes(requests.get(base, {}), "firstAvailable")
                requests[base] = {"name": base, "firstAvailable": [*before, {"name": sub, **one}]}
            else:
                requests[base] = {"name": base, "exactly": one}
        metadata: JsonObject = {"name": name}
        if template:
            metadata["annotations"] = {"resource.kubernetes.io/pod-claim-name": template}
        listed: list[Json] = list(requests.values())
        return self.create(CLAIMS, namespace, {"metadata": metadata, "spec": {"devices": {"requests": listed}}})

    def allocate(self, namespace: str, name: str, wants: Sequence[Want]) -> JsonObject:
        """Return a claim after the scheduler has allocated it. Raises Unschedulable."""
        key = Key(kind=CLAIMS, namespace=namespace, name=name)
        claim = self.store.get(key)
        others = [
            one for one in self.store.find(CLAIMS) if text(one, "metadata", "uid") != text(claim, "metadata", "uid")
        ]
        pool = pool_of(self.slices(), self.driver, self.node_name)
        allocation = allocate(pool, others, wants, now=now())
        metadata: JsonObject = node(claim, "metadata") | {"finalizers": [_FINALIZER]}
        claim = self.update(key, claim | {"metadata": metadata})
        return self.update(key, claim | {"status": {"allocation": allocation}}, status=True)

    def deallocate(self, namespace: str, name: str) -> None:
        """Clear a claim's status and finalizer, as the claim controller does after the last pod."""
        key = Key(kind=CLAIMS, namespace=namespace, name=name)
        claim = self.update(key, self.store.get(key) | {"status": {}}, status=True)
        metadata = node(claim, "metadata")
        metadata.pop("finalizers", None)
        self.update(key, claim | {"metadata": metadata})

    def delete_claim(self, namespace: str, name: str) -> None:
        """Delete a claim, finalizer or not."""
        self.store.remove(Key(kind=CLAIMS, namespace=namespace, name=name))

    def create_pod(
        self,
        namespace: str,
        name: str,
        spec: JsonObject,
        annotations: JsonObject,
        *,
        generated: Mapping[str, str] | None = None,
    ) -> JsonObject:
        """Return a pod bound to the node, its claims reserved for it; ``generated`` names claims made of templates."""
        spec = with_defaults(spec) | {"nodeName": self.node_name, "restartPolicy": "Always"}
        metadata: JsonObject = {"name": name} | ({"annotations": annotations} if annotations else {})
        pod = self.create(PODS, namespace, {"metadata": metadata, "spec": spec})
        key = Key(kind=PODS, namespace=namespace, name=name)
        status: JsonObject = {"phase": "Pending", "qosClass": qos_class(spec)}
        of_templates = [one for one in nodes(spec, "resourceClaims") if "resourceClaimTemplateName" in one]
        if of_templates:
            named = {text(one, "name"): (generated or {}).get(text(one, "name"), "") for one in of_templates}
            status["resourceClaimStatuses"] = [
                {"name": name, "resourceClaimName": claim} for name, claim in named.items()
            ]
        names = claim_names(pod | {"status": status}).values()
        claims = [self.store.get(Key(kind=CLAIMS, namespace=namespace, name=name)) for name in names]
        if told := [one for one in (counted(self.slices(), claim) for claim in claims) if one]:
            status["nodeAllocatableResourceClaimStatuses"] = list(told)
        pod = self.update(key, pod | {"status": status}, status=True)
        for claim in claim_names(pod).values():
            self.reserve(namespace, claim, name, text(pod, "metadata", "uid"))
        return pod

    def reserve(self, namespace: str, claim: str, pod: str, pod_uid: str) -> None:
        """Note in a claim's status that a pod may use it."""
        user: JsonObject = {"resource": "pods", "name": pod, "uid": pod_uid}
        self._set_users(namespace, claim, [*self._users(namespace, claim), user])

    def release(self, namespace: str, claim: str, pod_uid: str) -> None:
        """Take a pod out of a claim's status; after the last one the claim is deallocated."""
        left = [user for user in self._users(namespace, claim) if text(user, "uid") != pod_uid]
        self._set_users(namespace, claim, left)
        if not left:
            self.deallocate(namespace, claim)

    def resize(self, namespace: str, name: str, container: str, resources: JsonObject) -> JsonObject:
        """Return a pod after a container's resources were changed in its spec, as the resize subresource does."""
        key = Key(kind=PODS, namespace=namespace, name=name)
        pod = self.store.get(key)
        containers = nodes(pod, "spec", "containers")
        for one in containers:
            if text(one, "name") == container:
                one["resources"] = node(one, "resources") | resources
        spec: JsonObject = node(pod, "spec") | {"containers": list(containers)}
        return self.update(key, pod | {"spec": spec})

    def note_event(self, pod: JsonObject, reason: str, message: str) -> None:
        """Write an event about a pod, as the kubelet does."""
        namespace, name = text(pod, "metadata", "namespace"), text(pod, "metadata", "name")
        about: JsonObject = {"kind": "Pod", "namespace": namespace, "name": name, "uid": text(pod, "metadata", "uid")}
        body: JsonObject = {
            "metadata": {"name": f"{name}.{uuid.uuid4().hex[:16]}"},
            "involvedObject": about,
            "reason": reason,
            "message": message,
            "type": "Warning",
        }
        self.create(EVENTS, namespace, body)

    def topology(self, path: str) -> Json:
        """Return a value of the node's topology object by its path, ``zone/resource/field`` or ``zone/attribute``."""
        try:
            found = self.store.get(Key(kind=TOPOLOGIES, namespace="", name=self.node_name))
        except ApiError:
            return None
        zone_name, _, rest = path.partition("/")
        zone = next((one for one in nodes(found, "zones") if text(one, "name") == zone_name), {})
        name, _, field = rest.partition("/")
        entries = nodes(zone, "resources" if field else "attributes")
        entry = next((one for one in entries if text(one, "name") == name), {})
        return leaf(entry, field or "value")

    def capacities(self) -> dict[str, int]:
        """Return the CPUs that each published device offers; one without a capacity is one."""
        key = f"{self.driver}/cpu"
        return {
            text(device, "name"): mcpu(leaf(device, "capacity", key, "value") or "1") // 1000
            for one in self.slices()
            for device in nodes(one, "spec", "devices")
        }

    def _users(self, namespace: str, claim: str) -> list[JsonObject]:
        return nodes(self.store.get(Key(kind=CLAIMS, namespace=namespace, name=claim)), "status", "reservedFor")

    def _set_users(self, namespace: str, claim: str, users: Sequence[JsonObject]) -> None:
        key = Key(kind=CLAIMS, namespace=namespace, name=claim)
        old = self.store.get(key)
        reserved: list[Json] = list(users)
        self.update(key, old | {"status": node(old, "status") | {"reservedFor": reserved}}, status=True)
