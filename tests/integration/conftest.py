"""What the tests of rooms together share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node import Scene, scene_in_memory


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Return a node's surroundings, where a prepare that cannot succeed at once is refused at once."""
    made, directory = scene_in_memory()
    made.extra = "[claims]\nwait_s = 0.0"
    with directory:
        yield made
