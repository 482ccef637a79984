"""cpusets are found and read in every form of cgroup tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodecpu.cpuset import NO_CPUS, CpuSet, NodeSet
from nodecpu.enforce.cgroups import Cgroups, Effective

SYSTEMD = "kubepods-besteffort-pod1_2.slice:cri-containerd:abc"
SYSTEMD_DIR = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_2.slice/cri-containerd-abc.scope"


def make(root: Path, directory: str, *, unified: bool, cpus: str = "0-3", mems: str = "0") -> Path:
    """Make a container's cgroup as the kernel shows it."""
    names = (
        ("cpuset.cpus.effective", "cpuset.mems.effective")
        if unified
        else ("cpuset.effective_cpus", "cpuset.effective_mems")
    )
    if unified:
        (root / "cgroup.controllers").write_text("cpuset cpu\n")
    where = (root if unified else root / "cpuset") / directory
    where.mkdir(parents=True)
    (where / names[0]).write_text(cpus + "\n")
    (where / names[1]).write_text(mems + "\n")
    (where / "cpuset.cpus").write_text("\n")
    (where / "cpuset.mems").write_text("\n")
    return where


@pytest.mark.parametrize("unified", [True, False], ids=["v2", "v1"])
@pytest.mark.parametrize(
    ("path", "directory"),
    [(SYSTEMD, SYSTEMD_DIR), ("/kubepods/besteffort/pod1/abc", "kubepods/besteffort/pod1/abc")],
    ids=["systemd", "cgroupfs"],
)
def test_effective_sets_are_read(tmp_path: Path, path: str, directory: str, *, unified: bool) -> None:
    """E1: v1 and v2, both drivers."""
    make(tmp_path, directory, unified=unified)
    assert Cgroups(tmp_path).effective(path) == Effective(cpus=CpuSet.parse("0-3"), mems=NodeSet.parse("0"))


def test_a_cgroup_that_is_gone_or_odd_reads_as_nothing(tmp_path: Path) -> None:
    make(tmp_path, "kubepods/x", unified=True, cpus="(null)")
    make(tmp_path, "kubepods/empty", unified=True, cpus="")
    cgroups = Cgroups(tmp_path)
    assert cgroups.effective("/kubepods/x") is None
    assert cgroups.effective("/kubepods/empty") is None
    assert cgroups.effective("/kubepods/gone") is None
    assert cgroups.effective("") is None
    assert not cgroups.is_populated("/kubepods/gone")


def test_a_path_cannot_lead_out_of_the_tree(tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    make(tmp_path, "elsewhere", unified=True)
    assert Cgroups(tmp_path / "cgroup").effective("/../elsewhere") is None
    assert not Cgroups(tmp_path / "cgroup").write("/kubepods/../../elsewhere", CpuSet([1]), NodeSet())


def test_populated_is_told_by_events_or_by_processes_below(tmp_path: Path) -> None:
    """G11, C12."""
    (tmp_path / "two").mkdir()
    unified = make(tmp_path / "two", "kubepods/x", unified=True)
    (unified / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    assert Cgroups(tmp_path / "two").is_populated("/kubepods/x")
    (unified / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    assert not Cgroups(tmp_path / "two").is_populated("/kubepods/x")
    old = make(tmp_path / "one", "kubepods/x", unified=False)
    (old / "cgroup.procs").write_text("")
    assert not Cgroups(tmp_path / "one").is_populated("/kubepods/x")
    (old / "inner").mkdir()
    (old / "inner" / "cgroup.procs").write_text("42\n")
    assert Cgroups(tmp_path / "one").is_populated("/kubepods/x")


def test_an_empty_set_is_never_written(tmp_path: Path) -> None:
    """Never an empty cpuset."""
    where = make(tmp_path, "kubepods/x", unified=True)
    (where / "cpuset.cpus").write_text("0-1")
    assert Cgroups(tmp_path).write("/kubepods/x", NO_CPUS, NodeSet.parse("1"))
    assert (where / "cpuset.cpus").read_text() == "0-1"
    assert (where / "cpuset.mems").read_text() == "1"


def test_kubepods_cuts_what_is_usable(tmp_path: Path) -> None:
    """T5: no such slice or no cpuset: no cut."""
    assert Cgroups(tmp_path).kubepods() is None
    make(tmp_path, "kubepods.slice", unified=True, cpus="0-7")
    assert Cgroups(tmp_path).kubepods() == CpuSet.parse("0-7")
