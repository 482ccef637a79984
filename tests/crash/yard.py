"""A stage of the lab whose daemon is started again whenever it ends, as by systemd, and can be killed at points."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from nodecpu.lab.cgroups import ModelCgroups
from nodecpu.lab.jsontree import JsonObject
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.lab.stage import DRIVER, Daemon, Stage, StageError, StageSettings

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 30.0
_LONGEST_PAUSE_S = 30.0
"""Before slices are written again which others, such as a kubelet at each of its starts, keep deleting."""


class ForkedDaemon(Daemon):
    """The daemon's process, forked from a zygote."""

    def __init__(self, config: Path, log: Path, notify: Path) -> None:
        super().__init__(config, log, notify)
        self.armed = config.with_name("armed")
        self.pid = 0
        self.starts = 0
        self.ended = asyncio.Event()
        self.ended.set()
        self._started = asyncio.Event()
        self._code: int | None = None
        self._socket = notify
        self._zygote: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    @property
    def exit_code(self) -> int | None:
        return self._code if self.ended.is_set() else None

    async def open(self) -> None:
        """Start the zygote."""
        self._zygote = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.crash.zygote"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={"NODECPU_FAILPOINTS": str(self.armed), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        )
        assert self._zygote.stdout is not None
        assert await self._zygote.stdout.readline() == b"loaded\n"
        self._reader = asyncio.create_task(self._read(self._zygote.stdout))

    async def close(self) -> None:
        """End the zygote; the daemon has ended before."""
        assert self._zygote is not None
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        await self._zygote.wait()
        if self._reader is not None:
            await self._reader

    async def start(self) -> None:
        assert self._zygote is not None
        assert self._zygote.stdin is not None
        self.ready.clear()
        self._started.clear()
        self._code = None
        self.ended.clear()
        self.starts += 1
        wanted = {"config": str(self.config), "log": str(self.log), "notify": str(self._socket)}
        self._zygote.stdin.write(json.dumps(wanted).encode() + b"\n")
        await self._started.wait()

    async def end(self, number: signal.Signals) -> int:
        if self.is_running:
            await self._started.wait()
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        async with asyncio.timeout(PATIENCE_S):
            await self.ended.wait()
        return self._code or 0

    def arm(self, point: str) -> None:
        """Have the daemon kill itself when it comes to a point."""
        making = self.armed.with_suffix(".new")
        making.write_text(point)
        making.rename(self.armed)

    def disarm(self) -> None:
        """Let every point be passed."""
        self.armed.unlink(missing_ok=True)

    async def _read(self, lines: asyncio.StreamReader) -> None:
        while line := await lines.readline():
            what, pid, *code = line.split()
            if what == b"started":
                self.pid = int(pid)
                self._started.set()
            elif int(pid) == self.pid:
                self._code = int(code[0])
                self.ended.set()


class Yard:
    """The stage, and its daemon kept alive; ``deaths`` counts kills, ``stops`` orderly ends."""

    def __init__(self, stage: Stage, daemon: ForkedDaemon) -> None:
        self.stage = stage
        self.daemon = daemon
        self.deaths = 0
        self.stops = 0
        self.trouble = ""
        self.is_closing = False

    async def keep_alive(self) -> None:
        """Start the daemon again whenever it ends; what it was told to die at is disarmed first."""
        while True:
            await self.daemon.ended.wait()
            if self.is_closing:
                return
            if self.daemon.exit_code == -signal.SIGKILL:
                self.deaths += 1
                self.daemon.disarm()
            elif self.daemon.exit_code == 0:
                self.stops += 1
            else:
                tail = "\n".join(self.daemon.log_text().splitlines()[-15:])
                self.trouble = f"the daemon ended with {self.daemon.exit_code}:\n{tail}"
                return
            await self.daemon.start()

    async def started_after(self, starts: int) -> None:
        """Wait until the daemon was started once more. Raises StageError."""
        async with asyncio.timeout(PATIENCE_S):
            while self.daemon.starts == starts and not self.trouble:  # noqa: ASYNC110 - two things are awaited
                await asyncio.sleep(0.002)
        if self.trouble:
            raise StageError(self.trouble)

    async def synchronized(self, *, after: int) -> None:
        """Wait until the runtime has synchronised a daemon once more than ``after`` times. Raises StageError."""
        plugins = self.stage.runtime.plugins
        await self.stage.until(
            lambda: bool(plugins.plugins) and plugins.synchronized > after, "plugin", timeout_s=PATIENCE_S
        )

    async def up(self) -> None:
        """Wait until a daemon is synchronised and registered, and has published. Raises StageError."""
        async with asyncio.timeout(PATIENCE_S + _LONGEST_PAUSE_S):
            while not self._is_up():
                if self.trouble:
                    raise StageError(self.trouble)
                await asyncio.sleep(0.005)

    def _is_up(self) -> bool:
        stage = self.stage
        up = self.daemon.is_running and self.daemon.ready.is_set() and bool(stage.runtime.plugins.plugins)
        return up and DRIVER in stage.kubelet.registry.drivers and bool(stage.cluster.slices())


