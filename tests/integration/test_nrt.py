"""Publishing the NodeResourceTopology against the lab's API server, which knows the CRD's schema (X2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from nodecpu.kube.claims import ClaimReader
from nodecpu.kube.nrt import TopologyPublisher
from nodecpu.lab.apiserver import Fault
from nodecpu.lab.jsontree import JsonObject, leaf, text
from nodecpu.lab.objects import NODES, TOPOLOGIES, ApiError, Key
from tests.apiserver import Cluster, cluster
from tests.kubelet import run, until

KEY = Key(kind=TOPOLOGIES, namespace="", name="node1")


class Pools:
    """What is to be published."""

    def __init__(self) -> None:
        self.available = "4"

    def look(self) -> Mapping[str, object]:
        resource = {"name": "cpu", "capacity": "4", "allocatable": "4", "available": self.available}
        return {
            "topologyPolicies": [],
            "attributes": [{"name": "TopologyPolicy", "value": "nodecpu"}],
            "zones": [{"name": "node-0", "type": "Node", "resources": [resource]}],
        }


def stored(one: Cluster) -> JsonObject:
    try:
        return one.server.store.get(KEY)
    except ApiError:
        return {}


def available(one: Cluster) -> str:
    return text(stored(one), "zones", "0", "resources", "0", "available")


@asynccontextmanager
async def published(
    one: Cluster, pools: Pools, *, floor_s: float = 0.01, recheck_s: float = 60.0
) -> AsyncIterator[TopologyPublisher]:
    reader = ClaimReader(one.client, driver="dra.cpu", node="node1")
    publisher = TopologyPublisher(one.client, reader, pools.look, node="node1", floor_s=floor_s, recheck_s=recheck_s)
    task = asyncio.create_task(publisher.run())
    try:
        yield publisher
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_object_is_made_owned_by_the_node_and_written_on_change_only() -> None:
    """X2, U112."""
    pools = Pools()

    async def test() -> None:
        async with cluster() as one, published(one, pools) as publisher:
            await until(lambda: available(one) == "4")
            node_uid = text(one.server.store.get(Key(kind=NODES, namespace="", name="node1")), "metadata", "uid")
            assert text(stored(one), "metadata", "ownerReferences", "0", "uid") == node_uid
            for _ in range(20):
                publisher.changed()
                await asyncio.sleep(0.01)
            assert publisher.writes == 1
            pools.available = "2"
            publisher.changed()
            await until(lambda: publisher.writes == 2)
            assert available(one) == "2"

    run(test)


def test_changes_in_a_row_are_one_write() -> None:
    """X2: at most one write in the floor's time, and the last state wins."""
    pools = Pools()

    async def test() -> None:
        async with cluster() as one, published(one, pools, floor_s=0.3) as publisher:
            await until(lambda: available(one) == "4")
            for number in range(100):
                pools.available = f"{number}m"
                publisher.changed()
                await asyncio.sleep(0)
            await until(lambda: publisher.writes == 2)
            assert available(one) == "99m"

    run(test)


def test_restart_writes_nothing_when_it_is_as_it_was() -> None:
    """X2."""
    pools = Pools()

    async def test() -> None:
        async with cluster() as one:
            async with published(one, pools):
                await until(lambda: available(one) == "4")
            version = leaf(stored(one), "metadata", "resourceVersion")
            async with published(one, pools) as publisher:
                await until(lambda: bool(one.calls("get noderesourcetopologies")))
                await asyncio.sleep(0.05)
                assert publisher.writes == 0
            assert leaf(stored(one), "metadata", "resourceVersion") == version

    run(test)


@pytest.mark.parametrize("what", ["deleted", "changed"])
def test_what_others_do_to_it_is_mended(what: str) -> None:
    """X2: at the next look, and by a conflict before."""
    pools = Pools()

    async def test() -> None:
        async with cluster() as one, published(one, pools, recheck_s=0.1):
            await until(lambda: available(one) == "4")
            if what == "deleted":
                one.server.store.remove(KEY)
            else:
                one.server.store.update(KEY, stored(one) | {"zones": []})
            await until(lambda: available(one) == "4")

    run(test)


def test_what_others_do_to_it_is_mended_while_changes_come_one_after_the_other() -> None:
    """X2: changes that mean nothing new do not put the look off for ever."""
    pools = Pools()

    async def test() -> None:
        async with cluster() as one, published(one, pools, recheck_s=0.2) as publisher:
            await until(lambda: available(one) == "4")
            one.server.store.update(KEY, stored(one) | {"zones": []})

            def look() -> bool:
                publisher.changed()  # more often than it is time to look
                return available(one) == "4"

            await until(look)
            await until(lambda: publisher.writes == 2)

    run(test)


def test_conflict_is_resolved_by_reading_again() -> None:
    """X2."""
    pools = Pools()

    async def test() -> None:
        async with cluster() as one, published(one, pools) as publisher:
            await until(lambda: available(one) == "4")
            one.server.store.update(KEY, stored(one) | {"zones": []})
            pools.available = "3"
            publisher.changed()
            await until(lambda: available(one) == "3")

    run(test)


def test_missing_crd_is_told_once_and_looked_for_again(caplog: pytest.LogCaptureFixture) -> None:
    """X2, U114."""
    pools = Pools()

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(Fault(plural="noderesourcetopologies", status=404))
            async with published(one, pools, recheck_s=0.02) as publisher:
                await until(lambda: len(one.calls("")) > 6)
                assert "no NodeResourceTopology" in _only(caplog)
                assert publisher.writes == 0
                one.server.clear_faults()
                await until(lambda: available(one) == "4")

    def _only(log: pytest.LogCaptureFixture) -> str:
        (found,) = [record.message for record in log.records if record.levelname == "WARNING"]
        return found

    run(test)


def test_outage_is_survived() -> None:
    """X2."""
    pools = Pools()

    async def test() -> None:
        async with cluster() as one, published(one, pools) as publisher:
            await until(lambda: available(one) == "4")
            await one.server.stop()
            pools.available = "1"
            publisher.changed()
            await until(lambda: bool(publisher.error))
            await one.restart()
            await until(lambda: available(one) == "1" and not publisher.error)

    run(test)
