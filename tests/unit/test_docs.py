"""The documents agree with the program: the picture, the verbs, the links."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from nodecpu.cli import main
from nodecpu.cli.render.node import draw_node
from nodecpu.config import Config
from nodecpu.cpuset import NO_CPUS
from nodecpu.dra.devices import Dividing, devices_of
from nodecpu.dra.slices import Form, device_object
from nodecpu.policy.annotations import KEYS
from nodecpu.policy.usable import usable_cpus
from nodecpu.topology.model import PcieRoot
from tests.support import ROOT
from tests.unit.nodestates import n4c16
from tests.unit.policy.machines import N4C16, build_topology

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_readme_shows_the_node_as_the_program_draws_it() -> None:
    assert draw_node(n4c16(), 100).plain in (ROOT / "README.md").read_text()


def test_every_verb_is_in_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    verbs = re.findall(r"^    ([a-z]+)(?: {2,}|$)", capsys.readouterr().out, re.MULTILINE)
    described = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert verbs
    assert [verb for verb in verbs if f"`nodecpu {verb}" not in described] == []


def test_every_page_can_be_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[2:] if page.relative_to(ROOT).as_posix() not in readme] == []


def test_every_annotation_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "annotations.md").read_text()
    assert [key for key in KEYS if f"`{key}`" not in page] == []
    assert [
        f.name for f in fields(Config().annotations) if f.name not in ("domain", *re.findall(r"`(\w+)`", page))
    ] == []


def test_every_attribute_of_a_device_is_in_the_reference() -> None:
    """D2: whatever it is grouped by, and the capacity and the taint as well."""
    page = (ROOT / "docs" / "reference" / "devices.md").read_text()
    topology = build_topology(N4C16)
    topology = replace(topology, pcie_roots=(PcieRoot(name="pci0000:00", cpus=topology.numa[0].cpus),))
    usable = usable_cpus(online=topology.online, isolated=NO_CPUS, available=None, kubepods=None, reserved=NO_CPUS)
    found: set[str] = set()
    for grouping in ("numa", "individual"):
        dividing = Dividing(grouping=grouping, pcie_roots=True)
        for device in devices_of(topology, usable, dividing=dividing, driver="dra.cpu"):
            found |= device.attributes.keys() | {"dra.cpu/cpu"}
            written = json.loads(json.dumps(device_object("dra.cpu", device, Form(closed=True))))
            found |= {taint["key"] for taint in written["taints"]} | written.get("capacity", {}).keys()
    assert len(found) > 14
    assert sorted(name for name in found if f"`{name}`" not in page) == []


def test_every_alert_has_its_line_for_who_is_woken_by_it() -> None:
    rules = (ROOT / "packaging" / "alerts" / "nodecpu.rules.yml").read_text()
    alerts = re.findall(r"- alert: (\w+)", rules)
    table = re.findall(r"^\| (Nodecpu[\w, ]+) \|", (ROOT / "docs/how-to/debug.md").read_text(), re.MULTILINE)
    assert sorted(name for line in table for name in line.split(", ")) == sorted(alerts)
