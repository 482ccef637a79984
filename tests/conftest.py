"""What holds for every test: it cleans up behind itself, Hypothesis repeats itself, and CI skips nothing.

NODECPU_RANDOM=1 has Hypothesis try other examples than the last time, to look for faults.
NODECPU_CI=1 says that this machine is meant to run everything: what would be skipped fails there, with the reason.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CoroutineType

import pytest
from hypothesis import settings

IN_CI = os.environ.get("NODECPU_CI") == "1"
LINGER_S = 10.0
"""How long a library's own threads may take to close what a test has closed (grpc does it in the background)."""

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("random" if os.environ.get("NODECPU_RANDOM") == "1" else "repeatable")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if IN_CI and report.skipped:
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"{reason}\nNothing may be skipped here (NODECPU_CI=1): .ci/run installs what the tests need."


@pytest.fixture(autouse=True)
def leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail a test that leaves a task, a thread, a child process, a socket, a pipe or an open file."""
    tasks = _watch_tasks(monkeypatch)
    before = _held()
    yield
    end = time.monotonic() + LINGER_S
    while left := _held() - before:
        if time.monotonic() > end:
            break
        gc.collect()  # what only a reference cycle holds is not left behind for good
        time.sleep(0.01)
    assert not left, f"left behind: {', '.join(sorted(left.elements()))}"
    assert not tasks, f"tasks left running when their loop ended: {', '.join(sorted(tasks))}"


def _watch_tasks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each of our tasks which ``asyncio.run`` finds unfinished and cancels."""
    left: list[str] = []
    cancel_all = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]  # private; no public hook exists

    def note_and_cancel(loop: asyncio.AbstractEventLoop) -> None:
        left.extend(f"{task.get_name()} {task.get_coro()}" for task in asyncio.all_tasks(loop) if _is_ours(task))
        cancel_all(loop)

    monkeypatch.setattr(asyncio.runners, "_cancel_all_tasks", note_and_cancel)
    return left


def _is_ours(task: asyncio.Task[object]) -> bool:
    """Tell our tasks from a library's, which end with the library's own objects: compiled ones (gRPC's server) too."""
    coroutine = task.get_coro()
    return isinstance(coroutine, CoroutineType) and "site-packages" not in coroutine.cr_code.co_filename


def _held() -> Counter[str]:
    """Count what the process holds, by kind: a fixture of wider scope may exchange one socket for another."""
    held = Counter(_kind(fd) for fd in Path("/proc/self/fd").iterdir())
    del held[""]
    held["child process"] += len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    held.update(f"thread {t.name}" for t in threading.enumerate() if not t.daemon and t is not threading.main_thread())
    return held


def _kind(fd: Path) -> str:
    """Return what kind of file ``fd`` is; empty for what libraries keep for the process's whole life."""
    try:
        target = str(fd.readlink())
    except FileNotFoundError:
        return ""
    if target.startswith(("anon_inode:[eventpoll]", "anon_inode:[eventfd]", "/dev/")):
        return ""
    return target.split(":", 1)[0] if target.startswith(("socket:", "pipe:")) else target
