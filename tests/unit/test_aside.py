"""Standing aside: nothing is pinned and nobody is misled, and afterwards everything is where it belongs (E2, U94)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nodecpu.aside import Aside, AsideClaims, AsideRuntime
from nodecpu.errors import NotReady
from nodecpu.metrics import Counters
from nodecpu.policy.facts import ContainerState, Resources
from nodecpu.reports import CLAIM, Subject
from nodecpu.store.claims import Job
from tests.node import ALL, Node, PodShape, claim, scene_in_memory

WHY = "the kubelet's CPU manager is static"


async def _prepared(node: Node) -> None:
    node.synchronize()
    await node.prepare(claim(1, ("cpudevnuma000", 2)))


class Told:
    """Who was told something."""

    def __init__(self) -> None:
        self.subjects: list[Subject] = []

    def report(self, subject: Subject, reason: str, message: str) -> None:
        assert (reason, WHY in message) == ("PrepareRefused", True)
        self.subjects.append(subject)


async def _refused(node: Node, aside: Aside) -> None:
    told = aside.reports = Told()
    claims = AsideClaims(node.claims, aside)
    one = claim(1, ("cpudevnuma000", 2))
    with pytest.raises(NotReady, match=f"claim shop/claim-1: {WHY}, so no claim is served"):
        await claims.prepare(one.uid, "shop", "claim-1", budget_s=5)
    (refusal,) = node.counters.last_refusals.all
    assert (refusal.kind, refusal.name, refusal.uid) == ("claim", "shop/claim-1", one.uid)
    assert told.subjects == [Subject(kind=CLAIM, namespace="shop", name="claim-1", uid=one.uid)]
    await claims.unprepare(one.uid)
    assert not node.service.books.ledger.claims
    await node.disk.submit(Job())  # the row's removal, which nobody waits for, is before it in the queue


def test_containers_run_where_the_runtime_puts_them_and_holders_are_refused() -> None:
    scene, directory = scene_in_memory()
    with directory:
        node = scene.boot()
        asyncio.run(_prepared(node))
        aside = Aside(lambda: None, node.counters)
        runtime = AsideRuntime(node.service, aside)
        aside.take(WHY)
        shared, holder = PodShape(number=1), PodShape(number=2, claims=("claim-1",))
        node.service.pods_listed([shared.spec, holder.spec])
        creation = runtime.create_container(shared.sandbox, shared.container("c1"))
        assert (creation.placement, creation.updates) == (None, ())
        node.runtime.add(shared.sandbox, shared.container("c1"), creation.placement)
        env = node.env_of(claim(1).uid)
        with pytest.raises(NotReady, match=f"container shop/pod-2/main: {WHY}"):
            runtime.create_container(holder.sandbox, holder.container("c2", env))
        running = replace(shared.container("c1"), state=ContainerState.RUNNING)
        runtime.container_seen(shared.sandbox, running)
        assert runtime.update_container(shared.sandbox, running, Resources(shares=2)) == ()
        assert runtime.stop_container(None, holder.container("c2")) == ()
        assert runtime.synchronize(*node.runtime.listed()) == ()
        assert node.runtime.processes[running.id].cpus == ALL

        aside.take("")
        node.audit()
        assert node.runtime.processes[running.id].cpus.isdisjoint(node.service.books.ledger.claims[claim(1).uid].cpus)
        created = runtime.create_container(holder.sandbox, holder.container("c2", env))
        assert created.placement is not None
        assert created.placement.cpus == node.service.books.ledger.claims[claim(1).uid].cpus
        node.check()
        asyncio.run(node.crash())


def test_claims_are_refused_with_the_reason_and_released_all_the_same() -> None:
    scene, directory = scene_in_memory()
    with directory:
        node = scene.boot()
        asyncio.run(_prepared(node))
        aside = Aside(lambda: None, node.counters)
        aside.take(WHY)
        asyncio.run(_refused(node, aside))
        asyncio.run(node.crash())


def test_change_is_told_once() -> None:
    told: list[str] = []
    aside = Aside(lambda: told.append(aside.reason), Counters())
    for reason in (WHY, WHY, "", ""):
        aside.take(reason)
    assert told == [WHY, ""]
