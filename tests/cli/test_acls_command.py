"""`kbroker acls`: rules listed, added and removed by the options of kafka-acls.sh."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.config.broker import AUTHORIZERS
from kbroker.testing import broker
from tests.cli.asking import Ask


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    settings = {"authorizer.class.name": AUTHORIZERS[0], "super.users": "User:ANONYMOUS"}
    with broker(settings=settings) as b:
        yield b.bootstrap


@pytest.fixture(autouse=True)
def no_rules(ask: Ask) -> None:
    for kind in ("--topic", "--group", "--transactional-id"):
        ask("acls", "--remove", kind, "x", "--resource-pattern-type", "match", "--force")
    ask("acls", "--remove", "--cluster", "--force")


def listed(ask: Ask, *words: str) -> list[tuple[Any, ...]]:
    code, out, _ = ask("acls", "--list", "--json", *words)
    assert code == 0
    return [tuple(each.values()) for each in json.loads(out)]


def test_rules_are_added_listed_and_removed(ask: Ask) -> None:
    words = ("--topic", "x", "--operation", "Read", "--operation", "describe_configs")
    assert ask("acls", "--add", "--allow-principal", "User:a", *words)[:2] == (0, "Added 2 rules.\n")
    assert listed(ask) == [
        ("Topic", "Literal", "x", "User:a", "*", "Read", "Allow"),
        ("Topic", "Literal", "x", "User:a", "*", "DescribeConfigs", "Allow"),
    ]
    ask("acls", "--add", "--deny-principal", "User:b", "--deny-host", "10.0.0.0/8", "--topic", "x")
    assert listed(ask, "--principal", "User:b") == [("Topic", "Literal", "x", "User:b", "10.0.0.0/8", "All", "Deny")]
    heading, *rows = ask("acls", "--list", "--topic", "x")[1].splitlines()
    assert (heading.split()[0], len(rows)) == ("RESOURCE", 3)
    removed = ask("acls", "--remove", "--allow-principal", "User:a", "--topic", "x", "--operation", "Read", "--force")
    assert removed[1] == "Removed 1 rule.\n"
    assert ask("acls", "--remove", "--topic", "x", "--force")[1] == "Removed 2 rules.\n"
    assert ask("acls", "--list")[1:] == ("", "There is no such rule.\n")


def test_a_role_has_the_rules_that_it_needs(ask: Ask) -> None:
    words = ("--allow-principal", "User:a", "--topic", "x")
    ask("acls", "--add", "--producer", "--idempotent", "--transactional-id", "x", *words)
    assert {(each[0], each[5]) for each in listed(ask)} == {
        ("Topic", "Write"),
        ("Topic", "Describe"),
        ("Topic", "Create"),
        ("TransactionalId", "Write"),
        ("TransactionalId", "Describe"),
        ("Cluster", "IdempotentWrite"),
    }
    ask("acls", "--add", "--consumer", "--group", "x", *words)
    assert {(each[0], each[5]) for each in listed(ask)} >= {("Topic", "Read"), ("Group", "Read")}


def test_a_prefix_applies_to_the_names_that_begin_so(ask: Ask) -> None:
    ask("acls", "--add", "--allow-principal", "User:a", "--group", "x", "--resource-pattern-type", "prefixed")
    assert listed(ask, "--group", "xyz") == []
    assert len(listed(ask, "--group", "xyz", "--resource-pattern-type", "match")) == 1


def test_a_removal_is_asked_about(ask: Ask) -> None:
    ask("acls", "--add", "--allow-principal", "User:a", "--topic", "x")
    assert ask("acls", "--remove", "--topic", "x", stdin=b"n\n")[:2] == (0, "")
    assert len(listed(ask)) == 1
    assert ask("acls", "--remove", "--topic", "x", stdin=b"y\n")[0] == 0
    assert listed(ask) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--add", "--topic", "x"), "--add wants --allow-principal or --deny-principal"),
        (("--add", "--allow-principal", "User:a"), "--add wants a resource"),
        (("--add", "--allow-principal", "a", "--topic", "x"), "a: write a principal as User:NAME"),
        (
            ("--add", "--allow-principal", "User:a", "--group", "x", "--operation", "Write"),
            "--operation Write: allowed for Group: All, Read, Delete, Describe",
        ),
        (
            ("--add", "--allow-principal", "User:a", "--topic", "x", "--resource-pattern-type", "any"),
            "--add goes with --resource-pattern-type literal or prefixed",
        ),
        (
            ("--add", "--allow-principal", "User:a", "--topic", "x", "--allow-host", "10.0.0.0/99"),
            "Invalid CIDR notation in ACL host: 10.0.0.0/99",
        ),
    ],
)
def test_what_cannot_be_done_is_told(ask: Ask, words: tuple[str, ...], said: str) -> None:
    code, _, complaint = ask("acls", *words)
    assert code == 2
    assert said in complaint
