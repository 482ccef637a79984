"""Everything a scenario needs below one directory (asyncio): machine, cgroups, API server, runtime, kubelet, daemon.

``opened`` makes it and takes all of it away again. The daemon is the real one, in a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import tomli_w

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.lab.apiserver import DRIVERS_RIGHTS, ApiServer
from nodecpu.lab.cgroups import ModelCgroups
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.flavours import FLAVOURS
from nodecpu.lab.jsontree import Json, JsonObject, merged
from nodecpu.lab.kubelet import Kubelet, KubeletSettings
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.lab.peerdriver import PeerDriver
from nodecpu.lab.pluginhost import RuntimeSettings
from nodecpu.lab.podspec import CgroupDriver
from nodecpu.lab.realcgroups import RealCgroups
from nodecpu.lab.runtime import Runtime
from nodecpu.lab.slicerules import DEFAULT, Features
from nodecpu.lab.trace import Trace

NODE_NAME: Final = "lab-node"
DRIVER: Final = "dra.cpu"
PEER: Final = "gpu.example.com"
_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 15.0
_PERIOD_S: Final = 0.5
_ONLINE: Final = "sys/devices/system/cpu/online"
"""What every machine has, and no other directory."""


class StageError(Exception):
    """The stage cannot do what is asked; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """What is played on. ``machine`` is a text, a directory or archive that holds ``sys``, or ``host``.

    ``real``: containers are processes in this host's cgroups (root; for ``host``).
    """

    machine: str
    runtime: str = "containerd-2.4"
    cgroup_driver: str = "systemd"
    real: bool = False
    kubernetes: Features = DEFAULT
    daemon: JsonObject


class Daemon:
    """The daemon's process, again and again; its output is gathered in one log file."""

    def __init__(self, config: Path, log: Path, notify: Path) -> None:
        self.config = config
        self.log = log
        self.ready = asyncio.Event()
        self.status = ""
        self._notify = notify
        self._process: asyncio.subprocess.Process | None = None

    @property
    def is_running(self) -> bool:
        """Return whether the process is there."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """Return how it ended, None if it has not or was never started."""
        return self._process.returncode if self._process else None

    async def start(self) -> None:
        """Start the process, with nothing waited for."""
        self.ready.clear()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "nodecpu", "daemon", "--config", str(self.config)),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={"NOTIFY_SOCKET": str(self._notify), "PATH": "/usr/bin:/bin", "PYTHONPATH": _package_root()},
            )

    async def end(self, number: signal.Signals) -> int:
        """Return the exit code after a signal; StageError if it does not end in time (it is killed then)."""
        if self._process is None or self._process.returncode is not None:
            raise StageError("the daemon is not running")
        self._process.send_signal(number)
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                return await self._process.wait()
        except TimeoutError as error:
            self._process.kill()
            await self._process.wait()
            raise StageError(f"the daemon did not end within {_STOP_TIMEOUT_S:g} s of {number.name}") from error

    def reload(self) -> None:
        """Have it read its configuration again; ``ready`` is set when it has. StageError if it is not running."""
        if self._process is None or self._process.returncode is not None:
            raise StageError("the daemon is not running")
        self.ready.clear()
        self._process.send_signal(signal.SIGHUP)

    async def put_down(self) -> None:
        """End the process if it is there, gently or not."""
        if self.is_running:
            with suppress(StageError):
                await self.end(signal.SIGTERM)

    def log_text(self) -> str:
        """Return all it has written so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def notified(self, message: str) -> None:
        """Take a message as systemd would."""
        for line in message.splitlines():
            key, _, value = line.partition("=")
            if key == "READY":
                self.ready.set()
            elif key == "STATUS":
                self.status = value


