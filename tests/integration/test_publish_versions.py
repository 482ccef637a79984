"""ResourceSlices on servers that know less, or refuse to tell: dropped fields, gates, versions (D2, D3, D5)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_CPUS
from nodecpu.dra.devices import Device
from nodecpu.dra.publish import SlicePublisher
from nodecpu.kube.client import ApiError
from nodecpu.lab.apiserver import Fault
from nodecpu.lab.slicerules import Features
from tests.apiserver import cluster
from tests.integration.publishing import FOUR, LateAnswers, devices, publishing
from tests.kubelet import run, until

LOST = ("spec.devices.*.allowMultipleAllocations", "spec.devices.*.capacity")


ROOTED = (
    Device(
        name="cpudevnuma000", cpus=NO_CPUS, capacity=4, attributes={"resource.kubernetes.io/pcieRoot": ("pci0000:00",)}
    ),
)


def test_dropped_fields_are_reported_and_not_written_for_ever() -> None:
    """D3."""

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(drop=("spec.devices.*.attributes",)))
            async with publishing(one, 4, 4) as publisher:
                await until(lambda: publisher.status.in_step)
                assert publisher.status.dropped == tuple(
                    f"spec.devices[{i}].attributes.dra.cpu/numaNodeID.int" for i in range(2)
                )
                assert not publisher.status.withheld
                mark = len(one.trace)
                publisher.publish(devices(4, 3))
                await until(lambda: one.devices() == ["cpudev000:4", "cpudev001:3"])
                await until(lambda: publisher.status.in_step)
                assert len(one.calls("update", since=mark)) == 1

    run(test)


def test_what_was_dropped_of_a_slice_that_is_gone_is_not_told_any_more() -> None:
    """D3: the kubelet deleted it, and the server has learnt the field since."""

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(drop=("spec.devices.*.attributes",)))
            async with publishing(one, 4, 4) as publisher:
                await until(lambda: publisher.status.in_step)
                assert publisher.status.dropped
                one.server.clear_faults()
                one.remove_slices()
                await until(lambda: one.devices() == FOUR)
                await until(lambda: not publisher.status.dropped)

    run(test)


def test_devices_are_withheld_where_one_claim_would_take_them_whole() -> None:
    """D3: they are not there for a moment, since what the server would keep is found out by a dry run."""

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(drop=LOST))
            async with publishing(one, 4, 4) as publisher:
                await until(lambda: publisher.status.in_step)
                assert publisher.status.withheld
                assert "spec.devices[0].allowMultipleAllocations" in publisher.status.dropped
                assert one.devices() == []
                assert len(one.slices()) == 1
                assert (len(one.calls("create")), one.calls("update")) == (1, [])

    run(test)


def test_devices_are_withdrawn_where_the_server_takes_no_dry_run() -> None:
    """D3: admission may refuse dry runs; then the write tells."""

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(verb="try", status=400))
            one.server.add_fault(Fault(drop=LOST))
            async with publishing(one, 4, 4, look_s=0.01) as publisher:
                await until(lambda: publisher.status.withheld and publisher.status.in_step)
                assert one.devices() == []
                one.server.clear_faults()
                await until(lambda: one.devices() == FOUR)

    run(test)


def test_looking_where_the_server_takes_no_dry_run_shows_no_device_for_a_moment() -> None:
    """D3: what is stored to find it out is of a pool that is never whole; a gate that was turned on is found."""

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(verb="try", status=400))
            one.server.features = Features(gates={"DRAConsumableCapacity": False})
            async with publishing(one, 4, 4, look_s=0.01) as publisher:
                await until(lambda: publisher.status.withheld and publisher.status.in_step)
                mark = len(one.trace)
                await until(lambda: len(one.calls("delete", since=mark)) > 3)
                told = json.loads(json.dumps([change.object for change in one.server.store.changes_after(0)]))
                pools = [
                    each["spec"]["pool"]
                    for each in told
                    if each["kind"] == "ResourceSlice" and "devices" in each["spec"]
                ]
                assert len(pools) > 3
                assert all((pool["generation"], pool["resourceSliceCount"]) == (0, 2) for pool in pools)
                one.server.features = Features()
                await until(lambda: one.devices() == FOUR and publisher.status.in_step)
                assert not publisher.status.is_lacking
                mark = len(one.trace)
                publisher.publish(devices(4, 3))
                await until(lambda: one.devices() == ["cpudev000:4", "cpudev001:3"] and publisher.status.in_step)
                assert len(one.slices()) == 1
                assert one.calls("create", since=mark) == []

    run(test)


def test_dry_run_that_fails_is_an_outage() -> None:
    """D3: nothing is written before it is known what is kept."""

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(verb="try", status=503, times=2))
            one.server.add_fault(Fault(drop=LOST))
            async with publishing(one, 4, 4) as publisher:
                await until(lambda: publisher.status.withheld and publisher.status.in_step)
                assert len(one.calls("create")) == 1

    run(test)


@pytest.mark.parametrize("vital", [True, False], ids=["withheld", "without roots"])
def test_looking_whether_the_server_has_learnt_what_it_lacked_writes_nothing(*, vital: bool) -> None:
    """D3, D4: a gate that stays off is no change; one that was turned on is found, whatever the version."""

    async def test() -> None:
        async with cluster() as one, publishing(one, look_s=0.01) as publisher:
            one.server.features = Features(gates={"DRAConsumableCapacity": not vital})
            publisher.publish(ROOTED)
            await until(lambda: publisher.status.in_step)
            mark = len(one.trace)
            await until(lambda: len(one.calls("try", since=mark)) > 8)
            assert one.calls("create", since=mark) == one.calls("update", since=mark) == []
            assert publisher.status.withheld == vital
            one.server.features = Features(gates={"DRAListTypeAttributes": True})
            await until(lambda: '"strings": ["pci0000:00"]' in json.dumps(one.slices()))
            await until(lambda: publisher.status.in_step and not publisher.status.is_lacking)
            mark = len(one.trace)
            publisher.publish((replace(ROOTED[0], capacity=3),))
            await until(lambda: one.devices() == ["cpudevnuma000:3"])
            assert one.calls("try", since=mark) == []

    run(test)


def test_start_where_a_gate_is_off_writes_nothing_anew() -> None:
    """D4: what is stored is what the server keeps of what is wanted."""

    async def test() -> None:
        async with cluster() as one:
            async with publishing(one) as publisher:
                publisher.publish(ROOTED, counted=True)
                await until(lambda: publisher.status.in_step)
            mark = len(one.trace)
            async with publishing(one) as publisher:
                publisher.publish(ROOTED, counted=True)
                await until(lambda: publisher.status.in_step)
                assert len(publisher.status.dropped) == 2
                assert not publisher.status.counted
            assert one.calls("create", since=mark) == one.calls("update", since=mark) == []

    run(test)


def test_closed_devices_stay_tainted_or_are_withheld_where_taints_are_dropped() -> None:
    """D5."""

    async def test() -> None:
        async with cluster() as one, publishing(one, 4, 4) as publisher:
            await until(lambda: publisher.status.in_step)
            publisher.publish(devices(4, 4), closed=True)
            await until(lambda: json.dumps(one.slices()).count("NoSchedule") == 2)
            publisher.publish(devices(4, 4))
            await until(lambda: "NoSchedule" not in json.dumps(one.slices()) and one.devices() == FOUR)
            one.server.add_fault(Fault(drop=("spec.devices.*.taints",)))
            publisher.publish(devices(4, 4), closed=True)
            await until(lambda: publisher.status.withheld and one.devices() == [])
            publisher.publish(devices(4, 4))
            await until(lambda: one.devices() == FOUR)

    run(test)


def test_pcie_roots_are_left_out_where_the_server_knows_no_lists() -> None:
    """D2, D3: it drops the list and refuses the attribute that is left without a value; the devices are published."""

    async def test() -> None:
        async with cluster() as one, publishing(one) as publisher:
            publisher.publish(ROOTED)
            await until(lambda: publisher.status.in_step)
            assert one.devices() == ["cpudevnuma000:4"]
            assert publisher.status.dropped == ("spec.devices[0].attributes.resource.kubernetes.io/pcieRoot.strings",)
            assert len(one.calls("create")) == 1
            mark = len(one.trace)
            publisher.publish((replace(ROOTED[0], capacity=3),))
            await until(lambda: one.devices() == ["cpudevnuma000:3"])
            assert len(one.calls("update", since=mark)) == 1

    run(test)


def test_pcie_roots_are_published_where_lists_are_known() -> None:
    """D2."""

    async def test() -> None:
        async with cluster() as one, publishing(one) as publisher:
            one.server.features = Features(gates={"DRAListTypeAttributes": True})
            publisher.publish(ROOTED)
            await until(lambda: publisher.status.in_step)
            assert publisher.status.dropped == ()
            assert '"strings": ["pci0000:00"]' in json.dumps(one.slices())

    run(test)


@pytest.mark.parametrize(
    ("minor", "field"), [(36, "nodeAllocatableResourceMappings"), (37, "nodeAllocatableResources"), (35, "")]
)
def test_claims_are_counted_in_the_form_of_the_servers_version(minor: int, field: str) -> None:
    """D3."""

    async def test() -> None:
        async with cluster() as one, publishing(one) as publisher:
            one.server.features = Features(
                minor=minor, gates={"DRANodeAllocatableResources": True, "DRAConsumableCapacity": True}
            )
            publisher.publish(devices(4, 4), counted=True)
            await until(lambda: publisher.status.in_step)
            assert publisher.status.counted == bool(field)
            assert publisher.status.dropped == ()
            assert ("nodeAllocatable" in json.dumps(one.slices())) == bool(field)
            assert field in json.dumps(one.slices())

    run(test)


def test_mapping_that_is_dropped_is_told_and_the_devices_stay() -> None:
    """D3: the gate is alpha."""

    async def test() -> None:
        async with cluster() as one, publishing(one) as publisher:
            settled: list[bool] = []
            publisher.settled = lambda: settled.append(publisher.status.counted)
            publisher.publish(devices(4, 4), counted=True)
            await until(lambda: publisher.status.in_step)
            assert one.devices() == FOUR
            assert not publisher.status.counted
            assert publisher.status.dropped
            assert all("nodeAllocatableResourceMappings" in path for path in publisher.status.dropped)
            assert settled
            assert not any(settled)

    run(test)


def test_server_that_does_not_tell_its_version_is_published_to_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """D3: what depends on the version is left out."""

    class Silent(LateAnswers):
        async def get(self, path: str, query: Mapping[str, str] = {}, *, timeout_s: float | None = None) -> bytes:
            if path == "/version":
                raise ApiError("no", status=403, reason="Forbidden")
            return await super().get(path, query, timeout_s=timeout_s)

    async def test() -> None:
        async with cluster() as one:
            silent = Silent(one.client)
            silent.free.set()
            publisher = SlicePublisher(silent, driver="dra.cpu", node="node1", wait_s=0.01)
            publisher.publish(devices(4, 4), counted=True)
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(publisher.run())
                await until(lambda: publisher.status.in_step)
                assert one.devices() == FOUR
                assert not publisher.status.counted
                task.cancel()
        told = [record.getMessage() for record in caplog.records if record.name == "nodecpu.dra.publish"]
        assert [one for one in told if "does not tell its version" in one]
        assert not [one for one in told if "too old" in one]

    run(test)


def test_mapping_takes_the_new_form_after_an_upgrade_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    """D3: a new server ends the watches, and is asked for its version again; nobody is blamed for the change."""
    caplog.set_level(logging.INFO)

    async def test() -> None:
        async with cluster() as one, publishing(one) as publisher:
            one.server.features = Features(gates={"DRANodeAllocatableResources": True})
            publisher.publish(devices(4, 4), counted=True)
            await until(lambda: publisher.status.counted)
            await one.server.stop()
            one.server.features = Features(minor=37, gates={"DRANodeAllocatableResources": True})
            await one.restart()
            await until(lambda: '"nodeAllocatableResources"' in json.dumps(one.slices()))
            await until(lambda: publisher.status.in_step and publisher.status.counted)
            publisher.publish(devices(4, 4))
            await until(lambda: "nodeAllocatable" not in json.dumps(one.slices()))
            await until(lambda: not publisher.status.counted)

    run(test)
    assert "changed by others" not in caplog.text
