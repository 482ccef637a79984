"""What annotations ask for, and what of them has no effect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.policy.annotations import KEYS, NO_PREFERENCES, Annotated, Fault, HintSource, Preferences, preferences_of
from nodecpu.policy.pools import Level
from nodecpu.policy.priority import Priority
from nodecpu.policy.rules import Rules
from nodecpu.policy.scheduling import SchedulingClass, SchedulingPolicy
from nodecpu.topology.model import MemoryKind
from tests.unit.policy.given import annotated

CLASSES = {
    "rt": SchedulingClass(name="rt", policy=SchedulingPolicy.FIFO, priority=10),
    "bulk": SchedulingClass(name="bulk", policy=SchedulingPolicy.BATCH, nice=10),
}


def asked(short: Mapping[str, str], *, namespace: str = "shop", rules: Rules | None = None) -> Annotated:
    return preferences_of(rules or Rules(), namespace, "app", annotated(short), containers=("app", "side"))


@pytest.mark.parametrize(
    ("annotations", "prefers"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"prefer-shared-cpus": "true"}, True, id="bare"),
        pytest.param({"prefer-shared-cpus": "true", "prefer-shared-cpus/pod": "false"}, False, id="pod beats bare"),
        pytest.param(
            {"prefer-shared-cpus/pod": "true", "prefer-shared-cpus/container.app": "false"},
            False,
            id="container beats pod",
        ),
        pytest.param({"prefer-shared-cpus/container.side": "true"}, None, id="another container's"),
        pytest.param(
            {"prefer-shared-cpus/pod": "true", "prefer-shared-cpus/container.side": "false"},
            True,
            id="another container's beside the pod's",
        ),
    ],
)
def test_container_beats_pod_beats_bare_key(annotations: Mapping[str, str], *, prefers: bool | None) -> None:
    """A: scopes."""
    found = asked(annotations)
    assert found.preferences.prefer_shared is prefers
    assert found.problems == ()


@pytest.mark.parametrize(
    ("key", "value", "field", "read"),
    [
        ("prefer-isolated-cpus", "false", "prefer_isolated", False),
        ("require-isolated-cpus", "true", "require_isolated", True),
        ("prefer-reserved-cpus", "false", "prefer_reserved", False),
        ("prefer-cpu-priority", "high", "priority", Priority.HIGH),
        ("prefer-cpu-priority", "none", "priority", Priority.NONE),
        ("hide-hyperthreads", "true", "hide_hyperthreads", True),
        ("unlimited-burstable", "system", "unlimited_burstable", Level.ROOT),
        ("unlimited-burstable", "package", "unlimited_burstable", Level.SOCKET),
        ("unlimited-burstable", "l3cache", "unlimited_burstable", Level.L3),
        ("claimed-cpus-only", "true", "claimed_cpus_only", True),
        ("memory-type", "hbm, dram", "memory_types", (MemoryKind.HBM, MemoryKind.DRAM)),
        ("memory-type", "mixed", "memory_types", (MemoryKind.DRAM, MemoryKind.HBM, MemoryKind.PMEM)),
        ("memory-type", "pmem,mixed", "memory_types", (MemoryKind.PMEM, MemoryKind.DRAM, MemoryKind.HBM)),
        ("topologyhints", "none", "hints", frozenset()),
        ("topologyhints", "true", "hints", frozenset(HintSource)),
        ("topologyhints", "mounts,pod-resources", "hints", {HintSource.MOUNTS, HintSource.POD_RESOURCES}),
        ("strict.topologyhints", "true", "strict_hints", True),
        ("pick-resources-by-hints", "true", "pick_by_hints", True),
        ("allow.topologyhints", "/sys/devices/pci*", "allow_hints", "/sys/devices/pci*"),
        ("affinity", "app: [x]", "affinity", "app: [x]"),
    ],
)
def test_every_value_is_read(key: str, value: str, field: str, read: object) -> None:
    """A: keys and their values."""
    found = asked({f"{key}/pod": value})
    assert getattr(found.preferences, field) == read
    assert found.problems == ()


def test_affinity_may_stand_under_the_bare_domain() -> None:
    """A: one expression for the pod, by container."""
    domain = Rules().annotation_domain
    found = preferences_of(Rules(), "shop", "app", {f"{domain}/affinity": "x", f"{domain}/anti-affinity": "y"})
    assert (found.preferences.affinity, found.preferences.anti_affinity) == ("x", "y")


def test_of_the_two_bare_forms_the_one_with_its_key_before_the_domain_wins() -> None:
    """A: they are of one strength; the order of names decides, not that of the map."""
    domain = Rules().annotation_domain
    both = {f"{domain}/affinity": "x", f"affinity.{domain}": "y"}
    assert preferences_of(Rules(), "shop", "app", both).preferences.affinity == "y"


@pytest.mark.parametrize(("value", "shown"), [("x" * 40, "x" * 40), ("x" * 41, "x" * 37 + "...")])
def test_long_values_are_shown_in_part(value: str, shown: str) -> None:
    """A: a message has 40 characters of them."""
    [problem] = asked({"prefer-shared-cpus": value}).problems
    assert f": '{shown}' is not" in problem.text


@pytest.mark.parametrize(
    ("annotation", "value", "fault", "words"),
    [
        pytest.param("prefer-shared-cpu/pod", "true", Fault.UNKNOWN, "no such key", id="misspelt"),
        pytest.param("prefer-shared-cpus/pods", "true", Fault.UNKNOWN, "neither for the pod nor", id="scope"),
        pytest.param("prefer-shared-cpus/container.", "true", Fault.UNKNOWN, "neither for the pod nor", id="no name"),
        pytest.param("prefer-shared-cpus/container.ap", "true", Fault.UNKNOWN, "no such container", id="container"),
        pytest.param("prefer-shared-cpus/pod", "True", Fault.VALUE, "'True' is not \"true\" or", id="case"),
        pytest.param("prefer-shared-cpus/pod", "", Fault.VALUE, "'' is not", id="empty"),
        pytest.param("prefer-cpu-priority/pod", "highest", Fault.VALUE, '"high", "normal", "low" or', id="word"),
        pytest.param("memory-type/pod", "dram,ram", Fault.VALUE, "a list of", id="one of a list"),
        pytest.param("cpu.preserve/pod", "true", Fault.FORBIDDEN, "annotations.may_preserve", id="preserve"),
        pytest.param("memory.preserve/pod", "true", Fault.FORBIDDEN, "annotations.may_preserve", id="memory"),
        pytest.param("prefer-reserved-cpus/pod", "true", Fault.FORBIDDEN, "may_use_reserved", id="reserved"),
        pytest.param("scheduling-class/pod", "rt", Fault.FORBIDDEN, "annotations.may_be_realtime", id="realtime"),
        pytest.param("scheduling-class/pod", "fast", Fault.FORBIDDEN, "no scheduling class of that name", id="class"),
    ],
)
def test_what_has_no_effect_is_reported_and_not_guessed(annotation: str, value: str, fault: Fault, words: str) -> None:
    """A."""
    found = asked({annotation: value}, rules=Rules(scheduling_classes=CLASSES))
    assert found.preferences == NO_PREFERENCES
    [problem] = found.problems
    assert problem.fault is fault
    assert words in problem.text
    assert problem.text.startswith(annotation.partition("/")[0])


@pytest.mark.parametrize(
    ("annotation", "rules"),
    [
        ("cpu.preserve/pod", Rules(may_preserve=("agents-*",))),
        ("memory.preserve/pod", Rules(may_preserve=("agents-*",))),
        ("prefer-reserved-cpus/pod", Rules(may_use_reserved=("agents-?",))),
        ("prefer-reserved-cpus/pod", Rules(reserved_namespaces=("agents-1",))),
    ],
)
def test_the_operator_lets_namespaces_take_from_others(annotation: str, rules: Rules) -> None:
    """A: limited to namespaces; U77, U118."""
    assert asked({annotation: "true"}, namespace="agents-1", rules=rules).problems == ()
    assert asked({annotation: "true"}, namespace="web", rules=rules).problems != ()
    assert asked({annotation: "false"}, namespace="web", rules=rules).problems == ()


def test_realtime_is_for_named_namespaces_and_batch_for_everybody() -> None:
    """A: scheduling-class."""
    rules = Rules(scheduling_classes=CLASSES, may_be_realtime=("audio",))
    assert asked({"scheduling-class": "rt"}, namespace="audio", rules=rules).preferences.scheduling_class == "rt"
    assert asked({"scheduling-class": "rt"}, rules=rules).preferences.scheduling_class is None
    assert asked({"scheduling-class": "bulk"}, rules=rules).preferences.scheduling_class == "bulk"


def test_a_bad_value_leaves_the_weaker_form_in_force() -> None:
    """A: it counts as not written."""
    found = asked({"prefer-shared-cpus/pod": "true", "prefer-shared-cpus/container.app": "nein"})
    assert found.preferences.prefer_shared is True
    assert [problem.fault for problem in found.problems] == [Fault.VALUE]


def test_other_domains_and_other_annotations_are_nobodys_business() -> None:
    """A: the domain is configurable."""
    annotations = {"prefer-shared-cpus.example.com/pod": "true", "kubernetes.io/config.source": "api", "plain": "x"}
    annotations |= {"example.com/affinity": "x", "affinity": "x", "myresource-policy.nri.io/pod": "x"}
    assert preferences_of(Rules(), "shop", "app", annotations) == Annotated()
    domain = Rules().annotation_domain
    assert preferences_of(Rules(), "shop", "app", {f"my{domain}/affinity": "x", f"a/{domain}": "x"}) == Annotated()
    [problem] = preferences_of(Rules(), "shop", "app", {f"affinity.{domain}/affinity": "x"}).problems
    assert "neither for the pod nor" in problem.text
    mine = preferences_of(Rules(annotation_domain="example.com"), "shop", "app", annotations)
    assert mine.preferences == Preferences(prefer_shared=True, affinity="x")


def test_every_preference_has_a_key() -> None:
    """A."""
    assert {key.field for key in KEYS.values()} == {field.name for field in fields(Preferences)}


@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "", "x", "cpu"]).flatmap(
            lambda key: st.sampled_from(["", "/pod", "/container.app", "/container.x", "/", "//pod"]).map(key.__add__)
        ),
        st.sampled_from(["true", "false", "high", "numa", "dram,hbm", "mounts", "bulk", " ", "\x00", "é"]),
    )
)
def test_any_annotations_give_preferences_and_problems_of_their_own(short: dict[str, str]) -> None:
    """A: nothing a pod writes breaks anything."""
    found = preferences_of(Rules(scheduling_classes=CLASSES), "shop", "app", annotated(short), containers=("app",))
    assert len(found.problems) <= len(short)
    assert not found.preferences.preserve_cpu
    assert not found.preferences.prefer_reserved
