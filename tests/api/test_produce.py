"""Produce: each partition by itself, by acks, in every version."""

from __future__ import annotations

import pytest

from kbroker.core import EXPIRED
from protocol.errors import ErrorCode
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import Record
from protocol.records.content import build_batch
from tests.requests import batch, fetch, fetched, produce, produced
from tests.world import Client, World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t", partitions=2)
    return world


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_appends_and_tells_the_offset(world: World, client: Client, version: int) -> None:
    client.ask(produce(b"a", b"b"), 9)
    request = produce(b"c", topic="t" if version < 13 else "", topic_id=world.topic_id("t"))
    answer = produced(client.ask(request, version))
    assert (answer.error_code, answer.base_offset) == (0, 2)


@pytest.mark.parametrize("acks", [1, -1])
def test_alone_in_sync_the_leader_answers_at_once(client: Client, acks: int) -> None:
    assert produced(client.ask(produce(b"v", acks=acks), 9)).base_offset == 0


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused_for_every_partition(world: World, client: Client, acks: int) -> None:
    answer = produced(client.ask(produce(b"v", acks=acks), 9))
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert world.partition("t").log.log_end_offset == 0  # type: ignore[union-attr]


def test_one_partition_fails_and_the_other_does_not(client: Client) -> None:
    data = [PartitionProduceData(index=index, records=batch(b"v")) for index in (0, 7, 1)]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    answers = client.ask(request, 9).responses[0].partition_responses
    assert [(each.index, each.error_code) for each in answers] == [
        (0, 0),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (1, 0),
    ]


