"""The daemon as a process: what it tells systemd, what signals do, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from nodecpu.admin.client import fetch_state
from nodecpu.lab.machine import parse_machine, write_machine
from tests.support import small_file_system

PATIENCE_S = 30.0


class Systemd:
    """The receiving end of sd_notify."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(PATIENCE_S)

    def wait_for(self, start: str) -> str:
        """Return the next message that begins with ``start``; others before it are dropped."""
        while True:
            message = self._socket.recv(4096).decode()
            if message.startswith(start):
                return message

    def fill(self) -> None:
        """Let no further message in, as a service manager that does not read does."""
        with contextlib.suppress(BlockingIOError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0)
            while True:
                sender.sendto(b"STATUS=", str(self.path))

    def close(self) -> None:
        self._socket.close()


class Place:
    """A machine and a configuration in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        write_machine(parse_machine("1 socket, 2 nodes, 2 cores, 2 threads"), directory)
        (directory / "cgroup").mkdir()
        self.config = directory / "nodecpu.toml"
        self.configure()

    def configure(self, extra: str = "") -> None:
        names = {"root": "", "cgroup": "cgroup", "cdi": "cdi", "kubelet": "kubelet", "state": "state", "run": "run"}
        paths = "\n".join(f'{key} = "{self.directory / name}"' for key, name in names.items())
        text = f'[paths]\n{paths}\n[nri]\nsocket = "{self.directory}/nri.sock"\n[kube]\nenabled = false\n{extra}'
        self.config.write_text(text)

    @contextmanager
    def daemon(self, *program: str, umask: int = -1, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """Run the daemon; ``program`` are arguments of Python that run something else in its place."""
        command = [sys.executable, *(program or ("-m", "nodecpu")), "daemon", "--config", str(self.config)]
        env = {**os.environ, **environment}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env, umask=umask)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    @property
    def sockets(self) -> list[str]:
        found = (path for path in self.directory.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode))
        return sorted(str(path.relative_to(self.directory)) for path in found)


@pytest.fixture
def place() -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="nodecpu-") as directory:  # short: sockets have short paths
        yield Place(Path(directory))


@pytest.fixture
def systemd(place: Place) -> Iterator[Systemd]:
    made = Systemd(place.directory)
    yield made
    made.close()


def test_ready_is_told_when_the_sockets_are_bound_and_without_runtime_or_kubelet(
    place: Place, systemd: Systemd
) -> None:
    """D5: READY does not wait for anybody else; the status line says what is away."""
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)):
        systemd.wait_for("READY=1")
        assert "runtime away, kubelet away, API server off; 0 claims" in systemd.wait_for("STATUS=")
        assert place.sockets == [
            "kubelet/plugins/dra.cpu/dra.sock",
            "kubelet/plugins_registry/dra.cpu-reg.sock",
            "notify",
            "run/admin.sock",
        ]


def test_api_server_is_not_called_connected_before_it_has_answered(place: Place, systemd: Systemd) -> None:
    """With nobody there, what is told goes from unknown to away, and is never more than was seen."""
    text = place.config.read_text().replace("enabled = false", f'kubeconfig = "{place.directory}/none"')
    place.config.write_text(text)
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)):
        assert "API server not asked yet" in systemd.wait_for("STATUS=")
        systemd.wait_for("READY=1")
        shown = partial(fetch_state, place.directory / "run" / "admin.sock")
        end = time.monotonic() + PATIENCE_S
        while (api := shown().links.api).state == "not asked yet":
            assert time.monotonic() < end
            time.sleep(0.1)
        assert api.state == "away"


def test_nothing_is_for_others_even_if_started_without_a_umask(place: Place, systemd: Systemd) -> None:
    """U121: CDI specs apart, which containers' creation reads, all that it makes is for its own user alone."""
    made = [place.directory / name for name in ("state", "run", "kubelet")]
    modes: dict[Path, int] = {}
    with place.daemon(umask=0, NOTIFY_SOCKET=str(systemd.path)):
        systemd.wait_for("READY=1")
        for path in (one for top in made for one in (top, *top.rglob("*"))):
            with contextlib.suppress(FileNotFoundError):  # what is written under another name first
                modes[path] = stat.S_IMODE(path.lstat().st_mode)
    assert set(made) < modes.keys()
    assert {path: oct(mode) for path, mode in modes.items() if mode & 0o077} == {}


