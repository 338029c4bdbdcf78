"""Groups of the newer kinds, as a broker has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.console.cluster import Cluster
from kbroker.console.groups import group, groups, reset_group
from kbroker.console.wire import OF_GROUPS
from kbroker.security.client import ClientSecurity
from kbroker.testing import broker
from protocol.apis import BY_KEY
from protocol.messages.streams_groups import Subtopology, Topology
from protocol.schema import fields

CONSUMER, SHARE, STREAMS = 68, 76, 88
MEMBER = "member-1-abcdefghijkl"


def heartbeat(key: int, **given: Any) -> Any:
    """A request with whatever else it has at its default."""
    kind: Any = BY_KEY[key].request
    return kind(**{each.name: each.default_value() for each in fields(kind)} | given)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {"group_streams_initial_rebalance_delay_ms": 0, "group_streams_assignment_interval_ms": 0}
    with broker(offsets_topic_num_partitions=1, **settings) as running:
        running.create_topic("t", partitions=2)
        running.produce("t", b"a", b"b")
        made = Cluster([("127.0.0.1", running.port)], ClientSecurity())
        yield made
        made.close()


def test_a_consumer_group_has_epochs_and_its_members_partitions(cluster: Cluster) -> None:
    node = cluster.coordinator("consumers")
    joins = heartbeat(
        CONSUMER,
        group_id="consumers",
        member_id=MEMBER,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    assert cluster.ask(joins, node).error_code == 0
    found = group(cluster, "consumers")
    assert (found["kind"], found["members"][0]["has"]) == ("consumer", {"t": [0, 1]})
    assert found["epoch"] >= 1
    assert "nothing is committed yet" in found["findings"][0]["text"]


def test_a_share_group_is_told_and_reset(cluster: Cluster) -> None:
    node = cluster.coordinator("sharers")
    joins = heartbeat(SHARE, group_id="sharers", member_id=MEMBER, member_epoch=0, subscribed_topic_names=["t"])
    assert cluster.ask(joins, node).error_code == 0
    found = group(cluster, "sharers")
    assert (found["kind"], found["members"][0]["subscribed"]) == ("share", ["t"])
    assert "no record was given out yet" in found["findings"][0]["text"]
    assert cluster.ask(heartbeat(SHARE, group_id="sharers", member_id=MEMBER, member_epoch=-1), node).error_code == 0
    assert {each["kind"] for each in groups(cluster)["groups"]} == {"consumer", "share"}
    if 91 in cluster_serves(cluster):
        reset_group(cluster, "sharers", "t", "earliest", dry_run=False)
        rows = {each["partition"]: each["lag"] for each in group(cluster, "sharers")["offsets"]}
        assert rows == {0: 2, 1: 0}


def joins_streams(group_id: str, *topics: str) -> Any:
    """A first heartbeat of an application with one subtopology."""
    reads = Subtopology(
        subtopology_id="0",
        source_topics=list(topics),
        source_topic_regex=[],
        state_changelog_topics=[],
        repartition_sink_topics=[],
        repartition_source_topics=[],
        copartition_groups=[],
    )
    return heartbeat(
        STREAMS,
        group_id=group_id,
        member_id=MEMBER,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        topology=Topology(epoch=0, subtopologies=[reads]),
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="process",
    )


def test_a_streams_group_has_tasks_and_the_partitions_that_they_read(cluster: Cluster) -> None:
    assert cluster.ask(joins_streams("streamers", "t"), cluster.coordinator("streamers")).error_code == 0
    found = group(cluster, "streamers")
    member = found["members"][0]
    assert (found["kind"], member["has"]) == ("streams", {"t": [0, 1]})
    assert member["tasks"] == {"active": ["0_0", "0_1"], "standby": [], "warmup": []}
    assert [each["member"] for each in found["offsets"]] == [MEMBER, MEMBER]


def test_a_streams_group_that_cannot_begin_says_which_topic_is_missing(cluster: Cluster) -> None:
    assert cluster.ask(joins_streams("early", "t", "not-there"), cluster.coordinator("early")).error_code == 0
    found = group(cluster, "early")
    assert found["state"] == "NotReady"
    assert "topic not-there does not exist" in found["findings"][0]["text"]


def cluster_serves(cluster: Cluster) -> set[int]:
    with cluster.connection() as (connection, _):
        return set(connection.protocol.served)


def test_the_diagram_knows_every_heartbeat() -> None:
    for key, name in OF_GROUPS.items():
        assert key not in BY_KEY or BY_KEY[key].name == name
