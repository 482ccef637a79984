"""The virtual machine with nodecpu on it, as its cluster sees it: put there by the role, with the lab's kubelet.

Every story begins where a snapshot has left the machine. CPU 15 is reserved.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from nodecpu.cpuset import CpuSet
from tests.e2e.plays import Played, Plays
from tests.e2e.vm import VirtualMachine
from tests.support import ROOT

INSTALLED = "installed"
PINNED = "pinned"
NUMA = ("0-3", "4-7", "8-11", "12-14")
"""What each node has to give."""

PLAY_TIMEOUT_S = 2400.0
CONFIG = {"policy": {"reserved": "15"}}
LAB = "/opt/lab"
LAB_FILES = (
    *("tests/__init__.py", "tests/containerd/__init__.py", "tests/containerd/cgroups.py", "tests/containerd/cri.py"),
    *("tests/containerd/cri_pb2.py", "tests/containerd/image.py"),
    *("tests/e2e/__init__.py", "tests/e2e/criruntime.py", "tests/e2e/vmnode.py"),
)
KUBELET = """[Unit]
Description=The lab's kubelet, with the cluster that it belongs to
After=network-online.target containerd.service
Wants=network-online.target
[Service]
Type=notify
Environment=PYTHONPATH=/usr/lib/nodecpu:/opt/lab
ExecStart=/usr/bin/python3 -m tests.e2e.vmnode
TimeoutStartSec=1800
[Install]
WantedBy=multi-user.target
"""
PATIENT = "[Service]\nTimeoutStartSec=600\nWatchdogSec=300\n"
"""For the daemon on emulated CPUs, several of which share one that is real."""

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "lab", "cluster": {"server": "http://127.0.0.1:6443"}}],
    "users": [{"name": "lab", "user": {"token": "lab"}}],
    "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
    "current-context": "lab",
}


@dataclass(frozen=True, slots=True)
class Site:
    """The machine after the role's first run, what that said, and the package that it installed."""

    machine: VirtualMachine
    plays: Plays
    first: Played
    package: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """On what the shared container ran before the claim, on what it runs now, and the holder."""

    before: tuple[str, str]
    moved: tuple[str, str]
    holder: tuple[str, str]


class Node:
    """The node as its cluster sees it; what a container runs on is ``(CPUs, memory nodes)``."""

    def __init__(self, machine: VirtualMachine) -> None:
        self.machine = machine

    def ask(self, verb: str, **arguments: object) -> dict[str, object]:
        answer = self.machine.ask(verb, **arguments)
        assert "error" not in answer, f"{verb}: {answer['error']}\n{self.machine.journal()}"
        return answer

    def hold(self, name: str, *wants: tuple[int, int], **more: str) -> str:
        """Have a claim of so many CPUs of each of some NUMA nodes; return its name."""
        self.ask("hold", name=name, wants=[{"numa": str(numa), "cpus": str(cpus)} for numa, cpus in wants], **more)
        return name

    def devices(self) -> list[str]:
        """Return the names of the devices, one of each NUMA node."""
        return sorted(self.capacities())

    def capacities(self) -> dict[str, int]:
        """Return how many CPUs each device offers."""
        capacities = self.ask("registered")["capacities"]
        assert isinstance(capacities, dict)
        return capacities

    def version(self) -> str:
        """Return the daemon's version."""
        return str(json.loads(self.machine.ok("nodecpu", "status", "--json"))["version"])

    def start(self, name: str, *claims: str, **more: object) -> tuple[str, str]:
        return _runs_on(self.ask("start", name=name, claims=list(claims), **more))

    def look(self, name: str) -> tuple[str, str]:
        return _runs_on(self.ask("look", name=name))

    def cpus(self, name: str) -> CpuSet:
        return CpuSet.parse(self.look(name)[0])

    def end(self, name: str) -> None:
        self.ask("end", name=name)

    def await_links(self, restarts: int) -> None:
        """Wait until the daemon, after so many restarts of its own, runs and has all its links."""
        end = time.monotonic() + 300
        while True:
            unit = self.machine.unit("nodecpu", "ActiveState", "NRestarts")
            if unit == {"ActiveState": "active", "NRestarts": str(restarts)}:
                said = self.machine.run("nodecpu", "status", "--json")
                links = json.loads(said.stdout)["links"] if said.returncode == 0 else {}
                if links and all(link["state"] == "connected" for link in links.values()):
                    return
            assert time.monotonic() < end, f"{unit}\n{self.machine.journal()}"
            time.sleep(0.5)

    def until(self, name: str, wanted: tuple[str, str], *, timeout_s: float = 120.0) -> None:
        """Wait until a pod's container runs on this."""
        end = time.monotonic() + timeout_s
        while (seen := self.look(name)) != wanted:
            assert time.monotonic() < end, f"{name} runs on {seen}, not on {wanted}\n{self.machine.journal()}"
            time.sleep(0.2)


def install(machine: VirtualMachine, place: Path, package: Path) -> Site:
    """Return the site once the role has run, with a kubelet that starts at boot."""
    inventory = place / "hosts.json"
    inventory.write_text(json.dumps({"nodecpu_nodes": {"hosts": {"worker": machine.ansible_host}}}))
    machine.put("/etc/systemd/system/nodecpu.service.d/patient.conf", PATIENT)
    variables = {
        "nodecpu_package": str(package),
        "nodecpu_config": CONFIG,
        "nodecpu_configure_runtime": True,
        "nodecpu_kubeconfig": json.dumps(KUBECONFIG),
    }
    plays = Plays(inventory=inventory, variables=variables, journal=machine.journal, timeout_s=PLAY_TIMEOUT_S)
    site = Site(machine, plays, plays.right("site.yml"), package)
    _add_kubelet(machine)
    return site


def _add_kubelet(machine: VirtualMachine) -> None:
    for name in LAB_FILES:
        machine.put(f"{LAB}/{name}", (ROOT / name).read_text())
    machine.put("/etc/systemd/system/kubelet.service", KUBELET)
    machine.ok("python3", "-m", "compileall", "-q", LAB)
    machine.ok("systemctl", "daemon-reload")
    machine.ok("systemctl", "enable", "--now", "kubelet")
    assert "error" not in machine.ask("registered")


def pin(node: Node) -> Scene:
    """Have a shared container, and a holder that it made room for, running."""
    cpus, mems = node.start("other")
    numa = NUMA.index(cpus)
    ours = list(CpuSet.parse(cpus))
    holder = (str(CpuSet(ours[:2])), str(numa))
    assert mems == str(numa)
    node.hold("pair", (numa, 2))
    assert node.start("holder", "pair") == holder
    moved = (str(CpuSet(ours[2:])), str(numa))
    node.until("other", moved)
    return Scene(before=(cpus, mems), moved=moved, holder=holder)


def _runs_on(answer: dict[str, object]) -> tuple[str, str]:
    return str(answer["cpus"]), str(answer["mems"])
