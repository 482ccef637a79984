"""What operators get wrong in an inventory, a cluster or a node, and what the playbooks say then: on this machine.

Nothing is changed: plays are checked only, or ask programs that are played here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.packages import need_tools
from tests.e2e.plays import Played, Plays

pytestmark = pytest.mark.nspawn

NODE = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
FACTS = {"service_mgr": "systemd", "pkg_mgr": "apt"}
NO_NAMESPACE = 'Error from server (NotFound): namespaces "nodecpu" not found'
NODECPU = """#!/bin/sh
case "$*" in
  manifests) echo 'kind: Namespace' ;;
  version*) echo '{"version": "0.1.0"}' ;;
  check) echo 'ok       CPUs        16 usable'; echo 'failed   NRI socket  no such file' ; exit 1 ;;
  *) echo 'nobody answers' >&2; exit 1 ;;
esac
"""
KUBECTL = """#!/bin/sh
case "$*" in
  *diff*) cat >/dev/null; echo '{said}' >&2; exit {code} ;;
  *view*) echo '{{"clusters": [{{"cluster": {{"server": "https://127.0.0.1:1"}}}}]}}' ;;
esac
"""
MISTAKES = {
    "a table without settings": ({"nodecpu_config": {"policy": None}}, "no table of settings: policy"),
    "CPUs of no known form": ({"nodecpu_allowed_cpus": [0, 1]}, "has to be a list of CPUs as text"),
    "no package": ({}, "nodecpu_package is empty"),
    "no such file": ({"nodecpu_package": "/nowhere/nodecpu.deb"}, "There is no file /nowhere/nodecpu.deb"),
    "no such directory": (
        {"nodecpu_package": "x.deb", "nodecpu_kubeconfig": "x", "nodecpu_kubeconfig_path": "/nowhere/kubeconfig"},
        "no directory /nowhere",
    ),
    "a package for others": ({"nodecpu_package": "/nowhere/nodecpu.rpm"}, "of this node installs ends in .deb"),
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have programs of a directory found before all others."""
    need_tools("ansible-tools")
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}:/usr/sbin:/usr/bin:/sbin:/bin")
    return place


def have(place: Path, name: str, text: str) -> None:
    (place / name).write_text(text)
    (place / name).chmod(0o755)


def play(place: Path, name: str, *options: str, **variables: object) -> Played:
    inventory = place.parent / "hosts.json"
    if not inventory.exists():
        have_nodes(inventory, "worker-1")
    plays = Plays(inventory=inventory, variables={"ansible_facts": FACTS}, journal=str)
    return plays.play(name, *options, **variables)


def have_nodes(inventory: Path, *names: str, **others: object) -> None:
    hosts = {**others, **dict.fromkeys(names, NODE)}
    inventory.write_text(json.dumps({"nodecpu_nodes": {"hosts": hosts}}))


@pytest.mark.parametrize(("variables", "words"), MISTAKES.values(), ids=MISTAKES)
def test_check_names_what_would_end_the_run(programs: Path, variables: dict[str, object], words: str) -> None:
    played = play(programs, "site.yml", "--check", **variables)
    assert played.code != 0
    assert words in played.said


def test_node_without_a_runtime_is_not_fit(programs: Path) -> None:
    package = programs.parent / "nodecpu.deb"
    package.touch()
    played = play(programs, "site.yml", "--check", nodecpu_package=str(package), nodecpu_runtime="crio")
    assert played.code != 0
    assert "`crio --version` does not run on this node" in played.said


def test_upgrade_ends_with_the_first_node_that_fails(programs: Path) -> None:
    have_nodes(programs.parent / "hosts.json", "worker-1", "worker-2")
    played = play(programs, "upgrade.yml", "--check")
    assert played.code != 0
    assert "worker-1" in played.said
    assert "worker-2" not in played.said


def test_cluster_without_our_namespace_gets_the_manifests(programs: Path) -> None:
    """The namespace is among the manifests, yet kubectl diff takes what is to be in it for an error."""
    have(programs, "nodecpu", NODECPU)
    have(programs, "kubectl", KUBECTL.format(said=NO_NAMESPACE, code=2))
    played = play(programs, "cluster.yml", "--check")
    assert played.code == 0, played.said
    assert played.said.split("TASK [Say that they would be applied]")[1].lstrip(" *\n").startswith("changed")


def test_node_that_is_away_keeps_no_other_from_its_credentials(programs: Path) -> None:
    """Even the first, which others used to wait for."""
    have(programs, "nodecpu", NODECPU)
    have(programs, "kubectl", KUBECTL.format(said="+ kind: Namespace", code=1))
    away = {**NODE, "ansible_python_interpreter": "/nowhere/python3"}
    have_nodes(programs.parent / "hosts.json", "worker-1", away=away)
    played = play(programs, "cluster.yml", "--check")
    assert played.code != 0
    assert played.said.count("+ kind: Namespace") == 1
    assert "changed: [worker-1]" in played.said.split("TASK [Put the token in its place]")[1]


def test_cluster_that_cannot_be_asked_is_not_applied_to(programs: Path) -> None:
    have(programs, "nodecpu", NODECPU)
    have(programs, "kubectl", KUBECTL.format(said="connection refused", code=2))
    played = play(programs, "cluster.yml", "--check")
    assert played.code != 0
    assert "TASK [Apply them]" not in played.said


def test_verification_that_fails_tells_what_to_mend(programs: Path) -> None:
    have(programs, "nodecpu", NODECPU)
    have(programs, "journalctl", "#!/bin/sh\necho 'runtime link away'\n")
    played = play(programs, "verify.yml", nodecpu_wait_s=0)
    assert played.code != 0
    told = played.said.split("TASK [Tell what is wrong]")[1]
    assert "NRI socket  no such file" in told
    assert "16 usable" not in told
    assert "runtime link away" in told
