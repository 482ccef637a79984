"""What several test files need: recorded data beside the clone, and skips that give their reason."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def shared_data(*parts: str) -> Path:
    """Return a path below the recorded data (``../shared/data``, or NODECPU_SHARED); skip the test if absent."""
    base = Path(os.environ.get("NODECPU_SHARED", ROOT.parent / "shared"))
    path = base.joinpath("data", *parts)
    if not path.exists():
        pytest.skip(f"recorded data not here: {'/'.join(parts)}")
    return path


def shared_design(name: str) -> Path:
    """Return a design document beside the recorded data; skip the test if absent."""
    path = Path(os.environ.get("NODECPU_SHARED", ROOT.parent / "shared")) / "design" / name
    if not path.exists():
        pytest.skip(f"design document not here: {name}")
    return path


def need_program(name: str) -> str:
    """Return the path of a program; skip the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"program not installed: {name}")
    return found


def need_root() -> None:
    """Skip the test unless it runs as root."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
