"""Access rules in the metadata store: read, followed, changed by several brokers, and heeded by every request."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.broker.acl_authorizer import MOST_DECISIONS, MOST_SESSIONS, AclAuthorizer, Decisions
from kbroker.broker.acls import DENIES_ALL, Pattern, PatternType, Permission, Rule, encode_rules
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.notices import PURGE_AFTER_MS
from kbroker.broker.session import Principal, Session
from kbroker.ports import Children, Create, Delete, Get, MetadataStore, Outcome, SetData, StoreAnswer
from kbroker.ports import Operation as StoreOperation
from protocol.errors import ErrorCode
from protocol.messages.groups import DescribeGroupsRequest
from protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from tests.requests import fetch, fetched, produce, produced
from tests.world import Client, World

TOPIC, LITERAL, PREFIXED = ResourceType.TOPIC, PatternType.LITERAL, PatternType.PREFIXED
ORDERS = Pattern(TOPIC, "orders", LITERAL)
MAY_WRITE = Rule("User:alice", "*", Operation.WRITE, Permission.ALLOW)
NODE, NOTICES = "/kafka-acl/Topic/orders", "/kafka-acl-changes"


def world_of(**settings: str) -> World:
    """ANONYMOUS is the admin."""
    names = {"authorizer_class_name": "kafka.security.authorizer.AclAuthorizer", "super_users": "User:ANONYMOUS"}
    return World(**(names | settings))


def as_user(world: World, name: str, host: str = "127.0.0.1") -> Client:
    client = world.client(host=host)
    client.channel.session.principal = Principal("User", name)
    return client


class Elsewhere:
    """Another broker, or a person, at the same metadata store."""

    def __init__(self, world: World) -> None:
        self._answers: list[StoreAnswer] = []
        self._world = world
        self._store: MetadataStore = world.ensemble.connect(self._heard)

    def _heard(self, event: object) -> None:
        if isinstance(event, StoreAnswer):
            self._answers.append(event)

    def do(self, *operations: StoreOperation) -> Sequence[Outcome]:
        self.start(*operations)
        self._world.settle()
        return self._answers.pop().outcomes

    def start(self, *operations: StoreOperation) -> None:
        self._store.submit(operations, None)


def creation(**changes: Any) -> AclCreation:
    fields = {
        "resource_type": 2,
        "resource_name": "orders",
        "resource_pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 4,
        "permission_type": 3,
    }
    return AclCreation(**(fields | changes))


def filter_of(**changes: Any) -> DeleteAclsFilter:
    fields = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    return DeleteAclsFilter(**(fields | changes))


def create(world: World, *rules: AclCreation) -> list[tuple[int, str | None]]:
    results = world.client().ask(CreateAclsRequest(creations=list(rules)), 3).results
    return [(each.error_code, each.error_message) for each in results]


def delete(world: World, *filters: DeleteAclsFilter) -> list[list[str]]:
    results = world.client().ask(DeleteAclsRequest(filters=list(filters)), 3).filter_results
    assert {each.error_code for each in results} == {0}
    return [sorted(rule.resource_name for rule in each.matching_acls) for each in results]


def listed(world: World, **wanted: Any) -> list[tuple[Any, ...]]:
    fields = {
        field: getattr(filter_of(**wanted), field) for field in filter_of().__slots__ if hasattr(filter_of(), field)
    }
    answer = world.client().ask(DescribeAclsRequest(**fields), 3)
    assert answer.error_code == 0
    return [
        (
            each.resource_type,
            each.resource_name,
            each.pattern_type,
            rule.principal,
            rule.host,
            rule.operation,
            rule.permission_type,
        )
        for each in answer.resources
        for rule in each.acls
    ]


def write(client: Client, topic: str = "orders") -> int:
    code: int = produced(client.ask(produce(b"a", topic=topic), 9)).error_code
    return code


DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


# -- heeded


def test_what_no_rule_allows_is_refused_until_one_does_and_again_when_it_is_gone() -> None:
    world = world_of()
    world.create("orders")
    alice = as_user(world, "alice")
    assert write(alice) == DENIED
    assert create(world, creation()) == [(0, None)]
    assert (write(alice), write(as_user(world, "bob"))) == (0, DENIED)
    assert delete(world, filter_of(resource_name_filter="orders")) == [["orders"]]
    assert write(alice) == DENIED
    assert world.partition("orders").led().log_end_offset == 1


def test_rules_of_a_host_are_of_connections_from_there() -> None:
    world = world_of()
    world.create("orders")
    create(world, creation(host="10.0.0.0/8", principal="User:*"))
    assert [write(as_user(world, "x", host)) for host in ("10.1.1.1", "192.168.0.1")] == [0, DENIED]


def test_both_of_kafkas_names_are_taken() -> None:
    world = world_of(authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer")
    assert isinstance(world.broker.auth_helper.authorizer, AclAuthorizer)


def test_all_may_do_what_no_rule_is_about_where_the_setting_says_so() -> None:
    world = world_of(allow_everyone_if_no_acl_found="true")
    world.create("orders")
    world.create("other")
    create(world, creation(resource_name="other"))
    bob = as_user(world, "bob")
    assert (write(bob), write(bob, "other")) == (0, DENIED)


def test_rules_outlive_a_restart_and_are_known_before_the_first_client_asks() -> None:
    world = world_of()
    world.create("orders")
    create(world, creation(), creation(resource_name="ord", resource_pattern_type=4, principal="User:bob"))
    world.restart()
    assert [write(as_user(world, name)) for name in ("alice", "bob", "carol")] == [0, 0, DENIED]


# -- followed


def test_rules_that_are_made_and_taken_elsewhere_hold_here() -> None:
    world = world_of()
    world.create("orders")
    elsewhere, alice = Elsewhere(world), as_user(world, "alice")
    elsewhere.do(Create(NODE, encode_rules([MAY_WRITE])))
    assert write(alice) == DENIED  # nothing has been said of it
    elsewhere.do(Create(f"{NOTICES}/acl_changes_", b"TOPIC:orders", sequential=True))
    assert write(alice) == 0
    elsewhere.do(Delete(NODE), Create(f"{NOTICES}/acl_changes_", b"TOPIC:orders", sequential=True))
    assert write(alice) == DENIED


def test_rules_that_changed_while_there_was_no_session_are_read_in_the_next() -> None:
    world = world_of()
    world.create("orders")
    create(world, creation())
    elsewhere = Elsewhere(world)
    elsewhere.start(Delete(NODE), Create("/kafka-acl/Topic/new", encode_rules([MAY_WRITE])))
    world.expire()
    world.advance(10_000)
    assert [name for _, name, *_ in listed(world)] == ["new"]


def test_notices_that_make_no_sense_are_passed_by(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of()
    elsewhere = Elsewhere(world)
    for data in (b"x", b"{}", b"TOPIC:..", b"TOPIC:", b"TOPIC:a/b", b"", b"\xff", b'{"resourceType":"X"}'):
        elsewhere.do(Create(f"{NOTICES}/acl_changes_", data, sequential=True))
    create(world, creation())
    assert len(listed(world)) == 1


def test_notices_are_thrown_away_after_a_while() -> None:
    world = world_of()
    create(world, creation())
    elsewhere = Elsewhere(world)
    assert len(elsewhere.do(Children(NOTICES))[0].names) == 1
    world.advance(PURGE_AFTER_MS)
    assert elsewhere.do(Children(NOTICES))[0].names == ()


@pytest.mark.parametrize("data", [b"{", encode_rules([MAY_WRITE]).replace(b"Write", b"Wriet")])
def test_rules_that_make_no_sense_deny_all_until_they_are_removed(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    world = world_of()
    world.create("orders")
    create(world, creation())
    alice = as_user(world, "alice")
    elsewhere = Elsewhere(world)
    elsewhere.do(SetData(NODE, data), Create(f"{NOTICES}/acl_changes_", b"TOPIC:orders", sequential=True))
    assert write(alice) == DENIED
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert "access rules of Topic:LITERAL:orders make no sense" in line
    assert create(world, creation())[0][0] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert listed(world) == [(2, "orders", 3, "User:*", "*", 2, 2)]
    assert delete(world, filter_of()) == [["orders"]]
    assert create(world, creation()) == [(0, None)]
    assert write(alice) == 0


def test_a_start_on_rules_that_make_no_sense_denies() -> None:
    world = world_of()
    world.create("orders")
    Elsewhere(world).do(Create(NODE, b"{"))
    world.restart()
    assert write(as_user(world, "alice")) == DENIED
    authorizer = world.broker.auth_helper.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    assert authorizer.rules.by_pattern[ORDERS] is DENIES_ALL


# -- changed


def test_rules_are_kept_under_kafkas_paths() -> None:
    world = world_of()
    create(world, creation(), creation(resource_name="ord", resource_pattern_type=4), creation(principal="User:bob"))
    elsewhere = Elsewhere(world)
    literal, prefixed = elsewhere.do(Get(NODE), Get("/kafka-acl-extended/prefixed/Topic/ord"))
    assert prefixed.data == encode_rules([MAY_WRITE])
    assert literal.data == encode_rules([MAY_WRITE, MAY_WRITE._replace(principal="User:bob")])
    delete(world, filter_of(principal_filter="User:alice"))
    assert elsewhere.do(Get(NODE))[0].data == encode_rules([MAY_WRITE._replace(principal="User:bob")])
    delete(world, filter_of())
    assert elsewhere.do(Children("/kafka-acl/Topic"), Children("/kafka-acl-extended/prefixed/Topic")) == [] or all(
        each.names == () for each in elsewhere.do(Children("/kafka-acl/Topic"))
    )


def test_a_rule_that_another_broker_adds_meanwhile_is_not_lost() -> None:
    world = world_of()
    create(world, creation())
    elsewhere = Elsewhere(world)
    client = world.client()
    number = client.start(CreateAclsRequest(creations=[creation(principal="User:carol")]), 3)
    both = encode_rules([MAY_WRITE, MAY_WRITE._replace(principal="User:bob")])
    elsewhere.start(SetData(NODE, both))  # behind the read, before the write
    world.settle()
    assert client.look()[number].results[0].error_code == 0
    assert sorted(principal for _, _, _, principal, *_ in listed(world)) == ["User:alice", "User:bob", "User:carol"]


def test_a_right_that_older_brokers_do_not_know_is_given_where_there_are_none() -> None:
    world = world_of()
    rule = creation(resource_type=ResourceType.TRANSACTIONAL_ID, operation=Operation.TWO_PHASE_COMMIT)
    given = create(world, rule)
    world.broker.features.adopt({}, 1)  # as with a broker of Kafka 3.9
    ((code, text),) = create(world, rule)
    assert (given, code) == ([(0, None)], ErrorCode.INVALID_REQUEST)
    assert "transaction.version" in str(text)


def test_a_rule_that_is_there_is_no_error_and_no_notice() -> None:
    world = world_of()
    create(world, creation())
    assert create(world, creation()) == [(0, None)]
    assert len(Elsewhere(world).do(Children(NOTICES))[0].names) == 1


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (
            {"resource_type": 4, "resource_name": "x"},
            42,
            "The only valid name for the CLUSTER resource is kafka-cluster",
        ),
        ({"resource_name": ""}, 42, "Invalid empty resource name"),
        ({"resource_name": "a/b"}, 42, "Failed to create ACL"),
        ({"operation": 99}, 42, "Failed to create ACL"),
        ({"resource_type": 99}, 42, "Failed to create ACL"),
        ({"host": "10.0.0.0/33"}, 42, "Invalid CIDR notation in ACL host: 10.0.0.0/33"),
        ({"resource_name": ".."}, -1, "there can be no node for '..'"),
        (
            {"principal": "alice"},
            -1,
            "expected a string in format principalType:principalName but got alice",
        ),
        ({"permission_type": 1}, -1, None),
        ({"resource_pattern_type": 2}, -1, None),
    ],
)
def test_what_is_no_rule_is_refused(changes: dict[str, Any], code: int, text: str | None) -> None:
    world = world_of()
    assert create(world, creation(**changes)) == [(code, text)]
    assert listed(world) == []


def test_a_rule_that_is_none_does_not_keep_others_from_being_made() -> None:
    world = world_of()
    assert [code for code, _ in create(world, creation(resource_name=""), creation())] == [42, 0]


@pytest.mark.parametrize("field", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
def test_what_the_sender_does_not_know_ends_its_connection(field: str) -> None:
    client = world_of().client()
    client.send(CreateAclsRequest(creations=[creation(**{field: 0})]), 3)
    assert client.closing


def test_a_rule_that_two_filters_mean_is_told_to_the_first() -> None:
    world = world_of()
    create(world, creation(), creation(resource_name="other"))
    assert delete(world, filter_of(resource_name_filter="other"), filter_of()) == [["other"], ["orders"]]


def test_without_the_right_to_the_cluster_no_rule_is_seen_or_changed() -> None:
    world = world_of()
    alice = as_user(world, "alice")
    (made,) = alice.ask(CreateAclsRequest(creations=[creation()]), 3).results
    (gone,) = alice.ask(DeleteAclsRequest(filters=[filter_of()]), 3).filter_results
    assert {made.error_code, gone.error_code} == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}


# -- remembered


def test_what_was_decided_is_remembered_and_bounded() -> None:
    world = world_of()
    authorizer = world.broker.auth_helper.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    session = Session("PLAINTEXT", "127.0.0.1", 1)
    session.principal = Principal("User", "alice")
    for number in range(2 * MOST_DECISIONS):
        assert not authorizer.allows(session, Operation.READ, TOPIC, f"t{number}")
    authorizer.allows(session, Operation.READ, TOPIC, "x" * 30_000)
    known = session.grants
    assert isinstance(known, Decisions)
    assert 0 < len(known.answers) <= MOST_DECISIONS
    assert max(len(name) for name, _ in known.answers) < 30_000


def test_only_so_many_principals_are_remembered() -> None:
    world = world_of()
    world.create("orders")
    create(world, creation())
    alice = as_user(world, "alice")
    assert write(alice) == 0
    for number in range(MOST_SESSIONS):
        write(as_user(world, f"user{number}"))
    authorizer = world.broker.auth_helper.authorizer
    assert isinstance(authorizer, AclAuthorizer)
    assert len(authorizer._decisions) <= MOST_SESSIONS
    delete(world, filter_of())
    assert write(alice) == DENIED


@pytest.mark.parametrize("version", [9, 13])
def test_a_topic_that_was_written_to_is_asked_about_again_when_a_rule_has_changed(version: int) -> None:
    world = world_of()
    world.create("orders")
    create(world, creation())
    alice = as_user(world, "alice")
    request = produce(b"a", topic="orders")
    request.topic_data[0].topic_id = world.topic_id("orders")

    def code() -> int:
        return int(produced(alice.ask(request, version)).error_code)

    assert [code(), code()] == [0, 0]
    assert alice.channel.session.grants.writable
    delete(world, filter_of())
    assert [code(), code()] == [DENIED, DENIED]
    assert not alice.channel.session.grants.writable


def test_a_topic_that_was_read_is_asked_about_again_when_a_rule_has_changed() -> None:
    world = world_of()
    world.create("orders")
    create(world, creation(operation=Operation.READ))
    alice = as_user(world, "alice")

    def code() -> int:
        return int(fetched(alice.ask(fetch(topic="orders"), 11))[0].error_code)

    assert [code(), code()] == [0, 0]
    assert alice.channel.session.grants.readable
    delete(world, filter_of())
    assert [code(), code()] == [DENIED, DENIED]


def test_who_may_read_as_a_consumer_is_no_replica_by_that() -> None:
    world = world_of()
    world.create("orders")
    create(world, creation(operation=Operation.READ))
    alice = as_user(world, "alice")
    alice.ask(fetch(topic="orders"), 11)
    request = fetch(topic="orders")
    request.replica_id = 2
    assert fetched(alice.ask(request, 11))[0].error_code == DENIED


def test_a_session_that_becomes_another_principal_has_other_rights() -> None:
    world = world_of()
    world.create("orders")
    create(world, creation())
    client = as_user(world, "alice")
    assert write(client) == 0
    client.channel.session.principal = Principal("User", "bob")
    assert write(client) == DENIED


# -- who did what


def test_the_audit_log_says_who_was_denied_what(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of()
    world.create("orders")
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    write(as_user(world, "alice", "::1"))
    (record,) = [each for each in caplog.records if each.name == "kafka.authorizer.logger"]
    assert record.getMessage() == (
        "Principal = User:alice is Denied Operation = Write from host = 0:0:0:0:0:0:0:1 "
        "on resource = Topic:LITERAL:orders for request = Produce with resourceRefCount = 1"
    )
    assert record.levelno == logging.INFO
    assert record.fields["principal"] == "User:alice"  # type: ignore[attr-defined]


def counts(caplog: pytest.LogCaptureFixture) -> dict[str, int]:
    said = [each.fields for each in caplog.records if each.name == "kafka.authorizer.logger"]  # type: ignore[attr-defined]
    found = {each["resource"]: each["resourceRefCount"] for each in said}
    assert len(found) == len(said)
    return found


def test_the_audit_log_says_how_many_parts_of_a_request_are_about_a_resource(caplog: pytest.LogCaptureFixture) -> None:
    """As Kafka counts: partitions of a fetch, and of what is added to a transaction; names elsewhere."""
    world = world_of()
    world.create("orders", partitions=3)
    create(world, creation(resource_type=5, resource_name="t"))
    alice = as_user(world, "alice")
    caplog.set_level(logging.INFO, "kafka.authorizer.logger")
    request = fetch(topic="orders", indices=(0, 1, 2))
    assert {each.error_code for each in fetched(alice.ask(request, 11)).values()} == {DENIED}
    assert counts(caplog) == {"Topic:LITERAL:orders": 3}
    caplog.clear()
    topics = [AddPartitionsToTxnTopic(name=name, partitions=list(range(count))) for name, count in (("a", 2), ("b", 1))]
    alice.ask(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        ),
        3,
    )
    assert counts(caplog) == {"Topic:LITERAL:a": 2, "Topic:LITERAL:b": 1}
    caplog.clear()
    answer = alice.ask(DescribeGroupsRequest(groups=["g", "h", "g"]), 5)
    assert [each.group_id for each in answer.groups] == ["g", "h", "g"]
    assert counts(caplog) == {"Group:LITERAL:g": 2, "Group:LITERAL:h": 1}


def test_the_audit_log_says_who_was_allowed_what_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    world = world_of()
    world.create("orders")
    caplog.set_level(logging.DEBUG, "kafka.authorizer.logger")
    caplog.clear()
    for _ in range(2):
        write(world.client())
    said = [each.getMessage() for each in caplog.records if each.name == "kafka.authorizer.logger"]
    assert len(said) == 2
    assert "User:ANONYMOUS is Allowed Operation = Write" in said[0]
