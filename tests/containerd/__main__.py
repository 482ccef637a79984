"""``python -m tests.containerd [RUNTIME-KILLS DAEMON-KILLS [SEED]]``: the long torment of a real containerd (root)."""

from __future__ import annotations

import asyncio
import sys
import time

from tests.containerd.node import opened_node
from tests.containerd.torment import Figures, Torment

WITHIN_S = 2.0
"""How soon after a synchronisation what was created unpinned is put right. Source: semantics.md G9."""


async def torment(runtime_kills: int, daemon_kills: int, *, seed: int, within_s: float) -> Figures:
    """Return what a torment has come to. Raises Violated."""
    async with opened_node() as node:
        await node.start_daemon()
        await node.until(lambda: bool(node.cluster.slices()), "slices")
        tormented = Torment(node, within_s, seed)
        try:
            return await tormented.run(runtime_kills=runtime_kills, daemon_kills=daemon_kills)
        except BaseException:
            print(node.daemon.log_text()[-6000:], file=sys.stderr)  # noqa: T201 - output
            raise


def main(runtime_kills: int, daemon_kills: int, seed: int) -> int:
    began = time.monotonic()
    figures = asyncio.run(torment(runtime_kills, daemon_kills, seed=seed, within_s=WITHIN_S))
    print(f"containerd: {figures.text()}; seed {seed}, {time.monotonic() - began:.0f} s")  # noqa: T201 - output
    return 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*[*numbers, *(20, 50, 1)[len(numbers) :]]))
