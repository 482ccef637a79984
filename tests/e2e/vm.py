"""A virtual machine of 16 CPUs in 2 sockets and 4 NUMA nodes: its life, commands in it, snapshots of it.

QEMU emulates it, since a test machine is often a guest itself, so it needs nothing of the host but patience: every wait
has a limit, and the limits are wide. It writes to an overlay of its own; the disk that it was made from stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.e2e.machine import locked_cache
from tests.e2e.vmdisk import IMAGE_FILE, Disk, need_disk
from tests.support import need_program, need_root

QEMU = "qemu-system-x86_64"
CPUS_OF_NODE = ("0-3", "4-7", "8-11", "12-15")
NEAR, FAR = 12, 21
"""Distances of two nodes in a socket, and of two in different ones."""

BOOT_TIMEOUT_S = 1800.0
COMMAND_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 1800.0
"""A kubelet's: it tries again."""

QMP_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 30.0
KUBELET_PORT = 7000
"""Where the machine's kubelet takes requests (``vmnode.py``)."""

BOOTED = "booted"
"""What a machine looks like after its first boot."""

_KERNEL_LINE = (
    "root=/dev/vda rw console=ttyS0 loglevel=4 net.ifnames=0 audit=0 mitigations=off nokaslr no5lvl apparmor=0 "
    "lsm=capability cryptomgr.notests random.trust_cpu=on rcupdate.rcu_expedited=1 tsc=reliable nowatchdog "
    "systemd.show_status=0"
)
"""Most of it leaves out what takes an emulated CPU long."""


