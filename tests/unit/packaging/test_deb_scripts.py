"""What dpkg calls, with its arguments: run in a tree of its own, among programs that only tell their calls."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT

PLACES = ("/etc/nodecpu", "/var/lib", "/run", "/usr/lib/nodecpu")
MASKED = "var/lib/systemd/deb-systemd-helper-masked/nodecpu.service"
PROGRAMS = ("deb-systemd-helper", "deb-systemd-invoke", "systemctl", "systemd-tmpfiles", "package-steps")
TELLS = """#!/bin/sh
echo "$(basename "$0") $*" >>{calls}
case "$*" in *is-active*) exit {active} ;; esac
"""


def called(tree: Path, script: str, *arguments: str, active: bool = False) -> str:
    """Return the calls that a script makes; its places are those of the tree."""
    text = (ROOT / "packaging" / "scripts" / script).read_text()
    for place in PLACES:
        text = text.replace(f"{place}/", f"{tree}{place}/").replace(f"{place} ", f"{tree}{place} ")
    for place in ("usr/lib/nodecpu", "run/systemd/system", "bin"):
        (tree / place).mkdir(parents=True, exist_ok=True)
    calls = tree / "calls"
    calls.write_text("")
    for program in PROGRAMS:
        path = tree / ("usr/lib/nodecpu" if program == "package-steps" else "bin") / program
        path.write_text(TELLS.format(calls=calls, active=0 if active else 3))
        path.chmod(0o755)
    (tree / script).write_text(text)
    environment = {"PATH": f"{tree}/bin:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", str(tree / script), *arguments], check=False, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return calls.read_text()


def test_first_installation_starts_it(tmp_path: Path) -> None:
    assert "deb-systemd-invoke start nodecpu.service" in called(tmp_path, "deb-postinst", "configure", "")


def test_installation_after_a_removal_starts_it(tmp_path: Path) -> None:
    """The rescue of claims whose pods are stuck. dpkg tells the version that was removed as it does with an upgrade."""
    (tmp_path / MASKED).parent.mkdir(parents=True)
    (tmp_path / MASKED).touch()
    assert "deb-systemd-invoke start nodecpu.service" in called(tmp_path, "deb-postinst", "configure", "0.1.0-1~deb13")


@pytest.mark.parametrize("active", [True, False])
def test_upgrade_restarts_what_runs_and_starts_nothing(tmp_path: Path, *, active: bool) -> None:
    calls = called(tmp_path, "deb-postinst", "configure", "0.1.0-1~deb13", active=active)
    assert ("deb-systemd-invoke restart nodecpu.service" in calls) is active
    assert "deb-systemd-invoke start" not in calls


@pytest.mark.parametrize("line", ['driver = "cpu.example.org"', "dra.driver='cpu.example.org' # ours"])
def test_purge_takes_the_files_of_the_configured_driver_alone(tmp_path: Path, line: str) -> None:
    """By then dpkg has removed the configuration."""
    config = tmp_path / "etc/nodecpu/nodecpu.toml"
    specs = [tmp_path / "run/cdi" / f"{driver}-cpu_1.json" for driver in ("cpu.example.org", "dra.cpu")]
    for path in (config, *specs, tmp_path / "var/lib/nodecpu/claims.db"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    config.write_text(f"[dra]\n{line}\n")
    called(tmp_path, "deb-postrm", "remove")
    assert [path.exists() for path in specs] == [True, True]
    config.unlink()
    called(tmp_path, "deb-postrm", "purge")
    assert [path.exists() for path in specs] == [False, True]
    assert not (tmp_path / "var/lib/nodecpu").exists()
