"""Groups of Kafka 4 in the helpers: they are seen by their kind, and a reset puts their members out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from compat_tests.waiting import eventually
from kbroker.runtime.blocking import BlockingConnection, connect
from kbroker.testing import Broker, UsageError, broker
from protocol.messages import streams_groups as wire
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.share_groups import ShareGroupHeartbeatRequest

MEMBER = "0123456789abcdefghijkw"
SETTINGS = {"group.streams.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def b() -> Iterator[Broker]:
    with broker(settings=SETTINGS) as started:
        yield started


@pytest.fixture
def client(b: Broker) -> Iterator[BlockingConnection]:
    b.create_topic("orders")
    host, _, port = b.bootstrap.rpartition(":")
    with BlockingConnection(connect(host, int(port)), "teller") as connection:
        finds = FindCoordinatorRequest(key="", key_type=0, coordinator_keys=["work"])
        eventually(lambda: not connection.ask(finds, 4).coordinators[0].error_code)
        yield connection


def consumer(group: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=MEMBER,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )


def sharer(group: str) -> ShareGroupHeartbeatRequest:
    return ShareGroupHeartbeatRequest(
        group_id=group, member_id=MEMBER, member_epoch=0, subscribed_topic_names=["orders"]
    )


def streams(group: str) -> wire.StreamsGroupHeartbeatRequest:
    part = wire.Subtopology(
        subtopology_id="0",
        source_topics=["orders"],
        source_topic_regex=[],
        state_changelog_topics=[],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )
    return wire.StreamsGroupHeartbeatRequest(
        group_id=group,
        member_id=MEMBER,
        member_epoch=0,
        endpoint_information_epoch=0,
        rebalance_timeout_ms=60_000,
        topology=wire.Topology(epoch=0, subtopologies=[part]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="one",
        client_tags=[],
    )


@pytest.mark.parametrize(
    ("kind", "joins", "version"), [("consumer", consumer, 1), ("share", sharer, 1), ("streams", streams, 0)]
)
def test_a_group_is_seen_by_its_kind_and_forgotten_by_a_reset(
    b: Broker, client: BlockingConnection, kind: str, joins: Callable[[str], Any], version: int
) -> None:
    eventually(lambda: not client.ask(joins("work"), version).error_code)
    found = b.groups()["work"]
    assert (found.kind, found.members, found.state) == (kind, ("teller",), "Stable")
    assert found.epoch
    if kind == "share":
        assert b.share_group("work").members == ("teller",)
    else:
        with pytest.raises(UsageError, match="there is no share group 'work': there are none"):
            b.share_group("work")
    b.reset()
    assert b.groups() == {}
