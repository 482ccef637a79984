"""A start while the disk of the state is full or read-only: what was known holds, what is new waits (R1)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import HostError, StateError
from nodecpu.ids import ContainerID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ClaimGrant
from nodecpu.store.claims import ADOPTED, ADOPTING, ClaimStore, Disk, Job
from nodecpu.store.containers import ContainerStore
from nodecpu.store.database import DiskError
from tests.node import PodShape, Scene, claim
from tests.support import SmallFileSystem, small_file_system

NODE1 = "cpudevnuma001"
FIRST, SECOND = claim(1, (NODE1, 2)), claim(2, (NODE1, 2))
HOLDER = PodShape(number=1, claims=("claim-1",))
CROWD = PodShape(number=2, qos=QoS.BURSTABLE, request_mcpu=100)
C1, C2 = ContainerID("c1"), ContainerID("c2")


@pytest.fixture
def disk(scene: Scene) -> Iterator[SmallFileSystem]:
    """The disk of the state directory."""
    state = scene.directory / "state"
    state.mkdir()
    with small_file_system(state) as made:
        yield made


def full(disk: SmallFileSystem) -> None:
    disk.fill()


def read_only(disk: SmallFileSystem) -> None:
    disk.read_only()


def good(disk: SmallFileSystem) -> None:
    disk.read_only(on=False)
    if (disk.path / "filler").exists():
        disk.empty()


Fault = Callable[[SmallFileSystem], None]
FAULTS = pytest.mark.parametrize("fault", [full, read_only])
ENDS = pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "ended"])


async def first_life(scene: Scene, *, is_killed: bool) -> CpuSet:
    """Prepare a claim and have a container hold it; return its CPUs.

    A kill leaves the database as it was: its log and shared memory, which an orderly end tidies up, are put back.
    """
    node = scene.boot()
    node.synchronize()
    await node.prepare(FIRST)
    node.service.pod_seen(HOLDER.spec)
    cpus = node.create(HOLDER.sandbox, HOLDER.container("c1", node.env_of(FIRST.uid)))
    node.started.claim_store.set_meta(ADOPTED, "yes")
    state = scene.directory / "state"
    names = ("claims.db", "claims.db-wal", "claims.db-shm") if is_killed else ()
    left = {name: (state / name).read_bytes() for name in names}
    await node.crash()
    for name, content in left.items():
        (state / name).write_bytes(content)
    return cpus


def is_troubled(store: ClaimStore) -> bool:
    return store.trouble is not None


def known_claims(scene: Scene) -> list[str]:
    with sqlite3.connect(scene.directory / "state" / "claims.db") as database:
        return [str(uid) for (uid,) in database.execute("SELECT uid FROM claims ORDER BY uid")]


def test_a_full_disk_under_the_containers_database_is_told_as_that(disk: SmallFileSystem) -> None:
    """R1: SQLite ends the transaction by itself; what was known stays."""
    store = ContainerStore(disk.path / "containers.db")
    store.load("boot")
    first = replace(PodShape(number=1).spec, annotations={"key": "value"})
    store.commit_pods([first], ())
    disk.fill()
    large = [replace(PodShape(number=n).spec, annotations={"key": "x" * 5000}) for n in range(2, 60)]
    with pytest.raises(DiskError, match=f"the file system of {disk.path} is full"):
        store.commit_pods(large, ())
    assert store.load("boot") == ((), (first,))
    disk.empty()
    store.commit_pods([second := PodShape(number=2).spec], ())
    assert store.load("boot") == ((), (first, second))
    store.close()


def test_a_row_that_cannot_be_taken_back_goes_as_soon_as_there_is_room(disk: SmallFileSystem) -> None:
    """R1: a claim that was refused is not in the books of the next start, though the disk filled up in between."""
    store = ClaimStore(disk.path / "claims.db")
    thread = Disk(store)

    def fails() -> None:
        disk.fill()
        raise HostError("no room for the CDI spec", hint="make some")

    async def story() -> None:
        thread.start()
        with pytest.raises(StateError):
            await thread.submit(
                Job(puts=(ClaimGrant(uid=FIRST.uid, namespace="shop", name="a", results=()),), after=fails)
            )
        assert [claim.uid for claim in store.load()] == [FIRST.uid]
        disk.empty()
        await thread.submit(Job(after=store.pay))
        assert store.load() == ()
        await thread.stop()

    asyncio.run(story())
    store.close()


@FAULTS
@ENDS
def test_holders_keep_their_cpus_and_prepared_claims_are_answered(
    scene: Scene, disk: SmallFileSystem, fault: Fault, caplog: pytest.LogCaptureFixture, *, is_killed: bool
) -> None:
    """R1, C6, C7: as on any other day; new claims are refused with the cause, until there is a disk again."""

    async def story() -> None:
        cpus = await first_life(scene, is_killed=is_killed)
        fault(disk)
        node = scene.boot()
        assert node.synchronize() == ()
        assert await node.prepare(FIRST)
        assert node.service.books.ledger.claims[FIRST.uid].cpus == cpus
        node.service.pod_seen(CROWD.spec)
        assert node.create(CROWD.sandbox, CROWD.container("c2")).isdisjoint(cpus)
        assert scene.runtime.processes[C1].cpus == cpus
        with pytest.raises(StateError, match=f"file system of .*/state is {fault.__name__.replace('_', '-')}"):
            await node.prepare(SECOND)
        assert is_troubled(node.started.claim_store)
        assert SECOND.uid not in node.service.books.ledger.claims
        assert caplog.text.count("state cannot be written") == 1
        good(disk)
        assert await node.prepare(SECOND)
        assert not is_troubled(node.started.claim_store)
        assert "state can be written again" in caplog.text
        node.check()
        await node.crash()
        assert known_claims(scene) == [FIRST.uid, SECOND.uid]

    caplog.set_level("INFO")
    asyncio.run(story())


@FAULTS
def test_the_disk_is_tried_again_without_a_claim(scene: Scene, disk: SmallFileSystem, fault: Fault) -> None:
    """What is owed is written as soon as that can be, and not before."""

    async def story() -> None:
        await first_life(scene, is_killed=False)
        fault(disk)
        node = scene.boot()
        store = node.started.claim_store
        store.set_meta("boot_id", "another")
        store.pay()
        assert is_troubled(store)
        assert store.meta("boot_id") == "another"
        good(disk)
        store.pay()
        assert not is_troubled(store)
        await node.crash()
        again = scene.boot().started.claim_store
        assert [one.uid for one in again.load()] == [FIRST.uid]
        again.close()

    asyncio.run(story())


@FAULTS
def test_a_first_start_pins_containers_and_looks_for_claims(scene: Scene, disk: SmallFileSystem, fault: Fault) -> None:
    """R2: there are no books yet; the disk being bad is no reason to let containers run anywhere."""

    async def story() -> None:
        fault(disk)
        node = scene.boot()
        assert node.started.adopting
        node.synchronize()
        node.service.pod_seen(CROWD.spec)
        assert 15 not in node.create(CROWD.sandbox, CROWD.container("c2"))
        with pytest.raises(StateError, match="file system"):
            await node.prepare(FIRST)
        good(disk)
        assert await node.prepare(FIRST)
        assert node.started.claim_store.meta(ADOPTING) == "yes"
        await node.crash()
        assert known_claims(scene) == [FIRST.uid]

    asyncio.run(story())


@FAULTS
def test_a_reboot_into_another_machine_is_remembered_with_the_first_commit(
    scene: Scene, disk: SmallFileSystem, fault: Fault
) -> None:
    """T7: claims to be picked anew stay so over any number of starts, until one of them could write it."""

    async def story() -> None:
        await first_life(scene, is_killed=False)
        boot_id = scene.directory / "proc" / "sys" / "kernel" / "random" / "boot_id"
        boot_id.write_text("00000000-0000-4000-8000-00000000000f\n")
        with sqlite3.connect(scene.directory / "state" / "claims.db") as database:
            database.execute("UPDATE meta SET value = 'another machine' WHERE key = 'fingerprint'")
        database.close()
        fault(disk)
        for _ in range(2):
            node = scene.boot()
            assert node.service.books.ledger.claims[FIRST.uid].moved
            await node.crash()
        node = scene.boot()
        good(disk)
        node.runtime.processes.clear()
        node.synchronize()
        assert await node.prepare(FIRST)
        await node.crash()
        node = scene.boot()
        assert not node.service.books.ledger.claims[FIRST.uid].moved
        await node.crash()

    asyncio.run(story())


def test_damaged_content_on_a_read_only_disk_is_set_aside_when_it_can_be(
    scene: Scene, disk: SmallFileSystem, caplog: pytest.LogCaptureFixture
) -> None:
    """R2: both at once; the books are rebuilt, the copy is made with the first commit."""

    async def story() -> None:
        await first_life(scene, is_killed=False)
        (disk.path / "claims.db").write_bytes(os.urandom(8192))
        disk.read_only()
        node = scene.boot()
        assert node.started.adopting
        assert node.service.books.ledger.claims[FIRST.uid].unproven
        good(disk)
        node.synchronize()
        assert await node.prepare(FIRST)
        assert (disk.path / "claims.db.unreadable-1").exists()
        await node.crash()
        assert known_claims(scene) == [FIRST.uid]

    asyncio.run(story())
    assert "books are rebuilt" in caplog.text
