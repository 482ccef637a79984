"""The threat model: every test that it names is there, so no claim of it stands alone."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT

PAGE = ROOT / "docs" / "explanation" / "security.md"
NAMED = sorted(set(re.findall(r"`([a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`", PAGE.read_text())))
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| cannot")]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_test_that_the_page_names_is_there(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / "tests" / file).read_text()


@pytest.mark.parametrize("row", ROWS)
def test_every_claim_has_a_test(row: str) -> None:
    assert "::test_" in row


def test_page_speaks_of_each_kind_of_attacker() -> None:
    titles = [line for line in PAGE.read_text().splitlines() if line.startswith("## Somebody")]
    assert [word for word in ("pod", "namespace", "account", "network") if word not in " ".join(titles)] == []
    assert len(ROWS) >= 25
