"""``nodecpu daemon``."""

from __future__ import annotations

import argparse
import gc


def run(args: argparse.Namespace) -> int:
    """Run the daemon until it is told to stop."""
    gc.disable()  # loading leaves next to no garbage, and looking for it is a tenth of it; see ``daemon``
    from nodecpu.daemon import run as run_daemon  # noqa: PLC0415 - after the collector is off

    return run_daemon(args.config)
