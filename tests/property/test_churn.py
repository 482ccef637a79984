"""Twelve claims and forty containers come and go in random order: nothing breaks, nothing is left behind.

NODECPU_STEPS makes it longer: 100000 takes some minutes. A failure names the seed.
"""

from __future__ import annotations

import contextlib
import os
import random

import pytest

from nodecpu.errors import BadRequest, NoCapacity
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ClaimGrant, ContainerGrant
from nodecpu.policy.ledger import violations
from tests.unit.policy.given import claim, create, prepare, release, remove
from tests.unit.policy.machines import N4C16, Books, Shape, books

STEPS = int(os.environ.get("NODECPU_STEPS", "1500"))
GIB = 1 << 30


class Churn:
    """Books under load."""

    def __init__(self, node: Books, seed: int) -> None:
        self.node = node
        self.random = random.Random(seed)
        self.claims: dict[int, ClaimGrant] = {}
        self.containers: dict[int, ContainerGrant] = {}
        self.count = 0

    def step(self) -> None:
        number = self.random.randrange(52)
        if number < 12:
            self._claim(number)
        else:
            self._container(number)

    def _claim(self, number: int) -> None:
        if number in self.claims:
            if not self.node.ledger.holders(self.claims[number].uid):
                release(self.node, self.claims.pop(number))
            return
        devices = len(self.node.machine.devices)
        wanted = [(self.random.randrange(devices), self.random.randint(1, 3)) for _ in range(self.random.randint(1, 2))]
        self.count += 1
        with contextlib.suppress(NoCapacity, BadRequest):
            self.claims[number] = prepare(self.node, claim(self.count, *wanted))

    def _container(self, number: int) -> None:
        if number in self.containers:
            remove(self.node, self.containers.pop(number))
            return
        mcpu = self.random.choice((None, 100, 400, 900, 1000, 1500, 2000, 3000))
        qos = self.random.choice((QoS.GUARANTEED, QoS.BURSTABLE)) if mcpu else QoS.BEST_EFFORT
        held = self.random.sample(sorted(self.claims), min(len(self.claims), self.random.choice((0, 0, 1, 2))))
        self.count += 1
        with contextlib.suppress(NoCapacity):
            self.containers[number] = create(
                self.node,
                f"pod-{self.count}",
                mcpu=mcpu,
                qos=qos,
                claims=[self.claims[one] for one in held],
                memory_bytes=self.random.choice((None, GIB, 6 * GIB)) if mcpu else None,
            )

    def end(self) -> None:
        remove(self.node, *self.containers.values())
        release(self.node, *self.claims.values())


@pytest.mark.parametrize(
    ("shape", "seed"),
    [
        (N4C16, 1),
        (Shape(sockets=2, nodes=2, cores=4, l3_cores=2, isolated="8-11"), 2),
    ],
    ids=["n4c16", "32 CPUs, L3 groups, isolated"],
)
def test_nothing_breaks_and_supplies_are_back_at_the_end(shape: Shape, seed: int) -> None:
    """C4, P3, M1: every invariant after every step."""
    churn = Churn(books(shape), seed)
    start = churn.node.ledger.free(churn.node.usable.all)
    for number in range(STEPS):
        churn.step()
        assert violations(churn.node.ledger) == [], f"seed {seed}, step {number}"
    churn.end()
    ledger = churn.node.ledger
    assert ledger.free(churn.node.usable.all) == start
    assert [ledger.need_mcpu(pool) for pool in ledger.tree.pools] == [0] * len(ledger.tree.pools)
    assert dict(ledger.memory) == {}
