"""Trees by set inclusion: what adds nothing or crosses is left out."""

from __future__ import annotations

from itertools import permutations

from nodecpu.cpuset import CpuSet
from nodecpu.policy.tree import Named, TreeNode, build_tree


def tree(*sets: str) -> tuple[TreeNode, ...]:
    """Return the tree over sets given as CPU lists; earlier ones have the lower rank."""
    return build_tree(
        [Named(rank=rank, kind="k", label=text, cpus=CpuSet.parse(text)) for rank, text in enumerate(sets)]
    )


def outline(nodes: tuple[TreeNode, ...]) -> list[str]:
    """Return the sets in the tree's order, indented by depth."""
    return ["  " * node.depth + str(node.cpus) for node in nodes]


def test_sets_are_nested_and_children_are_in_order() -> None:
    """T2."""
    assert outline(tree("0-7", "4-7", "0-3", "6-7", "4-5")) == ["0-7", "  0-3", "  4-7", "    4-5", "    6-7"]


def test_order_of_candidates_does_not_matter() -> None:
    """Equal inputs give equal answers."""
    sets = ("0-7", "0-3", "4-7", "0-1", "2-3")
    assert {tuple(outline(tree(*order))) for order in permutations(sets)} == {tuple(outline(tree(*sets)))}


def test_equal_sets_are_one_node_with_the_name_of_the_lowest_rank() -> None:
    """P1, T2."""
    nodes = build_tree(
        [Named(rank=rank, kind=kind, label="", cpus=CpuSet([0, 1])) for rank, kind in ((2, "b"), (1, "a"))]
    )
    assert [node.kind for node in nodes] == ["a"]


def test_only_child_is_left_out_and_its_children_take_its_place() -> None:
    """P1."""
    assert outline(tree("0-7", "0-5", "0-1", "2-3")) == ["0-7", "  0-1", "  2-3"]
    assert outline(tree("0-7", "0-5")) == ["0-7"]


def test_crossing_set_is_left_out_the_larger_wins() -> None:
    """T2: odd hardware makes no impossible tree."""
    assert outline(tree("0-7", "0-4", "4-7", "5-7")) == ["0-7", "  0-4", "  5-7"]


def test_empty_sets_are_left_out() -> None:
    """T3: nodes without CPUs."""
    assert outline(tree("0-3", "", "0-1", "2-3")) == ["0-3", "  0-1", "  2-3"]
    assert build_tree([]) == ()


def test_parents_and_children_name_each_other() -> None:
    nodes = tree("0-7", "4-7", "0-3", "6-7", "4-5")
    for node in nodes:
        assert nodes[node.index] is node
        assert all(nodes[child].parent == node.index for child in node.children)
        assert node.parent is None or (node.index in nodes[node.parent].children and node.parent < node.index)
