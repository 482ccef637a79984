"""Packages built from this tree, each once per run of the tests."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support import ROOT, need_program

TOOLS = ROOT / "build" / "packaging" / "bin" / "python"
EPOCH = "1790000000"


def need_tools(target: str) -> None:
    """Have make bring an environment up to date."""
    need_program("make")
    _run(["make", "--no-print-directory", target])


@cache
def built(target: str, version: str, place: Path) -> Path:
    """Return a package for a distribution that calls itself of a version."""
    need_tools("package-tools")
    command = [str(TOOLS), "-m", "nodecpu_packaging.build", "--target", target, "--version", version]
    out = place / f"{target}-{version}"
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'packaging'}", "SOURCE_DATE_EPOCH": EPOCH}
    said = _run([*command, "--out", str(out), "--work", str(place / f"work-{target}-{version}")], environment)
    return Path(said.splitlines()[-1])


def renumbered(package: Path, old: str, new: str) -> Path:
    """Return a deb like another that calls itself of another version; in place of a second build."""
    tree = package.with_suffix("")
    renamed = package.with_name(package.name.replace(old, new))
    if renamed.exists():
        return renamed
    _run([need_program("dpkg-deb"), "-R", str(package), str(tree)])
    for name in ("DEBIAN/control", "usr/lib/nodecpu/nodecpu/__init__.py"):
        path = tree / name
        path.write_text(path.read_text().replace(old, new, 1))
    _run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", str(tree), str(renamed)])
    return renamed


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        check=False,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
        timeout=900,
    )
    if done.returncode:
        pytest.fail(f"{command[1]}: {done.stdout[-2000:]}")
    return done.stdout
