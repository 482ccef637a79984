"""ResourceSlices against an API server over HTTP (D3, D4, D5)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest

from nodecpu.cpuset import NO_CPUS
from nodecpu.dra.devices import PCIE_ROOT, Device, Dividing, devices_of
from nodecpu.dra.dryrun import SLICES as SLICES_PATH
from nodecpu.dra.publish import SlicePublisher
from nodecpu.kube.client import KubeClient
from nodecpu.lab.apiserver import Fault
from nodecpu.lab.clusterplay import published
from nodecpu.lab.objects import SLICES, Key
from nodecpu.lab.slicerules import Features
from nodecpu.policy.usable import usable_cpus
from nodecpu.topology.model import PcieRoot
from tests.apiserver import NODES, Cluster, cluster
from tests.integration.publishing import FOUR, LateAnswers, devices, publishing
from tests.kubelet import run, until
from tests.unit.policy.machines import Shape, build_topology


class LateList(LateAnswers):
    """A client that is told one list after the first of the writes that follow it was answered, before the second."""

    def __init__(self, client: KubeClient) -> None:
        super().__init__(client)
        self.free.set()
        self.listed = asyncio.Event()
        self.taken = asyncio.Event()
        self.writes = 0

    async def get(self, path: str, query: Mapping[str, str] = {}, *, timeout_s: float | None = None) -> bytes:
        answer = await super().get(path, query, timeout_s=timeout_s)
        if path == SLICES_PATH and not self.free.is_set():
            self.listed.set()
            await self.free.wait()
        return answer

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        self.writes += self.listed.is_set()
        if self.writes == 2:
            self.free.set()
            await self.taken.wait()
        return await self._client.send(method, path, body)

    async def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        if self.listed.is_set():
            self.taken.set()
        async with aclosing(super().watch(path, query, silence_s=silence_s)) as lines:
            async for line in lines:
                yield line


def generations(one: Cluster) -> list[int]:
    return [json.loads(json.dumps(s))["spec"]["pool"]["generation"] for s in one.slices()]


def test_devices_are_published_owned_by_the_node() -> None:
    """D4."""

    async def test() -> None:
        async with cluster() as one, publishing(one, 4, 4) as publisher:
            await until(lambda: publisher.status.in_step)
            (stored,) = json.loads(json.dumps(one.slices()))
            assert one.devices() == FOUR
            assert stored["metadata"]["name"].startswith("00000-dra.cpu-node1-")
            (owner,) = stored["metadata"]["ownerReferences"]
            node = json.loads(json.dumps(one.server.store.get(Key(kind=NODES, namespace="", name="node1"))))
            assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node1", node["metadata"]["uid"])
            assert publisher.status.dropped == ()

    run(test)


def test_nothing_is_touched_before_the_first_publication() -> None:
    """D5: slices of an earlier run stay until then, and are taken over."""

    async def test() -> None:
        async with cluster() as one:
            async with publishing(one, 4, 4) as publisher:
                await until(lambda: publisher.status.in_step)
            (before,) = one.slices()
            mark = len(one.trace)
            async with publishing(one) as publisher:
                await until(lambda: len(one.calls("watch", since=mark)) == 1)
                assert not publisher.status.in_step
                publisher.publish(devices(4, 4))
                await until(lambda: publisher.status.in_step)
            assert one.slices() == [before]
            assert one.calls("create", since=mark) == one.calls("update", since=mark) == []

    run(test)


def test_only_changes_in_meaning_are_written() -> None:
    """D4."""

    async def test() -> None:
        async with cluster() as one, publishing(one, 4, 4) as publisher:
            await until(lambda: publisher.status.in_step)
            mark = len(one.trace)
            publisher.publish(devices(4, 4))
            before = publisher.status.in_step
            publisher.publish(devices(4, 3))
            assert (before, publisher.status.in_step) == (True, False)
            await until(lambda: publisher.status.in_step)
            assert one.devices() == ["cpudev000:4", "cpudev001:3"]
            assert len(one.calls("update", since=mark)) == 1
            assert generations(one) == [1]
            publisher.publish(())
            await until(lambda: one.devices() == [])
            assert len(one.slices()) == 1

    run(test)


def test_latest_of_many_calls_is_published() -> None:
    async def test() -> None:
        async with cluster() as one, publishing(one, 9) as publisher:
            for capacity in range(1, 8):
                publisher.publish(devices(capacity))
            await until(lambda: one.devices() == ["cpudev000:7"])
            await until(lambda: publisher.status.in_step)
            assert len(one.calls("create")) == 1

    run(test)


def test_slices_come_back_after_the_kubelet_deleted_them() -> None:
    """D4."""

    async def test() -> None:
        async with cluster() as one, publishing(one, 4, 4):
            for _ in range(3):
                await until(lambda: one.devices() == FOUR)
                one.remove_slices()
            await until(lambda: one.devices() == FOUR)

    run(test)


def test_slice_that_is_gone_before_our_own_write_is_answered_is_written_again() -> None:
    """D4: the watch tells of the deletion while the answer to the creation is still under way."""

    async def test() -> None:
        async with cluster() as one:
            late = LateAnswers(one.client)
            publisher = SlicePublisher(late, driver="dra.cpu", node="node1", wait_s=0.01)
            publisher.publish(devices(4, 4))
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(publisher.run())
                await until(lambda: one.devices() == FOUR and len(one.calls("watch")) == 1)
                one.remove_slices()
                await until(lambda: late.told_deleted == 1)
                late.free.set()
                await until(lambda: one.devices() == FOUR and publisher.status.in_step)
                task.cancel()

    run(test)


def test_list_that_is_older_than_our_own_writes_makes_no_others(caplog: pytest.LogCaptureFixture) -> None:
    """D4: the past was forgotten, and what is listed anew was so before the writes, the first of which is answered."""
    caplog.set_level(logging.INFO)

    async def test() -> None:
        async with cluster() as one:
            late = LateList(one.client)
            publisher = SlicePublisher(late, driver="dra.cpu", node="node1", wait_s=0.01)
            publisher.publish(devices(*[4] * 300))
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(publisher.run())
                await until(lambda: publisher.status.in_step and len(one.calls("watch")) == 1)
                late.free.clear()
                one.server.store.create(NODES, "", {"metadata": {"name": "node2"}})  # of which the watch does not tell
                one.server.store.forget()
                await one.server.break_connections()
                await until(late.listed.is_set)
                publisher.publish(devices(*[3] * 300))
                await until(lambda: publisher.status.in_step and late.taken.is_set())
                assert one.devices() == [f"cpudev{number:03d}:3" for number in range(300)]
                assert generations(one) == [2, 2, 2]
                assert late.writes == 3
                task.cancel()

    run(test)
    assert "changed by others" not in caplog.text


def test_many_devices_are_several_slices_of_one_generation() -> None:
    """D4."""

    async def test() -> None:
        async with cluster() as one, publishing(one, *[4] * 300) as publisher:
            await until(lambda: len(one.devices()) == 300)
            await until(lambda: publisher.status.in_step)
            first = json.loads(json.dumps(one.slices()))[0]["metadata"]["name"]
            one.server.store.remove(Key(kind=SLICES, namespace="", name=first))
            await until(lambda: generations(one) == [2, 2, 2])
            assert len(one.devices()) == 300

    run(test)


def test_foreign_change_is_written_over_even_when_it_wins_a_race() -> None:
    """D4: a conflict is planned anew."""

    async def test() -> None:
        async with cluster() as one, publishing(one, 4, 4) as publisher:
            await until(lambda: publisher.status.in_step)
            name = json.loads(json.dumps(one.slices()))[0]["metadata"]["name"]
            key = Key(kind=SLICES, namespace="", name=name)
            one.server.add_fault(Fault(verb="update", status=409, times=2))
            one.server.store.patch(key, {"spec": {"devices": None}})
            await until(lambda: one.devices() == FOUR)

    run(test)


@pytest.mark.parametrize("plural", ["resourceslices", "nodes", "*"])
def test_outage_is_outlived(plural: str) -> None:
    """D4."""

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(plural=plural, status=503, times=3))
            async with publishing(one, 4, 4) as publisher:
                await until(lambda: one.devices() == FOUR)
                await one.server.stop()
                publisher.publish(devices(4, 2))
                await until(lambda: publisher.status.error != "")
                assert not publisher.status.in_step
                one.remove_slices()
                await one.restart()
                await until(lambda: one.devices() == ["cpudev000:4", "cpudev001:2"])
                await until(lambda: publisher.status.in_step)

    run(test)


def test_node_that_does_not_exist_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """D4: what could not be written at first, or not before all slices were known, is not what others have changed."""
    caplog.set_level(logging.INFO)

    async def test() -> None:
        async with cluster(node="") as one, publishing(one, 4) as publisher:
            await until(lambda: "knows no Node of that name" in publisher.status.error)
            assert one.slices() == []
            one.server.store.create(NODES, "", {"metadata": {"name": "node1"}})
            await until(lambda: one.devices() == ["cpudev000:4"])

    run(test)
    assert "changed by others" not in caplog.text


def test_malformed_answers_are_failures_not_crashes() -> None:
    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(verb="get", plural="nodes", status=404, times=1))
            one.server.store.create(
                SLICES, "", {"metadata": {"name": "odd"}, "spec": {"nodeName": "node1", "driver": "dra.cpu"}}
            )
            async with publishing(one, 4, 4):
                await until(lambda: len(one.slices()) == 2)

    run(test)


THOUSAND = Shape(sockets=2, nodes=2, cores=125, threads=2)


def single_cpus(*, roots: bool) -> tuple[Device, ...]:
    """Return the devices of a machine of 1000 CPUs, one each, with or without two PCIe roots near them."""
    topology = build_topology(THOUSAND)
    near = tuple(
        PcieRoot(name=f"pci{number:04x}:{bus:02x}", cpus=node.cpus)
        for number, node in enumerate(topology.numa)
        for bus in (0, 64)
    )
    topology = replace(topology, pcie_roots=near)
    usable = usable_cpus(online=topology.online, isolated=NO_CPUS, available=None, kubepods=None, reserved=NO_CPUS)
    dividing = Dividing(grouping="individual", pcie_roots=roots)
    made = devices_of(topology, usable, dividing=dividing, driver="dra.cpu")
    few = ("dra.cpu/cpuID", PCIE_ROOT)  # of the attributes: the lab copies and checks each of them often
    return tuple(
        replace(one, attributes={name: value for name, value in one.attributes.items() if name in few}) for one in made
    )


@dataclass
class Whole:
    """Whether 1000 devices are published by slices of ``most``; looked at once after each change, as it takes long."""

    one: Cluster
    most: int
    generation: int = 0
    looked_at: int = 0

    def __call__(self) -> bool:
        if self.looked_at == self.one.server.store.version:
            return False
        self.looked_at = self.one.server.store.version
        found = published(self.one.slices())
        generation = found["generation"]
        if not found["complete"] or not isinstance(generation, int) or generation <= self.generation:
            return False
        self.generation = generation
        assert (found["slices"], found["devices"], found["most"]) == (-(-1000 // self.most), 1000, self.most)
        return True


def test_thousand_cpus_are_full_slices_of_one_generation_whatever_happens() -> None:
    """D4: a slice deleted by hand, conflicts in a row, 429 with Retry-After, 500, a watch broken with its past gone."""
    wanted = single_cpus(roots=False)
    assert len(wanted) == 1000

    async def test() -> None:
        async with cluster() as one, publishing(one) as publisher:
            whole = Whole(one, 128)
            publisher.publish(wanted)
            await until(whole, limit_s=60)
            assert whole.generation == 1
            slices = "resourceslices"
            lists = 0
            for faults in (
                (Fault(verb="create", plural=slices, status=409, times=2),),
                (
                    Fault(verb="update", plural=slices, status=409, times=2),
                    Fault(plural=slices, status=429, retry_after_s=1, times=1),
                    Fault(plural=slices, status=500, times=2),
                ),
                (),
            ):
                lists = len(one.calls("list"))
                if not faults:
                    await one.server.break_connections()
                for fault in faults:
                    one.server.add_fault(fault)
                one.remove_slice(3)
                if not faults:
                    one.server.store.forget()  # the removal as well, which the watcher has missed
                await until(whole, limit_s=60)
                assert one.server.pending_faults == 0
                one.server.clear_faults()
            assert len(one.calls("list")) > lists, "what was forgotten is not listed anew"
            assert not [sent for sent in one.trace.since(0) if sent.text.startswith("422")]

    run(test)


def test_thousand_cpus_with_pcie_roots_are_slices_of_64() -> None:
    """D2, D4."""

    async def test() -> None:
        async with cluster() as one, publishing(one) as publisher:
            one.server.features = Features(gates={"DRAListTypeAttributes": True})
            whole = Whole(one, 64)
            publisher.publish(single_cpus(roots=True))
            await until(whole, limit_s=60)
            one.remove_slice(15)
            await until(whole, limit_s=60)
            assert publisher.status.dropped == ()

    run(test)


def test_server_that_wants_to_be_left_alone_is() -> None:
    """D4: Retry-After is the least wait, by the clock of the call."""

    async def test() -> None:
        async with cluster() as one, publishing(one, 4, 4) as publisher:
            await until(lambda: publisher.status.in_step)
            one.server.add_fault(Fault(verb="update", status=429, retry_after_s=1, times=1))
            loop = asyncio.get_running_loop()
            began = loop.time()
            publisher.publish(devices(4, 3))
            await until(lambda: "429" in publisher.status.error)
            await until(lambda: one.devices() == ["cpudev000:4", "cpudev001:3"], limit_s=30)
            assert loop.time() - began > 0.99

    run(test)
