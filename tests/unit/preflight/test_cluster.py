"""The API server as it is found: rights asked for as they are used, versions, clock (E2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest

from nodecpu.errors import LinkError
from nodecpu.kube.client import ApiError
from nodecpu.preflight.cluster import clock_finding, cluster_findings
from nodecpu.preflight.finding import Finding, Grade
from tests.unit.kube.test_certificate import node_token


class Server:
    """Answers GETs by path, and reviews by a set of what is denied."""

    def __init__(self, minor: str = "34") -> None:
        version = {"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"}
        self.paths: dict[str, object] = {
            "/version": version,
            "/apis/resource.k8s.io/v1": {},
            "/api/v1/nodes/n1": {"metadata": {"uid": "u"}},
        }
        self.denied: set[tuple[str, str]] = set()
        self.asked: list[Mapping[str, object]] = []
        self.error: Exception | None = None

    @property
    def is_answering(self) -> bool:
        return True

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, timeout_s: float | None = None) -> bytes:
        if self.error is not None:
            raise self.error
        if path not in self.paths:
            raise ApiError("not found", status=404, reason="NotFound")
        return json.dumps(self.paths[path]).encode()

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        assert (method, path) == ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        asked = json.loads(body)["spec"]["resourceAttributes"]
        self.asked.append(asked)
        return json.dumps({"status": {"allowed": (asked["resource"], asked["verb"]) not in self.denied}}).encode()

    async def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        assert not path, "nothing is watched"
        yield b""


def found(server: Server, skew_s: float | None = 0.0) -> Mapping[str, Finding]:
    return {one.check: one for one in asyncio.run(cluster_findings(server, node="n1", skew_s=lambda: skew_s))}


def test_cluster_that_is_right_is_found_so() -> None:
    assert {one.grade for one in found(Server()).values()} == {Grade.OK}


def test_missing_rights_are_named_with_whom_to_ask() -> None:
    server = Server()
    server.denied = {("resourceslices", "delete"), ("resourceslices", "create"), ("events", "create")}
    findings = found(server)
    assert findings["rights on resourceslices"].seen == "not allowed: create, delete"
    assert "resourceslices (resource.k8s.io)" in findings["rights on resourceslices"].remedy
    assert findings["rights on events"].grade is Grade.WARNING


def test_rights_of_a_node_are_asked_for_with_its_name() -> None:
    """KEP-4601: a node's own credentials may list its pods, and not all."""
    server = Server()
    found(server)
    asked = {(one["resource"], one["verb"]): one for one in server.asked}
    assert asked["nodes", "get"]["name"] == "n1"
    requirement = {"key": "spec.nodeName", "operator": "In", "values": ["n1"]}
    assert asked["pods", "watch"]["fieldSelector"] == {"requirements": [requirement]}
    assert "fieldSelector" not in asked["resourceslices", "create"]


def test_old_cluster_without_the_api_and_without_the_node() -> None:
    server = Server(minor="33+")
    del server.paths["/apis/resource.k8s.io/v1"], server.paths["/api/v1/nodes/n1"]
    findings = found(server)
    assert {check: one.grade for check, one in findings.items() if one.grade is Grade.FAILED} == dict.fromkeys(
        ("API server", "resource.k8s.io/v1", "Node object"), Grade.FAILED
    )


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (LinkError("refused", hint="it is tried again"), "answers from this node"),
        (LinkError("no file", hint="name a file"), "name a file"),
        (LinkError("refused"), "answers from this node"),
        (ApiError("no", status=401, reason="Unauthorized"), "renew the credentials"),
    ],
)
def test_server_that_is_away_or_refuses_is_one_finding(error: Exception, remedy: str) -> None:
    server = Server()
    server.error = error
    (finding,) = found(server).values()
    assert finding.grade is Grade.FAILED
    assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("skew_s", "grade", "words"),
    [
        (None, Grade.UNKNOWN, "did not tell"),
        (-20.0, Grade.OK, "agrees"),
        (90.0, Grade.WARNING, "90 s behind"),
        (-90.0, Grade.WARNING, "90 s ahead of"),
    ],
)
def test_clocks_are_compared(skew_s: float | None, grade: Grade, words: str) -> None:
    finding = clock_finding(skew_s)
    assert finding.grade is grade
    assert words in finding.seen


def kubeconfig_with_token(directory: Path, node: str) -> Path:
    (directory / "token").write_text(node_token(node))
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"user": "u"}}],
        "users": [{"name": "u", "user": {"tokenFile": "token"}}],
    }
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("bound", "grade"), [("n1", Grade.OK), ("n2", Grade.FAILED), ("", None)], ids=["ours", "another's", "nobody's"]
)
def test_token_of_another_node_is_named(tmp_path: Path, bound: str, grade: Grade | None) -> None:
    """U106, U120: the policy lets it write slices of that node alone."""
    path = kubeconfig_with_token(tmp_path, bound)
    findings = {one.check: one for one in asyncio.run(cluster_findings(Server(), node="n1", kubeconfig=path))}
    assert (findings["token"].grade if "token" in findings else None) is grade
    assert ("rights on serviceaccounts/token" in findings) == (grade is Grade.OK)
    if grade is Grade.FAILED:
        assert 'set [node] name = "n2"' in findings["token"].remedy


@pytest.mark.parametrize("is_wanted", [True, False])
def test_rights_on_what_is_optional_are_looked_at_where_it_is_used(tmp_path: Path, *, is_wanted: bool) -> None:
    """E2, U111: a token that cannot be renewed ends some day; that is worth a warning."""
    server = Server()
    server.denied = {("serviceaccounts", "create"), ("noderesourcetopologies", "update")}
    path = kubeconfig_with_token(tmp_path, "n1") if is_wanted else None
    found = asyncio.run(cluster_findings(server, node="n1", kubeconfig=path, topology=is_wanted))
    missing = {one.check: one for one in found if one.grade is not Grade.OK and one.check.startswith("rights")}
    assert set(missing) == (
        {"rights on serviceaccounts/token", "rights on noderesourcetopologies"} if is_wanted else set()
    )
    assert {one.grade for one in missing.values()} <= {Grade.WARNING}
    if is_wanted:
        (asked,) = [one for one in server.asked if one["resource"] == "serviceaccounts"]
        assert (asked["subresource"], asked["namespace"], asked["name"]) == ("token", "nodecpu", "nodecpu")
