"""Which memory containers get, what fits, and who is widened for whom (M1, P2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import NO_CPUS, NO_NODES, NodeSet
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.memory import make_memory_room
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import build_pools
from nodecpu.policy.rules import Rules
from nodecpu.topology.model import MemoryKind, NumaNode
from tests.unit.policy.given import claim, create, mems_of, prepare, release, remove
from tests.unit.policy.machines import MEMORY_BYTES, N4C16, Books, books

GIB = 1 << 30
# Each node of n4c16 has 16 GiB.


def with_special_memory() -> Books:
    """Return n4c16 with HBM as node 4 beside node 2, and PMEM as node 5 beside node 0."""
    made = books()
    special = tuple(
        NumaNode(
            id=number,
            cpus=NO_CPUS,
            kind=kind,
            size_bytes=4 * GIB,
            home=home,
            memory=NodeSet([number]),
            distances={},
        )
        for number, kind, home in ((4, MemoryKind.HBM, 2), (5, MemoryKind.PMEM, 0))
    )
    topology = replace(made.topology, numa=(*made.topology.numa, *special))
    return replace(made, topology=topology, ledger=Ledger(build_pools(topology, made.usable)))


def test_pools_know_their_memory_by_kind_and_use_dram() -> None:
    """P2: special memory is with the pools nearest to it; the root has all."""
    tree = with_special_memory().ledger.tree
    memory = {pool.name: {kind.value: str(nodes) for kind, nodes in pool.memory.items()} for pool in tree.pools}
    assert memory["numa 2"] == {"dram": "2", "hbm": "4"}
    assert memory["socket 0"] == {"dram": "0-1", "pmem": "5"}
    assert memory["root"] == {"dram": "0-3", "hbm": "4", "pmem": "5"}
    assert {pool.name: str(pool.mems) for pool in tree.pools}["numa 2"] == "2"


def test_node_without_memory_uses_that_of_the_nearest() -> None:
    """T3, M1: holders there and containers placed there, and all of it returns."""
    made = books()
    bare = replace(made.topology.numa[1], kind=MemoryKind.NONE, size_bytes=0, memory=NodeSet([0]))
    numa = (made.topology.numa[0], bare, *made.topology.numa[2:])
    topology = replace(made.topology, numa=numa)
    node = replace(made, topology=topology, ledger=Ledger(build_pools(topology, made.usable)))
    start = node.ledger.free(node.usable.all)
    taken = prepare(node, claim(1, (1, 4)))
    holder = create(node, "holder", claims=[taken])
    others = [create(node, f"pod-{number}", mcpu=2000, memory_bytes=GIB) for number in range(4)]
    assert (str(holder.claimed), mems_of(node, holder)) == ("4-7", "0")
    assert NodeSet.parse(",".join(mems_of(node, one) for one in others)).isdisjoint(NodeSet([1]))
    remove(node, holder, *others)
    release(node, taken)
    assert node.ledger.free(node.usable.all) == start
    assert dict(node.ledger.memory) == {}


def test_wanted_kind_of_memory_decides_the_pool() -> None:
    """S, M1, A."""
    node = with_special_memory()
    hbm = create(node, "a", mcpu=1000, annotations={"memory-type/pod": "hbm"})
    assert (hbm.pool, mems_of(node, hbm)) == ("numa 2", "4")
    both = create(node, "b", mcpu=1000, annotations={"memory-type/pod": "dram,pmem"})
    assert (both.pool, mems_of(node, both)) == ("numa 0", "0,5")


def test_kind_of_memory_that_there_is_not_is_said_and_dram_is_used() -> None:
    """M1."""
    node = books()
    grant = create(node, "a", mcpu=1000, annotations={"memory-type/pod": "hbm"})
    assert mems_of(node, grant) == "2"
    assert "no hbm memory near numa 2" in grant.reason


def test_claim_holder_has_the_kind_of_memory_it_wants_near_its_claim() -> None:
    """G5, M1: cpuset.mems follows the claim's pool."""
    node = with_special_memory()
    held = prepare(node, claim(1, (2, 2)))
    grant = create(node, "a", claims=[held], annotations={"memory-type/pod": "hbm,dram"})
    assert mems_of(node, grant) == "2,4"
    other = prepare(node, claim(2, (1, 2)))
    assert mems_of(node, create(node, "b", claims=[other])) == "1"


def test_pool_whose_memory_is_full_is_not_chosen() -> None:
    """S."""
    node = books()
    first = create(node, "a", mcpu=1000, memory_bytes=12 * GIB)
    second = create(node, "b", mcpu=1000, memory_bytes=12 * GIB)
    assert first.pool != second.pool
    assert (mems_of(node, first), mems_of(node, second)) == ("2", "1")


def test_container_that_fits_no_node_gets_the_memory_of_a_socket() -> None:
    """M1, S: its memory fits decides before smaller."""
    node = books()
    grant = create(node, "a", mcpu=1000, memory_bytes=20 * GIB)
    assert grant.pool.startswith("socket")
    assert mems_of(node, grant) in ("0-1", "2-3")


def test_memory_of_a_holder_is_widened_where_its_claim_is_full() -> None:
    """G5, M1: the CPUs are where they are."""
    node = books()
    held = prepare(node, claim(1, (1, 2)))
    create(node, "a", claims=[held], memory_bytes=10 * GIB)
    grant = create(node, "b", claims=[held], memory_bytes=10 * GIB)
    assert mems_of(node, grant) == "0-1"
    assert "memory of socket 0, that of numa 1 is full" in grant.reason


def test_what_fits_nowhere_gets_all_there_is() -> None:
    """M1."""
    node = books()
    held = prepare(node, claim(1, (1, 2)))
    grant = create(node, "a", claims=[held], memory_bytes=100 * GIB)
    assert mems_of(node, grant) == "0-3"


