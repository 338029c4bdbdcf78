"""A group's coordinator dies: another broker carries on with what the group has, and its member does not fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from kbroker.testing import Broker, Cluster, cluster
from protocol.errors import ErrorCode
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.processes import Client, within

pytestmark = pytest.mark.slow

IN_THREE = {
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
}


@pytest.fixture(scope="module")
def c() -> Iterator[Cluster]:
    with cluster(3, settings=IN_THREE) as running:
        running.create_topic("inputs", partitions=1, replication_factor=3, min_insync_replicas=2)
        yield running


def coordinator(c: Cluster, group: str) -> Broker:
    """The broker that coordinates a group, as soon as there is one."""
    for _ in within(30):
        running = next(each for each in c.brokers if each.is_running)
        client = Client(int(running.bootstrap.rpartition(":")[2]))
        (found,) = client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4).coordinators
        client.close()
        if found.error_code == ErrorCode.NONE:
            return next(each for each in c.brokers if each.node_id == found.node_id)
    raise AssertionError(f"{group} has no coordinator")


def all_in_sync(c: Cluster, topic: str) -> None:
    """Wait until the topic's one partition has all its replicas in sync."""
    client = Client(int(c.brokers[0].bootstrap.rpartition(":")[2]))
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    for _ in within(30):
        (partition,) = client.ask(request, 9).topics[0].partitions
        if set(partition.isr_nodes) == set(partition.replica_nodes):
            break
    client.close()


def test_a_group_goes_on_at_another_coordinator_with_what_it_has_committed(c: Cluster) -> None:
    name = "billing"
    where = {"bootstrap_servers": c.bootstrap.split(","), "group_id": name, "enable_auto_commit": False}
    consumer = KafkaConsumer("inputs", auto_offset_reset="earliest", **where)
    read = []
    for round_ in range(3):
        c.produce("inputs", b"%d" % round_)
        read.append(next(consumer).value)
        consumer.commit()
        dies = coordinator(c, name)
        dies.kill()
        assert coordinator(c, name) is not dies
        consumer.commit()  # by the new one, for the same member in the same generation
        assert consumer.committed(TopicPartition("inputs", 0)) == round_ + 1
        dies.start()
        c.await_agreement()
        all_in_sync(c, "inputs")  # before the next one dies: two have to be
    consumer.close()
    assert read == [b"0", b"1", b"2"]
