"""What the tests of single rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.node import Scene, scene_in_memory


@pytest.fixture
def scene() -> Iterator[Scene]:
    """Return a node's surroundings: a machine, a state directory in memory, a runtime and an API server."""
    made, directory = scene_in_memory()
    with directory:
        yield made
