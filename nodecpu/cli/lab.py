"""``nodecpu lab``: everything after the verb is the lab's own."""

from __future__ import annotations

import argparse

from nodecpu.lab.run import main


def run(args: argparse.Namespace) -> int:
    """Run the lab."""
    return main(args.rest)
