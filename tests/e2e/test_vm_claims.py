"""What a claim gets on a node with four NUMA nodes: real containerd, cgroup v2 by systemd, as the kernel tells it.

These are the cases of the main job that the lab plays by itself as well.
"""

from __future__ import annotations

import json

import pytest

from nodecpu.cpuset import CpuSet
from tests.e2e.vmsite import NUMA, Node, Scene

pytestmark = pytest.mark.vm


def test_numa_devices_offer_their_cpus(node: Node) -> None:
    """D1, T4, T5: as the kernel of a machine with four nodes tells them."""
    capacities = node.capacities()
    assert [capacities[name] for name in sorted(capacities)] == [4, 4, 4, 3]


def test_claims_get_a_core_each_and_no_more_than_there_is(node: Node) -> None:
    """C2, C8, K1: what is more than free is refused, whatever the scheduler thought."""
    assert node.start("first", node.hold("one", (1, 2))) == ("4-5", "1")
    assert node.start("second", node.hold("two", (1, 2))) == ("6-7", "1")
    node.ask("hold", name="three", wants=[{"device": node.devices()[1], "cpus": "2"}])
    refused = node.machine.ask("start", name="third", claims=["three"], tries=3)
    assert "three" in str(refused.get("error"))
    node.end("first")
    assert node.start("third", node.hold("four", (1, 2))) == ("4-5", "1")
    assert node.look("second") == ("6-7", "1")


def test_container_with_cpus_of_its_own_runs_at_its_claims_node(node: Node) -> None:
    """G3, G5, M1: the claimed CPUs and the shared ones of the same node, with that node's memory."""
    assert node.start("mixed", node.hold("near", (2, 2)), request="100m") == ("8-11", "2")


def test_claim_of_two_nodes_is_disjoint_and_both_holders_run_there(node: Node) -> None:
    """C3, L3, M1: memory of the pool that has both nodes; a second pod needs no further prepare call."""
    claim = node.hold("both", (0, 2), (2, 1))
    assert node.start("one", claim) == ("0-1,8", "0-3")
    assert node.start("two", claim) == ("0-1,8", "0-3")


def test_claim_of_two_nodes_gets_all_or_nothing(node: Node) -> None:
    """C3: what one node has is free again when the other has too little."""
    assert node.start("first", node.hold("full", (2, 4))) == ("8-11", "2")
    wants = [{"numa": "0", "cpus": "2"}, {"device": node.devices()[2], "cpus": "1"}]
    node.ask("hold", name="torn", wants=wants)
    assert "torn" in str(node.machine.ask("start", name="second", claims=["torn"], tries=2).get("error"))
    assert node.start("third", node.hold("whole", (0, 4))) == ("0-3", "0")


def test_preparing_again_gives_the_same_and_a_deleted_cdi_spec_is_written_again(pinned: Node) -> None:
    """C5, C6, C11: unpreparing twice, or what nobody knows, is success."""
    specs = pinned.machine.ok("sh", "-c", "cat /run/cdi/*.json")
    pinned.machine.ok("sh", "-c", "rm /run/cdi/*.json")
    answers = pinned.ask("again", name="pair")
    assert answers["again"] == answers["before"] != []
    assert json.loads(pinned.machine.ok("sh", "-c", "cat /run/cdi/*.json")) == json.loads(specs)
    uid = str(answers["uid"])
    pinned.end("holder")
    assert pinned.ask("unprepare", uids=[uid, uid, "00000000-0000-4000-8000-000000000000"]) == {"errors": ["", "", ""]}


def test_shared_container_comes_back_when_the_claim_has_ended(pinned: Node, scene: Scene) -> None:
    """C12, G1, G9: it had moved aside on its node."""
    assert (pinned.look("other"), pinned.look("holder")) == (scene.moved, scene.holder)
    pinned.end("holder")
    pinned.until("other", scene.before)


def test_shared_container_is_lifted_as_claims_take_node_socket_and_machine(node: Node) -> None:
    """G9, M1: to the socket, to the machine, to the reserved CPUs when there is no other; then to what is free again.

    Its pool is the machine from then on, and its memory that pool's.
    """
    at = NUMA.index(node.start("other")[0])
    order = [at, at ^ 1, *(numa for numa in range(4) if numa // 2 != at // 2)]
    free = CpuSet.parse("0-14")
    seen = []
    for number, numa in enumerate(order):
        cpus = CpuSet.parse(NUMA[numa])
        assert node.start(f"holder-{number}", node.hold(f"all-{number}", (numa, len(cpus))))[0] == NUMA[numa]
        free -= cpus
        seen.append(node.cpus("other"))
    socket = CpuSet.parse(NUMA[at ^ 1])
    rest = CpuSet.parse(NUMA[order[2]]) | CpuSet.parse(NUMA[order[3]])
    assert seen == [socket, rest, CpuSet.parse(NUMA[order[3]]), CpuSet.parse("15")]
    node.end("holder-0")
    node.until("other", (NUMA[at], "0-3"))


def test_system_pods_run_on_reserved_cpus_unless_they_ask_for_none_of_their_own(node: Node) -> None:
    """G2, G4: with a request of its own a holder has them beside its claim, without one the claim alone."""
    for name, request, cpus in (("asks", "100m", "0-1,15"), ("asks-not", "", "2-3")):
        node.hold(name, (0, 2), namespace="kube-system")
        assert node.start(name, name, namespace="kube-system", request=request)[0] == cpus


def test_forged_variables_gain_nothing_and_are_counted(pinned: Node, scene: Scene) -> None:
    """L1, L2: the right CPUs of somebody else's claim, and no CPUs at all."""
    variable = f"DRA_CPUSET_{pinned.ask('again', name='pair')['uid']}"
    for name, value in (("right", scene.holder[0]), ("malformed", "0-4095,x")):
        cpus = CpuSet.parse(pinned.start(name, environment={variable: value})[0])
        assert cpus
        assert not cpus & CpuSet.parse(scene.holder[0])
    metrics = pinned.machine.ok("nodecpu", "metrics", "--values").splitlines()
    assert [float(line.split()[1]) for line in metrics if line.startswith("nodecpu_forged_claims_total")] == [2]


def test_request_that_mirrors_its_claim_is_the_claim(node: Node) -> None:
    """G3: the example of the community driver: eight CPUs claimed, requested and limited."""
    assert node.start("eight", node.hold("mirrored", (0, 4), (1, 4)), request="8", limit="8")[0] == "0-7"
