"""What a test asks of its broker: topics, records, groups, a clean slate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from kbroker.testing import Broker, UsageError, _helpers, broker
from kbroker.testing._client import Connections
from kbroker.testing._groups import Group
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
)
from protocol.messages.groups import FindCoordinatorRequest, JoinGroupRequest, JoinGroupRequestProtocol
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.processes import within


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with broker() as b:
        yield b


@pytest.fixture
def b(running: Broker) -> Iterator[Broker]:
    yield running
    running.reset()


def consume(b: Broker, topic: str, group: str, count: int) -> None:
    """Read so many records as a member of a group, and commit."""
    consumer = KafkaConsumer(
        topic, bootstrap_servers=b.bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    read = 0
    while read < count:
        read += sum(map(len, consumer.poll(timeout_ms=1000, max_records=count - read).values()))
    consumer.commit()
    consumer.close()


def test_records_that_a_client_produced_are_read_with_all_they_have(b: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=b.bootstrap)
    producer.send("orders", b"v", key=b"k", headers=[("h", b"x")], timestamp_ms=1_000).get(10)
    producer.close()
    assert b.records("orders") == [("orders", 0, 0, 1_000, b"k", b"v", (("h", b"x"),))]


def test_headers_are_given_as_a_dict_or_as_pairs(b: Broker) -> None:
    b.produce("orders", b"v", headers={"a": b"1", "b": "2"})
    b.produce("orders", b"v", headers=[("a", b"1"), ("a", None)])
    assert [each.headers for each in b.records("orders")] == [
        (("a", b"1"), ("b", b"2")),
        (("a", b"1"), ("a", None)),
    ]


def test_records_that_the_test_produced_are_read_by_a_client(b: Broker) -> None:
    b.produce("orders", "one", "two", key="k")
    consumer = KafkaConsumer(bootstrap_servers=b.bootstrap, consumer_timeout_ms=2000)
    consumer.assign([TopicPartition("orders", 0)])
    consumer.seek(TopicPartition("orders", 0), 0)
    assert [(record.key, record.value) for _, record in zip(range(2), consumer, strict=False)] == [
        (b"k", b"one"),
        (b"k", b"two"),
    ]
    consumer.close()


def test_produce_tells_the_offsets(b: Broker) -> None:
    b.produce("orders", b"a")
    assert b.produce("orders", b"b", b"c") == [1, 2]


def test_topics_are_those_of_clients_with_their_partitions(b: Broker) -> None:
    b.create_topic("orders", partitions=3)
    b.create_topic("bills", retention_ms=1000)
    assert b.topics() == {"orders": 3, "bills": 1}


def test_records_come_by_partition_and_of_one_alone_if_asked(b: Broker) -> None:
    b.create_topic("orders", partitions=2)
    b.produce("orders", b"b", partition=1)
    b.produce("orders", b"a", partition=0)
    assert [each.value for each in b.records("orders")] == [b"a", b"b"]
    assert [each.value for each in b.records("orders", 1)] == [b"b"]


def test_more_records_than_one_fetch_holds_are_all_read(b: Broker) -> None:
    for _ in range(12):
        b.produce("big", b"x" * 900_000)
    assert [each.offset for each in b.records("big")] == list(range(12))


def test_all_records_are_read_right_after_a_restart() -> None:
    """The disk has to be asked where they are, segment by segment."""
    with broker() as b:
        b.create_topic("orders", segment_bytes=20_000)
        for _ in range(60):
            b.produce("orders", b"x" * 1000)
        b.restart()
        assert [each.offset for each in b.records("orders")] == list(range(60))


def test_a_group_is_waited_for_until_it_has_caught_up(b: Broker) -> None:
    b.produce("orders", *[b"x"] * 5)
    consume(b, "orders", "billing", 5)
    group = b.wait_for_group("billing", lag=0)
    assert (group.committed, group.members) == ({("orders", 0): 5}, ())


def test_a_lag_is_what_was_not_committed(b: Broker) -> None:
    b.produce("orders", *[b"x"] * 5)
    consume(b, "orders", "billing", 3)
    b.assert_lag("billing", 2)
    assert b.lag("billing", "orders") == 2


def test_a_topic_that_there_is_not_has_no_lag(b: Broker) -> None:
    b.produce("orders", b"x")
    consume(b, "orders", "billing", 1)
    with pytest.raises(UsageError, match="there is no topic 'order': there are orders"):
        b.assert_lag("billing", 0, "order")


@pytest.mark.parametrize("ask", [lambda b: b.lag("billing"), lambda b: b.groups()["billing"].committed[("orders", 0)]])
def test_a_group_whose_coordinator_is_loading_is_waited_for(
    b: Broker, monkeypatch: pytest.MonkeyPatch, ask: Callable[[Broker], int]
) -> None:
    def load(is_loading: bool) -> None:
        (shard,) = b.call(lambda node: node.broker.group_runtime.shards.values())
        b.call(lambda _: setattr(shard, "loading", is_loading))

    def looks(_: float) -> Iterator[None]:
        yield
        load(False)
        yield

    b.produce("orders", b"1", b"2")
    consume(b, "orders", "billing", 1)
    load(True)
    monkeypatch.setattr(_helpers, "looks", looks)
    assert ask(b) == 1


def test_a_lag_that_is_another_is_told(b: Broker) -> None:
    b.produce("orders", *[b"x"] * 5)
    consume(b, "orders", "billing", 3)
    with pytest.raises(AssertionError, match="group billing has a lag of 2, not 0"):
        b.assert_lag("billing", 0)
    with pytest.raises(AssertionError, match=r"billing is Empty with 0 members and a lag of 2 after 0\.01 s"):
        b.wait_for_group("billing", lag=0, timeout=0.01)


def test_a_reset_drops_topics_and_groups_and_gives_their_names_back(b: Broker) -> None:
    b.produce("orders", b"old")
    consume(b, "orders", "billing", 1)
    b.reset()
    assert (b.topics(), b.groups(), b.requests()) == ({}, {}, [])
    assert b.produce("orders", b"new") == [0]
    assert [each.value for each in b.records("orders")] == [b"new"]


def test_after_a_reset_clients_that_never_look_again_find_their_coordinators(b: Broker) -> None:
    """As kafka-python's admin client, which keeps what it was once told."""
    with Connections(b.bootstrap) as all_of_them:
        connection = all_of_them.any()

        def coordinated() -> list[int]:
            id_wanted = InitProducerIdRequest(transactional_id="shop", transaction_timeout_ms=1000)
            offsets = connection.ask(OffsetFetchRequest(group_id="billing", topics=None), 5)
            return [offsets.error_code, connection.ask(id_wanted, 3).error_code]

        for key_type in (0, 1):
            for _ in within(10):
                if not connection.ask(FindCoordinatorRequest(key="any", key_type=key_type), 2).error_code:
                    break
        for _ in range(2):
            b.reset()
            for _ in within(10):
                if coordinated() == [0, 0]:
                    break
    assert b.topics() == {}


