"""Playbooks of this tree, run against an inventory."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

BIN = ROOT / "build" / "ansible" / "bin"
PLAYS = ROOT / "ansible"


@dataclass(frozen=True, slots=True)
class Played:
    """How a playbook ended."""

    code: int
    said: str

    @property
    def changed(self) -> int:
        return int(re.findall(r"changed=([0-9]+)", self.said)[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Plays:
    """An inventory, and variables unless a play says otherwise; ``journal`` tells what nodecpu said."""

    inventory: Path
    variables: Mapping[str, object]
    journal: Callable[[], str]
    timeout_s: float = 600.0

    def play(self, name: str, *options: str, **variables: object) -> Played:
        given = json.dumps({**self.variables, **variables})
        command = [str(BIN / "ansible-playbook"), "-i", str(self.inventory), name, *options, "-e", given]
        environment = {
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_HOME": str(self.inventory.parent / "home"),
            # A shared connection of its own would outlive the play; the inventory may have one that is looked after.
            "ANSIBLE_SSH_ARGS": "-o Compression=no",
        }
        done = subprocess.run(
            command,
            check=False,
            cwd=PLAYS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            timeout=self.timeout_s,
        )
        return Played(done.returncode, done.stdout)

    def right(self, name: str, *options: str, **variables: object) -> Played:
        played = self.play(name, *options, **variables)
        assert played.code == 0, played.said + self.journal()
        return played
