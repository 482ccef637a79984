"""The series that taught the topology-aware policy to pin holders of claims, sentence by sentence.

Each test quotes the sentence it holds, as settled at the end of the discussion: a holder gets its claimed CPUs and,
with a CPU request of its own, the normal allocation beside them. Machine n4c16, CPU 15 reserved; requests stand as they
are (``claims.mirrored_requests = "never"``), as in the series.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.policy.annotations import Preferences
from nodecpu.policy.facts import ClaimRef, QoS
from nodecpu.policy.grants import ClaimGrant, Group
from nodecpu.policy.ledger import violations
from nodecpu.policy.links import Links, links_of
from nodecpu.policy.plan import Change
from nodecpu.policy.requests import request_of
from nodecpu.policy.room import spare_mcpu
from nodecpu.policy.rules import Mirrored, Rules
from nodecpu.policy.shared import placement, shared_updates
from tests.unit.policy.given import (
    claim,
    claim_env,
    container,
    cpus,
    create,
    mems_of,
    pod_spec,
    prepare,
    release,
    runs_on,
    sandbox,
)
from tests.unit.policy.machines import Books, books

NEVER = Rules(mirrored=Mirrored.NEVER)


@pytest.fixture
def node() -> Books:
    return books(rules=NEVER)


# What a claiming container runs on


def test_container_with_no_request_runs_on_its_claims_only(node: Books) -> None:
    """G2: "A container with no CPU request of its own, the usual case, runs on its claims only." """
    taken = prepare(node, claim(1, (3, 3)))
    assert runs_on(node, create(node, claims=[taken])) == cpus("12-14")


@pytest.mark.parametrize(
    ("mcpu", "qos", "exclusive", "shared"),
    [
        pytest.param(300, QoS.BURSTABLE, 0, True, id="shared"),
        pytest.param(2000, QoS.GUARANTEED, 2, False, id="exclusive"),
        pytest.param(1500, QoS.GUARANTEED, 1, True, id="exclusive and shared"),
    ],
)
def test_container_with_a_request_also_gets_its_normal_allocation(
    node: Books, mcpu: int, qos: QoS, exclusive: int, *, shared: bool
) -> None:
    """G3: "exclusive CPUs, and shared CPUs if it has a shared portion"."""
    taken = prepare(node, claim(1, (1, 1)))
    holder = create(node, mcpu=mcpu, qos=qos, claims=[taken])
    assert (len(holder.exclusive), holder.uses_shared) == (exclusive, shared)
    where = runs_on(node, holder)
    assert taken.cpus | holder.exclusive <= where <= cpus("4-7")
    assert (where == taken.cpus | holder.exclusive) != shared


def test_reserved_container_gets_its_reserved_cpus_as_well_if_it_has_a_request(node: Books) -> None:
    """G4: "A container with reserved CPUs, such as one in kube-system"."""
    taken = prepare(node, claim(1, (1, 2), namespace="kube-system"))
    asking = create(node, "asking", namespace="kube-system", mcpu=100, qos=QoS.BURSTABLE, claims=[taken])
    silent = create(node, "silent", namespace="kube-system", claims=[taken])
    assert (runs_on(node, asking), runs_on(node, silent)) == (cpus("4-5,15"), cpus("4-5"))


def test_hiding_hyperthreads_applies_to_the_exclusive_cpus_only(node: Books) -> None:
    """G7: "The claimed CPUs are pinned as they are, since they are exactly what the claim asked for." """
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, mcpu=2000, claims=[taken], annotations={"hide-hyperthreads": "true"})
    assert runs_on(node, holder) == taken.cpus | cpus("6")


# Where a claiming container goes


def test_container_with_normal_cpus_gets_its_grant_from_the_pool_of_the_claimed_cpus(node: Books) -> None:
    """G5: "So its memory comes from the claims' NUMA node, and so do its own exclusive and shared CPUs." """
    for number, home in enumerate(("0-3", "4-7", "8-11", "12-14")):
        taken = prepare(node, claim(number + 1, (number, 1)))
        holder = create(node, f"holder-{number}", mcpu=1200, claims=[taken])
        assert taken.cpus | holder.exclusive <= cpus(home)
        assert (holder.pool, mems_of(node, holder)) == (f"numa {number}", str(number))


def test_reserved_container_stays_in_the_root_pool_and_its_memory_comes_from_there(node: Books) -> None:
    """G5: "A container with reserved CPUs stays in the root pool, like other reserved containers"."""
    taken = prepare(node, claim(1, (1, 2), namespace="kube-system"))
    holder = create(node, namespace="kube-system", mcpu=100, qos=QoS.BURSTABLE, claims=[taken])
    assert (holder.group, holder.pool, mems_of(node, holder)) == (Group.RESERVED, "root", "0-3")


@pytest.mark.parametrize(
    ("mcpu", "qos", "namespace", "shares"),
    [
        pytest.param(None, QoS.BEST_EFFORT, "shop", 2048, id="claimed only"),
        pytest.param(300, QoS.BURSTABLE, "shop", 307, id="shared portion"),
        pytest.param(2000, QoS.GUARANTEED, "shop", 4096, id="all it runs on"),
        pytest.param(1500, QoS.GUARANTEED, "shop", 512, id="portion of a mixed one"),
        pytest.param(100, QoS.BURSTABLE, "kube-system", 102, id="reserved portion"),
    ],
)
def test_cpu_shares_come_from_the_portion_if_there_is_one_otherwise_from_all_cpus(
    node: Books, mcpu: int | None, qos: QoS, namespace: str, shares: int
) -> None:
    """G6: "they come from the shared or reserved portion if there is one, otherwise from all the CPUs"."""
    taken = prepare(node, claim(1, (1, 2), namespace=namespace))
    assert create(node, mcpu=mcpu, qos=qos, namespace=namespace, claims=[taken]).shares == shares


def test_besteffort_holder_is_not_counted_as_a_shared_container_of_its_pool(node: Books) -> None:
    """G6: "Otherwise it would hold back a milli-CPU of shared capacity there, and the last CPUs of its node could not
    be claimed."
    """
    first = prepare(node, claim(1, (1, 2)))
    create(node, claims=[first])
    pool = node.ledger.tree.named("numa 1")
    assert pool is not None
    assert spare_mcpu(node.ledger, pool) == 2000
    assert prepare(node, claim(2, (1, 2))).cpus == cpus("6-7")


def test_holder_without_a_shared_portion_is_left_alone_when_the_pool_changes(node: Books) -> None:
    """G8: "updateSharedAllocations leaves a claiming container with no shared portion alone"."""
    first = prepare(node, claim(1, (1, 2)))
    alone = create(node, "alone", claims=[first])
    follows = create(node, "follows", mcpu=100, qos=QoS.BURSTABLE, claims=[first])
    second = prepare(node, claim(2, (1, 1)))
    flipped = second.cpus
    told = {update.container_id: update.placement.cpus for update in shared_updates(node.ledger, Change(), flipped)}
    assert alone.id not in told
    assert told[follows.id] == cpus("4-5,7") == runs_on(node, follows)
    release(node, second)
    assert runs_on(node, follows) == cpus("4-7")
    assert runs_on(node, alone) == cpus("4-5")


def test_preserved_container_keeps_the_cpuset_the_runtime_gave_it(node: Books) -> None:
    """G8: "Containers with cpuPreserve keep the cpuset the runtime gave them, as before." """
    taken = prepare(node, claim(1, (1, 2), namespace="kube-system"))
    kept = create(node, namespace="kube-system", claims=[taken], annotations={"cpu.preserve": "true"})
    assert placement(node.ledger, kept) is None


# How a container is linked to its claims


def links(node: Books, grant: ClaimGrant, value: str, *, uid: str = "") -> Links:
    spec = pod_spec(claims=[ClaimRef(claim=grant.name)])
    env = {f"DRA_CPUSET_{uid or grant.uid}": value}
    return links_of(node.ledger, node.rules, sandbox(), container(env=env), spec)


@pytest.mark.parametrize("value", ["4-5", "5,4", "4,5", "4-4,5"])
def test_value_is_compared_as_a_cpuset(node: Books, value: str) -> None:
    """L1: "so 0-1 and 1,0 name the same CPUs"."""
    taken = prepare(node, claim(1, (1, 2)))
    assert [link.cpus for link in links(node, taken, value).held] == [taken.cpus]


def test_container_holds_a_claim_for_its_life(node: Books) -> None:
    """L4: "The claims are looked up once, when the container is allocated, and kept on its grant." """
    taken = prepare(node, claim(1, (1, 2)))
    holder = create(node, claims=[taken])
    node.ledger.apply(Change(put_claims=(replace(taken, released=True),)))
    assert holder.claimed == taken.cpus
    assert node.ledger.grantable(taken.cpus) == CpuSet()
    assert violations(node.ledger) == []


def test_claims_are_shared_by_several_containers(node: Books) -> None:
    """L3: "claimed CPUs are shared between multiple containers referencing the same claim"."""
    taken = prepare(node, claim(1, (0, 2)))
    one, two = create(node, "one", claims=[taken]), create(node, "two", claims=[taken])
    assert runs_on(node, one) == runs_on(node, two) == cpus("0-1")
    assert mems_of(node, one) == mems_of(node, two) == "0"


# The verification lists


def test_container_holding_two_claims_runs_on_both(node: Books) -> None:
    """G2: "a container holding two claims"."""
    first, second = prepare(node, claim(1, (0, 2))), prepare(node, claim(2, (1, 2)))
    holder = create(node, claims=[first, second])
    assert runs_on(node, holder) == cpus("0-1,4-5")
    assert (holder.pool, mems_of(node, holder)) == ("socket 0", "0-1")


def test_holder_keeps_its_claim_while_another_comes_and_goes(node: Books) -> None:
    """L4: "a claiming container keeping its claim while another claim comes and goes"."""
    first = prepare(node, claim(1, (1, 2)))
    holder = create(node, claims=[first])
    second = prepare(node, claim(2, (1, 2)))
    assert runs_on(node, holder) == first.cpus
    release(node, second)
    assert runs_on(node, holder) == first.cpus


def test_the_e2e_test_of_the_series(node: Books) -> None:
    """G2, C2: "12-14 on node 3, 4-5 and 6-7 on node 1, then 4-5 for the third claim once the first is released"; "A pod
    with a 100m CPU request of its own and a claim on node 2 runs on CPUs 8-11 [...] with node 2's memory"."""
    first = prepare(node, claim(1, (3, 3)))
    assert runs_on(node, create(node, "a", claims=[first])) == cpus("12-14")
    second, third = prepare(node, claim(2, (1, 2))), prepare(node, claim(3, (1, 2)))
    assert (second.cpus, third.cpus) == (cpus("4-5"), cpus("6-7"))
    release(node, second)
    assert prepare(node, claim(4, (1, 2))).cpus == cpus("4-5")
    fifth = prepare(node, claim(5, (2, 2)))
    asking = create(node, "asking", mcpu=100, qos=QoS.BURSTABLE, claims=[fifth])
    assert (runs_on(node, asking), mems_of(node, asking)) == (cpus("8-11"), "2")
    bare = create(node, "bare")
    assert runs_on(node, bare).isdisjoint(first.cpus | third.cpus | fifth.cpus)


def test_request_that_only_preserves_asks_for_nothing(node: Books) -> None:
    """G1: a preserved container's own request takes nothing from anybody."""
    spec = pod_spec(qos=QoS.GUARANTEED, mcpu=4000)
    asked = request_of(
        node.rules, sandbox(), container(), spec, CpuSet(), reserved=True, preferences=Preferences(preserve_cpu=True)
    )
    assert (asked.exclusive, asked.portion_mcpu, asked.uses_shared) == (0, 0, False)


def test_variables_of_other_cpus_and_other_claims_are_ignored(node: Books) -> None:
    """L1: "A variable for an unknown claim, or naming other CPUs, is ignored." """
    taken = prepare(node, claim(1, (1, 2)))
    env = claim_env(taken)
    spec = pod_spec()  # references no claim
    assert links_of(node.ledger, node.rules, sandbox(), container(env=env), spec).held == ()
    other = prepare(node, claim(2, (0, 1)))
    unknown = {f"DRA_CPUSET_{other.uid}": "9", "DRA_CPUSET_00000009-0000-4000-8000-00000000c1a1": "4-5"}
    found = links_of(node.ledger, node.rules, sandbox(), container(env=unknown), spec)
    assert (found.held, len(found.ignored)) == ((), 2)
