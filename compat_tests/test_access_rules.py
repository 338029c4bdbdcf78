"""Access rules beside Apache Kafka 3.9.1 with AclAuthorizer: who lacks a right is told the same by both brokers.

Each request is asked with one right after the other taken away, and with all of a need, from an address of its own,
for which rules are made; what both brokers answer is compared by its error codes and the names in it. Each broker has a
part of one ZooKeeper to itself, in which the first rules are written before it starts: all to the address of the tests
and of the brokers, 127.0.0.1. Then both share one cluster, and what is ruled on one holds on the other; and
kafka-acls.sh works on it.

The same is asked of Apache Kafka 4.4.0 with StandardAuthorizer, in KRaft mode, which serves what came since 3.9; and of
kbroker by itself. There the first rules are made by a client, while there are none.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from compat_tests.apache import NEWEST, RELEASES, KraftBroker, ZooKeeper, ZooKeeperBroker, run_tool
from compat_tests.brokers import KbrokerProcess
from compat_tests.raw import Connection
from compat_tests.waiting import eventually
from kbroker.api.routes import ROUTES, load
from kbroker.broker.acls import ALL, Pattern, PatternType, Permission, Rule, encode_rules, pattern_path
from kbroker.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from kbroker.config.broker import AUTHORIZERS
from protocol.apis import BY_KEY
from protocol.message import Message, Struct
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from protocol.schema import fields_at
from tests.api.test_authorization import requested

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

load()
ADMIN, CLIENT = "127.0.0.1", "127.0.0.3"
CONTROL = {4, 5, 6, 7, 27, 56, 67}  # what a broker would obey: asked without the right alone
TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)
ANYTHING: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": CLIENT,
    "operation": 1,
    "permission_type": 1,
}
SETTINGS = {
    "authorizer.class.name": AUTHORIZERS[0],
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}


def connected(port: int, source: str) -> Connection:
    return Connection(over=socket.create_connection(("127.0.0.1", port), 20, source_address=(source, 0)), timeout_s=20)


def name_of(resource: ResourceType) -> str:
    return CLUSTER_NAME if resource is ResourceType.CLUSTER else "*"


def let_brokers_in(zookeeper: str, root: str) -> None:
    """The first rules, as they would be written by a person."""
    client = KazooClient(zookeeper)
    client.start()
    try:
        for resource in TYPES:
            path = pattern_path(Pattern(resource, name_of(resource), PatternType.LITERAL))
            rule = Rule("User:ANONYMOUS", ADMIN, ALL, Permission.ALLOW)
            client.create(root + path, encode_rules([rule]), makepath=True)
    finally:
        client.stop()
        client.close()


class Ruled:
    """A broker, the admin's connection to it, and what the client at the other address may do."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.admin = connected(port, ADMIN)

    def let_admin_in(self) -> None:
        """The first rules, of a broker that lets everyone do everything where there are none."""
        self._make([self._rule(ALL, each, Permission.ALLOW, ADMIN) for each in TYPES], ADMIN)

    def allow_all_but(self, denied: Sequence[tuple[Operation, ResourceType]]) -> None:
        self.admin.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**ANYTHING)]), 3)
        rules = [self._rule(ALL, each, Permission.ALLOW) for each in TYPES]
        rules += [self._rule(operation, resource, Permission.DENY) for operation, resource in denied]
        self._make(rules, CLIENT)

    def _make(self, rules: Sequence[AclCreation], host: str) -> None:
        """They are the only ones for the host, and the broker heeds them, when this returns."""
        made = self.admin.ask(CreateAclsRequest(creations=list(rules)), 3)
        assert {each.error_code for each in made.results} == {0}
        wanted = {(each.resource_type, each.operation, each.permission_type) for each in rules}
        eventually(lambda: {(rule[0], *rule[5:]) for rule in listed(self, host)} == wanted)

    def _rule(self, operation: int, resource: ResourceType, permission: Permission, host: str = CLIENT) -> AclCreation:
        return AclCreation(
            resource_type=resource,
            resource_name=name_of(resource),
            resource_pattern_type=PatternType.LITERAL,
            principal="User:ANONYMOUS",
            host=host,
            operation=operation,
            permission_type=permission,
        )

    def told(self, request: Message, version: int) -> list[str]:
        """The error codes and names of the answer; or that there was none."""
        try:
            connection = connected(self.port, CLIENT)
            try:
                answer = connection.ask(request, version)
            finally:
                connection.close()
        except (OSError, EOFError) as error:
            return [f"no answer: {type(error).__name__}"]
        return sorted(said(answer, version))


