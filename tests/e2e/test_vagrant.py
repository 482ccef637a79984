"""The Vagrantfile: accepted by Vagrant with its libvirt provider, and the machine that it describes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT, need_program

pytestmark = pytest.mark.nspawn


def test_vagrant_accepts_it(tmp_path: Path) -> None:
    environment = {**os.environ, "VAGRANT_HOME": str(tmp_path), "VAGRANT_DOTFILE_PATH": str(tmp_path / "dot")}
    command = [need_program("vagrant"), "validate"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_that_it_names_is_there() -> None:
    named = re.findall(r'"(ansible/[^"]+)"', (ROOT / "Vagrantfile").read_text())
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
