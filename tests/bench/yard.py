"""What a run needs around a daemon: a machine, cgroups, an API server and the process itself, started from any tree.

Everything lies in memory but the state that has to survive a power cut: that is on a disk, as on a node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodecpu.cpuset import CpuSet
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.proto import nri_pb2
from tests.bench.measure import memory_directory
from tests.bench.messages import Box, Pod
from tests.bench.runtime import RuntimeEnd
from tests.support import ROOT

MACHINE: Final = "2 sockets, 4 nodes, 16 cores, 2 threads, l3 4"
"""256 CPUs on 2 sockets, and as many pools as such a machine ever has: 43."""

RESERVED: Final = "0-3"
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.0005
"""An answer is read before its sender has gone to sleep, which is when its time is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that the API server has, and the pod that uses it."""

    name: str
    uid: str
    pod: Pod


class ApiProcess:
    """The API server in a process of its own."""

    def __init__(self, *, pods: int, claims: Sequence[Sequence[str]], cpus: int) -> None:
        wanted = json.dumps({"pods": pods, "claims": claims, "cpus": cpus})
        command = [sys.executable, "-m", "tests.bench.api", wanted]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        told = self._told()
        self.url = str(told["url"])
        self.pod_bytes = float(told["pod bytes"])
        self.pods = [Pod(name=one["name"], uid=one["uid"]) for one in told["pods"]]
        self.claims = [
            Claim(
                name=one["name"],
                uid=one["uid"],
                pod=Pod(name=one["pod"]["name"], uid=one["pod"]["uid"], claim=one["uid"]),
            )
            for one in told["claims"]
        ]

    def calls(self) -> Mapping[str, int]:
        """Return how often each verb was called on each kind so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("calls\n")
        self._process.stdin.flush()
        return self._told()

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    # JSON of our own making: its form is what ``tests.bench.api`` writes.
    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


class Process:
    """A process that is measured."""

    def __init__(self, command: Sequence[str], *, tree: Path, log: Path, notify: Path | None = None) -> None:
        own = {"PYTHONPATH": str(tree), "NOTIFY_SOCKET": "" if notify is None else str(notify)}
        env = {**os.environ, **_unit_environment(tree), **own}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed is compiled
        with log.open("ab") as errors:
            self.started_at = time.perf_counter()
            self._process = subprocess.Popen(command, cwd=tree, stdin=subprocess.DEVNULL, stderr=errors, env=env)

    @property
    def rss_mib(self) -> float:
        """Its resident memory."""
        return self._status("VmRSS") / 1024

    @property
    def wakeups(self) -> tuple[int, int]:
        """How often its main thread went to sleep so far, and all its others."""
        pid = self._process.pid
        own = _status(Path(f"/proc/{pid}/task/{pid}/status"), "voluntary_ctxt_switches")
        tasks = Path(f"/proc/{pid}/task").glob("*/status")
        return own, sum(_status(task, "voluntary_ctxt_switches") for task in tasks) - own

    def used_s(self) -> float:
        """Return the processor time that it has taken, once what it does now is done.

        Source: kernel/time/posix-cpu-timers.c; the clock is that of clock_getcpuclockid(3), CPUCLOCK_SCHED.
        """
        time.sleep(_PAUSE_S)
        return time.clock_gettime((~self._process.pid << 3) | 2)

    def main_s(self) -> float:
        """Return the processor time of its main thread. Source: kernel document sched-stats, /proc/<pid>/schedstat."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it as systemd does, or at once if that does not help."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _status(self, name: str) -> int:
        return _status(Path(f"/proc/{self._process.pid}/status"), name)


class Notices:
    """The receiving end of sd_notify, read by a thread: whoever does not read it in time holds the sender up."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._ready = threading.Event()
        self._ready_at = 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def wait_ready(self) -> float:
        """Return when READY came since ``forget``."""
        if not self._ready.wait(PATIENCE_S):
            raise TimeoutError("the daemon does not get ready")
        return self._ready_at

    def forget(self) -> None:
        """Forget what was said so far."""
        self._ready.clear()

    def close(self) -> None:
        """Close the socket; the thread ends with the process."""
        self._socket.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                if self._socket.recv(4096).startswith(b"READY=1"):
                    self._ready_at = time.perf_counter()
                    self._ready.set()


