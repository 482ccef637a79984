"""CPUs that go off and on line, memory nodes that come late: who holds what keeps it, and runs on what is left (T6)."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nodecpu.arrangement import Arrangement, arrange
from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.errors import NotReady
from nodecpu.hotplug import Hotplug
from nodecpu.ids import ContainerID
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import Group
from nodecpu.topology.model import Topology
from nodecpu.trial import tried
from tests.node import Node, PodShape, Scene, claim, scene_in_memory

MACHINE = "2 sockets, 2 nodes, 2 cores, 2 threads"
NODES = tuple(f"cpudevnuma00{number}" for number in range(4))
WEB = claim(1, (NODES[1], 2))


class Kubepods:
    """What all pods are confined to."""

    cpus: CpuSet | None = None

    def kubepods(self) -> CpuSet | None:
        return self.cpus


class Plugged:
    """A node whose machine changes."""

    def __init__(self, scene: Scene, machine: str = MACHINE) -> None:
        self.scene = scene
        self.set(machine)
        self.node = scene.boot()
        self.node.synchronize()
        self.kubepods = Kubepods()
        self.taken: list[Arrangement] = []
        self.hotplug = Hotplug(
            scene.directory,
            self.kubepods,
            self.node.started.topology,
            arrange=self._arrange,
            taken=self.taken.append,
        )

    def set(self, machine: str) -> None:
        """Let the machine be this one."""
        shutil.rmtree(self.scene.directory / "sys", ignore_errors=True)
        write_machine(parse_machine(machine), self.scene.directory)

    async def change(self, machine: str) -> bool:
        """Let the machine become this one, the kernel do its part, and the node notice."""
        self.set(machine)
        online = parse_machine(machine).online
        for process in self.scene.runtime.processes.values():
            process.cpus = (process.cpus & online) or online
        noticed = await self.hotplug.look(self.node.service)
        self.node.audit()
        self.node.check()
        return noticed

    def cpus(self, container_id: str) -> CpuSet:
        return self.scene.runtime.processes[ContainerID(container_id)].cpus

    def hold(self, number: int, uid: str) -> CpuSet:
        """Create the container of a pod that references claim number 1."""
        pod = PodShape(number=number, claims=(WEB.name,))
        self.node.service.pod_seen(pod.spec)
        return self.node.create(pod.sandbox, pod.container(uid, self.node.env_of(WEB.uid)))

    def _arrange(self, topology: Topology, kubepods: CpuSet | None) -> Arrangement:
        return arrange(self.node.config, topology, kubepods, node="node")


Story = Callable[[Plugged], Awaitable[None]]


def play(scene: Scene, story: Story, machine: str = MACHINE) -> None:
    async def whole() -> None:
        plugged = Plugged(scene, machine)
        try:
            await story(plugged)
        finally:
            await plugged.node.crash()

    asyncio.run(whole())


def offline(cpus: str) -> str:
    return f"{MACHINE}, offline {cpus}"


def test_holder_keeps_what_is_left_and_gets_the_rest_back(scene: Scene) -> None:
    """T6, U51, U135: the claim stays whole in the books; nobody is written to, since the kernel has done it."""

    async def story(plugged: Plugged) -> None:
        await plugged.node.prepare(WEB)
        assert plugged.hold(1, "c1") == CpuSet.parse("4-5")
        assert await plugged.change(offline("5"))
        assert plugged.cpus("c1") == CpuSet.parse("4")
        assert plugged.node.service.books.ledger.claims[WEB.uid].cpus == CpuSet.parse("4-5")
        assert not plugged.node.service.books.pending.is_open
        assert plugged.scene.runtime.processes[ContainerID("c1")].writes == 0
        assert await plugged.change(MACHINE)
        assert plugged.cpus("c1") == CpuSet.parse("4-5")

    play(scene, story)


def test_claim_all_of_whose_cpus_are_gone_is_refused_as_a_trial_foretells(scene: Scene) -> None:
    """T6, C8: its container is never taken for a shared one."""
    refs = {
        "resourceClaims": [{"name": "cpus", "resourceClaimName": WEB.name}],
        "containers": [{"name": "main", "resources": {"claims": [{"name": "cpus"}]}}],
    }
    pod = {"kind": "Pod", "metadata": {"name": "web-0", "namespace": WEB.namespace}, "spec": refs}

    async def story(plugged: Plugged) -> None:
        await plugged.node.prepare(WEB)
        assert await plugged.change(offline("4-5"))
        (row,) = tried(plugged.node.service, "dra.cpu", [json.dumps(pod).encode()])
        with pytest.raises(NotReady, match="are offline"):
            plugged.hold(1, "c1")
        assert (row.fits, row.code) == (False, "not-ready")
        assert "are offline" in row.message

    play(scene, story)


def test_holder_of_nothing_but_what_is_gone_moves_off_what_others_get(scene: Scene) -> None:
    """T6, C12: with the reply that creates the other's container, as shared containers do."""
    other = claim(2, (NODES[1], 2))

    async def story(plugged: Plugged) -> None:
        await plugged.node.prepare(WEB)
        plugged.hold(1, "c1")
        assert await plugged.change(offline("4-5"))
        assert plugged.cpus("c1") == CpuSet.parse("6-7")
        await plugged.node.prepare(other)
        pod = PodShape(number=2, claims=(other.name,))
        plugged.node.service.pod_seen(pod.spec)
        taken = plugged.node.create(pod.sandbox, pod.container("c2", plugged.node.env_of(other.uid)))
        assert taken == CpuSet.parse("6-7")
        assert plugged.cpus("c1").isdisjoint(taken)

    play(scene, story)


