"""One kbroker and two Apache Kafka 3.9.1 brokers on one ZooKeeper, all by SASL_SSL with SCRAM and access rules.

Users, rules and quotas that are made on a broker of either kind hold on all; brokers log in at each other, replicate,
and obey a controller of either kind. The first users, of the brokers and of the admin, are made by Apache's tool in
ZooKeeper. Each broker has a listener of plain text, too, where tests see that it is up; who comes there may do nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from compat_tests.apache import ZooKeeper, ZooKeeperBroker, free_port, run_tool
from compat_tests.brokers import KbrokerProcess
from compat_tests.secured_brokers import ADMIN, BROKER, MECHANISM, PASSWORD, SecuredBrokers, eventually
from kbroker.runtime.secure import AUTHORITY_FILE, BROKER_FILE, secure
from kbroker.security.recipes import jaas

SECTION = "12 A secured cluster of both kinds"
RELEASE = "3.9.1"
pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

KINDS = {1: "kbroker", 2: "apache", 3: "apache"}
FIRST = {"kbroker controls": 1, "Apache controls": 2}


class Secured(SecuredBrokers):
    """The cluster."""

    def __init__(self, folder: Path, zookeeper: str) -> None:
        made = folder / "secure"
        secure(str(made), listeners="SASL_SSL://127.0.0.1:0")
        super().__init__(folder, made / AUTHORITY_FILE, KINDS, RELEASE)
        self.zookeeper = zookeeper
        for number, kind in KINDS.items():
            plain, place = free_port(), folder / f"broker{number}"
            listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{self.ports[number]}"
            settings = {**_settings(made), "listeners": listeners}
            if kind == "apache":
                self.brokers[number] = ZooKeeperBroker(
                    place, zookeeper=zookeeper, node_id=number, settings=settings, heap="256m", port=plain
                )
            else:
                own = {"broker.id": str(number), "zookeeper.connect": zookeeper}
                self.brokers[number] = KbrokerProcess(place, settings={**settings, **own}, port=plain)

    def controller(self, at: int) -> int:
        found = self.asked(at, lambda admin: admin.describe_cluster()["controller_id"])
        return -1 if found is None else int(found)


def _settings(made: Path) -> dict[str, str]:
    """Of brokers of both kinds."""
    return {
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        "sasl.enabled.mechanisms": MECHANISM,
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": jaas(BROKER, PASSWORD),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(made / BROKER_FILE),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(made / AUTHORITY_FILE),
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "super.users": f"User:{BROKER};User:{ADMIN}",
        "zookeeper.session.timeout.ms": "6000",
        "replica.lag.time.max.ms": "10000",
        "controlled.shutdown.retry.backoff.ms": "500",
        "auto.create.topics.enable": "false",
    }


@pytest.fixture(scope="module", params=FIRST.values(), ids=FIRST)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    with ExitStack() as running:
        zookeeper = running.enter_context(ZooKeeper(folder / "zookeeper"))
        for user in (BROKER, ADMIN):
            credential = ("--alter", "--add-config", f"{MECHANISM}=[password={PASSWORD}]")
            done = run_tool(
                RELEASE, "kafka.admin.ConfigCommand", "--zookeeper", zookeeper.address,
                "--entity-type", "users", "--entity-name", user, *credential,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
        made = Secured(folder, zookeeper.address)
        for number in sorted(made.brokers, key=lambda number: (number != request.param, number)):
            running.enter_context(made.brokers[number])
        eventually(lambda: all(made.controller(each) == request.param for each in KINDS))
        yield made


@pytest.fixture
def name(request: pytest.FixtureRequest, cluster: Secured) -> str:
    """Of a topic, or a user, of the test's own."""
    return "n-" + "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[-60:].strip("-")


EACH_KIND = pytest.mark.parametrize("at", [1, 2], ids=["on kbroker", "on Apache"])


@pytest.mark.parametrize("leader", [1, 2], ids=["kbroker leads", "Apache leads"])
def test_records_are_replicated_to_brokers_of_both_kinds(cluster: Secured, leader: int, name: str) -> None:
    cluster.make(name, *sorted(KINDS, key=lambda number: number != leader))
    values = [b"%d" % number for number in range(500)]
    cluster.write(leader, name, *values)
    for at in KINDS:
        assert cluster.read(at, name, len(values)) == values
        eventually(lambda at=at: cluster.log(name, at) == cluster.log(name, leader))  # type: ignore[misc]
        assert cluster.in_sync(name, at) == set(KINDS)


