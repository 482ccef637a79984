"""Made-up node states for tests of what is shown: regular machines of any size, owners put onto them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from nodecpu.admin.state import (
    Cache,
    ClaimState,
    ContainerRow,
    Core,
    Links,
    LinkState,
    Machine,
    NodeState,
    Numa,
    PoolState,
    Reply,
    ResultState,
    Socket,
    UsableState,
)
from nodecpu.cpuset import CpuSet

GIB = 1 << 30


def machine(sockets: int, nodes: int, caches: int, cores: int, threads: int, *, adjacent: bool = True) -> Machine:
    """Return a machine of so many of each per one of the level above; threads of a core adjacent or far apart."""
    total_cores = sockets * nodes * caches * cores
    number = iter(range(total_cores))

    def core() -> Core:
        core = next(number)
        step = 1 if adjacent else total_cores
        first = core * threads if adjacent else core
        return Core(label=str(core), cpus=str(CpuSet(first + step * t for t in range(threads))))

    def numa(node: int) -> Numa:
        made = tuple(
            Cache(label=str(node * caches + c), cores=tuple(core() for _ in range(cores))) for c in range(caches)
        )
        return Numa(id=node, memory="dram", memory_bytes=16 * GIB, caches=made)

    return Machine(
        online=str(CpuSet(range(total_cores * threads))),
        sockets=tuple(
            Socket(label=str(s), numa=tuple(numa(s * nodes + n) for n in range(nodes))) for s in range(sockets)
        ),
    )


def links() -> Links:
    return Links(
        runtime=LinkState(state="connected", name="containerd", version="2.1.4"),
        kubelet=LinkState(state="connected"),
        api=LinkState(state="away", reason="connection refused"),
    )


def claim(name: str, cpus: str, *, namespace: str = "shop", state: str = "prepared") -> ClaimState:
    return ClaimState(
        uid=f"uid-{namespace}-{name}",
        namespace=namespace,
        name=name,
        state=state,
        cpus=cpus,
        results=(ResultState(request="cpus", device="cpudevnuma001", cpus=cpus),),
    )


def container(
    pod: str, group: str, cpus: str, *, exclusive: str = "", claims: tuple[ClaimState, ...] = ()
) -> ContainerRow:
    return ContainerRow(
        id=f"{pod}-id",
        namespace="shop",
        pod=pod,
        name="app",
        group=group,
        pool="root",
        cpus=cpus,
        exclusive=exclusive,
        claimed=",".join(c.cpus for c in claims),
        claim_uids=tuple(c.uid for c in claims),
        mems="0",
        confirmed=cpus,
        reason="best effort",
    )


def node_state(
    made: Machine,
    *,
    reserved: str = "",
    isolated: str = "",
    unusable: str = "",
    claims: tuple[ClaimState, ...] = (),
    containers: tuple[ContainerRow, ...] = (),
) -> NodeState:
    online = CpuSet.parse(made.online)
    sharable = online - CpuSet.parse(reserved) - CpuSet.parse(isolated) - CpuSet.parse(unusable)
    return NodeState(
        version="0.1.0",
        node="n4c16",
        links=links(),
        machine=made,
        usable=UsableState(reserved=reserved, isolated=isolated, sharable=str(sharable)),
        pools=(PoolState(name="root", kind="root", cpus=made.online, shared=str(sharable), mems="0", load_mcpu=1500),),
        claims=claims,
        containers=containers,
    )


def n4c16() -> NodeState:
    """The example node with two claims, one of them held, a container with a CPU of its own and a shared one."""
    web, batch = claim("web", "4-5"), claim("batch", "12-14", state="released")
    return node_state(
        machine(2, 2, 1, 2, 2),
        reserved="15",
        claims=(web, batch),
        containers=(
            container("web-0", "claimed", "4-5", claims=(web,)),
            container("db-0", "multi", "8-9", exclusive="8-9"),
            container("log-0", "shared", "0-3,6-7,10-11"),
        ),
    )


@contextmanager
def answering(run_dir: Path, state: NodeState) -> Iterator[None]:
    """Answer one question at the admin socket of a run directory, as the daemon does."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(run_dir / "admin.sock"))
        listening.listen(1)

        def answer() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(msgspec.json.encode(Reply(state=state)) + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join()
