"""Runtime, kubelet and API server gone and back again and again: the daemon stays, and nobody is written to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.crash.kinds import Kind
from tests.crash.matrix import DAEMON, MACHINE
from tests.crash.world import Broken, World
from tests.crash.yard import PATIENCE_S, Yard, opened_yard


@dataclass(frozen=True, kw_only=True)
class Held:
    """What the daemon's process holds."""

    files: int
    memory_mib: float


async def come_and_go(runtime: str, times: int) -> tuple[Held, Held]:
    """Have each peer restart so many times; return what the daemon held after the first round and at the end."""
    async with opened_yard(runtime=runtime, machine=MACHINE, daemon=DAEMON) as yard:
        world = World(yard)
        await world.start("bare", Kind())
        await world.start("web", Kind(claim=3, numa=0))
        await world.start("own", Kind(cpu="2", limit="2"))
        await world.check_all()
        writes = _writes(world)
        await _once(world)
        first = _held(yard)
        for _ in range(times - 1):
            await _once(world)
        await world.check_all()
        if _writes(world) != writes:
            raise Broken("a cpuset that was right was written again")
        if yard.daemon.starts != 1:
            raise Broken("the daemon did not stay")
        return first, _held(yard)


async def _once(world: World) -> None:
    stage, plugins = world.stage, world.stage.runtime.plugins
    synchronized = plugins.synchronized
    await stage.runtime.stop()
    await world.prepare_again()  # a prepared claim needs no runtime
    await stage.start_runtime()
    await stage.until(lambda: plugins.synchronized > synchronized, "synchronisation", timeout_s=PATIENCE_S)
    await world.check_running()
    await stage.stop_kubelet()
    stage.start_kubelet()
    await stage.until_registered()
    await stage.stop_api()
    await world.prepare_again()  # nor an API server
    await stage.start_api()


def _writes(world: World) -> dict[str, int]:
    return {record.label: world.cgroups.writes(record.directory) for record in world.running()}


def _held(yard: Yard) -> Held:
    process = Path(f"/proc/{yard.daemon.pid}")
    pages = int((process / "statm").read_text().split()[1])
    return Held(files=len(list((process / "fd").iterdir())), memory_mib=pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20))
