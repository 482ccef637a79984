"""The admission policy, evaluated against requests as an API server would make them (U107, G. Security)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from nodecpu.kube.manifests import Choices, manifests
from tests.cel import CelError, evaluate

ACCOUNT = "system:serviceaccount:nodecpu:nodecpu"
NODE_KEY = "authentication.kubernetes.io/node-name"


def policy_spec(choices: Choices) -> dict[str, Any]:
    (found,) = [one for one in manifests(choices) if one["kind"] == "ValidatingAdmissionPolicy"]
    spec: dict[str, Any] = json.loads(json.dumps(found))["spec"]
    return spec


SPEC = policy_spec(Choices())


def slice_of(node: str | None, driver: str = "dra.cpu") -> dict[str, Any]:
    spec = {"driver": driver, "pool": {"name": node or "all"}, **({"nodeName": node} if node else {"allNodes": True})}
    return {"metadata": {"name": "00000-x"}, "spec": spec}


def token_request(kind: str | None = "Node", name: str = "n1") -> dict[str, Any]:
    bound = {} if kind is None else {"boundObjectRef": {"kind": kind, "name": name, "apiVersion": "v1"}}
    return {"metadata": {}, "spec": {"audiences": ["api"], **bound}}


def topology_of(node: str) -> dict[str, Any]:
    return {"metadata": {"name": node}, "zones": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request: ``new`` is what is written, ``old`` what was there; ``extra`` what the token says of its bearer."""

    resource: str = "resourceslices"
    operation: str = "CREATE"
    new: Mapping[str, Any] | None = None
    old: Mapping[str, Any] | None = None
    user: str = ACCOUNT
    extra: Mapping[str, Any] | None = field(default_factory=lambda: {NODE_KEY: ["n1"]})


def verdict(asked: Asked, spec: Mapping[str, Any] = SPEC) -> str:
    """Return why a request is refused; empty if it is not, whether the policy is for it or not."""
    info = {"username": asked.user, **({} if asked.extra is None else {"extra": asked.extra})}
    request = {
        "operation": asked.operation,
        "userInfo": info,
        "resource": {"group": "g", "version": "v1", "resource": asked.resource},
    }
    names: dict[str, object] = {"request": request, "object": asked.new, "oldObject": asked.old}
    if not all(evaluate(one["expression"], names) for one in spec["matchConditions"]):
        return ""
    variables = Variables(spec, names)
    for one in spec["validations"]:
        if evaluate(one["expression"], {**names, "variables": variables}) is not True:
            text = one.get("message")
            return str(text or evaluate(one["messageExpression"], {**names, "variables": variables}))
    return ""


class Variables(Mapping[str, object]):
    """The policy's variables, evaluated when they are used."""

    def __init__(self, spec: Mapping[str, Any], names: Mapping[str, object]) -> None:
        self._expressions = {one["name"]: one["expression"] for one in spec["variables"]}
        self._names = names

    def __getitem__(self, name: str) -> object:
        return evaluate(self._expressions[name], {**self._names, "variables": self})

    def __iter__(self) -> Any:
        return iter(self._expressions)

    def __len__(self) -> int:
        return len(self._expressions)


OWN = Asked(new=slice_of("n1"))


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(OWN, id="own slice"),
        pytest.param(replace(OWN, operation="UPDATE", old=slice_of("n1")), id="own slice updated"),
        pytest.param(replace(OWN, operation="DELETE", new=None, old=slice_of("n1")), id="own slice deleted"),
        pytest.param(Asked(resource="noderesourcetopologies", new=topology_of("n1")), id="own topology"),
        pytest.param(Asked(resource="serviceaccounts", new=token_request()), id="token for the own node"),
        pytest.param(Asked(new=slice_of("n2"), user="system:node:n2", extra=None), id="somebody else's business"),
    ],
)
def test_what_is_of_the_own_node_is_let_pass(asked: Asked) -> None:
    assert verdict(asked) == ""


UNBOUND = "the token is not bound to a node"
FOREIGN = "credentials of node n1 may not write what is of node"


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param(Asked(new=slice_of("n2")), f"{FOREIGN} n2", id="another node's slice"),
        pytest.param(
            replace(OWN, operation="DELETE", new=None, old=slice_of("n2")), f"{FOREIGN} n2", id="deletion of another's"
        ),
        pytest.param(Asked(new=slice_of(None)), FOREIGN, id="slice for all nodes"),
        pytest.param(Asked(new=slice_of("n1", "gpu.example.com")), "of the driver dra.cpu only", id="another driver's"),
        pytest.param(replace(OWN, extra=None), UNBOUND, id="no extra at all"),
        pytest.param(replace(OWN, extra={"other": ["n1"]}), UNBOUND, id="no node name in the token"),
        pytest.param(replace(OWN, extra={NODE_KEY: [""]}), UNBOUND, id="empty node name"),
        pytest.param(Asked(resource="noderesourcetopologies", new=topology_of("n2")), f"{FOREIGN} n2", id="topology"),
        pytest.param(Asked(resource="serviceaccounts", new=token_request(name="n2")), f"{FOREIGN} n2", id="its token"),
        pytest.param(Asked(resource="serviceaccounts", new=token_request(kind=None)), FOREIGN, id="unbound token"),
        pytest.param(
            Asked(resource="serviceaccounts", new=token_request(kind="Pod")), FOREIGN, id="token bound to a pod n1"
        ),
    ],
)
def test_everything_else_is_refused_with_a_reason(asked: Asked, why: str) -> None:
    assert why in verdict(asked)


def test_error_of_an_expression_lets_nothing_pass() -> None:
    """The policy fails closed: an empty list under the key is such an error."""
    assert SPEC["failurePolicy"] == "Fail"
    with pytest.raises(CelError):
        verdict(replace(OWN, extra={NODE_KEY: []}))


def test_policy_follows_driver_and_namespace() -> None:
    spec = policy_spec(Choices(driver="cpu.example.com", namespace="cpus"))
    user = "system:serviceaccount:cpus:nodecpu"
    assert verdict(Asked(new=slice_of("n1", "cpu.example.com"), user=user), spec) == ""
    assert "cpu.example.com only" in verdict(Asked(new=slice_of("n1"), user=user), spec)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ('a.b == "x" && a.n == 1', True),
        ('a.?c.orValue("none")', "none"),
        ("a.?c.?d[?0].orValue(1)", 1),
        ("a.l[0]", "first"),
        ('a.b != "x" || true', True),
        ('a.b == "y" ? a.missing : "no"', "no"),
        ('"q\\"" + a.b', 'q"x'),
    ],
)
def test_evaluator_does_as_the_language_says(expression: str, value: object) -> None:
    assert evaluate(expression, {"a": {"b": "x", "n": 1, "l": ["first"]}}) == value


@pytest.mark.parametrize("expression", ["a.c", "a.l[1]", 'a.n + "x"', "b", "a.n && true", 'a.b.orValue("")'])
def test_evaluator_refuses_what_the_language_refuses(expression: str) -> None:
    with pytest.raises(CelError):
        evaluate(expression, {"a": {"b": "x", "n": 1, "l": ["first"]}})


@pytest.mark.parametrize("expression", ["a.", "true ?", "(a", "a b", "a.map(x, x)", "a @"])
def test_evaluator_knows_what_it_does_not_know(expression: str) -> None:
    with pytest.raises(ValueError, match=r"not understood|expected|not known"):
        evaluate(expression, {"a": {}})
