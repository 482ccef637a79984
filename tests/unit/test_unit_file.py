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


PROMISES = {
    "a restart keeps the containers' books": {"RuntimeDirectory=nodecpu", "RuntimeDirectoryPreserve=yes"},
    "books are root's alone": {"StateDirectoryMode=0700", "RuntimeDirectoryMode=0700", "UMask=0077"},
    "a hung daemon is ended": {"Type=notify", "WatchdogSec=30"},
    "a reload is asked for by signal": {"ExecReload=/bin/kill -HUP $MAINPID"},
    "it gets its turn on a full node": {"CPUWeight=1000", "IOWeight=1000"},
    "it is not killed for the memory of others": {
        *("OOMScoreAdjust=-999", "OOMPolicy=continue", "ManagedOOMPreference=omit"),
    },
    "it starts before the kubelet, after the runtimes": {
        *("Before=kubelet.service", "After=network-online.target containerd.service crio.service"),
    },
    "cgroups stay writable": {"ProtectControlGroups=no"},
}


@pytest.mark.parametrize("lines", PROMISES.values(), ids=PROMISES)
def test_unit_keeps_what_is_promised(unit: Path, lines: set[str]) -> None:
    assert lines - set(unit.read_text().splitlines()) == set()


def test_unit_depends_on_no_runtime_and_no_kubelet(unit: Path) -> None:
    """It outlives their restarts: it is ordered, and needs the network alone."""
    needs = ("Wants", "Requires", "Requisite", "BindsTo", "PartOf", "Upholds", "Conflicts", "PropagatesStopTo")
    lines = [line for line in unit.read_text().splitlines() if line.partition("=")[0] in needs]
    assert lines == ["Wants=network-online.target"]
