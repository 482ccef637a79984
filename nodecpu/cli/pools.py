"""``nodecpu pools``."""

from __future__ import annotations

import argparse

from nodecpu.cli.output import ask, put, put_json
from nodecpu.cli.render.tables import pool_lines


def run(args: argparse.Namespace) -> int:
    """List the pools."""
    state = ask(args)
    if args.json:
        put_json(state.pools)
    else:
        put(pool_lines(state))
    return 0
