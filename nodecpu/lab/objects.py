"""The API server's objects and its rules about them, without HTTP and without waiting.

Every change has a resource version of its own, rising over all kinds; a watcher asks for what happened after one.
Objects handed in and out are copies. Source: the Kubernetes API conventions as far as a node agent can notice them.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from nodecpu.lab.jsontree import Json, JsonObject, leaf, merged, node, nodes, text, texts

_SUFFIX_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of object; ``group`` is "" for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    has_status: bool

    @property
    def api_version(self) -> str:
        """Return ``group/version`` as objects carry it."""
        return f"{self.group}/{self.version}" if self.group else self.version


NODES: Final = Kind(group="", version="v1", plural="nodes", kind="Node", namespaced=False, has_status=True)
PODS: Final = Kind(group="", version="v1", plural="pods", kind="Pod", namespaced=True, has_status=True)
EVENTS: Final = Kind(group="", version="v1", plural="events", kind="Event", namespaced=True, has_status=False)
NEW_EVENTS: Final = Kind(
    group="events.k8s.io", version="v1", plural="events", kind="Event", namespaced=True, has_status=False
)
SLICES: Final = Kind(
    group="resource.k8s.io",
    version="v1",
    plural="resourceslices",
    kind="ResourceSlice",
    namespaced=False,
    has_status=False,
)
CLAIMS: Final = Kind(
    group="resource.k8s.io",
    version="v1",
    plural="resourceclaims",
    kind="ResourceClaim",
    namespaced=True,
    has_status=True,
)
CLASSES: Final = Kind(
    group="resource.k8s.io",
    version="v1",
    plural="deviceclasses",
    kind="DeviceClass",
    namespaced=False,
    has_status=False,
)
ACCOUNTS: Final = Kind(
    group="", version="v1", plural="serviceaccounts", kind="ServiceAccount", namespaced=True, has_status=False
)
TOPOLOGIES: Final = Kind(
    group="topology.node.k8s.io",
    version="v1alpha2",
    plural="noderesourcetopologies",
    kind="NodeResourceTopology",
    namespaced=False,
    has_status=False,
)
WITHOUT_GENERATION: Final = (CLAIMS, EVENTS, NEW_EVENTS)
"""Kinds without metadata.generation. Source: recorded claims of Kubernetes 1.36, registry/core/event."""

KINDS: Final = (NODES, PODS, EVENTS, NEW_EVENTS, SLICES, CLAIMS, CLASSES, ACCOUNTS, TOPOLOGIES)


class ApiError(Exception):
    """An answer other than success: HTTP status, machine-readable reason, sentence, when to ask again (0: not told)."""

    def __init__(self, status: int, reason: str, message: str, *, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    def body(self) -> JsonObject:
        """Return the Status object that the answer carries."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a watcher is told: ADDED, MODIFIED or DELETED."""

    version: int
    kind: Kind
    type: str
    object: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Where an object is; ``namespace`` is "" for cluster-wide kinds."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f'{self.kind.plural} "{self.name}"'


