"""The daemon is killed at every named point, and at random moments under load; what is outside never shows it.

``make crash`` runs the long form: every point at every step on three runtimes, and 1,000 random kills.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

import pytest

import nodecpu
from nodecpu.failpoints import POINTS
from tests.crash.links import come_and_go
from tests.crash.matrix import BY_UPDATE, Tally, play, unreached
from tests.crash.storm import Storm

pytestmark = pytest.mark.lab
SOURCES = Path(nodecpu.__file__).parent
ROUNDS = 10


def test_every_point_stands_at_one_place_in_the_code() -> None:
    found = Counter(
        name
        for path in SOURCES.rglob("*.py")
        if "_pb2" not in path.name
        for name in re.findall(r'\breach\("([a-z-]+)"\)', path.read_text())
    )
    assert found == Counter(POINTS)


def test_a_kill_at_any_point_loses_nothing_and_moves_nobody() -> None:
    """R1, R4, C6, C11, U37, U42: every point once; the long matrix takes every step of a node's life for each."""
    tally = Tally()
    asyncio.run(play(tally, "containerd-2.1", [point for point in POINTS if point not in BY_UPDATE], is_short=True))
    asyncio.run(play(tally, "containerd-2.4", BY_UPDATE, is_short=True))
    assert unreached(tally) == []


def test_kills_at_random_moments_under_load_lose_nothing_and_move_nobody() -> None:
    """R1, R4, G9, U47, U56: four workers create, restart and end pods while the daemon dies again and again."""
    storm = Storm("containerd-2.4", seed=1)
    asyncio.run(storm.run(20))
    assert storm.figures.pods > 0
    assert storm.figures.checks >= 6


def test_runtime_kubelet_and_api_server_come_and_go_without_anybody_being_written_to() -> None:
    """R1, R7, C6, C7, U30, U61, U87, U110: prepared claims are answered while either is away."""
    first, last = asyncio.run(come_and_go("containerd-2.1", ROUNDS))
    # Connections to the API server are kept open for a while, a few more or fewer; a leak grows with every round.
    assert last.files < first.files + ROUNDS - 1
