"""Every reason that the code reports is in the reference, and only those."""

from __future__ import annotations

import ast
import re

from tests.support import ROOT

REPORTING = {"report": 1, "tell": 1}
"""Methods that take a reason, and at which place."""


def reported() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "nodecpu").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            place = REPORTING.get(node.func.attr)
            if place is None or len(node.args) <= place:
                continue
            reason = node.args[place]
            if isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                found.add(reason.value)
    return found


def test_reasons_are_those_of_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text()
    assert set(re.findall(r"^\| \w+ \| `(\w+)` \|", page, re.MULTILINE)) == reported()
