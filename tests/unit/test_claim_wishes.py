"""A claim's own wishes from its allocation to the books, over a change of the machine too (C10, T7)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from nodecpu.cpuset import CpuSet
from nodecpu.policy.facts import AllocatedClaim
from nodecpu.policy.wishes import Spread, Wishes
from tests.node import Scene, claim, scene_in_memory


def wished(number: int, cpus: int, wishes: Wishes) -> AllocatedClaim:
    plain = claim(number, ("cpudevnuma001", cpus))
    return replace(plain, results=tuple(replace(result, wishes=wishes) for result in plain.results))


async def story(scene: Scene) -> None:
    node = scene.boot()
    node.synchronize()
    spread = wished(1, 2, Wishes(spread=Spread.CORES))
    await node.prepare(spread)
    assert node.service.books.ledger.claims[spread.uid].cpus == CpuSet([4, 6])
    await node.crash()

    scene.runtime.processes.clear()
    (scene.directory / "proc/sys/kernel/random/boot_id").write_text("another\n")
    (scene.directory / "sys/devices/system/cpu/online").write_text("0-13,15\n")
    again = scene.boot()
    again.synchronize()
    scene.api.is_answering = False
    assert again.service.books.ledger.claims[spread.uid].moved
    await again.claims.prepare(spread.uid, "shop", spread.name, budget_s=5)
    grant = again.service.books.ledger.claims[spread.uid]
    assert (grant.cpus, grant.results[0].missed) == (CpuSet([4, 6]), ())
    await again.crash()


def test_wishes_hold_when_cpus_are_picked_anew_on_another_machine() -> None:
    """C10, T7: known without the API server."""
    scene, directory = scene_in_memory()
    with directory:
        asyncio.run(story(scene))


def test_compromise_is_kept_with_the_claim() -> None:
    """C10: over a restart, for whoever asks later why."""

    async def compromise(scene: Scene) -> None:
        node = scene.boot()
        node.synchronize()
        wanted = wished(1, 3, Wishes(full_cores=True))
        await node.prepare(wanted)
        await node.crash()
        again = scene.boot()
        assert again.service.books.ledger.claims[wanted.uid].results[0].missed == ("full cores",)
        await again.crash()

    scene, directory = scene_in_memory()
    with directory:
        asyncio.run(compromise(scene))
