"""Every field that is written exists in the version of the API that it is written to; others are dropped (D3)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nodecpu.cpuset import NO_CPUS
from nodecpu.dra.devices import Device, Dividing, devices_of
from nodecpu.dra.slices import (
    Create,
    Delete,
    Form,
    NodeAllocatable,
    Slice,
    delete_options,
    make_pool,
    plan_writes,
    slice_object,
)
from nodecpu.kube.events import Events
from nodecpu.kube.manifests import Choices, manifests
from nodecpu.kube.nrt import API_VERSION, node_topology
from nodecpu.kube.renewal import TokenRenewal
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.policy.usable import usable_cpus
from nodecpu.preflight.cluster import cluster_findings
from nodecpu.topology.sysfs import read_topology
from tests.node import Scene
from tests.support import ROOT
from tests.unit.kube.api_fields import fields_of, kinds
from tests.unit.kube.test_certificate import token
from tests.unit.kube.test_events import CLAIM_A, WEB, FakeApi

MAPS = frozenset(
    {"attributes", "capacity", "annotations", "nodeAllocatableResources", "nodeAllocatableResourceMappings"}
)

NOT_WRITTEN = frozenset({"DeviceMetadata", "Node", "List", "Pod", "ResourceClaim"})
"""Kinds in the code that no API server is sent: a file's, owners and subjects, what the command line prints."""


def paths(value: object, path: str, known: frozenset[str]) -> Iterator[str]:
    """Yield the path of every leaf; what the table has as ``**`` is not looked into."""
    if f"{path}.**" in known:
        yield f"{path}.**"
    elif isinstance(value, Mapping):
        for key, child in value.items():
            name = "*" if path.rpartition(".")[2] in MAPS else key
            yield from paths(child, f"{path}.{name}" if path else name, known)
    elif isinstance(value, list):
        for child in value:
            yield from paths(child, f"{path}[]", known)
    else:
        yield path


def unknown_fields(written: object, *, minor: int = 36) -> set[str]:
    found: dict[str, Any] = json.loads(json.dumps(written))
    known = fields_of(f"{found['apiVersion']} {found['kind']}", minor=minor)
    return set(paths(found, "", known)) - known


def test_an_unknown_field_would_be_found() -> None:
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a", "labels": {}}, "involvedObject": {"id": 1}}
    assert unknown_fields(event) == {"involvedObject.id"}
    with pytest.raises(KeyError):
        unknown_fields({"apiVersion": "v1", "kind": "Secret"})


def test_manifests() -> None:
    for one in manifests(Choices(topology=True, topology_crd=True, numa_nodes=2)):
        assert unknown_fields(one) == set(), one["kind"]


@pytest.mark.parametrize("grouping", ["numa", "individual"])
@pytest.mark.parametrize(
    ("form", "minor"),
    [
        (Form(lists=False), 34),
        (Form(), 36),
        (Form(closed=True), 36),
        (Form(counted=NodeAllocatable.MAPPINGS), 36),
        (Form(counted=NodeAllocatable.RESOURCES, closed=True), 37),
    ],
)
def test_slices(tmp_path: Path, grouping: str, form: Form, minor: int) -> None:
    """D1, D2, D3, D5."""
    write_machine(parse_machine("2 sockets, 2 nodes, 2 cores, 2 threads, isolated 2-3, pci-roots 2"), tmp_path)
    topology = read_topology(tmp_path)
    none = topology.online - topology.online
    usable = usable_cpus(
        online=topology.online, isolated=topology.isolated, available=None, kubepods=None, reserved=none
    )
    dividing = Dividing(grouping=grouping, full_cores=grouping == "numa", pcie_roots=True)
    devices = devices_of(topology, usable, dividing=dividing, driver="dra.cpu")
    pool = make_pool("dra.cpu", "node1", devices, form)
    writes = plan_writes(pool, (), {})
    assert writes
    for write in writes:
        assert isinstance(write, Create)
        assert unknown_fields(slice_object(pool, write, "node-uid"), minor=minor) == set()


