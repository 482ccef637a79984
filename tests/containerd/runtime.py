"""A private containerd on this host: its own directories, sockets, mounts and process ids; nothing outlives the test.

It runs in a PID and a mount namespace of its own, whose first process dies with the test process and takes every shim
and container with it. What it shares with the host is what is tested: the kernel's cgroups and topology. The pids that
the runtime tells are therefore pids of that namespace.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from tests.containerd.binaries import Binaries, need_containerd
from tests.containerd.cgroups import Cgroups, find_cgroups
from tests.containerd.cri import Cri
from tests.containerd.image import IMAGE, write_image
from tests.support import need_program, need_root

KUBEPODS = "/kubepods"
STOP_TIMEOUT_S = 20.0
_HOLD = "mount -t tmpfs -o mode=755 none /run && echo ready && while :; do sleep 3600; done"
"""The namespaces' first process: hides the host's /run, where shims and runc keep files, and reaps what is orphaned."""


class Containerd:
    """Starts, stops and restarts containerd; containers keep running in between, as they do on a node."""

    def __init__(self, binaries: Binaries, cgroups: Cgroups, directory: Path) -> None:
        self.cgroups = cgroups
        self.directory = directory
        self.socket = directory / "containerd.sock"
        self.nri_socket = directory / "nri.sock"
        self.cdi_dir = directory / "cdi"
        self.log = directory / "containerd.log"
        self._binaries = binaries
        self._config = directory / "config.toml"
        self._holder: subprocess.Popen[str] | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        self.cri = Cri(self.socket, logs=directory / "logs")

    def open(self) -> None:
        """Make the namespaces, start containerd and import the image."""
        self.cdi_dir.mkdir()
        self._config.write_text(tomli_w.dumps(self._configuration()))
        self._holder = _hold_namespaces(self._binaries.busybox)
        self.start()
        image = self.directory / "image.tar"
        write_image(self._binaries.busybox, image)
        self.ctr("images", "import", "--local", str(image))

    def close(self) -> None:
        """Stop everything that was started; safe to call in any state."""
        self.cri.close()
        if self._holder is not None:
            _kill_and_reap(self._holder)
        if self._containerd is not None:
            _kill_and_reap(self._containerd)
        self.cgroups.remove(KUBEPODS, timeout_s=STOP_TIMEOUT_S)

    def start(self) -> None:
        """Start containerd and wait until it serves the CRI."""
        assert self._holder is not None, "open() comes first"
        environment = {**os.environ, "PATH": f"{self._binaries.directory}:{os.environ['PATH']}"}
        command = [*_enter(self._holder.pid), str(self._binaries.containerd), "--config", str(self._config)]
        with self.log.open("ab") as log:
            self._containerd = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.cri.wait()

    def stop(self) -> None:
        """End containerd as its unit would, by SIGTERM; the containers stay."""
        assert self._containerd is not None, "start() comes first"
        os.kill(_only_child(self._containerd.pid), signal.SIGTERM)
        self._containerd.wait(STOP_TIMEOUT_S)
        self._containerd = None

    def kill(self) -> None:
        """End containerd with no chance to clean up; the containers stay."""
        assert self._containerd is not None, "start() comes first"
        os.kill(_only_child(self._containerd.pid), signal.SIGKILL)
        self._containerd.wait(STOP_TIMEOUT_S)
        self._containerd = None

    def plugins(self) -> dict[str, str]:
        """Return the status of each of containerd's plugins by ``type.id`` ("ok", "skip", "error")."""
        rows = [line.split() for line in self.ctr("plugins", "ls").splitlines()[1:]]
        return {f"{row[0]}.{row[1]}": row[-1] for row in rows}

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client in its namespaces and return what it prints."""
        assert self._holder is not None, "open() comes first"
        client = [str(self._binaries.ctr), "--address", str(self.socket), "--namespace", "k8s.io"]
        done = subprocess.run(
            [*_enter(self._holder.pid), *client, *arguments], capture_output=True, text=True, timeout=STOP_TIMEOUT_S
        )
        assert done.returncode == 0, f"ctr {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def _configuration(self) -> dict[str, object]:
        """Return the private configuration. Source: containerd 2.1, ``containerd config default``."""
        base = self.directory
        # Without CAP_SYS_RESOURCE runc cannot lower the OOM score and dies while starting the container.
        runtime = {
            "restrict_oom_score_adj": True,
            "disable_apparmor": True,
            "cdi_spec_dirs": [str(self.cdi_dir)],
            "containerd": {
                "runtimes": {
                    "runc": {
                        "runtime_type": "io.containerd.runc.v2",
                        "options": {"BinaryName": str(self._binaries.runc), "SystemdCgroup": False},
                    }
                }
            },
        }
        nri = {
            "disable": False,
            "socket_path": str(self.nri_socket),
            "plugin_path": str(base / "nri-plugins"),
            "plugin_config_path": str(base / "nri-conf"),
        }
        return {
            "version": 3,
            "root": str(base / "root"),
            "state": str(base / "state"),
            "grpc": {"address": str(self.socket)},
            "ttrpc": {"address": str(base / "ttrpc.sock")},
            "plugins": {
                "io.containerd.internal.v1.opt": {"path": str(base / "opt")},
                "io.containerd.nri.v1.nri": nri,
                "io.containerd.cri.v1.images": {"pinned_images": {"sandbox": IMAGE}},
                "io.containerd.cri.v1.runtime": runtime,
            },
        }


@contextlib.contextmanager
def running_containerd() -> Iterator[Containerd]:
    """Run a private containerd with NRI; skip the test where that cannot be done without touching what is not ours."""
    need_root()
    for program in ("unshare", "nsenter", "setpriv"):
        need_program(program)
    cgroups = find_cgroups()
    if cgroups is None:
        pytest.skip("no cgroup hierarchy with cpusets")
    binaries = need_containerd()
    if cgroups.exists(KUBEPODS):
        try:
            cgroups.remove(KUBEPODS)  # left by a test run that was killed; a kubelet's would be in use
        except OSError:
            pytest.skip(f"{KUBEPODS} is in use on this machine")
    # /tmp itself, not pytest's directory: a socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="nodecpu-containerd-", dir="/tmp"))
    containerd = Containerd(binaries, cgroups, directory)
    try:
        containerd.open()
        yield containerd
    finally:
        try:
            containerd.close()
        finally:
            shutil.rmtree(directory)


def _hold_namespaces(busybox: Path) -> subprocess.Popen[str]:
    """Start the first process of new PID and mount namespaces; it dies with this process, whatever happens."""
    shell = [str(busybox), "sh", "-c", _HOLD]
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    holder = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *unshare, *shell], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n", "namespaces could not be made"
    return holder


def _enter(pid: int) -> list[str]:
    return ["nsenter", f"--mount=/proc/{pid}/ns/mnt", f"--pid=/proc/{pid}/ns/pid_for_children"]


def _only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def _kill_and_reap(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(STOP_TIMEOUT_S)
    if process.stdout is not None:
        process.stdout.close()
