"""What access rules decide, alone and together, and how they are written."""

from __future__ import annotations

import json

import pytest

from kbroker.broker.acls import (
    ALL,
    ANY,
    Filter,
    Pattern,
    PatternType,
    Permission,
    Rule,
    Rules,
    change_of,
    decode_change,
    decode_rules,
    encode_rules,
    host_fault,
    java_host,
    pattern_at,
    pattern_path,
    super_users,
)
from kbroker.broker.authorizer import Operation, ResourceType

READ, WRITE, DESCRIBE, ALTER_CONFIGS, DESCRIBE_CONFIGS = (
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)
TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
DENY, ALLOW = Permission.DENY, Permission.ALLOW


def rules_of(*rules: tuple[str, PatternType, Rule], is_open: bool = False) -> Rules:
    made = Rules(["User:root"], is_open=is_open)
    for name, kind, rule in rules:
        pattern = Pattern(TOPIC, name, kind)
        made.put(pattern, made.by_pattern.get(pattern, frozenset()) | {rule})
    return made


def allow(operation: int, principal: str = "User:a", host: str = "*") -> Rule:
    return Rule(principal, host, operation, ALLOW)


def deny(operation: int, principal: str = "User:a", host: str = "*") -> Rule:
    return Rule(principal, host, operation, DENY)


def may(
    rules: Rules, operation: Operation, name: str = "orders", principal: str = "User:a", host: str = "1.2.3.4"
) -> bool:
    return rules.allow(principal, host, operation, TOPIC, name)


@pytest.mark.parametrize(
    ("name", "kind", "asked", "answer"),
    [
        ("orders", LITERAL, "orders", True),
        ("orders", LITERAL, "orders2", False),
        ("*", LITERAL, "anything", True),
        ("ord", PREFIXED, "orders", True),
        ("orders", PREFIXED, "orders", True),
        ("orders2", PREFIXED, "orders", False),
        ("*", PREFIXED, "orders", False),
        ("*", PREFIXED, "*orders", True),
        ("ord", LITERAL, "orders", False),
    ],
)
def test_a_pattern_is_a_name_a_prefix_or_everything(name: str, kind: PatternType, asked: str, answer: bool) -> None:
    assert may(rules_of((name, kind, allow(READ))), READ, asked) is answer


def test_a_rule_that_denies_wins_wherever_it_stands() -> None:
    for denied in (("*", LITERAL), ("ord", PREFIXED), ("orders", LITERAL)):
        rules = rules_of(("orders", LITERAL, allow(ALL)), (*denied, deny(READ)))
        assert (may(rules, READ), may(rules, WRITE)) == (False, True)


def test_who_may_read_or_write_may_describe_and_who_may_not_read_may_still() -> None:
    assert may(rules_of(("orders", LITERAL, allow(WRITE))), DESCRIBE)
    assert may(rules_of(("orders", LITERAL, allow(ALTER_CONFIGS))), DESCRIBE_CONFIGS)
    assert not may(rules_of(("orders", LITERAL, allow(DESCRIBE_CONFIGS))), DESCRIBE)
    assert may(rules_of(("orders", LITERAL, allow(DESCRIBE)), ("orders", LITERAL, deny(READ))), DESCRIBE)


def test_rules_are_of_a_principal_and_a_host() -> None:
    rules = rules_of(("orders", LITERAL, allow(READ, host="1.2.3.4")), ("orders", LITERAL, allow(WRITE, "User:*")))
    found = [
        may(rules, READ),
        may(rules, READ, host="1.2.3.5"),
        may(rules, READ, principal="User:b"),
        may(rules, WRITE, principal="User:b", host="1.2.3.5"),
        may(rules, WRITE, principal="Group:b"),
    ]
    assert found == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("network", "host", "answer"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3/24", "10.1.2.200", True),
        ("2001:db8::/32", java_host("2001:db8::1"), True),
        ("2001:db8::/32", "10.1.2.3", False),
        ("10.0.0.0/33", "10.1.2.3", False),
    ],
)
def test_a_host_may_be_a_network(network: str, host: str, answer: bool) -> None:
    assert may(rules_of(("orders", LITERAL, allow(READ, host=network))), READ, host=host) is answer
    assert rules_of(("x", LITERAL, allow(READ, host=network))).allow_any("User:a", host, READ, TOPIC) is answer


def test_hosts_are_written_as_java_does() -> None:
    assert [java_host(each) for each in ("::1", "::ffff:10.0.0.1", "fe80::1%eth0", "1.2.3.4", "")] == [
        "0:0:0:0:0:0:0:1",
        "10.0.0.1",
        "fe80:0:0:0:0:0:0:1%eth0",
        "1.2.3.4",
        "",
    ]


def test_a_network_that_is_none_is_told() -> None:
    assert [bool(host_fault(each)) for each in ("*", "1.2.3.4", "10.0.0.0/8", "10.0.0.0/33", "x/8", "10.0.0.0/")] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]


def test_super_users_may_do_everything() -> None:
    rules = rules_of(("*", LITERAL, deny(ALL, "User:*")))
    assert may(rules, READ, principal="User:root")
    assert rules.allow_any("User:root", "h", READ, TOPIC)
    assert super_users("User:a; User:CN=b,O=c ;") == ["User:a", "User:CN=b,O=c"]


