"""``nodecpu claims``."""

from __future__ import annotations

import argparse

from nodecpu.cli.output import ask, put, put_json
from nodecpu.cli.render.tables import claim_lines


def run(args: argparse.Namespace) -> int:
    """List the claims."""
    state = ask(args)
    if args.json:
        put_json(state.claims)
    else:
        put(claim_lines(state))
    return 0
