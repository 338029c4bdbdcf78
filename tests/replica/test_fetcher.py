"""What a follower asks its leader, and what it does with the answer."""

from __future__ import annotations

import errno

import pytest

from kbroker.broker.facts import JobDone
from kbroker.core import EXPIRED
from kbroker.log.facts import LogFlushed, LogTruncated
from kbroker.replica.fetcher import Fetcher, fetcher_number, where_to_cut
from kbroker.replica.partition import LeaderState, Partition
from protocol.errors import ErrorCode, KafkaError
from protocol.flat import flattened, message_of
from protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from protocol.messages.offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from tests.log.worlds import batch, copy_of
from tests.world import World

ME, LEADER = 1, 2
ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))
BACKOFF_MS = 1_000


class Follower:
    """A broker that follows partitions of the topic p, and its fetcher."""

    def __init__(self, *indices: int) -> None:
        self.world = World()
        self.fetcher = Fetcher(LEADER, "fetcher", ME, self.world.replicas)
        self.now_ms = 0
        for index in indices or (0,):
            self.follow(index)

    def follow(self, index: int = 0, epoch: int = 0, topic: str = "p") -> None:
        state = LeaderState(1, LEADER, epoch, (ME, LEADER), epoch, (ME, LEADER))
        self.world.replicas.become(topic, index, ID if topic == "p" else OTHER_ID, state, is_new=epoch == 0)
        self.fetcher.follow(self.world.partition(topic, index))

    def partition(self, index: int = 0) -> Partition:
        return self.world.partition("p", index)

    def ask(self) -> FetchRequest | None:
        asked = self.fetcher.request(self.world.plane.configs.broker, 7, self.now_ms)
        if asked is None:
            return None
        assert asked[0].kind is FetchRequest
        return message_of(FetchRequest, asked[0].values)

    def asked(self) -> dict[int, tuple[int, int]]:
        """Offset and epoch of what lies before it, by partition, of the next request."""
        request = self.ask()
        if request is None:
            return {}
        return {each.partition: (each.fetch_offset, each.last_fetched_epoch) for each in _parts(request)}

    def answer(self, *parts: PartitionData, session: int = 5, code: int = 0) -> None:
        topics = [FetchableTopicResponse(topic_id=ID, partitions=list(parts))] if parts else []
        response = FetchResponse(error_code=code, session_id=session, responses=topics)
        self.fetcher.answered(flattened(response), self.now_ms, 0, BACKOFF_MS)

    def look_up(self) -> tuple[ListOffsetsRequest, int] | None:
        return self.fetcher.look_up(self.now_ms)

    def looked_up(self, offset: int, code: int = 0) -> None:
        found = ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=offset)
        topics = [ListOffsetsTopicResponse(name="p", partitions=[found])]
        self.fetcher.looked_up(ListOffsetsResponse(topics=topics), self.now_ms, BACKOFF_MS)

    def disk_works(self) -> None:
        """Cuts become durable, and the fetcher hears of it."""
        self.world.broker.on(LogTruncated, lambda fact, now_ms: self.fetcher.truncated(self.partition(), now_ms, 0))
        self.world.settle()
        self.world.core.step(EXPIRED, self.world.clock.now_ms())

    @property
    def bounds(self) -> tuple[int, int, int]:
        log = self.partition().log
        assert log is not None
        return log.log_start_offset, log.high_watermark, log.log_end_offset


def _parts(request: FetchRequest) -> list[object]:
    return [part for topic in request.topics for part in topic.partitions]


def data(
    *batches: memoryview, index: int = 0, code: int = 0, high_watermark: int = 0, start: int = 0, **more: object
) -> PartitionData:
    records = copy_of(*batches) if batches else memoryview(b"")
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=high_watermark,
        log_start_offset=start,
        records=records,
        **more,
    )


def diverging(epoch: int, end_offset: int) -> PartitionData:
    return data(diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end_offset))


def with_records(*epochs: int) -> Follower:
    """A follower with one record of each of these epochs, and a session."""
    follower = Follower()
    for offset, epoch in enumerate(epochs):
        follower.ask()
        follower.answer(data(batch(base_offset=offset, epoch=epoch)))
    return follower


# ---- asking


def test_it_asks_from_the_end_of_the_log_and_names_the_epoch_before_it() -> None:
    assert with_records(3, 3, 4).asked() == {0: (3, 4)}


