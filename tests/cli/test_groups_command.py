"""`kbroker groups` tells of the groups of Kafka 4: members, epochs, assignments and lag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from compat_tests.waiting import eventually
from kbroker.runtime.blocking import BlockingConnection, connect
from kbroker.testing import broker
from protocol.messages import streams_groups as wire
from protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.share_groups import ShareGroupHeartbeatRequest
from tests.cli.asking import Ask

MEMBER = "0123456789abcdefghijkw"
SETTINGS = {"group.streams.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with broker(settings=SETTINGS) as b:
        yield b.bootstrap


@pytest.fixture
def client(bootstrap: str) -> Iterator[BlockingConnection]:
    host, _, port = bootstrap.rpartition(":")
    with BlockingConnection(connect(host, int(port)), "teller") as connection:
        finds = FindCoordinatorRequest(key="", key_type=0, coordinator_keys=["readers"])
        eventually(lambda: connection.ask(finds, 4).coordinators[0].error_code == 0)
        yield connection


def said(ask: Ask, *words: str) -> list[dict[str, Any]]:
    code, out, err = ask("groups", "--describe", *words, "--json")
    assert code == 0, err
    rows: list[dict[str, Any]] = json.loads(out)
    return rows


def beat(client: BlockingConnection, request: Any, version: int) -> Any:
    """Send heartbeats until the member has what it is told, as its client would."""
    answers = []

    def is_told() -> bool:
        answers.append(client.ask(request, version))
        return bool(answers[-1].error_code == 0)

    eventually(is_told)
    return answers[-1]


def test_a_consumer_group_shows_epochs_assignments_and_lag(ask: Ask, client: BlockingConnection) -> None:
    ask("produce", "-t", "read", stdin=b"1\n2\n3\n")
    joins = ConsumerGroupHeartbeatRequest(
        group_id="readers", member_id=MEMBER, member_epoch=0, subscribed_topic_names=["read"], topic_partitions=[]
    )
    joins.rebalance_timeout_ms = 60_000
    epoch = beat(client, joins, 1).member_epoch
    committed = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = OffsetCommitRequestTopic(name="read", partitions=[committed])
    client.ask(
        OffsetCommitRequest(group_id="readers", member_id=MEMBER, generation_id_or_member_epoch=epoch, topics=[topic]),
        9,
    )

    (row,) = said(ask, "--group", "readers")
    assert (row["current_offset"], row["lag"], row["consumer_id"]) == (1, 2, MEMBER)
    (member,) = said(ask, "--group", "readers", "--members")
    assert (member["member_epoch"], member["assignment"], member["target_assignment"]) == (
        epoch,
        ["read(0)"],
        ["read(0)"],
    )
    (state,) = said(ask, "--group", "readers", "--state")
    assert (state["type"], state["state"], state["group_epoch"]) == ("consumer", "Stable", epoch)
    code, out, err = ask("groups", "--reset-offsets", "--group", "readers", "--topic", "read", "--to-earliest")
    assert (code, out, err) == (
        2,
        "",
        "kbroker: group readers is Stable: its offsets are reset while it has no members\n",
    )


def test_a_streams_group_shows_its_tasks_and_who_reads_what(ask: Ask, client: BlockingConnection) -> None:
    ask("produce", "-t", "lines", stdin=b"1\n2\n")
    part = wire.Subtopology(
        subtopology_id="0",
        source_topics=["lines"],
        source_topic_regex=[],
        state_changelog_topics=[],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )
    joins = wire.StreamsGroupHeartbeatRequest(
        group_id="app",
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
    epoch = beat(client, joins, 0).member_epoch
    (member,) = said(ask, "--group", "app", "--members")
    assert (member["member_epoch"], member["assignment"], member["partitions"]) == (epoch, ["0(0)"], 1)
    (row,) = said(ask, "--group", "app")
    assert (row["topic"], row["partition"], row["log_end_offset"], row["consumer_id"]) == ("lines", 0, 2, MEMBER)
    (state,) = said(ask, "--group", "app", "--state")
    assert (state["type"], state["assignment_strategy"], state["members"]) == ("streams", "sticky", 1)
    table = ask("groups", "--describe", "--group", "app", "--members", "--verbose")[1]
    assert table.split()[5:9] == ["PARTITIONS", "ASSIGNMENT", "TARGET-ASSIGNMENT", "app"]


def test_a_share_group_shows_where_it_begins_and_what_is_not_over(ask: Ask, client: BlockingConnection) -> None:
    ask("produce", "-t", "jobs", stdin=b"1\n2\n")
    joins = ShareGroupHeartbeatRequest(
        group_id="work", member_id=MEMBER, member_epoch=0, subscribed_topic_names=["jobs"]
    )
    beat(client, joins, 1)

    def has_begun() -> bool:
        beat(client, joins, 1)
        (member,) = said(ask, "--group", "work", "--members")
        return bool(member["assignment"] == ["jobs(0)"])

    eventually(has_begun)
    (row,) = said(ask, "--group", "work")
    assert (row["topic"], row["log_end_offset"], row["consumer_id"]) == ("jobs", 2, None)
