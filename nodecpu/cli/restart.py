"""``nodecpu restart``: restarts the daemon once no container is being terminated (R6)."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Final

from nodecpu.cli.output import ask
from nodecpu.ending import await_ends
from nodecpu.errors import HostError

_RESTART: Final = ("systemctl", "restart", "nodecpu.service")


def run(args: argparse.Namespace) -> int:
    """Wait, then have systemd restart the daemon; LinkError if something still terminates after the time given."""
    if not args.now:
        await_ends(
            lambda: ask(args).terminating,
            wait_s=args.wait,
            clock=time.monotonic,
            sleep=time.sleep,
            told=lambda line: print(line, file=sys.stderr, flush=True),  # noqa: T201 - words for the operator
        )
    if args.only_wait:
        return 0
    try:
        return subprocess.run(_RESTART, check=False).returncode
    except FileNotFoundError as error:
        raise HostError(
            "the daemon cannot be restarted: there is no systemctl here",
            hint="restart it by whatever started it; nodecpu restart --only-wait waits all the same",
        ) from error
