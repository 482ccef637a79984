"""The net under all tests: a leak or a forbidden skip is a failure, cleanliness is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

LEAKS = """
import asyncio, socket, subprocess, threading
kept, end = [], threading.Event()

def test_socket():
    kept.append(socket.socket())

def test_child_process():
    kept.append(subprocess.Popen(["/bin/sleep", "60"]))

def test_child_process_gone():
    kept[-1].kill()
    kept[-1].wait()

def test_thread():
    threading.Thread(target=end.wait, name="stays").start()

def test_thread_gone():
    end.set()

async def linger():
    await asyncio.sleep(60)

async def start():
    kept.append(asyncio.create_task(linger(), name="lingers"))
    await asyncio.sleep(0)

def test_task():
    asyncio.run(start())
"""
FOUND = (
    "left behind: socket",
    "left behind: child process",
    "left behind: thread stays",
    "left running when their loop ended: lingers",
)
CLEAN = """
import asyncio, socket, subprocess
async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0))
def test_it(tmp_path):
    asyncio.run(main())
    subprocess.run(["true"], check=True)
    with socket.socket(), (tmp_path / "file").open("w"):
        pass
"""
COMPILED = """
import asyncio, grpc.aio
async def main():
    server = grpc.aio.server()
    await server.start()
    assert len(asyncio.all_tasks()) > 1
def test_it():
    asyncio.run(main())
"""
SKIPPED = "import pytest\ndef test_it():\n    pytest.skip('no such machine')\n"


def run_pytest(directory: Path, text: str, *, in_ci: bool, linger_s: float = 10.0) -> subprocess.CompletedProcess[str]:
    net = (ROOT / "tests" / "conftest.py").read_text()
    (directory / "conftest.py").write_text(net.replace("LINGER_S = 10.0", f"LINGER_S = {linger_s}"))
    (directory / "test_case.py").write_text(text)
    environment = {**os.environ, "NODECPU_CI": "1" if in_ci else "0"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(directory)]
    return subprocess.run([*command, str(directory)], env=environment, capture_output=True, text=True, timeout=60)


def test_what_a_test_leaves_behind_fails_it(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, LEAKS, in_ci=False, linger_s=0.1)
    assert [words for words in FOUND if words not in done.stdout] == []
    assert "6 passed, 4 errors" in done.stdout


def test_a_test_that_cleans_up_passes(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, CLEAN, in_ci=True)
    assert done.returncode == 0, done.stdout


def test_tasks_of_compiled_coroutines_are_a_librarys(tmp_path: Path) -> None:
    """gRPC's: some end a moment after what they serve."""
    done = run_pytest(tmp_path, COMPILED, in_ci=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("in_ci", "code"), [(False, 0), (True, 1)], ids=["on any machine", "in CI"])
def test_a_skip_counts_as_failure_in_ci_only(tmp_path: Path, *, in_ci: bool, code: int) -> None:
    done = run_pytest(tmp_path, SKIPPED, in_ci=in_ci)
    assert done.returncode == code
    assert "no such machine" in done.stdout or not in_ci
