"""The lab sees for itself who intrudes on a claim's CPUs (G9), whatever the daemon says."""

from __future__ import annotations

from pathlib import Path

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.lab.apiserver import now
from nodecpu.lab.cgroups import ModelCgroups
from nodecpu.lab.claimbook import ClaimBook, holdings
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.containers import ContainerConfig, ContainerRecord, SandboxConfig, SandboxRecord
from nodecpu.lab.objects import ObjectStore
from nodecpu.lab.podspec import Figures

UID = "11111111-2222-3333-4444-555555555555"
VARIABLE = f"DRA_CPUSET_{UID}=2-3"


def container(name: str, *, device: bool, variable: bool) -> ContainerRecord:
    config = SandboxConfig(uid=name, namespace="default", name=name, cgroup_parent="/kubepods", figures=Figures())
    cdi = (f"dra.cpu/cpu=claim-{UID}-0",) if device else ()
    return ContainerRecord(
        id=name,
        sandbox=SandboxRecord(id=f"s-{name}", config=config, pid=1),
        config=ContainerConfig(name="main", figures=Figures(), cdi=cdi),
        cgroups_path=f"/kubepods/{name}",
        env=[VARIABLE] if variable else [],
        shares=2,
        quota_us=None,
        period_us=100000,
        memory_bytes=None,
    )


def test_only_a_cdi_device_makes_a_holder() -> None:
    assert holdings(container("a", device=True, variable=True)) == {UID: CpuSet.parse("2-3")}
    assert holdings(container("a", device=False, variable=True)) == {}
    assert holdings(container("a", device=True, variable=False)) == {}


def test_container_on_a_held_claims_cpus_is_found(tmp_path: Path) -> None:
    cgroups = ModelCgroups(tmp_path, cpus=CpuSet.parse("0-3"), mems=NodeSet.parse("0"))
    cgroups.open()
    book = ClaimBook(Cluster(ObjectStore(now=now), node_name="n", driver="dra.cpu"), tmp_path / "cdi")
    holder, other = container("holder", device=True, variable=True), container("other", device=False, variable=True)
    for record, cpus in ((holder, "2-3"), (other, "0-2")):
        cgroups.create(record.directory)
        cgroups.write_cpuset(record.directory, cpus, "")
    assert book.intrusion([other], cgroups) == ""
    assert book.intrusion([holder, other], cgroups) == f"other/main runs on 2 of claim {UID}"
    cgroups.write_cpuset(other.directory, "0-1", "")
    assert book.intrusion([holder, other], cgroups) == ""