def test_an_unknown_topic_id_is_told_so(client: Client) -> None:
    request = produce(b"v", topic="", topic_id=bytes(range(16)))
    assert produced(client.ask(request, 13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_the_id_of_a_topic_is_not_that_of_its_successor_of_the_same_name(world: World, client: Client) -> None:
    world.partition("t").topic_id = bytes(range(16))  # LeaderAndIsr has come, UpdateMetadata has not
    request = produce(b"v", topic="", topic_id=world.topic_id("t"))
    assert produced(client.ask(request, 13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert world.partition("t").log.size == 0  # type: ignore[union-attr]


def test_a_partition_without_records_is_refused(client: Client) -> None:
    data = [PartitionProduceData(index=0, records=None)]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    assert produced(client.ask(request, 9)).error_code == ErrorCode.INVALID_RECORD


def test_a_damaged_batch_is_refused_and_not_written(world: World, client: Client) -> None:
    damaged = bytearray(batch(b"value"))
    damaged[-2] ^= 1
    answer = produced(client.ask(produce(records=bytes(damaged)), 9))
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert world.partition("t").log.size == 0  # type: ignore[union-attr]


def test_a_batch_over_max_message_bytes_is_refused(world: World, client: Client) -> None:
    world.create("small", max_message_bytes="100")
    answer = produced(client.ask(produce(b"v" * 100, topic="small"), 9))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(("version", "named"), [(7, []), (8, [1, 2]), (9, [1, 2])])
def test_every_refused_record_is_named(world: World, client: Client, version: int, named: list[int]) -> None:
    world.create("dated", message_timestamp_after_max_ms="1000")
    now_ms = world.clock.wall_ms()
    records = batch(b"a", b"b", b"c", timestamps=(now_ms, now_ms + 5000, now_ms + 5001))
    answer = produced(client.ask(produce(records=records, topic="dated"), version))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in answer.record_errors] == named


def test_a_request_names_so_many_records_and_the_first_of_each_batch(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbroker.api.produce.NAMED_RECORDS", 3)
    world.create("keyed", partitions=3, cleanup_policy="compact")
    request = produce(b"a", b"b", topic="keyed")
    parts = [PartitionProduceData(index=index, records=batch(b"a", b"b")) for index in range(3)]
    request.topic_data[0].partition_data = parts
    answers = client.ask(request, 9).responses[0].partition_responses
    named = [[each.batch_index for each in answer.record_errors] for answer in answers]
    assert named == [[0, 1], [0], [0]]


def test_what_a_refused_record_is_told_are_the_words_that_scripts_know(world: World, client: Client) -> None:
    world.create("keyed", cleanup_policy="compact")
    answer = produced(client.ask(produce(b"a", b"b", topic="keyed"), 9))
    assert answer.error_message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing the first three "
        "errors at most: [RecordError(batchIndex=0, message='Compacted topic cannot accept message without key'), "
        "RecordError(batchIndex=1, message='Compacted topic cannot accept message without key')]"
    )


def test_messages_of_the_old_formats_are_no_batch(client: Client) -> None:
    records = bytearray(100)
    records[8:12], records[16], records[22] = (88).to_bytes(4, "big"), 1, 0x10
    assert produced(client.ask(produce(records=bytes(records)), 9)).error_code == ErrorCode.INVALID_RECORD


def test_a_batch_of_a_transaction_without_an_id_is_refused_and_not_written(world: World, client: Client) -> None:
    records = build_batch(
        [Record(0, 0, None, b"v")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    assert (
        produced(client.ask(produce(records=bytes(records)), 9)).error_code
        == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )
    assert world.partition("t").log.size == 0  # type: ignore[union-attr]


@pytest.mark.parametrize(("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, ErrorCode.NONE)])
def test_zstd_is_not_for_producers_from_before_it(client: Client, version: int, code: ErrorCode) -> None:
    assert produced(client.ask(produce(records=batch(b"v", codec_id=4)), version)).error_code == code


def test_an_idempotent_batch_sent_twice_is_answered_twice_and_kept_once(world: World, client: Client) -> None:
    records = batch(b"a", b"b", producer=(7, 0, 0))
    first = produced(client.ask(produce(records=records, acks=-1), 9))
    again = produced(client.ask(produce(records=records, acks=-1), 9))
    assert (first.base_offset, again.base_offset, again.error_code) == (0, 0, 0)
    assert world.partition("t").log.log_end_offset == 2  # type: ignore[union-attr]


def test_a_gap_in_a_producers_sequence_is_refused(client: Client) -> None:
    client.ask(produce(records=batch(b"a", producer=(7, 0, 0))), 9)
    answer = produced(client.ask(produce(records=batch(b"c", producer=(7, 0, 2))), 9))
    assert answer.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(
    ("records", "code", "told"),
    [
        pytest.param(batch(b"c", producer=(7, 0, 9)), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 1, id="gap"),
        pytest.param(batch(b"v" * 2000), ErrorCode.MESSAGE_TOO_LARGE, -1, id="large"),
        pytest.param(batch(b"v")[:-2] + b"??", ErrorCode.CORRUPT_MESSAGE, -1, id="damaged"),
    ],
)
def test_a_refusal_tells_the_log_start_unless_the_batch_cannot_be_taken_at_all(
    world: World, client: Client, records: bytes, code: int, told: int
) -> None:
    world.create("cut", max_message_bytes="1000")
    client.ask(produce(records=batch(b"a", b"b", producer=(7, 0, 0)), topic="cut"), 9)
    world.partition("cut").delete_records(1)
    answer = produced(client.ask(produce(records=records, topic="cut"), 9))
    assert (answer.error_code, answer.log_start_offset) == (code, told)


def test_acks_all_needs_min_insync_replicas(world: World, client: Client) -> None:
    world.create("safe", min_insync_replicas="2")
    world.partition("safe").replicas = (1, 2)  # and the other one is not in sync
    assert produced(client.ask(produce(b"v", topic="safe", acks=1), 9)).error_code == 0
    answer = produced(client.ask(produce(b"v", topic="safe", acks=-1), 9))
    assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_min_insync_replicas_asks_for_no_more_replicas_than_there_are(world: World, client: Client) -> None:
    world.create("safe", min_insync_replicas="2")
    assert produced(client.ask(produce(b"v", topic="safe", acks=-1), 9)).error_code == 0


def test_log_append_time_is_the_brokers_clock(world: World, client: Client) -> None:
    world.create("stamped", message_timestamp_type="LogAppendTime")
    answer = produced(client.ask(produce(b"v", topic="stamped"), 9))
    assert answer.log_append_time_ms == world.clock.wall_ms()


def test_clients_may_not_write_to_internal_topics(world: World, client: Client) -> None:
    client.ask(FindCoordinatorRequest(key="group"), 3)
    answer = produced(client.ask(produce(b"v", topic="__consumer_offsets"), 9))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("codec_id", range(5))
def test_batches_of_every_codec_come_back_as_they_were(client: Client, codec_id: int) -> None:
    records = batch(b"v" * 1000, b"w" * 1000, codec_id=codec_id)
    client.ask(produce(records=records), 9)
    back = bytes(fetched(client.ask(fetch(), 12))[0].records)
    assert (back[21:], len(back)) == (records[21:], len(records))  # all but offset and epoch in front


def test_a_follower_refuses_and_hangs_up_where_nobody_waits(world: World, client: Client) -> None:
    world.partition("t").is_leader = False
    assert produced(client.ask(produce(b"v"), 9)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    client.send(produce(b"v", acks=0), 9)
    assert client.closing


# ---- acks=all with another replica in sync


@pytest.fixture
def slow(world: World) -> World:
    """A world where broker 2 is said to be in sync and never fetches."""
    world.partition("t").isr = (1, 2)
    return world


def test_acks_all_waits_for_the_others_and_times_out(slow: World, client: Client) -> None:
    number = client.send(produce(b"v", acks=-1, timeout_ms=300), 9)
    slow.advance(299)
    assert client.look() == {}
    slow.advance(1)
    answer = produced(client.look()[number])
    assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    assert slow.partition("t").log.log_end_offset == 1  # type: ignore[union-attr]


def test_acks_all_is_answered_when_the_high_watermark_has_passed(slow: World, client: Client) -> None:
    number = client.send(produce(b"v", acks=-1, timeout_ms=300), 9)
    partition = slow.partition("t")
    partition.isr = (1,)
    assert partition.advance_high_watermark()
    slow.replicas.touched.append(partition)
    slow.core.step(EXPIRED, slow.clock.now_ms())
    assert produced(client.look()[number]).base_offset == 0


def test_who_waits_hears_when_the_leader_is_another(slow: World, client: Client) -> None:
    number = client.send(produce(b"v", acks=-1, timeout_ms=300), 9)
    partition = slow.partition("t")
    partition.is_leader = False
    slow.replicas.touched.append(partition)
    slow.core.step(EXPIRED, slow.clock.now_ms())
    assert produced(client.look()[number]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
