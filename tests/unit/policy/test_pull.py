"""What draws a container to a place, and what of it a set of CPUs meets (S, A)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodecpu.ids import ContainerID, PodUID
from nodecpu.policy.pull import COLOCATION_WEIGHT, NO_PULL, Hint, Pull, colocated, near, unmet
from tests.unit.policy.drawn import container_in
from tests.unit.policy.given import cpus

GPU, NIC = Hint(source="gpu", cpus=cpus("0-7")), Hint(source="nic", cpus=cpus("4-11"))


def test_pull_is_there_with_a_weight_or_a_hint() -> None:
    """S: how strict it would be is no pull by itself."""
    assert Pull(weights={ContainerID("a"): 1})
    assert Pull(hints=(GPU,))
    assert not Pull(strict=True, picks=True)
    assert (bool(NO_PULL), NO_PULL.strict, NO_PULL.picks) == (False, False, False)


@pytest.mark.parametrize(("hints", "left"), [((), "2-9"), ((GPU,), "2-7"), ((NIC,), "4-9"), ((GPU, NIC), "4-7")])
def test_near_are_the_cpus_that_every_hint_names(hints: tuple[Hint, ...], left: str) -> None:
    """A: pick-resources-by-hints."""
    assert near(hints, cpus("2-9")) == cpus(left)


def test_unmet_is_the_first_hint_that_does_not_hold_for_all() -> None:
    """A: strict.topologyhints."""
    assert unmet((GPU, NIC), cpus("4-7")) is None
    assert unmet((GPU, NIC), cpus("3-7")) is NIC
    assert unmet((GPU, NIC), cpus("4-8")) is GPU
    assert unmet((GPU, NIC), cpus("12")) is GPU
    assert unmet((), cpus("12")) is None


@pytest.mark.parametrize("pods", [False, True])
@pytest.mark.parametrize("namespaces", [False, True])
def test_colocation_counts_what_is_configured_and_leaves_out_the_rest(*, pods: bool, namespaces: bool) -> None:
    """S: the pod and the namespace add up."""
    grants = [replace(container_in("root", i), namespace=name) for i, name in enumerate(("shop", "shop", "depot"))]
    found = colocated(grants, PodUID("pod-1"), "shop", pods=pods, namespaces=namespaces)
    mine, its = COLOCATION_WEIGHT * pods, COLOCATION_WEIGHT * namespaces
    wanted = {ContainerID("pod-0-app"): its, ContainerID("pod-1-app"): mine + its, ContainerID("pod-2-app"): 0}
    assert found == {name: weight for name, weight in wanted.items() if weight}
