"""The last refusals: equal ones are one, few are kept, everything that refuses notes them."""

from __future__ import annotations

import asyncio

import pytest

from nodecpu.admin.state import Links, LinkState, Machine
from nodecpu.admin.view import Surroundings, node_state
from nodecpu.errors import BadRequest, NoCapacity, NodeCpuError
from nodecpu.policy.facts import QoS
from nodecpu.refusals import Refusals
from tests.node import PodShape, Scene, claim, scene_in_memory


def test_equal_refusals_are_counted_and_come_last() -> None:
    clock = iter([1.0, 2.0, 3.0])
    refusals = Refusals(now=lambda: next(clock))
    for name in ("web", "db", "web"):
        refusals.note(NoCapacity("6 CPUs asked", hint="free some"), "claim", f"shop/{name}", name)
    db, web = refusals.all
    assert (db.name, db.count, db.last_s) == ("shop/db", 1, 2.0)
    assert (web.name, web.count, web.last_s, web.code, web.hint) == ("shop/web", 2, 3.0, "no-capacity", "free some")


def test_no_more_than_so_many_are_kept() -> None:
    refusals = Refusals(most=3)
    for number in range(5):
        refusals.note(BadRequest("no"), "container", f"shop/web-{number}/main", "u")
    assert [one.name for one in refusals.all] == [f"shop/web-{number}/main" for number in (2, 3, 4)]


def test_claims_and_containers_that_are_refused_are_noted() -> None:
    """C8, G16: what the kubelet is told is what explain tells."""
    scene, directory = scene_in_memory()
    with directory:
        asyncio.run(_refuse_both(scene))


async def _refuse_both(scene: Scene) -> None:
    node = scene.boot()
    node.synchronize()
    wrong = claim(1, ("cpudevnuma000", 9))
    with pytest.raises(BadRequest):
        await node.prepare(wrong)
    pod = PodShape(number=1, qos=QoS.GUARANTEED, request_mcpu=99000)
    node.service.pods_listed([pod.spec])
    for _ in range(2):
        with pytest.raises(NodeCpuError):
            node.create(pod.sandbox, pod.container("c1"))
    around = Surroundings(node="node", machine=Machine(online="0-15", sockets=()), available=None)
    off = LinkState(state="off")
    links = Links(runtime=off, kubelet=off, api=off)
    kept = node.counters.last_refusals.all
    state = node_state(node.service.books, around, links, node.counters.state(), kept)
    first, second = state.refusals
    assert (first.kind, first.name, first.uid, first.code) == ("claim", "shop/claim-1", wrong.uid, "bad-request")
    assert (second.kind, second.name, second.uid, second.count) == ("container", "shop/pod-1/main", "pod-1", 2)
    assert second.last.endswith("Z")
    assert sum(state.counters.refusals.values()) == 3
    await node.crash()