def said(part: object, version: int, name: str = "") -> Iterator[str]:
    if isinstance(part, list):
        for each in part:
            yield from said(each, version, name)
    elif isinstance(part, Struct):
        names = [field.name for field in fields_at(type(part), version)]
        codes = {each: getattr(part, each) for each in names if each.endswith("error_code")}
        own = {each: getattr(part, each) for each in names if each in ("name", "topic", "topic_name", "group_id")}
        operations = {each: getattr(part, each) for each in names if each.endswith("authorized_operations")}
        if codes or own or operations:
            yield f"{name} {own} {codes} {operations}"
        for each in names:
            yield from said(getattr(part, each), version, each)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server.address


def started(choice: str, folder: Path, zookeeper: str, node_id: int = 1) -> KbrokerProcess | ZooKeeperBroker:
    if choice == "apache":
        return ZooKeeperBroker(folder, zookeeper=zookeeper, node_id=node_id, settings=SETTINGS)
    own = {"broker.id": str(node_id), "zookeeper.connect": zookeeper, "log.dirs": str(folder / "data")}
    return KbrokerProcess(folder, settings={**SETTINGS, **own})


@pytest.fixture(scope="module")
def both(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Ruled]]:
    with ExitStack() as stack:
        found = []
        for choice in ("kbroker", "apache"):
            let_brokers_in(zookeeper, f"/{choice}")
            folder = tmp_path_factory.mktemp(choice)
            server = stack.enter_context(started(choice, folder, f"{zookeeper}/{choice}"))
            found.append(_filled(Ruled(server.port)))
        yield found


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Ruled]]:
    folder, is_open = tmp_path_factory.mktemp("newest"), {"allow.everyone.if.no.acl.found": "true"}
    standard = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    with (
        KbrokerProcess(folder / "kbroker", settings={**SETTINGS, **is_open}) as ours,
        KraftBroker(NEWEST, folder / "apache", settings={**SETTINGS, **is_open, **standard}) as theirs,
    ):
        found = [Ruled(each.port) for each in (ours, theirs)]
        for each in found:
            each.let_admin_in()
            _filled(each)
        yield found


def _filled(ruled: Ruled) -> Ruled:
    """The same, once it has a topic and coordinators."""
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    ruled.admin.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
    for kind in (0, 1):
        eventually(lambda: _is_coordinated(ruled, kind))  # noqa: B023
    return ruled


def _is_coordinated(ruled: Ruled, kind: int) -> bool:
    answer = ruled.admin.ask(FindCoordinatorRequest(key="t", key_type=kind), 3)
    return bool(answer.error_code == 0)


OTHERWISE = {
    ("LeaderAndIsr", 0): "refused as a whole, without its partitions: a broker looks no further",
    ("StopReplica", 0): "the same",
    ("OffsetDelete", 1): "a group that is not there is told only where one of the topics may be read",
}
OTHERWISE_SINCE = {
    (
        "DeleteTopics",
        0,
    ): "its controller is asked for the topic before rights are, for as long as the request waits: 0 here",
    ("OffsetDelete", 1): "as with 3.9.1",
    ("DeleteShareGroupOffsets", 1): "the same",
}
CASES = [
    (release, api, at)
    for release, otherwise in zip(RELEASES, (OTHERWISE, OTHERWISE_SINCE), strict=True)
    for api, route in sorted(ROUTES.items())
    for at, _ in enumerate(route.needs)
    if (route.name, at) not in otherwise
    and (BY_KEY[api].kafka_4_4 if release == NEWEST else BY_KEY[api].kafka_3_9) is not None
]
RULE_NUMBERS = (
    "resource_type_filter",
    "pattern_type_filter",
    "resource_pattern_type",
    "resource_type",
    "operation",
    "permission_type",
)
REFUSALS = {29, 30, 31, 53, 58, 65}
NAMES = [f"{release}-{ROUTES[api].name}-{at}" for release, api, at in CASES]


def _refuses(answer: Sequence[str]) -> bool:
    return any(f"code': {code}" in line for line in answer for code in REFUSALS)


