"""kbroker and Apache Kafka 3.9.1 in one cluster on a ZooKeeper with TLS, a login and access lists.

Both make nodes that only brokers may change, and each has to change those of the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from kazoo.client import KazooClient
from kazoo.security import ACL

from compat_tests.apache import SMALL_JVM, NoApacheError, Server, ZooKeeperBroker
from compat_tests.apache import missing as missing_apache
from compat_tests.brokers import KbrokerProcess
from compat_tests.raw import METADATA, Connection
from compat_tests.secured import LOGIN, PASSWORD, USER, SecuredZooKeeper, missing, write_jaas
from compat_tests.waiting import eventually
from protocol.messages.metadata import MetadataRequest

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

CLUSTER = {
    "zookeeper.set.acl": "true",
    "zookeeper.ssl.client.enable": "true",
    "zookeeper.ssl.keystore.type": "PEM",
    "zookeeper.ssl.truststore.type": "PEM",
    "zookeeper.session.timeout.ms": "6000",
    "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "2",
}


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[SecuredZooKeeper]:
    if reason := missing_apache():
        raise NoApacheError(reason)
    if reason := missing():
        pytest.skip(reason)
    with SecuredZooKeeper(tmp_path / "zookeeper", wants_login=True, wants_certificate=True) as server:
        yield server


def settings(server: SecuredZooKeeper) -> dict[str, str]:
    """Of a broker of either kind: all have one certificate, as they have one login."""
    return {
        **CLUSTER,
        "zookeeper.ssl.keystore.location": str(server.certificates.of("brokers")),
        "zookeeper.ssl.truststore.location": str(server.certificates.authority),
    }


def rights(server: SecuredZooKeeper) -> dict[str, list[ACL]]:
    """The access list of every node of the brokers', sorted."""
    client = KazooClient(
        server.address, sasl_options={"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD}
    )
    client.start()
    found = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        below = [f"{path.rstrip('/')}/{name}" for name in client.get_children(path)]
        waiting += [each for each in below if each != "/zookeeper"]
        found.update({each: sorted(client.get_acls(each)[0]) for each in below if each != "/zookeeper"})
    client.stop()
    client.close()
    return found


def leaders(broker: Server) -> set[int]:
    """Of all partitions, as a broker tells it."""
    with Connection(broker.port) as connection:
        found = connection.ask(MetadataRequest(topics=None), METADATA)
    return {each.leader_id for topic in found.topics for each in topic.partitions}


@pytest.mark.parametrize("first", ["kbroker", "apache"])
def test_brokers_of_both_kinds_share_a_secured_ensemble(
    zookeeper: SecuredZooKeeper, tmp_path: Path, first: str
) -> None:
    own = settings(zookeeper)
    jaas = write_jaas(tmp_path / "apache", "Client", LOGIN)
    apache = ZooKeeperBroker(
        tmp_path / "apache",
        zookeeper=zookeeper.secure,
        node_id=1,
        settings=own,
        jvm=(*SMALL_JVM, f"-Djava.security.auth.login.config={jaas}"),
    )
    mine = {"broker.id": "2", "zookeeper.connect": zookeeper.secure, "kbroker.zookeeper.sasl.jaas.config": LOGIN}
    kbroker = KbrokerProcess(tmp_path / "kbroker", settings={**own, **mine})
    brokers: list[Server] = [kbroker, apache] if first == "kbroker" else [apache, kbroker]
    with brokers[0], brokers[1]:
        addresses = [broker.address for broker in brokers]
        admin = KafkaAdminClient(bootstrap_servers=addresses)
        eventually(lambda: len(admin.describe_cluster()["brokers"]) == 2, within_s=60)
        admin.create_topics([NewTopic("t", 2, 2)])
        producer = KafkaProducer(bootstrap_servers=addresses, acks="all")
        for number in range(100):
            producer.send("t", str(number).encode(), partition=number % 2).get(60)
        producer.close()
        consumer = KafkaConsumer("t", bootstrap_servers=addresses, group_id="g", auto_offset_reset="earliest")
        read = set()
        while len(read) < 100:
            read |= {each.value for batch in consumer.poll(1000).values() for each in batch}
        consumer.close()
        brokers[0].kill()  # the controller, whose nodes the other one has to write now
        eventually(lambda: leaders(brokers[1]) == {2 if first == "apache" else 1}, within_s=60)
    assert {"t"} <= {path.rpartition("/")[2] for path in rights(zookeeper)}
    kinds = {tuple(each) for path, each in rights(zookeeper).items() if path != "/consumers"}
    assert len(kinds) == 2  # for all to read, and the few that may hold secrets