def test_burstable_containers_are_widened_for_a_guaranteed_one() -> None:
    """M1: the containers moved by that are told."""
    node = books()
    held = prepare(node, claim(1, (1, 4)))
    small = create(node, "small", mcpu=100, qos=QoS.BURSTABLE, memory_bytes=2 * GIB)
    large = create(node, "large", mcpu=100, qos=QoS.BURSTABLE, memory_bytes=10 * GIB)
    tenants = {mems_of(node, small), mems_of(node, large)}
    assert "1" not in tenants
    crowded = books()
    near = [create(crowded, f"near-{i}", mcpu=100, qos=QoS.BURSTABLE, memory_bytes=10 * GIB) for i in range(4)]
    assert sorted(mems_of(crowded, one) for one in near) == ["0", "1", "2", "3"]
    owner = prepare(crowded, claim(1, (1, 2)))
    grant = create(crowded, "own", claims=[owner], qos=QoS.GUARANTEED, mcpu=2000, memory_bytes=12 * GIB)
    assert mems_of(crowded, grant) == "1"
    moved = [one for one in near if mems_of(crowded, one) == "0-1"]
    assert len(moved) == 1
    assert "for a Guaranteed container" in crowded.ledger.containers[moved[0].id].reason
    assert held.cpus


def test_guaranteed_containers_and_holders_do_not_give_way() -> None:
    """M1."""
    node = books()
    first = prepare(node, claim(1, (1, 1)))
    holder = create(node, "a", claims=[first], qos=QoS.GUARANTEED, mcpu=1000, memory_bytes=10 * GIB)
    second = create(node, "b", claims=[first], qos=QoS.GUARANTEED, mcpu=1000, memory_bytes=10 * GIB)
    assert (mems_of(node, holder), mems_of(node, second)) == ("1", "0-1")


def test_memory_returns_with_the_container() -> None:
    """M1."""
    node = books()
    first = create(node, "a", mcpu=1000, memory_bytes=MEMORY_BYTES)
    remove(node, first)
    assert dict(node.ledger.memory) == {}
    assert mems_of(node, create(node, "b", mcpu=1000, memory_bytes=MEMORY_BYTES)) == "2"


def test_memory_is_left_alone_where_that_is_wanted() -> None:
    """M1, A: pin_memory off, memory.preserve."""
    free = books(rules=Rules(pin_memory=False))
    assert mems_of(free, create(free, "a", mcpu=1000, memory_bytes=GIB)) == ""
    node = books(rules=Rules(may_preserve=("shop",)))
    kept = create(node, "a", mcpu=1000, memory_bytes=GIB, annotations={"memory.preserve/pod": "true"})
    assert mems_of(node, kept) == ""
    assert dict(node.ledger.memory) == {}


def test_lifted_container_keeps_the_memory_it_had_and_gets_more() -> None:
    """C14, M1."""
    node = books(N4C16)
    shared = create(node, "a", mcpu=900, qos=QoS.BURSTABLE, memory_bytes=GIB)
    assert mems_of(node, shared) == "2"
    prepare(node, claim(1, (2, 4)))
    assert mems_of(node, shared) in ("2-3", "0-3")


def crowded_node(*sizes: int) -> Books:
    """Return n4c16 with Burstable containers of so many GiB in the memory of node 1."""
    node = books()
    for number, size in enumerate(sizes):
        grant = create(node, f"b{number}", mcpu=100, qos=QoS.BURSTABLE, memory_bytes=size * GIB)
        there = replace(grant, pool="numa 1", mems=NodeSet([1]))
        node.ledger.apply(Change(put_containers=(there,)))
    return node


def newcomer(size_bytes: int) -> ContainerGrant:
    """Return the grant of a Guaranteed container that is to have so much memory of node 1."""
    grant = create(books(), "new", mcpu=100, qos=QoS.GUARANTEED, memory_bytes=size_bytes)
    return replace(grant, pool="numa 1", mems=NodeSet([1]))


@pytest.mark.parametrize(
    ("size_bytes", "moved"),
    [
        pytest.param(2 * GIB, [], id="just fits"),
        pytest.param(2 * GIB + 1, ["b1"], id="a byte too much"),
        pytest.param(8 * GIB, ["b1"], id="just fits without the largest"),
        pytest.param(8 * GIB + 1, ["b1", "b2"], id="a byte too much without the largest"),
        pytest.param(15 * GIB, ["b1", "b2", "b0"], id="all of them"),
    ],
)
def test_no_more_are_widened_than_have_to_be_to_the_byte(size_bytes: int, moved: list[str]) -> None:
    """M1: the largest first, until it fits."""
    node = crowded_node(3, 6, 5)
    found = make_memory_room(node.ledger, newcomer(size_bytes))
    assert [grant.pod for grant in found] == moved
    assert all(grant.mems == NodeSet([0, 1]) for grant in found)


def test_nobody_is_widened_for_one_that_is_not_guaranteed_or_has_no_memory_of_its_own() -> None:
    """M1."""
    node = crowded_node(3, 6, 5)
    due = newcomer(8 * GIB)
    assert make_memory_room(node.ledger, due)
    for other in (
        replace(due, qos=QoS.BURSTABLE),
        replace(due, qos=QoS.BEST_EFFORT),
        replace(due, memory_bytes=0),
        replace(due, mems=NO_NODES),
    ):
        assert make_memory_room(node.ledger, other) == ()
    # Where what there is was too much before, one without memory of its own moves nobody either.
    assert make_memory_room(crowded_node(9, 9).ledger, replace(due, memory_bytes=0)) == ()
