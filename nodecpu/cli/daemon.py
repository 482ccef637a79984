"""``nodecpu daemon``."""

from __future__ import annotations

import argparse

from nodecpu.daemon import run as run_daemon


def run(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to stop."""
    return run_daemon(args.config)
