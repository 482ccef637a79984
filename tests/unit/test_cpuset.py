"""Sets of ids: what the kernel's list form means, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest

from nodecpu.cpuset import MAX_ID, NO_CPUS, CpuSet, NodeSet, union


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("\n", []),
        ("0", [0]),
        ("0-3", [0, 1, 2, 3]),
        ("0-3,8", [0, 1, 2, 3, 8]),
        (" 1 , 0 \n", [0, 1]),
        ("3-3", [3]),
        ("5,0-2,1-3", [0, 1, 2, 3, 5]),
        (str(MAX_ID), [MAX_ID]),
        ("00007", [7]),
    ],
)
def test_list_form_is_read(text: str, ids: list[int]) -> None:
    """T1."""
    assert list(CpuSet.parse(text)) == ids


MALFORMED = (
    *(",", "1,", ",1", "1,,2", "3-1", "-1", "1-", "1--2", "1-2-3", "+1", "1.5", "0x1", "a", "1 2", "1 - 2", "٣", "²"),
    *(str(MAX_ID + 1), "0-65536", "9" * 100_000, "1," * 200_000, "\0", "0-3:1/2"),
)


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: repr(text[:12]))
def test_anything_else_is_refused(text: str) -> None:
    """L1: malformed values never grant more."""
    with pytest.raises(ValueError, match=r"."):
        CpuSet.parse(text)


def test_refusal_quotes_the_part_but_never_all_of_a_long_text() -> None:
    with pytest.raises(ValueError, match="'1;2'"):
        CpuSet.parse("0-3,1;2")
    with pytest.raises(ValueError, match="not a range") as caught:
        CpuSet.parse("x" * 10_000)
    assert len(str(caught.value)) < 100


def test_kinds_do_not_mix_even_where_the_ids_are_equal() -> None:
    assert CpuSet([1]) != NodeSet([1])
    assert len({CpuSet([1]), NodeSet([1])}) == 2


def test_sets_cannot_be_changed() -> None:
    cpus = CpuSet([1])
    with pytest.raises(AttributeError, match="immutable"):
        cpus.mask = 7
    with pytest.raises(AttributeError, match="immutable"):
        del cpus.mask
    assert cpus == CpuSet([1])


def test_negative_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        CpuSet([-1])
    assert -1 not in CpuSet([0, 63])


def test_first_is_the_lowest() -> None:
    assert CpuSet([9, 4]).first() == 4
    with pytest.raises(ValueError, match="empty"):
        NO_CPUS.first()


def test_copies_are_equal() -> None:
    cpus = CpuSet.parse("0-3,64")
    assert copy.deepcopy(cpus) == cpus
    assert pickle.loads(pickle.dumps(cpus)) == cpus


def test_repr_reads_back() -> None:
    assert repr(NodeSet([0, 1, 4])) == "NodeSet.parse('0-1,4')"


def test_union_of_none_is_empty() -> None:
    assert union([]) == NO_CPUS
    assert union([CpuSet([1]), CpuSet([3])]) == CpuSet([1, 3])
