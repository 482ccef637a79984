"""``nodecpu restart``: restarts the daemon once no container is being terminated (R6), if it will start again."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from nodecpu.cli import DEFAULT_CONFIG
from nodecpu.cli.output import ask
from nodecpu.config import load
from nodecpu.ending import await_ends
from nodecpu.errors import ConfigError, HostError
from nodecpu.preflight.host import arranged_host

_RESTART: Final = ("systemctl", "restart", "nodecpu.service")


def run(args: argparse.Namespace) -> int:
    """Wait, then have systemd restart the daemon; LinkError if something still terminates after the time given.

    ConfigError or HostError where a new daemon would end at once, while the old one, which runs, goes on.
    """
    if not args.only_wait:
        see_that_it_starts(args.config or DEFAULT_CONFIG)
    if args.dry_run:
        return 0
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


def see_that_it_starts(path: Path) -> None:
    """Return if a daemon can start with a configuration on this machine; ConfigError or HostError."""
    try:
        config = load(path)
    except ConfigError as error:
        raise ConfigError(f"not restarted: {error.message}", hint=error.hint, problems=error.problems) from error
    arranged, found = arranged_host(config)
    if arranged is None:
        raise HostError(f"not restarted: {found.seen}", hint=found.remedy)
