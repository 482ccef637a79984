"""What several test files need: recorded data beside the clone, and skips that give their reason."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
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


@contextlib.contextmanager
def small_file_system(path: Path, kib: int = 256) -> Iterator[SmallFileSystem]:
    """Mount a file system of that size over a directory while the body runs; skip the test where that is forbidden."""
    need_root()
    mount, umount = need_program("mount"), need_program("umount")
    options = f"size={kib}k,mode=0700"
    command = [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallFileSystem(path, mount)
    finally:
        subprocess.run([umount, "-l", str(path)], check=True)


@dataclass(frozen=True)
class SmallFileSystem:
    """A file system that can be filled and made read-only."""

    path: Path
    mount: str

    def fill(self) -> None:
        """Leave no room at all."""
        with (self.path / "filler").open("ab", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"x" * 4096)

    def empty(self) -> None:
        """Give the room back."""
        (self.path / "filler").unlink()

    def read_only(self, *, on: bool = True) -> None:
        """Let nothing be written, or let it again."""
        subprocess.run([self.mount, "-o", f"remount,{'ro' if on else 'rw'}", str(self.path)], check=True)
