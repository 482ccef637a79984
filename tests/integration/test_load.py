"""Ten times the worst real load at once: 256 claims and 1,000 containers on a node of 576 CPUs."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from nodecpu.cpuset import CpuSet, union
from nodecpu.ids import ContainerID
from nodecpu.policy.grants import Group
from tests.node import Node, PodShape, Scene, claim

CLAIMS, CONTAINERS = 256, 1000
MACHINE = "2 sockets, 4 nodes, 36 cores, 2 threads"
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


async def _everything(node: Node) -> None:
    """Create it all."""
    node.synchronize()
    await asyncio.gather(*(node.prepare(claim(n, (f"cpudevnuma{n % 8:03d}", 2))) for n in range(CLAIMS)))
    for number in range(CONTAINERS):
        held = (f"claim-{number}",) if number < CLAIMS else ()
        shape = PodShape(number=number, claims=held)
        node.service.pod_seen(shape.spec)
        env = node.env_of(claim(number).uid) if held else {}
        node.create(shape.sandbox, shape.container(f"c{number}", env))


def test_all_is_correct_when_256_claims_and_1000_containers_come_at_once() -> None:
    """C8, G2, G9: nobody shares a claimed CPU, in the books and in what containers run on."""

    async def story() -> None:
        with tempfile.TemporaryDirectory(dir=MEMORY) as name:
            scene = Scene(Path(name), MACHINE)
            node = scene.boot()
            await _everything(node)
            node.audit()
            node.check()
            ledger = node.service.books.ledger
            assert (len(ledger.claims), len(ledger.containers)) == (CLAIMS, CONTAINERS)
            claimed = union(one.cpus for one in ledger.claims.values())
            assert len(claimed) == 2 * CLAIMS
            for container_id, process in scene.runtime.processes.items():
                own = ledger.containers[container_id].claimed
                assert process.cpus.isdisjoint(claimed - own)
                assert ledger.containers[container_id].group is not Group.CLAIMED or process.cpus == own
            again = await asyncio.gather(
                *(node.prepare(claim(n, (f"cpudevnuma{n % 8:03d}", 2))) for n in range(CLAIMS))
            )
            assert all(again)
            for number in range(CONTAINERS):
                node.stop(ContainerID(f"c{number}"))
            await asyncio.gather(*(node.claims.unprepare(claim(n).uid) for n in range(CLAIMS)))
            everything = ledger.tree.usable.grantable
            assert ledger.grantable(everything) == everything != CpuSet()
            await node.crash()

    asyncio.run(story())