def test_nothing_new_is_given_from_what_is_gone(scene: Scene) -> None:
    """T6."""

    async def story(plugged: Plugged) -> None:
        await plugged.change(offline("4-5"))
        await plugged.node.prepare(WEB)
        assert plugged.hold(1, "c1") == CpuSet.parse("6-7")
        assert [len(device.cpus) for device in plugged.taken[-1].devices] == [4, 2, 4, 3]

    play(scene, story)


def test_same_machine_is_nothing_to_tell(scene: Scene) -> None:
    async def story(plugged: Plugged) -> None:
        assert not await plugged.change(MACHINE)
        assert plugged.taken == []

    play(scene, story)


def test_container_is_not_created_on_a_claim_that_is_gone_and_running_ones_leave_others_alone(scene: Scene) -> None:
    """T6, G9: the kernel lets processes without a CPU of their own run anywhere."""

    async def story(plugged: Plugged) -> None:
        await plugged.node.prepare(WEB)
        await plugged.node.prepare(claim(2, (NODES[0], 2)))
        plugged.hold(1, "c1")
        await plugged.change(offline("4-5"))
        others = plugged.node.service.books.ledger.claims[claim(2).uid].cpus
        assert plugged.cpus("c1").isdisjoint(others | CpuSet.parse("15"))
        with pytest.raises(NotReady, match="all CPUs of claim claim-1"):
            plugged.hold(2, "c2")
        await plugged.change(MACHINE)
        assert plugged.cpus("c1") == CpuSet.parse("4-5")

    play(scene, story)


OWN = PodShape(number=5, qos=QoS.GUARANTEED, request_mcpu=2000, limit_mcpu=2000)


def test_container_whose_own_cpus_are_all_gone_gets_others(scene: Scene) -> None:
    """T6."""

    async def story(plugged: Plugged) -> None:
        plugged.node.service.pod_seen(OWN.spec)
        had = plugged.node.create(OWN.sandbox, OWN.container("c5"))
        await plugged.change(offline(str(had)))
        now = plugged.cpus("c5")
        assert len(now) == 2
        assert now.isdisjoint(had)
        assert plugged.node.service.books.ledger.containers[ContainerID("c5")].exclusive == now

    play(scene, story)


def test_container_for_which_no_others_are_left_shares_until_its_own_are_back(scene: Scene) -> None:
    """T6."""

    async def story(plugged: Plugged) -> None:
        for number in range(4):
            await plugged.node.prepare(claim(number + 1, (NODES[number], (2, 4, 4, 3)[number])))
        plugged.node.service.pod_seen(OWN.spec)
        had = plugged.node.create(OWN.sandbox, OWN.container("c5"))
        await plugged.change(offline(str(had)))
        assert plugged.cpus("c5") == CpuSet.parse("15")
        await plugged.change(MACHINE)
        assert plugged.cpus("c5") == had

    play(scene, story)


def test_node_that_appears_is_given_from(scene: Scene) -> None:
    """T6, U143: CPUs that were not there at the start."""

    async def story(plugged: Plugged) -> None:
        assert len(plugged.node.started.topology.online) == 12
        await plugged.change(MACHINE)
        await plugged.node.prepare(claim(1, (NODES[3], 3)))
        assert plugged.node.service.books.ledger.claims[WEB.uid].cpus == CpuSet.parse("12-14")

    play(scene, story, machine=offline("12-15"))


