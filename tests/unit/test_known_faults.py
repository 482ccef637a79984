"""Faults that programs like this one are known for, each played on the node in memory; the ids are the list's."""

from __future__ import annotations

import asyncio

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import NoCapacity
from nodecpu.ids import ContainerID
from nodecpu.nri.plugin import PLUGIN_SERVICE, Plugin
from nodecpu.policy.facts import QoS, Resources
from nodecpu.policy.grants import Group
from nodecpu.policy.pending import Seen
from nodecpu.proto import nri_pb2
from tests.node import ALL_NODES, Node, PodShape, Scene, claim, play

NUMA_1 = "cpudevnuma001"
CLAIM = claim(1, (NUMA_1, 2))


def hold(node: Node, number: int) -> CpuSet:
    pod = PodShape(number=number, claims=(CLAIM.name,))
    node.service.pod_seen(pod.spec)
    return node.create(pod.sandbox, pod.container(f"c{number}", node.env_of(CLAIM.uid)))


MIXED = PodShape(number=5, qos=QoS.GUARANTEED, request_mcpu=1500, limit_mcpu=1500)


def test_own_and_shared_cpus_are_set_again_together(scene: Scene) -> None:
    """U24: a kubelet cut a container with CPUs of its own and shared ones down to the former."""

    async def story(node: Node) -> None:
        node.service.pod_seen(MIXED.spec)
        both = node.create(MIXED.sandbox, MIXED.container("c5"))
        grant = node.service.books.ledger.containers[ContainerID("c5")]
        assert grant.group is Group.MIXED
        assert grant.exclusive <= both
        assert grant.exclusive != both
        cut = Resources(cpus=grant.exclusive)
        process = scene.runtime.processes[ContainerID("c5")]
        (own,) = node.service.update_container(MIXED.sandbox, process.container, cut)
        assert own.placement.cpus == both
        assert not node.service.observe(ContainerID("c5"), Seen(cpus=grant.exclusive, mems=ALL_NODES))
        process.cpus = grant.exclusive
        other = PodShape(number=6)
        updates = node.service.create_container(other.sandbox, other.container("c6")).updates
        assert [one.placement.cpus for one in updates if one.container_id == "c5"] == [both]

    play(scene, story)


def test_reserved_cpus_hold_more_than_they_have_room_for(scene: Scene) -> None:
    """U25: 40 CPUs' worth of system pods on one reserved CPU: weights share it out, nobody is refused."""

    async def story(node: Node) -> None:
        for number in range(80):
            pod = PodShape(number=number, namespace="kube-system", qos=QoS.BURSTABLE, request_mcpu=500)
            node.service.pod_seen(pod.spec)
            assert node.create(pod.sandbox, pod.container(f"c{number}")) == CpuSet([15])

    play(scene, story)


def test_prepare_after_a_restart_is_a_look_into_the_books(scene: Scene) -> None:
    """U40: the same answer without the API server; the running container is not written to."""

    async def whole() -> None:
        node = scene.boot()
        node.synchronize()
        before = await node.prepare(CLAIM)
        cpus = hold(node, 1)
        writes = scene.runtime.processes[ContainerID("c1")].writes
        await node.crash()
        again = scene.boot()
        scene.api.is_answering = False
        calls = scene.api.calls
        assert await again.prepare(CLAIM) == before
        again.synchronize()
        assert await again.prepare(CLAIM) == before
        assert scene.api.calls == calls
        process = scene.runtime.processes[ContainerID("c1")]
        assert (process.cpus, process.writes) == (cpus, writes)
        await again.crash()

    asyncio.run(whole())


def test_creations_are_asked_for_by_name(scene: Scene) -> None:
    """U62: a plugin that subscribes to everything got no creations in some setups; and it is told from outside only."""

    async def story(node: Node) -> None:
        plugin = Plugin(node.service)
        request = nri_pb2.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.0")
        reply = plugin.handle(PLUGIN_SERVICE, "Configure", request.SerializeToString())
        events = nri_pb2.ConfigureResponse.FromString(reply).events
        assert events & 1 << nri_pb2.CREATE_CONTAINER - 1
        assert events & 1 << nri_pb2.STOP_CONTAINER - 1

    play(scene, story)


def test_cpus_of_a_shared_claim_stay_until_the_last_container_is_gone(scene: Scene) -> None:
    """U90: it was unprepared for one pod while another one still ran on it."""

    async def story(node: Node) -> None:
        await node.prepare(CLAIM)
        assert hold(node, 1) == hold(node, 2) == CpuSet.parse("4-5")
        node.stop(ContainerID("c1"))
        await node.claims.unprepare(CLAIM.uid)
        four = claim(2, (NUMA_1, 4))
        with pytest.raises(NoCapacity):
            await node.prepare(four, budget_s=0)
        assert scene.runtime.processes[ContainerID("c2")].cpus == CpuSet.parse("4-5")
        node.stop(ContainerID("c2"))
        await node.prepare(four)
        assert node.service.books.ledger.claims[four.uid].cpus == CpuSet.parse("4-7")

    play(scene, story)


def test_prepare_and_unprepare_of_one_claim_go_one_after_the_other(scene: Scene) -> None:
    """U90: whatever comes first, the last word holds, in the books as in the files."""

    async def story(node: Node) -> None:
        await node.prepare(CLAIM)
        for _ in range(5):
            await asyncio.gather(node.claims.unprepare(CLAIM.uid), node.prepare(CLAIM))
            assert CLAIM.uid in node.specs.claims()
            assert not node.service.books.ledger.claims[CLAIM.uid].released
            await asyncio.gather(node.prepare(CLAIM), node.claims.unprepare(CLAIM.uid))
            assert CLAIM.uid not in node.specs.claims()
            assert CLAIM.uid not in node.service.books.ledger.claims

    play(scene, story)
