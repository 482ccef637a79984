"""A whole node with four NUMA nodes: package, role, systemd, a real containerd and its cgroups, the lab's kubelet.

The role installs the package once; every story begins where that has left the machine, and reads from the kernel what
came of it. CPU 15 is reserved.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet
from tests.e2e.packages import built, need_tools
from tests.e2e.plays import Played, Plays
from tests.e2e.vm import VirtualMachine, virtual_machine
from tests.support import ROOT

pytestmark = pytest.mark.vm

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
    """The machine after the role's first and second run."""

    machine: VirtualMachine
    first: Played
    second: Played


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

    def hold(self, name: str, *wants: tuple[int, int]) -> str:
        """Have a claim of so many CPUs of each of some NUMA nodes; return its name."""
        self.ask("hold", name=name, wants=[{"numa": str(numa), "cpus": str(cpus)} for numa, cpus in wants])
        return name

    def start(self, name: str, *claims: str, **more: str) -> tuple[str, str]:
        return _runs_on(self.ask("start", name=name, claims=list(claims), **more))

    def look(self, name: str) -> tuple[str, str]:
        return _runs_on(self.ask("look", name=name))

    def cpus(self, name: str) -> CpuSet:
        return CpuSet.parse(self.look(name)[0])

    def end(self, name: str) -> None:
        self.ask("end", name=name)

    def until(self, name: str, wanted: tuple[str, str], *, timeout_s: float = 120.0) -> None:
        """Wait until a pod's container runs on this."""
        end = time.monotonic() + timeout_s
        while (seen := self.look(name)) != wanted:
            assert time.monotonic() < end, f"{name} runs on {seen}, not on {wanted}\n{self.machine.journal()}"
            time.sleep(0.2)


def _runs_on(answer: dict[str, object]) -> tuple[str, str]:
    return str(answer["cpus"]), str(answer["mems"])


@pytest.fixture(scope="module")
def machine() -> Iterator[VirtualMachine]:
    with virtual_machine() as begun:
        yield begun


