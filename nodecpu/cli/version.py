"""``nodecpu version``."""

from __future__ import annotations

import argparse
import sys

from nodecpu import __version__


def run(args: argparse.Namespace) -> int:
    """Print the version; as JSON also those of what it runs on."""
    if args.json:
        import json  # noqa: PLC0415 - the plain verb loads nothing
        import platform  # noqa: PLC0415 - see above

        told = {"version": __version__, "python": platform.python_version(), "kernel": platform.release()}
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        sys.stdout.write(f"nodecpu {__version__}\n")
    return 0
