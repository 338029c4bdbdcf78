"""Topics, groups, transactions and settings changed from a page."""

from __future__ import annotations

import pytest

from kbroker.console import groups as of_groups
from kbroker.console.cluster import Cluster, ConsoleError
from kbroker.console.groups import ago_ms, delete_group, findings, group, reset_group, time_of
from kbroker.console.topics import (
    add_partitions,
    change_setting,
    create_topic,
    delete_topic,
    empty_topic,
    topic,
    topic_groups,
    topics,
)
from kbroker.console.transactions import abort_hanging, abort_transaction, transactions
from kbroker.security.client import ClientSecurity
from kbroker.testing import Broker, broker
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, InitProducerIdRequest
from protocol.records import Record
from protocol.records.content import build_batch


@pytest.fixture(scope="module")
def cluster(shop: Broker) -> Cluster:
    return Cluster([("127.0.0.1", shop.port)], ClientSecurity())


def test_a_compacted_topic_is_made_grows_and_goes(cluster: Cluster) -> None:
    assert create_topic(cluster, "table", 2, cleanup_policy="compact", settings="segment.ms=60000")["topic"] == "table"
    found = topic(cluster, "table")
    settings = {each["name"]: each for each in found["settings"]}
    assert settings["cleanup.policy"]["value"] == "compact"
    assert settings["cleanup.policy"]["default"] == "delete"
    assert settings["segment.ms"]["documentation"]
    assert found["settings"][0]["set_here"]
    add_partitions(cluster, "table", 3)
    change_setting(cluster, "topic", "table", "segment.ms", unset=True)
    found = topic(cluster, "table")
    assert len(found["partitions"]) == 3
    with pytest.raises(ConsoleError, match="type the topic's name, table"):
        delete_topic(cluster, "table", "tables")
    delete_topic(cluster, "table", "table")
    assert "table" not in [each["name"] for each in topics(cluster, fresh=True)["topics"]]


def test_a_topic_is_emptied(cluster: Cluster, shop: Broker) -> None:
    shop.produce("full", b"a", b"b")
    cluster.described(fresh=True)
    empty_topic(cluster, "full", "full")
    assert topic(cluster, "full")["records"] == 0


def test_topics_are_told_some_at_a_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    from kbroker.console import topics as module

    monkeypatch.setattr(module, "ROWS", 2)
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        found = topics(cluster, after=after, internal=True, fresh=not seen)
        seen += [each["name"] for each in found["topics"]]
        after = found["next"]
    assert seen == sorted(cluster.described().topics)


def test_a_group_goes_to_another_offset_once_it_is_told_to(cluster: Cluster) -> None:
    shown = reset_group(cluster, "mover", "orders", "earliest")
    assert {each["after"] for each in shown["offsets"]} == {0}
    with pytest.raises(ConsoleError, match="GROUP_ID_NOT_FOUND"):
        group(cluster, "mover")
    reset_group(cluster, "mover", "orders", "earliest", dry_run=False)
    found = group(cluster, "mover")
    assert found["lag"] >= 300
    assert "has no member" in found["findings"][0]["text"]
    reset_group(cluster, "mover", "orders", "shift", "10", "1", dry_run=False)
    assert {each["partition"]: each["offset"] for each in group(cluster, "mover")["offsets"]} == {0: 0, 1: 10, 2: 0}
    reset_group(cluster, "mover", "orders", "latest", dry_run=False)
    assert group(cluster, "mover")["lag"] == 0
    reset_group(cluster, "mover", "orders", "ago", "1d", dry_run=False)
    assert group(cluster, "mover")["lag"] >= 300
    reset_group(cluster, "mover", "orders", "offset", "99999", dry_run=False)
    assert group(cluster, "mover")["lag"] == 0
    assert "mover" in [each["group"] for each in topic_groups(cluster, "orders")["groups"]]
    delete_group(cluster, "mover", "mover")
    assert "mover" not in [each["group"] for each in of_groups.groups(cluster)["groups"]]