def commit(b: Broker) -> None:
    with Connections(b.bootstrap) as all_of_them:
        offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=None)
        topic = OffsetCommitRequestTopic(name="orders", partitions=[offset])
        asked = OffsetCommitRequest(
            group_id="billing", generation_id_or_member_epoch=-1, member_id="", topics=[topic], retention_time_ms=-1
        )
        for _ in within(10):
            all_of_them.any().ask(FindCoordinatorRequest(key="billing"), 0)
            if not all_of_them.any().ask(asked, 4).topics[0].partitions[0].error_code:
                break
    assert list(b.groups()) == ["billing"]


def begin_transactions(b: Broker) -> tuple[int, int]:
    """The producer id and epoch of one who may."""
    asked = InitProducerIdRequest(transactional_id="shop", transaction_timeout_ms=1000)
    with Connections(b.bootstrap) as all_of_them:
        for _ in within(10):
            all_of_them.any().ask(FindCoordinatorRequest(key="shop", key_type=1), 1)
            answer = all_of_them.any().ask(asked, 3)
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
    raise AssertionError(answer)


def commit_in_a_transaction(b: Broker) -> None:
    """As `commit`, and the transaction never ends."""
    commit(b)
    producer_id, epoch = begin_transactions(b)
    ids: dict[str, Any] = {"transactional_id": "shop", "producer_id": producer_id, "producer_epoch": epoch}
    offset = TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=2, committed_metadata=None)
    topic = TxnOffsetCommitRequestTopic(name="orders", partitions=[offset])
    with Connections(b.bootstrap) as all_of_them:
        assert all_of_them.any().ask(AddOffsetsToTxnRequest(group_id="billing", **ids), 2).error_code == 0
        answer = all_of_them.any().ask(TxnOffsetCommitRequest(group_id="billing", topics=[topic], **ids), 2)
    assert answer.topics[0].partitions[0].error_code == 0


