"""CDI specs and their directory (C6, C11, C12, C13)."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.dra.cdi import CdiDirectory, cdi_ids, spec_text
from nodecpu.errors import BadRequest, HostError
from nodecpu.ids import ClaimUID
from nodecpu.policy.grants import ClaimGrant, ResultGrant

UID = ClaimUID("cf3ab531-0d17-4d75-961a-98cb71615a07")
NAME = f"dra.cpu-cpu_{UID}.json"


def result(request: str, cpus: str, *, admin: bool = False) -> ResultGrant:
    return ResultGrant(
        request=request, pool="node1", device="cpudevnuma001", cpus=CpuSet.parse(cpus), admin_access=admin
    )


def grant(*results: ResultGrant, uid: str = UID, answered: tuple[str, ...] = ()) -> ClaimGrant:
    return ClaimGrant(uid=ClaimUID(uid), namespace="shop", name="web", results=results, cdi_ids=answered)


def environment(one: ClaimGrant) -> Mapping[str, list[str]]:
    spec = json.loads(spec_text("dra.cpu", one))
    return {device["name"]: device["containerEdits"]["env"] for device in spec["devices"]}


@pytest.fixture
def directory(tmp_path: Path) -> CdiDirectory:
    return CdiDirectory(tmp_path / "cdi", driver="dra.cpu")


def test_spec_has_a_device_for_each_result_with_claim_and_request_variables() -> None:
    """C11: each result sets "DRA_CPUSET_<claim UID>=<cpuset> to the whole claim's CPUs"."""
    one = grant(result("main", "4-5"), result("a-b/c", "0"), result("main", "7"))
    assert json.loads(spec_text("dra.cpu", one)) == {
        "cdiVersion": "0.5.0",
        "kind": "dra.cpu/cpu",
        "devices": [
            {
                "name": f"claim-{UID}-{index}",
                "containerEdits": {"env": [f"DRA_CPUSET_{UID}=0,4-5,7", f"DRA_CPUSET_{UID}_{variable}"]},
            }
            for index, variable in enumerate(["main=4-5,7", "a_b_c=0", "main=4-5,7"])
        ],
    }
    assert cdi_ids("dra.cpu", one) == tuple(f"dra.cpu/cpu=claim-{UID}-{i}" for i in range(3))


def test_admin_device_has_edits_but_none_that_pin() -> None:
    """C13: a device without edits would make the whole file invalid."""
    env = environment(grant(result("main", "4-5"), result("look", "", admin=True)))
    assert env[f"claim-{UID}-1"] == [f"DRA_ADMIN_{UID}=cpudevnuma001"]
    assert not any("look" in one for one in env[f"claim-{UID}-0"])


def test_ids_answered_earlier_stay_resolvable() -> None:
    """C11: the claim was allocated again with fewer results."""
    old = tuple(f"dra.cpu/cpu=claim-{UID}-{i}" for i in range(2))
    env = environment(grant(result("main", "4-5"), answered=(*old, "dra.cpu/metadata=x")))
    assert env[f"claim-{UID}-1"] == [f"DRA_CPUSET_{UID}=4-5"]
    assert len(env) == 2


def test_file_is_complete_world_readable_and_written_once(directory: CdiDirectory, tmp_path: Path) -> None:
    """C11."""
    mask = os.umask(0o077)
    try:
        assert directory.write(grant(result("main", "4-5")))
    finally:
        os.umask(mask)
    path = tmp_path / "cdi" / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert path.read_bytes() == spec_text("dra.cpu", grant(result("main", "4-5")))
    assert not directory.write(grant(result("main", "4-5")))
    assert [p.name for p in (tmp_path / "cdi").iterdir()] == [NAME]


@pytest.mark.parametrize("damage", ["gone", "cut", "mode", "link", "directory"])
def test_spec_that_is_not_as_it_should_be_is_rebuilt(directory: CdiDirectory, tmp_path: Path, damage: str) -> None:
    """C6; a link in its place is replaced, never followed."""
    one = grant(result("main", "4-5"))
    directory.write(one)
    path, target = tmp_path / "cdi" / NAME, tmp_path / "target"
    target.write_bytes(spec_text("dra.cpu", one))
    target.chmod(0o644)
    if damage == "mode":
        path.chmod(0o600)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-5])
    else:
        path.unlink()
    if damage == "link":
        path.symlink_to(target)
    if damage == "directory":
        path.mkdir()
        with pytest.raises(HostError, match=r"CDI spec .*Is a directory.*cdi_spec_dirs"):
            directory.write(one)
        assert [p.name for p in (tmp_path / "cdi").iterdir()] == [NAME]
        return
    assert directory.write(one)
    assert not path.is_symlink()
    assert path.read_bytes() == spec_text("dra.cpu", one)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_link_left_as_temporary_file_is_not_written_through(directory: CdiDirectory, tmp_path: Path) -> None:
    (tmp_path / "cdi").mkdir()
    (tmp_path / "cdi" / f"{NAME}.tmp").symlink_to(tmp_path / "target")
    assert directory.write(grant(result("main", "4-5")))
    assert not (tmp_path / "target").exists()


def test_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "cdi").symlink_to(tmp_path / "real")
    with pytest.raises(HostError, match="CDI spec"):
        CdiDirectory(tmp_path / "cdi", driver="dra.cpu").write(grant(result("main", "4-5")))


def test_removing_twice_is_fine(directory: CdiDirectory) -> None:
    """C6, C12."""
    directory.remove(UID)
    directory.write(grant(result("main", "4-5")))
    directory.remove(UID)
    directory.remove(UID)
    assert directory.claims() == ()


def test_claim_without_results_has_no_file(directory: CdiDirectory) -> None:
    assert not directory.write(grant())
    assert directory.claims() == ()


@pytest.mark.parametrize("uid", ["../../etc/passwd", "a/b", "", ".", "x" * 65, "a=b"])
def test_uid_that_is_no_uid_never_becomes_a_path(directory: CdiDirectory, uid: str) -> None:
    with pytest.raises(BadRequest, match="malformed"):
        directory.write(grant(result("main", "4"), uid=uid))
    with pytest.raises(BadRequest, match="malformed"):
        directory.remove(ClaimUID(uid))


def test_restore_writes_only_differences_and_leaves_what_is_not_ours(directory: CdiDirectory, tmp_path: Path) -> None:
    """C11."""
    kept, changed = grant(result("main", "4-5"), uid="kept"), grant(result("main", "6"), uid="changed")
    released = replace(grant(result("main", "0"), uid="released"), released=True)
    for one in (kept, changed, released, grant(result("main", "1"), uid="orphan")):
        directory.write(one)
    others = ["dra.cpu-cpu_.json", "dra.cpu-cpu_a b.json", "vendor-gpu.json", "dra.cpu-cpu_kept.yaml", "x.json.tmp"]
    for name in [*others, "dra.cpu-cpu_kept.json.tmp"]:
        (tmp_path / "cdi" / name).write_text("{}")
    before = (tmp_path / "cdi" / "dra.cpu-cpu_kept.json").stat().st_ino
    books = [kept, replace(changed, results=(result("main", "6-7"),)), released, grant(result("main", "8"), uid="new")]

    first = directory.restore(books)
    assert (first.written, first.removed) == (("changed", "new"), ())
    assert directory.claims() == ("changed", "kept", "new", "orphan", "released")

    second = directory.restore(books, used={ClaimUID("released")})
    assert (second.written, second.removed) == ((), ("orphan",))
    assert directory.claims() == ("changed", "kept", "new", "released")
    assert (tmp_path / "cdi" / "dra.cpu-cpu_kept.json").stat().st_ino == before
    left = {path.name for path in (tmp_path / "cdi").iterdir()}
    assert set(others) <= left
    assert "dra.cpu-cpu_kept.json.tmp" not in left


def test_directory_that_cannot_be_made_is_named_in_the_error() -> None:
    with pytest.raises(HostError, match=r"CDI spec /proc/self/cdi/.*has to be writable"):
        CdiDirectory(Path("/proc/self/cdi"), driver="dra.cpu").write(grant(result("main", "4-5")))
