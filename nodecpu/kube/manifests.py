"""What the cluster needs once, as objects (pure): DeviceClasses, rights, and the policy that ties slices to their node.

The rights are what the daemon calls and nothing more: the lab refuses everything else. A pod watch cannot be narrowed
to one node by rights: whoever has a node's credentials can read all pods' specs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Object: TypeAlias = "Mapping[str, object]"

SLICE_VERSIONS: Final = ("v1", "v1beta2", "v1beta1")
"""All versions in which an API server may serve ResourceSlices, lest one go past the policy."""

_RESOURCE: Final = "resource.k8s.io"
_RBAC: Final = "rbac.authorization.k8s.io"
_TOPOLOGY: Final = "topology.node.k8s.io"
_NODE_NAME: Final = "authentication.kubernetes.io/node-name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What can be chosen. ``numa_nodes``: DeviceClasses for so many; ``topology``: rights on NodeResourceTopology."""

    driver: str = "dra.cpu"
    namespace: str = "nodecpu"
    numa_nodes: int = 0
    topology: bool = False
    topology_crd: bool = False


def manifests(choices: Choices) -> tuple[Object, ...]:
    """Return all objects, in the order in which they can be applied."""
    crd = (_topology_crd(),) if choices.topology_crd else ()
    return (
        *crd,
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": choices.namespace}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "nodecpu", "namespace": choices.namespace},
            "automountServiceAccountToken": False,
        },
        *_rights(choices),
        *_admission(choices),
        *device_classes(choices),
    )


def device_classes(choices: Choices) -> Iterator[Object]:
    """Yield the DeviceClasses: all CPUs, and ready-made choices by the devices' attributes or by configuration."""
    driver = choices.driver
    attributes = f'device.attributes["{driver}"]'
    standard = 'device.attributes["resource.kubernetes.io"]'
    yield _device_class(driver, driver)
    # One device is the CPUs of one node at most: no claim of this class spans two.
    yield _device_class(driver, f"{driver}-one-numa", f"has({standard}.numaNode)")
    for node in range(choices.numa_nodes):
        yield _device_class(
            driver, f"{driver}-numa-{node}", f"has({standard}.numaNode)", f"{standard}.numaNode == {node}"
        )
    yield _device_class(driver, f"{driver}-full-cores", config={"fullCores": True, "strict": True})
    yield _device_class(driver, f"{driver}-isolated", f"has({attributes}.isolated)", f"{attributes}.isolated")
    yield _device_class(
        driver, f"{driver}-performance", f"has({attributes}.coreType)", f'{attributes}.coreType == "p-core"'
    )


def rules(choices: Choices) -> Sequence[Object]:
    """Return what the daemon may do."""
    found = [
        _rule("", "nodes", "get"),
        _rule("", "pods", "list", "watch"),
        _rule("", "events", "create", "patch"),
        _rule(_RESOURCE, "resourceclaims", "get"),
        _rule(_RESOURCE, "resourceslices", "list", "watch", "create", "update", "delete"),
    ]
    if choices.topology:
        found.append(_rule(_TOPOLOGY, "noderesourcetopologies", "get", "create", "update"))
    return found


def token_rules() -> Sequence[Object]:
    """Return what the daemon may do in its account's namespace: ask for tokens of that account alone."""
    return [{**_rule("", "serviceaccounts/token", "create"), "resourceNames": ["nodecpu"]}]


def _rights(choices: Choices) -> Iterator[Object]:
    role = {"apiGroup": _RBAC, "kind": "ClusterRole", "name": "nodecpu"}
    account = {"kind": "ServiceAccount", "name": "nodecpu", "namespace": choices.namespace}
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "nodecpu"},
        "rules": rules(choices),
    }
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "nodecpu"},
        "roleRef": role,
        "subjects": [account],
    }
    metadata = {"name": "nodecpu-renews-its-token", "namespace": choices.namespace}
    yield {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": token_rules()}
    yield {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": metadata["name"]},
        "subjects": [account],
    }


def _rule(group: str, resource: str, *verbs: str) -> Object:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}