class Stage:
    """The parts, and how they are started, stopped and waited for."""

    def __init__(self, root: Path, machine_root: Path, settings: StageSettings, tasks: asyncio.TaskGroup) -> None:
        self.root = root
        self.cdi = root / "cdi"
        self.trace = Trace()
        self.api = ApiServer(self.trace)
        self.api.features = settings.kubernetes
        self.cluster = Cluster(self.api.store, node_name=NODE_NAME, driver=DRIVER, features=lambda: self.api.features)
        self.machine_root = machine_root
        driver = CgroupDriver.CGROUPFS if settings.real else CgroupDriver(settings.cgroup_driver)
        group = f"/{root.name}" if settings.real else ""
        self.cgroup_mount = Path("/sys/fs/cgroup") if settings.real else root / "cgroup"
        self.cgroups: ModelCgroups | RealCgroups
        if settings.real:
            self.cgroups = RealCgroups(group, mount=self.cgroup_mount)
        else:
            cpus, mems = _online(self.machine_root), _memory(self.machine_root)
            self.cgroups = ModelCgroups(self.cgroup_mount, cpus=cpus, mems=mems)
        runtime = RuntimeSettings(
            flavour=FLAVOURS[settings.runtime],
            socket=root / "nri" / "nri.sock",
            cdi_directory=self.cdi,
            cgroup_driver=driver,
        )
        self.runtime = Runtime(runtime, self.cgroups, self.trace)
        kubelet = KubeletSettings(directory=root / "kubelet", cgroup_driver=driver, cgroup_root=group)
        self.kubelet = Kubelet(kubelet, self.cluster, self.runtime, self.trace)
        self.peer_name = PEER
        self.peer = PeerDriver(root / "kubelet", PEER)
        self.daemon = Daemon(root / "nodecpu.toml", root / "daemon.log", root / "notify.sock")
        self._settings = settings
        self._daemon_settings = settings.daemon
        self._tasks = tasks
        self._kubelet_task: asyncio.Task[None] | None = None
        self._api_is_up = False

    async def open(self) -> None:
        """Start everything but the daemon."""
        self.cdi.mkdir()
        self.cgroups.open()
        if not self._settings.real:
            driver = self._settings.cgroup_driver
            self.cgroups.make("/kubepods.slice" if driver == CgroupDriver.SYSTEMD.value else "/kubepods")
        await self.start_api()
        self.cluster.populate()
        await self.start_runtime()
        self.start_kubelet()
        self._write_configuration()

    async def close(self) -> None:
        """Stop everything."""
        await self.daemon.put_down()
        await self.peer.stop()
        await self.stop_kubelet()
        await self.runtime.stop()
        await self.stop_api()
        self.cgroups.close()

    def set_online(self, cpus: CpuSet) -> None:
        """Let the machine have these CPUs online, by sysfs and in its cgroups. StageError for the host itself."""
        if self.machine_root == Path("/") or not isinstance(self.cgroups, ModelCgroups):
            raise StageError("CPUs of this host are not taken offline")
        self.cgroups.set_online(cpus)
        (self.machine_root / "sys/devices/system/cpu/online").write_text(f"{cpus}\n")

    async def start_api(self) -> None:
        """Let the API server answer."""
        self.api.rights = DRIVERS_RIGHTS
        await self.api.start(self._tasks)
        self._api_is_up = True

    async def stop_api(self) -> None:
        """Let the API server be away."""
        await self.api.stop()
        self._api_is_up = False

    async def start_runtime(self) -> None:
        """Start the runtime's process."""
        await self.runtime.start(self._tasks)

    def start_kubelet(self) -> None:
        """Start the kubelet's process."""
        if self._kubelet_task is None:
            self._kubelet_task = self._tasks.create_task(self.kubelet.run())

    async def stop_kubelet(self) -> None:
        """End the kubelet's process."""
        if self._kubelet_task is not None:
            self._kubelet_task.cancel()
            with suppress(asyncio.CancelledError):
                await self._kubelet_task
            self._kubelet_task = None

    async def start_daemon(self, *, wait: bool) -> None:
        """Start the daemon; with ``wait`` until it is ready, registered everywhere and has published. StageError."""
        synchronized = self.runtime.plugins.synchronized
        await self.daemon.start()
        if wait:
            await self.until(self.daemon.ready.is_set, "READY=1", timeout_s=_START_TIMEOUT_S)
            await self.until(
                lambda: self.runtime.plugins.synchronized > synchronized and bool(self.runtime.plugins.plugins),
                "the plugin's synchronisation",
                timeout_s=_START_TIMEOUT_S,
            )
            await self.until_registered()
            if self._api_is_up:
                await self.until(lambda: bool(self.cluster.slices()), "slices", timeout_s=_START_TIMEOUT_S)

    def configure(self, changes: JsonObject) -> None:
        """Change the daemon's configuration file; it takes effect when the daemon reads it."""
        changed = merged(self._daemon_settings, changes)
        assert isinstance(changed, dict)
        self._daemon_settings = changed
        self._write_configuration()

    async def reload_daemon(self, *, wait: bool) -> None:
        """Have the daemon read its configuration again. StageError."""
        self.daemon.reload()
        if wait:
            await self.until(self.daemon.ready.is_set, "reload", timeout_s=_START_TIMEOUT_S)

    async def until_registered(self, driver: str = DRIVER) -> None:
        """Wait until the kubelet has registered a driver. StageError."""
        await self.until(lambda: driver in self.kubelet.registry.drivers, "registration", timeout_s=_START_TIMEOUT_S)

    async def until(self, condition: Callable[[], bool], what: str, *, timeout_s: float) -> None:
        """Wait until something holds. StageError when it does not in time, or the daemon has died."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    if self.daemon.exit_code is not None:
                        raise StageError(f"the daemon ended with {self.daemon.exit_code} while waiting for {what}")
                    await asyncio.sleep(0.01)
        except TimeoutError as error:
            raise StageError(f"no {what} within {timeout_s:g} s") from error

    def _write_configuration(self) -> None:
        kubeconfig: JsonObject = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": self.api.url}}],
            "users": [{"name": "lab", "user": {"token": "lab"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
            "current-context": "lab",
        }
        (self.root / "kubeconfig").write_text(json.dumps(kubeconfig))
        (self.root / "kubeconfig").chmod(0o600)
        own: JsonObject = {
            "node": {"name": NODE_NAME},
            "paths": {
                "root": str(self.machine_root),
                "cgroup": str(self.cgroup_mount),
                "cdi": str(self.cdi),
                "kubelet": str(self.root / "kubelet"),
                "state": str(self.root / "state"),
                "run": str(self.root / "run"),
            },
            "nri": {"socket": str(self.root / "nri" / "nri.sock")},
            "kube": {"kubeconfig": str(self.root / "kubeconfig")},
            "dra": {"driver": DRIVER},
            "claims": {"wait_s": 2.0},
            "enforce": {"period_s": _PERIOD_S},
            "log": {"level": "debug"},
        }
        together: Json = merged(own, self._daemon_settings)
        assert isinstance(together, dict)
        (self.root / "nodecpu.toml").write_text(tomli_w.dumps(together))


@asynccontextmanager
async def opened(settings: StageSettings, *, keep: bool = False) -> AsyncIterator[Stage]:
    """Yield a stage with everything but the daemon running; ``keep`` leaves the directory behind."""
    root = Path(tempfile.mkdtemp(prefix="nodecpu-lab-"))
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        _bind(notify, root / "notify.sock")
        machine_root = _machine_root(settings.machine, root)  # outside: a group would wrap its ConfigError
        async with asyncio.TaskGroup() as tasks:
            stage = Stage(root, machine_root, settings, tasks)
            listener = tasks.create_task(_listen(notify, stage.daemon))
            try:
                await stage.open()
                yield stage
            finally:
                await stage.close()
                listener.cancel()
    finally:
        notify.close()
        if not keep:
            shutil.rmtree(root, ignore_errors=True)


def _bind(notify: socket.socket, path: Path) -> None:
    try:
        notify.bind(str(path))
    except OSError as error:
        raise StageError(f"no socket can be made at {path}: {error}; TMPDIR should be a short path") from error


async def _listen(notify: socket.socket, daemon: Daemon) -> None:
    loop = asyncio.get_running_loop()
    while True:
        daemon.notified((await loop.sock_recv(notify, 4096)).decode(errors="replace"))


def _machine_root(machine: str, root: Path) -> Path:
    if machine == "host":
        return Path("/")
    if Path(machine).is_dir():
        if not Path(machine, _ONLINE).is_file():
            raise StageError(f"{machine} is no recorded machine: it has no {_ONLINE}")
        return Path(machine).resolve()
    (root / "host").mkdir()
    if Path(machine).is_file():
        with tarfile.open(machine) as archive:
            archive.extractall(root / "host", filter="data")
    else:
        write_machine(parse_machine(machine), root / "host")
    return root / "host"


def _online(root: Path) -> CpuSet:
    return CpuSet.parse((root / _ONLINE).read_text())


def _memory(root: Path) -> NodeSet:
    """Return the nodes that a cpuset may have: those with memory, else (recordings lack or garble the list) all."""
    nodes = root / "sys/devices/system/node"
    with suppress(FileNotFoundError, ValueError):
        if found := NodeSet.parse((nodes / "has_memory").read_text()):
            return found
    return NodeSet(int(one.name[4:]) for one in nodes.glob("node[0-9]*")) or NodeSet((0,))


def _package_root() -> str:
    return str(Path(__file__).resolve().parent.parent.parent)