class VirtualMachine:
    """A machine in a directory of its own; ``boot`` or ``resume`` begins it, ``close`` ends it in any state."""

    def __init__(self, place: Path, disk: Disk) -> None:
        self.place = place
        self.disk = disk
        self.overlay = place / "overlay.qcow2"
        self._qmp_socket = place / "qmp"
        self._ssh_port, self._kubelet_port = _free_ports(2)
        self._qemu: subprocess.Popen[bytes] | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Begin on a fresh overlay and wait until everything runs that is meant to."""
        backing = ["-b", str(self.disk.image), "-F", "raw"]
        _ran(need_program("qemu-img"), "create", "-q", "-f", "qcow2", *backing, str(self.overlay))
        self._begin()
        self.await_boot()

    def resume(self, overlay: Path, snapshot: str) -> None:
        """Begin on a copy of an overlay where a snapshot in it left off."""
        shutil.copyfile(overlay, self.overlay)
        self._begin("-loadvm", snapshot)
        self._await("date", "-s", f"@{time.time():.0f}")  # it was not there meanwhile

    def save(self, snapshot: str) -> None:
        """Keep memory and disk as they are now, in the overlay."""
        self.ok("sync")
        self._leave()
        self._monitor(f"savevm {snapshot}")

    def restore(self, snapshot: str) -> None:
        """Go back to a snapshot: what happened since has not happened, and it is as late as it was then.

        By another QEMU: one that has shown its guest a time never shows an earlier one, so after ``loadvm`` everything
        there, watchdogs included, would be as late as if it had waited all the while.
        """
        self.close()
        self._begin("-loadvm", snapshot)
        self._await("true")

    def reboot(self) -> None:
        """Have the machine go down in order and boot, and wait until everything runs again."""
        before = self.ok("cat", "/proc/sys/kernel/random/boot_id")
        self.run("systemctl", "reboot")
        self._leave()
        self.await_boot(before)

    def shut_down(self) -> int:
        """Have the machine go down in order; return QEMU's exit code. ``restore`` begins it again."""
        assert self._qemu is not None
        self.run("systemctl", "poweroff")
        self._leave()
        try:
            code = self._qemu.wait(BOOT_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"the machine does not go down\n{self.console()}") from error
        self._qemu = None
        return code

    def close(self) -> None:
        """End the machine as if its power were cut; what is in the overlay is whole."""
        self._leave()
        if self._qemu is None:
            return
        self._qemu.terminate()
        try:
            self._qemu.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._qemu.kill()
            self._qemu.wait()
        self._qemu = None

    def await_boot(self, before: str = "") -> None:
        """Wait until the machine, in another boot than ``before``, has started everything."""
        end = time.monotonic() + BOOT_TIMEOUT_S
        while True:
            now, state = self._boot_state(min(60.0, end - time.monotonic()))
            if now and now != before.strip() and state == "running":
                return
            assert state != "degraded", self.run("systemctl", "--failed", "--no-pager").stdout
            assert self._qemu is not None
            assert self._qemu.poll() is None, f"the machine has ended\n{self.console()}"
            assert time.monotonic() < end, f"the machine did not boot: {state or 'no answer'}\n{self.console()}"
            time.sleep(0.5)

    def console(self) -> str:
        """Return the end of what kernel and QEMU have said."""
        with suppress(FileNotFoundError):
            return (self.place / "console.log").read_text(errors="replace")[-3000:]
        return ""

    # --- commands ----------------------------------------------------------------------------------------------------

    @property
    def ssh_options(self) -> list[str]:
        """Return how a program that takes ssh's options reaches the machine, its port apart."""
        return [
            *(
                "-i",
                str(self.disk.key),
                "-o",
                "BatchMode=yes",
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "LogLevel=ERROR",
            ),
            *("-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=60", "-o", "ControlMaster=auto"),
            *("-o", f"ControlPath={self.place}/ssh", "-o", "ControlPersist=yes"),
            *("-o", "KexAlgorithms=curve25519-sha256"),  # what is safe from tomorrow's computers takes this one seconds
        ]

    @property
    def ansible_host(self) -> dict[str, object]:
        """Return the machine's variables in an inventory."""
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self._ssh_port,
            "ansible_user": "root",
            "ansible_ssh_common_args": shlex.join(["-F", "none", *self.ssh_options]),
            "ansible_ssh_pipelining": True,
            "ansible_python_interpreter": "/usr/bin/python3",
        }

    def run(self, *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S, text: str = "") -> _Done:
        """Return how a command ended, with all it said (both streams) as ``stdout``; 255 if it was not reached."""
        command = ["ssh", "-F", "none", *self.ssh_options, "-p", str(self._ssh_port), "root@127.0.0.1"]
        return subprocess.run(
            [*command, shlex.join(arguments)],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            input=text,
            text=True,
            timeout=timeout_s,
        )

    def ok(self, *arguments: str, text: str = "") -> str:
        """Return what a command said; it has to end with 0."""
        try:
            done = self.run(*arguments, text=text)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{error}\n{self.console()}") from error
        assert done.returncode == 0, f"{arguments}: {done.returncode}\n{done.stdout}\n{self.journal()}"
        return done.stdout

    def put(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file."""
        self.ok(
            "sh",
            "-c",
            'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"',
            "sh",
            path,
            f"{mode:o}",
            text=text,
        )

    def unit(self, name: str, *properties: str) -> dict[str, str]:
        """Return properties of a unit."""
        said = self.ok("systemctl", "show", name, *(f"--property={one}" for one in properties))
        return dict(line.split("=", 1) for line in said.splitlines())

    def journal(self) -> str:
        """Return the end of the journal of the units that the tests are about."""
        units = ("-u", "nodecpu", "-u", "kubelet", "-u", "containerd")
        return self.run("journalctl", "--no-pager", "-n", "60", "-o", "short-monotonic", *units).stdout

    def ask(self, verb: str, **arguments: object) -> dict[str, object]:
        """Return the kubelet's answer to a request; it has ``error`` in it where that could not be done."""
        with socket.create_connection(("127.0.0.1", self._kubelet_port), timeout=ANSWER_TIMEOUT_S) as connection:
            connection.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
        assert line, f"no answer to {verb}\n{self.journal()}"
        answer: dict[str, object] = json.loads(line)
        return answer

    # --- QEMU --------------------------------------------------------------------------------------------------------

    def _begin(self, *more: str) -> None:
        forwards = ((self._ssh_port, 22), (self._kubelet_port, KUBELET_PORT))
        network = ",".join(f"hostfwd=tcp:127.0.0.1:{ours}-:{theirs}" for ours, theirs in forwards)
        command = [
            *("setpriv", "--pdeathsig", "KILL", QEMU),  # it ends with the tests, whatever ends them
            *_hardware(),
            *("-kernel", str(self.disk.kernel), "-initrd", str(self.disk.initrd), "-append", _KERNEL_LINE),
            *("-drive", f"file={self.overlay},if=none,id=disk,format=qcow2,cache=unsafe"),
            *("-device", "virtio-blk-pci,drive=disk", "-netdev", f"user,id=net,restrict=on,{network}"),
            *("-device", "virtio-net-pci,netdev=net,romfile=", "-display", "none"),
            *("-serial", f"file:{self.place}/console.log", "-qmp", f"unix:{self._qmp_socket},server=on,wait=off"),
            *more,
        ]
        with (self.place / "qemu.log").open("wb") as log:
            self._qemu = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _boot_state(self, timeout_s: float) -> tuple[str, str]:
        """Return the boot's identity and what systemd says of it; empty where the machine does not answer."""
        command = ("sh", "-c", "cat /proc/sys/kernel/random/boot_id; systemctl is-system-running")
        with suppress(subprocess.TimeoutExpired):
            lines = self.run(*command, timeout_s=max(timeout_s, 1.0)).stdout.splitlines()
            if len(lines) == 2:
                return lines[0].strip(), lines[1].strip()
        self._leave()
        return "", ""

    def _await(self, *command: str) -> None:
        """Have a machine that has just begun do something: wait until it answers."""
        end = time.monotonic() + COMMAND_TIMEOUT_S
        while (done := self.run(*command)).returncode:
            assert self._qemu is not None
            assert self._qemu.poll() is None, (self.place / "qemu.log").read_text()
            assert time.monotonic() < end, f"{done.stdout}\n{self.console()}"
            self._leave()
            time.sleep(0.2)

    def _leave(self) -> None:
        """End the shared connection, which knows nothing of another past."""
        _quietly("ssh", "-F", "none", *self.ssh_options, "-O", "exit", "root@127.0.0.1")

    def _monitor(self, line: str) -> None:
        """Have QEMU's monitor do something; it has to say nothing, as it does when all is well."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(QMP_TIMEOUT_S)
            connection.connect(str(self._qmp_socket))
            with connection.makefile("rw", encoding="utf-8") as stream:
                stream.readline()
                _asked(stream, {"execute": "qmp_capabilities"})
                answer = _asked(stream, {"execute": "human-monitor-command", "arguments": {"command-line": line}})
        assert answer == "", f"{line}: {answer}"


_Done = subprocess.CompletedProcess[str]


@contextmanager
def virtual_machine() -> Iterator[VirtualMachine]:
    """Yield a machine that has just booted; skip the test where there is none to be had.

    The first one really boots, the others begin with what it had in memory then.
    """
    need_root()
    for program in (QEMU, "qemu-img", "setpriv", "ssh"):
        need_program(program)
    disk = need_disk()
    # Not pytest's directory: a socket's path has at most 107 bytes, and a machine's memory is no file for a tmpfs.
    place = Path(tempfile.mkdtemp(prefix="nodecpu-vm-", dir="/var/tmp"))
    machine = VirtualMachine(place, disk)
    try:
        machine.resume(_booted(disk), BOOTED)
        yield machine
    finally:
        machine.close()
        shutil.rmtree(place)


def _booted(disk: Disk) -> Path:
    """Return an overlay with a snapshot of the machine after its boot, made once for this QEMU."""
    version = _ran(QEMU, "--version")
    recipe = json.dumps([version, _hardware(), _KERNEL_LINE])
    kept = disk.place / f"booted-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.qcow2"
    with locked_cache("vm.lock"):
        if not kept.exists():
            place = Path(tempfile.mkdtemp(prefix="nodecpu-vm-", dir="/var/tmp"))
            machine = VirtualMachine(place, disk)
            try:
                machine.boot()
                machine.ok("ctr", "-n", "k8s.io", "images", "import", "--local", IMAGE_FILE)
                machine.save(BOOTED)
                machine.close()
                shutil.move(machine.overlay, kept.with_suffix(".new"))
                kept.with_suffix(".new").rename(kept)
            finally:
                machine.close()
                shutil.rmtree(place)
    return kept


def _hardware() -> list[str]:
    """Return QEMU's arguments for the machine itself. A Nehalem has a cache of each core and one of each socket.

    Its CPUs take turns in one thread: with threads of their own QEMU 7.2 may run what a kernel has just patched in its
    own code as it was before, and the kernel dies of a breakpoint that is no longer there.
    """
    nodes: list[str] = []
    for node, cpus in enumerate(CPUS_OF_NODE):
        nodes += ["-object", f"memory-backend-ram,id=memory{node},size=1G"]
        nodes += ["-numa", f"node,nodeid={node},cpus={cpus},memdev=memory{node}"]
    for one in range(4):
        for other in range(one + 1, 4):
            distance = NEAR if one // 2 == other // 2 else FAR
            nodes += ["-numa", f"dist,src={one},dst={other},val={distance}"]
    return [
        *("-nodefaults", "-no-user-config", "-machine", "q35,vmport=off,smm=off"),
        *("-accel", "tcg,thread=single,tb-size=1024", "-cpu", "Nehalem", "-m", "4G"),
        *("-smp", "16,sockets=2,cores=4,threads=2", *nodes),
    ]


def _asked(stream: IO[str], request: dict[str, object]) -> object:
    """Return what a request gave, events left aside."""
    stream.write(json.dumps(request) + "\n")
    stream.flush()
    while line := stream.readline():
        message = json.loads(line)
        if "event" not in message:
            return message.get("return", message)
    raise AssertionError("QEMU has ended")


def _free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _ran(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S).stdout


def _quietly(*command: str) -> None:
    nothing = subprocess.DEVNULL
    subprocess.run(command, check=False, stdin=nothing, stdout=nothing, stderr=nothing, timeout=STOP_TIMEOUT_S)
