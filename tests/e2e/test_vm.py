"""The life of a whole node with four NUMA nodes: Debian 13 with its own containerd, package, role, systemd, kubelet.

Read from the kernel and from systemd. What is marked ``vm_short`` is what CI has time for.
"""

from __future__ import annotations

import pytest

from tests.e2e.packages import renumbered
from tests.e2e.vm import BOOTED, VirtualMachine
from tests.e2e.vmdisk import LATER_CONTAINERD
from tests.e2e.vmsite import INSTALLED, Node, Scene, Site

pytestmark = pytest.mark.vm
short = pytest.mark.vm_short

LATER_RUNTIME = f"""[Service]
ExecStart=
ExecStart={LATER_CONTAINERD}/containerd
Environment=PATH={LATER_CONTAINERD}:/usr/sbin:/usr/bin:/sbin:/bin
"""
CONFIG_FILE = "/etc/nodecpu/nodecpu.toml"


@short
def test_machine_has_four_nodes_in_two_sockets_and_debians_containerd(machine: VirtualMachine) -> None:
    """NRI is as that comes: off."""
    rows = [line.split(",") for line in machine.ok("lscpu", "-p=CPU,CORE,SOCKET,NODE").splitlines() if line[0] != "#"]
    assert [row[1:] for row in rows] == [[str(cpu // 2), str(cpu // 8), str(cpu // 4)] for cpu in range(16)]
    assert "cpuset" in machine.ok("cat", "/sys/fs/cgroup/cgroup.controllers").split()
    assert machine.ok("dpkg-query", "--show", "--showformat=${Version}", "containerd").startswith("1.7.")
    assert "disable = true" in machine.ok("containerd", "config", "dump").partition("io.containerd.nri.v1.nri")[2]


@short
def test_role_installs_it_and_it_has_all_its_links(site: Site) -> None:
    """The daemon runs in its unit's sandbox, and the runtime has it. Looks only, so nothing need be brought back."""
    assert site.first.changed > 0
    unit = site.machine.unit("nodecpu", "ActiveState", "UnitFileState", "ProtectSystem", "NRestarts")
    assert unit == {"ActiveState": "active", "UnitFileState": "enabled", "ProtectSystem": "strict", "NRestarts": "0"}
    site.machine.ok("systemd-analyze", "security", "--no-pager", "--threshold=20", "nodecpu.service")
    Node(site.machine).await_links(restarts=0)


def test_claim_of_a_whole_node_has_what_is_not_reserved(node: Node) -> None:
    """C2, G2, M1: with that node's memory."""
    assert node.start("holder", node.hold("whole", (3, 3))) == ("12-14", "3")


@short
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
    pinned.await_links(restarts=1)
    assert pinned.ask("written") == {"written": False}
    assert (pinned.look("other"), pinned.look("holder")) == (scene.moved, scene.holder)
    assert pinned.start("second", "pair") == scene.holder


@short
def test_node_goes_down_in_order(node: Node) -> None:
    """Nothing of ours keeps it from that."""
    assert node.machine.shut_down() == 0
    node.machine.restore(INSTALLED)


def test_check_tells_what_the_first_run_changes_and_changes_nothing(site: Site) -> None:
    site.machine.restore(BOOTED)
    told = site.plays.right("site.yml", "--check")
    assert told.changed == site.first.changed
    assert site.machine.run("test", "-e", "/usr/bin/nodecpu").returncode == 1
    assert "disable = true" in site.machine.ok("containerd", "config", "dump").partition("io.containerd.nri.v1.nri")[2]


def test_second_run_and_its_check_change_nothing(site: Site, node: Node) -> None:
    before = node.machine.unit("nodecpu", "MainPID")
    assert site.plays.right("site.yml", "--check").changed == 0
    assert site.plays.right("site.yml").changed == 0
    assert node.machine.unit("nodecpu", "MainPID") == before


def test_wrong_configuration_is_refused_before_the_restart(site: Site, node: Node) -> None:
    file, before = node.machine.ok("cat", CONFIG_FILE), node.machine.unit("nodecpu", "MainPID")
    played = site.plays.play("site.yml", nodecpu_config={"policy": {"reserved": "many"}})
    assert played.code != 0
    assert "reserved" in played.said
    assert node.machine.ok("cat", CONFIG_FILE) == file
    assert node.machine.unit("nodecpu", "MainPID", "ActiveState") == {**before, "ActiveState": "active"}


def test_upgrade_and_downgrade_move_nothing_under_claims(site: Site, pinned: Node, scene: Scene) -> None:
    """R1: the claim is served by each version, no cpuset is written."""
    later = renumbered(site.package, "0.1.0", "0.1.1")
    assert pinned.ask("watch") == {"files": 2}
    for package, version, pod in ((later, "0.1.1", "second"), (site.package, "0.1.0", "third")):
        before = pinned.machine.unit("nodecpu", "MainPID")
        site.plays.right("upgrade.yml", nodecpu_package=str(package), nodecpu_wait_s=300)
        assert pinned.machine.unit("nodecpu", "MainPID") != before
        assert pinned.version() == version
        assert pinned.ask("written") == {"written": False}
        assert (pinned.look("other"), pinned.look("holder")) == (scene.moved, scene.holder)
        assert pinned.start(pod, "pair") == scene.holder
        pinned.ask("watch")


def test_upgrade_of_the_runtime_moves_nothing(pinned: Node, scene: Scene) -> None:
    """R7: containerd 1.7 makes way for 2.1, which reads the same file; its containers run on and are known to it."""
    pinned.machine.put("/etc/systemd/system/containerd.service.d/later.conf", LATER_RUNTIME)
    pinned.machine.ok("systemctl", "daemon-reload")
    pinned.machine.ok("systemctl", "restart", "containerd")
    assert "2.1." in pinned.machine.ok(f"{LATER_CONTAINERD}/ctr", "version").partition("Server:")[2]
    pinned.await_links(restarts=0)
    assert (pinned.look("other"), pinned.look("holder")) == (scene.moved, scene.holder)
    assert pinned.start("second", "pair") == scene.holder
    for name in ("second", "holder"):
        pinned.end(name)
    pinned.until("other", scene.before)


def test_removal_is_refused_while_a_claim_lives_then_leaves_containers_as_they_should_be(
    site: Site, pinned: Node, scene: Scene
) -> None:
    """R5: what runs has room again, and nothing that was made is left."""
    refused = site.plays.play("remove.yml", nodecpu_purge=True)
    assert refused.code != 0
    assert "shop/pair" in refused.said
    assert (pinned.look("other"), pinned.look("holder")) == (scene.moved, scene.holder)
    pinned.end("holder")
    site.plays.right("remove.yml", nodecpu_purge=True)
    places = ("/etc/nodecpu", "/var/lib/nodecpu", "/run/nodecpu", "/usr/lib/nodecpu", "/usr/bin/nodecpu")
    assert [place for place in places if pinned.machine.run("test", "-e", place).returncode == 0] == []
    assert pinned.machine.ok("find", "/run/cdi", "-name", "*.json") == ""
    assert pinned.look("other") == ("0-15", "0-3")
    assert pinned.start("after")[0] != ""


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
