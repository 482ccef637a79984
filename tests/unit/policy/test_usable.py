"""Which CPUs may be given, and which a choice means (T5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import NO_CPUS, CpuSet
from nodecpu.policy.picker import build_units, pick
from nodecpu.policy.usable import NO_CHOICE, CpuChoice, chosen_cpus, usable_cpus
from tests.unit.policy.machines import N4C16, build_topology

MACHINE = build_units(build_topology(N4C16))
some_cpus = st.sets(st.integers(0, 15)).map(CpuSet)


@given(some_cpus, some_cpus, st.none() | some_cpus, st.none() | some_cpus, some_cpus)
def test_usable_cpus_are_of_one_kind_each(
    online: CpuSet, isolated: CpuSet, available: CpuSet | None, kubepods: CpuSet | None, reserved: CpuSet
) -> None:
    """T5: CPU by CPU."""
    found = usable_cpus(online=online, isolated=isolated, available=available, kubepods=kubepods, reserved=reserved)
    for cpu in range(16):
        is_usable = cpu in online and all(cut is None or cpu in cut for cut in (available, kubepods))
        assert (cpu in found.all) == is_usable
        assert (cpu in found.reserved) == (is_usable and cpu in reserved)
        assert (cpu in found.isolated) == (is_usable and cpu not in reserved and cpu in isolated)
        assert (cpu in found.sharable) == (is_usable and cpu not in reserved and cpu not in isolated)
        assert (cpu in found.grantable) == (is_usable and cpu not in reserved)


@pytest.mark.parametrize(
    ("choice", "is_one"),
    [
        (NO_CHOICE, False),
        (CpuChoice(), False),
        (CpuChoice(cpus=CpuSet([0])), True),
        (CpuChoice(without=CpuSet([0])), True),
        (CpuChoice(mcpu=1), True),
    ],
)
def test_choice_is_one_of_three(choice: CpuChoice, *, is_one: bool) -> None:
    """T5."""
    assert bool(choice) is is_one


@given(some_cpus, some_cpus)
def test_numbers_are_taken_or_left_out_as_they_are_there(among: CpuSet, named: CpuSet) -> None:
    """T5."""
    chosen = chosen_cpus(MACHINE, CpuChoice(cpus=named), among, besides=NO_CPUS)
    assert chosen == among & named
    if named:
        assert chosen_cpus(MACHINE, CpuChoice(without=named), among, besides=NO_CPUS) == among - named


amounts = st.tuples(st.integers(1, 17), st.sampled_from([-999, -1, 0, 1])).map(lambda one: 1000 * one[0] + one[1])


@given(some_cpus, amounts, some_cpus, some_cpus)
def test_amount_is_made_of_the_first_ones_then_of_the_others_then_of_those_besides(
    among: CpuSet, mcpu: int, besides: CpuSet, first: CpuSet
) -> None:
    """T5, K1: no CPU of a later kind while one of an earlier is left; in each the picker chooses."""
    chosen = chosen_cpus(MACHINE, CpuChoice(mcpu=mcpu), among, besides=besides, first=first)
    count = min(-(-mcpu // 1000), len(among))
    assert chosen <= among
    assert len(chosen) == count
    kinds = (among & first, among - first - besides, (among & besides) - first)
    left = count
    for kind in kinds:
        assert chosen & kind == pick(MACHINE, kind, min(left, len(kind)))
        left -= len(chosen & kind)