class ObjectStore:
    """All objects, and the changes since a settable past.

    ``changed`` is called after each change; ``now`` gives the time as RFC 3339 text.
    """

    def __init__(self, *, now: Callable[[], str], changed: Callable[[], None] = lambda: None) -> None:
        self._now = now
        self._changed = changed
        self._version = 100
        self._forgotten = 0
        self._objects: dict[Key, JsonObject] = {}
        self._changes: list[Change] = []

    @property
    def version(self) -> int:
        """Return the resource version of the latest change."""
        return self._version

    def forget(self) -> None:
        """Forget all past changes, as a compaction does: watches from before now are told 410."""
        self._forgotten = self._version
        self._changes.clear()

    def saved(self) -> list[Json]:
        """Return all objects as they are, for ``restore``."""
        return [node(value) for value in self._objects.values()]

    def restore(self, saved: Iterable[Mapping[str, Json]]) -> None:
        """Have the objects of another life, with their UIDs and versions; past changes are forgotten."""
        for value in saved:
            made = (text(value, "apiVersion"), text(value, "kind"))
            kind = next(kind for kind in KINDS if (kind.api_version, kind.kind) == made)
            key = Key(kind=kind, namespace=text(value, "metadata", "namespace"), name=text(value, "metadata", "name"))
            self._objects[key] = node(value)
            self._version = max(self._version, int(text(value, "metadata", "resourceVersion")))
        self.forget()

    def get(self, key: Key, *, uid: str = "") -> JsonObject:
        """Return an object; ApiError 404 if there is none, 409 if it had to be the one with a UID (as in a PUT).

        Source: preconditions are checked against what is there, be it nothing (apiserver registry/rest/update.go and
        storage/etcd3, GuaranteedUpdate with ignoreNotFound).
        """
        found = self._objects.get(key)
        if found is None and uid:
            raise _other_uid(key, uid)
        if found is None:
            raise ApiError(404, "NotFound", f"{key} not found")
        return node(found)

    def find(self, kind: Kind, namespace: str = "", selector: str = "") -> list[JsonObject]:
        """Return the objects of a kind, in one namespace if given, that a field selector lets pass; sorted by key."""
        found = [
            (key.namespace, key.name, value)
            for key, value in self._objects.items()
            if key.kind is kind and (not namespace or key.namespace == namespace)
        ]
        return [node(value) for _, _, value in sorted(found, key=lambda f: f[:2]) if selected(value, selector)]

    def changes_after(self, version: int) -> list[Change]:
        """Return what happened after a resource version; ApiError 410 if that is forgotten."""
        if version < self._forgotten:
            raise ApiError(410, "Expired", f"too old resource version: {version} ({self._forgotten})")
        return [change for change in self._changes if change.version > version]

    def create(self, kind: Kind, namespace: str, body: Mapping[str, Json]) -> JsonObject:
        """Return the object made; generateName gets a suffix, status of kinds with a status is dropped."""
        made = node(body)
        metadata = node(made, "metadata")
        name = text(metadata, "name")
        if not name and (prefix := text(metadata, "generateName")):
            name = prefix + "".join(random.choices(_SUFFIX_ALPHABET, k=5))
        if not name:
            raise ApiError(422, "Invalid", f"{kind.kind}: metadata.name: Required value")
        key = Key(kind=kind, namespace=namespace if kind.namespaced else "", name=name)
        if key in self._objects:
            raise ApiError(409, "AlreadyExists", f"{key} already exists")
        metadata.update(name=name, uid=str(uuid.uuid4()), creationTimestamp=self._now())
        if kind not in WITHOUT_GENERATION:
            metadata["generation"] = 1
        if kind.namespaced:
            metadata["namespace"] = namespace
        made.update(apiVersion=kind.api_version, kind=kind.kind, metadata=metadata)
        if kind.has_status:
            made.pop("status", None)
        return self._put(key, made, "ADDED")

    def update(self, key: Key, body: Mapping[str, Json], *, status: bool = False) -> JsonObject:
        """Return the object after a replacement of its main part, or of its status alone.

        A resource version in the body must be the current one (409).
        """
        uid = text(body, "metadata", "uid")
        old = self.get(key, uid=uid)
        self._check(key, old, uid, text(body, "metadata", "resourceVersion"))
        new = node(old) if status else node(body)
        if status:
            new["status"] = leaf(body, "status")
        elif key.kind.has_status:
            new["status"] = leaf(old, "status")
        metadata = node(old, "metadata")
        if not status:
            for field in ("labels", "annotations", "finalizers", "ownerReferences"):
                metadata.pop(field, None)
                if (given := leaf(body, "metadata", field)) is not None:
                    metadata[field] = given
            new.update(apiVersion=key.kind.api_version, kind=key.kind.kind)
            generation = leaf(metadata, "generation")
            if isinstance(generation, int) and leaf(old, "spec") != leaf(new, "spec"):
                metadata["generation"] = generation + 1
        if new.get("status") is None:
            new.pop("status", None)
        new["metadata"] = metadata
        if new == old:
            return old
        return self._put(key, new, "MODIFIED")

    def patch(self, key: Key, body: Mapping[str, Json], *, status: bool = False) -> JsonObject:
        """Return the object after a JSON merge patch of its main part, or of its status alone."""
        old = self.get(key)
        new = merged(old, body)
        if not isinstance(new, dict):
            raise ApiError(400, "BadRequest", "patch is no object")
        return self.update(key, new, status=status)

    def delete(self, key: Key, *, uid: str = "", version: str = "") -> JsonObject:
        """Return the object deleted, or marked for deletion where finalizers remain; preconditions may fail (409)."""
        old = self.get(key)
        self._check(key, old, uid, version)
        if texts(old, "metadata", "finalizers"):
            metadata = node(old, "metadata")
            metadata.setdefault("deletionTimestamp", self._now())
            return self._put(key, old | {"metadata": metadata}, "MODIFIED")
        return self.remove(key)

    def mark_deleted(self, key: Key, *, grace_s: int) -> JsonObject:
        """Return a pod after a graceful deletion was asked for: it goes when the kubelet says so."""
        old = self.get(key)
        metadata = node(old, "metadata")
        metadata.setdefault("deletionTimestamp", self._now())
        metadata["deletionGracePeriodSeconds"] = grace_s
        return self._put(key, old | {"metadata": metadata}, "MODIFIED")

    def remove(self, key: Key) -> JsonObject:
        """Return an object after taking it away whatever stands in the way."""
        old = self.get(key)
        del self._objects[key]
        self._note(key, old, "DELETED")
        return old

    def _check(self, key: Key, old: JsonObject, uid: str, version: str) -> None:
        if uid and uid != text(old, "metadata", "uid"):
            raise _other_uid(key, uid)
        if version and version != text(old, "metadata", "resourceVersion"):
            raise ApiError(
                409,
                "Conflict",
                f"Operation cannot be fulfilled on {key}: the object has been modified; please apply your changes to "
                "the latest version and try again",
            )

    def _put(self, key: Key, value: JsonObject, change: str) -> JsonObject:
        self._objects[key] = value
        return self._note(key, value, change)

    def _note(self, key: Key, value: JsonObject, change: str) -> JsonObject:
        self._version += 1
        metadata = node(value, "metadata") | {"resourceVersion": str(self._version)}
        value["metadata"] = metadata
        self._changes.append(Change(version=self._version, kind=key.kind, type=change, object=node(value)))
        self._changed()
        return node(value)


