"""The drawn node: every CPU once with its owner's mark, every owner in the legend, legible without colour."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.admin.state import MemoryNode, NodeState
from nodecpu.cli.render.node import draw_node
from nodecpu.cli.render.owners import owners_of
from nodecpu.cpuset import CpuSet, union
from tests.unit.nodestates import GIB, claim, container, machine, n4c16, node_state

N4C16 = """\
n4c16: 2 sockets, 4 NUMA nodes, 8 cores, 16 CPUs
socket 0
┌─ numa 0, 16 GiB ────┐ ┌─ numa 1, 16 GiB ────┐
│ [ 0.  1.] [ 2.  3.] │ │ [ 4B  5B] [ 6.  7.] │
└─────────────────────┘ └─────────────────────┘
socket 1
┌─ numa 2, 16 GiB ────┐ ┌─ numa 3, 16 GiB ────┐
│ [ 8a  9a] [10. 11.] │ │ [12A 13A] [14A 15=] │
└─────────────────────┘ └─────────────────────┘

A  claim shop/batch           3 CPUs  12-14          released
B  claim shop/web             2 CPUs  4-5            held by shop/web-0/app
a  container shop/db-0/app    2 CPUs  8-9
=  reserved                    1 CPU  15
.  shared                     8 CPUs  0-3,6-7,10-11  by 1 container"""


def split(picture: str) -> tuple[str, list[str]]:
    """Return the boxes and the lines of the legend."""
    boxes, _, legend = picture.partition("\n\n")
    return boxes, legend.splitlines()


def cells(boxes: str) -> list[tuple[int, str]]:
    """Return CPU and mark of each cell."""
    inside = [re.sub(r"│ (?:L3 \S+)?", " ", row) for row in boxes.splitlines() if row.startswith("│")]
    return [(int(cpu), mark) for row in inside for cpu, mark in re.findall(r"(\d+)([A-Za-z]+|[.=:!])", row)]


def strips(boxes: str) -> list[CpuSet]:
    """Return the CPUs told beside each strip."""
    rows = [box for row in boxes.splitlines() for box in re.findall(r"│ (.*?) │", row)]
    return [CpuSet.parse(row.split()[-1]) for row in rows if row.strip()]


def test_example_node_looks_like_this() -> None:
    assert draw_node(n4c16(), 100).plain == N4C16


def test_narrow_terminal_gets_narrow_boxes() -> None:
    picture = draw_node(n4c16(), 45).plain
    assert sorted(cells(split(picture)[0])) == sorted(cells(split(N4C16)[0]))
    assert max(len(row) for row in picture.splitlines() if row.startswith(("┌", "│", "└"))) <= 45


def test_ascii_terminal_gets_ascii() -> None:
    assert draw_node(n4c16(), 100, unicode=False).plain.isascii()


def test_marks_tell_owners_apart_without_colour() -> None:
    marks = [owner.mark for owner in owners_of(n4c16()).all]
    assert len(set(marks)) == len(marks)


def test_colour_only_repeats_the_marks() -> None:
    picture = draw_node(n4c16(), 100)
    styled = {picture.plain[span.start : span.end].strip(): str(span.style) for span in picture.spans if span.style}
    assert "black on" in styled["4B"]
    assert styled["4B"] == styled["B"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_machine_of_128_cpus_shows_each_cpu_in_a_cell(width: int) -> None:
    state = node_state(
        machine(2, 4, 2, 4, 2, adjacent=False),
        reserved="0-1,64-65",
        isolated="60-63",
        claims=tuple(claim(f"c{i}", f"{8 + i}") for i in range(30)),
    )
    boxes, legend = split(draw_node(state, width).plain)
    owners = owners_of(state)
    assert sorted(cells(boxes)) == [(cpu, owners.by_cpu[cpu].mark) for cpu in range(128)]
    assert len(legend) == len(owners.all)
    assert max(len(row) for row in boxes.splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_machine_of_1024_cpus_shows_each_core_in_a_strip(width: int) -> None:
    state = node_state(
        machine(2, 4, 8, 8, 2, adjacent=False),
        reserved="0,512",
        claims=(claim("web", "8-15,520-527"), claim("half", "30")),
    )
    picture = draw_node(state, width).plain
    boxes, legend = split(picture)
    told = strips(boxes)
    assert sum(len(cpus) for cpus in told) == 1024
    assert union(told) == CpuSet(range(1024))
    assert "BBBBBBBB  8-15,520-527" in boxes
    assert "....../." in boxes
    assert legend[-1].startswith("/  a core whose threads")
    assert max(len(row) for row in picture.splitlines()) <= width
    assert len(picture.splitlines()) <= 100


def test_node_without_caches_wraps_its_strip() -> None:
    boxes, _ = split(draw_node(node_state(machine(1, 1, 1, 300, 1)), 100).plain)
    assert [len(cpus) for cpus in strips(boxes)] == [32] * 9 + [12]


def test_cpu_with_two_owners_stands_out() -> None:
    state = node_state(machine(1, 1, 1, 4, 1), claims=(claim("a", "1-2"), claim("b", "2")))
    boxes, legend = split(draw_node(state, 100).plain)
    assert (2, "!") in cells(boxes)
    assert any("two owners" in row for row in legend)


def test_cpus_outside_of_the_usable_ones_are_marked() -> None:
    assert "3x" in draw_node(node_state(machine(1, 1, 1, 4, 1), unusable="3"), 100).plain


def test_claim_of_an_old_machine_owns_nothing_but_is_told() -> None:
    state = node_state(machine(1, 1, 1, 4, 1), claims=(claim("old", "1-2", state="moved"),))
    boxes, legend = split(draw_node(state, 100).plain)
    assert cells(boxes) == [(cpu, ".") for cpu in range(4)]
    assert "picked anew" in legend[0]


def test_memory_without_cpus_is_told() -> None:
    made = machine(1, 1, 1, 2, 1)
    memory = MemoryNode(id=1, memory="cxl", memory_bytes=64 * GIB, home=0)
    state = node_state(type(made)(online=made.online, sockets=made.sockets, memory_nodes=(memory,)))
    assert "numa 1: memory only, 64 GiB cxl, by numa 0" in draw_node(state, 100).plain


def test_names_cannot_move_the_cursor() -> None:
    state = node_state(machine(1, 1, 1, 2, 1), containers=(container("\x1b[2J\n", "multi", "0", exclusive="0"),))
    assert "\x1b" not in draw_node(state, 100).plain


@st.composite
def states(draw: st.DrawFn) -> NodeState:
    """Return a node of any shape with disjoint owners."""
    shape = [draw(st.integers(1, limit)) for limit in (2, 3, 2, 4, 2)]
    made = machine(*shape, adjacent=draw(st.booleans()))
    online = list(CpuSet.parse(made.online))
    owner = {cpu: draw(st.integers(0, 5)) for cpu in online}
    parts = [str(CpuSet(cpu for cpu in online if owner[cpu] == part)) for part in range(6)]
    return node_state(
        made,
        reserved=parts[0],
        isolated=parts[1],
        claims=tuple(claim(f"c{i}", parts[i]) for i in (2, 3) if parts[i]),
        containers=tuple(container(f"p{i}", "multi", parts[i], exclusive=parts[i]) for i in (4,) if parts[i]),
    )


@given(state=states(), width=st.integers(10, 200))
def test_any_node_shows_each_cpu_once_and_each_owner(state: NodeState, width: int) -> None:
    boxes, legend = split(draw_node(state, width).plain)
    owners = owners_of(state)
    assert sorted(cells(boxes)) == [(cpu, owners.by_cpu[cpu].mark) for cpu in CpuSet.parse(state.machine.online)]
    assert [row.split()[0] for row in legend] == [owner.mark for owner in owners.all]
    for row, owner in zip(legend, owners.all, strict=True):
        assert owner.text in row