def test_sigterm_ends_with_0_and_removes_the_daemons_sockets(place: Place, systemd: Systemd) -> None:
    """R5."""
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as process:
        systemd.wait_for("READY=1")
        process.send_signal(signal.SIGTERM)
        systemd.wait_for("STOPPING=1")
        assert process.wait(PATIENCE_S) == 0
    assert place.sockets == ["notify"]


def test_a_service_manager_that_does_not_read_holds_nothing_up(place: Place, systemd: Systemd) -> None:
    """No waiting in a handler: the state of the link to the runtime is told from within one."""
    systemd.fill()
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as process:
        assert process.stderr is not None
        assert any("runtime link away" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


def test_sighup_reloads_what_can_change_and_names_what_cannot(place: Place, systemd: Systemd) -> None:
    """R3 (reload), style 2.9: parsed in full, then swapped."""
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as process:
        systemd.wait_for("READY=1")
        place.configure('[claims]\nsharing = "pod"\n[policy]\nreserved = "0"\n[dra]\ndriver = "x.cpu"\n')
        process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in systemd.wait_for("RELOADING=1")
        systemd.wait_for("READY=1")
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert 'state="claims.sharing: \\"allow\\" -> \\"pod\\", applied"' in said
    assert 'state="policy.reserved: \\"\\" -> \\"0\\", applied"' in said
    assert 'state="dra.driver: \\"dra.cpu\\" -> \\"x.cpu\\", needs a restart"' in said


def test_a_bad_file_at_reload_changes_nothing(place: Place, systemd: Systemd) -> None:
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as process:
        systemd.wait_for("READY=1")
        place.configure('[claims]\nsharing = "everybody"\n')
        process.send_signal(signal.SIGHUP)
        systemd.wait_for("RELOADING=1")
        systemd.wait_for("READY=1")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert "configuration not reloaded, the old one stays" in process.communicate(timeout=PATIENCE_S)[1]
        assert process.returncode == 0


def test_the_watchdog_is_fed(place: Place, systemd: Systemd) -> None:
    with place.daemon(NOTIFY_SOCKET=str(systemd.path), WATCHDOG_USEC="200000"):
        for _ in range(3):
            systemd.wait_for("WATCHDOG=1")


def test_a_wrong_configuration_ends_with_78_and_all_mistakes(place: Place) -> None:
    place.configure('[policy]\nreserve = "0"\nmode = "round"\n[claims]\nwait_s = "long"\n')
    with place.daemon() as process:
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 78
    for part in ("policy.reserve", "policy.mode", "claims.wait_s"):
        assert part in said
    assert "Traceback" not in said


def test_a_second_daemon_is_refused_without_disturbing_the_first(place: Place, systemd: Systemd) -> None:
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as first:
        systemd.wait_for("READY=1")
        before = place.sockets
        with place.daemon() as second:
            said = second.communicate(timeout=PATIENCE_S)[1]
        assert second.returncode == 1
        assert "another nodecpu daemon runs on this node" in said
        assert place.sockets == before
        assert first.poll() is None


def test_a_second_daemon_with_other_directories_is_refused_at_the_kubelets_socket(
    place: Place, systemd: Systemd
) -> None:
    """R1, R7: two books of the same CPUs; what a dead process left is nobody's and holds nothing up."""
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as first:
        systemd.wait_for("READY=1")
        before = place.sockets
        mine = place.config.read_text()
        place.config.write_text(mine.replace("/state", "/state2").replace("/run", "/run2"))
        with place.daemon() as second:
            said = second.communicate(timeout=PATIENCE_S)[1]
        assert second.returncode == 1
        assert "dra.sock is served by another process: a second driver of this name" in said
        assert "stop the other one" in said
        assert place.sockets == before
        assert first.poll() is None
        first.kill()
        first.wait(PATIENCE_S)
    assert "kubelet/plugins/dra.cpu/dra.sock" in place.sockets
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)):
        systemd.wait_for("READY=1")


def test_a_socket_path_that_is_too_long_is_named_without_a_traceback(place: Place) -> None:
    """U83."""
    text = place.config.read_text().replace('kubelet"', f'kubelet/{"x" * 100}"')
    place.config.write_text(text)
    with place.daemon() as process:
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 1
    assert "Linux allows 107" in said
    assert "Traceback" not in said


