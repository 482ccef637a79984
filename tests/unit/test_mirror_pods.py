"""Mirrors of static pods: they say themselves whose pod they are, so that alone gains nothing (N1, L1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from nodecpu.ending import terminating
from nodecpu.ids import PodUID
from nodecpu.policy.facts import PodSpec, QoS
from tests.node import Node, PodShape, Scene, play

GREEDY = PodShape(number=9, qos=QoS.GUARANTEED, request_mcpu=8000)
MODEST = PodShape(number=1, qos=QoS.GUARANTEED, request_mcpu=2000)


def forged() -> PodSpec:
    """Return a pod that claims to be the mirror of another one, and asks for much."""
    return replace(GREEDY.spec, runtime_uid=MODEST.spec.uid)


def listed(node: Node) -> None:
    node.service.pods_listed([MODEST.spec, forged()])


def seen_later(node: Node) -> None:
    node.service.pod_seen(MODEST.spec)
    node.service.pod_seen(forged())


def seen_first(node: Node) -> None:
    node.service.pod_seen(forged())
    node.service.pod_seen(MODEST.spec)


def seen_alone(node: Node) -> None:
    node.service.pod_seen(forged())


def own(node: Node) -> int:
    return sum(len(grant.exclusive) for grant in node.service.books.ledger.containers.values())


@pytest.mark.parametrize(
    ("tell", "cpus"),
    [
        pytest.param(listed, 2, id="listed"),
        pytest.param(seen_later, 2, id="seen later"),
        pytest.param(seen_first, 2, id="seen first"),
        pytest.param(seen_alone, 0, id="seen alone"),
    ],
)
def test_a_forged_mirror_does_not_speak_for_another_pod(scene: Scene, tell: Callable[[Node], None], cpus: int) -> None:
    """N1: what the pod itself asks for holds, as soon as it is known."""

    async def whole() -> None:
        node = scene.boot()
        node.synchronize()
        tell(node)
        node.create(MODEST.sandbox, MODEST.container("c1"))
        assert own(node) == cpus
        await node.crash()
        again = scene.boot()
        again.synchronize()
        again.create(MODEST.sandbox, MODEST.container("c2"))
        assert own(again) == cpus
        await again.crash()

    asyncio.run(whole())


def test_a_static_pod_is_known_by_its_mirror(scene: Scene) -> None:
    static = PodShape(number=2, qos=QoS.GUARANTEED, request_mcpu=2000)
    mirror = replace(static.spec, uid=PodUID("mirror-2"))

    async def story(node: Node) -> None:
        node.service.pods_listed([mirror])
        node.service.pod_seen(replace(mirror, uid=PodUID("mirror-2-again")))
        assert len(node.create(static.sandbox, static.container("c1"))) == 2

    play(scene, story)


def test_a_forged_mirror_is_nobodys_pod_to_whoever_asks(scene: Scene) -> None:
    """N1, R6: not for its quota, affinities, events and reloads, nor for what a planned restart waits for."""

    async def story(node: Node) -> None:
        node.service.pod_seen(replace(forged(), terminating=True))
        node.create(MODEST.sandbox, MODEST.container("c1"))
        (grant,) = node.service.books.ledger.containers.values()
        assert node.service.spec_of(grant) is None
        assert terminating([grant], node.service.spec_of) == ()
        node.service.pod_seen(MODEST.spec)
        assert node.service.spec_of(grant) == MODEST.spec

    play(scene, story)


@pytest.mark.parametrize("listed_again", [False, True], ids=["seen", "listed"])
def test_a_mirror_made_anew_is_the_one_that_a_restart_knows(scene: Scene, *, listed_again: bool) -> None:
    """N1, L2: the row of the one before would stand for the same static pod."""
    mirror = replace(PodShape(number=2).spec, uid=PodUID("the-mirror"))
    anew = replace(mirror, uid=PodUID("a-mirror-made-anew"))

    async def whole() -> None:
        node = scene.boot()
        node.service.pods_listed([mirror])
        if listed_again:
            node.service.pods_listed([anew])
        else:
            node.service.pod_seen(anew)
        await node.crash()
        again = scene.boot()
        assert [pod.uid for pod in again.service.pods] == [anew.uid]
        assert len(again.started.pods) == 1
        await again.crash()

    asyncio.run(whole())
