"""Every rule has a test, and the page that says so is current."""

from __future__ import annotations

import pytest

from tests.rules import PAGE, all_covers, mentioned, page, uncovered


def test_every_rule_is_named_by_a_test() -> None:
    assert uncovered(all_covers()) == []


def test_the_page_is_what_the_docstrings_say() -> None:
    is_current = PAGE.read_text() == page(all_covers())
    assert is_current, "run make rules"


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("C6, L1: the same answer", {"C6", "L1"}),
        ("C1 to C3 in one", {"C1", "C2", "C3"}),
        ("the L3 cache of CPU C99", set()),
        ("P1-P3 (X9 is none)", {"P1", "P2", "P3"}),
        ("no rule", set()),
    ],
    ids=["two", "a range", "words that look like one", "a range with a dash", "none"],
)
def test_ids_are_found_in_docstrings(text: str, rules: set[str]) -> None:
    assert mentioned(text) == rules
