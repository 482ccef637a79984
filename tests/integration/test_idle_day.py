"""A day without change makes no write (D4, X2); ``make bench`` counts a whole one."""

from __future__ import annotations

import asyncio

from tests.bench.cluster import idle_day


def test_nothing_is_written_while_nothing_changes() -> None:
    """D4, X2: whatever looks at it, and however often watches end."""
    day = asyncio.run(idle_day(audits=200, watches=4))
    assert day.writes == 0
    assert day.requests >= 4