def test_what_keeps_a_group_from_its_records_is_said() -> None:
    row = {
        "topic": "t",
        "partition": 0,
        "offset": 5,
        "start_offset": 0,
        "end_offset": 9,
        "stable_offset": 9,
        "lag": 4,
        "member": "m",
        "client": "c",
    }
    member = {"member": "m", "client": "c", "has": {"t": [0]}, "subscribed": ["t"]}
    base = {"kind": "classic", "state": "Stable", "members": [member], "offsets": [row]}

    def texts(**other: object) -> str:
        return " ".join(each["text"] for each in findings({**base, "offsets": [{**row, **other}]}))

    assert "4 records behind. c reads it" in texts()
    assert "an open transaction begins at 5" in texts(stable_offset=5)
    assert "before the log's start 7" in texts(start_offset=7)
    assert "behind the log's end 3" in texts(end_offset=3, lag=0)
    assert "has no leader" in texts(end_offset=None)
    assert "auto.offset.reset" in texts(offset=None, lag=None)
    assert "no member has this partition" in texts(member=None, client=None)
    assert "is read to its end" in texts(lag=0, offset=9)
    idle = {**member, "member": "n", "client": "idle", "has": {}}
    text = findings({**base, "members": [member, idle]})[0]["text"]
    assert "more members than partitions" in text


def test_an_open_transaction_is_aborted() -> None:
    with broker(transaction_state_log_num_partitions=1) as running:
        running.create_topic("t")
        cluster = Cluster([("127.0.0.1", running.port)], ClientSecurity())
        node = cluster.coordinator("tx", 1)
        made = cluster.ask(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000), node, 4)
        assert made.error_code == 0
        part = AddPartitionsToTxnTopic(name="t", partitions=[0])
        cluster.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="tx",
                v3_and_below_producer_id=made.producer_id,
                v3_and_below_producer_epoch=made.producer_epoch,
                v3_and_below_topics=[part],
            ),
            node,
            3,
        )
        batch = build_batch(
            [Record(0, 1, None, b"x")],
            base_offset=0,
            producer_id=made.producer_id,
            producer_epoch=made.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
        cluster.ask(ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=1000, topic_data=[data]), None, 11)
        (found,) = transactions(cluster)["transactions"]
        assert (found["id"], found["state"], found["partitions"]) == ("tx", "Ongoing", ["t-0"])
        abort_transaction(cluster, "tx")
        assert transactions(cluster)["transactions"] == []
        cluster.close()


def test_a_transaction_that_no_coordinator_knows_of_is_found_and_ended() -> None:
    with broker(transaction_state_log_num_partitions=1, transaction_partition_verification_enable=False) as running:
        running.create_topic("t")
        cluster = Cluster([("127.0.0.1", running.port)], ClientSecurity())
        node = cluster.coordinator("tx", 1)
        made = cluster.ask(InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=60_000), node, 4)
        batch = build_batch(
            [Record(0, 1, None, b"x")],
            base_offset=0,
            producer_id=made.producer_id,
            producer_epoch=made.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=bytes(batch))])
        cluster.ask(ProduceRequest(transactional_id="tx", acks=-1, timeout_ms=1000, topic_data=[data]), None, 11)
        (found,) = transactions(cluster)["hanging"]
        assert (found["topic"], found["partition"], found["start_offset"], found["blocked_records"]) == ("t", 0, 0, 1)
        with pytest.raises(ConsoleError, match="hangs in t-0 from 7 on"):
            abort_hanging(cluster, "t", 0, made.producer_id, 7)
        abort_hanging(cluster, "t", 0, made.producer_id, 0)
        assert transactions(cluster)["hanging"] == []
        cluster.close()


def test_times_as_people_write_them() -> None:
    assert time_of("1970-01-02") == 86_400_000
    assert time_of("1970-01-01T01:00+01:00") == 0
    assert (ago_ms("90m"), ago_ms("1.5h"), ago_ms("1w")) == (5_400_000, 5_400_000, 604_800_000)
    for wrong in ("", "yesterday", "1y", "-1h"):
        with pytest.raises(ConsoleError, match="is no time"):
            ago_ms(wrong)
