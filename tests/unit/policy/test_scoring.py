"""Which pool a container without a claim goes to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import NoCapacity
from nodecpu.ids import PodUID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import Group
from nodecpu.policy.plan import Change
from nodecpu.policy.priority import SpeedClasses
from nodecpu.policy.pull import Hint, Pull, colocated
from nodecpu.policy.requests import Request
from nodecpu.policy.scoring import best_pool
from tests.unit.policy.drawn import container_in
from tests.unit.policy.given import claim, create, prepare
from tests.unit.policy.machines import MEMORY_BYTES, N4C16, Books, Shape, books


def best(node: Books, *, exclusive: int = 0, portion: int = 0) -> str:
    """Return the name of the pool for a request."""
    group = Group.MULTI if exclusive else Group.SHARED
    request = Request(
        group=group,
        qos=QoS.GUARANTEED,
        exclusive=exclusive,
        portion_mcpu=portion,
        uses_shared=bool(portion or not exclusive),
    )
    return best_pool(node.ledger, node.machine, request).pool.name


def test_the_least_weight_draws_a_container_to_another() -> None:
    """S, A: affinity comes before everything else, also before the company it would avoid."""
    node = books()
    first = create(node, "a", mcpu=500, qos=QoS.BURSTABLE)
    assert create(node, "b", mcpu=500, qos=QoS.BURSTABLE).pool != first.pool
    drawn = create(node, "c", mcpu=500, qos=QoS.BURSTABLE, pull=Pull(weights={first.id: 1}))
    assert drawn.pool == first.pool


def test_deepest_pool_with_enough_capacity_wins() -> None:
    """S."""
    node = books()
    assert best(node, exclusive=4) == "numa 2"
    assert best(node, exclusive=5) == "socket 0"
    assert best(node, exclusive=9) == "root"
    assert best(node, portion=3500) == "numa 2"
    assert best(node, portion=7500) == "socket 0"


def test_request_that_no_pool_holds_goes_to_the_root() -> None:
    """S, G16."""
    assert best(books(), portion=100_000) == "root"


def test_exclusive_requests_go_where_more_can_be_sliced_off() -> None:
    """S, P3."""
    node = books()
    prepare(node, claim(1, (2, 1)))
    create(node, "web", mcpu=500, qos=QoS.BURSTABLE)  # in node 1
    assert best(node, exclusive=2) == "numa 0"


def test_shared_containers_spread_over_pools_with_fewer_of_their_kind() -> None:
    """S: those with and without a request are counted apart."""
    node = books()
    bare = [create(node, f"bare-{i}").pool for i in range(4)]
    asking = [create(node, f"asking-{i}", mcpu=100, qos=QoS.BURSTABLE).pool for i in range(4)]
    assert sorted(bare) == sorted(asking) == ["numa 0", "numa 1", "numa 2", "numa 3"]


def test_of_equals_the_higher_id_wins() -> None:
    """S: the scheduler fills devices from the lower ones."""
    assert best(books(reserved="")) == "numa 3"
    assert best(books(reserved=""), exclusive=2) == "numa 3"


def test_larger_capacity_wins_among_pools_with_as_many_containers() -> None:
    """S."""
    node = books()
    prepare(node, claim(1, (1, 1)))
    prepare(node, claim(2, (2, 2)))
    assert best(node, portion=100) == "numa 0"


def test_pool_without_a_free_cpu_takes_nobody() -> None:
    """P3."""
    node = books()
    prepare(node, claim(1, (0, 4), (1, 4), (2, 4)))
    assert best(node) == "numa 3"


def test_node_below_a_full_socket_takes_no_further_portion() -> None:
    """P3: the socket's own containers need the CPUs of its nodes."""
    node = books()
    big = [create(node, f"big-{i}", mcpu=7000, qos=QoS.BURSTABLE).pool for i in range(2)]
    assert big == ["socket 0", "socket 1"]
    assert create(node, "fits", mcpu=900, qos=QoS.BURSTABLE).pool in ("numa 0", "numa 1")
    assert create(node, "last", mcpu=200, qos=QoS.BURSTABLE).pool == "root"


def test_overcommitted_root_keeps_nobody_out_of_the_pools_below() -> None:
    """G16."""
    node = books()
    create(node, "huge", mcpu=50_000, qos=QoS.BURSTABLE)
    assert best(node, portion=100).startswith("numa")


def test_pool_with_isolated_cpus_for_all_of_an_exclusive_part_is_preferred() -> None:
    """S, G10."""
    node = books(replace(N4C16, isolated="0-1"))
    assert best(node, exclusive=2) == "numa 0"
    assert best(node, exclusive=3) == "numa 2"
    prepare(node, claim(1, (0, 4)))
    assert best(node, exclusive=2) == "numa 2"


