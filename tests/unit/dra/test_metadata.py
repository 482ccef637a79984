"""Device metadata: text and files (D6, KEP-5304)."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.dra.cdi import CdiDirectory
from nodecpu.dra.files import ClaimFiles
from nodecpu.dra.metadata import MetadataFiles, container_path, describer, metadata_ids, metadata_text, requests_of
from nodecpu.errors import HostError
from nodecpu.ids import ClaimUID
from nodecpu.lab.cdi import read_specs
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.policy.grants import ClaimGrant, ResultGrant
from nodecpu.topology.sysfs import read_topology

UID = ClaimUID("00000001-0000-4000-8000-000000000000")
HOST = f"plugins/dra.cpu/dra-device-metadata/{UID}"


def result(request: str, cpus: str, device: str = "cpudevnuma001", *, admin: bool = False) -> ResultGrant:
    return ResultGrant(request=request, pool="node1", device=device, cpus=CpuSet.parse(cpus), admin_access=admin)


def grant(*results: ResultGrant, name: str = "web", pod_claim: str = "") -> ClaimGrant:
    return ClaimGrant(
        uid=UID,
        namespace="shop",
        name=name,
        results=results,
        cdi_ids=(f"dra.cpu/cpu=claim-{UID}-0", *metadata_ids("dra.cpu", UID, results)),
        pod_claim=pod_claim,
    )


def plain(cpus: CpuSet) -> Mapping[str, str]:
    return {"dra.cpu/cpuset": str(cpus)}


def first_line(path: Path) -> bytes:
    return path.read_bytes().splitlines()[0]


@pytest.fixture
def files(tmp_path: Path) -> ClaimFiles:
    specs = CdiDirectory(tmp_path / "cdi", driver="dra.cpu")
    return ClaimFiles(specs, MetadataFiles(specs, tmp_path / "plugins/dra.cpu", driver="dra.cpu", describe=plain))


def test_ids_are_one_for_each_request() -> None:
    """C11: sub-requests of one request share it."""
    made = grant(result("a/small", "4"), result("a/small", "5"), result("b", "6"))
    assert requests_of("dra.cpu", made) == {"a": f"dra.cpu/metadata={UID}_a", "b": f"dra.cpu/metadata={UID}_b"}


def test_text_is_one_object_of_the_known_form_in_each_version_newest_first() -> None:
    """D6: a reader takes the first that it knows."""
    made = grant(result("a/small", "4-5"), result("b", "6"), pod_claim="cpus")
    text = metadata_text("dra.cpu", made, "a", plain, generation=3)
    assert text.endswith(b"}\n")
    told = [json.loads(line) for line in text.splitlines()]
    versions = [one.pop("apiVersion") for one in told]
    assert versions == ["metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1"]
    assert told[0] == told[1]
    assert told[0] == {
        "kind": "DeviceMetadata",
        "metadata": {"name": "web", "namespace": "shop", "uid": UID, "generation": 3},
        "podClaimName": "cpus",
        "requests": [
            {
                "name": "a/small",
                "devices": [
                    {
                        "driver": "dra.cpu",
                        "pool": "node1",
                        "name": "cpudevnuma001",
                        "attributes": {"dra.cpu/cpuset": {"string": "4-5"}},
                    }
                ],
            }
        ],
    }


def test_each_cpu_has_its_core_cache_numa_node_and_socket(tmp_path: Path) -> None:
    """D6: on n4c16; what holds for all is told as the device's own attributes are."""
    write_machine(parse_machine("2 sockets, 2 nodes, 2 cores, 2 threads"), tmp_path)
    describe = describer(read_topology(tmp_path), "dra.cpu")
    told = describe(CpuSet.parse("4-5,8"))
    assert told["dra.cpu/cpuIDs"] == (4, 5, 8)
    assert told["dra.cpu/numaNodeIDs"] == (1, 1, 2)
    assert told["dra.cpu/socketIDs"] == (0, 0, 1)
    cores = told["dra.cpu/coreIDs"]
    assert isinstance(cores, tuple)
    assert cores[0] == cores[1]
    caches = told["dra.cpu/cacheL3IDs"]
    assert isinstance(caches, tuple)
    assert len(caches) == 3
    assert "resource.kubernetes.io/numaNode" not in told
    assert describe(CpuSet.parse("4-5"))["resource.kubernetes.io/numaNode"] == 1
    assert describe(CpuSet())["dra.cpu/numCPUs"] == 0


def test_attributes_keep_to_what_readers_may_check(tmp_path: Path) -> None:
    """D6: 32 attributes, texts of 64 characters; the numbers tell a set that is longer than that."""
    write_machine(parse_machine("2 sockets, 4 nodes, 8 cores, 2 threads"), tmp_path)
    describe = describer(read_topology(tmp_path), "dra.cpu")
    scattered = CpuSet(range(0, 128, 2))
    told = describe(scattered)
    assert len(told) <= 32
    assert all(len(value) <= 64 for value in told.values() if isinstance(value, str))
    assert told["dra.cpu/cpuIDs"] == tuple(scattered)
    assert "dra.cpu/cpuset" not in told
    assert describe(CpuSet.parse("0-63"))["dra.cpu/cpuset"] == "0-63"


