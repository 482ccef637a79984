"""The host as it is found: CPUs, cgroups, directories (E2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.arrangement import not_reserved
from nodecpu.config import Config, Kube, parse
from nodecpu.cpuset import CpuSet
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.preflight.checks import local_findings
from nodecpu.preflight.finding import Finding, Grade
from nodecpu.preflight.host import arranged_host, host_findings, size_findings
from nodecpu.store.database import LINK_HINT


def config(root: Path, extra: str = "") -> Config:
    write_machine(parse_machine("1 socket, 1 node, 2 cores, 2 threads"), root)
    for name in ("cgroup", "state", "run", "cdi", "kubelet/plugins", "kubelet/plugins_registry"):
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name).chmod(0o700)
    (root / "kubeconfig").touch(0o600)
    names = {"root": "", "cgroup": "cgroup", "cdi": "cdi", "kubelet": "kubelet", "state": "state", "run": "run"}
    paths = "\n".join(f'{key} = "{root / name}"' for key, name in names.items())
    return parse(f'{extra}\n[paths]\n{paths}\n[kube]\nkubeconfig = "{root}/kubeconfig"\n', "x")


def unified(root: Path, *, subtree: str = "cpuset cpu", kubepods: str | None = "cpuset") -> None:
    (root / "cgroup/cgroup.controllers").write_text("cpuset cpu memory\n")
    (root / "cgroup/cgroup.subtree_control").write_text(subtree)
    if kubepods is not None:
        (root / "cgroup/kubepods.slice").mkdir()
        (root / "cgroup/kubepods.slice/cgroup.subtree_control").write_text(kubepods)


def found(config: Config) -> Mapping[str, Finding]:
    return {one.check: one for one in host_findings(config)}


def test_host_that_is_right_is_found_so(tmp_path: Path) -> None:
    made = config(tmp_path)
    unified(tmp_path)
    assert {one.check: one.grade for one in host_findings(made) if one.grade is not Grade.OK} == {}
    assert arranged_host(made)[1].seen == "4 usable of 4 online, 0 reserved"


def test_reserving_everything_leaves_nothing_to_give(tmp_path: Path) -> None:
    arranged, finding = arranged_host(config(tmp_path, 'policy.reserved = "0-3"'))
    assert arranged is not None
    assert (finding.grade, finding.remedy) == (Grade.FAILED, "lower policy.reserved")


def test_one_cpu_that_shared_containers_keep_leaves_nothing_to_give(tmp_path: Path) -> None:
    """C14."""
    _, finding = arranged_host(config(tmp_path, 'policy.available = "3"'))
    assert finding.grade is Grade.FAILED
    assert "1 kept for shared containers: none is left for claims" in finding.seen
    assert arranged_host(config(tmp_path, 'policy.available = "2-3"'))[1].grade is Grade.OK


@pytest.mark.parametrize(
    ("reserved", "seen"),
    [
        ('"99"', "policy.reserved names CPUs 99, which cannot be used on this machine: nothing is reserved"),
        ('"0,99"', "policy.reserved names CPUs 99, which cannot be used on this machine: reserved are 0"),
        ("99", "policy.reserved asks for 99 CPUs, 4 could be reserved"),
        ('"0-1"', ""),
        ("2", ""),
    ],
)
def test_reserved_cpus_that_the_machine_does_not_have_are_told(tmp_path: Path, reserved: str, seen: str) -> None:
    """T5: they would be given to claims without a word."""
    settings = config(tmp_path, f"[policy]\nreserved = {reserved}")
    arranged, _ = arranged_host(settings)
    assert arranged is not None
    assert not_reserved(settings, arranged.usable) == seen


def test_reserved_cpus_that_are_not_there_are_a_warning(tmp_path: Path) -> None:
    """E2: with the setting, the CPUs and the next step."""
    _, finding = arranged_host(config(tmp_path, '[policy]\nreserved = "99"'))
    assert finding.grade is Grade.WARNING
    assert "policy.reserved names CPUs 99" in finding.seen
    assert finding.remedy.startswith("let policy.reserved name CPUs of 0-3")


def test_machine_that_cannot_be_read_is_a_finding_not_a_crash(tmp_path: Path) -> None:
    made = config(tmp_path)
    (tmp_path / "sys/devices/system/cpu/online").unlink()
    arranged, finding = arranged_host(made)
    assert arranged is None
    assert finding.grade is Grade.FAILED


@pytest.mark.parametrize(
    ("subtree", "kubepods", "grade"),
    [
        ("cpuset cpu", None, Grade.OK),
        ("cpu memory", "cpuset", Grade.FAILED),
        ("cpuset", "cpu memory", Grade.FAILED),
    ],
)
def test_cpuset_has_to_be_delegated_down_to_the_pods(
    tmp_path: Path, subtree: str, kubepods: str | None, grade: Grade
) -> None:
    made = config(tmp_path)
    unified(tmp_path, subtree=subtree, kubepods=kubepods)
    assert found(made)["cpuset controller"].grade is grade


def test_kernel_without_cpuset_and_no_hierarchy_at_all(tmp_path: Path) -> None:
    made = config(tmp_path)
    assert "no cgroup hierarchy" in found(made)["cpuset controller"].seen
    (tmp_path / "cgroup/cpuset").mkdir()
    assert found(made)["cpuset controller"].grade is Grade.OK
    (tmp_path / "cgroup/cgroup.controllers").write_text("cpu memory\n")
    assert "offers no cpuset" in found(made)["cpuset controller"].seen


def test_directories_that_others_may_write_are_found(tmp_path: Path) -> None:
    made = config(tmp_path)
    (tmp_path / "state").chmod(0o777)
    (tmp_path / "cdi").chmod(0o777)
    (tmp_path / "kubeconfig").chmod(0o644)
    findings = found(made)
    assert findings["state directory"].remedy == f"chown root: {tmp_path}/state; chmod 0700 {tmp_path}/state"
    assert findings["CDI files"].remedy == f"chmod o-w {tmp_path}/cdi"
    assert findings["kubeconfig"].grade is Grade.WARNING


@pytest.mark.parametrize("kind", ["file", "link", "link to nowhere"])
def test_directory_of_ours_that_is_none_is_found(tmp_path: Path, kind: str) -> None:
    made = config(tmp_path)
    (tmp_path / "state").rmdir()
    if kind == "file":
        (tmp_path / "state").touch()
    else:
        (tmp_path / "state").symlink_to(tmp_path / ("run" if kind == "link" else "nowhere"))
    finding = found(made)["state directory"]
    remedy = "remove it; a directory is made at the next start" if kind == "file" else LINK_HINT
    assert (finding.grade, finding.remedy) == (Grade.FAILED, remedy)


def test_missing_things_are_told_apart(tmp_path: Path) -> None:
    made = config(tmp_path)
    (tmp_path / "kubeconfig").unlink()
    (tmp_path / "cdi").rmdir()
    (tmp_path / "cdi").write_text("a file")
    (tmp_path / "state").rmdir()
    findings = found(made)
    assert findings["kubeconfig"].grade is Grade.FAILED
    assert findings["CDI files"].seen == f"{tmp_path}/cdi is no directory"
    assert findings["state directory"].grade is Grade.OK
    assert "kubeconfig" not in found(replace(made, kube=Kube(enabled=False)))


@pytest.mark.parametrize(
    ("cpus", "devices", "checks"),
    [("0-1023", 256, []), ("0-1024", 8, ["CPU numbers"]), ("0-511", 257, ["devices"])],
)
def test_what_goes_wrong_with_large_machines_is_told_before_it_does(cpus: str, devices: int, checks: list[str]) -> None:
    """U68, U151: a runc that cuts affinities at 1024 CPUs, a scheduler that is slow with hundreds of devices."""
    found = list(size_findings(CpuSet.parse(cpus), devices))
    assert [one.check for one in found] == checks
    assert all(one.grade is Grade.WARNING for one in found)


def test_pcie_roots_that_a_device_has_no_room_for_are_told(tmp_path: Path) -> None:
    """D2: they are left out of the attribute, and not without a word."""
    assert "PCIe roots" not in {one.check for one in local_findings(config(tmp_path), None, run=lambda _: "")}
    for number in range(60):
        (tmp_path / f"sys/devices/pci{number:04x}:00").mkdir(parents=True)
    made = config(tmp_path, "[dra]\npcie_roots = true\n")
    (found,) = (one for one in local_findings(made, None, run=lambda _: "") if one.check == "PCIe roots")
    assert found.grade is Grade.WARNING
    assert found.seen.startswith("cpudevnuma000 has no room for 23 of the PCIe roots near it, from pci0025:00 on: ")
