"""The fields of the API's objects that the daemon writes, by kind and version: the table that tests compare with.

Ours, written from the types' definitions, one path a line: ``[]`` stands for the items of a list, ``*`` for the keys of
a map, ``**`` for what the API takes as it is. Sources, per kind: Kubernetes 1.36.2 staging/src/k8s.io/api (core/v1
types.go, resource/v1 types.go, authentication/v1 types.go, authorization/v1 types.go, rbac/v1 types.go,
admissionregistration/v1 types.go), apimachinery meta/v1 types.go (DeleteOptions), apiextensions-apiserver v1 types.go,
noderesourcetopology-api 0.1.3 v1alpha2 types.go. What 1.37 has instead of 1.36 is from its resource/v1 types.go.
"""

from __future__ import annotations

_META = """
metadata.name
metadata.generateName
metadata.namespace
metadata.uid
metadata.resourceVersion
metadata.annotations.*
metadata.ownerReferences[].apiVersion
metadata.ownerReferences[].kind
metadata.ownerReferences[].name
metadata.ownerReferences[].uid
metadata.ownerReferences[].controller
"""

_FIELDS = {
    "v1 Event": """
involvedObject.apiVersion
involvedObject.kind
involvedObject.namespace
involvedObject.name
involvedObject.uid
reason
message
type
count
firstTimestamp
lastTimestamp
source.component
source.host
reportingComponent
reportingInstance
""",
    "v1 DeleteOptions": """
preconditions.uid
preconditions.resourceVersion
""",
    "v1 Namespace": "",
    "v1 ServiceAccount": "automountServiceAccountToken",
    "resource.k8s.io/v1 ResourceSlice": """
spec.driver
spec.nodeName
spec.pool.name
spec.pool.generation
spec.pool.resourceSliceCount
spec.devices[].name
spec.devices[].allowMultipleAllocations
spec.devices[].attributes.*.int
spec.devices[].attributes.*.bool
spec.devices[].attributes.*.string
spec.devices[].attributes.*.version
spec.devices[].capacity.*.value
spec.devices[].capacity.*.requestPolicy.default
spec.devices[].capacity.*.requestPolicy.validRange.min
spec.devices[].capacity.*.requestPolicy.validRange.max
spec.devices[].capacity.*.requestPolicy.validRange.step
spec.devices[].taints[].key
spec.devices[].taints[].value
spec.devices[].taints[].effect
""",
    "resource.k8s.io/v1 DeviceClass": """
spec.selectors[].cel.expression
spec.config[].opaque.driver
spec.config[].opaque.parameters.**
""",
    "topology.node.k8s.io/v1alpha2 NodeResourceTopology": """
topologyPolicies[]
attributes[].name
attributes[].value
zones[].name
zones[].type
zones[].parent
zones[].costs[].name
zones[].costs[].value
zones[].attributes[].name
zones[].attributes[].value
zones[].resources[].name
zones[].resources[].capacity
zones[].resources[].allocatable
zones[].resources[].available
""",
    "authentication.k8s.io/v1 TokenRequest": """
spec.audiences[]
spec.expirationSeconds
spec.boundObjectRef.apiVersion
spec.boundObjectRef.kind
spec.boundObjectRef.name
spec.boundObjectRef.uid
""",
    "authorization.k8s.io/v1 SelfSubjectAccessReview": """
spec.resourceAttributes.group
spec.resourceAttributes.resource
spec.resourceAttributes.subresource
spec.resourceAttributes.verb
spec.resourceAttributes.name
spec.resourceAttributes.namespace
spec.resourceAttributes.fieldSelector.requirements[].key
spec.resourceAttributes.fieldSelector.requirements[].operator
spec.resourceAttributes.fieldSelector.requirements[].values[]
""",
    "rbac.authorization.k8s.io/v1 Role": """
rules[].apiGroups[]
rules[].resources[]
rules[].resourceNames[]
rules[].verbs[]
""",
    "rbac.authorization.k8s.io/v1 RoleBinding": """
roleRef.apiGroup
roleRef.kind
roleRef.name
subjects[].kind
subjects[].name
subjects[].namespace
""",
    "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy": """
spec.failurePolicy
spec.matchConstraints.matchPolicy
spec.matchConstraints.resourceRules[].apiGroups[]
spec.matchConstraints.resourceRules[].apiVersions[]
spec.matchConstraints.resourceRules[].operations[]
spec.matchConstraints.resourceRules[].resources[]
spec.matchConditions[].name
spec.matchConditions[].expression
spec.variables[].name
spec.variables[].expression
spec.validations[].expression
spec.validations[].message
spec.validations[].messageExpression
""",
    "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": """
spec.policyName
spec.validationActions[]
""",
    "apiextensions.k8s.io/v1 CustomResourceDefinition": """
spec.group
spec.scope
spec.names.kind
spec.names.listKind
spec.names.plural
spec.names.singular
spec.names.shortNames[]
spec.versions[].name
spec.versions[].served
spec.versions[].storage
spec.versions[].schema.openAPIV3Schema.**
""",
}
_OF_VERSION = {
    (36, "resource.k8s.io/v1 ResourceSlice"): """
spec.devices[].attributes.*.strings[]
spec.devices[].nodeAllocatableResourceMappings.*.capacityKey
spec.devices[].nodeAllocatableResourceMappings.*.allocationMultiplier
""",
    (37, "resource.k8s.io/v1 ResourceSlice"): """
spec.devices[].attributes.*.strings[]
spec.devices[].nodeAllocatableResources.*.mapping.capacityKey
spec.devices[].nodeAllocatableResources.*.mapping.capacityMultiplier
spec.devices[].nodeAllocatableResources.*.mapping.deviceMultiplier
""",
}
"""What a minor version alone has: the later one replaces the earlier one's."""

_SAME = {
    "rbac.authorization.k8s.io/v1 ClusterRole": "rbac.authorization.k8s.io/v1 Role",
    "rbac.authorization.k8s.io/v1 ClusterRoleBinding": "rbac.authorization.k8s.io/v1 RoleBinding",
}


def kinds() -> frozenset[str]:
    """Return all kinds of the table (``group/version Kind``)."""
    return frozenset([*_FIELDS, *_SAME])


def fields_of(kind: str, *, minor: int = 36) -> frozenset[str]:
    """Return the paths of a kind in Kubernetes 1.``minor``; KeyError for one that the table lacks."""
    own = _OF_VERSION.get((minor, kind), "")
    return frozenset([*_META.split(), *_FIELDS[_SAME.get(kind, kind)].split(), *own.split(), "apiVersion", "kind"])
