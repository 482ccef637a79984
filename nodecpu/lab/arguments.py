"""The options of ``nodecpu lab`` (pure): the lab goes by them, man page and completion tell them.

Every start of the command line passes here, so nothing slow is loaded.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

DEMO: Final = "demo"
ANYWHERE: Final = "on-any-machine"
"""What is played by default, on its own machine and on another one."""

RUNTIMES: Final = ("containerd-2.4", "containerd-2.1", "cri-o-1.37")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options to a parser."""
    parser.add_argument(
        "--machine",
        metavar="TEXT|DIR|ARCHIVE|host",
        help="default: the scenario's; many scenarios name CPUs of their own machine",
    )
    parser.add_argument(
        "--from",
        dest="gathered",
        type=Path,
        metavar="ARCHIVE",
        help="what nodecpu gather wrote: its machine and settings",
    )
    parser.add_argument(
        "--scenario",
        action="append",
        metavar="FILE|NAME",
        help=f"may be repeated; default: {DEMO}, {ANYWHERE} where the machine is another one",
    )
    parser.add_argument("--runtime", choices=RUNTIMES, help="default: the scenario's")
    parser.add_argument("--keep", action="store_true", help="leave the directory behind")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
