"""The role and the playbooks against a booted machine: checked, run, run again, refused, upgraded, removed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.containerd.binaries import need_containerd
from tests.e2e.machine import Machine, Peers, booted
from tests.e2e.packages import built, need_tools, renumbered
from tests.e2e.plays import BIN, PLAYS, Played, Plays
from tests.support import need_program

pytestmark = pytest.mark.nspawn

ALONE = {"kube": {"enabled": False}}
CONTAINERD = "/etc/containerd/config.toml"
CRI, NRI = "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"
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


FILES = {
    "as containerd itself prints it": f'''
version = 2
[plugins]
  [plugins."{CRI}"]
    cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
    enable_cdi = false
    sandbox_image = "localhost/pause:1"
    [plugins."{CRI}".cni]
      enable_cdi = false
  [plugins."{NRI}"]
    disable = true
    disable_connections = false
''',
    "by hand": f"""
version = 2
[plugins.'{NRI}'] # off
# disable = true
disable_connections = true
  disable=true # for now
[ plugins . "{CRI}" ]
[plugins."{CRI}".containerd.runtimes.runc.options]
SystemdCgroup = true
[other]
disable = true""",
    "both on": f"""
version = 2
[plugins."{CRI}"]
enable_cdi = true
[plugins."{NRI}"]
disable = false
""",
    "none of it": "version = 2\n",
}
"""Ways in which a node's file may be written."""

LATER_FILES = {
    2: f"""
version = 2
imports = ["conf.d/*.toml"]
[plugins."{CRI}"]
sandbox_image = "localhost/ours:1"
[plugins."{CRI}".containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins."{NRI}"]
plugin_request_timeout = "9s"
""",
    3: f"""
version = 3
imports = ["conf.d/*.toml"]
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "localhost/ours:1"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins."{NRI}"]
plugin_request_timeout = "9s"
""",
}
"""Files of containerd 2, of the old format and of its own."""

WRITE = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars_files: {role}/vars/main.yml
  vars:
    nodecpu_runtime: containerd
    nodecpu_package: x.deb
    nodecpu_require_plugin: false
    nodecpu_containerd_stat: {{stat: {{exists: true}}}}
    nodecpu_containerd_version: {{stdout: "containerd github.com/containerd/containerd {version}"}}
  tasks:
    - ansible.builtin.template:
        src: {role}/templates/{template}
        dest: "{{{{ item.dest }}}}"
        mode: "0644"
      vars:
        nodecpu_containerd_file: {{content: "{{{{ item.text | b64encode }}}}"}}
      loop: "{{{{ files }}}}"
"""


def writer(place: Path, template: str, version: str) -> tuple[Plays, str]:
    """Return plays with one that writes a template of the role for files of a version of containerd."""
    need_tools("ansible-tools")
    play, inventory = place / "play.yml", place / "hosts"
    play.write_text(WRITE.format(role=PLAYS / "roles/nodecpu", template=template, version=version))
    inventory.write_text(f"localhost ansible_python_interpreter={sys.executable}\n")
    return Plays(inventory=inventory, variables={}, journal=str), str(play)


def with_both_on(text: str) -> dict[str, object]:
    """Return a file of containerd 1.7 as it has to be: NRI and CDI on, and all else as it was."""
    settings = tomllib.loads(text)
    plugins = settings.setdefault("plugins", {})
    plugins.setdefault(CRI, {})["enable_cdi"] = True
    plugins.setdefault(NRI, {})["disable"] = False
    return settings


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
        variables = {"nodecpu_package": str(first), "nodecpu_config": ALONE, "nodecpu_configure_runtime": True}
        plays = Plays(inventory=inventory, variables=variables, journal=machine.journal)
        yield Site(machine, plays, renumbered(first, "0.1.0", "0.1.1"))


@pytest.fixture(scope="module")
def peers(site: Site) -> Iterator[Peers]:
    """Have the lab's runtime in containerd's place, with kubelet and API server."""
    site.machine.ok("systemctl", "disable", "--now", "containerd")
    begun = Peers(site.machine)
    yield begun
    begun.close()


def test_linter_accepts_it_for_production() -> None:
    need_tools("ansible-tools")
    command = [str(BIN / "ansible-lint"), "--offline", "--profile", "production", "--nocolor"]
    done = subprocess.run(command, cwd=PLAYS, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_file_of_containerd_1_keeps_what_is_not_ours(tmp_path: Path) -> None:
    """A drop-in would not do: containerd 1.7 puts its tables in the place of the file's own."""
    plays, play = writer(tmp_path, "containerd1.j2", "1.7.24~ds1")
    files = [{"dest": str(tmp_path / f"{number}.toml"), "text": text} for number, text in enumerate(FILES.values())]
    plays.right(play, files=files)
    for one in files:
        assert tomllib.loads(Path(one["dest"]).read_text()) == with_both_on(one["text"])
    again = [{"dest": one["dest"], "text": Path(one["dest"]).read_text()} for one in files]
    assert plays.right(play, files=again).changed == 0


