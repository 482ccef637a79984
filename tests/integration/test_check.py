"""The checks of the cluster over the real client, against the lab's API server (E2)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from nodecpu.preflight.cluster import RIGHTS, cluster_findings
from nodecpu.preflight.finding import Finding, Grade
from tests.apiserver import Cluster, cluster

GRANTED = frozenset((verb, right.resource) for right in RIGHTS for verb in right.verbs)


async def _found(one: Cluster, node: str = "node1") -> Mapping[str, Finding]:
    found = await cluster_findings(one.client, node=node, skew_s=lambda: one.client.clock_skew_s)
    return {finding.check: finding for finding in found}


def test_cluster_that_is_right_is_found_so_clock_included() -> None:
    async def run() -> None:
        async with cluster() as one:
            one.server.rights = GRANTED
            assert {finding.grade for finding in (await _found(one)).values()} == {Grade.OK}

    asyncio.run(run())


def test_what_is_missing_is_named() -> None:
    async def run() -> None:
        async with cluster() as one:
            one.server.rights = GRANTED - {("watch", "pods"), ("create", "resourceslices")}
            found = await _found(one, node="node2")
            wrong = {check: finding.seen for check, finding in found.items() if finding.grade is not Grade.OK}
            assert wrong == {
                "Node object": "there is no Node node2",
                "rights on pods": "not allowed: watch",
                "rights on resourceslices": "not allowed: create",
            }
            await one.server.stop()
            (away,) = (await _found(one)).values()
            assert (away.check, away.grade) == ("API server", Grade.FAILED)

    asyncio.run(run())
