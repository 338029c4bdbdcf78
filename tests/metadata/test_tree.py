"""The tree of nodes: what the contract of stores (`tests/contracts/`) does not see."""

from __future__ import annotations

import sys

from kbroker.metadata.tree import NOBODY, Tree
from kbroker.ports import Children, Create, Delete


def test_a_tree_of_which_little_is_left_is_small_again() -> None:
    tree = Tree()
    tree.apply(Create("/topics"), NOBODY)
    tree.apply(Create("/topics/stays"), NOBODY)
    names = [f"/topics/topic-{number}" for number in range(2_000)]
    for name in names:
        assert tree.apply(Create(name), NOBODY).fault is None
    tables = sys.getsizeof(tree.nodes), sys.getsizeof(tree.nodes["/topics"].children)
    for name in names:
        assert tree.apply(Delete(name), NOBODY).fault is None
    after = sys.getsizeof(tree.nodes), sys.getsizeof(tree.nodes["/topics"].children)
    assert all(is_now < was / 4 for is_now, was in zip(after, tables, strict=True)), (tables, after)
    assert (tree.apply(Children("/topics"), NOBODY).names, set(tree.nodes)) == (
        ("stays",),
        {"/", "/topics", "/topics/stays"},
    )