def join(b: Broker) -> None:
    """Two members, one of them static, neither of which will ever leave."""
    commit(b)
    with Connections(b.bootstrap) as all_of_them:
        for group, instance in (("billing", None), ("shipping", "first")):
            asked = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="",
                group_instance_id=instance,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
            )
            assert all_of_them.any().ask(asked, 3 if instance is None else 5).error_code == 0
    assert len(b.groups()["billing"].members) == len(b.groups()["shipping"].members) == 1


@pytest.mark.parametrize("use", [commit, commit_in_a_transaction, join])
def test_a_reset_forgets_groups_whatever_they_are_at(b: Broker, use: Callable[[Broker], None]) -> None:
    b.produce("orders", b"x")
    use(b)
    b.reset()
    assert b.groups() == {}
    b.produce("orders", b"x")
    commit(b)
    assert b.groups()["billing"] == Group("billing", "Empty", (), {("orders", 0): 1})


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (commit, "__consumer_offsets"),
        (join, "__consumer_offsets"),
        (begin_transactions, "__transaction_state"),
    ],
)
def test_a_coordinator_forgets_without_its_topic_being_made_again(
    b: Broker, use: Callable[[Broker], object], name: str
) -> None:
    """Which costs more than all the rest of a reset."""

    def id_of_the_topic() -> bytes:
        with Connections(b.bootstrap) as all_of_them:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
            (topic,) = all_of_them.any().ask(asked, 10).topics
            assert topic.error_code == 0
            return bytes(topic.topic_id)

    b.produce("orders", b"x")
    use(b)
    before = id_of_the_topic()
    b.reset()
    assert id_of_the_topic() == before


def test_a_reset_forgets_transactional_ids(b: Broker) -> None:
    begin_transactions(b)
    b.reset()
    b.restart()  # nor does anything come back from the log
    with Connections(b.bootstrap) as all_of_them:
        for _ in within(10):
            listed = all_of_them.any().ask(ListTransactionsRequest(state_filters=[], producer_id_filters=[]), 0)
            if not listed.error_code:
                break
    assert (listed.error_code, listed.transaction_states) == (0, [])


@pytest.mark.parametrize("use", [lambda b: None, commit, join, begin_transactions])
def test_a_reset_takes_no_longer_than_a_test_minds(b: Broker, use: Callable[[Broker], object]) -> None:
    """In time of the processor, of all threads: others may keep this one waiting."""
    took: list[float] = []
    while len(took) < 50 and min(took, default=1.0) >= 0.010:
        b.produce("orders", b"x")
        use(b)
        begun = time.process_time()
        b.reset()
        took.append(time.process_time() - begun)
    assert min(took) < 0.010


def test_waiting_for_records_gives_up_with_what_there_is(b: Broker) -> None:
    b.produce("orders", b"x")
    assert len(b.wait_for_records("orders", 1)) == 1
    with pytest.raises(AssertionError, match=r"topic orders has 1 records after 0\.01 s, not 2"):
        b.wait_for_records("orders", 2, timeout=0.01)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda b: b.records("nope"), "there is no topic 'nope': there are none"),
        (lambda b: b.lag("nope"), "there is no group 'nope': there are none"),
        (lambda b: b.produce("t"), 'write produce("t", b"...")'),
        (lambda b: b.wait_for_group("g"), 'wait_for_group("g", lag=0)'),
        (lambda b: b.create_topic("a b"), "cannot make topic 'a b'"),
        (lambda b: (b.create_topic("t"), b.produce("t", b"x", partition=7)), "no partition t-7: t has 1"),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_line(b: Broker, ask, told: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError) as error:
        ask(b)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_records_of_an_old_format_are_a_line_of_the_report() -> None:
    with broker(inter_broker_protocol_version="2.8", log_message_format_version="0.10.2") as b:
        b.create_topic("old")
        producer = KafkaProducer(bootstrap_servers=b.bootstrap, enable_idempotence=False)
        producer.send("old", b"x").get(10)
        producer.close()
        with pytest.raises(UsageError, match=r"old-0 cannot be read: .* a message of format v1, not a batch"):
            b.records("old")
        assert "  old: old-0 cannot be read: " in b.report()


def test_a_question_to_a_stopped_broker_says_to_start_it() -> None:
    with broker() as b:
        b.stop()
        with pytest.raises(UsageError, match=r"is it stopped\? Call start"):
            b.topics()
