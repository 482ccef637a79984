"""Books as they may be, drawn by Hypothesis: grants are put into them as they come, without any decision."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.plan import Change
from tests.unit.policy.machines import N4C16, Books, Shape, books

SHAPES = (
    N4C16,
    Shape(nodes=2, cores=3, threads=2, single_cores=(1,), l3_cores=2),
    Shape(sockets=2, nodes=1, cores=4, threads=1, l3_cores=2),
)
PORTIONS = (0, 0, 1, 400, 999, 1000, 1001, 2500, 6000, 7999, 30_000)


def container_in(pool: str, number: int = 0, *, portion_mcpu: int = 0, exclusive: str = "") -> ContainerGrant:
    """Return the grant of a container with a shared portion of a pool, or with CPUs of its own."""
    pod = f"pod-{number}"
    return ContainerGrant(
        id=ContainerID(f"{pod}-app"),
        sandbox_id=SandboxID(f"sandbox-{pod}"),
        pod_uid=PodUID(pod),
        namespace="shop",
        pod=pod,
        name="app",
        group=Group.MULTI if exclusive else Group.SHARED,
        pool=pool,
        qos=QoS.GUARANTEED if exclusive else QoS.BURSTABLE,
        exclusive=CpuSet.parse(exclusive),
        portion_mcpu=portion_mcpu,
        uses_shared=not exclusive,
    )


@st.composite
def drawn_books(draw: st.DrawFn) -> Books:
    """Return books over a small machine: shared containers, CPUs granted, CPUs held, some of them isolated."""
    shape = draw(st.sampled_from(SHAPES))
    isolated = draw(st.sampled_from(["", "", "0-1", "4-6", "0,5"]))
    node = books(replace(shape, isolated=isolated), reserved=draw(st.sampled_from(["", "7", "3,6"])))
    pools = node.ledger.tree.pools
    shared = draw(st.lists(st.tuples(st.sampled_from(pools), st.sampled_from(PORTIONS)), max_size=5))
    puts = [container_in(pool.name, i, portion_mcpu=portion) for i, (pool, portion) in enumerate(shared)]
    puts = [
        replace(put, mems=pool.mems, memory_bytes=draw(st.sampled_from([0, 4 << 30, 10 << 30])))
        for put, (pool, _) in zip(puts, shared, strict=True)
    ]
    any_cpus = st.sets(st.sampled_from(sorted(node.usable.grantable)), max_size=6)
    taken, held = CpuSet(draw(any_cpus)), CpuSet(draw(any_cpus))
    if taken:
        puts.append(replace(container_in("root", 99, exclusive=str(taken)), mems=NodeSet([0])))
    node.ledger.apply(Change(put_containers=tuple(puts)))
    node.ledger.hold(ClaimUID("held"), held - taken)
    return node
