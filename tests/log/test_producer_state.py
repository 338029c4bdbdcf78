"""What a log remembers of producers."""

from __future__ import annotations

import pytest

from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.producer_state import Marker, Origin, Producers, parse_snapshot
from protocol.errors import ErrorCode, KafkaError
from protocol.records import crc32c
from protocol.records.batch import CONTROL, LARGEST_SEQUENCE, TRANSACTIONAL, HeaderTuple

NOW = 1_000_000


def header(sequence: int, count: int = 1, *, producer_id: int = 9, epoch: int = 0, attributes: int = 0) -> HeaderTuple:
    return (0, 50, 0, 2, 0, attributes, count - 1, NOW, NOW, producer_id, epoch, sequence, count)


class World:
    """Producers and the offset that the next batch gets."""

    def __init__(self) -> None:
        self.producers = Producers()
        self.offset = 100

    def write(self, sequence: int, count: int = 1, **fields: int) -> None:
        batch = header(sequence, count, **fields)
        assert self.producers.check(batch, Origin.CLIENT) is None
        self.producers.update(batch, self.offset, NOW)
        self.offset += count
        self.producers.end_offset = self.offset

    def refusal(self, sequence: int, count: int = 1, origin: Origin = Origin.CLIENT, **fields: int) -> ErrorCode:
        with pytest.raises(KafkaError) as raised:
            self.producers.check(header(sequence, count, **fields), origin)
        return raised.value.code


def test_an_unknown_producer_may_start_anywhere() -> None:
    World().write(77)


def test_each_of_the_last_five_batches_is_known_again() -> None:
    world = World()
    for sequence in range(0, 14, 2):
        world.write(sequence, 2)
    known = [world.producers.check(header(sequence, 2), Origin.CLIENT) for sequence in range(4, 14, 2)]
    assert [each and each.first_offset for each in known] == [104, 106, 108, 110, 112]


