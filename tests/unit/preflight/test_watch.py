"""The daemon's own preflight: decides to stand aside, reports what changed, and only that (E2)."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.aside import Aside
from nodecpu.dra.publish import PublishStatus
from nodecpu.log import LineFormatter
from nodecpu.metrics import Counters
from nodecpu.nri.versions import runtime_version
from nodecpu.preflight.checks import RuntimeLink
from nodecpu.preflight.finding import Grade
from nodecpu.preflight.watch import Preflight, Views
from tests.unit.preflight.test_host import config

UP = RuntimeLink(is_up=True, state="connected", version=runtime_version("containerd", "2.4.0", ""))
AWAY = RuntimeLink(is_up=False, state="away", version=None)


def policy(root: Path, name: str) -> None:
    (root / "kubelet/cpu_manager_state").write_text(json.dumps({"policyName": name}))


class Scene:
    def __init__(self, root: Path) -> None:
        self.config = config(root)
        self.link = UP
        self.published: PublishStatus | None = None
        self.changes: list[str] = []
        self.changed = asyncio.Event()
        self.aside = Aside(self._note, Counters())
        views = Views(
            config=lambda: self.config, link=lambda: self.link, api=lambda: None, published=lambda: self.published
        )
        self.preflight = Preflight(views, self.aside, node="n1", quick_s=0.001, full_s=1000)

    def _note(self) -> None:
        self.changes.append(self.aside.reason)
        self.changed.set()

    def grade(self, check: str) -> Grade | None:
        return next((one.grade for one in self.preflight.findings if one.check == check), None)


def test_decision_comes_before_anything_else(tmp_path: Path) -> None:
    """U94: a static CPU manager is found before the first container could be pinned."""
    scene = Scene(tmp_path)
    policy(tmp_path, "static")
    scene.preflight.decide()
    scene.preflight.decide()
    assert scene.changes == ["the kubelet's CPU manager is static, by its state file"]


def test_aside_ends_when_the_kubelet_was_set_right(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    policy(tmp_path, "static")
    scene.preflight.decide()
    assert scene.aside.reason

    async def run() -> None:
        scene.changed.clear()
        policy(tmp_path, "none")
        task = asyncio.create_task(scene.preflight.run())
        async with asyncio.timeout(30):
            await scene.changed.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    assert scene.changes[-1] == ""


def test_name_that_the_kubelet_was_given_since_the_start_asks_for_a_restart(tmp_path: Path) -> None:
    """U106: the node joined its cluster after the daemon was started."""
    scene = Scene(tmp_path)
    flags = tmp_path / "kubelet/kubeadm-flags.env"
    for name, grade in (("n1", Grade.OK), ("n2", Grade.FAILED)):
        flags.write_text(f'KUBELET_KUBEADM_ARGS="--hostname-override={name}"')
        asyncio.run(scene.preflight.look())
        assert scene.grade("node name") is grade
    (found,) = [one for one in scene.preflight.findings if one.check == "node name"]
    assert found.seen.endswith("the daemon has run as n1 since its start")
    assert found.remedy == "restart it: nodecpu restart"


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [LineFormatter(prefixed=False).format(record) for record in caplog.records]
    return [line for line in lines if "NRI socket" in line]


def test_what_is_wrong_is_logged_once_and_again_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(tmp_path)
    scene.link = AWAY
    with caplog.at_level(logging.WARNING):
        asyncio.run(scene.preflight.look())
        first = told(caplog)
        asyncio.run(scene.preflight.look())
        assert told(caplog) == first
    assert len(first) == 1
    assert "disable = false" in first[0]
    scene.link = UP
    asyncio.run(scene.preflight.look())
    assert next(one for one in scene.preflight.findings if one.check == "NRI socket").grade is Grade.OK


def test_what_a_link_makes_untrue_that_comes_up_during_the_look_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """E2: the first look takes longer than the link to the runtime; what is wrong all the same is told once."""
    scene = Scene(tmp_path)
    scene.link = AWAY

    async def story() -> None:
        look = asyncio.create_task(scene.preflight.look())
        await asyncio.sleep(0)
        scene.link = UP
        scene.preflight.look_soon()
        await look
        assert not caplog.records
        await scene.preflight.look()

    with caplog.at_level(logging.WARNING):
        asyncio.run(story())
    assert told(caplog) == []
    lines = [LineFormatter(prefixed=False).format(record) for record in caplog.records]
    assert any("cpuset controller" in line for line in lines), "what is wrong here whatever the link is"
    assert len(set(lines)) == len(lines)


def test_fields_that_the_server_drops_tell_a_gate_that_is_off(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert not [one for one in scene.preflight.findings if one.check == "feature gates"]
    scene.published = PublishStatus(in_step=True)
    assert [one.grade for one in scene.preflight.findings] == [Grade.OK]
    scene.published = PublishStatus(dropped=("spec.devices[0].allowMultipleAllocations",), withheld=True)
    (finding,) = scene.preflight.findings
    assert finding.grade is Grade.FAILED
    assert "DRAConsumableCapacity" in finding.remedy
    scene.published = PublishStatus(dropped=("spec.devices[0].attributes.a/b.strings",))
    (finding,) = scene.preflight.findings
    assert finding.grade is Grade.WARNING
    assert "turn DRAListTypeAttributes on" in finding.remedy


def test_claims_that_were_to_be_counted_and_are_not_are_told(tmp_path: Path) -> None:
    """D3, G13: the two reasons that leave no dropped field behind."""
    scene = Scene(tmp_path)
    scene.config = replace(scene.config, dra=replace(scene.config.dra, node_allocatable=True))
    scene.published = PublishStatus(in_step=True)
    (finding,) = scene.preflight.findings
    assert finding.grade is Grade.WARNING
    assert "older than 1.36, or does not tell its version" in finding.seen
    scene.published = PublishStatus(in_step=True, counted=True)
    assert [one.grade for one in scene.preflight.findings] == [Grade.OK]


def test_link_that_came_up_is_looked_at_at_once(tmp_path: Path) -> None:
    """E2: what the operator reads is not what was true at the start."""

    async def story() -> None:
        scene = Scene(tmp_path)
        scene.link = AWAY
        task = asyncio.create_task(scene.preflight.run())
        async with asyncio.timeout(10):
            while scene.grade("NRI socket") is not Grade.FAILED:  # noqa: ASYNC110 - there is nothing to wait on
                await asyncio.sleep(0)
            scene.link = UP
            scene.preflight.look_soon()
            while scene.grade("NRI socket") is not Grade.OK:  # noqa: ASYNC110 - likewise
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(story())