def test_memory_that_comes_late_serves_new_containers_and_is_never_asked_for_when_gone(scene: Scene) -> None:
    """T6, U143: ids that were unknown at the start fail nothing."""

    async def story(plugged: Plugged) -> None:
        before, after = PodShape(number=1), PodShape(number=2)
        plugged.node.create(before.sandbox, before.container("c1"))
        await plugged.change(f"{MACHINE}, memory-only 1 hbm")
        tree = plugged.node.service.books.ledger.tree
        assert tree.present_memory(NodeSet([0, 4, 9])) == NodeSet([0, 4])
        plugged.node.create(after.sandbox, after.container("c2"))
        await plugged.change(MACHINE)
        for container_id in ("c1", "c2"):
            placement = plugged.node.service.books.placement(ContainerID(container_id))
            assert placement is not None
            assert placement.mems <= NodeSet(range(4))

    play(scene, story)


def test_limit_of_all_pods_is_followed(scene: Scene) -> None:
    """T5: cgroup v1 keeps a CPU out of kubepods after it has come back."""

    async def story(plugged: Plugged) -> None:
        plugged.kubepods.cpus = CpuSet.parse("0-11")
        assert await plugged.hotplug.look(plugged.node.service)
        assert plugged.node.service.books.ledger.tree.usable.all == CpuSet.parse("0-11")
        assert not await plugged.hotplug.look(plugged.node.service)

    play(scene, story)


def test_machine_that_cannot_be_followed_is_told_and_tried_again(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(plugged: Plugged) -> None:
        plugged.kubepods.cpus = CpuSet.parse("99")
        ledger = plugged.node.service.books.ledger
        for _ in range(2):
            assert not await plugged.hotplug.look(plugged.node.service)
        assert plugged.node.service.books.ledger is ledger
        assert caplog.text.count("the books cannot follow") == 2
        plugged.kubepods.cpus = None
        assert await plugged.change(offline("5"))

    play(scene, story)


def test_machine_that_cannot_be_read_is_told_and_ends_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """T1, T6: neither odd text nor files that cannot be opened are a reason to end."""

    async def story(plugged: Plugged) -> None:
        online = scene.directory / "sys/devices/system/cpu/online"
        online.write_text("0-\n")
        assert not await plugged.hotplug.look(plugged.node.service)
        away = scene.directory.rename(scene.directory.with_name(f"{scene.directory.name}-away"))
        assert not await plugged.hotplug.look(plugged.node.service)
        away.rename(scene.directory)
        assert caplog.text.count("the books cannot follow") == 2
        assert await plugged.change(offline("5"))

    play(scene, story)


@settings(max_examples=30)
@given(changes=st.lists(st.sets(st.integers(0, 14), max_size=13), min_size=1, max_size=4))
@example(changes=[{0, 1, 2, 3, 8, 9, 11, 12, 13, 14}])  # a socket of as many CPUs as a node that is whole
def test_whatever_goes_and_comes_the_books_hold_and_everybody_is_back_in_the_end(changes: list[set[int]]) -> None:
    """T6: claims keep their CPUs, nobody runs on another's, no cpuset is empty or names what is gone."""

    async def story(plugged: Plugged) -> None:
        node = plugged.node
        await node.prepare(WEB)
        await node.prepare(claim(2, (NODES[2], 3)))
        plugged.hold(1, "c1")
        for pod in (PodShape(number=3), PodShape(number=4, namespace="kube-system"), OWN):
            node.service.pod_seen(pod.spec)
            node.create(pod.sandbox, pod.container(f"c{pod.number}"))
        for gone in changes:
            await plugged.change(offline(str(CpuSet(gone))) if gone else MACHINE)
            _check(node, plugged.hotplug.topology.online)
        await plugged.change(MACHINE)
        assert plugged.cpus("c1") == CpuSet.parse("4-5")
        assert len(plugged.cpus("c5")) == 2

    scene, directory = scene_in_memory()
    with directory:
        play(scene, story)


def _check(node: Node, online: CpuSet) -> None:
    ledger = node.service.books.ledger
    assert ledger.claims[WEB.uid].cpus == CpuSet.parse("4-5")
    for grant in ledger.containers.values():
        placement = node.service.books.placement(grant.id)
        assert placement is not None
        assert placement.cpus <= online
        if grant.group is not Group.RESERVED:
            links = {link.claim_uid for link in grant.links}
            others = [one.cpus for one in ledger.claims.values() if one.uid not in links]
            assert all(placement.cpus.isdisjoint(cpus) for cpus in others)


def test_devices_keep_their_names_while_claims_hold_them(scene: Scene) -> None:
    """U10: what to publish of a device that is gone is decided by who holds it; here is that it is gone."""

    async def story(plugged: Plugged) -> None:
        await plugged.change(offline("4-7"))
        names = [device.name for device in plugged.taken[-1].devices]
        assert names == [name for name in NODES if name != NODES[1]]
        await plugged.change(MACHINE)
        assert [device.name for device in plugged.taken[-1].devices] == list(NODES)

    play(scene, story)
