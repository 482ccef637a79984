"""``nodecpu status``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from nodecpu.admin.state import NodeState
from nodecpu.cli.output import ask, put, put_json
from nodecpu.cli.render.tables import status_lines
from nodecpu.errors import NodeCpuError

_CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"


def run(args: argparse.Namespace) -> int:
    """Print the state at a glance, or all of it as JSON."""
    if args.watch is not None:
        return watch(args, time.sleep)
    state = ask(args)
    if args.json:
        put_json(state)
    else:
        put(status_lines(state))
    return 0


def watch(args: argparse.Namespace, sleep: Callable[[float], None]) -> int:
    """Print the state again and again until interrupted; a daemon that is away is told and waited for.

    As JSON: one line each time.
    """
    while True:
        state, error = _asked(args)
        if args.json:
            line = msgspec.json.encode(state if error is None else {"error": error.message, "hint": error.hint})
            put([line.decode()])
        else:
            lines = list(status_lines(state)) if state is not None else [] if error is None else [error.message]
            sys.stdout.write(_CLEAR if sys.stdout.isatty() else "")
            put([*lines, ""])
        sys.stdout.flush()
        sleep(args.watch)


def _asked(args: argparse.Namespace) -> tuple[NodeState | None, NodeCpuError | None]:
    try:
        return ask(args), None
    except NodeCpuError as error:
        return None, error
