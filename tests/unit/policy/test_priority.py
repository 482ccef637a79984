"""Faster and slower CPUs in three classes (K4)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from nodecpu.policy.facts import QoS
from nodecpu.policy.priority import Priority, SpeedClasses, speed_classes
from nodecpu.policy.rules import Rules
from nodecpu.topology.model import CoreType, Cpu, Topology
from tests.unit.policy.given import cpus, create
from tests.unit.policy.machines import Books, Shape, books, build_topology

SMALL = Shape(sockets=1, nodes=1, cores=4, threads=2)
FAST = SpeedClasses(high=cpus("4-5"), normal=cpus("0-3"), low=cpus("6-7"))


def machine(change: dict[int, dict[str, object]]) -> Topology:
    """Return a machine of four cores in which some CPUs are different."""
    topology = build_topology(SMALL)

    def changed(cpu: Cpu) -> Cpu:
        return replace(cpu, **change.get(cpu.id, {}))  # type: ignore[arg-type]  # fields by name

    return replace(topology, cpus={number: changed(cpu) for number, cpu in topology.cpus.items()})


@pytest.mark.parametrize(
    ("change", "high", "low"),
    [
        pytest.param({}, "", "", id="all alike"),
        pytest.param(
            {cpu: {"core_type": CoreType.EFFICIENT if cpu > 3 else CoreType.PERFORMANCE} for cpu in range(8)},
            "0-3",
            "4-7",
            id="core types",
        ),
        pytest.param({cpu: {"base_khz": 2700 if cpu < 2 else 2100} for cpu in range(8)}, "0-1", "2-7", id="two bases"),
        pytest.param(
            {cpu: {"base_khz": 2700 - 100 * (cpu // 2)} for cpu in range(8)}, "0-1", "6-7", id="several bases"
        ),
        pytest.param({cpu: {"base_khz": 2700} for cpu in range(8)}, "", "", id="one base"),
        pytest.param(
            {0: {"epp": "performance"}, 1: {"epp": "balance_power"}, 2: {"epp": "weird"}, 3: {"epp": "192"}},
            "0",
            "1,3",
            id="energy preference",
        ),
    ],
)
def test_classes_follow_core_type_then_base_frequency_then_energy_preference(
    change: dict[int, dict[str, object]], high: str, low: str
) -> None:
    """K4."""
    found = speed_classes(machine(change))
    assert (found.high, found.low) == (cpus(high), cpus(low))
    assert found.high | found.normal | found.low == cpus("0-7")
    assert found.normal.isdisjoint(found.high | found.low)


@pytest.mark.parametrize(
    ("word", "number"),
    [("performance", 0), ("balance_performance", 128), ("default", 128), ("balance_power", 192), ("power", 255)],
)
def test_words_of_the_energy_preference_stand_for_the_kernels_numbers(word: str, number: int) -> None:
    """K4."""
    alike = speed_classes(machine({0: {"epp": word}, 1: {"epp": str(number)}}))
    assert (alike.high, alike.low) == (cpus(""), cpus(""))
    slower = speed_classes(machine({0: {"epp": word}, 1: {"epp": str(number + 1)}}))
    assert (slower.high, slower.low) == (cpus("0"), cpus("1"))


@pytest.mark.parametrize(
    ("priority", "steps"),
    [
        (Priority.HIGH, ["4-5", "0-5", "0-7"]),
        (Priority.NORMAL, ["0-3", "0-3,6-7", "0-7"]),
        (Priority.LOW, ["6-7", "0-3,6-7", "0-7"]),
        (Priority.NONE, ["0-7"]),
    ],
)
def test_the_next_class_is_taken_only_when_one_is_not_enough(priority: Priority, steps: list[str]) -> None:
    """K4."""
    assert [str(part) for part in FAST.widening(priority, cpus("0-7"))] == steps


@pytest.mark.parametrize("priority", Priority)
@pytest.mark.parametrize("free", ["0-7", "0-3", "4-5", "6-7", "2-5", "5-6", "9", ""])
def test_each_part_is_more_than_the_one_before_and_the_last_is_all(priority: Priority, free: str) -> None:
    """K4: nothing is tried twice; where a class has none free the next is tried at once."""
    parts = list(FAST.widening(priority, cpus(free)))
    assert parts[-1] == cpus(free)
    assert all(parts[:-1])
    assert all(less <= more and less != more for less, more in pairwise(parts))


def fast_books(rules: Rules | None = None) -> Books:
    made = books(SMALL, reserved="", rules=rules)
    return replace(made, machine=replace(made.machine, speeds=FAST))


@pytest.mark.parametrize(
    ("annotation", "default", "exclusive"),
    [
        pytest.param("high", Priority.NONE, "4-5", id="high"),
        pytest.param("low", Priority.NONE, "6-7", id="low"),
        pytest.param("normal", Priority.HIGH, "0-1", id="normal"),
        pytest.param("none", Priority.HIGH, "0-1", id="no matter"),
        pytest.param(None, Priority.HIGH, "4-5", id="the default"),
        pytest.param(None, Priority.NONE, "0-1", id="no default"),
    ],
)
def test_exclusive_cpus_are_of_the_preferred_class(annotation: str | None, default: Priority, exclusive: str) -> None:
    """K4: requests without a wish take the default."""
    node = fast_books(Rules(priority=default))
    annotations = {} if annotation is None else {"prefer-cpu-priority/pod": annotation}
    assert create(node, mcpu=2000, annotations=annotations).exclusive == cpus(exclusive)


def test_a_preference_that_cannot_be_met_is_met_in_part() -> None:
    """K4: it is a preference."""
    got = create(fast_books(), mcpu=4000, annotations={"prefer-cpu-priority": "high"}).exclusive
    assert len(got) == 4
    assert got <= cpus("0-5")


def test_shared_containers_have_no_priority() -> None:
    """K4: exclusive requests only."""
    assert create(
        fast_books(), mcpu=500, qos=QoS.BURSTABLE, annotations={"prefer-cpu-priority": "high"}
    ).exclusive == cpus("")
