"""The verb ``lab``: its exit code tells whether all came out as it should, and nothing is left behind."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodecpu.config import parse, render_toml
from nodecpu.errors import ConfigError
from nodecpu.gather import Notes, gather
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.lab.run import main

pytestmark = pytest.mark.lab

WRONG = """
title = "A wrong expectation"
[play]
steps = [
  { daemon = "start" },
  { see_devices = { cpudevnuma000 = 5 }, within_s = 0.1 },
]
"""
DEAD = """
title = "A daemon that cannot start"
[daemon.policy]
colour = "red"
[play]
steps = [{ daemon = "start" }]
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary ones, to see what is left; its path is short, since socket paths are."""
    del tmp_path  # made before: it must not be made in the room
    with tempfile.TemporaryDirectory(prefix="room") as room:
        monkeypatch.setattr(tempfile, "tempdir", room)
        yield Path(room)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(WRONG, "step 2 (see_devices ): published are", id="wrong expectation"),
        pytest.param(DEAD, "step 1 (daemon start): the daemon ended with 78", id="daemon dies"),
    ],
)
def test_failing_step_is_told_and_gives_exit_code_1(
    content: str, why: str, room: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.toml"
    file.write_text(content)
    assert main(["--scenario", str(file)]) == 1
    shown = capsys.readouterr().out
    assert why in shown
    assert "✓" not in shown
    assert not list(room.iterdir())


def test_directory_that_is_no_machine_is_named(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever names it reads what is missing there, not where the program was."""
    assert main(["--machine", str(room)]) == 1
    assert f"{room} is no recorded machine: it has no sys/devices/system/cpu/online" in capsys.readouterr().out


def test_long_directory_for_temporary_files_is_named(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths of sockets are short."""
    deep = room / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert main([]) == 1
    assert "TMPDIR should be a short path" in capsys.readouterr().out


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "demo" in capsys.readouterr().out


def test_kept_directory_holds_the_log_and_the_configuration(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--keep", "--scenario", "numa-devices-offer-their-cpus"]) == 0
    kept = next(iter(room.iterdir()))
    assert f"kept in {kept}" in capsys.readouterr().out
    assert {"daemon.log", "nodecpu.toml", "cgroup", "host"} <= {file.name for file in kept.iterdir()}


def gathered(directory: Path, *, reserved: str) -> Path:
    """Return an archive of a machine with four CPUs."""
    write_machine(parse_machine("4 cores"), directory)
    paths = "".join(f'{name} = "{directory / name}"\n' for name in ("cgroup", "cdi", "kubelet"))
    text = f'[paths]\nroot = "{directory}"\n{paths}[policy]\nreserved = "{reserved}"\n[dra]\ndriver = "x.cpu"\n'
    config = parse(text, "node.toml")
    archive = directory / "gathered.tar.gz"
    gather(archive, config, Notes(texts=(("config.toml", render_toml(config)),)), run=lambda _: "")
    return archive


def test_gathered_archive_is_played_with_its_machine_and_settings(
    tmp_path: Path, room: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """T1: what was gathered elsewhere comes out here, under the names of the lab."""
    assert main(["--from", str(gathered(tmp_path, reserved="3"))]) == 0
    said = capfd.readouterr().out
    assert "4 CPUs" in said
    assert re.search(r"=  reserved +1 CPU +3$", said, re.MULTILINE)
    assert not list(room.iterdir())


def test_another_machine_is_played_by_what_comes_out_on_any(room: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--machine", "1 socket, 1 node, 3 cores, 2 threads"]) == 0
    said = capfd.readouterr().out
    assert "On any machine" in said
    assert "6 CPUs" in said


def test_archive_of_something_else_is_told_as_such(tmp_path: Path) -> None:
    other = tmp_path / "other.tar"
    tarfile.open(other, "w").close()
    with pytest.raises(ConfigError, match="is not what nodecpu gather writes"):
        main(["--from", str(other)])


def test_archive_that_is_not_there_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.tar\.gz cannot be read: No such file"):
        main(["--from", str(tmp_path / "none.tar.gz")])


def test_machine_that_is_not_understood_is_told_as_such(room: Path) -> None:
    with pytest.raises(ConfigError, match="'cores 6' is not understood"):
        main(["--machine", "cores 6", "--scenario", "on-any-machine"])
    assert not list(room.iterdir())