@asynccontextmanager
async def opened_yard(*, runtime: str = "containerd-2.4", machine: str, daemon: JsonObject) -> AsyncIterator[Yard]:
    """Yield a yard with everything running."""
    root = _memory_directory(machine)
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        notify.bind(str(root / "notify.sock"))
        async with asyncio.TaskGroup() as tasks:
            yard = _made(root, StageSettings(machine=machine, runtime=runtime, daemon=daemon), tasks)
            listener = tasks.create_task(_listen(notify, yard.daemon))
            kernel: asyncio.Task[None] | None = None
            await yard.daemon.open()
            try:
                await yard.stage.open()
                await yard.daemon.start()
                tasks.create_task(yard.keep_alive())
                kernel = tasks.create_task(_play_kernel(yard.stage))
                await yard.up()
                yield yard
                if yard.trouble:
                    raise StageError(yard.trouble)
            finally:
                await _put_down(yard)
                await yard.stage.close()
                await yard.daemon.close()
                listener.cancel()
                if kernel is not None:
                    kernel.cancel()
    finally:
        notify.close()
        shutil.rmtree(root, ignore_errors=True)


def _made(root: Path, settings: StageSettings, tasks: asyncio.TaskGroup) -> Yard:
    stage = Stage(root, root / "host", settings, tasks)
    forked = ForkedDaemon(stage.daemon.config, stage.daemon.log, root / "notify.sock")
    stage.daemon = forked
    stage.kubelet.settings = replace(
        stage.kubelet.settings,
        notice_s=0.05,
        retry_s=0.1,
        unprepare_retry_s=0.1,
        wipe_s=0.0,
        absence_s=3600.0,  # it is dead again and again, but never for long
    )
    return Yard(stage, forked)


async def _put_down(yard: Yard) -> None:
    """End the daemon as systemd does; one that does not end says where it is."""
    yard.is_closing = True
    yard.daemon.disarm()
    try:
        await yard.daemon.end(signal.SIGTERM)
    except TimeoutError:
        os.kill(yard.daemon.pid, signal.SIGUSR1)
        await asyncio.sleep(0.5)
        tail = "\n".join(yard.daemon.log_text().splitlines()[-80:])
        await yard.daemon.end(signal.SIGKILL)
        raise StageError(f"the daemon did not end within {PATIENCE_S:g} s of SIGTERM:\n{tail}") from None


def _memory_directory(machine: str) -> Path:
    """Return a new directory on a memory file system, with a machine in it."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    root = Path(tempfile.mkdtemp(prefix="nodecpu-", dir=base))
    write_machine(parse_machine(machine), root / "host")
    return root


async def _play_kernel(stage: Stage) -> None:
    """Let effective cpusets follow what is written: the daemon reads back what it wrote, and writes again otherwise."""
    assert isinstance(stage.cgroups, ModelCgroups)
    while True:
        stage.cgroups.refresh()
        await asyncio.sleep(0.05)


async def _listen(notify: socket.socket, daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    while True:
        daemon.notified((await loop.sock_recv(notify, 4096)).decode(errors="replace"))
