"""Pod specs out of a scenario's short form (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from nodecpu.lab.jsontree import JsonObject
from nodecpu.lab.scenario import ClaimPlan, ContainerPlan, PodPlan

_PLACE: Final = re.compile(r"\{((?:uid|cpus):[^}]+)\}")


def pod_spec(plan: PodPlan, claims: Mapping[str, ClaimPlan], resolve: Callable[[str], str]) -> JsonObject:
    """Return a pod's spec; ``{uid:NAME}`` and ``{cpus:NAME}`` in environments are given to ``resolve``."""
    names = dict.fromkeys(use.partition("/")[0] for one in plan.containers for use in one.claims)
    called = {name: claims[name].template if name in claims else "" for name in names}
    made = {one.name: _container(one, called, resolve) for one in plan.containers}
    spec: JsonObject = {
        "containers": [made[one.name] for one in plan.containers if not (one.init or one.sidecar)],
        "resourceClaims": [_reference(name, template) for name, template in called.items()],
    }
    if any(one.init or one.sidecar for one in plan.containers):
        spec["initContainers"] = [made[one.name] for one in plan.containers if one.init or one.sidecar]
    own: JsonObject = {key: dict(what) for key, what in (("requests", plan.requests), ("limits", plan.limits)) if what}
    if own:
        spec["resources"] = own
    if plan.handler:
        spec["runtimeClassName"] = plan.handler
    return spec


def _reference(name: str, template: str) -> JsonObject:
    if template:
        return {"name": template, "resourceClaimTemplateName": f"{template}-template"}
    return {"name": name, "resourceClaimName": name}


def _container(plan: ContainerPlan, called: Mapping[str, str], resolve: Callable[[str], str]) -> JsonObject:
    requests = {key: value for key, value in (("cpu", plan.cpu), ("memory", plan.memory)) if value}
    limits = {key: value for key, value in (("cpu", plan.cpu_limit), ("memory", plan.memory_limit)) if value}
    resources: JsonObject = {}
    if requests:
        resources["requests"] = dict(requests)
    if limits:
        resources["limits"] = dict(limits)
    if plan.claims:
        resources["claims"] = [_use(claim, called) for claim in plan.claims]
    container: JsonObject = {"name": plan.name, "image": "localhost/busybox:1", "resources": resources}
    if plan.sidecar:
        container["restartPolicy"] = "Always"
    if plan.env:
        container["env"] = [_variable(one, resolve) for one in plan.env]
    return container


def _use(claim: str, called: Mapping[str, str]) -> JsonObject:
    name, _, request = claim.partition("/")
    name = called[name] or name
    return {"name": name, "request": request} if request else {"name": name}


def _variable(text: str, resolve: Callable[[str], str]) -> JsonObject:
    name, _, value = _PLACE.sub(lambda found: resolve(found[1]), text).partition("=")
    return {"name": name, "value": value}
