"""A booted Debian machine (systemd-nspawn): its tree, its life, commands in it.

The tree is made once by mmdebstrap, from the archive that this machine's apt already trusts, and kept as an archive in
the home directory. A machine has no network: what it needs beyond the package is in the tree.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.containerd.binaries import KEYRING, debian_archive
from tests.support import need_program, need_root

SUITE = "trixie"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "python3", "python3-apt", "needrestart"),
    *("openssh-server", "busybox-static"),  # for Ansible: a machine without a network is reached through its namespace
    *("containerd", "runc"),
)
MAKE_TIMEOUT_S = 900.0
BOOT_TIMEOUT_S = 90.0
COMMAND_TIMEOUT_S = 300.0
_HALT = signal.SIGRTMIN + 4


class Machine:
    """A running machine; commands have the machine's namespaces and nothing of the environment here."""

    def __init__(self, root: Path, leader: int) -> None:
        self.root = root
        self.leader = leader

    def command(self, *arguments: str, **environment: str) -> list[str]:
        """Return a command line that runs in the machine."""
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **environment}
        enter = ["nsenter", "-t", str(self.leader), "-m", "-p", "-u", "-i", "-n", "-C", "--wdns=/"]
        return [*enter, "env", "-i", *(f"{key}={value}" for key, value in variables.items()), *arguments]

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Return how a command ended, with all it said (both streams) as ``stdout``."""
        command = self.command(*arguments, **environment)
        return subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            start_new_session=True,
        )

    def ok(self, *arguments: str, **environment: str) -> str:
        """Return what a command said; it has to end with 0."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{self.journal()}"
        return done.stdout

    def unit(self, *names: str) -> dict[str, str]:
        """Return properties of nodecpu.service."""
        said = self.ok("systemctl", "show", "nodecpu", *(f"--property={name}" for name in names))
        return dict(line.split("=", 1) for line in said.splitlines())

    def signal(self, name: str) -> None:
        """Send the daemon a signal."""
        pid = self.unit("MainPID")["MainPID"]
        assert pid != "0", f"the daemon is not running\n{self.journal()}"
        self.ok("kill", f"-{name}", pid)

    def journal(self) -> str:
        """Return the end of the daemon's journal."""
        return self.run("journalctl", "-u", "nodecpu", "--no-pager", "-n", "30", "-o", "cat").stdout

    def put(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file by its path in the machine: by a process there, since /run is the machine's own."""
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        command = self.command("sh", "-c", script, "sh", path, f"{mode:o}")
        subprocess.run(command, input=text, check=True, text=True, timeout=COMMAND_TIMEOUT_S)

    def until(self, what: str, **wanted: str | re.Pattern[str]) -> None:
        """Wait until properties of the unit are these, or have these in them."""
        end = time.monotonic() + BOOT_TIMEOUT_S
        while True:
            seen = self.unit(*wanted)
            if all(_is_like(seen[name], value) for name, value in wanted.items()):
                return
            assert time.monotonic() < end, f"no {what}: {seen}\n{self.journal()}"
            time.sleep(0.1)

    def until_said(self, words: str) -> None:
        """Wait until the end of the journal, which lags behind who writes to it, has these words in it."""
        end = time.monotonic() + BOOT_TIMEOUT_S
        while words not in (said := self.journal()):
            assert time.monotonic() < end, f"no word of {words}\n{said}"
            time.sleep(0.1)


@contextmanager
def booted(directory: Path) -> Iterator[Machine]:
    """Boot a fresh machine in a directory, and end it; skip the test where that cannot be done."""
    need_root()
    for program in ("systemd-nspawn", "nsenter"):
        need_program(program)
    archive = need_tree()
    root = directory / "root"
    with tarfile.open(archive) as tree:
        tree.extractall(root, numeric_owner=True, filter="fully_trusted")
    # The machine is thrown away: nothing of it has to be on the disk.
    (root / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")
    name = f"nodecpu-{os.getpid()}"
    command = [
        *("systemd-nspawn", "-q", "-D", str(root), "--boot", "-M", name, "--register=no", "--keep-unit"),
        *("--private-network", "--capability=all", "--system-call-filter=@keyring bpf", "--console=pipe"),
    ]
    with (directory / "console.log").open("wb") as console:
        container = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
    try:
        machine = Machine(root, _leader(container))
        _await_boot(machine)
        yield machine
    finally:
        _halt(container)
        shutil.rmtree(root, ignore_errors=True)


def need_tree() -> Path:
    """Return the archive of the machine's tree, made once; skip the test where Debian's archive cannot serve it."""
    need_bootstrap()
    with locked_cache("machine.lock") as home:
        recipe = hashlib.sha256(json.dumps(PACKAGES).encode()).hexdigest()[:12]
        archive = home / f"machine-{SUITE}-{recipe}.tar"
        if not archive.exists():
            for old in home.glob(f"machine-{SUITE}-*.tar"):
                old.unlink()
            made = archive.with_suffix(".new.tar")
            bootstrap(made, PACKAGES)
            made.rename(archive)
    return archive


def need_bootstrap() -> None:
    """Skip the test where no tree can be made."""
    need_root()
    for program in ("mmdebstrap", "setpriv", "unshare"):
        need_program(program)
    if not KEYRING.exists():
        pytest.skip("needs Debian's archive keyring to check the machine's packages")


@contextmanager
def locked_cache(lock_name: str) -> Iterator[Path]:
    """Yield the directory that outlives the tests, while nobody else makes what the lock stands for."""
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nodecpu-tests"
    home.mkdir(parents=True, exist_ok=True)
    with (home / lock_name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home


def bootstrap(target: Path, packages: Iterable[str], *options: str) -> None:
    """Make a tree of Debian as a directory or, by its name, an archive; skip the test where that cannot be done."""
    source = f"deb [signed-by={KEYRING}] {debian_archive()} {SUITE} main"
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}", f"--keyring={KEYRING}"]
    # What it mounts into the tree is nobody else's, and all of it ends with the tests, whatever ends them: a tree with
    # this machine's own directories in it must not be left to whoever tidies up.
    apart = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = subprocess.run(
        [*apart, *command, *options, SUITE, str(target), source],
        check=False,
        capture_output=True,
        text=True,
        timeout=MAKE_TIMEOUT_S,
    )
    if done.returncode:
        pytest.skip(f"the machine's tree cannot be made: {done.stderr.strip()[-500:]}")


class Peers:
    """The other end of ``peers.py``, which runs in the machine."""

    def __init__(self, machine: Machine) -> None:
        machine.put("/run/peers.py", (Path(__file__).parent / "peers.py").read_text())
        host = machine.ok("cat", "/proc/sys/kernel/hostname").strip()
        self._process = subprocess.Popen(
            machine.command("python3", "/run/peers.py", host, PYTHONPATH="/usr/lib/nodecpu"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answer()

    def ask(self, verb: str, **arguments: str) -> dict[str, object]:
        """Return the answer to a request; an error fails the test."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the peers have ended"
        answer: dict[str, object] = json.loads(line)
        assert "error" not in answer, answer
        return answer


def _is_like(value: str, wanted: str | re.Pattern[str]) -> bool:
    return value == wanted if isinstance(wanted, str) else wanted.search(value) is not None


def _leader(container: subprocess.Popen[bytes]) -> int:
    """Return the process ID of the machine's init, once there is one."""
    end = time.monotonic() + BOOT_TIMEOUT_S
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
    while time.monotonic() < end and container.poll() is None:
        for child in children.read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return int(child)
        time.sleep(0.05)
    raise AssertionError(f"the machine did not begin to boot (exit code {container.poll()})")


def _await_boot(machine: Machine) -> None:
    end = time.monotonic() + BOOT_TIMEOUT_S
    while (state := machine.run("systemctl", "is-system-running").stdout.strip()) != "running":
        assert state != "degraded", machine.run("systemctl", "--failed", "--no-pager").stdout
        assert time.monotonic() < end, f"the machine did not boot: {state}"
        time.sleep(0.1)


def _halt(container: subprocess.Popen[bytes]) -> None:
    """End the machine: as its own shutdown, or by force."""
    children = Path(f"/proc/{container.pid}/task/{container.pid}/children")
    with suppress(FileNotFoundError, ProcessLookupError, ValueError):
        os.kill(int(children.read_text().split()[0]), _HALT)
    try:
        container.wait(30)
    except subprocess.TimeoutExpired:
        container.kill()
        container.wait()
