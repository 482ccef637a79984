"""The package on a real systemd: installed, wrong, right, at work, upgraded under a claim, refused removal, purged.

One machine lives through all of it, in order, as a node does; the daemon runs inside its unit's sandbox.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, Peers, booted
from tests.e2e.packages import built, renumbered

pytestmark = pytest.mark.nspawn

CONFIG = "/etc/nodecpu/nodecpu.toml"
SETTINGS = """
[paths]
root = "/run/lab-machine"
cgroup = "/run/lab-cgroup"
[kube]
kubeconfig = "/run/lab-kubeconfig"
[policy]
reserved = "15"
"""
DROP_IN = "/etc/systemd/system/nodecpu.service.d/lab.conf"
WRITES_MODEL = "[Service]\nReadWritePaths=/run/lab-cgroup\nWatchdogSec=3\n"
"""The lab's cgroup tree is files in /run, which the unit may not write otherwise; its watchdog is quick."""


@dataclass(frozen=True, slots=True)
class Life:
    """The machine, the package and a later one by their paths in it, and what the first installation said."""

    machine: Machine
    first: str
    second: str
    said: str


@pytest.fixture(scope="module")
def life(built_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    first = built("debian13", "0.1.0", built_in)
    second = renumbered(first, "0.1.0", "0.1.1")
    with booted(tmp_path_factory.mktemp("machine")) as machine:
        names: list[str] = []
        for package in (first, second):
            shutil.copy(package, machine.root / "root" / package.name)
            names.append(f"/root/{package.name}")
        yield Life(machine, names[0], names[1], install(machine, names[0]))


@pytest.fixture(scope="module")
def peers(life: Life) -> Iterator[Peers]:
    begun = Peers(life.machine)
    yield begun
    begun.close()


def install(machine: Machine, package: str, **environment: str) -> str:
    command = ("apt-get", "-qq", "install", "--allow-downgrades", "-y", package)
    return machine.ok(*command, DEBIAN_FRONTEND="noninteractive", **environment)


def specs(life: Life) -> list[str]:
    return life.machine.ok("ls", "/run/cdi").split()


def remove(life: Life, *how: str, **environment: str) -> tuple[int, str]:
    done = life.machine.run("dpkg", *how, "nodecpu", **environment)
    return done.returncode, done.stdout


def test_installation_starts_nothing_without_credentials(life: Life) -> None:
    assert "no credentials for the API server" in life.said
    assert life.machine.unit("ActiveState", "UnitFileState") == {"ActiveState": "inactive", "UnitFileState": "enabled"}
    assert life.machine.ok("nodecpu", "version").split()[-1] == "0.1.0"


def test_unit_is_in_order_where_it_runs(life: Life) -> None:
    """Before the kubelet and after the runtimes, where both are started together; needing neither."""
    unit = life.machine.unit("Before", "After", "Requires", "Wants", "OOMScoreAdjust", "CPUWeight")
    assert "kubelet.service" in unit["Before"].split()
    assert {"containerd.service", "crio.service"} <= set(unit["After"].split())
    needed = f"{unit['Requires']} {unit['Wants']}"
    assert not any(name in needed for name in ("containerd", "crio", "kubelet"))
    assert (unit["OOMScoreAdjust"], unit["CPUWeight"]) == ("-999", "1000")
    verified = life.machine.ok("systemd-analyze", "verify", "--man=no", "nodecpu.service")
    assert verified == ""


def test_wrong_configuration_ends_it_with_78_and_is_not_started_again(life: Life) -> None:
    life.machine.put(CONFIG, "[policy]\nreserved = 'many'\n")
    assert life.machine.run("systemctl", "start", "nodecpu").returncode != 0
    unit = life.machine.unit("ActiveState", "ExecMainStatus", "NRestarts")
    assert unit == {"ActiveState": "failed", "ExecMainStatus": "78", "NRestarts": "0"}
    life.machine.until_said("policy.reserved")
    life.machine.ok("systemctl", "reset-failed", "nodecpu")


def test_it_is_ready_before_kubelet_and_runtime_are_there(life: Life) -> None:
    """As at boot: READY waits for nobody; the plugin sockets are there for the kubelet to find."""
    life.machine.put(CONFIG, "[kube]\nenabled = false\n")
    life.machine.ok("systemctl", "start", "nodecpu")
    sockets = life.machine.ok("ls", "/var/lib/kubelet/plugins_registry", "/run/nodecpu")
    assert "dra.cpu-reg.sock" in sockets
    assert "admin.sock" in sockets
    assert life.machine.unit("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}
    life.machine.ok("systemctl", "stop", "nodecpu")


def test_it_finds_its_peers(life: Life, peers: Peers) -> None:
    life.machine.put(DROP_IN, WRITES_MODEL)
    life.machine.ok("systemctl", "daemon-reload")
    life.machine.put(CONFIG, SETTINGS)
    life.machine.ok("systemctl", "start", "nodecpu")
    peers.ask("registered")
    assert life.machine.unit("ActiveState", "NRestarts") == {"ActiveState": "active", "NRestarts": "0"}


def test_claim_is_served_within_the_sandbox(life: Life, peers: Peers) -> None:
    """C1, G2: prepared by the kubelet, pinned by the runtime, CDI spec written."""
    held = peers.ask("hold", name="web", cpus="2")
    assert held["cpus"] != ""
    assert "shop/web" in life.machine.ok("nodecpu", "claims")
    assert specs(life) != []


def test_reload_takes_over_a_setting_and_survives_a_wrong_file(life: Life) -> None:
    """A reload is only asked for by systemctl: when it is over is told by the daemon."""
    life.machine.put(CONFIG, SETTINGS + '[log]\nlevel = "debug"\n')
    life.machine.ok("systemctl", "reload", "nodecpu")
    life.machine.until_said(r"log.level: \"info\" -> \"debug\", applied")
    life.machine.put(CONFIG, "[policy]\nreserved = 'many'\n")
    life.machine.ok("systemctl", "reload", "nodecpu")
    life.machine.until_said("configuration not reloaded")
    life.machine.until("end of the reload", ActiveState="active", NRestarts="0")


def test_upgrade_with_a_wrong_configuration_leaves_the_old_daemon_running(life: Life) -> None:
    before = life.machine.unit("MainPID")
    said = install(life.machine, life.second)
    assert "the daemon of the previous version goes on" in said
    assert life.machine.unit("MainPID") == before
    assert "shop/web" in life.machine.ok("nodecpu", "claims")


def test_upgrade_and_downgrade_move_nothing_under_a_claim(life: Life, peers: Peers) -> None:
    """R1: the same CPUs, no cpuset written; the configuration is the one that the operator wrote."""
    life.machine.put(CONFIG, SETTINGS)
    held = peers.ask("look", name="web")
    for package, version in ((life.first, "0.1.0"), (life.second, "0.1.1")):
        before = life.machine.unit("MainPID")
        install(life.machine, package)
        peers.ask("registered")
        assert life.machine.unit("MainPID") != before
        assert json.loads(life.machine.ok("nodecpu", "status", "--json"))["version"] == version
        assert peers.ask("look", name="web") == held
    assert life.machine.ok("cat", CONFIG) == SETTINGS


def test_planned_restart_waits_for_terminating_containers(life: Life, peers: Peers) -> None:
    """R6: said in STATUS, bounded, refused after that; not for those who say so, nor once the container has ended."""
    peers.ask("hold", name="late", cpus="1")
    peers.ask("terminate", name="late")
    life.machine.until("word of what is awaited", StatusText=re.compile(r"a planned restart waits for shop/late/app"))
    before = life.machine.unit("MainPID")
    done = life.machine.run("nodecpu", "restart", "--wait", "1")
    assert done.returncode == 1
    assert "not restarted: shop/late/app did not end within 1 s" in done.stdout
    assert life.machine.unit("MainPID") == before
    said = install(life.machine, life.first, NODECPU_RESTART_NOW="1")
    assert "waiting" not in said
    life.machine.until("a link held off", StatusText=re.compile(r"runtime held off, kubelet connected"))
    assert life.machine.unit("MainPID") != before
    peers.ask("release", name="late")
    peers.ask("registered")
    life.machine.ok("nodecpu", "restart", "--wait", "30")
    install(life.machine, life.second)
    peers.ask("registered")


def test_hung_daemon_is_ended_by_the_watchdog_and_the_claim_stays(life: Life, peers: Peers) -> None:
    held = peers.ask("look", name="web")
    restarts = int(life.machine.unit("NRestarts")["NRestarts"])
    life.machine.signal("STOP")
    life.machine.until("restart by the watchdog", ActiveState="active", NRestarts=str(restarts + 1))
    peers.ask("registered")
    assert peers.ask("look", name="web")["cpus"] == held["cpus"]


def test_killed_daemon_is_started_again_whatever_killed_it(life: Life, peers: Peers) -> None:
    for number in ("TERM", "KILL"):
        restarts = int(life.machine.unit("NRestarts")["NRestarts"])
        life.machine.signal(number)
        life.machine.until("restart", ActiveState="active", NRestarts=str(restarts + 1))
    peers.ask("registered")


@pytest.mark.parametrize("running", [True, False])
def test_removal_is_refused_while_a_claim_lives(life: Life, peers: Peers, *, running: bool) -> None:
    """R5, whether or not there is a daemon to ask."""
    if not running:
        life.machine.ok("systemctl", "stop", "nodecpu")
    code, said = remove(life, "--remove")
    assert code != 0
    assert "claim shop/web" in said
    assert "NODECPU_FORCE_REMOVE=1" in said
    assert life.machine.ok("nodecpu", "version").split()[-1] == "0.1.1"
    life.machine.ok("systemctl", "start", "nodecpu")
    peers.ask("registered")


def test_forced_removal_and_new_installation_find_the_claim_again(life: Life, peers: Peers) -> None:
    """The rescue: books and CDI specs stay, a new installation serves the pod's end."""
    held = peers.ask("look", name="web")
    code, said = remove(life, "--remove", NODECPU_FORCE_REMOVE="1")
    assert code == 0, said
    assert life.machine.run("pgrep", "-f", "nodecpu daemon").returncode != 0
    assert specs(life) != []
    install(life.machine, life.second)
    assert life.machine.unit("ActiveState") == {"ActiveState": "active"}
    peers.ask("registered")
    assert peers.ask("look", name="web")["cpus"] == held["cpus"]
    peers.ask("release", name="web")
    assert specs(life) == []


def test_removal_keeps_what_an_operator_made_and_purge_takes_it(life: Life) -> None:
    code, said = remove(life, "--remove")
    assert code == 0, said
    assert life.machine.ok("cat", CONFIG) == SETTINGS
    assert life.machine.run("test", "-e", "/usr/lib/nodecpu").returncode != 0
    code, said = remove(life, "--purge")
    assert code == 0, said
    places = ("/etc/nodecpu", "/var/lib/nodecpu", "/run/nodecpu", "/usr/lib/nodecpu", "/usr/bin/nodecpu")
    assert [place for place in places if life.machine.run("test", "-e", place).returncode == 0] == []
    assert life.machine.run("systemctl", "is-enabled", "nodecpu").stdout.strip() != "enabled"