def test_where_no_rule_is_it_depends_on_the_setting() -> None:
    other = ("other", LITERAL, allow(READ, "User:b"))
    assert not may(rules_of(other), READ)
    assert may(rules_of(other, is_open=True), READ)
    assert not may(rules_of(other, is_open=True), READ, "other")  # there is one, and it does not allow it


def test_a_pattern_without_rules_is_gone() -> None:
    rules = rules_of(("ord", PREFIXED, allow(READ)), is_open=True)
    rules.put(Pattern(TOPIC, "ord", PREFIXED), frozenset())
    rules.put(Pattern(TOPIC, "ord", PREFIXED), frozenset())
    assert may(rules, WRITE)


@pytest.mark.parametrize(
    ("rules", "answer"),
    [
        ([], False),
        ([("a", LITERAL, allow(WRITE))], True),
        ([("a", PREFIXED, allow(ALL))], True),
        ([("a", LITERAL, allow(READ))], False),
        ([("a", LITERAL, allow(WRITE)), ("a", LITERAL, deny(WRITE))], False),
        ([("ab", LITERAL, allow(WRITE)), ("a", PREFIXED, deny(ALL))], False),
        ([("ab", PREFIXED, allow(WRITE)), ("a", PREFIXED, deny(ALL))], False),
        ([("a", PREFIXED, allow(WRITE)), ("ab", PREFIXED, deny(ALL))], True),
        ([("*", LITERAL, allow(WRITE)), ("a", PREFIXED, deny(ALL))], True),
        ([("a", LITERAL, allow(WRITE)), ("*", LITERAL, deny(ALL))], False),
    ],
)
def test_there_may_be_a_topic_to_write_to(rules: list[tuple[str, PatternType, Rule]], answer: bool) -> None:
    assert rules_of(*rules).allow_any("User:a", "h", WRITE, TOPIC) is answer


def test_a_filter_matches_what_applies_to_a_name() -> None:
    rules = rules_of(
        ("orders", LITERAL, allow(READ)),
        ("ord", PREFIXED, allow(READ)),
        ("*", LITERAL, allow(READ)),
        ("x", LITERAL, allow(READ)),
    )

    def found(name: str | None, kind: int) -> set[str]:
        return {pattern.name for pattern, _ in rules.found_by(Filter(TOPIC, name, kind, None, None, ANY, ANY))}

    assert found("orders", PatternType.MATCH) == {"orders", "ord", "*"}
    assert found("orders", ANY) == {"orders"}
    assert found("ord", PREFIXED) == {"ord"}
    assert found("ord", LITERAL) == set()
    assert found(None, LITERAL) == {"orders", "*", "x"}
    assert not list(rules.found_by(Filter(ResourceType.GROUP, None, ANY, None, None, ANY, ANY)))
    assert not list(rules.found_by(Filter(ANY, None, ANY, "User:b", None, ANY, ANY)))


# -- in the metadata store

WRITTEN = b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read","host":"*"}]}'


def test_rules_are_written_as_kafka_writes_them() -> None:
    assert encode_rules([allow(READ)]) == WRITTEN
    assert decode_rules(WRITTEN) == {allow(READ)}
    assert decode_rules(WRITTEN.replace(b"Read", b"DESCRIBECONFIGS")) == {allow(DESCRIBE_CONFIGS)}
    assert decode_rules(b"") == frozenset()


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"[]",
        b"{}",
        b'{"version":2,"acls":[]}',
        b'{"version":1}',
        b'{"version":1,"acls":[1]}',
        WRITTEN.replace(b"User:a", b"a"),
        WRITTEN.replace(b"Read", b"Reed"),
        WRITTEN.replace(b"Allow", b"Any"),
        WRITTEN.replace(b'"*"', b"7"),
        WRITTEN.replace(b'"*"', b'"1.2.3.4/99"'),
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_rules_that_make_no_sense_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of its kinds
        decode_rules(data)


def test_a_name_that_is_not_ascii_is_written_as_utf_8() -> None:
    rule = allow(READ, "User:zoë")
    written = encode_rules([rule])
    assert "User:zoë".encode() in written
    assert decode_rules(written) == {rule}


def test_patterns_have_kafkas_paths_and_notices() -> None:
    literal, prefix = Pattern(ResourceType.TRANSACTIONAL_ID, "a", LITERAL), Pattern(TOPIC, "a:b", PREFIXED)
    assert [pattern_path(each) for each in (literal, prefix)] == [
        "/kafka-acl/TransactionalId/a",
        "/kafka-acl-extended/prefixed/Topic/a:b",
    ]
    assert change_of(literal) == ("/kafka-acl-changes/acl_changes_", b"TRANSACTIONAL_ID:a")
    path, data = change_of(prefix)
    assert path == "/kafka-acl-extended-changes/acl_changes_"
    assert json.loads(data) == {"version": 1, "resourceType": "TOPIC", "name": "a:b", "patternType": "PREFIXED"}
    assert [decode_change(change_of(each)[1]) for each in (literal, prefix)] == [literal, prefix]
    assert pattern_at("/kafka-acl-extended/prefixed/Topic", "a:b") == prefix
