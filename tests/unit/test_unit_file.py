"""The systemd unit: accepted without a word, and as tight as it is meant to be."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT, need_program

EXPOSURE = 20
"""Tenths of systemd's exposure level."""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return a copy of the unit whose program exists on this machine."""
    copy = tmp_path / "nodecpu.service"
    copy.write_text((ROOT / "systemd" / "nodecpu.service").read_text().replace("/usr/bin/nodecpu", "/bin/true"))
    return copy


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([need_program("systemd-analyze"), *arguments], capture_output=True, text=True, timeout=60)


def test_unit_is_verified_without_output(unit: Path) -> None:
    """systemd-analyze verify exits 0 on unknown keys, so any output counts."""
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_exposure_stays_low(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE}", str(unit))
    assert done.returncode == 0, done.stdout


def test_a_wrong_configuration_is_not_retried(unit: Path) -> None:
    """Exit code 78 (ConfigError) ends it; everything else is restarted without a limit."""
    lines = unit.read_text().splitlines()
    assert {"RestartPreventExitStatus=78", "Restart=always", "StartLimitIntervalSec=0"} <= set(lines)
