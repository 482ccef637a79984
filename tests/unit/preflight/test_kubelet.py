"""How the kubelet is found to be set up, from files as it writes them and from its flags (E2, U94)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.preflight.finding import Finding, Grade
from nodecpu.preflight.kubelet import Kubelet, directory_finding, in_the_way, kubelet_findings, policies, read_kubelet
from nodecpu.preflight.nodename import NodeName

KUBELET = "var/lib/kubelet"
NODE = NodeName(name="n1", source="the host's name")


def kubelet_dir(root: Path) -> Path:
    directory = root / KUBELET
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def state_file(root: Path, what: str, policy: str) -> None:
    content = {"policyName": policy, "defaultCpuSet": "0-15", "checksum": 1353318690}
    (kubelet_dir(root) / f"{what}_manager_state").write_text(json.dumps(content))


def process(root: Path, pid: int, *argv: str, cgroup: str = "0::/system.slice/kubelet.service\n") -> None:
    directory = root / "proc" / str(pid)
    directory.mkdir(parents=True)
    (directory / "cmdline").write_text("\0".join(argv) + "\0")
    (directory / "cgroup").write_text(cgroup)


def found(kubelet: Kubelet, reserved: str | None = "", *, pin_memory: bool = True) -> Mapping[str, Finding]:
    ours = None if reserved is None else CpuSet.parse(reserved)
    return {one.check: one for one in kubelet_findings(kubelet, node=NODE, reserved=ours, pin_memory=pin_memory)}


@pytest.mark.parametrize(
    ("argv", "grade"),
    [
        (("/usr/bin/kubelet", "--root-dir=/mnt/kubelet"), Grade.FAILED),
        (("/usr/bin/kubelet", "--root-dir", "/nowhere/kubelet/"), Grade.OK),
        (("/usr/bin/kubelet",), Grade.UNKNOWN),
    ],
)
def test_kubelet_that_looks_elsewhere_is_named_with_the_setting(
    tmp_path: Path, argv: tuple[str, ...], grade: Grade
) -> None:
    """U82."""
    process(tmp_path, 812, *argv)
    finding = directory_finding(read_kubelet(tmp_path, tmp_path / KUBELET), Path("/nowhere/kubelet"))
    assert finding.grade is grade
    if grade is Grade.FAILED:
        assert finding.remedy == 'set paths.kubelet = "/mnt/kubelet", and restart'


def test_kubelet_directory_that_is_there_is_right_if_nothing_tells_of_another(tmp_path: Path) -> None:
    """U82."""
    directory = kubelet_dir(tmp_path)
    assert directory_finding(read_kubelet(tmp_path, directory), directory).grade is Grade.OK


def test_static_policy_by_a_flag_is_not_mended_by_the_configuration_alone(tmp_path: Path) -> None:
    """U94."""
    process(tmp_path, 812, "/usr/bin/kubelet", "--cpu-manager-policy=static")
    kubelet_dir(tmp_path).joinpath("config.yaml").write_text("memoryManagerPolicy: Static\n")
    findings = found(read_kubelet(tmp_path, tmp_path / KUBELET))
    assert "take --cpu-manager-policy, which overrides it, from" in findings["kubelet CPU manager"].remedy
    assert "memoryManagerPolicy: None in" in findings["kubelet memory manager"].remedy
    assert "--memory-manager-policy" not in findings["kubelet memory manager"].remedy


def test_kubelet_directory_may_be_a_link_to_the_kubelets_own(tmp_path: Path) -> None:
    """U82."""
    (tmp_path / "own").mkdir()
    (tmp_path / "usual").symlink_to("own")
    process(tmp_path, 812, "/usr/bin/kubelet", f"--root-dir={tmp_path}/own")
    assert directory_finding(read_kubelet(tmp_path, tmp_path / KUBELET), tmp_path / "usual").grade is Grade.OK


def test_state_file_tells_the_policy(tmp_path: Path) -> None:
    state_file(tmp_path, "cpu", "none")
    state_file(tmp_path, "memory", "None")
    kubelet = policies(tmp_path / KUBELET)
    assert kubelet.cpu == {"state file": "none"}
    assert in_the_way(kubelet, pin_memory=True) == ""
    assert found(kubelet)["kubelet CPU manager"].grade is Grade.OK


def test_static_cpu_manager_is_in_the_way_and_the_remedy_names_file_and_key(tmp_path: Path) -> None:
    """U94: two managers would fight."""
    state_file(tmp_path, "cpu", "static")
    (tmp_path / KUBELET / "config.yaml").write_text("cpuManagerPolicy: static\n")
    kubelet = read_kubelet(tmp_path, tmp_path / KUBELET)
    why = "the kubelet's CPU manager is static, by its configuration and state file"
    assert in_the_way(kubelet, pin_memory=False) == why
    finding = found(kubelet)["kubelet CPU manager"]
    assert finding.grade is Grade.FAILED
    assert f"set cpuManagerPolicy: none in {tmp_path}/{KUBELET}/config.yaml" in finding.remedy
    assert "remove cpu_manager_state" in finding.remedy


def test_static_memory_manager_is_in_the_way_only_where_memory_is_pinned(tmp_path: Path) -> None:
    state_file(tmp_path, "cpu", "none")
    state_file(tmp_path, "memory", "Static")
    kubelet = policies(tmp_path / KUBELET)
    assert "memory manager" in in_the_way(kubelet, pin_memory=True)
    assert in_the_way(kubelet, pin_memory=False) == ""
    assert found(kubelet)["kubelet memory manager"].grade is Grade.FAILED
    assert found(kubelet, pin_memory=False)["kubelet memory manager"].grade is Grade.OK


def test_configuration_decides_before_the_kubelet_ever_ran(tmp_path: Path) -> None:
    """At the first boot the daemon starts before the kubelet: there is no state file yet."""
    (kubelet_dir(tmp_path) / "config.yaml").write_text("kind: KubeletConfiguration\ncpuManagerPolicy: static\n")
    assert in_the_way(policies(tmp_path / KUBELET), pin_memory=True) != ""
    (tmp_path / KUBELET / "config.yaml").write_text("kind: KubeletConfiguration\n")
    assert policies(tmp_path / KUBELET).cpu == {"configuration": "none"}


def test_flags_configuration_and_drop_ins_of_the_running_kubelet_are_read(tmp_path: Path) -> None:
    (tmp_path / "etc/kubelet.d").mkdir(parents=True)
    (tmp_path / "etc/kubelet.yaml").write_text('reservedSystemCPUs: "0-1"\ncpuManagerPolicy: none\n')
    (tmp_path / "etc/kubelet.d/10-a.conf").write_text('reservedSystemCPUs: "0-3"\n')
    process(
        tmp_path,
        77,
        "/usr/bin/kubelet",
        "--config=/etc/kubelet.yaml",
        "--config-dir",
        "/etc/kubelet.d",
        "--hostname-override=n2",
        "--cpu-manager-policy",
        "static",
    )
    kubelet = read_kubelet(tmp_path, tmp_path / KUBELET)
    assert kubelet.cpu == {"configuration": "none", "flags": "static"}
    assert (kubelet.reserved, kubelet.node) == ("0-3", "n2")
    assert found(kubelet)["node name"].remedy == 'set [node] name = "n2"'


@pytest.mark.parametrize("cgroup", ["0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-a.scope\n", None])
def test_container_that_calls_itself_kubelet_is_not_taken_for_it(tmp_path: Path, cgroup: str | None) -> None:
    """A pod must not be able to turn pinning off on its node."""
    process(tmp_path, 5, "kubelet", "--cpu-manager-policy=static", cgroup=cgroup or "")
    if cgroup is None:
        (tmp_path / "proc/5/cgroup").unlink()
    state_file(tmp_path, "cpu", "none")
    assert read_kubelet(tmp_path, tmp_path / KUBELET).cpu == {"state file": "none"}


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"policyName": 1}', "\xff", "a: [", "- 1"])
def test_broken_files_tell_nothing_and_break_nothing(tmp_path: Path, text: str) -> None:
    directory = kubelet_dir(tmp_path)
    (directory / "cpu_manager_state").write_text(text)
    (directory / "config.yaml").write_text(text)
    kubelet = read_kubelet(tmp_path, directory)
    assert in_the_way(kubelet, pin_memory=True) == ""
    assert found(kubelet)["kubelet memory manager"].grade in (Grade.UNKNOWN, Grade.OK)


@pytest.mark.parametrize(
    ("theirs", "ours", "grade"),
    [
        ("0-1", "0-1", Grade.OK),
        ("", "", Grade.OK),
        ("", "0", Grade.OK),
        ("0-1", "0", Grade.WARNING),
        ("0-1", "", Grade.WARNING),
        ("0-1", None, Grade.UNKNOWN),
        ("zero", "0", Grade.UNKNOWN),
    ],
)
def test_reserved_cpus_are_compared(theirs: str, ours: str | None, grade: Grade) -> None:
    finding = found(Kubelet(cpu={}, memory={}, reserved=theirs), ours)["reserved CPUs"]
    assert finding.grade is grade
    assert bool(finding.remedy) == (grade is Grade.WARNING)
