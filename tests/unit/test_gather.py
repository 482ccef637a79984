"""The archive of ``nodecpu gather``: complete, replayable, the same for the same state, without secrets."""

from __future__ import annotations

import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from nodecpu.config import Config
from nodecpu.errors import HostError
from nodecpu.gather import NOTES, Notes, gather
from nodecpu.topology.sysfs import read_topology
from tests.unit.preflight.test_host import config, unified

NOTHING = Notes(texts=(("state.json", "{}\n"),))


def told(command: Sequence[str]) -> str:
    return {"journalctl": "12:00 nodecpu ready\n", "containerd": "containerd v2.4.0\nmore\n"}.get(command[0], "")


def made(root: Path, name: str = "a.tar.gz", settings: Config | None = None) -> Path:
    target = root / name
    gather(target, settings or config(root), NOTHING, run=told)
    return target


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return tar.getnames()


def text(archive: Path, name: str) -> str:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(f"{NOTES}/{name}")
        assert file is not None
        return file.read().decode()


def test_machine_can_be_played_on(tmp_path: Path) -> None:
    """T1: the archive has all that the discovery reads, where the lab looks for it."""
    archive = made(tmp_path)
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "again", filter="data")
    assert read_topology(tmp_path / "again") == read_topology(tmp_path)


def test_everything_has_its_place(tmp_path: Path) -> None:
    settings = config(tmp_path)
    unified(tmp_path)
    scope = tmp_path / "cgroup/kubepods.slice/kubepods-pod1.slice"
    scope.mkdir()
    (scope / "cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cdi/dra.cpu-1.json").write_text("{}")
    (tmp_path / "cdi/gpu.json").write_text("{}")
    (tmp_path / "kubelet/cpu_manager_state").write_text('{"policyName":"none"}')
    archive = made(tmp_path, settings=settings)
    notes = [name.removeprefix(f"{NOTES}/") for name in names(archive) if name.startswith(NOTES)]
    assert notes == [
        "state.json",
        "versions.txt",
        "cgroups.txt",
        "cdi/dra.cpu-1.json",
        "kubelet/cpu_manager_state",
        "journal.txt",
    ]
    assert text(archive, "cgroups.txt") == "/kubepods.slice/kubepods-pod1.slice/cpuset.cpus: 0-1\n"
    assert "containerd v2.4.0\n" in text(archive, "versions.txt")
    assert text(archive, "journal.txt") == "12:00 nodecpu ready\n"


def test_equal_states_give_equal_archives(tmp_path: Path) -> None:
    first, second = made(tmp_path), made(tmp_path, "b.tar.gz")
    assert first.read_bytes() == second.read_bytes()
    assert stat.S_IMODE(first.stat().st_mode) == 0o600


def test_secrets_stay_where_they_are(tmp_path: Path) -> None:
    settings = config(tmp_path)
    secret = "client-key-data"
    (tmp_path / "kubeconfig").write_text(secret)
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/environ").write_text(secret)
    link = tmp_path / "sys/devices/system/cpu/cpu0/topology/secret"
    link.symlink_to(tmp_path / "kubeconfig")
    private = tmp_path / "sys/devices/system/cpu/private"
    private.write_text(secret)
    private.chmod(0o600)
    with tarfile.open(made(tmp_path, settings=settings)) as tar:
        for member in tar.getmembers():
            file = tar.extractfile(member)
            assert file is not None
            assert secret not in file.read().decode()


def test_nothing_is_overwritten_and_nothing_half_is_left(tmp_path: Path) -> None:
    settings = config(tmp_path)
    target = tmp_path / "a.tar.gz"
    target.write_text("precious")
    with pytest.raises(HostError, match="is there already"):
        gather(target, settings, NOTHING, run=told)
    assert target.read_text() == "precious"
    with pytest.raises(HostError, match="cannot be written"):
        gather(tmp_path / "none/a.tar.gz", settings, NOTHING, run=told)

    def fails(command: Sequence[str]) -> str:
        raise OSError(28, "No space left on device")

    with pytest.raises(HostError, match="No space left"):
        gather(tmp_path / "b.tar.gz", settings, NOTHING, run=fails)
    assert not (tmp_path / "b.tar.gz").exists()


def test_machine_without_a_topology_is_gathered_all_the_same(tmp_path: Path) -> None:
    settings = config(tmp_path)
    (tmp_path / "sys/devices/system/cpu/online").unlink()
    assert "sys/devices/system/cpu/cpu0/topology/core_id" in names(made(tmp_path, settings=settings))


def test_whoever_listens_hears_how_far_the_machine_is_read(tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    settings = config(tmp_path)
    gather(tmp_path / "a.tar.gz", settings, NOTHING, run=told, told=lambda *one: heard.append(one))
    machine = [one[1:] for one in heard if one[0] == "machine"]
    assert machine == [(0, 0), *((number, len(machine) - 1) for number in range(1, len(machine)))]
    assert len(machine) > 1