def test_the_first_request_begins_a_session_and_says_who_asks_in_which_life() -> None:
    request = Follower().ask()
    assert request is not None
    state = request.replica_state
    assert (request.session_id, request.session_epoch, state.replica_id, state.replica_epoch) == (0, 0, ME, 7)


def test_in_a_session_only_what_has_changed_is_named() -> None:
    follower = Follower(0, 1, 2)
    follower.ask()
    follower.answer(data(batch(epoch=0), index=1))
    assert follower.asked() == {1: (1, 0)}


def test_without_a_session_everything_is_named_each_time() -> None:
    follower = Follower(0, 1)
    follower.ask()
    follower.answer(data(batch(epoch=0), index=1), session=0)
    assert follower.asked() == {0: (0, -1), 1: (1, 0)}


def test_without_a_session_those_that_had_records_are_named_last_so_that_no_one_starves() -> None:
    """The leader fills its answer in the order of the request."""
    follower = Follower(0, 1, 2)
    had_records = []
    for offset in (0, 0, 0, 1):
        first, *_ = follower.asked()
        had_records.append(first)
        follower.answer(data(batch(base_offset=offset, epoch=0), index=first), session=0)
    assert had_records == [0, 1, 2, 0]


def test_without_a_session_no_topic_starves_behind_another_one() -> None:
    follower = Follower(0, 1)
    follower.follow(0, topic="q")
    follower.ask()
    follower.answer(data(batch(epoch=0)), session=0)
    request = follower.ask()
    assert request is not None
    assert [(topic.topic_id, [each.partition for each in topic.partitions]) for topic in request.topics] == [
        (ID, [1]),
        (OTHER_ID, [0]),
        (ID, [0]),
    ]


def test_without_a_session_nothing_is_asked_while_the_only_one_rests_that_is_followed_still() -> None:
    """A fetch that names nothing is answered at once, again and again."""
    follower = Follower(0, 1)
    follower.ask()
    follower.fetcher.leave(follower.partition(1))
    follower.answer(data(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), session=0)
    assert follower.ask() is None


def test_what_it_follows_no_more_is_forgotten_in_the_session() -> None:
    follower = Follower(0, 1)
    follower.ask()
    follower.fetcher.leave(follower.partition(1))
    follower.answer(data(batch(epoch=0), index=1))
    request = follower.ask()
    assert request is not None
    assert [(each.topic_id, each.partitions) for each in request.forgotten_topics_data] == [(ID, [1])]
    log = follower.partition(1).log
    assert log is not None
    assert log.log_end_offset == 0


def test_a_partition_that_is_followed_anew_is_not_forgotten() -> None:
    follower = Follower(0, 1)
    follower.ask()
    follower.answer()
    follower.follow(1, epoch=1)
    request = follower.ask()
    assert request is not None
    assert (len(_parts(request)), request.forgotten_topics_data) == (1, [])


def test_with_nothing_to_follow_nothing_is_asked_and_the_old_session_is_closed_by_the_next_request() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(session=5)
    follower.fetcher.leave(follower.partition())
    nothing = follower.ask()
    follower.follow(epoch=1)
    request = follower.ask()
    assert request is not None
    assert (nothing, request.session_id, request.session_epoch) == (None, 5, 0)


def test_after_a_fault_the_leader_is_told_everything_again() -> None:
    follower = Follower(0, 1)
    follower.ask()
    follower.answer()
    follower.ask()
    follower.fetcher.failed()
    assert follower.asked() == {0: (0, -1), 1: (0, -1)}


@pytest.mark.parametrize(
    ("code", "due_ms"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, None),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, None),
        (ErrorCode.UNKNOWN_SERVER_ERROR, BACKOFF_MS),
    ],
)
def test_a_session_that_the_leader_has_lost_is_begun_again_at_once_and_one_that_is_refused_later(
    code: ErrorCode, due_ms: int | None
) -> None:
    follower = Follower()
    follower.ask()
    follower.answer(code=code)
    rests_until_ms = follower.fetcher.next_due_ms()
    follower.now_ms = rests_until_ms or 0
    assert (rests_until_ms, follower.asked()) == (due_ms, {0: (0, -1)})


# ---- answers


def test_batches_are_appended_as_they_came() -> None:
    follower = with_records()
    sent = batch(3, base_offset=0, epoch=6)
    follower.ask()
    follower.answer(data(sent))
    log = follower.partition().log
    assert log is not None
    region = log.read(0, 1 << 20, log.log_end_offset).region
    assert region is not None
    assert region.read() == bytes(sent)


def test_the_high_watermark_follows_the_leaders_as_far_as_there_are_records() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(data(batch(3), high_watermark=9))
    assert follower.bounds == (0, 3, 3)


