"""The disk thread: order, grouping, and what a failing part leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.errors import HostError, StateError
from nodecpu.ids import ClaimUID
from nodecpu.store.claims import ClaimStore, Disk, Job
from tests.unit.store.test_database import CLAIM

OTHER = replace(CLAIM, uid=ClaimUID("00000002-0000-4000-8000-000000000000"))


def play(path: Path, story: Callable[[Disk, ClaimStore], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = ClaimStore(path / "claims.db")
        disk = Disk(store)
        disk.start()
        try:
            await story(disk, store)
        finally:
            await disk.stop()
            store.close()

    asyncio.run(whole())


def _fail() -> None:
    raise OSError(30, "Read-only file system")


def test_the_part_before_runs_first_and_its_failure_writes_nothing(tmp_path: Path) -> None:
    async def story(disk: Disk, store: ClaimStore) -> None:
        with pytest.raises(HostError, match="Read-only file system"):
            await disk.submit(Job(puts=(CLAIM,), before=_fail))
        assert store.load() == ()

    play(tmp_path, story)


def test_the_part_after_sees_the_rows_and_its_failure_takes_them_back(tmp_path: Path) -> None:
    seen: list[int] = []

    async def story(disk: Disk, store: ClaimStore) -> None:
        await disk.submit(Job(puts=(CLAIM,), after=lambda: seen.append(len(store.load()))))
        with pytest.raises(HostError):
            await disk.submit(Job(puts=(OTHER,), after=_fail))
        assert store.load() == (CLAIM,)

    play(tmp_path, story)
    assert seen == [1]


def test_a_replaced_row_is_put_back_when_the_part_after_fails(tmp_path: Path) -> None:
    async def story(disk: Disk, store: ClaimStore) -> None:
        await disk.submit(Job(puts=(CLAIM,)))
        with pytest.raises(HostError):
            await disk.submit(Job(puts=(replace(CLAIM, released=False),), after=_fail, undo=(CLAIM,)))
        assert store.load() == (CLAIM,)

    play(tmp_path, story)


def test_a_failing_job_does_not_touch_those_that_share_its_commit(tmp_path: Path) -> None:
    async def story(disk: Disk, store: ClaimStore) -> None:
        first = disk.submit(Job(puts=(CLAIM,)))
        second = disk.submit(Job(puts=(OTHER,), before=_fail))
        third = disk.submit(Job(drops=(ClaimUID("unknown"),)))
        await asyncio.wait([first, second, third])
        assert first.exception() is None
        assert third.exception() is None
        assert isinstance(second.exception(), HostError)
        assert store.load() == (CLAIM,)

    play(tmp_path, story)


def test_work_without_rows_is_not_overtaken_by_what_is_queued_behind_it(tmp_path: Path) -> None:
    """C11, C12: files written because they were missing come before an unprepare that removes one of them."""
    done: list[str] = []
    begun, gate = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        gate.wait(10)

    async def story(disk: Disk, _: ClaimStore) -> None:
        slow = disk.submit(Job(after=hold_up))
        await asyncio.to_thread(begun.wait, 10)
        jobs = [
            disk.submit(Job(before=lambda: done.append("look"), after=lambda: done.append("restore"))),
            disk.submit(Job(puts=(CLAIM,), before=lambda: done.append("remove"), after=lambda: done.append("written"))),
            disk.submit(Job(after=lambda: done.append("look again"))),
        ]
        gate.set()
        await asyncio.gather(slow, *jobs)

    play(tmp_path, story)
    assert done == ["look", "restore", "remove", "look again", "written"]


def test_a_failing_database_fails_everybody_and_changes_nothing(tmp_path: Path) -> None:
    async def story(disk: Disk, store: ClaimStore) -> None:
        await disk.submit(Job(puts=(CLAIM,)))
        store.close()
        with pytest.raises(StateError, match="failed"):
            await disk.submit(Job(puts=(OTHER,)))

    play(tmp_path, story)
    again = ClaimStore(tmp_path / "claims.db")
    assert again.load() == (CLAIM,)
    again.close()


def test_what_is_queued_is_finished_before_the_thread_ends(tmp_path: Path) -> None:
    async def whole() -> None:
        store = ClaimStore(tmp_path / "claims.db")
        disk = Disk(store)
        disk.start()
        done = [disk.submit(Job(puts=(replace(CLAIM, uid=ClaimUID(f"u{number}")),))) for number in range(20)]
        await disk.stop()
        await asyncio.gather(*done)
        assert len(store.load()) == 20
        store.close()

    asyncio.run(whole())


def _bug() -> None:
    raise ValueError("nobody expects this")


@pytest.mark.parametrize(
    "broken",
    [Job(puts=(CLAIM,), before=_bug), Job(puts=(CLAIM,), after=_bug), Job(after=_bug)],
    ids=["before the commit", "after it", "without rows"],
)
def test_a_fault_of_ours_is_raised_to_who_watches_and_to_everybody_who_waits(tmp_path: Path, broken: Job) -> None:
    """Nobody waits for a thread that does nothing any more, and the daemon does not go on without one."""

    async def story(disk: Disk, store: ClaimStore) -> None:
        watching = asyncio.ensure_future(disk.watch())
        together = [disk.submit(Job(puts=(OTHER,))), disk.submit(broken), disk.submit(Job(owed=True))]
        found = await asyncio.gather(*together, return_exceptions=True)
        assert isinstance(found[1], ValueError)
        with pytest.raises(ValueError, match="nobody expects this"):
            await watching
        assert not disk.is_alive
        before = store.load()
        with pytest.raises(ValueError, match="nobody expects this"):
            await disk.submit(Job(puts=(replace(OTHER, name="later"),)))
        assert store.load() == before

    play(tmp_path, story)


def test_watching_ends_with_an_orderly_stop_and_may_be_given_up(tmp_path: Path) -> None:
    async def whole() -> None:
        store = ClaimStore(tmp_path / "claims.db")
        disk = Disk(store)
        disk.start()
        given_up, watching = asyncio.ensure_future(disk.watch()), asyncio.ensure_future(disk.watch())
        await asyncio.sleep(0)
        given_up.cancel()
        await disk.stop()
        await watching
        assert given_up.cancelled()
        assert not disk.is_alive
        store.close()

    asyncio.run(whole())
