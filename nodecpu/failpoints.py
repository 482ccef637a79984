"""Named points at which a test can have the daemon killed: before, within and after every effect (shell).

Nothing happens unless the environment variable NODECPU_FAILPOINTS was set when the process began: it names a file, and
the process kills itself, as kill -9 would, when it comes to the point whose name stands there. The file is read anew at
every point, so that a test can arm and disarm a running daemon. Without the variable a point costs one comparison.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

POINTS: Final = (
    "start-books-loaded",
    "start-specs-restored",
    "containers-commit",
    "containers-committed",
    "pods-commit",
    "pods-committed",
    "claims-commit",
    "claims-written",
    "claims-committed",
    "cdi-write",
    "cdi-written",
    "cdi-renamed",
    "cdi-remove",
    "cdi-removed",
    "nri-reply",
    "nri-replied",
    "update-send",
    "update-sent",
    "prepare-reply",
    "unprepare-reply",
    "socket-open",
    "socket-bound",
    "socket-renamed",
    "socket-remove",
    "socket-removed",
    "admin-bound",
    "admin-renamed",
    "admin-removed",
    "slice-write",
    "slice-written",
    "cgroup-write",
    "cgroup-mems-written",
    "cgroup-written",
)
"""All points. A name without an ending of the past stands before its effect, ``-written`` within, the others after."""

_FILE: Final = os.environ.get("NODECPU_FAILPOINTS")


def reach(name: str) -> None:
    """End the process without any clean-up if it was told to end at this point."""
    if _FILE is not None:
        _reach(Path(_FILE), name)


def _reach(armed: Path, name: str) -> None:
    try:
        wanted = armed.read_text().strip()
    except OSError:
        return
    if wanted == name:
        os.kill(os.getpid(), signal.SIGKILL)