@pytest.mark.parametrize(("release", "api", "at"), CASES, ids=NAMES)
def test_who_lacks_a_right_is_told_the_same(request: pytest.FixtureRequest, release: str, api: int, at: int) -> None:
    both: list[Ruled] = request.getfixturevalue("newest" if release == NEWEST else "both")
    need = ROUTES[api].needs[at]
    served = {each.api_key: each.max_version for each in both[1].admin.ask(ApiVersionsRequest(), 0).api_keys}
    asked, version = requested(api, at)
    for part in (asked, *getattr(asked, "creations", ()), *getattr(asked, "filters", ())):
        for field in RULE_NUMBERS:
            if hasattr(part, field):  # 0, as the sample has, stands for what is not known: Kafka hangs up
                setattr(part, field, 3)
    version = min(version, served[api])
    rights = [(right.operation, right.resource) for right in need.rights]
    takes = [rights] + ([[each] for each in rights] if len(rights) > 1 and api not in CONTROL else [])
    for denied in takes:
        answers = []
        for ruled in both:
            ruled.allow_all_but(denied)
            answers.append(ruled.told(asked, version))
        if any(_refuses(each) for each in answers):
            assert answers[0] == answers[1], (denied, version)


# -- one cluster


@pytest.fixture(scope="module")
def mixed(zookeeper: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Ruled]]:
    """kbroker is 1, Apache's broker 2."""
    let_brokers_in(zookeeper, "/mixed")
    with ExitStack() as stack:
        servers = [
            stack.enter_context(started(choice, tmp_path_factory.mktemp(choice), f"{zookeeper}/mixed", number))
            for number, choice in ((1, "kbroker"), (2, "apache"))
        ]
        yield [Ruled(each.port) for each in servers]


def listed(ruled: Ruled, host: str | None = None) -> set[tuple[int, str, int, str, str, int, int]]:
    answer = ruled.admin.ask(DescribeAclsRequest(**{**ANYTHING, "host_filter": host}), 3)
    return {
        (each.resource_type, each.resource_name, each.pattern_type, *(getattr(rule, name) for name in RULE))
        for each in answer.resources
        for rule in each.acls
    }


RULE = ("principal", "host", "operation", "permission_type")


def test_what_is_ruled_on_one_broker_holds_on_the_other(mixed: list[Ruled]) -> None:
    for here, there in (mixed, mixed[::-1]):
        before = listed(there)
        rules = [
            AclCreation(
                resource_type=2,
                resource_name="orders",
                resource_pattern_type=kind,
                principal=principal,
                host="*",
                operation=3,
                permission_type=permission,
            )
            for kind in (3, 4)
            for permission in (2, 3)
            for principal in ("User:alice", "User:CN=x,O=ä")
        ]
        here.admin.ask(CreateAclsRequest(creations=rules), 3)
        eventually(lambda there=there, before=before: len(listed(there) - before) == 8)
        assert listed(here) == listed(there)
        wanted = {**ANYTHING, "host_filter": None, "principal_filter": "User:alice"}
        there.admin.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**wanted)]), 3)
        eventually(lambda here=here, before=before: len(listed(here) - before) == 4)
        here.admin.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**{**ANYTHING, "host_filter": "*"})]), 3)
        eventually(lambda there=there, before=before: listed(there) == before)


@pytest.mark.parametrize("release", RELEASES)
def test_kafka_acls_works(mixed: list[Ruled], release: str) -> None:
    """kafka-acls adds, lists, removes"""
    kbroker = mixed[0]
    main = "kafka.admin.AclCommand" if release < "4" else "org.apache.kafka.tools.AclCommand"

    def acls(*words: str) -> str:
        done = run_tool(release, main, "--bootstrap-server", f"127.0.0.1:{kbroker.port}", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    before = listed(kbroker)
    acls(
        "--add", "--allow-principal", "User:bob", "--producer", "--topic", "tool", "--resource-pattern-type", "prefixed"
    )
    said = acls("--list", "--topic", "tool1", "--resource-pattern-type", "match")
    assert "(principal=User:bob, host=*, operation=WRITE, permissionType=ALLOW)" in said
    acls("--remove", "--topic", "tool", "--resource-pattern-type", "prefixed", "--force")
    assert listed(kbroker) == before
