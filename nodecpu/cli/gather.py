"""``nodecpu gather``: one archive with what somebody who helps needs, and no secrets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from nodecpu.admin.client import fetch_state
from nodecpu.admin.state import NodeState
from nodecpu.admin.view import finding_states
from nodecpu.cli.check import configuration, link_of
from nodecpu.cli.output import put
from nodecpu.cli.progress import Progress
from nodecpu.config import render_toml
from nodecpu.errors import NodeCpuError
from nodecpu.gather import Notes, gather
from nodecpu.preflight.checks import local_findings
from nodecpu.startup import node_name


def run(args: argparse.Namespace) -> int:
    """Write the archive and print its name."""
    config = configuration(args.config)
    target: Path = args.output or Path(f"nodecpu-{node_name(config)}.tar.gz")
    state: NodeState | None = None
    try:
        state = fetch_state(args.socket or config.paths.run / "admin.sock")
        told = _json(state)
    except NodeCpuError as err:
        told = _json({"error": err.message, "hint": err.hint})
    link = None if state is None else link_of(state.links.runtime)
    notes = Notes(
        texts=(
            ("config.toml", render_toml(config)),
            ("state.json", told),
            ("check.json", _json(finding_states(local_findings(config, link)))),
        )
    )
    with Progress(sys.stderr) as progress:
        number = gather(target, config, notes, told=progress.show)
    sys.stderr.write(f"{number} files; names of pods and claims are among them, secrets are not\n")
    put([str(target)])
    return 0


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