@pytest.fixture(scope="module")
def site(machine: VirtualMachine, built_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    need_tools("ansible-tools")
    inventory = tmp_path_factory.mktemp("plays") / "hosts.json"
    inventory.write_text(json.dumps({"nodecpu_nodes": {"hosts": {"worker": machine.ansible_host}}}))
    machine.put("/etc/systemd/system/nodecpu.service.d/patient.conf", PATIENT)
    variables = {
        "nodecpu_package": str(built("debian13", "0.1.0", built_in)),
        "nodecpu_config": CONFIG,
        "nodecpu_kubeconfig": json.dumps(KUBECONFIG),
    }
    plays = Plays(inventory=inventory, variables=variables, journal=machine.journal, timeout_s=PLAY_TIMEOUT_S)
    first = plays.right("site.yml")
    second = plays.right("site.yml")
    _add_kubelet(machine)
    machine.save(INSTALLED)
    return Site(machine, first, second)


def _add_kubelet(machine: VirtualMachine) -> None:
    for name in LAB_FILES:
        machine.put(f"{LAB}/{name}", (ROOT / name).read_text())
    machine.put("/etc/systemd/system/kubelet.service", KUBELET)
    machine.ok("python3", "-m", "compileall", "-q", LAB)
    machine.ok("systemctl", "daemon-reload")
    machine.ok("systemctl", "enable", "--now", "kubelet")
    assert "error" not in machine.ask("registered")


@pytest.fixture
def node(site: Site) -> Node:
    """Return the node as it was after its installation."""
    site.machine.restore(INSTALLED)
    return Node(site.machine)


@pytest.fixture(scope="module")
def scene(site: Site) -> Scene:
    """Have a shared container, and a holder that it made room for, running; keep the machine as it is then."""
    site.machine.restore(INSTALLED)
    node = Node(site.machine)
    cpus, mems = node.start("other")
    numa = NUMA.index(cpus)
    ours = list(CpuSet.parse(cpus))
    holder = (str(CpuSet(ours[:2])), str(numa))
    assert mems == str(numa)
    assert node.start("holder", node.hold("pair", (numa, 2))) == holder
    moved = (str(CpuSet(ours[2:])), str(numa))
    node.until("other", moved)
    site.machine.save(PINNED)
    return Scene(before=(cpus, mems), moved=moved, holder=holder)


@pytest.fixture
def pinned(site: Site, scene: Scene) -> Node:
    """Return the node with those two, on which the scene says that they run."""
    del scene
    site.machine.restore(PINNED)
    return Node(site.machine)


def test_machine_has_four_nodes_in_two_sockets_and_nri_is_on(machine: VirtualMachine) -> None:
    rows = [line.split(",") for line in machine.ok("lscpu", "-p=CPU,CORE,SOCKET,NODE").splitlines() if line[0] != "#"]
    assert [row[1:] for row in rows] == [[str(cpu // 2), str(cpu // 8), str(cpu // 4)] for cpu in range(16)]
    assert "cpuset" in machine.ok("cat", "/sys/fs/cgroup/cgroup.controllers").split()
    plugins = machine.ok("ctr", "plugins", "ls").splitlines()
    assert [line.split()[-1] for line in plugins if "io.containerd.nri.v1" in line] == ["ok"]


def test_role_installs_it_and_its_second_run_changes_nothing(site: Site, node: Node) -> None:
    """The daemon runs in its unit's sandbox, and the runtime has it."""
    assert (site.first.changed > 0, site.second.changed) == (True, 0)
    unit = node.machine.unit("nodecpu", "ActiveState", "UnitFileState", "ProtectSystem", "NRestarts")
    assert unit == {"ActiveState": "active", "UnitFileState": "enabled", "ProtectSystem": "strict", "NRestarts": "0"}
    node.machine.ok("systemd-analyze", "security", "--no-pager", "--threshold=20", "nodecpu.service")
    links = json.loads(node.machine.ok("nodecpu", "status", "--json"))["links"]
    assert {name: link["state"] for name, link in links.items()} == dict.fromkeys(links, "connected")


def test_numa_devices_offer_their_cpus(node: Node) -> None:
    """D1, T4, T5: as the kernel of a machine with four nodes tells them."""
    capacities = node.ask("registered")["capacities"]
    assert isinstance(capacities, dict)
    assert [capacities[name] for name in sorted(capacities)] == [4, 4, 4, 3]


def test_claim_of_a_whole_node_has_what_is_not_reserved(node: Node) -> None:
    """C2, G2, M1: with that node's memory."""
    assert node.start("holder", node.hold("whole", (3, 3))) == ("12-14", "3")


def test_claims_get_a_core_each_and_no_more_than_there_is(node: Node) -> None:
    """C2, C8, K1: what is more than free is refused, whatever the scheduler thought."""
    assert node.start("first", node.hold("one", (1, 2))) == ("4-5", "1")
    assert node.start("second", node.hold("two", (1, 2))) == ("6-7", "1")
    capacities = node.ask("registered")["capacities"]
    assert isinstance(capacities, dict)
    node.ask("hold", name="three", wants=[{"device": sorted(capacities)[1], "cpus": "2"}])
    refused = node.machine.ask("start", name="third", claims=["three"], tries=3)
    assert "three" in str(refused.get("error"))
    node.end("first")
    assert node.start("third", node.hold("four", (1, 2))) == ("4-5", "1")
    assert node.look("second") == ("6-7", "1")


def test_container_with_cpus_of_its_own_runs_at_its_claims_node(node: Node) -> None:
    """G3, G5, M1: the claimed CPUs and the shared ones of the same node, with that node's memory."""
    assert node.start("mixed", node.hold("near", (2, 2)), request="100m") == ("8-11", "2")


def test_claim_of_two_nodes_is_disjoint_and_both_holders_run_there(node: Node) -> None:
    """C3, L3, M1: memory of the pool that has both nodes; a second pod needs no further prepare call."""
    claim = node.hold("both", (0, 2), (2, 1))
    assert node.start("one", claim) == ("0-1,8", "0-3")
    assert node.start("two", claim) == ("0-1,8", "0-3")


def test_shared_container_comes_back_when_the_claim_has_ended(pinned: Node, scene: Scene) -> None:
    """C12, G1, G9: it had moved aside on its node."""
    assert (pinned.look("other"), pinned.look("holder")) == (scene.moved, scene.holder)
    pinned.end("holder")
    pinned.until("other", scene.before)


def test_systemd_reload_does_not_lose_the_pinning(pinned: Node, scene: Scene) -> None:
    """E1: systemd writes anew what it knows of its scopes; it has to know what the runtime was told last."""
    scopes = [str(pinned.ask("look", name=name)["cgroup"]).rsplit("/", 1)[-1] for name in ("other", "holder")]
    pinned.machine.ok("systemctl", "daemon-reload")
    known = [pinned.machine.unit(scope, "AllowedCPUs", "AllowedMemoryNodes") for scope in scopes]
    assert known == [{"AllowedCPUs": cpus, "AllowedMemoryNodes": mems} for cpus, mems in (scene.moved, scene.holder)]
    assert (pinned.look("other"), pinned.look("holder")) == (scene.moved, scene.holder)


def test_killed_daemon_moves_nothing(pinned: Node, scene: Scene) -> None:
    """R1, L4: systemd starts it again, no cpuset is written, and what was prepared before is served after."""
    assert pinned.ask("watch") == {"files": 2}
    pinned.machine.ok("systemctl", "kill", "--signal=KILL", "nodecpu")
    _await_restart(pinned, 1)
    assert pinned.ask("written") == {"written": False}
    assert (pinned.look("other"), pinned.look("holder")) == (scene.moved, scene.holder)
    assert pinned.start("second", "pair") == scene.holder


def _await_restart(node: Node, number: int) -> None:
    """Wait until the daemon runs again and has all its links."""
    end = time.monotonic() + 300
    while True:
        unit = node.machine.unit("nodecpu", "ActiveState", "NRestarts")
        if unit == {"ActiveState": "active", "NRestarts": str(number)}:
            said = node.machine.run("nodecpu", "status", "--json")
            links = json.loads(said.stdout)["links"] if said.returncode == 0 else {}
            if links and all(link["state"] == "connected" for link in links.values()):
                return
        assert time.monotonic() < end, f"{unit}\n{node.machine.journal()}"
        time.sleep(0.5)


def test_reboot_brings_claims_back_before_the_first_container(pinned: Node, scene: Scene) -> None:
    """T7, C6, C11: the kubelet starts at boot and finds the CDI specs; its pods get the CPUs that they had."""
    specs = pinned.machine.ok("ls", "/run/cdi").split()
    life = pinned.ask("registered")["life"]
    pinned.machine.reboot()
    start = pinned.ask("registered")
    assert start["life"] != life
    assert (len(specs), start["seen_at_start"]) == (1, {"cdi": specs})
    assert pinned.look("holder") == scene.holder
    assert not pinned.cpus("other") & pinned.cpus("holder")
    ready = pinned.machine.unit("nodecpu", "ActiveEnterTimestampMonotonic")["ActiveEnterTimestampMonotonic"]
    kubelet = pinned.machine.unit("kubelet", "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"]
    assert 0 < int(ready) < int(kubelet)
