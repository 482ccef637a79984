"""Containers below kubepods that nobody has told of (E1, U58)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodecpu.enforce.strangers import Strangers

LONG = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
SLICE = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234_5678.slice"


def group(root: Path, place: str, *, populated: bool = True) -> str:
    """Make a cgroup; return its place as it is told."""
    where = root / place
    where.mkdir(parents=True)
    (where / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
    return f"/{place}"


def looked(root: Path, *known: str) -> tuple[str, ...]:
    """Return what two looks in a row have found."""
    strangers = Strangers(root)
    assert strangers.look(known) == ()
    return strangers.look(known)


@pytest.mark.parametrize(
    "place",
    [
        f"{SLICE}/cri-containerd-{LONG}.scope",
        f"{SLICE}/crio-{LONG}.scope",
        f"{SLICE}/crio-conmon-{LONG}.scope",
        f"kubepods/besteffort/pod1234-5678/{LONG}",
        f"kubepods/podabc/{LONG}",
        "kubepods/podabc/short_1",
        f"{SLICE}/crio-short_1.scope",
        f"{SLICE}/short_1.scope",
    ],
)
def test_group_without_a_known_id_is_a_stranger_in_both_namings(place: str, tmp_path: Path) -> None:
    told = group(tmp_path, place)
    assert looked(tmp_path, OTHER) == (told,)
    assert looked(tmp_path, OTHER, LONG, "short_1") == ()


def test_group_is_only_told_when_two_looks_have_found_it(tmp_path: Path) -> None:
    """U58: its event may be on the way."""
    strangers = Strangers(tmp_path)
    told = group(tmp_path, f"{SLICE}/cri-containerd-{LONG}.scope")
    assert strangers.look(()) == ()
    assert strangers.look((LONG,)) == ()
    assert strangers.look(()) == ()
    assert strangers.look(()) == (told,)


def test_what_has_no_processes_is_within_a_container_or_is_none_is_left_out(tmp_path: Path) -> None:
    group(tmp_path, f"{SLICE}/cri-containerd-{OTHER}.scope", populated=False)
    group(tmp_path, f"{SLICE}/cri-containerd-{LONG}.scope")
    group(tmp_path, f"{SLICE}/cri-containerd-{LONG}.scope/init.scope")
    group(tmp_path, "system.slice/containerd.service")
    group(tmp_path, "kubepods.slice/kubepods-besteffort.slice")
    assert looked(tmp_path, LONG) == ()


def test_processes_tell_where_there_are_no_events(tmp_path: Path) -> None:
    """Cgroup v1."""
    where = tmp_path / "kubepods" / "podabc" / LONG
    where.mkdir(parents=True)
    (where / "cgroup.procs").write_text("")
    assert looked(tmp_path) == ()
    (where / "cgroup.procs").write_text("17\n")
    assert looked(tmp_path) == (f"/kubepods/podabc/{LONG}",)
