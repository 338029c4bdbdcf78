"""Clients from before v2 batches: Produce 0-2 and Fetch 0-3, whatever the log has."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from kbroker.core import Closed
from kbroker.log.down_convert import DownConvertJob
from kbroker.log.errors import UnforeseenError
from kbroker.log.producer_state import Origin
from protocol.errors import ErrorCode
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.records import Record, legacy
from protocol.records.content import build_batch, parse_set
from protocol.records.control_records import ControlType, EndTransactionMarker, build_marker_batch
from tests.requests import batch, fetch, fetched, list_offsets, produce, produced
from tests.world import Client, World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t", partitions=3)
    return world


def old_set(*values: bytes, magic: int = 1, codec_id: int = 0, timestamp: int = 1000) -> bytes:
    records = [Record(offset, timestamp + offset, b"k", value) for offset, value in enumerate(values)]
    return bytes(legacy.build_set(records, magic, codec_id=codec_id))


def large(codec_id: int = 1) -> bytes:
    """Too large, or compressed, to be prepared in the loop."""
    return old_set(b"a" * 3000, b"b" * 3000, codec_id=codec_id)


def in_log(world: World, topic: str = "t", index: int = 0) -> list[Record]:
    log = world.partition(topic, index).log
    assert log is not None
    region = log.read(0, 1 << 20, log.log_end_offset).region
    return [] if region is None else [record for _, records in parse_set(region.read()) for record in records]


def values(records: Sequence[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def messages(answer: Any, index: int = 0) -> list[legacy.Message]:
    return list(legacy.scan(bytes(fetched(answer)[index].records)))


def read(answer: Any, index: int = 0) -> list[Record]:
    part = fetched(answer)[index]
    assert part.error_code == 0
    return legacy.parse_set(bytes(part.records))


# ---- produce


@pytest.mark.parametrize("codec_id", range(4))
@pytest.mark.parametrize("version", range(3))
def test_a_set_becomes_a_batch_with_the_next_offsets(world: World, client: Client, version: int, codec_id: int) -> None:
    client.ask(produce(b"x"), 9)
    sent = old_set(b"a", b"b", magic=version // 2, codec_id=codec_id)
    answer = produced(client.ask(produce(records=sent), version))
    records = in_log(world)
    assert (answer.error_code, answer.base_offset, values(records)) == (0, 1, [b"x", b"a", b"b"])
    assert [record.timestamp for record in records[1:]] == ([1000, 1001] if version == 2 else [-1, -1])


def test_a_new_batch_in_an_old_request_is_taken_too(world: World, client: Client) -> None:
    assert produced(client.ask(produce(b"a"), 2)).error_code == 0
    assert values(in_log(world)) == [b"a"]


def test_an_old_set_in_a_new_request_is_refused(world: World, client: Client) -> None:
    answer = produced(client.ask(produce(records=old_set(b"a")), 3))
    assert (answer.error_code, in_log(world)) == (ErrorCode.INVALID_RECORD, [])


@pytest.mark.parametrize("version", [0, 2, 3, 6, 9])
def test_a_client_that_knows_no_zstd_may_write_to_a_topic_that_keeps_zstd(
    world: World, client: Client, version: int
) -> None:
    world.create("packed", compression_type="zstd")
    sent = old_set(b"a", b"b", magic=version // 2) if version < 3 else batch(b"a", b"b")
    answer = produced(client.ask(produce(records=sent, topic="packed"), version))
    assert (answer.error_code, values(in_log(world, "packed"))) == (0, [b"a", b"b"])


def test_the_append_time_is_told(world: World, client: Client) -> None:
    world.create("stamped", message_timestamp_type="LogAppendTime")
    answer = produced(client.ask(produce(records=old_set(b"a"), topic="stamped"), 2))
    assert answer.log_append_time_ms == world.clock.wall_ms()
    assert in_log(world, "stamped")[0].timestamp == world.clock.wall_ms()


@pytest.mark.parametrize("damage", [0, 2])
def test_a_broken_set_is_refused_and_nothing_written(world: World, client: Client, damage: int) -> None:
    sent = bytearray(large(codec_id=damage))
    sent[-1] ^= 1
    answer = produced(client.ask(produce(records=bytes(sent)), 2))
    assert (answer.error_code, answer.base_offset, in_log(world)) == (ErrorCode.CORRUPT_MESSAGE, -1, [])


@pytest.mark.parametrize("size", [0, 1, 16, 22, 23, 30])
def test_no_whole_message_is_no_error(client: Client, size: int) -> None:
    answer = produced(client.ask(produce(records=old_set(b"a")[:size]), 2))
    assert (answer.error_code, answer.base_offset) == (0, -1)


def test_records_may_be_null_in_no_version(client: Client) -> None:
    data = [PartitionProduceData(index=0, records=None)]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    assert produced(client.ask(request, 2)).error_code == ErrorCode.INVALID_RECORD


def test_partitions_succeed_and_fail_each_by_itself(world: World, client: Client) -> None:
    broken = bytearray(large())
    broken[20] ^= 1
    sent = [(0, large()), (1, bytes(broken)), (2, batch(b"new")), (9, large())]
    data = [PartitionProduceData(index=index, records=records) for index, records in sent]
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[TopicProduceData(name="t", partition_data=data)])
    answers = client.ask(request, 2).responses[0].partition_responses
    assert [(each.index, each.error_code, each.base_offset) for each in answers] == [
        (0, 0, 0),
        (1, ErrorCode.CORRUPT_MESSAGE, -1),
        (2, 0, 0),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
    ]


def test_all_acks_wait_for_the_followers(world: World, client: Client) -> None:
    partition = world.partition("t")
    partition.isr = (partition.broker_id, 2)
    number = client.send(produce(records=large(), acks=-1, timeout_ms=500), 2)
    assert client.look() == {}
    world.advance(600)
    assert produced(client.look()[number]).error_code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(("records", "hung_up"), [(large(), False), (large()[:-1] + b"x", True)])
def test_without_acks_there_is_no_answer_and_a_failure_hangs_up(
    world: World, client: Client, records: bytes, hung_up: bool
) -> None:
    client.send(produce(records=records, acks=0), 2)
    assert (client.look(), bool(client.closing)) == ({}, hung_up)
    assert len(in_log(world)) == (0 if hung_up else 2)


def test_what_takes_long_is_prepared_beside_the_loop(world: World, client: Client) -> None:
    world.disk_is_busy = True
    first = client.start(produce(records=large()), 2)
    assert produced(world.client().ask(produce(b"quick"), 9)).base_offset == 0
    world.disk_is_busy = False
    world.settle()
    assert produced(client.look()[first]).base_offset == 1


def test_a_connections_next_request_waits_until_its_records_are_in(world: World, client: Client) -> None:
    world.disk_is_busy = True
    client.start(produce(records=large()), 2)
    assert client.channel.full
    world.disk_is_busy = False
    world.settle()
    assert not client.channel.full


def test_a_connection_that_only_waits_for_acks_goes_on(world: World, client: Client) -> None:
    partition = world.partition("t")
    partition.isr = (partition.broker_id, 2)
    client.send(produce(records=large(), acks=-1), 2)
    assert (client.channel.busy, client.channel.full) == (True, False)


def test_records_are_kept_although_their_sender_has_gone(world: World, client: Client) -> None:
    world.disk_is_busy = True
    client.start(produce(records=large(), acks=0), 2)
    world.core.step(Closed(client.channel), world.clock.now_ms())
    world.disk_is_busy = False
    world.settle()
    assert len(in_log(world)) == 2


def test_a_partition_that_is_deleted_meanwhile_gets_nothing(world: World, client: Client) -> None:
    world.disk_is_busy = True
    number = client.start(produce(records=large()), 2)
    world.replicas.stop("t", 0, delete=False)
    world.disk_is_busy = False
    world.settle()
    assert produced(client.look()[number]).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_settings_that_change_meanwhile_count(world: World, client: Client) -> None:
    world.disk_is_busy = True
    number = client.start(produce(records=large()), 2)
    log = world.partition("t").log
    assert log is not None
    log.config = log.config._replace(max_message_bytes=10)
    world.disk_is_busy = False
    world.settle()
    assert produced(client.look()[number]).error_code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("values_sent", [[b"small"], [b"l" * 9000]])
def test_compression_type_is_what_the_log_has(world: World, client: Client, values_sent: list[bytes]) -> None:
    world.create("packed", compression_type="gzip")
    assert produced(client.ask(produce(*values_sent, topic="packed"), 9)).error_code == 0
    log = world.partition("packed").log
    assert log is not None
    region = log.read(0, 1 << 20, 1).region
    assert region is not None
    ((header, records),) = parse_set(region.read())
    assert (header.codec_id, values(records)) == (1, values_sent)


def test_an_idempotent_batch_that_is_recompressed_is_kept_once(world: World, client: Client) -> None:
    world.create("packed", compression_type="zstd")
    sent = batch(b"a" * 9000, producer=(7, 0, 0))
    for _ in range(2):
        assert produced(client.ask(produce(records=sent, topic="packed"), 9)).base_offset == 0
    assert len(in_log(world, "packed")) == 1


# ---- fetch


@pytest.mark.parametrize("codec_id", range(4))
@pytest.mark.parametrize("version", range(4))
def test_new_batches_are_given_as_old_messages(client: Client, version: int, codec_id: int) -> None:
    client.ask(produce(records=batch(b"a", b"b", timestamps=(5, 6), codec_id=codec_id)), 9)
    answer = client.ask(fetch(), version)
    assert {message.magic for message in messages(answer)} == {version // 2}
    assert [(record.offset, record.timestamp, record.value) for record in read(answer)] == [
        (0, 5 if version > 1 else -1, b"a"),
        (1, 6 if version > 1 else -1, b"b"),
    ]
    assert fetched(answer)[0].high_watermark == 2


def test_what_old_clients_wrote_they_read(client: Client) -> None:
    client.ask(produce(records=large()), 2)
    assert values(read(client.ask(fetch(), 2))) == [b"a" * 3000, b"b" * 3000]


def test_a_fetch_at_the_end_gets_nothing_and_waits_for_more(world: World, client: Client) -> None:
    number = client.send(fetch(max_wait_ms=1000), 2)
    assert client.look() == {}
    world.client().ask(produce(b"a"), 9)
    assert values(read(client.look()[number])) == [b"a"]


def test_a_fetch_whose_time_is_up_gets_what_there_is(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    number = client.send(fetch(max_wait_ms=100, min_bytes=10_000), 2)
    assert number not in client.look()
    world.advance(200)
    assert values(read(client.look()[number])) == [b"a"]


def test_answers_keep_their_order(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    world.disk_is_busy = True
    first = client.start(fetch(), 2)
    second = client.start(fetch(offset=5), 9)
    assert not {first, second} & set(client.look())
    world.disk_is_busy = False
    world.settle()
    client.look()
    assert client.order[-2:] == [first, second]


def test_records_before_the_offset_are_left_out_of_a_plain_batch(client: Client) -> None:
    client.ask(produce(b"a", b"b", b"c"), 9)
    assert values(read(client.ask(fetch(1), 2))) == [b"b", b"c"]


@pytest.mark.parametrize(("version", "size"), [(0, 12), (2, 12), (3, 0)])
def test_a_first_message_that_is_too_large_is_hinted_at(client: Client, version: int, size: int) -> None:
    client.ask(produce(b"a" * 5000, b"b"), 9)
    part = fetched(client.ask(fetch(indices=(1, 0) if version == 3 else (0,), partition_max_bytes=100), version))[0]
    if version == 3:  # the first of all comes whole
        assert legacy.parse_set(bytes(part.records))
    else:
        assert (part.error_code, len(part.records)) == (0, size)


def test_the_hint_is_no_longer_than_what_the_client_allows(client: Client) -> None:
    client.ask(produce(b"a" * 5000), 9)
    assert len(fetched(client.ask(fetch(partition_max_bytes=5), 2))[0].records) == 5


def test_an_end_of_the_log_is_no_large_message(client: Client) -> None:
    client.ask(produce(b"a"), 9)
    assert fetched(client.ask(fetch(1), 2))[0].records == b""


def test_what_compaction_left_of_the_end_of_a_segment_is_no_large_message(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    log = world.partition("t").log
    assert log is not None
    log.log_end_offset = log.high_watermark = 5  # of what stood before, nothing is left
    assert fetched(client.ask(fetch(2), 2))[0].records == b""


def marker() -> bytearray:
    how = EndTransactionMarker(ControlType.COMMIT, 0)
    return build_marker_batch(how, producer_id=7, producer_epoch=0, timestamp=1)


def test_markers_are_passed_over(world: World, client: Client) -> None:
    log = world.partition("t").log
    assert log is not None
    client.ask(produce(b"a"), 9)
    transactional = build_batch(
        [Record(0, 0, None, b"b")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    log.append_as_leader(memoryview(transactional), 0, 0)
    log.append_as_leader(memoryview(marker()), 0, 0, Origin.COORDINATOR)
    client.ask(produce(b"c"), 9)
    assert values(read(client.ask(fetch(), 2))) == [b"a", b"b", b"c"]
    assert values(read(client.ask(fetch(2, partition_max_bytes=100), 2))) == [b"c"]


def test_markers_at_the_end_are_nothing(world: World, client: Client) -> None:
    log = world.partition("t").log
    assert log is not None
    log.append_as_leader(memoryview(marker()), 0, 0, Origin.COORDINATOR)
    log.set_high_watermark(1)
    assert fetched(client.ask(fetch(0), 2))[0].records == b""


@pytest.mark.parametrize("version", [1, 2, 3])
def test_zstd_is_told_where_it_begins(client: Client, version: int, caplog: pytest.LogCaptureFixture) -> None:
    client.ask(produce(b"a"), 9)
    client.ask(produce(records=batch(b"z", codec_id=4)), 9)
    assert values(read(client.ask(fetch(), version))) == [b"a"]
    assert fetched(client.ask(fetch(1), version))[0].error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert not caplog.records  # the client's age is no fault of ours


@pytest.mark.parametrize(("version", "code"), [(3, ErrorCode.UNSUPPORTED_VERSION), (4, ErrorCode.NONE)])
def test_conversion_can_be_switched_off(world: World, client: Client, version: int, code: ErrorCode) -> None:
    world.create("new", message_downconversion_enable="false")
    client.ask(produce(b"a", topic="new"), 9)
    assert fetched(client.ask(fetch(topic="new"), version))[0].error_code == code


def test_an_answer_holds_about_a_megabyte_and_the_next_goes_on(world: World, client: Client) -> None:
    for _ in range(30):
        client.ask(produce(b"v" * 100_000), 9)
    offset, rounds = 0, 0
    while offset < 30:
        answer = client.ask(fetch(offset, partition_max_bytes=50 << 20, max_bytes=50 << 20), 2)
        assert len(fetched(answer)[0].records) < 1_500_000
        offset = read(answer)[-1].offset + 1
        rounds += 1
    assert rounds > 2


def test_each_partition_gets_its_share(client: Client) -> None:
    for index in range(3):
        for _ in range(12):
            client.ask(produce(b"v" * 100_000, index=index), 9)
    answer = client.ask(fetch(indices=(0, 1, 2), partition_max_bytes=50 << 20, max_bytes=50 << 20), 2)
    assert [len(read(answer, index)) for index in range(3)] == [4, 4, 4]


def test_a_damaged_batch_is_not_given_a_new_checksum(
    world: World, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    client.ask(produce(b"value"), 9)
    log = world.partition("t").log
    assert log is not None
    log.active.file.write([b"X"], log.active.size - 3)
    part = fetched(client.ask(fetch(), 2))[0]
    assert (part.error_code, part.records) == (ErrorCode.CORRUPT_MESSAGE, b"")
    assert [r.message for r in caplog.records if "cannot be read for an old client" in r.message] != []


def test_a_disk_that_fails_under_the_conversion_is_told_as_an_old_client_knows_it(world: World, client: Client) -> None:
    client.ask(produce(b"value"), 9)
    world.disk.fail("read", ".log", errno.EIO)
    part = fetched(client.ask(fetch(), 2))[0]
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched(client.ask(fetch(), 2))[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_conversion_that_ends_by_what_nobody_foresaw_holds_up_nobody(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(self: DownConvertJob) -> None:
        raise UnforeseenError("MemoryError()")

    client.ask(produce(b"value"), 9)
    with monkeypatch.context() as patched:
        patched.setattr(DownConvertJob, "run", no_memory)
        code = fetched(client.ask(fetch(), 2))[0].error_code
    assert (code, values(read(client.ask(fetch(), 2)))) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [b"value"])


# ---- topics that keep an old format


@pytest.fixture
def old_world() -> World:
    """Topics t0 and t1 keep v0 and v1, as their settings say."""
    world = World(inter_broker_protocol_version="2.8")
    world.create("t0", message_format_version="0.9.0")
    world.create("t1", message_format_version="0.10.2")
    return world


def magic_in_log(world: World, topic: str) -> list[int]:
    log = world.partition(topic).log
    assert log is not None
    region = log.read(0, 1 << 20, log.log_end_offset).region
    return [] if region is None else [message.magic for message in legacy.scan(region.read())]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize(("version", "fetch_version"), [(0, 0), (2, 3), (9, 4), (9, 12)])
def test_a_topic_may_keep_an_old_format_for_clients_of_any_age(
    old_world: World, magic: int, version: int, fetch_version: int
) -> None:
    client, topic = old_world.client(), f"t{magic}"
    sent = old_set(b"a", b"b", magic=min(version // 2, 1)) if version < 3 else batch(b"a", b"b")
    for first in (0, 2):
        answer = produced(client.ask(produce(records=sent, topic=topic), version))
        assert (answer.error_code, answer.base_offset) == (0, first)
    assert magic_in_log(old_world, topic) == [magic] * 4
    records = read(client.ask(fetch(topic=topic), fetch_version))
    assert [(each.offset, each.value) for each in records] == [(0, b"a"), (1, b"b"), (2, b"a"), (3, b"b")]


def test_transactions_need_the_new_format(old_world: World) -> None:
    data = bytes(build_batch([Record(0, 1, b"k", b"v")], producer_id=5, producer_epoch=0, base_sequence=0))
    answer = produced(old_world.client().ask(produce(records=data, topic="t1"), 9))
    assert answer.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_where_messages_have_no_timestamps_none_is_searched_for(old_world: World) -> None:
    client = old_world.client()
    for topic, codes in (("t0", {0: [-1, -2], 43: [1000, -3]}), ("t1", {0: [-1, -2, 1000, -3]})):
        client.ask(produce(records=batch(b"a"), topic=topic), 9)
        for code, timestamps in codes.items():
            for timestamp in timestamps:
                (part,) = client.ask(list_offsets(timestamp, topic=topic), 7).topics[0].partitions
                assert part.error_code == code, (topic, timestamp)


def test_the_format_may_change_while_the_broker_runs(old_world: World) -> None:
    client = old_world.client()
    log = old_world.partition("t1").log
    assert log is not None
    client.ask(produce(records=batch(b"a"), topic="t1"), 9)
    old_world.logs.reconfigure("t1", 0, log.config._replace(message_format=2))
    client.ask(produce(records=batch(b"b"), topic="t1"), 9)
    old_world.logs.reconfigure("t1", 0, log.config._replace(message_format=0))
    client.ask(produce(records=batch(b"c"), topic="t1"), 9)
    assert values(read(client.ask(fetch(topic="t1"), 0))) == [b"a", b"b", b"c"]
