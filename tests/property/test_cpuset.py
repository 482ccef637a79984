"""Sets of ids agree with Python's sets, and their text with a naive printer and parser."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet

IDS = st.sets(st.integers(0, 300) | st.integers(0, 65535), max_size=60)


def naive_print(ids: set[int]) -> str:
    """Return the kernel's list form, built id by id."""
    runs: list[list[int]] = []
    for i in sorted(ids):
        if runs and runs[-1][1] == i - 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def naive_parse(text: str) -> set[int]:
    """Return the ids of a well-formed list."""
    ids: set[int] = set()
    for part in text.split(",") if text else []:
        low, _, high = part.partition("-")
        ids.update(range(int(low), int(high or low) + 1))
    return ids


@given(IDS)
def test_text_round_trips_and_agrees_with_a_naive_printer(ids: set[int]) -> None:
    cpus = CpuSet(ids)
    assert str(cpus) == naive_print(ids)
    assert CpuSet.parse(str(cpus)) == cpus


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 20)), max_size=12))
def test_any_order_and_overlap_agrees_with_a_naive_parser(ranges: list[tuple[int, int]]) -> None:
    text = ",".join(f"{low}-{low + more}" if more else str(low) for low, more in ranges)
    assert set(CpuSet.parse(text)) == naive_parse(text)


@given(IDS, IDS)
def test_operations_agree_with_sets(a: set[int], b: set[int]) -> None:
    x, y = CpuSet(a), CpuSet(b)
    assert set(x | y) == a | b
    assert set(x & y) == a & b
    assert set(x - y) == a - b
    assert set(x ^ y) == a ^ b
    assert (x <= y, x >= y, x == y) == (a <= b, a >= b, a == b)
    assert x.isdisjoint(y) == a.isdisjoint(b)
    assert (len(x), bool(x), list(x)) == (len(a), bool(a), sorted(a))
    assert all(i in x for i in a)
    assert not any(i in x for i in b - a)
    assert (x == y) <= (hash(x) == hash(y))


@given(st.text(alphabet=string.digits + ",-  \n٣x;:", max_size=200) | st.text(max_size=50))
def test_any_text_is_a_set_of_what_it_says_or_a_value_error(text: str) -> None:
    try:
        cpus = CpuSet.parse(text)
    except ValueError:
        return
    assert set(cpus) == naive_parse("".join(text.split()))