def test_the_high_watermark_does_not_follow_a_new_leaders_back() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(data(batch(3), high_watermark=3))
    follower.ask()
    follower.answer(data(batch(base_offset=3), high_watermark=1))
    assert follower.bounds == (0, 3, 4)


def test_the_log_start_follows_the_leaders() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(data(batch(3), high_watermark=3, start=2))
    assert follower.bounds == (2, 3, 3)


def test_a_leader_is_told_where_the_log_starts_though_nothing_else_has_changed() -> None:
    """Who deletes records is answered once all replicas have said that theirs are gone, too."""
    follower = Follower()
    follower.ask()
    follower.answer(data(batch(3), high_watermark=3))
    follower.ask()
    follower.answer(data(high_watermark=3, start=2))
    request = follower.ask()
    assert request is not None
    assert [(each.fetch_offset, each.log_start_offset) for each in _parts(request)] == [(3, 2)]


def test_an_answer_to_what_would_not_be_asked_again_counts_for_nothing() -> None:
    follower = Follower()
    follower.ask()
    follower.follow(epoch=1)
    follower.answer(data(batch()))
    assert follower.bounds == (0, 0, 0)


def test_an_answer_in_an_older_epoch_counts_for_nothing_before_the_fetcher_has_heard_of_the_new_one() -> None:
    follower = Follower()
    follower.ask()
    follower.world.replicas.become("p", 0, ID, LeaderState(1, LEADER, 1, (ME, LEADER), 1, (ME, LEADER)), is_new=False)
    follower.answer(data(batch()))
    assert follower.bounds == (0, 0, 0)


def test_a_high_watermark_in_an_answer_that_counts_for_nothing_is_told_again() -> None:
    """The leader's session takes it for told; without records it would not come again before the next one moves."""
    follower = with_records(3)
    follower.ask()
    follower.follow(0, epoch=1)
    follower.answer(data(high_watermark=1))
    assert follower.bounds == (0, 0, 1)
    request = follower.ask()
    assert request is not None
    assert (request.session_epoch, [each.partition for each in _parts(request)]) == (0, [0])


def test_a_log_start_in_an_answer_that_counts_for_nothing_is_told_again() -> None:
    """Else whoever deletes records waits for this replica in vain."""
    follower = with_records(3, 3)
    follower.ask()
    follower.answer(data(high_watermark=2))
    follower.ask()
    follower.follow(0, epoch=4)
    follower.answer(data(high_watermark=2, start=1))
    assert follower.bounds == (0, 2, 2)
    request = follower.ask()
    assert request is not None
    assert (request.session_epoch, [each.partition for each in _parts(request)]) == (0, [0])


@pytest.mark.parametrize("high_watermark", [0, 1])
def test_a_session_goes_on_if_nothing_was_told_that_is_not_known_or_comes_again(high_watermark: int) -> None:
    follower = with_records(3)
    follower.ask()
    follower.follow(0, epoch=1)
    records = [batch(base_offset=1, epoch=3)] if high_watermark else []
    follower.answer(data(*records, high_watermark=high_watermark))
    request = follower.ask()
    assert request is not None
    assert request.session_epoch > 0


def test_after_an_error_a_partition_rests_and_the_others_go_on() -> None:
    follower = Follower(0, 1)
    follower.ask()
    follower.answer(data(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), data(batch(epoch=0), index=1))
    soon = follower.asked()
    follower.answer()
    follower.now_ms = BACKOFF_MS
    assert (soon, follower.asked()) == ({1: (1, 0)}, {0: (0, -1)})


def test_a_batch_that_is_damaged_is_not_appended_and_asked_for_again_later() -> None:
    follower = Follower()
    follower.ask()
    damaged = memoryview(bytearray(batch()))
    damaged[-1] ^= 1
    follower.answer(data(damaged))
    soon = follower.asked()
    follower.now_ms = BACKOFF_MS
    assert (follower.bounds, soon, follower.asked()) == ((0, 0, 0), {}, {0: (0, -1)})


def test_a_flush_that_cannot_begin_keeps_no_other_partition_from_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    follower = Follower(0, 1)
    append = follower.world.replicas.append_as_follower

    def fails_behind(partition: Partition, records: memoryview, wall_ms: int) -> None:
        append(partition, records, wall_ms)
        if partition.index == 0:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "p-0 cannot be flushed")

    monkeypatch.setattr(follower.world.replicas, "append_as_follower", fails_behind)
    follower.ask()
    follower.answer(data(batch(base_offset=0, epoch=0)), data(batch(base_offset=0, epoch=0), index=1))
    assert follower.asked() == {1: (1, 0)}