@pytest.mark.parametrize(("pod_claim", "path"), [("", "resourceclaims/web"), ("cpus", "resourceclaimtemplates/cpus")])
def test_path_in_the_container_is_the_conventions(pod_claim: str, path: str) -> None:
    """D6: a workload knows the names of its pod's spec, not those of claims made of templates."""
    made = grant(result("a", "4"), pod_claim=pod_claim)
    expected = f"/var/run/kubernetes.io/dra-device-attributes/{path}/a/dra.cpu-metadata.json"
    assert container_path("dra.cpu", made, "a") == expected


def test_files_are_readable_mounted_and_resolvable(files: ClaimFiles, tmp_path: Path) -> None:
    """C11: whatever the umask; the CDI library's strictness is the lab's."""
    made = grant(result("a", "4-5"), result("b", "6"))
    mask = os.umask(0o077)
    try:
        files.write(made)
    finally:
        os.umask(mask)
    specs = read_specs(tmp_path / "cdi")
    assert specs.refused == {}
    for request, cdi_id in requests_of("dra.cpu", made).items():
        ((host, inside),) = specs.devices[cdi_id].mounts
        assert inside == container_path("dra.cpu", made, request)
        assert stat.S_IMODE(Path(host).stat().st_mode) == 0o644
        for directory in (Path(host).parent, Path(host).parent.parent):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o755
        assert json.loads(first_line(Path(host)))["metadata"]["generation"] == 1


def test_containers_can_only_read_their_files(files: ClaimFiles, tmp_path: Path) -> None:
    """C11: all containers of a claim have the same one."""
    files.write(grant(result("a", "4-5"), result("b", "6")))
    specs = [json.loads(path.read_text()) for path in (tmp_path / "cdi").iterdir()]
    mounts = [
        mount for spec in specs for device in spec["devices"] for mount in device["containerEdits"].get("mounts", ())
    ]
    assert len(mounts) == 2
    assert all(set(mount["options"]) == {"ro", "bind"} for mount in mounts)


def test_change_is_written_in_place_with_a_higher_generation(files: ClaimFiles, tmp_path: Path) -> None:
    """D6: a container's mount follows the inode."""
    path = tmp_path / HOST / "a.json"
    files.write(grant(result("a", "4-5,8-11")))
    inode = path.stat().st_ino
    files.write(grant(result("a", "4-5,8-11")))
    assert json.loads(first_line(path))["metadata"]["generation"] == 1
    files.write(grant(result("a", "6")))
    assert path.stat().st_ino == inode
    told = json.loads(first_line(path))
    assert told["metadata"]["generation"] == 2
    assert told["requests"][0]["devices"][0]["attributes"] == {"dra.cpu/cpuset": {"string": "6"}}


@pytest.mark.parametrize("damage", ["", "{", '{"metadata": {"generation": "x"}}', '{"metadata": {"generation": -5}}'])
def test_damaged_file_is_made_anew(files: ClaimFiles, tmp_path: Path, damage: str) -> None:
    path = tmp_path / HOST / "a.json"
    files.write(grant(result("a", "4-5")))
    path.write_text(damage)
    files.write(grant(result("a", "4-5")))
    assert json.loads(first_line(path))["metadata"]["generation"] == 1


def test_file_that_is_cut_short_is_written_whole_and_tells_of_it(files: ClaimFiles, tmp_path: Path) -> None:
    """D6: by a crash in the middle of it; the generation never goes back while it can be read."""
    path = tmp_path / HOST / "a.json"
    files.write(grant(result("a", "4-5")))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    files.write(grant(result("a", "4-5")))
    assert path.read_bytes() == whole.replace(b'"generation":1', b'"generation":2')


def test_claim_without_answered_metadata_has_none(files: ClaimFiles, tmp_path: Path) -> None:
    """C11: what decides is what was answered, not what is configured now."""
    files.write(replace(grant(result("a", "4")), cdi_ids=(f"dra.cpu/cpu=claim-{UID}-0",)))
    assert [path.name for path in (tmp_path / "cdi").iterdir()] == [f"dra.cpu-cpu_{UID}.json"]


def test_removal_leaves_nothing(files: ClaimFiles, tmp_path: Path) -> None:
    """C12: twice is fine."""
    files.write(grant(result("a", "4"), result("b", "5")))
    files.remove(UID)
    files.remove(UID)
    assert list((tmp_path / "cdi").iterdir()) == []
    assert not (tmp_path / HOST).exists()


def test_restore_rebuilds_what_is_missing_and_drops_orphans(files: ClaimFiles, tmp_path: Path) -> None:
    """C11: after a reboot the CDI directory is empty; without the runtime's word nothing is removed."""
    made = grant(result("a", "4"))
    orphan = replace(made, uid=ClaimUID("orphan"), cdi_ids=metadata_ids("dra.cpu", ClaimUID("orphan"), made.results))
    files.write(orphan)
    files.restore([made])
    assert set(read_specs(tmp_path / "cdi").devices) >= {*made.cdi_ids, *orphan.cdi_ids}
    files.restore([made], used={ClaimUID("orphan")})
    assert set(read_specs(tmp_path / "cdi").devices) >= {*made.cdi_ids, *orphan.cdi_ids}
    files.restore([made], used=set())
    assert set(read_specs(tmp_path / "cdi").devices) == set(made.cdi_ids)
    assert [path.name for path in (tmp_path / HOST).parent.iterdir()] == [UID]


def test_link_in_the_files_place_is_refused(files: ClaimFiles, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    path = tmp_path / HOST / "a.json"
    path.parent.mkdir(parents=True)
    path.symlink_to(target)
    with pytest.raises(HostError, match="device metadata"):
        files.write(grant(result("a", "4")))
    assert target.read_text() == "keep"
