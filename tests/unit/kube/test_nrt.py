"""What the NodeResourceTopology object says (X2; n4c16, CPU 15 reserved)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nodecpu.kube.nrt import node_topology
from nodecpu.lab.objects import topology_faults
from nodecpu.policy.facts import QoS
from tests.node import Node, PodShape, Scene, claim, play


def told(node: Node) -> dict[str, Any]:
    found = node_topology(node.service.books.ledger, node.started.topology, policy="best-effort")
    written: dict[str, Any] = json.loads(json.dumps(found))
    assert topology_faults(written) == []
    return written


def zone(node: Node, name: str) -> dict[str, Any]:
    (found,) = [one for one in told(node)["zones"] if one["name"] == name]
    return dict(found)


def amounts(node: Node, name: str, resource: str = "cpu") -> tuple[str, str, str]:
    (found,) = [one for one in zone(node, name)["resources"] if one["name"] == resource]
    return found["capacity"], found["allocatable"], found["available"]


def attributes(node: Node, name: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in zone(node, name)["attributes"]}


def test_zones_are_named_as_nri_plugins_and_the_scheduler_plugin_do(scene: Scene) -> None:
    """X2: one for each pool, and one of type Node for each NUMA node."""

    async def story(node: Node) -> None:
        zones = [(one["name"], one["type"], one.get("parent")) for one in told(node)["zones"]]
        assert zones == [
            ("root", "virtual node", None),
            ("socket #0", "socket", "root"),
            ("NUMA node #0", "numa node", "socket #0"),
            ("NUMA node #1", "numa node", "socket #0"),
            ("socket #1", "socket", "root"),
            ("NUMA node #2", "numa node", "socket #1"),
            ("NUMA node #3", "numa node", "socket #1"),
            ("node-0", "Node", "NUMA node #0"),
            ("node-1", "Node", "NUMA node #1"),
            ("node-2", "Node", "NUMA node #2"),
            ("node-3", "Node", "NUMA node #3"),
        ]
        assert {one["name"]: one["value"] for one in told(node)["attributes"]} == {
            "TopologyPolicy": "nodecpu",
            "topologyManagerPolicy": "best-effort",
            "topologyManagerScope": "container",
        }

    play(scene, story)


def test_claims_lower_what_is_available_in_every_zone_that_holds_their_cpus(scene: Scene) -> None:
    """X2."""

    async def story(node: Node) -> None:
        assert amounts(node, "node-1") == ("4", "4", "4")
        assert amounts(node, "root") == ("16", "15", "15")
        await node.prepare(claim(1, ("cpudevnuma001", 2)))
        assert amounts(node, "node-1") == ("4", "4", "2")
        assert amounts(node, "NUMA node #1") == ("4", "4", "2")
        assert amounts(node, "socket #0") == ("8", "8", "6")
        assert amounts(node, "root") == ("16", "15", "13")
        assert attributes(node, "NUMA node #1") == {
            "memory set": "1",
            "shared cpuset": "6-7",
            "claimed cpuset": "4-5",
        }
        assert attributes(node, "NUMA node #3")["reserved cpuset"] == "15"
        await node.claims.unprepare(claim(1).uid)
        assert amounts(node, "node-1") == ("4", "4", "4")

    play(scene, story)


def test_shared_portions_and_exclusive_cpus_count(scene: Scene) -> None:
    """X2: in milli-CPU, where their pool is."""

    async def story(node: Node) -> None:
        shared = PodShape(number=1, qos=QoS.BURSTABLE, request_mcpu=1500)
        node.service.pod_seen(shared.spec)
        node.create(shared.sandbox, shared.container("c1"))
        exclusive = PodShape(number=2, qos=QoS.GUARANTEED, request_mcpu=2000)
        node.service.pod_seen(exclusive.spec)
        node.create(exclusive.sandbox, exclusive.container("c2"))
        assert amounts(node, "root") == ("16", "15", "11500m")
        held = node.service.books.ledger.containers
        pools = {grant.pool.replace("numa ", "node-") for grant in held.values()}
        nodes = {f"node-{number}": amounts(node, f"node-{number}")[2] for number in range(4)}
        assert {name for name, available in nodes.items() if available not in ("3", "4")} == pools

    play(scene, story)


def test_memory_is_told_in_bytes_and_distances_as_costs(scene: Scene) -> None:
    """X2."""

    async def story(node: Node) -> None:
        size = node.started.topology.numa_node(1).size_bytes
        assert amounts(node, "node-1", "memory") == (str(size),) * 3
        costs = {one["name"]: one["value"] for one in zone(node, "node-1")["costs"]}
        assert costs["node-1"] == 10
        assert set(costs) == {"node-0", "node-1", "node-2", "node-3"}

    play(scene, story)


def test_one_node_machine_has_its_node_zone_though_the_level_adds_nothing(tmp_path: Path) -> None:
    """X2, P1."""

    async def story(node: Node) -> None:
        names = [one["name"] for one in told(node)["zones"]]
        assert names == ["socket #0", "node-0"]
        assert zone(node, "node-0")["parent"] == "socket #0"

    small = Scene(tmp_path, "1 sockets, 4 cores, 2 threads")
    small.reserved = "7"
    play(small, story)