def flushing_first() -> Follower:
    """With flush.messages=1, a disk that is busy, and a fetch under way."""
    follower = Follower()
    world = follower.world
    world.broker.on(LogFlushed, lambda fact, now_ms: follower.fetcher.flushed(follower.partition()))
    world.plane.configs.set_topic("p", {"flush.messages": "1"})
    world.replicas.reconfigure("p")
    world.disk_is_busy = True
    follower.ask()
    return follower


def test_with_flush_messages_a_leader_is_told_of_records_once_they_are_durable() -> None:
    """Its high watermark passes them then: they have to outlive a power cut, as what Apache's follower says it has."""
    follower = flushing_first()
    world = follower.world
    follower.answer(data(batch(base_offset=0, epoch=0)))
    world.settle()
    before = follower.asked()
    world.disk_is_busy = False
    world.settle()
    assert (before, follower.asked()) == ({}, {0: (1, 0)})


def test_with_flush_messages_the_log_start_follows_the_leaders_once_the_records_are_durable() -> None:
    """It is told once: else whoever deletes records waits in vain, and they are back when this replica leads."""
    follower = flushing_first()
    world = follower.world
    follower.answer(data(batch(3, epoch=0), high_watermark=3, start=2))
    world.settle()
    before = follower.bounds
    world.disk_is_busy = False
    world.settle()
    request = follower.ask()
    assert request is not None
    assert (before, follower.bounds) == ((0, 0, 3), (2, 3, 3))
    assert [(each.fetch_offset, each.log_start_offset) for each in _parts(request)] == [(3, 2)]


# ---- cutting


def test_a_log_that_diverges_is_cut_and_nothing_is_asked_until_that_is_durable() -> None:
    follower = with_records(0, 0, 1)
    follower.ask()
    follower.answer(diverging(0, 2))
    before = follower.asked()
    follower.disk_works()
    assert (before, follower.bounds, follower.asked()) == ({}, (0, 0, 2), {0: (2, 0)})


def test_the_high_watermark_is_told_again_once_a_log_that_diverged_is_cut() -> None:
    """Nothing else may come: the leader's session takes it for told."""
    follower = with_records(3, 4)
    follower.ask()
    follower.answer(diverging(3, 1))
    follower.disk_works()
    request = follower.ask()
    assert request is not None
    assert (request.session_epoch, [each.fetch_offset for each in _parts(request)]) == (0, [1])


def test_a_follower_in_a_new_epoch_asks_for_nothing_before_its_cut_of_the_old_one_is_durable() -> None:
    follower = with_records(0, 0, 1)
    follower.ask()
    follower.answer(diverging(0, 2))
    follower.follow(epoch=2)
    before = follower.asked()
    follower.disk_works()
    assert (before, follower.asked()) == ({}, {0: (2, 0)})


def test_the_second_of_two_cuts_is_waited_for() -> None:
    follower = with_records(0, 0, 1)
    follower.ask()
    follower.answer(diverging(0, 2))
    first = follower.world.core.effects.take_jobs()
    follower.world.replicas.truncate(follower.partition(), 1)
    told: list[LogTruncated] = []
    follower.world.broker.on(LogTruncated, lambda fact, now_ms: told.append(fact))
    for errand in first:
        errand.run()
        follower.world.core.step(JobDone(errand, None), 0)
    before = len(told)
    follower.world.settle()
    assert (before, len(told)) == (0, 1)


def test_a_cut_without_descriptors_is_made_when_the_leader_asks_for_it_again() -> None:
    follower = with_records(0, 0, 1)
    world = follower.world
    world.broker.on(LogTruncated, lambda fact, now_ms: follower.fetcher.truncated(follower.partition(), now_ms, 0))
    follower.partition().log.segments[0].close()  # type: ignore[union-attr]
    follower.ask()
    world.disk.fail("open", ".log", errno.EMFILE)
    follower.answer(diverging(0, 2))
    world.settle()
    before = follower.asked()
    follower.now_ms = BACKOFF_MS
    again = follower.asked()
    follower.answer(diverging(0, 2))
    world.settle()
    assert (before, again, follower.bounds, follower.asked()) == ({}, {0: (3, 1)}, (0, 0, 2), {0: (2, 0)})


