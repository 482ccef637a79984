"""What would become of claims and pods: what a prepare and a creation would answer, and nothing changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from nodecpu.admin.state import TrialRow
from nodecpu.cpuset import CpuSet
from nodecpu.errors import BadRequest
from nodecpu.policy.facts import AllocatedClaim, QoS
from nodecpu.policy.ledger import violations
from nodecpu.trial import tried
from tests.node import Node, PodShape, claim, scene_in_memory

Json = Mapping[str, object]


@pytest.fixture
def node() -> Iterator[Node]:
    """Return a node of 16 CPUs on 4 NUMA nodes, CPU 15 reserved."""
    scene, directory = scene_in_memory()
    with directory:
        node = scene.boot()
        node.synchronize()
        yield node
        node.started.claim_store.close()
        node.started.container_store.close()


def claim_object(name: str, device: str, cpus: int, uid: str = "11111111-0000-4000-8000-000000000001") -> Json:
    result = {
        "driver": "dra.cpu",
        "request": "cpus",
        "pool": "node",
        "device": device,
        "consumedCapacity": {"dra.cpu/cpu": str(cpus)},
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "shop", "uid": uid},
        "status": {"allocation": {"devices": {"results": [result]}}},
    }


def pod_object(*containers: Json, claims: Mapping[str, str] | None = None, **more: object) -> Json:
    spec: dict[str, object] = {"containers": list(containers), **more}
    spec["resourceClaims"] = [{"name": k, "resourceClaimName": v} for k, v in (claims or {}).items()]
    return {"kind": "Pod", "metadata": {"name": "web-0", "namespace": "shop"}, "spec": spec}


def container(name: str, cpu: str = "", claims: tuple[str, ...] = ()) -> Json:
    amounts = {"cpu": cpu, "memory": "1Gi"} if cpu else {}
    return {"name": name, "resources": {"limits": amounts, "claims": [{"name": one} for one in claims]}}


def rows(node: Node, *objects: Json) -> tuple[TrialRow, ...]:
    before = dict(node.service.books.ledger.claims), dict(node.service.books.ledger.containers)
    found = tried(node.service, "dra.cpu", [json.dumps(one).encode() for one in objects])
    assert (dict(node.service.books.ledger.claims), dict(node.service.books.ledger.containers)) == before
    assert violations(node.service.books.ledger) == []
    assert not node.service.books.ledger.holds
    return found


def test_claim_that_fits_tells_its_cpus_and_who_would_move(node: Node) -> None:
    """C2, C14: the same CPUs as a prepare picks, and the shared containers that make room."""
    shared = PodShape(number=1)
    cpus = node.create(shared.sandbox, shared.container("c1"))
    device = f"cpudevnuma00{min(cpus) // 4}"
    (row,) = rows(node, claim_object("web", device, 2))
    taken = CpuSet.parse(row.cpus)
    assert (row.kind, row.name, row.fits, len(taken)) == ("claim", "shop/web", True, 2)
    assert [(one.request, one.device, one.cpus) for one in row.results] == [("cpus", device, row.cpus)]
    assert row.moves == (f"shop/pod-1/main: {cpus} -> {cpus - taken}",)


def test_prepare_answers_what_was_foretold(node: Node) -> None:
    """C2, C8: a trial asks the very functions that decide."""
    wanted = claim(1, ("cpudevnuma001", 3))
    (row,) = rows(node, claim_object(wanted.name, "cpudevnuma001", 3, uid=wanted.uid))
    asyncio.run(_prepare(node, wanted))
    assert str(node.service.books.ledger.claims[wanted.uid].cpus) == row.cpus
    (again,) = rows(node, claim_object(wanted.name, "cpudevnuma001", 3, uid=wanted.uid))
    assert (again.fits, again.cpus, again.moves) == (True, row.cpus, ())


async def _prepare(node: Node, wanted: AllocatedClaim) -> None:
    await node.prepare(wanted)
    await node.disk.stop()


def test_claim_that_does_not_fit_tells_what_the_kubelet_would_be_told(node: Node) -> None:
    """C8"""
    first, second = rows(
        node,
        claim_object("a", "cpudevnuma000", 3),
        claim_object("b", "cpudevnuma000", 3, uid="11111111-0000-4000-8000-000000000002"),
    )
    assert first.fits
    assert not second.fits
    assert second.code == "no-capacity"
    assert "3 CPUs" in second.message
    assert second.hint


def test_claim_is_not_ready_while_the_runtime_is_away(node: Node) -> None:
    """C7"""
    node.service.runtime_lost()
    (row,) = rows(node, claim_object("a", "cpudevnuma000", 1))
    assert (row.fits, row.code) == (False, "not-ready")


def test_pod_with_a_claim_of_the_same_file_runs_on_it(node: Node) -> None:
    """G2: claims first, whatever their place in the file."""
    pod = pod_object(container("app", claims=("cpus",)), container("log"), claims={"cpus": "web"})
    first, app, log = rows(node, pod, claim_object("web", "cpudevnuma002", 2))
    assert first.kind == "claim"
    assert (app.name, app.group, app.cpus, app.claimed) == ("shop/web-0/app", "claimed", first.cpus, first.cpus)
    assert log.group == "shared"
    assert CpuSet.parse(log.cpus).isdisjoint(CpuSet.parse(first.cpus))


def test_claim_that_is_not_prepared_refuses_its_container_alone(node: Node) -> None:
    pod = pod_object(container("app", claims=("cpus",)), container("log"), claims={"cpus": "web"})
    app, log = rows(node, pod)
    assert (app.fits, app.code, log.fits) == (False, "not-ready", True)
    assert "shop/web" in app.message


def test_guaranteed_pod_of_limits_alone_gets_its_own_cpus(node: Node) -> None:
    """G1: requests default to limits, and the class follows, as the API server would have it."""
    big, small = rows(node, pod_object(container("big", "2"), container("small", "1500m")))
    assert (big.group, len(big.exclusive)) == ("multi", 3)
    assert (small.group, small.pool != "") == ("mixed", True)
    (odd,) = rows(node, pod_object({"name": "a", "resources": {"limits": {"cpu": "2"}}}))
    assert odd.group == "shared"  # no memory limit: Burstable


def test_containers_start_in_turn_and_init_containers_end(node: Node) -> None:
    """N1, G11: what an init container had is free for the next; what a sidecar has is not."""
    side = {**container("side", "2"), "restartPolicy": "Always"}
    init = [container("first", "12"), side]
    first, sidecar, main = rows(node, pod_object(container("main", "12"), initContainers=init))
    assert first.fits
    assert sidecar.fits
    assert main.fits
    (*_, too_much) = rows(node, pod_object(container("main", "14"), initContainers=init))
    assert (too_much.fits, too_much.code) == (False, "no-capacity")


def test_container_that_is_drawn_to_others_is_foretold_beside_them(node: Node) -> None:
    """S: by configuration or by annotation; without it, containers go apart."""
    shared = PodShape(number=1)
    node.create(shared.sandbox, shared.container("c1"))
    (beside,) = node.service.books.ledger.containers.values()
    (alone,) = rows(node, pod_object(container("log")))
    node.service.rules = replace(node.service.rules, colocate_namespaces=True)
    (row,) = rows(node, pod_object(container("log")))
    assert alone.pool != beside.pool
    assert row.pool == beside.pool


def test_container_that_is_tried_again_is_not_among_those_that_it_moves(node: Node) -> None:
    """It takes its own place."""
    metadata: Json = {"name": "web-0", "namespace": "shop", "uid": "u1"}
    pods = [{**pod_object(container("a", cpu)), "metadata": metadata} for cpu in ("", "2")]
    first, second = rows(node, *pods)
    assert first.cpus != second.cpus
    assert (second.exclusive, second.moves) == (second.cpus, ())


def test_template_of_a_deployment_is_tried_as_one_pod(node: Node) -> None:
    template = {"spec": pod_object(container("app", "1"))["spec"]}
    deployment: Json = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}}
    cron: Json = {
        "kind": "CronJob",
        "metadata": {"name": "x"},
        "spec": {"jobTemplate": {"spec": {"template": template}}},
    }
    everything: Json = {"kind": "List", "items": [deployment, cron]}
    assert [(row.name, row.group) for row in rows(node, everything)] == [
        ("default/web/app", "mixed"),
        ("default/x/app", "mixed"),
    ]


def test_container_that_is_there_is_tried_in_its_own_place(node: Node) -> None:
    """L4: its own CPUs are not in its way."""
    pod = PodShape(number=7, qos=QoS.GUARANTEED, request_mcpu=12000)
    node.service.pods_listed([pod.spec])
    node.create(pod.sandbox, pod.container("c7"))
    one = pod_object(container("main", "12"))
    again: Json = {**one, "metadata": {"name": "pod-7", "namespace": "shop", "uid": "pod-7"}}
    assert [row.fits for row in rows(node, again)] == [True]
    assert [row.fits for row in rows(node, one)] == [False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "not a Kubernetes object"),
        ('{"kind": "Service"}', "object 1: Service cannot be tried"),
        ('{"kind": "Service", "metadata": {"name": "a"}}', "object 1, a: Service cannot be tried"),
        ("{}", "an object without kind"),
        ('{"kind": "List", "items": []}', "no object to try"),
        ('{"kind": "ResourceClaim", "metadata": {"name": "a"}}', "not allocated"),
        (
            '{"kind": "Pod", "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "x"}}}]}}',
            "object 1: requests cannot be read: not a quantity",
        ),
        ('{"kind": "Pod", "spec": {"containers": "x"}}', "not a pod"),
        ('{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [7]}}', "pod default/a: not a pod"),
        ('{"kind": "List", "items": [' + ",".join(["{}"] * 65) + "]}", "at once"),
    ],
)
def test_what_cannot_be_tried_is_refused_as_a_whole(node: Node, text: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        tried(node.service, "dra.cpu", [text.encode()])
