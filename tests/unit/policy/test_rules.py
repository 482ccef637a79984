"""The operator's choices: whom they are for, and what they keep (P1, G17, C14, A)."""

from __future__ import annotations

import pytest

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.policy.facts import QoS
from nodecpu.policy.rules import Rules
from nodecpu.policy.scheduling import SchedulingClass

RESERVED = CpuSet([0])


@pytest.mark.parametrize(
    ("name", "globs", "matched"),
    [
        ("shop", ("shop",), True),
        ("shop", ("a", "sh*"), True),
        ("shop", ("SHOP",), False),
        ("shop", ("hop", "sho"), False),
        ("shop", (), False),
        ("", ("*",), True),
    ],
)
def test_name_matches_if_one_glob_does(name: str, globs: tuple[str, ...], *, matched: bool) -> None:
    """A."""
    assert Rules.matches(name, globs) is matched


def test_reserved_namespaces_are_those_configured_and_none_in_flat_mode() -> None:
    """G1, P1."""
    assert Rules().is_reserved("kube-system")
    assert not Rules().is_reserved("shop")
    assert not Rules(is_flat=True).is_reserved("kube-system")
    assert Rules(reserved_namespaces=("sh*",)).is_reserved("shop")


def test_handlers_left_alone_are_those_configured_never_the_default_one() -> None:
    """G17: the default handler has no name."""
    assert Rules().is_ignored("kata-qemu")
    assert not Rules().is_ignored("runc")
    assert not Rules(ignored_handlers=("*",)).is_ignored("")


def test_scheduling_class_is_the_one_asked_for_else_the_namespaces_else_the_pods() -> None:
    """A: the first glob that matches; a name that no class has is none."""
    classes = {name: SchedulingClass(name=name) for name in ("asked", "batch", "other", "gold")}
    rules = Rules(
        scheduling_classes=classes,
        namespace_scheduling=(("none*", "missing"), ("ba*", "batch"), ("b*", "other")),
        qos_scheduling=((QoS.GUARANTEED, "gold"),),
    )

    def chosen(namespace: str, qos: QoS, asked: str | None = None) -> str | None:
        found = rules.scheduling_of(namespace, qos, asked)
        return None if found is None else found.name

    assert chosen("batch", QoS.GUARANTEED, "asked") == "asked"
    assert chosen("batch", QoS.GUARANTEED) == "batch"
    assert chosen("bulk", QoS.GUARANTEED) == "other"
    assert chosen("shop", QoS.GUARANTEED) == "gold"
    assert chosen("shop", QoS.BURSTABLE) is None
    assert chosen("none", QoS.GUARANTEED) is None
    assert chosen("shop", QoS.GUARANTEED, "unheard-of") is None


@pytest.mark.parametrize(
    ("min_shared", "fallback", "reserved", "kept", "unpublished"),
    [
        (-1, True, RESERVED, 0, 0),
        (-1, True, NO_CPUS, 1, 1),
        (-1, False, RESERVED, 1, 0),
        (-1, False, NO_CPUS, 1, 1),
        (0, True, RESERVED, 0, 0),
        (0, True, NO_CPUS, 1, 0),
        (0, False, RESERVED, 1, 0),
        (1, True, RESERVED, 1, 1),
        (1, True, NO_CPUS, 1, 1),
        (3, False, NO_CPUS, 3, 3),
        (3, True, RESERVED, 3, 3),
    ],
)
def test_cpus_kept_for_shared_containers(
    min_shared: int, reserved: CpuSet, kept: int, unpublished: int, *, fallback: bool
) -> None:
    """C14: one where nothing else is there for them; what is published leaves out what is configured, or that one."""
    rules = Rules(min_shared=min_shared, fallback_reserved=fallback)
    assert (rules.least_shared(reserved), rules.unpublished(reserved)) == (kept, unpublished)


def test_unconfigured_choices_are_the_cautious_ones() -> None:
    """A, G13 to G17: what the documentation names as defaults."""
    rules = Rules()
    assert (rules.token_request_mcpu, rules.min_shared) == (10, -1)
    yes = (
        rules.fallback_reserved,
        rules.pin_memory,
        rules.prefer_isolated,
        rules.lift_exclusive_quota,
        rules.lift_pod_quota,
    )
    no = (
        rules.is_flat,
        rules.mapping_published,
        rules.colocate_pods,
        rules.colocate_namespaces,
        rules.require_cpuset,
        rules.prefer_shared,
    )
    assert all(yes)
    assert not any(no)