def test_a_log_without_epochs_that_lacks_descriptors_is_cut_to_the_high_watermark_before_it_is_asked_for() -> None:
    follower = with_records(-1, -1)
    world = follower.world
    world.broker.on(LogTruncated, lambda fact, now_ms: follower.fetcher.truncated(follower.partition(), now_ms, 0))
    follower.partition().log.segments[0].close()  # type: ignore[union-attr]
    world.disk.fail("open", "", errno.EMFILE, 3)
    follower.follow(epoch=1)
    before = follower.bounds
    world.disk.fault = None
    follower.now_ms = 2_000
    follower.asked()
    world.settle()
    assert (before, follower.bounds, follower.asked()) == ((0, 0, 2), (0, 0, 0), {0: (0, -1)})


@pytest.mark.parametrize(
    ("epochs", "theirs", "cut"),
    [
        ((0, 0, 1, 1), (0, 2), 2),  # their epoch 0 ends where ours does
        ((0, 0, 1, 1), (0, 1), 1),  # theirs is shorter
        ((0, 0, 1, 1), (0, 5), 2),  # ours is shorter
        ((0, 2, 2), (1, 9), 1),  # an epoch that we never had: back to the end of the one before it
        ((3, 3), (1, 1), 0),  # older than all that we have
        ((0, 0), (0, -1), 0),  # they know nothing: back to what is committed
    ],
)
def test_where_logs_part(epochs: tuple[int, ...], theirs: tuple[int, int], cut: int) -> None:
    log = with_records(*epochs).partition().log
    assert log is not None
    assert where_to_cut(log, *theirs) == cut


# ---- out of range


def test_out_of_range_behind_the_leaders_end_the_log_is_cut_there() -> None:
    follower = with_records(0, 0, 0)
    follower.ask()
    follower.answer(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))
    asked = follower.look_up()
    assert asked is not None
    assert asked[0].topics[0].partitions[0].timestamp == -1
    follower.looked_up(1)
    follower.disk_works()
    assert follower.bounds == (0, 0, 1)


def test_out_of_range_before_the_leaders_start_the_log_begins_anew_there() -> None:
    follower = with_records(0)
    follower.ask()
    follower.answer(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))
    follower.look_up()
    follower.looked_up(100)
    asked = follower.look_up()
    assert asked is not None
    assert asked[0].topics[0].partitions[0].timestamp == -2
    follower.looked_up(50)
    follower.disk_works()
    assert (follower.bounds, follower.asked()) == ((50, 50, 50), {0: (50, -1)})


def test_a_leader_that_does_not_say_where_its_log_ends_is_asked_again_later() -> None:
    follower = with_records(0)
    follower.ask()
    follower.answer(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))
    follower.look_up()
    follower.looked_up(0, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert (follower.look_up(), follower.fetcher.next_due_ms()) == (None, BACKOFF_MS)


def test_a_leader_whose_log_begins_within_a_batch_is_followed_from_its_beginning() -> None:
    follower = Follower()
    follower.ask()
    follower.answer(data(code=ErrorCode.OFFSET_OUT_OF_RANGE))
    follower.look_up()
    follower.looked_up(100)
    follower.look_up()
    follower.looked_up(52)
    follower.disk_works()
    follower.ask()
    follower.answer(data(batch(5, base_offset=50), start=52, high_watermark=55))
    follower.disk_works()
    assert follower.bounds[0::2] == (52, 55)
    request = follower.ask()
    assert request is not None
    assert request.session_epoch == 0  # the high watermark that came with the batch is to come again


def test_a_leader_that_sends_what_is_here_already_takes_nothing_away() -> None:
    """Only an empty log may begin anew within a batch."""
    follower = with_records(0, 0, 0)
    follower.ask()
    follower.answer(data(batch(5, base_offset=1, epoch=0)))
    soon = follower.asked()
    follower.disk_works()
    follower.now_ms = BACKOFF_MS
    assert (soon, follower.bounds, follower.asked()) == ({}, (0, 0, 3), {0: (3, 0)})


# ---- which fetcher


@pytest.mark.parametrize(
    ("topic", "index", "count", "number"),
    [("t", 0, 1, 0), ("t", 0, 4, 0), ("t", 1, 4, 1), ("orders", 0, 7, 6), ("__consumer_offsets", 49, 3, 1)],
)
def test_a_partition_has_the_fetcher_that_kafka_gives_it(topic: str, index: int, count: int, number: int) -> None:
    """Numbers by Java's String.hashCode: |31 * hash + index| mod count."""
    assert fetcher_number(topic, index, count) == number
