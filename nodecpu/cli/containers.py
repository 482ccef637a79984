"""``nodecpu containers``."""

from __future__ import annotations

import argparse

from nodecpu.cli.output import ask, put, put_json
from nodecpu.cli.render.tables import container_lines


def run(args: argparse.Namespace) -> int:
    """List the containers."""
    state = ask(args)
    if args.json:
        put_json(state.containers)
    else:
        put(container_lines(state))
    return 0
