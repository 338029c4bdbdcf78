"""Share groups of which one broker leads the partition, and another keeps the state."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from kbroker.broker.share_partitions import LedSharePartition
from kbroker.replica.facts import RoleChanged
from protocol.errors import ErrorCode
from protocol.messages.features import FeatureUpdateKey, UpdateFeaturesRequest
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStateData,
    InitializeStatePartition,
)
from protocol.messages.share_groups import (
    AcknowledgementBatch,
    ShareAcknowledgePartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeTopic,
    ShareFetchPartition,
    ShareFetchRequest,
    ShareFetchTopic,
)
from protocol.records import Record
from protocol.records.content import parse_set
from tests.broker.test_authorizer import NoRules
from tests.controller.cluster import Cluster
from tests.requests import fetch, fetched, produce
from tests.share.ask import acquired

ACCEPT, REJECT = 1, 3
GROUPS = [f"group-{number}" for number in range(6)]


def coordinator(cluster: Cluster, group: str, topic_id: bytes) -> int:
    key = f"{group}:{base64.urlsafe_b64encode(topic_id).rstrip(b'=').decode()}:0"
    for _ in range(20):
        answer = cluster.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=[key]), 6).coordinators[0]
        if not answer.error_code:
            return int(answer.node_id)
        cluster.advance(500)
    raise AssertionError(answer)


@pytest.fixture
def cluster() -> Cluster:
    """Broker 2 leads a topic of three records."""
    cluster = Cluster(
        1,
        2,
        share_coordinator_state_topic_num_partitions="8",
        share_coordinator_state_topic_replication_factor="1",
        share_coordinator_state_topic_min_isr="1",
    )
    update = FeatureUpdateKey(feature="share.version", max_version_level=2)
    assert cluster.ask(UpdateFeaturesRequest(feature_updates=[update]), 1).error_code == 0
    assert cluster.assign("t", (2,)) == 0
    cluster.settle()
    for value in (b"a", b"b", b"c"):
        cluster.ask(produce(value), 9, 2)
    return cluster


def begin(cluster: Cluster, group: str, topic_id: bytes) -> int:
    """Have the group begin at offset 0; the broker that keeps its state."""
    keeper = coordinator(cluster, group, topic_id)
    partition = InitializeStatePartition(partition=0, state_epoch=1, start_offset=0)
    state = InitializeStateData(topic_id=topic_id, partitions=[partition])
    answer = cluster.ask(InitializeShareGroupStateRequest(group_id=group, topics=[state]), 0, keeper)
    assert answer.results[0].partitions[0].error_code == 0, answer
    return keeper


def test_state_is_kept_by_another_broker(cluster: Cluster) -> None:
    topic_id = cluster.nodes[1].plane.cache.topics["t"].topic_id
    kept_by = set()
    for group in GROUPS:
        kept_by.add(begin(cluster, group, topic_id))
        assert acquired(share_fetch(cluster, group, topic_id)) == [(0, 2, 1)]
        assert acknowledge(cluster, group, topic_id, 0, 1) == 0
    assert kept_by == {1, 2}
    cluster.restart(2)
    cluster.advance(5_000)
    for group in GROUPS:
        assert acquired(share_fetch(cluster, group, topic_id)) == [(2, 2, 1)], group


@pytest.mark.parametrize(
    ("known_after_ms", "code"), [(3_000, ErrorCode.NONE), (60_000, ErrorCode.COORDINATOR_NOT_AVAILABLE)]
)
def test_a_leader_that_the_share_coordinator_refuses_makes_it_a_matter_of_time_for_clients(
    cluster: Cluster, known_after_ms: int, code: ErrorCode
) -> None:
    topic_id = cluster.nodes[1].plane.cache.topics["t"].topic_id
    group = next(each for each in GROUPS if begin(cluster, each, topic_id) == 1)
    assert acquired(share_fetch(cluster, group, topic_id)) == [(0, 2, 1)]
    helper = cluster.nodes[1].broker.auth_helper
    helper.authorizer = NoRules()
    cluster.world.after(known_after_ms, lambda: setattr(helper, "authorizer", None))
    assert acknowledge(cluster, group, topic_id, 0, 1) == code


def test_the_dead_letter_queue_is_led_by_another_broker(cluster: Cluster) -> None:
    topic_id = begin_with_letters(cluster)
    assert acknowledge(cluster, "g", topic_id, 1, 1, REJECT) == 0
    (letter,) = letters(cluster)
    assert dict(letter.headers)[b"__dlq.errors.offset"] == b"1"


def test_dead_letters_are_left_to_the_leader_that_has_taken_over(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds them in the state; the old one cannot read the records any more, and would send a second, empty one."""
    topic_id = begin_with_letters(cluster)
    share = cluster.nodes[2].broker.share_partitions
    written = share._written

    def after_another_leads(led: LedSharePartition, result: Any, now_ms: int) -> None:
        share.handlers[RoleChanged](RoleChanged(led.partition, led.leader_epoch + 1, is_leader=False), now_ms)
        written(led, result, now_ms)

    monkeypatch.setattr(share, "_written", after_another_leads)
    assert acknowledge(cluster, "g", topic_id, 1, 1, REJECT) == 0
    assert letters(cluster) == []


def begin_with_letters(cluster: Cluster) -> bytes:
    """Have a member of group g hold all records; broker 1 leads the group's dead letter queue. Returns the topic id."""
    topic_id: bytes = cluster.nodes[1].plane.cache.topics["t"].topic_id
    assert cluster.assign("dlq.t", (1,)) == 0
    cluster.settle()
    cluster.nodes[1].configs.set_topic("dlq.t", {"errors.deadletterqueue.group.enable": "true"})
    cluster.nodes[2].configs.set_group("g", {"errors.deadletterqueue.topic.name": "dlq.t"})
    begin(cluster, "g", topic_id)
    assert acquired(share_fetch(cluster, "g", topic_id)) == [(0, 2, 1)]
    return topic_id


def letters(cluster: Cluster) -> list[Record]:
    """What has come to the dead letter queue in half a second."""
    cluster.advance(500)
    part = fetched(cluster.ask(fetch(topic="dlq.t"), 12, 1))[0]
    return [record for _, records in parse_set(bytes(part.records)) for record in records]


def share_fetch(cluster: Cluster, group: str, topic_id: bytes) -> Any:
    request = ShareFetchRequest(
        group_id=group,
        member_id="m",
        share_session_epoch=0,
        max_wait_ms=3_000,
        min_bytes=1,
        max_bytes=1 << 20,
        max_records=500,
        batch_size=500,
        share_acquire_mode=0,
        is_renew_ack=False,
        topics=[
            ShareFetchTopic(
                topic_id=topic_id, partitions=[ShareFetchPartition(partition_index=0, acknowledgement_batches=[])]
            )
        ],
        forgotten_topics_data=[],
    )
    return cluster.ask(request, 2, 2)


def acknowledge(cluster: Cluster, group: str, topic_id: bytes, first: int, last: int, what: int = ACCEPT) -> int:
    batch = AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[what])
    request = ShareAcknowledgeRequest(
        group_id=group,
        member_id="m",
        share_session_epoch=1,
        topics=[
            ShareAcknowledgeTopic(
                topic_id=topic_id,
                partitions=[ShareAcknowledgePartition(partition_index=0, acknowledgement_batches=[batch])],
            )
        ],
    )
    answer = cluster.ask(request, 2, 2)
    return int(answer.error_code or answer.responses[0].partitions[0].error_code)
