"""What a kubelet derives from a pod's spec (pure): QoS class, cgroup parents, CPU shares and quota, claim references.

Source: Kubernetes 1.36, pkg/apis/core/v1/helper/qos and pkg/kubelet/cm/helpers_linux.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Final

from nodecpu.lab.jsontree import Json, JsonObject, leaf, node, nodes, text

MIN_SHARES: Final = 2
MIN_QUOTA_US: Final = 1000
PERIOD_US: Final = 100_000
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|Ki|Mi|Gi|Ti)?", re.ASCII)
_SUFFIX: Final = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
}


class CgroupDriver(Enum):
    """How the kubelet and the runtime name cgroups."""

    SYSTEMD = "systemd"
    CGROUPFS = "cgroupfs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a container's cgroup is made with; None: not set. ``memory_bytes`` is the limit."""

    shares: int = MIN_SHARES
    quota_us: int | None = None
    period_us: int = PERIOD_US
    memory_bytes: int | None = None
    oom_score_adj: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimUse:
    """A container's use of a claim: the name in the pod, and one request of it or None for all."""

    name: str
    request: str | None


def quantity(value: Json) -> Fraction:
    """Return a Kubernetes quantity as a number; ValueError for other forms."""
    if isinstance(value, int) and not isinstance(value, bool):
        return Fraction(value)
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"not a quantity: {value!r}")
    return Fraction(found[1]) * _SUFFIX[found[2] or ""]


def signed(value: Json) -> Fraction:
    """Return a Kubernetes quantity that may be negative as a number; ValueError for other forms."""
    if isinstance(value, str) and value[:1] in ("+", "-"):
        return quantity(value[1:]) * (-1 if value[0] == "-" else 1)
    return quantity(value)


def mcpu(value: Json) -> int:
    """Return a CPU quantity in milli-CPU, rounded up; 0 for None."""
    return 0 if value is None else -int(-quantity(value) * 1000 // 1)


def with_defaults(spec: Mapping[str, Json]) -> JsonObject:
    """Return a pod spec as the API server stores it: a limit without a request is the request too."""
    stored = node(spec)
    if limits := node(stored, "resources", "limits"):
        stored["resources"] = node(stored, "resources") | {"requests": limits | node(stored, "resources", "requests")}
    for key in ("initContainers", "containers"):
        containers = nodes(stored, key)
        for container in containers:
            resources = node(container, "resources")
            if limits := node(resources, "limits"):
                resources["requests"] = limits | node(resources, "requests")
                container["resources"] = resources
        if containers:
            stored[key] = containers
    return stored


def qos_class(spec: Mapping[str, Json]) -> str:
    """Return Guaranteed, Burstable or BestEffort: by the pod's own resources if it has some; claims do not count."""
    guaranteed, anything = True, False
    own = node(spec, "resources")
    for container in [{"resources": own}] if own else nodes(spec, "initContainers") + nodes(spec, "containers"):
        for resource in ("cpu", "memory"):
            request = leaf(container, "resources", "requests", resource)
            limit = leaf(container, "resources", "limits", resource)
            anything = anything or request is not None or limit is not None
            if limit is None or (request is not None and quantity(request) != quantity(limit)):
                guaranteed = False
    if not anything:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def figures(container: Mapping[str, Json], qos: str, spec: Mapping[str, Json] | None = None) -> Figures:
    """Return what the kubelet asks the runtime to make a container's cgroup with.

    The pod's limits, from its ``spec``, stand for those that the container has not.
    Source: pkg/kubelet/kuberuntime, getCPULimit and getMemoryLimit.
    """
    limits = node(spec or {}, "resources", "limits") | node(container, "resources", "limits")
    request = leaf(container, "resources", "requests", "cpu")
    limit, memory = limits.get("cpu"), limits.get("memory")
    return Figures(
        shares=shares(mcpu(limit if request is None else request)),
        quota_us=None if limit is None else quota_us(mcpu(limit)),
        memory_bytes=None if memory is None else int(quantity(memory)),
        oom_score_adj={"Guaranteed": -997, "BestEffort": 1000}.get(qos, 984),
    )


def pod_figures(spec: Mapping[str, Json], qos: str) -> Figures:
    """Return what the pod's own cgroup is made with: sums over its containers, a quota only if all have one."""
    own = node(spec, "resources")
    sidecars = [one for one in nodes(spec, "initContainers") if one.get("restartPolicy") == "Always"]
    containers = [{"resources": own}] if own else nodes(spec, "containers") + sidecars
    requests = sum(mcpu(leaf(one, "resources", "requests", "cpu")) for one in containers)
    limits = [leaf(one, "resources", "limits", "cpu") for one in containers]
    limited = qos != "BestEffort" and all(limit is not None for limit in limits)
    return Figures(
        shares=shares(requests), quota_us=quota_us(sum(mcpu(limit) for limit in limits)) if limited else None
    )


def shares(amount_mcpu: int) -> int:
    """Return cgroup v1 CPU shares for milli-CPUs: 1024 for each CPU, at least 2, at most 262144."""
    return min(max(amount_mcpu * 1024 // 1000, MIN_SHARES), 262144)


def quota_us(amount_mcpu: int) -> int:
    """Return the CFS quota for a limit, at least one millisecond of each 100."""
    return max(amount_mcpu * PERIOD_US // 1000, MIN_QUOTA_US)


def cgroup_parent(uid: str, qos: str, driver: CgroupDriver, *, root: str = "") -> str:
    """Return a pod's cgroup as the kubelet tells the runtime (a slice's path with systemd).

    ``root`` is the kubelet's --cgroup-root, for cgroupfs names only.
    """
    middle = {"BestEffort": "besteffort", "Burstable": "burstable"}.get(qos)
    if driver is CgroupDriver.CGROUPFS:
        return f"{root}/kubepods/{middle}/pod{uid}" if middle else f"{root}/kubepods/pod{uid}"
    name = "-".join(filter(None, ("kubepods", middle, f"pod{uid.replace('-', '_')}")))
    above = "/kubepods.slice" + (f"/kubepods-{middle}.slice" if middle else "")
    return f"{above}/{name}.slice"


def claim_uses(container: Mapping[str, Json]) -> tuple[ClaimUse, ...]:
    """Return the claims that a container names."""
    return tuple(
        ClaimUse(name=text(use, "name"), request=text(use, "request") or None)
        for use in nodes(container, "resources", "claims")
    )


def claim_names(pod: Mapping[str, Json]) -> dict[str, str]:
    """Return the pod's claims: name in the pod to name of the ResourceClaim, generated ones by the pod's status."""
    generated = {
        text(one, "name"): text(one, "resourceClaimName") for one in nodes(pod, "status", "resourceClaimStatuses")
    }
    found = {}
    for one in nodes(pod, "spec", "resourceClaims"):
        name = text(one, "name")
        found[name] = text(one, "resourceClaimName") or generated.get(name, "")
    return found