def _admission(choices: Choices) -> Iterator[Object]:
    """Yield the policy that lets a node's credentials write what is that node's alone, and its binding."""
    matched = [
        {
            "apiGroups": [_RESOURCE],
            "apiVersions": list(SLICE_VERSIONS),
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": ["resourceslices"],
        },
        {
            "apiGroups": [_TOPOLOGY],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE", "DELETE"],
            "resources": ["noderesourcetopologies"],
        },
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["serviceaccounts/token"],
        },
    ]
    yield {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "nodecpu-own-node-only"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": matched},
            "matchConditions": [
                {
                    "name": "is-nodecpu",
                    "expression": f'request.userInfo.username == "system:serviceaccount:{choices.namespace}:nodecpu"',
                }
            ],
            "variables": [
                {
                    "name": "userNode",
                    "expression": f'request.userInfo.?extra[?"{_NODE_NAME}"][0].orValue("")',
                },
                {"name": "written", "expression": 'request.operation == "DELETE" ? oldObject : object'},
                {
                    "name": "writtenNode",
                    "expression": 'request.resource.resource == "resourceslices"'
                    ' ? variables.written.spec.?nodeName.orValue("")'
                    ' : request.resource.resource == "serviceaccounts"'
                    ' ? (variables.written.spec.?boundObjectRef.?kind.orValue("") == "Node"'
                    ' ? variables.written.spec.?boundObjectRef.?name.orValue("") : "")'
                    " : variables.written.metadata.name",
                },
                {
                    "name": "writtenDriver",
                    "expression": 'request.resource.resource == "resourceslices"'
                    f' ? variables.written.spec.driver : "{choices.driver}"',
                },
            ],
            "validations": [
                {
                    "expression": 'variables.userNode != ""',
                    "message": "the token is not bound to a node: make it with --bound-object-kind Node",
                },
                {
                    "expression": "variables.userNode == variables.writtenNode",
                    "messageExpression": '"credentials of node " + variables.userNode'
                    ' + " may not write what is of node " + variables.writtenNode',
                },
                {
                    "expression": f'variables.writtenDriver == "{choices.driver}"',
                    "message": f"nodecpu may write slices of the driver {choices.driver} only",
                },
            ],
        },
    }
    yield {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "nodecpu-own-node-only"},
        "spec": {"policyName": "nodecpu-own-node-only", "validationActions": ["Deny"]},
    }


def _device_class(driver: str, name: str, *conditions: str, config: Mapping[str, object] | None = None) -> Object:
    expression = " && ".join((f'device.driver == "{driver}"', *conditions))
    spec: dict[str, object] = {"selectors": [{"cel": {"expression": expression}}]}
    if config is not None:
        parameters = {"apiVersion": "v1alpha1", "cpuConfig": config}
        spec["config"] = [{"opaque": {"driver": driver, "parameters": parameters}}]
    return {"apiVersion": f"{_RESOURCE}/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def _topology_crd() -> Object:
    """Return the CRD as far as it is needed. Source: noderesourcetopology-api 0.1.3, pkg/apis/topology/v1alpha2."""
    text = {"type": "string"}
    quantity = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
    }
    attributes = _list_of({"name": text, "value": text})
    resource = {"name": text, "capacity": quantity, "allocatable": quantity, "available": quantity}
    zone = {
        "name": text,
        "type": text,
        "parent": text,
        "costs": _list_of({"name": text, "value": {"type": "integer", "format": "int64"}}),
        "attributes": attributes,
        "resources": _list_of(resource),
    }
    top = {
        "apiVersion": text,
        "kind": text,
        "metadata": {"type": "object"},
        "topologyPolicies": {"type": "array", "items": text},
        "attributes": attributes,
        "zones": _list_of(zone, required=("name", "type")),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"noderesourcetopologies.{_TOPOLOGY}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"},
        },
        "spec": {
            "group": _TOPOLOGY,
            "scope": "Cluster",
            "names": {
                "kind": "NodeResourceTopology",
                "listKind": "NodeResourceTopologyList",
                "plural": "noderesourcetopologies",
                "singular": "noderesourcetopology",
                "shortNames": ["node-res-topo"],
            },
            "versions": [
                {
                    "name": "v1alpha2",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "required": ["zones"], "properties": top}},
                }
            ],
        },
    }


def _list_of(properties: Mapping[str, object], *, required: Sequence[str] | None = None) -> Object:
    keys = list(properties if required is None else required)
    return {"type": "array", "items": {"type": "object", "required": keys, "properties": properties}}
