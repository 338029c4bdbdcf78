"""The tree of nodes: what the contract of stores (`tests/contracts/`) does not see."""

from __future__ import annotations

import sys

from kbroker.metadata.tree import NO_SESSION, Node, Tree
from kbroker.ports import Children, Create, Delete, Exists, Get, Multi, StoreFault
from tests.test_cost import LineCount


def test_a_tree_of_which_little_is_left_is_small_again() -> None:
    tree = Tree()
    tree.apply(Create("/topics"), NO_SESSION)
    tree.apply(Create("/topics/stays"), NO_SESSION)
    names = [f"/topics/topic-{number}" for number in range(2_000)]
    for name in names:
        assert tree.apply(Create(name), NO_SESSION).fault is None
    tables = sys.getsizeof(tree.nodes), sys.getsizeof(tree.nodes["/topics"].children)
    for name in names:
        assert tree.apply(Delete(name), NO_SESSION).fault is None
    after = sys.getsizeof(tree.nodes), sys.getsizeof(tree.nodes["/topics"].children)
    assert all(is_now < was / 4 for is_now, was in zip(after, tables, strict=True)), (tables, after)
    assert (tree.apply(Children("/topics"), NO_SESSION).names, set(tree.nodes)) == (
        ("stays",),
        {"/", "/topics", "/topics/stays"},
    )


def test_the_end_of_a_session_costs_what_it_has() -> None:
    def lines(others: int) -> int:
        tree = Tree()
        for number in range(others):
            tree.apply(Create(f"/node-{number}", ephemeral=number % 2 == 0), 1)
            tree.apply(Get(f"/node-{number}", watch=True), 1)
        for path in ("/a", "/b"):
            tree.apply(Create(path, ephemeral=True), 2)
            tree.apply(Children(path, watch=True), 2)
        with LineCount() as count:
            tree.end_session(2)
        assert len(tree.nodes) == 1 + others
        return count.lines

    lines(1)
    assert lines(1_000) == lines(10)


def test_a_session_s_nodes_are_known_after_a_restart_and_what_was_taken_back_is_none() -> None:
    tree = Tree()
    tree.restore([("/stays", Node(b"", 1)), ("/goes", Node(b"", 2, session=3))])
    refused = Multi((Create("/other", ephemeral=True), Delete("/goes"), Delete("/unknown")))
    assert tree.apply(refused, 3).fault is StoreFault.NO_NODE
    tree.end_session(3)
    assert set(tree.nodes) == {"/", "/stays"}


def test_a_session_that_is_over_watches_nothing_and_others_do() -> None:
    tree = Tree()
    for session in (1, 2):
        tree.apply(Exists("/a", watch=True), session)
        tree.apply(Children("/", watch=True), session)
    tree.end_session(1)
    tree.apply(Create("/a"), NO_SESSION)
    assert [(fired.session, fired.event.path) for fired in tree.take_fired()] == [(2, "/a"), (2, "/")]
