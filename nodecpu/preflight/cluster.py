"""The API server: reachable, new enough, its clock ours, our rights there (shell, changes nothing; E2)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.errors import TRIED_AGAIN, LinkError, NodeCpuError
from nodecpu.kube.client import Api, ApiError, api_path
from nodecpu.kube.credentials import token_file
from nodecpu.kube.renewal import NodeToken, read_token
from nodecpu.preflight.files import read_text
from nodecpu.preflight.finding import Finding, failed, ok, unknown, warning

MAX_SKEW_S: Final = 30.0
"""Bearer tokens and certificates come into force at once; a clock further behind refuses new ones."""

_OLDEST: Final = (1, 34)
"""First Kubernetes with resource.k8s.io/v1."""

_REVIEW: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

_HOW: Final = "apply what `nodecpu manifests` prints, see docs/how-to/access.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Something the daemon has to be allowed. ``of_node``: only for what belongs to its own node.

    ``of`` is the one object that it is for, by namespace and name. Not ``vital``: it works without.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    subresource: str = ""
    of: tuple[str, str] | None = None
    of_node: bool = False
    vital: bool = True

    @property
    def what(self) -> str:
        """Return the resource as roles name it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


RIGHTS: Final = (
    Right(group="resource.k8s.io", resource="resourceclaims", verbs=("get",)),
    Right(group="resource.k8s.io", resource="resourceslices", verbs=("list", "watch", "create", "update", "delete")),
    Right(group="", resource="nodes", verbs=("get",), of_node=True),
    Right(group="", resource="pods", verbs=("list", "watch"), of_node=True),
    Right(group="", resource="events", verbs=("create", "patch"), vital=False),
)
"""What is asked of the API server whatever the configuration."""

_TOPOLOGY: Final = Right(
    group="topology.node.k8s.io", resource="noderesourcetopologies", verbs=("get", "create", "update"), vital=False
)


def rights_of(token: NodeToken | None, *, topology: bool) -> tuple[Right, ...]:
    """Return all that is asked of the API server: ``token`` is the one to be renewed, ``topology`` is published."""
    found = [*RIGHTS, *((_TOPOLOGY,) if topology else ())]
    if token is not None:
        found.append(
            Right(
                group="",
                resource="serviceaccounts",
                subresource="token",
                verbs=("create",),
                of=(token.namespace, token.account),
                vital=False,
            )
        )
    return tuple(found)


class _Version(msgspec.Struct, frozen=True):
    major: str = ""
    minor: str = ""
    gitVersion: str = ""  # noqa: N815 - Kubernetes' name


class _ReviewStatus(msgspec.Struct, frozen=True):
    allowed: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


async def cluster_findings(
    api: Api,
    *,
    node: str,
    kubeconfig: Path | None = None,
    topology: bool = False,
    skew_s: Callable[[], float | None] = lambda: None,
) -> tuple[Finding, ...]:
    """Return what is right and wrong at the API server, and of the token that a kubeconfig names.

    ``topology``: a NodeResourceTopology is to be written. ``skew_s`` tells in the end how far its clock is ahead.
    """
    token = None if kubeconfig is None else await asyncio.to_thread(_token, kubeconfig)
    bound = () if token is None else (_bound(token, node),)
    mine = token if token is not None and token.node == node else None  # what is renewed
    return (*bound, *await _server_findings(api, node, rights_of(mine, topology=topology), skew_s))


async def _server_findings(
    api: Api, node: str, rights: Sequence[Right], skew_s: Callable[[], float | None]
) -> tuple[Finding, ...]:
    check = "API server"
    try:
        version = msgspec.json.decode(await api.get("/version"), type=_Version)
    except ApiError as error:
        return (failed(check, str(error), "renew the credentials in the kubeconfig"),)
    except LinkError as error:
        server = "see that the server in [kube] kubeconfig is right and answers from this node"
        return (failed(check, error.message, server if error.hint in ("", TRIED_AGAIN) else error.hint),)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        return (failed(check, f"no Kubernetes answers: {str(error)[:100]}", "see the server in [kube] kubeconfig"),)
    found = [_new_enough(version), await _served(api), await _node(api, node)]
    found += await asyncio.gather(*(_allowed(api, right, node) for right in rights))
    found.append(clock_finding(skew_s()))
    return tuple(found)


