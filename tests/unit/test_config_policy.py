"""Settings with a small language of their own: choices of CPUs, scheduling classes, and what a node makes of them."""

from __future__ import annotations

import pytest

from nodecpu.arrangement import arrange
from nodecpu.config import Config, parse
from nodecpu.config_policy import ClassText, CpuChoiceText, NamespaceClass, QosClass
from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.errors import ConfigError
from nodecpu.policy.facts import QoS
from nodecpu.policy.picker import build_units
from nodecpu.policy.scheduling import IoClass, SchedulingClass, SchedulingPolicy
from nodecpu.policy.usable import CpuChoice, chosen_cpus
from tests.unit.policy.machines import N4C16, build_topology

ONLINE = CpuSet(range(16))
UNITS = build_units(build_topology(N4C16))


@pytest.mark.parametrize(
    ("value", "choice", "text"),
    [
        ("", CpuChoice(), ""),
        ("0-3,8", CpuChoice(cpus=CpuSet.parse("0-3,8")), "0-3,8"),
        ("2", CpuChoice(cpus=CpuSet([2])), "2"),
        ("cpuset:0-1", CpuChoice(cpus=CpuSet.parse("0-1")), "0-1"),
        ("exclude-cpuset:0-1", CpuChoice(without=CpuSet.parse("0-1")), "exclude-cpuset:0-1"),
        ("750m", CpuChoice(mcpu=750), "750m"),
        ("1.5", CpuChoice(mcpu=1500), "1500m"),
        (2, CpuChoice(mcpu=2000), "2000m"),
        (1.25, CpuChoice(mcpu=1250), "1250m"),
        (0, CpuChoice(), ""),
    ],
)
def test_cpus_are_chosen_by_number_by_exception_or_by_amount(value: object, choice: CpuChoice, text: str) -> None:
    """T5."""
    form = CpuChoiceText()
    assert form.read(value) == choice
    assert form.write(choice) == text
    assert bool(choice) == bool(text)


@pytest.mark.parametrize("value", ["cpuset:x", "exclude-cpuset:3-1", "-1m", "1e3x", "m", ".", True, [], -1, "all"])
def test_other_choices_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        CpuChoiceText().read(value)


@pytest.mark.parametrize(
    ("choice", "besides", "first", "cpus"),
    [
        pytest.param(CpuChoice(cpus=CpuSet.parse("14-17")), "", "", "14-15", id="numbers that are there"),
        pytest.param(CpuChoice(without=CpuSet.parse("0-1")), "", "", "2-15", id="all but some"),
        pytest.param(CpuChoice(mcpu=750), "", "", "0", id="part of a CPU"),
        pytest.param(CpuChoice(mcpu=3001), "", "", "0-3", id="rounded up"),
        pytest.param(CpuChoice(mcpu=2000), "0-3", "", "4-5", id="not the isolated ones"),
        pytest.param(CpuChoice(mcpu=3000), "0-13", "", "12,14-15", id="the isolated ones if need be"),
        pytest.param(CpuChoice(mcpu=4000), "", "15", "12-15", id="the reserved ones among them"),
        pytest.param(CpuChoice(mcpu=99000), "", "", "0-15", id="more than there are"),
        pytest.param(CpuChoice(), "", "", "", id="none"),
    ],
)
def test_an_amount_is_whole_cpus_near_each_other(choice: CpuChoice, besides: str, first: str, cpus: str) -> None:
    """T5, K1: the same ones each time."""
    for _ in range(2):
        chosen = chosen_cpus(UNITS, choice, ONLINE, besides=CpuSet.parse(besides), first=CpuSet.parse(first))
        assert chosen == CpuSet.parse(cpus)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (
            "bulk: policy=batch nice=10 io=idle/0",
            SchedulingClass(name="bulk", policy=SchedulingPolicy.BATCH, nice=10, io_class=IoClass.IDLE),
        ),
        (
            "rt: policy=fifo priority=50 flags=reset-on-fork,keep-policy io=rt/3",
            SchedulingClass(
                name="rt",
                policy=SchedulingPolicy.FIFO,
                priority=50,
                flags=("reset-on-fork", "keep-policy"),
                io_class=IoClass.REALTIME,
                io_priority=3,
            ),
        ),
        (
            "dl: policy=deadline runtime_ns=1000000 deadline_ns=2000000",
            SchedulingClass(name="dl", policy=SchedulingPolicy.DEADLINE, runtime_ns=1_000_000, deadline_ns=2_000_000),
        ),
        ("nothing:", SchedulingClass(name="nothing")),
    ],
)
def test_scheduling_class_is_a_line(text: str, made: SchedulingClass) -> None:
    """A: scheduling-class."""
    assert ClassText().read(text) == made
    assert ClassText().write(made) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no colon", "no name before a colon"),
        ("Bad_Name: nice=1", "no name before a colon"),
        ("x: policy=fast", "there is no policy fast"),
        ("x: speed=1", "speed is unknown or twice there"),
        ("x: nice=1 nice=2", "nice is unknown or twice there"),
        ("x: policy=other nice=-21", "-21 is not from -20 to 19"),
        ("x: policy=fifo", "a priority goes with fifo and rr"),
        ("x: policy=batch priority=5", "a priority goes with fifo and rr"),
        ("x: policy=deadline", "runtime_ns and deadline_ns go with deadline"),
        ("x: policy=fifo priority=1 nice=1", "a nice value goes with other and batch"),
        ("x: io=fast", "there is no I/O class fast"),
        ("x: io=be/8", "8 is not from 0 to 7"),
        ("x: policy=other flags=x", "there is no flag x"),
    ],
)
def test_what_the_kernel_would_refuse_is_refused_at_once(text: str, words: str) -> None:
    """A: better than containers that do not start."""
    with pytest.raises(ValueError, match=words):
        ClassText().read(text)