def test_isolated_cpus_serve_even_where_no_shared_capacity_is_left() -> None:
    """G10: they are no part of it."""
    node = books(Shape(cores=2, isolated="2-3"), reserved="")
    create(node, "huge", mcpu=50_000, qos=QoS.BURSTABLE)
    assert create(node, "db", mcpu=2000).exclusive == node.usable.isolated


def reason(node: Books, pod: str, mcpu: int | None = None, qos: QoS | None = None) -> str:
    """Return why a container got its pool, without what it asked for."""
    return create(node, pod, mcpu=mcpu, qos=qos).reason.partition("; ")[2]


def test_why_a_pool_won_is_said_in_words() -> None:
    """S: the first difference from the next best one."""
    node = books(reserved="")
    assert reason(node, "a") == "numa 3 before numa 2: the higher one of equals"
    assert reason(node, "b") == "numa 2 before numa 1: the higher one of equals"
    assert reason(node, "c", mcpu=100, qos=QoS.BURSTABLE) == "numa 1 before numa 0: the higher one of equals"
    assert reason(node, "d", mcpu=100, qos=QoS.BURSTABLE) == "numa 0 before numa 3: more capacity"
    assert reason(node, "e", mcpu=5000) == "socket 1 before socket 0: the higher one of equals"
    assert reason(node, "f", mcpu=2000) == "numa 1 before numa 0: the higher one of equals"
    prepare(node, claim(1, (0, 1)))
    assert reason(node, "g", mcpu=1000) == "numa 0 before numa 3: more CPUs that can be sliced off"


def test_nothing_is_said_where_there_was_no_choice() -> None:
    """S."""
    assert reason(books(Shape(), reserved=""), "a") == ""


def test_containers_are_drawn_to_those_they_belong_to() -> None:
    """S: the smallest pool that has them all; capacity comes first."""
    node = books()
    first = create(node, "a", mcpu=1000)
    assert first.pool == "numa 2"
    near = create(node, "b", mcpu=1000, pull=Pull(weights={first.id: 10}))
    assert near.pool == "numa 2"
    far = create(node, "c", mcpu=1000, pull=Pull(weights={first.id: -10}))
    assert far.pool == "numa 1"
    assert "nearer to the containers it belongs to" not in far.reason
    both = create(node, "d", mcpu=500, qos=QoS.BURSTABLE, pull=Pull(weights={first.id: 10, far.id: 10}))
    assert both.pool == "root"
    assert create(node, "e", mcpu=3000, pull=Pull(weights={first.id: 10})).pool == "socket 1"


def test_colocation_draws_containers_of_a_pod_or_a_namespace_together() -> None:
    """S: colocated pods share a pool."""
    node = books()
    one = create(node, "a", name="first", mcpu=500, qos=QoS.BURSTABLE)
    other = create(node, "b", mcpu=500, qos=QoS.BURSTABLE, namespace="depot")
    grants = node.ledger.containers.values()
    assert colocated(grants, one.pod_uid, "depot", pods=True, namespaces=False) == {one.id: 10}
    assert colocated(grants, one.pod_uid, "depot", pods=True, namespaces=True) == {one.id: 10, other.id: 10}
    assert colocated(grants, one.pod_uid, "shop", pods=True, namespaces=True) == {one.id: 20}
    assert colocated(grants, PodUID("none"), "none", pods=True, namespaces=True) == {}


def test_hints_draw_to_what_is_used() -> None:
    """S: the pool that lies within the hint, before others that touch it."""
    node = books()
    near = Pull(hints=(Hint(source="nic", cpus=CpuSet.parse("4-7")),))
    assert create(node, "a", mcpu=1000, pull=near).pool == "numa 1"
    wide = create(node, "b", mcpu=4000, pull=near)
    assert wide.pool == "socket 0", "enough capacity comes first"


def test_strict_hints_leave_only_pools_within_them() -> None:
    """S, A: where none has room the container is refused, and the hints are named."""
    node = books()
    strict = Pull(hints=(Hint(source="nic", cpus=CpuSet.parse("4-7")),), strict=True)
    assert create(node, "a", mcpu=2000, pull=strict).pool == "numa 1"
    with pytest.raises(NoCapacity, match=r"no pool with room is close to nic \(4-7\)"):
        create(node, "b", mcpu=3000, pull=strict)


