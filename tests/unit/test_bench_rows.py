"""A figure of the bench tells whether its target is met, and is compared with each peer that has the same."""

from __future__ import annotations

import pytest

from tests.bench.measure import Floor, Peer, Row, peers


@pytest.mark.parametrize(
    ("row", "is_met"),
    [
        pytest.param(Row(what="x", value=2), None, id="no target"),
        pytest.param(Row(what="x", value=2, limit=2), True, id="at the target"),
        pytest.param(Row(what="x", value=2, floor=Floor(what="y", value=1), limit=1.9), False, id="ratio above it"),
        pytest.param(Row(what="x", value=9, floor=Floor(what="y", value=9), limit=1.5), True, id="ratio below it"),
        pytest.param(Row(what="x", value=2, limit=3, at_least=True), False, id="less than the least"),
        pytest.param(Row(what="x", value=3, limit=3, at_least=True), True, id="the least"),
    ],
)
def test_a_target_is_of_the_ratio_where_there_is_a_floor(row: Row, *, is_met: bool | None) -> None:
    """Else of the value."""
    assert row.is_met is is_met
    assert row.json()["met"] is is_met


def test_a_figure_is_compared_with_each_rival() -> None:
    """A peer that is no rival is told without a target, one without such a figure not at all."""
    against = Row(what="start", value=5, peers=(*peers(10, 2), Peer(name="other", value=1, is_rival=False)))
    found = [(one.what, one.ratio, one.is_met) for one in against.against_peers]
    assert found == [
        ("start: against dra-driver-cpu", 0.5, True),
        ("start: against topology-aware", 2.5, False),
        ("start: against other", 5, None),
    ]
    assert peers(None, None) == ()