def test_an_older_batch_is_out_of_order() -> None:
    world = World()
    for sequence in range(0, 14, 2):
        world.write(sequence, 2)
    assert world.refusal(2, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_part_of_a_known_batch_is_out_of_order() -> None:
    world = World()
    world.write(0, 4)
    assert world.refusal(0, 2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_from_the_largest_to_zero() -> None:
    world = World()
    world.write(LARGEST_SEQUENCE - 1, 2)
    world.write(0)
    assert world.refusal(2) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_may_wrap_within() -> None:
    world = World()
    world.write(LARGEST_SEQUENCE, 3)
    assert world.producers.check(header(LARGEST_SEQUENCE, 3), Origin.CLIENT) is not None
    world.write(2)


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one() -> None:
    world = World()
    world.write(0)
    assert world.refusal(1, epoch=1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    world.write(0, epoch=1)
    assert world.refusal(1, epoch=0) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert world.refusal(-1, epoch=0, origin=Origin.COORDINATOR) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_replicas_are_not_asked() -> None:
    world = World()
    world.write(0, epoch=3)
    assert world.producers.check(header(50, epoch=1), Origin.REPLICATION) is None


def test_an_open_transaction_takes_no_other_records() -> None:
    world = World()
    world.write(0, attributes=TRANSACTIONAL)
    assert world.refusal(1) is ErrorCode.INVALID_TXN_STATE


def expect(world: World, sequence: int, *, epoch: int = 0, wall_ms: int = NOW, second_protocol: bool = False) -> object:
    return world.producers.expect(9, epoch, sequence, wall_ms, second_protocol=second_protocol)


def test_while_a_transaction_has_not_begun_nothing_goes_before_its_lowest_sequence() -> None:
    """The batch with sequence 0 was refused, its coordinator being away: the one behind it must not take its place."""
    world = World()
    expect(world, 5)
    expect(world, 0)
    assert world.refusal(5, attributes=TRANSACTIONAL) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    world.write(0, 5, attributes=TRANSACTIONAL)
    world.write(5, attributes=TRANSACTIONAL)


def test_the_lowest_sequence_may_be_the_last_before_sequences_wrap() -> None:
    world = World()
    world.write(LARGEST_SEQUENCE - 1)
    expect(world, LARGEST_SEQUENCE)
    expect(world, 0)
    assert world.refusal(0, attributes=TRANSACTIONAL) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    world.write(LARGEST_SEQUENCE, attributes=TRANSACTIONAL)
    world.write(0, attributes=TRANSACTIONAL)


def test_the_lowest_sequence_is_that_of_the_newest_epoch() -> None:
    world = World()
    expect(world, 0)
    expect(world, 3, epoch=1)
    expect(world, 1)
    world.write(3, attributes=TRANSACTIONAL, epoch=1)


def test_a_zombie_is_told_so_before_its_sequence_is_looked_at() -> None:
    world = World()
    end(world, epoch=1)
    expect(world, 0)
    assert world.refusal(3, attributes=TRANSACTIONAL) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_ends_the_wait_for_a_lowest_sequence() -> None:
    world = World()
    token = expect(world, 0)
    before = world.producers.is_expected(9, token)
    end(world)
    world.write(0, attributes=TRANSACTIONAL)
    assert (before, world.producers.is_expected(9, token)) == (True, False)


def test_what_coordinators_write_has_no_lowest_sequence() -> None:
    world = World()
    expect(world, -1)
    assert world.producers.check(header(-1, attributes=TRANSACTIONAL), Origin.COORDINATOR) is None


def test_what_is_waited_for_is_forgotten_as_a_silent_producer_is() -> None:
    world = World()
    expect(world, 0)
    world.producers.expire(NOW + 99, 100)
    before = world.refusal(5, attributes=TRANSACTIONAL)
    world.producers.expire(NOW + 100, 100)
    world.write(5, attributes=TRANSACTIONAL)
    assert before is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_in_the_second_protocol_an_unknown_producer_begins_with_sequence_zero() -> None:
    world = World()
    expect(world, 5, second_protocol=True)
    assert world.refusal(5, attributes=TRANSACTIONAL) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_known_batch_is_known_again_whatever_is_waited_for() -> None:
    world = World()
    world.write(7)
    expect(world, 0)
    assert world.producers.check(header(7), Origin.CLIENT) is not None


def end(world: World, producer_id: int = 9, *, commit: bool = True, epoch: int = 0) -> object:
    batch = header(-1, producer_id=producer_id, epoch=epoch, attributes=TRANSACTIONAL | CONTROL)
    completed = world.producers.end_transaction(batch, world.offset, Marker(commit, 5, NOW))
    world.offset += 1
    if completed is not None:
        world.producers.forget_completed(completed)
    return completed


def test_the_first_unstable_offset_is_that_of_the_oldest_undecided_or_uncommitted_transaction() -> None:
    world = World()
    world.write(0, attributes=TRANSACTIONAL)
    world.write(0, attributes=TRANSACTIONAL, producer_id=8)
    seen = [world.producers.first_unstable_offset]
    end(world)
    seen.append(world.producers.first_unstable_offset)
    world.producers.high_watermark_moved(103)
    seen.append(world.producers.first_unstable_offset)
    end(world, 8)
    world.producers.high_watermark_moved(104)
    assert [*seen, world.producers.first_unstable_offset] == [100, 100, 101, None]


def test_behind_an_aborted_transaction_the_next_open_one_or_the_log_goes_on() -> None:
    world = World()
    world.write(0, attributes=TRANSACTIONAL, producer_id=8)
    world.write(0, attributes=TRANSACTIONAL)
    stable = []
    for producer_id in (9, 8):
        batch = header(-1, producer_id=producer_id, attributes=TRANSACTIONAL | CONTROL)
        completed = world.producers.end_transaction(batch, world.offset, Marker(False, 5, NOW))
        assert completed is not None
        stable.append(world.producers.last_stable_offset_after(completed))
        world.producers.forget_completed(completed)
        world.offset += 1
    assert stable == [100, 104]


def test_an_aborted_transaction_is_told_with_its_span() -> None:
    world = World()
    world.write(0, 3, attributes=TRANSACTIONAL)
    assert end(world, commit=False) == (9, 100, 103, True)


def test_a_marker_without_a_transaction_ends_nothing_but_fences() -> None:
    world = World()
    assert end(world, epoch=4) is None
    assert world.refusal(0, epoch=3) is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_zombie_coordinators_marker_is_refused() -> None:
    world = World()
    end(world)
    with pytest.raises(KafkaError, match="TRANSACTION_COORDINATOR_FENCED"):
        world.producers.check_marker(header(-1, attributes=CONTROL), Marker(True, 4, NOW))


def test_silent_producers_expire_unless_their_transaction_is_open() -> None:
    world = World()
    world.write(0)
    world.write(0, producer_id=8, attributes=TRANSACTIONAL)
    assert (world.producers.expire(NOW + 99, 100), world.producers.expire(NOW + 100, 100)) == (0, 1)
    assert [producer_id for producer_id, _ in world.producers.items()] == [8]


def test_a_marker_keeps_its_producer_from_expiring() -> None:
    world = World()
    world.write(0, attributes=TRANSACTIONAL)
    world.producers.end_transaction(header(-1, attributes=CONTROL), 101, Marker(True, 0, NOW + 50))
    assert (world.producers.expire(NOW + 149, 100), world.producers.expire(NOW + 150, 100)) == (0, 1)


def test_a_cleared_log_has_nothing_unstable() -> None:
    world = World()
    world.write(0, attributes=TRANSACTIONAL)
    end(world)
    world.write(1, attributes=TRANSACTIONAL)
    world.producers.clear(0)
    assert world.producers.first_unstable_offset is None


def test_a_snapshot_keeps_the_last_batch_and_open_transactions() -> None:
    world = World()
    world.write(0, 2)
    world.write(2, 2, attributes=TRANSACTIONAL)
    again = Producers()
    again.load(world.producers.snapshot(), 104, NOW, 1000)
    duplicate = again.check(header(2, 2, attributes=TRANSACTIONAL), Origin.CLIENT)
    assert (duplicate and duplicate.first_offset, again.first_unstable_offset, again.end_offset) == (102, 102, 104)


def test_a_snapshot_keeps_a_transaction_that_began_with_the_log() -> None:
    world = World()
    world.offset = 0
    world.write(0, attributes=TRANSACTIONAL)
    again = Producers()
    again.load(world.producers.snapshot(), 1, NOW, 1000)
    assert again.first_unstable_offset == 0


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many a log remembers."""
    monkeypatch.setattr("kbroker.log.producer_state.PRODUCERS_PER_PARTITION", 16)
    return 16


def test_a_log_remembers_only_so_many_producers(few: int) -> None:
    world = World()
    for producer_id in range(10 * few):
        world.write(0, producer_id=producer_id)
        assert len(world.producers) <= few
    assert (world.producers.get(10 * few - 1) is not None, world.producers.get(0)) == (True, None)


def test_who_wrote_longest_ago_is_forgotten_first(few: int) -> None:
    world = World()
    for producer_id in range(few):
        world.write(0, producer_id=producer_id)
    world.write(1, producer_id=0)
    world.write(0, producer_id=few)
    known = {producer_id for producer_id, _ in world.producers.items()}
    assert known == {0, *range(3, few + 1)}


def test_a_marker_counts_as_written_by_its_producer(few: int) -> None:
    world = World()
    for producer_id in range(few):
        world.write(0, producer_id=producer_id, attributes=TRANSACTIONAL)
    for producer_id in reversed(range(few)):
        marker = header(-1, producer_id=producer_id, epoch=1, attributes=CONTROL | TRANSACTIONAL)
        completed = world.producers.end_transaction(marker, world.offset, Marker(True, 0, NOW))
        assert completed is not None
        world.producers.forget_completed(completed)
        world.offset += 1
    world.write(0, producer_id=few)
    assert world.producers.get(few - 1) is None
    assert world.producers.get(0) is not None


def test_a_forgotten_producer_goes_on_where_it_was(few: int) -> None:
    world = World()
    world.write(0, 5, producer_id=77)
    for producer_id in range(few):
        world.write(0, producer_id=producer_id)
    assert world.producers.get(77) is None
    world.write(5, producer_id=77)
    assert world.refusal(7, producer_id=77) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_nobody_with_an_open_transaction_is_forgotten(few: int) -> None:
    world = World()
    for producer_id in range(3 * few):
        world.write(0, producer_id=producer_id, attributes=TRANSACTIONAL)
    for producer_id in range(3 * few, 6 * few):
        world.write(0, producer_id=producer_id)
    known = {producer_id for producer_id, _ in world.producers.items()}
    assert (known >= set(range(3 * few)), len(known) < 4 * few + few) == (True, True)
    assert world.producers.first_unstable_offset == 100


def test_who_waits_for_long_to_begin_a_transaction_is_forgotten_first(few: int) -> None:
    producers = World().producers
    first = producers.expect(1_000, 0, 0, NOW)
    tokens = [producers.expect(producer_id, 0, 0, NOW) for producer_id in range(few)]
    assert producers.is_expected(1_000, first) is False
    assert all(producers.is_expected(producer_id, token) for producer_id, token in enumerate(tokens))


def test_of_a_snapshot_of_many_the_newest_are_remembered(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr("kbroker.log.producer_state.PRODUCERS_PER_PARTITION", 1_000)
    world.producers = Producers()
    for producer_id in range(3 * few):
        world.write(0, producer_id=producer_id)
    monkeypatch.setattr("kbroker.log.producer_state.PRODUCERS_PER_PARTITION", few)
    again = Producers()
    again.load(world.producers.snapshot(), 200, NOW, 1000)
    assert {producer_id for producer_id, _ in again.items()} == set(range(2 * few, 3 * few))


def test_a_snapshot_is_laid_out_as_kafka_does() -> None:
    world = World()
    world.write(6, 2, epoch=3)
    rest = "00000009 0003 00000007 0000000000000065 00000001 00000000000f4240 ffffffff ffffffffffffffff"
    expected = bytes.fromhex("0000000100000000" + rest.replace(" ", ""))
    content = world.producers.snapshot()
    assert (content[:2], content[6:]) == (b"\0\1", expected)


@pytest.mark.parametrize("at", [0, 1, 3, 8, 9, 20, 55])
def test_a_damaged_snapshot_is_refused(at: int) -> None:
    world = World()
    world.write(0)
    content = bytearray(world.producers.snapshot())
    content[at] ^= 0x40
    with pytest.raises(CorruptFileError):
        parse_snapshot(bytes(content))


@pytest.mark.parametrize("size", [0, 9, 10, 55])
def test_a_torn_snapshot_is_refused(size: int) -> None:
    world = World()
    world.write(0)
    with pytest.raises(CorruptFileError):
        parse_snapshot(world.producers.snapshot()[:size])


def test_a_snapshot_that_promises_more_entries_than_it_has_is_damaged_not_newer() -> None:
    promising = (1).to_bytes(4, "big")
    with pytest.raises(CorruptFileError) as raised:
        parse_snapshot(b"\0\1" + crc32c(promising).to_bytes(4, "big") + promising)
    assert not isinstance(raised.value, NewerFormatError)


def test_a_newer_snapshot_is_told_from_a_damaged_one() -> None:
    with pytest.raises(NewerFormatError):
        parse_snapshot(b"\0\2" + crc32c(bytes(9)).to_bytes(4, "big") + bytes(9))
