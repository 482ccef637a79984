"""A part of the long fuzz loop of ``tests.fuzz.decoders``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import decoders

COUNT = 1500
NAMES = (
    *("claim", "pod", "slice", "prepare", "registration", "configuration"),
    *("claim row", "container row", "CDI spec", "list", "quantity", "pod row"),
    *("state file", "kubeconfig", "certificate", "token", "kubelet configuration", "runtime configuration", "mounts"),
    *("cgroup files", "variables", "annotations", "pod resources", "version", "request"),
)


@pytest.mark.parametrize("name", NAMES)
def test_spoilt_input_is_a_sound_value_or_a_typed_error(name: str, tmp_path: Path) -> None:
    """C1, N1, D4, T1: any bytes and any JSON, for each decoder of what others wrote."""
    count = COUNT // 5 if name in decoders.SLOW else COUNT
    outcomes = decoders.run(name, decoders.targets(tmp_path)[name], count, seed=1)
    assert outcomes.total() == count
    assert outcomes["value"] > count // 20, outcomes


def test_spoilt_sysfs_is_a_sound_machine_or_a_typed_error() -> None:
    """T1 to T3."""
    outcomes = decoders.run_sysfs(decoders.machines(), COUNT // 5, seed=1)
    assert outcomes["value"] > COUNT // 10, outcomes


def test_every_target_is_tested(tmp_path: Path) -> None:
    assert set(decoders.targets(tmp_path)) == set(NAMES)


def test_input_that_takes_too_long_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(_: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(decoders, "HANG_S", 0.05)
    with pytest.raises(AssertionError, match="forever 7/0"):
        decoders.run("forever", decoders.Target((b"x",), take), 1, seed=7)
