"""The role and the playbooks against a booted machine: checked, run, run again, refused, upgraded, removed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.machine import Machine, Peers, booted
from tests.e2e.packages import built, need_tools, renumbered
from tests.e2e.plays import BIN, PLAYS, Played, Plays
from tests.support import need_program

pytestmark = pytest.mark.nspawn

ALONE = {"kube": {"enabled": False}}
CONFIG = {
    "paths": {"root": "/run/lab-machine", "cgroup": "/run/lab-cgroup"},
    "kube": {"kubeconfig": "/run/lab-kubeconfig"},
    "policy": {"reserved": "15"},
}
KUBECTL = """#!{python}
import json, sys
arguments = sys.argv[1:]
with open({calls!r}, "a") as calls:
    calls.write(json.dumps(arguments) + "\\n")
if "view" in arguments:
    print(json.dumps({{"clusters": [{{"cluster": {{"server": "https://127.0.0.1:1"}}}}]}}))
elif "token" in arguments:
    print("very-secret-token")
elif "diff" in arguments:
    sys.exit(1 if "kind: ServiceAccount" in sys.stdin.read() else 2)
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A machine, plays on it with the first of two packages, and the second."""

    machine: Machine
    plays: Plays
    second: Path

    def play(self, name: str, *options: str, **variables: object) -> Played:
        return self.plays.play(name, *options, **variables)

    def right(self, name: str, *options: str, **variables: object) -> Played:
        return self.plays.right(name, *options, **variables)


@pytest.fixture(scope="module")
def site(built_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    need_tools("ansible-tools")
    for program in ("ssh", "ssh-keygen"):
        need_program(program)
    place = tmp_path_factory.mktemp("ansible")
    key = place / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    first = built("debian13", "0.1.0", built_in)
    with booted(tmp_path_factory.mktemp("machine")) as machine:
        machine.put("/root/.ssh/authorized_keys", key.with_suffix(".pub").read_text(), mode=0o600)
        through = f"nsenter -t {machine.leader} -n busybox nc 127.0.0.1 22"
        unknown = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        options = f"-i {key} {unknown} -o ControlMaster=no -o ProxyCommand='{through}'"
        host = {"ansible_host": "127.0.0.1", "ansible_user": "root", "ansible_ssh_common_args": options}
        inventory = place / "hosts.json"
        inventory.write_text(json.dumps({"nodecpu_nodes": {"hosts": {"worker": host}}}))
        variables = {"nodecpu_package": str(first), "nodecpu_config": ALONE}
        plays = Plays(inventory=inventory, variables=variables, journal=machine.journal)
        yield Site(machine, plays, renumbered(first, "0.1.0", "0.1.1"))


@pytest.fixture(scope="module")
def peers(site: Site) -> Iterator[Peers]:
    begun = Peers(site.machine)
    yield begun
    begun.close()


def test_linter_accepts_it_for_production() -> None:
    need_tools("ansible-tools")
    command = [str(BIN / "ansible-lint"), "--offline", "--profile", "production", "--nocolor"]
    done = subprocess.run(command, cwd=PLAYS, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_tells_what_the_run_changes_and_changes_nothing(site: Site) -> None:
    told = site.right("site.yml", "--check")
    assert site.machine.run("test", "-e", "/usr/bin/nodecpu").returncode != 0
    done = site.right("site.yml")
    assert done.changed == told.changed > 0, done.said
    assert site.machine.unit("ActiveState", "UnitFileState") == {"ActiveState": "active", "UnitFileState": "enabled"}


def test_second_run_and_its_check_change_nothing(site: Site) -> None:
    assert site.right("site.yml", "--check").changed == 0
    assert site.right("site.yml").changed == 0


def test_wrong_configuration_is_refused_before_the_restart(site: Site) -> None:
    before = site.machine.unit("MainPID")
    file = site.machine.ok("cat", "/etc/nodecpu/nodecpu.toml")
    played = site.play("site.yml", nodecpu_config={"policy": {"reserved": "many"}})
    assert played.code != 0
    assert "reserved" in played.said
    assert site.machine.ok("cat", "/etc/nodecpu/nodecpu.toml") == file
    assert site.machine.unit("MainPID", "ActiveState") == {**before, "ActiveState": "active"}


def test_unfit_node_is_told_what_to_change(site: Site) -> None:
    site.machine.put("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\ncpuManagerPolicy: static\n")
    played = site.play("site.yml")
    site.machine.ok("rm", "/var/lib/kubelet/config.yaml")
    assert played.code != 0
    assert "Set cpuManagerPolicy to none" in played.said


def test_upgrade_waits_until_all_links_are_there(site: Site, peers: Peers) -> None:
    site.machine.put("/etc/systemd/system/nodecpu.service.d/lab.conf", "[Service]\nReadWritePaths=/run/lab-cgroup\n")
    site.machine.ok("systemctl", "daemon-reload")
    site.right("site.yml", nodecpu_config=CONFIG)
    peers.ask("registered")
    held = peers.ask("hold", name="web", cpus="2")
    site.right("upgrade.yml", nodecpu_config=CONFIG, nodecpu_package=str(site.second))
    assert site.machine.ok("nodecpu", "version").split()[1] == "0.1.1"
    assert "1 claims" in site.right("verify.yml").said
    assert peers.ask("look", name="web") == held


def test_upgrade_ends_where_a_link_is_missing(site: Site, peers: Peers) -> None:
    del peers  # they are there, but the daemon looks for the runtime elsewhere
    elsewhere = {**CONFIG, "nri": {"socket": "/run/nowhere.sock"}}
    played = site.play("upgrade.yml", nodecpu_config=elsewhere, nodecpu_package=str(site.second), nodecpu_wait_s=4)
    assert played.code != 0
    site.right("site.yml", nodecpu_config=CONFIG, nodecpu_package=str(site.second))


def test_cluster_and_credentials(site: Site, tmp_path: Path) -> None:
    """A token is in one file of its node, and in nothing that is printed."""
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    kubectl.write_text(KUBECTL.format(python=sys.executable, calls=str(calls)))
    kubectl.chmod(0o755)
    played = site.right("cluster.yml", "-vvv", nodecpu_kubectl=[str(kubectl)], nodecpu_node_name="worker-1")
    assert "very-secret-token" not in played.said
    verbs = [json.loads(line) for line in calls.read_text().splitlines()]
    assert ["apply", "--filename=-"] in verbs
    assert any("--bound-object-name=worker-1" in call for call in verbs)
    assert site.machine.ok("cat", "/var/lib/nodecpu/token") == "very-secret-token"
    assert site.machine.ok("stat", "-c", "%a", "/var/lib/nodecpu/token").strip() == "600"
    assert "very-secret-token" not in site.machine.ok("cat", "/etc/nodecpu/kubeconfig")


def test_removal_is_refused_then_done(site: Site, peers: Peers) -> None:
    refused = site.play("remove.yml")
    assert refused.code != 0
    assert "shop/web" in refused.said
    peers.ask("release", name="web")
    site.right("remove.yml", nodecpu_purge=True)
    places = ("/etc/nodecpu", "/var/lib/nodecpu", "/usr/bin/nodecpu", "/etc/systemd/system/nodecpu.service.d")
    assert [place for place in places if site.machine.run("test", "-e", place).returncode == 0] == []
    assert site.right("remove.yml", nodecpu_purge=True).changed == 0