class Yard:
    """One machine with its cgroups and directories; ``daemon`` starts one of a tree on it."""

    def __init__(self, directory: Path, disk: Path, machine: str = MACHINE) -> None:
        self.directory = directory
        self.disk = disk
        self.kubelet = directory / "kubelet"
        write_machine(parse_machine(machine), directory)
        self._cgroups = directory / "cgroup"
        self._cgroups.mkdir()
        (self._cgroups / "cgroup.controllers").write_text("cpuset cpu\n")
        self._notices = Notices(directory / "notify")
        self.runtime = RuntimeEnd(directory / "nri.sock")
        self.log = directory / "log"

    def configure(self, url: str = "", *, reserved: str = RESERVED) -> None:
        """Write the configuration, for a daemon with or without an API server."""
        names = {"root": "", "cgroup": "cgroup", "cdi": "cdi", "kubelet": "kubelet", "run": "run"}
        paths = "".join(f'{key} = "{self.directory / name}"\n' for key, name in names.items())
        text = (
            f'[node]\nname = "node"\n[paths]\n{paths}state = "{self.disk / "state"}"\n'
            f'[nri]\nsocket = "{self.directory}/nri.sock"\n[policy]\nreserved = "{reserved}"\n[kube]\n'
        )
        if url:
            (self.directory / "kubeconfig").write_text(json.dumps(_kubeconfig(url)))
            text += f'kubeconfig = "{self.directory}/kubeconfig"\n'
        else:
            text += "enabled = false\n"
        (self.directory / "nodecpu.toml").write_text(text)

    def daemon(self, tree: Path = ROOT) -> Process:
        """Start the daemon of a tree."""
        self._notices.forget()
        command = [sys.executable, "-m", "nodecpu", "daemon", "--config", str(self.directory / "nodecpu.toml")]
        return Process(command, tree=tree, log=self.log, notify=self.directory / "notify")

    def wait_ready(self) -> float:
        """Return when the last daemon said that it is ready."""
        return self._notices.wait_ready()

    def forget_books(self) -> None:
        """Remove all state: the next daemon starts on an empty node."""
        for place in (self.disk / "state", self.directory / "run", self.directory / "cdi"):
            shutil.rmtree(place, ignore_errors=True)

    def place(self, box: Box, cpus: str) -> None:
        """Make a container's cgroup, as the runtime does after the answer. The kernel's file is the written one."""
        where = self._cgroups / box.path.lstrip("/")
        where.mkdir(parents=True, exist_ok=True)
        for kind, value in (("cpus", cpus), ("mems", "")):
            (where / f"cpuset.{kind}").write_text(value)
            with contextlib.suppress(FileExistsError):
                (where / f"cpuset.{kind}.effective").hardlink_to(where / f"cpuset.{kind}")
        (where / "cgroup.events").write_text("populated 1\n")

    def cpus_of(self, box: Box) -> CpuSet:
        """Return what a container's cgroup has."""
        return CpuSet.parse((self._cgroups / box.path.lstrip("/") / "cpuset.cpus").read_text())

    def apply(self, updates: Iterable[nri_pb2.ContainerUpdate], boxes: Mapping[str, Box]) -> None:
        """Write what an answer says of other containers."""
        for update in updates:
            where = self._cgroups / boxes[update.container_id].path.lstrip("/")
            for kind, value in (("cpus", update.linux.resources.cpu.cpus), ("mems", update.linux.resources.cpu.mems)):
                if value:
                    (where / f"cpuset.{kind}").write_text(value)

    def remove(self, box: Box) -> None:
        """Remove a container's cgroup."""
        shutil.rmtree(self._cgroups / box.path.lstrip("/"), ignore_errors=True)

    def close(self) -> None:
        """Close the sockets."""
        self.runtime.close()
        self._notices.close()


@contextlib.contextmanager
def yard(machine: str = MACHINE) -> Iterator[Yard]:
    """Yield a yard for as long as the block lasts."""
    with memory_directory() as directory, tempfile.TemporaryDirectory(prefix="nodecpu-", dir="/var/tmp") as disk:
        made = Yard(directory, Path(disk), machine)
        try:
            yield made
        finally:
            made.close()


def _unit_environment(tree: Path) -> Mapping[str, str]:
    """Return the variables that the unit of a tree sets: what is measured runs as it does on a node."""
    lines = (tree / "systemd" / "nodecpu.service").read_text().splitlines()
    settings = (line.removeprefix("Environment=").partition("=") for line in lines if line.startswith("Environment="))
    return {name: value for name, _, value in settings}


def _status(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise KeyError(name)


def _kubeconfig(url: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "clusters": [{"name": "bench", "cluster": {"server": url}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "users": [{"name": "bench", "user": {"token": "secret"}}],
    }