@EACH_KIND
def test_a_user_that_is_made_on_either_is_let_in_by_all(cluster: Secured, at: int, name: str) -> None:
    assert not any(cluster.is_let_in(each, name) for each in KINDS)
    cluster.make_user(name, at)
    for each in KINDS:
        eventually(lambda each=each: cluster.is_let_in(each, name))  # type: ignore[misc]
        assert not cluster.is_let_in(each, name, "another")
        there = cluster.admin(each)
        assert name in str(there.describe_user_scram_credentials([name]))
        there.close()
    cluster.configs("--alter", "--entity-type", "users", "--entity-name", name, "--delete-config", MECHANISM, at=3 - at)
    for each in KINDS:
        eventually(lambda each=each: not cluster.is_let_in(each, name))  # type: ignore[misc]


@EACH_KIND
def test_a_rule_that_is_made_on_either_holds_on_all(cluster: Secured, at: int, name: str) -> None:
    topics = {each: f"{name}-{each}" for each in KINDS}
    for each, topic in topics.items():
        cluster.make(topic, each)
    admin = cluster.admin(at)
    cluster.make_user(name, at)
    for each in KINDS:
        eventually(lambda each=each: cluster.is_let_in(each, name))  # type: ignore[misc]
        assert not cluster.may_write(each, topics[each], name)
    rules = [
        ACL(f"User:{name}", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, topic))
        for topic in topics.values()
        for operation in (ACLOperation.WRITE, ACLOperation.READ)
    ]
    made = admin.create_acls(rules)
    assert not made["failed"], made
    other = cluster.admin(3 - at)  # of the other kind
    for each, topic in topics.items():
        eventually(lambda each=each, topic=topic: cluster.may_write(each, topic, name))  # type: ignore[misc]
        assert cluster.read(each, topic, 1, user=name) == [b"may I?"]
    anything = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    of_user = ACLFilter(f"User:{name}", "*", ACLOperation.ANY, ACLPermissionType.ANY, anything)
    found, _ = other.describe_acls(of_user)
    assert len(found) == len(rules)
    other.delete_acls([of_user])
    for each, topic in topics.items():
        eventually(lambda each=each, topic=topic: not cluster.may_write(each, topic, name))  # type: ignore[misc]
    other.close()
    admin.close()


@EACH_KIND
def test_a_quota_that_is_set_on_either_holds_on_all(cluster: Secured, at: int, name: str) -> None:
    configs = cluster.configs
    user = ("--entity-type", "users", "--entity-name", ADMIN, "--entity-type", "clients", "--entity-name", name)
    topics = {each: f"{name}-{each}" for each in KINDS}
    for each, topic in topics.items():
        cluster.make(topic, each)
    configs("--alter", *user, "--add-config", "producer_byte_rate=500", at=at)
    for each, topic in topics.items():
        eventually(lambda each=each: "producer_byte_rate=500" in configs("--describe", *user, at=each))  # type: ignore[misc]
        waits: list[float] = []
        settings = {**cluster.recipe(each, ADMIN, PASSWORD).librdkafka(), "client.id": name, "linger.ms": "0"}
        producer = Producer({**settings, "throttle_cb": lambda event, waits=waits: waits.append(event.throttle_time)})
        for _ in range(8):
            producer.produce(topic, bytes(1_000), partition=0)
            producer.flush(0.2)
        eventually(lambda producer=producer, waits=waits: producer.poll(0.1) >= 0 and any(waits))  # type: ignore[misc]
        producer.purge()
    configs("--alter", *user, "--delete-config", "producer_byte_rate", at=3 - at)
    for each in KINDS:
        eventually(lambda each=each: "producer_byte_rate" not in configs("--describe", *user, at=each))  # type: ignore[misc]


def test_control_passes_to_the_other_kind_and_nothing_is_lost(
    cluster: Secured, name: str, request: pytest.FixtureRequest
) -> None:
    first = cluster.controller(3)
    others = [number for number in KINDS if number != first]
    cluster.make(name, first, *others)
    values = [b"%d" % number for number in range(100)]
    cluster.write(first, name, *values)
    cluster.brokers[first].stop()
    eventually(lambda: all(cluster.controller(each) in others for each in others))
    eventually(lambda: all(cluster.leader(name, each) in others for each in others))
    after = [b"after %d" % number for number in range(100)]
    cluster.write(others[0], name, *after)
    cluster.make(f"{name}-new", *others)
    cluster.brokers[first].start()
    for each in KINDS:
        eventually(lambda each=each: cluster.in_sync(name, each) == set(KINDS))  # type: ignore[misc]
        assert cluster.read(each, name, 200) == values + after
        eventually(lambda each=each: cluster.log(name, each) == cluster.log(name, first))  # type: ignore[misc]


def test_brokers_that_do_not_log_in_are_no_brokers(cluster: Secured) -> None:
    """Who comes by plain text is let in by no rule, and is no broker."""
    for number, broker in cluster.brokers.items():
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        try:
            assert admin.list_topics() == [], number
        finally:
            admin.close()
