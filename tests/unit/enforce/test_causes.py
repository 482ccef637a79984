"""Who has changed a cpuset, as far as it can be told (E1)."""

from __future__ import annotations

import asyncio

import pytest

from nodecpu.cpuset import NO_NODES, CpuSet
from nodecpu.enforce.causes import WORDS, Cause, cause_of
from nodecpu.policy.pending import Seen
from nodecpu.policy.plan import Placement

OURS, THEIRS = CpuSet.parse("4-5"), CpuSet.parse("0-15")


class Files:
    def __init__(self, configured: CpuSet | None) -> None:
        self._configured = configured

    def configured(self, cgroups_path: str) -> CpuSet | None:
        assert cgroups_path == "/kubepods/c1"
        return self._configured


class Units:
    def __init__(self, told: CpuSet | None) -> None:
        self._told = told

    async def told(self, cgroups_path: str) -> CpuSet | None:
        assert cgroups_path == "/kubepods/c1"
        return self._told


@pytest.mark.parametrize(
    ("configured", "unit", "record", "cause"),
    [
        pytest.param(OURS, None, None, Cause.PARENT, id="ours is set and has no effect"),
        pytest.param(THEIRS, None, THEIRS, Cause.RUNTIME, id="the runtime knows it"),
        pytest.param(THEIRS, THEIRS, OURS, Cause.SYSTEMD, id="systemd knows it"),
        pytest.param(CpuSet(), None, OURS, Cause.RESET, id="nothing is set"),
        pytest.param(None, None, None, Cause.RESET, id="nothing can be read"),
        pytest.param(THEIRS, OURS, OURS, Cause.UNKNOWN, id="nobody knows it"),
        pytest.param(THEIRS, None, None, Cause.UNKNOWN, id="nobody says anything"),
    ],
)
def test_cause_is_who_knows_what_is_set_now(
    configured: CpuSet | None, unit: CpuSet | None, record: CpuSet | None, cause: Cause
) -> None:
    """U74: a reload of systemd is told from others."""
    found = asyncio.run(
        cause_of(
            Files(configured),
            Units(unit),
            "/kubepods/c1",
            seen=Seen(cpus=THEIRS, mems=NO_NODES),
            wanted=Placement(cpus=OURS, mems=NO_NODES),
            record=record,
        )
    )
    assert found is cause


def test_every_cause_has_words() -> None:
    assert set(WORDS) == set(Cause)