def test_explain_asks_the_running_daemon(place: Place, systemd: Systemd) -> None:
    """U133: a claim from a file is tried by the daemon itself, which has no runtime here and says so."""
    result = "{driver: dra.cpu, request: cpus, pool: node, device: cpudevnuma000, consumedCapacity: {dra.cpu/cpu: 2}}"
    text = (
        "kind: ResourceClaim\nmetadata: {name: web, namespace: shop}\n"
        f"status: {{allocation: {{devices: {{results: [{result}]}}}}}}\n---\n"
        "kind: Pod\nmetadata: {name: log}\nspec: {containers: [{name: app}]}\n"
    )
    command = [sys.executable, "-m", "nodecpu", "explain", "--file", "-", "--config", str(place.config)]
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)):
        systemd.wait_for("READY=1")
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    claim, pod = done.stdout.split("\n\n")
    assert "claim shop/web: would be refused" in claim
    assert "the container runtime is not connected (not-ready)" in claim
    assert "container default/log/app: fits" in pod


def test_static_cpu_manager_makes_the_daemon_stand_aside_and_check_tells_the_remedy(
    place: Place, systemd: Systemd
) -> None:
    """E2, U94: two managers never fight over the CPUs; the daemon says so instead of ending."""
    (place.directory / "kubelet").mkdir()
    (place.directory / "kubelet" / "cpu_manager_state").write_text('{"policyName": "static"}')
    command = [sys.executable, "-m", "nodecpu", "check", "--config", str(place.config)]
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as process:
        assert "STATUS=standing aside" in systemd.wait_for("STATUS=standing")
        systemd.wait_for("READY=1")
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert (done.returncode, done.stderr) == (1, "")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    why = "the kubelet's CPU manager is static, by its state file"
    assert f"failed daemon stands aside, nothing is pinned: {why}" in lines
    assert any(line.startswith("-> set cpuManagerPolicy: none in") for line in lines)
    assert any(line.startswith("failed NRI socket") for line in lines)
    assert "standing aside: nothing is pinned" in said


def test_metrics_are_served_while_the_daemon_runs_and_their_socket_goes_with_it(place: Place, systemd: Systemd) -> None:
    path = place.directory / "metrics.sock"
    place.configure(f'[metrics]\nlisten = "unix:{path}"\ncompatible_names = true\n')
    with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as process:
        systemd.wait_for("READY=1")
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE_S)
            peer.connect(str(path))
            peer.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            answer = b"".join(iter(lambda: peer.recv(65536), b"")).decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert 'nodecpu_link_up{link="runtime"} 0.0' in answer
    assert "dra_cpu_available_cpus 8.0" in answer
    assert place.sockets == ["notify"]


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_bad_disk_does_not_keep_it_from_starting_and_is_told_with_its_cause(
    place: Place, systemd: Systemd, fault: str
) -> None:
    """R1, D5: killed while the disk is bad, it is there again; status says what is wrong and what to do."""
    state = place.directory / "state"
    state.mkdir()
    place.configure("[enforce]\nperiod_s = 1\n")
    with small_file_system(state) as disk:
        with place.daemon(NOTIFY_SOCKET=str(systemd.path)) as process:
            systemd.wait_for("READY=1")
            process.kill()
            process.wait(PATIENCE_S)
        disk.read_only() if fault == "read-only" else disk.fill()
        (place.directory / "proc" / "sys" / "kernel" / "random" / "boot_id").write_text(f"{'0' * 36}\n")
        with place.daemon(NOTIFY_SOCKET=str(systemd.path)):
            assert "STATUS=state cannot be written" in systemd.wait_for("STATUS=state")
            systemd.wait_for("READY=1")
            command = [sys.executable, "-m", "nodecpu", "status", "--config", str(place.config)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
            assert f"the file system of {state} is {fault}" in done.stdout
            disk.read_only(on=False) if fault == "read-only" else disk.empty()
            assert "runtime away" in systemd.wait_for("STATUS=runtime")


FAULTY_DISK_THREAD = """
import sys
from nodecpu.cli import main
from nodecpu.dra.files import ClaimFiles
from nodecpu.errors import HostError

errors = [HostError("no room", hint="make some"), ValueError("nobody expects this")]

def restore(self, grants, *, used=None):
    raise errors.pop(0)

ClaimFiles.restore = restore
sys.exit(main())
"""
"""A fault of ours on the disk thread, in work that nobody waits for: what the first error left is tried again."""


def test_a_fault_on_the_disk_thread_ends_the_daemon_with_a_traceback(place: Place) -> None:
    """It does not serve on without one until the watchdog notices; systemd starts another."""
    place.configure("[enforce]\nperiod_s = 1\n")
    with place.daemon("-c", FAULTY_DISK_THREAD) as process:
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert process.returncode == 1
    assert "the disk thread failed, the daemon ends" in said
    assert "ValueError: nobody expects this" in said
    assert "Traceback" in said
