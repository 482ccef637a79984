"""The documents agree with the program: the picture, the verbs, the links."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from nodecpu.cli import main
from nodecpu.cli.render.node import draw_node
from nodecpu.config import Config
from nodecpu.policy.annotations import KEYS
from tests.support import ROOT
from tests.unit.nodestates import n4c16

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


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