def _other_uid(key: Key, uid: str) -> ApiError:
    return ApiError(409, "Conflict", f"{key}: precondition failed: UID in precondition: {uid}")


def selected(value: Mapping[str, Json], selector: str) -> bool:
    """Return whether a field selector (``a.b=c,d!=e``) lets an object pass; ApiError 400 for other forms."""
    for part in filter(None, selector.split(",")):
        field, found, wanted = part.partition("=")
        if not found:
            raise ApiError(400, "BadRequest", f"unable to parse field selector {selector!r}")
        negated = field.endswith("!")
        have = leaf(value, *field.rstrip("!").split("."))
        if ((have or "") == wanted.removeprefix("=")) is negated:
            return False
    return True


def topology_faults(body: Mapping[str, Json]) -> list[str]:
    """Return what the schema of NodeResourceTopology v1alpha2 would refuse, as sentences.

    Source: manifests/crd.yaml of noderesourcetopology-api 0.1.3.
    """
    faults = [] if "zones" in body else ["zones: Required value"]
    faults += [f"{key}: unknown field" for key in body.keys() - _TOPOLOGY_KEYS]
    for number, zone in enumerate(nodes(body, "zones")):
        where = f"zones[{number}]"
        faults += [f"{where}.{key}: Required value" for key in ("name", "type") if not text(zone, key)]
        faults += [f"{where}.{key}: unknown field" for key in zone.keys() - _ZONE_KEYS]
        faults += [
            f"{where}.resources: {key} of {text(resource, 'name')}: Required value"
            for resource in nodes(zone, "resources")
            for key in ("name", "capacity", "allocatable", "available")
            if not text(resource, key)
        ]
        faults += [f"{where}.costs: value must be a whole number" for c in nodes(zone, "costs") if not _whole(c)]
    return faults


_TOPOLOGY_KEYS: Final = frozenset({"apiVersion", "kind", "metadata", "topologyPolicies", "attributes", "zones"})
_ZONE_KEYS: Final = frozenset({"name", "type", "parent", "costs", "attributes", "resources"})


def _whole(cost: JsonObject) -> bool:
    return isinstance(cost.get("value"), int) and bool(text(cost, "name"))
