"""The model of the cgroup tree behaves as the kernel's documents say."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.lab.cgroups import CgroupError, ModelCgroups, directory, slice_path

POD = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1.slice"
SCOPE = f"{POD}/cri-containerd-c1.scope"


def tree(root: Path) -> ModelCgroups:
    cgroups = ModelCgroups(root, cpus=CpuSet.parse("0-7"), mems=NodeSet.parse("0-1"))
    cgroups.open()
    return cgroups


def effective(cgroups: ModelCgroups, path: str) -> tuple[str, str]:
    found = cgroups.effective(path)
    assert found is not None
    return str(found.cpus), str(found.mems)


def test_nothing_written_means_all_that_the_parent_has(tmp_path: Path) -> None:
    cgroups = tree(tmp_path)
    cgroups.create(SCOPE)
    assert effective(cgroups, SCOPE) == ("0-7", "0-1")
    cgroups.write_cpuset(POD, "0-3", "1")
    assert effective(cgroups, SCOPE) == ("0-3", "1")


def test_own_set_is_cut_by_the_parents_and_never_empty(tmp_path: Path) -> None:
    cgroups = tree(tmp_path)
    cgroups.create(SCOPE)
    cgroups.write_cpuset(SCOPE, "2-5", "0")
    cgroups.write_cpuset(POD, "0-3", "")
    assert effective(cgroups, SCOPE) == ("2-3", "0")
    cgroups.write_cpuset(POD, "6-7", "")
    assert effective(cgroups, SCOPE) == ("6-7", "0")


def test_empty_text_writes_nothing(tmp_path: Path) -> None:
    cgroups = tree(tmp_path)
    cgroups.create(SCOPE)
    cgroups.write_cpuset(SCOPE, "2", "1")
    cgroups.write_cpuset(SCOPE, "", "")
    assert cgroups.configured(SCOPE) == ("2", "1")
    assert cgroups.writes(SCOPE) == 1


def test_cpus_that_the_machine_lacks_are_refused(tmp_path: Path) -> None:
    cgroups = tree(tmp_path)
    cgroups.create(SCOPE)
    with pytest.raises(CgroupError, match="out of range"):
        cgroups.write_cpuset(SCOPE, "8", "")
    with pytest.raises(CgroupError, match="no such file"):
        cgroups.write_cpuset(f"{POD}/gone", "1", "")


def test_writes_of_others_take_effect_and_are_counted_even_with_the_same_text(tmp_path: Path) -> None:
    cgroups = tree(tmp_path)
    cgroups.create(SCOPE)
    cgroups.write_cpuset(SCOPE, "2", "")
    (tmp_path / SCOPE.strip("/") / "cpuset.cpus").write_text("2\n")
    assert (cgroups.writes(SCOPE), cgroups.foreign_writes(SCOPE)) == (2, 1)
    (tmp_path / SCOPE.strip("/") / "cpuset.cpus").write_text("4-5\n")
    assert effective(cgroups, SCOPE) == ("4-5", "0-1")


def test_populated_follows_processes_up_the_tree(tmp_path: Path) -> None:
    cgroups = tree(tmp_path)
    cgroups.create(SCOPE)
    other = f"{POD}/cri-containerd-c2.scope"
    cgroups.create(other)

    def populated(path: str) -> bool:
        return (tmp_path / path.strip("/") / "cgroup.events").read_text().startswith("populated 1")

    assert populated(SCOPE)
    assert populated("/kubepods.slice")
    cgroups.kill(SCOPE)
    assert cgroups.effective(SCOPE) is None
    assert populated(POD)
    cgroups.kill(other)
    assert not populated("/kubepods.slice")


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("kubepods-besteffort-pod1.slice:cri-containerd:c1", SCOPE),
        ("/kubepods/besteffort/pod1/c1", "/kubepods/besteffort/pod1/c1"),
    ],
)
def test_both_forms_of_paths_name_a_directory(path: str, where: str) -> None:
    assert directory(path) == where
    assert slice_path("a-b-c.slice") == "/a.slice/a-b.slice/a-b-c.slice"


def test_the_tightest_quota_up_to_the_root_counts(tmp_path: Path) -> None:
    cgroups = tree(tmp_path)
    cgroups.create(SCOPE)
    assert cgroups.cpus_allowed_by_quota(SCOPE) is None
    cgroups.write_quota(SCOPE, 300_000, 100_000)
    cgroups.write_quota(POD, 250_000, 100_000)
    assert cgroups.cpus_allowed_by_quota(SCOPE) == 2.5
    cgroups.write_quota(POD, -1, 100_000)
    assert cgroups.cpus_allowed_by_quota(SCOPE) == 3
    cgroups.write_quota(f"{POD}/gone", 1, 100_000)
