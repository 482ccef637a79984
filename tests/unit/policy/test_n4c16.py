"""Whole cases on n4c16: what a node's ordinary containers see (G1, G7, G11, P1, P3, S)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.policy.facts import QoS
from nodecpu.policy.pull import Pull
from tests.unit.policy.given import create, remove, runs_on
from tests.unit.policy.machines import N4C16, Books, Shape, books

SMALL = "prefer-shared-cpus/pod"


def node() -> Books:
    return books(reserved="")


@pytest.mark.parametrize("count", [1, 3])
def test_four_guaranteed_containers_land_on_four_nodes(count: int) -> None:
    """S."""
    made = node()
    grants = [create(made, f"pod-{i}", mcpu=1000 * count) for i in range(4)]
    assert sorted(grant.pool for grant in grants) == ["numa 0", "numa 1", "numa 2", "numa 3"]
    assert all(len(grant.exclusive) == count for grant in grants)


def test_three_cpus_with_hidden_hyperthreads_are_two_cores_by_one_thread() -> None:
    """G7, A: it owns all three and runs on one thread of each core."""
    made = node()
    grant = create(made, "pod", mcpu=3000, annotations={"hide-hyperthreads/pod": "true"})
    assert len(grant.exclusive) == 3
    assert str(runs_on(made, grant)) == "12,14"


def test_init_containers_one_after_another_leave_room_for_the_apps() -> None:
    """G11: each is freed before the next one starts; two of 5 CPUs each go to different sockets."""
    made = node()
    for number in range(3):
        init = create(made, "pod", name=f"init-{number}", mcpu=5000)
        remove(made, init)
    apps = [create(made, "pod", name=f"app-{number}", mcpu=5000) for number in range(2)]
    assert sorted(app.pool for app in apps) == ["socket 0", "socket 1"]


def test_colocated_containers_share_a_pool() -> None:
    """S."""
    made = node()
    first = create(made, "first", mcpu=500, qos=QoS.BURSTABLE)
    others = [
        create(made, f"pod-{i}", mcpu=500, qos=QoS.BURSTABLE, pull=Pull(weights={first.id: 10})) for i in range(3)
    ]
    assert {grant.pool for grant in others} == {first.pool}


def test_mixed_container_takes_a_cpu_out_of_its_neighbours_pool_and_gives_it_back() -> None:
    """G1, P3."""
    made = node()
    neighbours = [create(made, f"pod-{i}", mcpu=300, qos=QoS.BURSTABLE) for i in range(4)]
    before = {grant.id: runs_on(made, grant) for grant in neighbours}
    mixed = create(made, "mixed", mcpu=1500)
    assert len(mixed.exclusive) == 1
    neighbour = next(grant for grant in neighbours if grant.pool == mixed.pool)
    assert runs_on(made, neighbour) == before[neighbour.id] - mixed.exclusive
    assert runs_on(made, mixed) == before[neighbour.id]
    remove(made, mixed)
    assert {grant.id: runs_on(made, grant) for grant in neighbours} == before


def test_shared_by_wish_is_spread_like_the_others() -> None:
    """G1, A."""
    made = node()
    grants = [create(made, f"pod-{i}", mcpu=2000, annotations={SMALL: "true"}) for i in range(4)]
    assert all(not grant.exclusive for grant in grants)
    assert len({grant.pool for grant in grants}) == 4


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(sockets=2, nodes=1, cores=64, threads=1, l3_cores=8), id="2 x 64 cores, 16 L3 groups"),
        pytest.param(Shape(sockets=8, nodes=8, cores=32, threads=2), id="4096 CPUs, 64 nodes"),
        pytest.param(Shape(sockets=8, nodes=8, cores=32, threads=2, step=7), id="4096 CPUs, 64 nodes, sparse ids"),
        pytest.param(replace(N4C16, isolated="4-7"), id="isolated CPUs"),
        pytest.param(Shape(nodes=2, cores=6, single_cores=(2, 3, 4, 5, 8, 9)), id="cores of two kinds"),
    ],
)
def test_containers_of_every_kind_fit_and_leave_nothing_behind(shape: Shape) -> None:
    """S, P3, K3."""
    made = books(shape, reserved="0")
    free = made.ledger.free(made.usable.all)
    grants = [
        create(made, f"pod-{number}-{mcpu}", mcpu=mcpu, qos=None if mcpu is None or mcpu >= 1000 else QoS.BURSTABLE)
        for number in range(2)
        for mcpu in (None, 100, 1000, 1500, 2000)
    ]
    assert sum(len(grant.exclusive) for grant in grants) == 2 * 4
    remove(made, *grants)
    assert made.ledger.free(made.usable.all) == free
    assert all(made.ledger.need_mcpu(pool) == 0 for pool in made.ledger.tree.pools)