def test_form_of_another_version_is_unknown() -> None:
    """D3: each of the two forms would be dropped by the other version."""
    device = Device(name="d", cpus=NO_CPUS, capacity=4, attributes={})
    for counted, minor in ((NodeAllocatable.MAPPINGS, 37), (NodeAllocatable.RESOURCES, 36)):
        pool = make_pool("dra.cpu", "node1", [device], Form(counted=counted))
        (write,) = plan_writes(pool, (), {})
        assert isinstance(write, Create)
        unknown = unknown_fields(slice_object(pool, write, "node-uid"), minor=minor)
        assert unknown
        assert all(f"spec.devices[].{counted.value}." in path for path in unknown)


def test_access_reviews() -> None:
    class Server(FakeApi):
        async def get(self, path: str, query: Mapping[str, str] = {}, *, timeout_s: float | None = None) -> bytes:
            del path, query, timeout_s
            return b'{"major": "1", "minor": "36", "gitVersion": "v1.36.2"}'

        async def send(self, method: str, path: str, body: bytes) -> bytes:
            await super().send(method, path, body)
            return b'{"status": {"allowed": true}}'

    server = Server()
    asyncio.run(cluster_findings(server, node="node1", skew_s=lambda: 0.0))
    assert server.sent
    assert [unknown_fields(body) for _, _, body in server.sent] == [set()] * len(server.sent)


def test_every_kind_that_the_code_names_is_in_the_table() -> None:
    """Whoever has the daemon write another kind adds its fields."""
    known = {kind.partition(" ")[2] for kind in kinds()}
    named: set[str] = set()
    for room in ("kube", "dra", "preflight"):
        for file in (ROOT / "nodecpu" / room).glob("*.py"):
            named |= set(re.findall(r'"kind": "([A-Z]\w+)"', file.read_text()))
    assert "ResourceSlice" in named
    assert named - known - NOT_WRITTEN == set()


def test_node_topology(tmp_path: Path) -> None:
    """X2."""

    async def test() -> None:
        node = Scene(tmp_path).boot()
        try:
            found = node_topology(node.service.books.ledger, node.started.topology, policy="none")
            written = {"apiVersion": API_VERSION, "kind": "NodeResourceTopology", **found}
            assert unknown_fields(written) == set()
        finally:
            await node.crash()

    asyncio.run(test())


def test_events() -> None:
    """New ones, and what a repetition changes of one."""

    async def test() -> None:
        api, at = FakeApi(), [0.0]
        events = Events(api, node="node1", clock=lambda: at[0])
        for subject in (WEB, CLAIM_A, WEB):
            events.report(subject, "PrepareRefused", "why")
            await events.send_one()
            at[0] += 200
        assert [method for method, _, _ in api.sent] == ["POST", "POST", "PATCH"]
        whole = [{"apiVersion": "v1", "kind": "Event", **body} for _, _, body in api.sent]
        assert [unknown_fields(body) for body in whole] == [set()] * 3
        assert "lastTimestamp" in api.sent[2][2]

    asyncio.run(test())


def test_deletions_of_slices() -> None:
    """D4: the options tell which slice was seen."""
    one = Slice(name="s", uid="u", resource_version="7", pool="gone", generation=1, spec={})
    (delete, create) = plan_writes(make_pool("dra.cpu", "node1", ()), [one], {})
    assert isinstance(delete, Delete)
    assert isinstance(create, Create)
    options = {"apiVersion": "v1", "kind": "DeleteOptions", **delete_options(delete)}
    assert unknown_fields(options) == set()
    assert set(paths(delete_options(delete), "", frozenset())) == {"preconditions.uid", "preconditions.resourceVersion"}


def test_token_requests(tmp_path: Path) -> None:
    about = {"name": "nodecpu", "uid": "u"}
    bound = {"namespace": "nodecpu", "serviceaccount": about, "node": {"name": "node1", "uid": "n"}}
    (tmp_path / "token").write_text(token(iat=0, exp=1000, aud=["api"], **{"kubernetes.io": bound}))
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"user": "a"}}],
        "users": [{"name": "a", "user": {"tokenFile": "token"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))

    async def test() -> None:
        api = FakeApi()
        renewal = TokenRenewal(api, tmp_path / "kubeconfig", node="node1", now=lambda: 900.0)
        with pytest.raises(Exception, match="malformed answer"):
            await renewal.look()
        ((_, _, body),) = api.sent
        assert unknown_fields(body) == set()

    asyncio.run(test())