def test_drop_in_leaves_containerd_2_its_own_settings(tmp_path: Path) -> None:
    """The real containerd says what is in force: of another version than the file, a drop-in would have it ignored."""
    containerd = need_containerd().containerd
    plays, play = writer(tmp_path, "containerd.j2", "v2.1.9")
    places = {version: tmp_path / str(version) for version in LATER_FILES}
    for version, place in places.items():
        (place / "conf.d").mkdir(parents=True)
        (place / "config.toml").write_text(LATER_FILES[version])
    files = [{"dest": str(place / "conf.d/50-nodecpu.toml"), "text": LATER_FILES[at]} for at, place in places.items()]
    plays.right(play, files=files)
    for place in places.values():
        command = [str(containerd), "--config", str(place / "config.toml"), "config", "dump"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        plugins = tomllib.loads(done.stdout)["plugins"]
        runtime = plugins["io.containerd.cri.v1.runtime"]
        assert plugins["io.containerd.cri.v1.images"]["pinned_images"]["sandbox"] == "localhost/ours:1"
        assert runtime["containerd"]["runtimes"]["runc"]["options"]["SystemdCgroup"] is True
        assert runtime["enable_cdi"] is True
        assert (plugins[NRI]["disable"], plugins[NRI]["plugin_request_timeout"]) == (False, "9s")


def test_version_of_containerds_file_stands_above_its_tables(tmp_path: Path) -> None:
    """What a plugin calls its version is not that of the file, which the role refuses as one of version 1."""
    plays, play = writer(tmp_path, "containerd.j2", "v2.1.9")
    texts = {1: "[plugins.other]\nversion = 2\n", 3: "imports = []\nversion = 3\n[plugins.other]\nversion = 2\n"}
    files = [{"dest": str(tmp_path / f"{number}.toml"), "text": text} for number, text in texts.items()]
    plays.right(play, files=files)
    assert [tomllib.loads(Path(one["dest"]).read_text())["version"] for one in files] == list(texts)


def test_runtime_without_nri_is_told_of_unless_it_is_to_be_configured(site: Site) -> None:
    """Debian 13's own containerd, as its package sets it up."""
    assert site.machine.ok("containerd", "--version").split()[2].startswith("1.7.")
    played = site.play("site.yml", nodecpu_configure_runtime=False)
    assert played.code != 0
    assert "containerd's NRI is off. Set disable = false" in played.said
    assert site.machine.run("test", "-e", "/usr/bin/nodecpu").returncode != 0


def test_check_tells_what_the_run_changes_and_changes_nothing(site: Site) -> None:
    stock = site.machine.ok("cat", CONTAINERD)
    told = site.right("site.yml", "--check")
    assert site.machine.run("test", "-e", "/usr/bin/nodecpu").returncode != 0
    assert site.machine.ok("cat", CONTAINERD) == stock
    done = site.right("site.yml")
    assert done.changed == told.changed > 0, done.said
    assert site.machine.unit("ActiveState", "UnitFileState") == {"ActiveState": "active", "UnitFileState": "enabled"}


def test_runtime_has_the_plugin_and_kept_its_own_settings(site: Site) -> None:
    """The real containerd of the distribution, NRI and CDI turned on by the role; the file before is kept beside."""
    # The role restarts a runtime that it has changed, and does not wait for links where there is no kubelet.
    site.machine.until("link to the runtime", StatusText=re.compile(r"containerd \S+ connected, kubelet"))
    before = site.machine.ok("sh", "-c", f"cat {CONTAINERD}.*~")
    assert tomllib.loads(site.machine.ok("cat", CONTAINERD)) == with_both_on(before)


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
