"""Whether somebody lives at a socket of the kubelet's directories already (shell; R6, R7).

Two drivers of one name would take each other's calls, each with books of its own. A socket that a dead process left
answers nobody, so a restart or an upgrade is never held up.
"""

from __future__ import annotations

import socket
from pathlib import Path

from nodecpu.errors import HostError


def refuse_second(path: Path) -> None:
    """Raise HostError if a process listens on the socket; a file that nobody listens on is as none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(0)  # a Unix socket answers at once, or is full
        try:
            peer.connect(str(path))
        except BlockingIOError:
            pass  # somebody listens and is busy
        except OSError:
            return
    raise HostError(
        f"socket {path} is served by another process: a second driver of this name on this node",
        hint=f"stop the other one (ss -xlp 'src {path}' names it), or give this one another dra.driver",
    )
