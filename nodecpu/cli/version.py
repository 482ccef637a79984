"""``nodecpu version``."""

from __future__ import annotations

import argparse
import sys

from nodecpu import __version__


def run(args: argparse.Namespace) -> int:
    """Print the version."""
    sys.stdout.write(f"nodecpu {__version__}\n")
    return 0