def _token(kubeconfig: Path) -> NodeToken | None:
    """Return a kubeconfig's token if it stands in a file and is bound to a Node."""
    path = token_file(kubeconfig)
    return None if path is None else read_token(read_text(path) or "")


def _bound(token: NodeToken, node: str) -> Finding:
    """Return whether a token that is bound to a Node is bound to this one: the policy goes by that (U120)."""
    check = "token"
    if token.node == node:
        return ok(check, f"bound to {node}")
    remedy = f'give this node a token of its own, see docs/how-to/access.md, or set [node] name = "{token.node}"'
    return failed(check, f"bound to {token.node}, we are {node}: what we publish is refused", remedy)


def clock_finding(skew_s: float | None) -> Finding:
    """Return whether our clock agrees with the API server's."""
    check = "clock"
    if skew_s is None:
        return unknown(check, "the API server did not tell the time")
    if abs(skew_s) <= MAX_SKEW_S:
        return ok(check, "agrees with the API server's")
    words = "behind" if skew_s > 0 else "ahead of"
    return warning(check, f"{abs(skew_s):.0f} s {words} the API server's", "have chrony or systemd-timesyncd set it")


def _new_enough(version: _Version) -> Finding:
    check = "API server"
    numbers = [int(one) for one in re.findall(r"[0-9]{1,9}", f"{version.major}.{version.minor}")[:2]]
    if len(numbers) == len(_OLDEST) and tuple(numbers) < _OLDEST:
        return failed(check, f"Kubernetes {version.gitVersion}", "upgrade to Kubernetes 1.34 or later")
    return ok(check, f"answers, Kubernetes {version.gitVersion or 'of unknown version'}")


async def _served(api: Api) -> Finding:
    check = "resource.k8s.io/v1"
    try:
        await api.get("/apis/resource.k8s.io/v1")
    except ApiError as error:
        if error.status == 404:
            return failed(check, "not served", "turn the feature DynamicResourceAllocation and this API version on")
        return unknown(check, str(error))
    except NodeCpuError as error:
        return unknown(check, error.message)
    return ok(check, "served")


async def _node(api: Api, node: str) -> Finding:
    check = "Node object"
    try:
        await api.get(api_path("api", "v1", "nodes", node))
    except ApiError as error:
        if error.status == 404:
            return failed(check, f"there is no Node {node}", "set [node] name to what `kubectl get nodes` shows for it")
        return unknown(check, str(error))
    except NodeCpuError as error:
        return unknown(check, error.message)
    return ok(check, node)


async def _allowed(api: Api, right: Right, node: str) -> Finding:
    check = f"rights on {right.what}"
    missing = []
    for verb in right.verbs:
        asked: dict[str, object] = {"group": right.group, "resource": right.resource, "verb": verb}
        if right.subresource:
            asked["subresource"] = right.subresource
        if right.of is not None:
            asked["namespace"], asked["name"] = right.of
        if right.of_node and verb == "get":
            asked["name"] = node
        elif right.of_node:  # rights that go by selector are asked for as they are used. Source: KEP-4601
            one = {"key": "spec.nodeName", "operator": "In", "values": [node]}
            asked["fieldSelector"] = {"requirements": [one]}
        try:
            if not await _may(api, asked):
                missing.append(verb)
        except (NodeCpuError, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return unknown(check, str(error)[:200])
    if not missing:
        return ok(check, ", ".join(right.verbs))
    seen = f"not allowed: {', '.join(missing)}"
    where = f" ({right.group})" if right.group else ""
    remedy = f"allow {', '.join(missing)} on {right.what}{where} to the kubeconfig's user; {_HOW}"
    return failed(check, seen, remedy) if right.vital else warning(check, seen, remedy)


async def _may(api: Api, asked: Mapping[str, object]) -> bool:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    answer = await api.send("POST", _REVIEW, msgspec.json.encode(body))
    return msgspec.json.decode(answer, type=_Review).status.allowed
