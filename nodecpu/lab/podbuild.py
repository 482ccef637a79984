"""Pod specs out of a scenario's short form (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from nodecpu.lab.jsontree import JsonObject
from nodecpu.lab.scenario import ContainerPlan, PodPlan

_PLACE: Final = re.compile(r"\{((?:uid|cpus):[^}]+)\}")


def pod_spec(plan: PodPlan, resolve: Callable[[str], str]) -> JsonObject:
    """Return a pod's spec; ``{uid:NAME}`` and ``{cpus:NAME}`` in environments are given to ``resolve``."""
    names = dict.fromkeys(use.partition("/")[0] for one in plan.containers for use in one.claims)
    spec: JsonObject = {
        "containers": [_container(one, resolve) for one in plan.containers if not (one.init or one.sidecar)],
        "resourceClaims": [{"name": name, "resourceClaimName": name} for name in names],
    }
    if any(one.init or one.sidecar for one in plan.containers):
        spec["initContainers"] = [_container(one, resolve) for one in plan.containers if one.init or one.sidecar]
    own: JsonObject = {key: dict(what) for key, what in (("requests", plan.requests), ("limits", plan.limits)) if what}
    if own:
        spec["resources"] = own
    if plan.handler:
        spec["runtimeClassName"] = plan.handler
    return spec


def _container(plan: ContainerPlan, resolve: Callable[[str], str]) -> JsonObject:
    requests = {key: value for key, value in (("cpu", plan.cpu), ("memory", plan.memory)) if value}
    limits = {key: value for key, value in (("cpu", plan.cpu_limit), ("memory", plan.memory_limit)) if value}
    resources: JsonObject = {}
    if requests:
        resources["requests"] = dict(requests)
    if limits:
        resources["limits"] = dict(limits)
    if plan.claims:
        resources["claims"] = [_use(claim) for claim in plan.claims]
    container: JsonObject = {"name": plan.name, "image": "localhost/busybox:1", "resources": resources}
    if plan.sidecar:
        container["restartPolicy"] = "Always"
    if plan.env:
        container["env"] = [_variable(one, resolve) for one in plan.env]
    return container


def _use(claim: str) -> JsonObject:
    name, _, request = claim.partition("/")
    return {"name": name, "request": request} if request else {"name": name}


def _variable(text: str, resolve: Callable[[str], str]) -> JsonObject:
    name, _, value = _PLACE.sub(lambda found: resolve(found[1]), text).partition("=")
    return {"name": name, "value": value}
