"""Other programs that set cpusets of containers are found by their processes (E2, U76)."""

from __future__ import annotations

from pathlib import Path

from nodecpu.preflight.finding import Grade
from nodecpu.preflight.others import others_finding
from tests.unit.preflight.test_kubelet import process


def test_other_driver_is_named_with_its_process_wherever_it_runs(tmp_path: Path) -> None:
    """U76."""
    process(tmp_path, 9, "/usr/bin/kubelet")
    process(tmp_path, 88, "/dracpu", "--v=4", cgroup="0::/kubepods.slice/pod1\n")
    process(tmp_path, 77, "/bin/nri-resource-policy-topology-aware")
    finding = others_finding(tmp_path)
    assert finding.grade is Grade.FAILED
    assert finding.seen.startswith(
        "dra-driver-cpu (process 88), nri-plugins with the policy topology-aware (process 77): both would set"
    )


def test_without_another_driver_or_without_proc_all_is_well(tmp_path: Path) -> None:
    assert others_finding(tmp_path).grade is Grade.OK
    process(tmp_path, 9, "")
    process(tmp_path, 10, "/usr/bin/python3", "dracpu")
    assert others_finding(tmp_path).grade is Grade.OK
