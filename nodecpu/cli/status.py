"""``nodecpu status``."""

from __future__ import annotations

import argparse

from nodecpu.cli.output import ask, put, put_json
from nodecpu.cli.render.tables import status_lines


def run(args: argparse.Namespace) -> int:
    """Print the state at a glance, or all of it as JSON."""
    state = ask(args)
    if args.json:
        put_json(state)
    else:
        put(status_lines(state))
    return 0
