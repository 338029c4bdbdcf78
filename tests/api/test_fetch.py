"""Fetch: what is answered, how much of it, and when; in every version."""

from __future__ import annotations

import errno

import pytest

from kbroker.core import EXPIRED
from kbroker.log.producer_state import Origin
from kbroker.replica.partition import LeaderState
from protocol.errors import ErrorCode
from protocol.messages.offsets import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from protocol.records import Record
from protocol.records.content import build_batch, parse_set
from protocol.records.control_records import ControlType, EndTransactionMarker, build_marker_batch
from tests.requests import batch, fetch, fetched, produce
from tests.world import Client, World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("t", partitions=3)
    return world


def values(records: bytes) -> list[bytes]:
    return [record.value or b"" for _, batch_records in parse_set(bytes(records)) for record in batch_records]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_gets_the_records_and_the_bounds(world: World, client: Client, version: int) -> None:
    client.ask(produce(b"a", b"b"), 9)
    request = fetch(topic="t" if version < 13 else "", topic_id=world.topic_id("t"))
    part = fetched(client.ask(request, version))[0]
    assert (part.error_code, part.high_watermark, values(part.records)) == (0, 2, [b"a", b"b"])


def test_a_fetch_from_the_middle_of_a_batch_gets_the_whole_batch(client: Client) -> None:
    client.ask(produce(b"a", b"b", b"c"), 9)
    assert values(fetched(client.ask(fetch(2), 12))[0].records) == [b"a", b"b", b"c"]


def test_a_fetch_at_the_end_gets_nothing_at_once_if_it_does_not_want_to_wait(client: Client) -> None:
    client.ask(produce(b"a"), 9)
    part = fetched(client.ask(fetch(1, max_wait_ms=0), 12))[0]
    assert (part.error_code, part.records) == (0, b"")


def test_min_bytes_0_does_not_wait(client: Client) -> None:
    assert fetched(client.ask(fetch(min_bytes=0, max_wait_ms=1000), 12))[0].records == b""


def test_min_bytes_that_may_not_be_sent_together_are_not_waited_for(client: Client) -> None:
    client.ask(produce(b"a"), 9)
    assert values(fetched(client.ask(fetch(min_bytes=500, max_bytes=1, max_wait_ms=1000), 12))[0].records) == [b"a"]


