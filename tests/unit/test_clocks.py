"""Clocks that jump: nothing waits, times out or decides by the time of day (quality.md, reliability)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import nodecpu

PACKAGE = Path(nodecpu.__file__).parent
OF_DAY = {
    *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.CLOCK_REALTIME"),
    *("datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}

BY_THE_DAY = {
    "dra/health.py": "when a device's health was told, for the kubelet",
    "kube/client.py": "how far the API server's clock is from ours",
    "kube/events.py": "when an event happened",
    "metrics.py": "when the daemon started, for people and alerts",
    "refusals.py": "when a claim was refused, for people",
    "kube/renewal.py": "whether half of a token's life is over, by the times in the token",
}
"""Who may ask for the time of day, and what for."""


def times_of_day(path: Path) -> Iterator[str]:
    """Yield the names by which a module asks for the time of day, called or handed on."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ".".join(ast.unparse(node).split(".")[-2:])  # datetime.datetime.now is one as well
            if name in OF_DAY:
                yield name
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            yield from (f"time.{one.name}" for one in node.names if f"time.{one.name}" in OF_DAY)


def test_time_of_day_is_told_and_compared_with_others_times_and_nothing_else() -> None:
    """C7, D4, E1: all waits are by the event loop's clock or the monotonic one, which do not jump."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "lab" not in path.relative_to(PACKAGE).parts and any(times_of_day(path))
    }
    assert found == set(BY_THE_DAY)
