"""What draws containers to each other, from their pods' annotations to the pool they get (S, A)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nodecpu.attraction import attraction
from nodecpu.ids import ContainerID
from nodecpu.policy.annotations import Preferences
from nodecpu.policy.facts import QoS
from nodecpu.policy.rules import Rules
from tests.node import PodShape, scene_in_memory
from tests.unit.policy.given import container, sandbox
from tests.unit.policy.machines import books


def problems(text: str) -> list[str]:
    preferences = Preferences(affinity=text)
    found = attraction(Rules(), books().ledger, lambda grant: None, sandbox(), container(), preferences)
    assert not found.pull
    return [problem.text for problem in found.problems]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("app: [", "not YAML"),
        ("a: &x [b]\nc: *x", "aliases are not taken"),
        ("x" * 10_241, "longer than 10240 characters"),
        ("x" * 10_240, "not a table of containers"),
        ("[" * 5000, "not"),
        ("just words", "not a table of containers"),
    ],
)
def test_bad_annotations_have_no_effect_and_are_told(text: str, words: str) -> None:
    """A."""
    (told,) = problems(text)
    assert told.startswith("resource-policy.nri.io/affinity: ")
    assert words in told


@pytest.mark.parametrize("key", ["allow", "deny"])
def test_lists_of_paths_that_are_too_long_have_no_effect_and_are_told(key: str) -> None:
    """A, S: each path would be held against every mount, and an annotation has room for tens of thousands."""
    text = ",".join(f"/dev/a*{number}" for number in range(30_000))
    preferences = Preferences(allow_hints=text) if key == "allow" else Preferences(deny_hints=text)
    found = attraction(Rules(), books().ledger, lambda grant: None, sandbox(), container(), preferences)
    (told,) = [problem.text for problem in found.problems]
    assert told.startswith(
        f"{key}.topologyhints.resource-policy.nri.io: 60000 paths and asterisks, at most 64 are read"
    )


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        ("affinity", "numa 2"),
        ("anti-affinity", "numa 1"),
    ],
)
def test_containers_go_near_to_or_far_from_others_by_annotation(annotation: str, expected: str) -> None:
    """S, A: in YAML as people write it."""
    text = """
        main:
        - scope:
            key: namespace
            operator: Equals
            values: [depot]
          match:
            key: pod/name
            operator: Matches
            values: ["pod-*"]
          weight: 10
    """

    async def story() -> None:
        scene, directory = scene_in_memory()
        with directory:
            node = scene.boot()
            node.synchronize()
            first = PodShape(number=1, namespace="depot", qos=QoS.GUARANTEED, request_mcpu=1000)
            second = PodShape(number=2, qos=QoS.GUARANTEED, request_mcpu=1000)
            node.service.pod_seen(first.spec)
            node.create(first.sandbox, first.container("c1"))
            annotations = {f"resource-policy.nri.io/{annotation}": text}
            node.service.pod_seen(replace(second.spec, annotations=annotations))
            node.create(second.sandbox, second.container("c2"))
            containers = node.service.books.ledger.containers
            assert containers[ContainerID("c1")].pool == "numa 2"
            assert containers[ContainerID("c2")].pool == expected
            await node.crash()

    asyncio.run(story())


def test_colocated_pods_share_a_pool() -> None:
    """S: by configuration."""

    async def story() -> None:
        scene, directory = scene_in_memory()
        scene.extra = "colocate_namespaces = true"
        with directory:
            node = scene.boot()
            node.synchronize()
            for number in range(1, 4):
                pod = PodShape(number=number, namespace="depot", qos=QoS.BURSTABLE, request_mcpu=300)
                node.service.pod_seen(pod.spec)
                node.create(pod.sandbox, pod.container(f"c{number}"))
            assert {grant.pool for grant in node.service.books.ledger.containers.values()} == {"numa 2"}
            await node.crash()

    asyncio.run(story())
