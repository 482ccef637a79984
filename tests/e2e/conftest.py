"""Where packages are built, for all tests of a run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that packages are built in."""
    return tmp_path_factory.mktemp("packages")
