"""A broker's image of the cluster, as UpdateMetadata paints it."""

from __future__ import annotations

import pytest

from kbroker.metadata.cache import MetadataCache
from kbroker.metadata.store import Endpoint
from protocol.message import ZERO_UUID
from protocol.messages.control import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

ID, OTHER_ID = b"i" * 16, b"j" * 16


def state(index: int = 0, leader: int = 1, topic: str = "") -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        topic_name=topic, partition_index=index, controller_epoch=1, leader=leader, leader_epoch=3, isr=[1],
        zk_version=5, replicas=[1], offline_replicas=[],
    )  # fmt: skip


def broker(broker_id: int, listener: str = "OUT") -> UpdateMetadataBroker:
    endpoint = UpdateMetadataEndpoint(port=9, host=f"h{broker_id}", listener=listener, security_protocol=0)
    return UpdateMetadataBroker(id=broker_id, endpoints=[endpoint], rack=None)


def news(
    *states: UpdateMetadataPartitionState, topic: str = "t", topic_id: bytes = ID, brokers: tuple[int, ...] = (1,)
) -> UpdateMetadataRequest:
    topics = [UpdateMetadataTopicState(topic_name=topic, topic_id=topic_id, partition_states=list(states))]
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1,
        topic_states=topics if states else [],
        live_brokers=[broker(each) for each in brokers],
    )


def test_topics_are_found_by_name_and_id() -> None:
    cache = MetadataCache()
    cache.update(news(state()))
    assert (cache.topic_id("t"), cache.topic_name(ID)) == (ID, "t")
    assert (cache.topic_id("u"), cache.topic_name(OTHER_ID)) == (ZERO_UUID, None)


def test_partitions_are_added_to_what_is_known() -> None:
    cache = MetadataCache()
    cache.update(news(state(0)))
    cache.update(news(state(1), state(0, leader=2)))
    leaders = [each.leader for index in (0, 1) if (each := cache.partition("t", index))]
    assert leaders == [2, 1]
    assert cache.partition("t", 2) is None


def test_brokers_are_replaced_as_a_whole() -> None:
    cache = MetadataCache()
    cache.update(news(brokers=(1, 2)))
    cache.update(news(brokers=(2, 3)))
    assert sorted(cache.brokers) == [2, 3]
    assert cache.node(2, "OUT") == Endpoint("OUT", 0, "h2", 9)
    assert (cache.node(2, "IN"), cache.node(1, "OUT")) == (None, None)


def test_a_deleted_partition_is_forgotten_and_with_the_last_the_topic() -> None:
    cache = MetadataCache()
    cache.update(news(state(0), state(1)))
    assert cache.update(news(state(0, leader=-2))).deleted == [("t", 0)]
    assert sorted(cache.topics["t"].partitions) == [1]
    assert cache.update(news(state(1, leader=-2))).deleted == [("t", 1)]
    assert (cache.topics, cache.topic_name(ID)) == ({}, None)


def test_an_update_says_what_is_made_grown_and_deleted() -> None:
    cache = MetadataCache()
    deltas = [
        cache.update(news(*states))
        for states in ([state(0)], [state(0)], [state(0), state(1)], [state(1, leader=-2)], [state(2, leader=-2)])
    ]
    assert [(each.made, each.grown, each.deleted) for each in deltas] == [
        (["t"], [], []),
        ([], [], []),
        ([], ["t"], []),
        ([], [], [("t", 1)]),
        ([], [], [("t", 2)]),
    ]


def test_deleting_what_is_not_known_leaves_nothing() -> None:
    cache = MetadataCache()
    cache.update(news(state(0, leader=-2)))
    assert cache.topics == {}


def test_a_topic_made_again_has_its_new_id_only() -> None:
    cache = MetadataCache()
    cache.update(news(state()))
    cache.update(news(state(), topic_id=OTHER_ID))
    assert (cache.topic_name(ID), cache.topic_name(OTHER_ID)) == (None, "t")


def test_what_readers_have_worked_out_is_forgotten_with_every_update() -> None:
    cache = MetadataCache()
    cache.update(news(state()))
    assert cache.sorted_names() == ["t"]
    cache.update(news(state(), topic="a", topic_id=OTHER_ID))
    assert cache.sorted_names() == ["a", "t"]


@pytest.mark.parametrize("version", range(9))
def test_every_version_paints_the_same_picture(version: int) -> None:
    states = {} if version >= 5 else {"topic_states": [], "ungrouped_partition_states": [state(topic="t")]}
    request = news(state(), topic_id=ID if version >= 7 else ZERO_UUID)
    for field, value in states.items():
        setattr(request, field, value)
    if version == 0:
        request.live_brokers = [UpdateMetadataBroker(id=1, v0_host="h1", v0_port=9)]
    cache = MetadataCache()
    request = UpdateMetadataRequest.decode(request.encode(version), version)
    delta = cache.update(request)
    partition = cache.partition("t", 0)
    assert partition is not None
    assert (partition.leader, partition.leader_epoch, delta.topics) == (1, 3, ["t"])
    listener = "OUT" if version >= 3 else "PLAINTEXT"
    assert cache.node(1, listener) == Endpoint(listener, 0, "h1", 9)