def test_burstable_container_goes_where_it_has_room_up_to_its_limit() -> None:
    """S."""
    node = books()
    assert create(node, "a", mcpu=500, qos=QoS.BURSTABLE, limit_mcpu=6000).pool == "socket 0"
    assert create(node, "b", mcpu=500, qos=QoS.BURSTABLE, limit_mcpu=2000).pool.startswith("numa")
    assert create(node, "c", mcpu=500, qos=QoS.BURSTABLE, limit_mcpu=60_000).pool.startswith("numa")


def test_unlimited_burstable_container_goes_to_the_level_it_wants() -> None:
    """S, A."""
    node = books()
    for level, pool in (("system", "root"), ("package", "socket"), ("numa", "numa"), ("l3cache", "numa")):
        wanted = {"unlimited-burstable/pod": level}
        grant = create(node, level, mcpu=100, qos=QoS.BURSTABLE, annotations=wanted)
        assert grant.pool.startswith(pool)


def test_exclusive_cpus_are_looked_for_where_those_of_the_wanted_speed_are() -> None:
    """S, K4."""
    node = books(reserved="")
    speeds = SpeedClasses(high=CpuSet.parse("4-5"), normal=CpuSet.parse("0-3,6-15"))
    node = replace(node, machine=replace(node.machine, speeds=speeds))
    grant = create(node, "a", mcpu=2000, annotations={"prefer-cpu-priority/pod": "high"})
    assert str(grant.exclusive) == "4-5"
    assert create(node, "b", mcpu=2000, annotations={"prefer-cpu-priority/pod": "normal"}).pool == "numa 3"


def test_memory_that_just_fits_fits() -> None:
    """S, M1."""
    node = books()
    assert create(node, "a", mcpu=1000, memory_bytes=MEMORY_BYTES).pool == "numa 2"
    assert create(node, "b", mcpu=1000, memory_bytes=MEMORY_BYTES + 1).pool.startswith("socket")


def test_last_thousandth_of_a_pool_takes_one_that_asks_for_nothing() -> None:
    """P3, G16: and no more than one."""
    node = books()
    node.ledger.hold(claim(1).uid, CpuSet.parse("0-11"))
    node.ledger.apply(Change(put_containers=(container_in("numa 3", portion_mcpu=2999),)))
    assert best(node) == "numa 3"
    assert best(node, portion=1) == "numa 3"
    assert best(node, portion=2) == "root"
    node.ledger.apply(Change(put_containers=(container_in("numa 3", 1),)))
    assert best(node) == "root"


def test_weights_that_cancel_out_are_as_none() -> None:
    """S: affinity is a sum."""
    node = books()
    mine = [container_in("numa 0", i, portion_mcpu=1) for i in range(2)]
    node.ledger.apply(Change(put_containers=tuple(mine)))
    both = Pull(weights={mine[0].id: 10, mine[1].id: -10})
    assert create(node, "away", mcpu=1000, pull=both).pool == "numa 2"
    for number, other in enumerate((1, 2, 3)):
        prepare(node, claim(number, (other, 2 if other > 1 else 1)))
    grant = create(node, "here", mcpu=2000, pull=both)
    assert "nearer" not in grant.reason


def test_closeness_is_compared_in_whole_hundredths() -> None:
    """S: 9 CPUs of 10 are as close as 10 of 11; what can be sliced off decides."""
    node = books(Shape(nodes=2, cores=6), reserved="", available="0-9,12-22")
    node.ledger.hold(claim(1).uid, CpuSet.parse("21-22"))
    near = Pull(hints=(Hint(source="nic", cpus=CpuSet.parse("0-8,12-21")),))
    grant = create(node, "a", mcpu=2000, pull=near)
    assert grant.pool == "numa 0"
    assert "numa 0 before numa 1: more CPUs that can be sliced off" in grant.reason


def test_level_wanted_is_missed_by_as_little_as_can_be() -> None:
    """S, A: where the root has no room, a socket is nearer to it than a node."""
    node = books()
    create(node, "huge", mcpu=50_000, qos=QoS.BURSTABLE)
    grant = create(node, "a", mcpu=100, qos=QoS.BURSTABLE, annotations={"unlimited-burstable/pod": "system"})
    assert grant.pool == "socket 0"
    assert "socket 0 before socket 1: more capacity" in grant.reason


def test_room_up_to_the_very_limit_is_enough() -> None:
    """S."""
    node = books()
    grant = create(node, "a", mcpu=500, qos=QoS.BURSTABLE, limit_mcpu=4000)
    assert grant.pool == "numa 2"
    assert create(node, "b", mcpu=500, qos=QoS.BURSTABLE, limit_mcpu=4001).pool.startswith("socket")