@pytest.mark.parametrize("offset", [2, -1])
def test_an_offset_out_of_range_is_told_at_once(client: Client, offset: int) -> None:
    client.ask(produce(b"a"), 9)
    part = fetched(client.ask(fetch(offset, max_wait_ms=1000), 12))[0]
    assert (part.error_code, part.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


@pytest.mark.parametrize(("version", "code"), [(9, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (10, ErrorCode.NONE)])
def test_a_topic_of_zstd_is_not_for_consumers_from_before_it(world: World, version: int, code: ErrorCode) -> None:
    world.create("z", compression_type="zstd")
    client = world.client()
    client.ask(produce(b"a", topic="z"), 9)
    assert fetched(client.ask(fetch(topic="z"), version))[0].error_code == code


def test_an_unknown_topic_is_told_at_once(client: Client) -> None:
    part = fetched(client.ask(fetch(topic="unknown", max_wait_ms=1000), 12))[0]
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_topic_id_is_told_at_once(client: Client) -> None:
    part = fetched(client.ask(fetch(topic="", topic_id=bytes(range(16)), max_wait_ms=1000), 13))[0]
    assert part.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-2, 0), (-1, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_clients_leader_epoch_has_to_be_ours(client: Client, epoch: int, code: int) -> None:
    assert fetched(client.ask(fetch(current_leader_epoch=epoch), 12))[0].error_code == code


def test_an_epoch_that_is_over_is_fenced(world: World, client: Client) -> None:
    world.partition("t").leader_epoch = 5
    part = fetched(client.ask(fetch(current_leader_epoch=4), 12))[0]
    assert part.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_a_reader_of_an_epoch_that_never_was_is_out_of_range(client: Client) -> None:
    client.ask(produce(b"a"), 9)
    part = fetched(client.ask(fetch(1, last_fetched_epoch=7, max_wait_ms=1000), 12))[0]
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_reader_whose_epoch_ended_earlier_here_is_told_where(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    state = LeaderState(1, 1, 5, (1,), 1, (1,))
    world.replicas.become("t", 0, world.topic_id("t"), state, is_new=False)
    client.ask(produce(b"b", b"c"), 9)
    part = fetched(client.ask(fetch(2, last_fetched_epoch=3, max_wait_ms=1000), 12))[0]
    assert (part.error_code, part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 0, 1)


def test_a_partition_whose_disk_failed_is_told_even_if_no_bytes_are_left_for_it(world: World, client: Client) -> None:
    client.ask(produce(b"v" * 1000), 9)
    world.partition("t", 1).log = None
    parts = fetched(client.ask(fetch(indices=(0, 1), max_bytes=10), 12))
    assert [part.error_code for part in parts.values()] == [0, ErrorCode.KAFKA_STORAGE_ERROR]


@pytest.mark.parametrize("limits", [{"max_bytes": 10}, {"partition_max_bytes": 0}])
def test_an_offset_out_of_range_is_told_even_if_no_bytes_are_left_for_it(
    client: Client, limits: dict[str, int]
) -> None:
    client.ask(produce(b"v" * 1000), 9)
    request = fetch(0, indices=(0, 1), **limits)
    request.topics[0].partitions[1].fetch_offset = 7
    parts = fetched(client.ask(request, 12))
    assert [part.error_code for part in parts.values()] == [0, ErrorCode.OFFSET_OUT_OF_RANGE]


def test_a_partition_led_elsewhere_is_told_even_if_no_bytes_are_left_for_it(world: World, client: Client) -> None:
    client.ask(produce(b"v" * 1000), 9)
    world.partition("t", 1).is_leader = False
    parts = fetched(client.ask(fetch(indices=(0, 1), max_bytes=10), 10))
    assert [part.error_code for part in parts.values()] == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_diverging_reader_below_the_log_start_is_out_of_range(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    state = LeaderState(1, 1, 5, (1,), 1, (1,))
    world.replicas.become("t", 0, world.topic_id("t"), state, is_new=False)
    client.ask(produce(b"b", b"c"), 9)
    world.replicas.become("t", 0, world.topic_id("t"), state._replace(leader_epoch=7), is_new=False)
    client.ask(produce(b"d"), 9)
    world.partition("t").delete_records(2)
    asked = [fetch(offset, last_fetched_epoch=6, max_wait_ms=1000) for offset in (1, 2)]
    parts = [fetched(client.ask(each, 12))[0] for each in asked]
    assert [part.error_code for part in parts] == [ErrorCode.OFFSET_OUT_OF_RANGE, 0]


def test_the_id_of_a_topic_is_not_that_of_its_successor_of_the_same_name(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    world.partition("t").topic_id = bytes(range(16))  # LeaderAndIsr has come, UpdateMetadata has not
    part = fetched(client.ask(fetch(topic="", topic_id=world.topic_id("t")), 13))[0]
    assert (part.error_code, part.records) == (ErrorCode.INCONSISTENT_TOPIC_ID, b"")


# ---- how much


def test_the_first_batch_comes_whole_however_small_the_limits(client: Client) -> None:
    client.ask(produce(b"v" * 1000), 9)
    part = fetched(client.ask(fetch(max_bytes=10, partition_max_bytes=10), 12))[0]
    assert values(part.records) == [b"v" * 1000]


def test_a_partition_gives_no_more_than_it_may(client: Client) -> None:
    for _ in range(5):
        client.ask(produce(b"v" * 1000), 9)
    part = fetched(client.ask(fetch(partition_max_bytes=2500), 12))[0]
    assert len(part.records) == 2500


def test_the_partitions_share_what_the_answer_may_hold(client: Client) -> None:
    for index in range(3):
        client.ask(produce(b"v" * 1000, index=index), 9)
    parts = fetched(client.ask(fetch(indices=(2, 0, 1), max_bytes=1500), 12))
    size = len(batch(b"v" * 1000))
    assert {index: len(part.records) for index, part in parts.items()} == {2: size, 0: 0, 1: 0}


def test_the_brokers_own_limit_holds_too() -> None:
    world = World(fetch_max_bytes="2048")
    world.create("t")
    client = world.client()
    for _ in range(5):
        client.ask(produce(b"v" * 1000), 9)
    assert len(fetched(client.ask(fetch(), 12))[0].records) == 2048


def test_an_answer_holds_only_so_many_files_open(world: World, client: Client) -> None:
    for index in range(3):
        client.ask(produce(b"v", index=index), 9)
    world.broker.fetch_regions = 2
    parts = fetched(client.ask(fetch(indices=(2, 0, 1)), 12))
    assert {index: len(part.records) > 0 for index, part in parts.items()} == {2: True, 0: True, 1: False}


def test_want_of_a_descriptor_costs_a_fetch_and_not_the_directory() -> None:
    world = World()
    world.create("t", segment_bytes="2200")
    client = world.client()
    for _ in range(3):
        client.ask(produce(b"v" * 1000), 9)
    world.stop()
    world.start()
    client = world.client()
    world.disk.fail("open", ".log", errno.EMFILE)
    codes = [fetched(client.ask(fetch(), 12))[0].error_code for _ in range(2)]
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]


def test_after_a_partition_that_cannot_be_read_the_first_batch_still_comes_whole(world: World) -> None:
    for index in range(2):
        world.client().ask(produce(b"v" * 1000, index=index), 9)
    world.stop()
    world.start()
    world.disk.fail("open", ".log", errno.EMFILE)
    parts = fetched(world.client().ask(fetch(indices=(0, 1), max_bytes=10), 12))
    assert [(part.error_code, values(part.records)) for part in parts.values()] == [
        (ErrorCode.KAFKA_STORAGE_ERROR, []),
        (0, [b"v" * 1000]),
    ]


@pytest.mark.parametrize("min_bytes", [1, 10, 10_000])
def test_a_log_that_is_damaged_is_that_partitions_error_however_much_is_waited_for(
    world: World, client: Client, min_bytes: int
) -> None:
    for index in (0, 0, 1):
        client.ask(produce(b"a", index=index), 9)
    log = world.partition("t").log
    assert log is not None
    log.active.file.write([bytes(20)], 0)
    parts = fetched(client.ask(fetch(indices=(0, 1), min_bytes=min_bytes, max_wait_ms=60_000), 12))
    assert [(part.error_code, len(part.records) > 0) for part in parts.values()] == [
        (ErrorCode.CORRUPT_MESSAGE, False),
        (0, True),
    ]


def test_after_a_partition_that_diverges_the_first_batch_still_comes_whole(world: World, client: Client) -> None:
    client.ask(produce(b"v" * 1000, index=1), 9)
    world.replicas.become("t", 0, world.topic_id("t"), LeaderState(1, 1, 5, (1,), 1, (1,)), is_new=False)
    request = fetch(2, indices=(0, 1), max_bytes=10, last_fetched_epoch=3)
    request.topics[0].partitions[1].fetch_offset, request.topics[0].partitions[1].last_fetched_epoch = 0, -1
    parts = fetched(client.ask(request, 12))
    assert (parts[0].diverging_epoch.end_offset, values(parts[1].records)) == (0, [b"v" * 1000])


def test_bytes_of_all_partitions_count_for_min_bytes(client: Client) -> None:
    for index in range(3):
        client.ask(produce(b"v" * 100, index=index), 9)
    parts = fetched(client.ask(fetch(indices=(0, 1, 2), min_bytes=400, max_wait_ms=1000), 12))
    assert [values(part.records) for part in parts.values()] == [[b"v" * 100]] * 3


def test_the_rest_of_an_older_segment_is_not_made_to_wait_for_min_bytes(world: World, client: Client) -> None:
    world.create("rolls", segment_bytes="2200")
    for _ in range(3):
        client.ask(produce(b"v" * 1000, topic="rolls"), 9)
    part = fetched(client.ask(fetch(1, topic="rolls", min_bytes=2000, max_wait_ms=1000), 12))[0]
    assert values(part.records) == [b"v" * 1000]


def test_records_above_the_high_watermark_are_not_there_yet(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    world.partition("t").isr = (1, 2)
    client.ask(produce(b"b"), 9)
    part = fetched(client.ask(fetch(), 12))[0]
    assert (values(part.records), part.high_watermark) == ([b"a"], 1)


def test_read_committed_is_told_of_no_aborted_transactions_where_there_are_none(client: Client) -> None:
    client.ask(produce(b"a"), 9)
    assert fetched(client.ask(fetch(isolation_level=1), 12))[0].aborted_transactions == []
    assert fetched(client.ask(fetch(isolation_level=0), 12))[0].aborted_transactions is None


# ---- transactions, which Apache's brokers may have left in a log


def append(world: World, records: bytearray, origin: Origin) -> None:
    """What Produce would not take, into partition 0, and all that follows from it."""
    partition = world.partition("t")
    world.replicas.append(partition, memoryview(records), 1, origin, world.clock.wall_ms())
    world.core.step(EXPIRED, world.clock.now_ms())


def write(world: World, producer_id: int, value: bytes) -> None:
    """One record of the producer's transaction, which is open from then on."""
    records = [Record(0, 0, None, value)]
    built = build_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    append(world, built, Origin.CLIENT)


def end(world: World, producer_id: int, how: ControlType) -> None:
    marker = build_marker_batch(EndTransactionMarker(how, 0), producer_id=producer_id, producer_epoch=0, timestamp=0)
    append(world, marker, Origin.COORDINATOR)


def test_read_committed_ends_where_the_first_open_transaction_begins(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    write(world, 7, b"b")
    parts = [fetched(client.ask(fetch(isolation_level=level), 12))[0] for level in (0, 1)]
    assert [(values(part.records), part.last_stable_offset) for part in parts] == [([b"a", b"b"], 1), ([b"a"], 1)]


def test_read_committed_alone_is_told_which_transactions_were_aborted(world: World, client: Client) -> None:
    for producer_id, how in ((7, ControlType.COMMIT), (8, ControlType.ABORT)):
        write(world, producer_id, b"v")
        end(world, producer_id, how)
    aborted = [fetched(client.ask(fetch(isolation_level=level), 12))[0].aborted_transactions for level in (0, 1)]
    assert (aborted[0], [(each.producer_id, each.first_offset) for each in aborted[1]]) == (None, [(8, 2)])


def test_who_reads_committed_waits_for_the_end_of_a_transaction(world: World, client: Client) -> None:
    number = client.send(fetch(isolation_level=1, max_wait_ms=60_000), 12)
    write(world, 7, b"v")
    assert number not in client.look()
    end(world, 7, ControlType.COMMIT)
    assert values(fetched(client.look()[number])[0].records)[0] == b"v"


# ---- when


def test_who_stands_where_compaction_left_nothing_waits_for_records(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    log = world.partition("t").log
    assert log is not None
    log.log_end_offset = log.high_watermark = 5  # of what stood before, nothing is left
    number = client.send(fetch(2, max_wait_ms=60_000), 12)
    assert number not in client.look()
    client.ask(produce(b"v"), 9)
    assert values(fetched(client.look()[number])[0].records)[0] == b"v"


def test_a_moved_log_start_answers_who_waits(world: World, client: Client) -> None:
    client.ask(produce(b"a"), 9)
    number = client.send(fetch(0, min_bytes=10_000, max_wait_ms=60_000), 12)
    delete = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=1)])],
        timeout_ms=1000,
    )
    world.client().ask(delete, 2)
    assert fetched(client.look()[number])[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_lost_leader_answers_who_waits(world: World, client: Client) -> None:
    number = client.send(fetch(max_wait_ms=60_000), 10)
    partition = world.partition("t")
    partition.is_leader = False
    world.replicas.touched.append(partition)
    world.core.step(EXPIRED, world.clock.now_ms())
    assert fetched(client.look()[number])[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", range(19))
def test_a_partition_whose_disk_failed_is_told_by_a_code_that_the_client_knows(
    world: World, client: Client, version: int
) -> None:
    world.partition("t").log = None
    request = fetch(topic="t" if version < 13 else "", topic_id=world.topic_id("t"))
    expected = ErrorCode.NOT_LEADER_OR_FOLLOWER if version < 6 else ErrorCode.KAFKA_STORAGE_ERROR
    assert fetched(client.ask(request, version))[0].error_code == expected


def test_a_failed_directory_answers_who_waits(world: World, client: Client) -> None:
    number = client.send(fetch(max_wait_ms=60_000), 12)
    world.disk.fail("write", ".log", 5)
    world.client().ask(produce(b"v"), 9)
    assert fetched(client.look()[number])[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_an_append_to_another_partition_does_not_answer(world: World, client: Client) -> None:
    number = client.send(fetch(indices=(0, 1), max_wait_ms=60_000), 12)
    world.client().ask(produce(b"v", index=2), 9)
    assert number not in client.look()
    world.client().ask(produce(b"v", index=1), 9)
    assert values(fetched(client.look()[number])[1].records) == [b"v"]


def test_everything_is_there_after_a_restart(world: World, client: Client) -> None:
    client.ask(produce(b"a", b"b"), 9)
    world.restart()
    assert values(fetched(world.client().ask(fetch(), 12))[0].records) == [b"a", b"b"]


# ---- how long a fetch without news waits


@pytest.mark.parametrize("max_wait_ms", [1, 19, 20, 100, 500, 30_000])
@pytest.mark.parametrize("begun_ms", [0, 1, 7, 19])
def test_a_wait_is_never_shorter_than_what_was_asked_for_and_at_most_a_fifth_longer(
    world: World, client: Client, max_wait_ms: int, begun_ms: int
) -> None:
    world.advance(begun_ms)
    number, begun_at_ms = client.send(fetch(max_wait_ms=max_wait_ms), 12), world.clock.now_ms()
    while number not in client.look():
        world.advance(1)
    waited_ms = world.clock.now_ms() - begun_at_ms
    assert max_wait_ms < waited_ms <= max_wait_ms + max(min(max_wait_ms // 5, 100), 1)  # begun within a millisecond


def test_fetches_that_begin_one_by_one_are_answered_together(world: World) -> None:
    clients = [world.client() for _ in range(200)]
    for each in clients:
        each.send(fetch(max_wait_ms=500), 12)
        world.advance(2)
    moments: set[int] = set()
    for _ in range(600):
        before = sum(len(each.look()) for each in clients)
        world.advance(1)
        if sum(len(each.look()) for each in clients) > before:
            moments.add(world.clock.now_ms())
    assert len(moments) <= 400 / 100 + 1


def test_fetches_that_were_answered_together_stay_together(world: World) -> None:
    clients = [world.client() for _ in range(2)]
    for each in clients:
        each.send(fetch(max_wait_ms=500), 12)
        world.advance(3)
    world.advance(600)
    for each in clients:
        each.send(fetch(max_wait_ms=500), 12)  # at once, as consumers do
    world.advance(499)
    counts = []
    for _ in range(102):
        world.advance(1)
        counts.append(sum(len(each.look()) for each in clients))
    assert set(counts) == {2, 4}