@pytest.mark.parametrize(
    ("made", "takes"),
    [
        (SchedulingClass(name="a", policy=SchedulingPolicy.BATCH, nice=5), False),
        (SchedulingClass(name="a", policy=SchedulingPolicy.OTHER, nice=-1), True),
        (SchedulingClass(name="a", policy=SchedulingPolicy.RR, priority=1), True),
        (SchedulingClass(name="a", policy=SchedulingPolicy.DEADLINE), True),
        (SchedulingClass(name="a", io_class=IoClass.REALTIME), True),
        (SchedulingClass(name="a", io_class=IoClass.BEST_EFFORT), False),
    ],
)
def test_classes_that_come_before_others_are_told(made: SchedulingClass, *, takes: bool) -> None:
    """A: limited to namespaces."""
    assert made.takes_from_others is takes


def test_assignments_are_pairs() -> None:
    """A."""
    assert NamespaceClass().read("batch-*: bulk") == ("batch-*", "bulk")
    assert QosClass().read("BestEffort: idle") == (QoS.BEST_EFFORT, "idle")
    for form, text in ((NamespaceClass(), "Bad: x"), (NamespaceClass(), "a"), (QosClass(), "besteffort: x")):
        with pytest.raises(ValueError):  # noqa: PT011 - what is allowed is said by the form
            form.read(text)


def test_assignments_need_a_class_and_classes_a_name_of_their_own() -> None:
    """A."""
    with pytest.raises(ConfigError) as caught:
        parse('[scheduling]\nclasses = ["a: io=be", "a: io=idle"]\nqos = ["BestEffort: b"]', "node.toml")
    assert caught.value.problems == (
        "node.toml:2: scheduling.classes: a is there more than once",
        "node.toml:3: scheduling.qos: there is no class b",
    )


def test_nothing_is_chosen_by_default() -> None:
    assert Config().policy.available == Config().policy.reserved == CpuChoice(cpus=NO_CPUS)


@pytest.mark.parametrize(
    ("policy", "reserved", "sharable"),
    [
        pytest.param('reserved = "750m"', "0", "1-15", id="amount"),
        pytest.param("reserved = 3", "0-2", "3-15", id="number"),
        pytest.param('reserved = "exclude-cpuset:1-14"', "0,15", "1-14", id="exception"),
        pytest.param('available = 4\nreserved = "15"', "15", "12-14", id="amount around what is reserved"),
        pytest.param('available = "exclude-cpuset:0-1"\nreserved = "1500m"', "2-3", "4-15", id="both"),
        pytest.param('available = "cpuset:8-11"\nreserved = "1m"', "8", "9-11", id="amount of a set"),
    ],
)
def test_node_resolves_amounts_into_cpus(policy: str, reserved: str, sharable: str) -> None:
    """T5."""
    config = parse(f"[policy]\n{policy}", "node.toml")
    usable = arrange(config, build_topology(N4C16), None, node="node").usable
    assert (str(usable.reserved), str(usable.sharable)) == (reserved, sharable)


def test_node_chooses_within_what_kubepods_has() -> None:
    """T5."""
    config = parse('[policy]\nreserved = "1"\navailable = "0-7"', "node.toml")
    usable = arrange(config, build_topology(N4C16), CpuSet.parse("4-11"), node="node").usable
    assert (usable.reserved, usable.sharable) == (NO_CPUS, CpuSet.parse("4-7"))
    amount = parse('[policy]\nreserved = 1\navailable = "0-7"', "node.toml")
    usable = arrange(amount, build_topology(N4C16), CpuSet.parse("4-11"), node="node").usable
    assert (str(usable.reserved), str(usable.sharable)) == ("4", "5-7")
