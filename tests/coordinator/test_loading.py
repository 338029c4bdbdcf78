"""Batches of a partition, replayed: whole ones, from an offset on, whatever a cleaner or a cut has left of them."""

from __future__ import annotations

import pytest

from kbroker.coordinator.loading import replay_batches
from protocol.records import Record, legacy
from protocol.records.batch import HEADER_SIZE
from protocol.records.content import build_batch
from tests.coordinator.memory import MemoryStore
from tests.coordinator.test_runtime import Counter
from tests.log.worlds import batch

KEYS = (b"a", b"b", b"c")


def replayed(data: bytes, offset: int = 0) -> tuple[list[str], int]:
    """The words that a shard is fed, and the offset that follows."""
    shard = Counter(0, 1, MemoryStore())
    end = replay_batches(shard, "t", memoryview(data), offset)
    return [word for word, _ in shard.words], end


def three(base_offset: int = 0) -> bytearray:
    made = build_batch([Record(at, 0, key, b"") for at, key in enumerate(KEYS)])
    made[:8] = base_offset.to_bytes(8, "big")
    return made


@pytest.mark.parametrize("offset", range(3))
def test_records_before_the_offset_are_left_out(offset: int) -> None:
    assert replayed(three(), offset) == (["a", "b", "c"][offset:], 3)


def test_a_record_without_a_key_is_passed_by() -> None:
    assert replayed(build_batch([Record(0, 0, None, b""), Record(1, 0, b"b", b"")])) == (["b"], 2)


@pytest.mark.parametrize("left", [HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 5])
def test_a_batch_that_is_not_whole_is_left_for_the_next_slice(left: int) -> None:
    assert replayed(bytes(three()) + bytes(three(3))[:left]) == (["a", "b", "c"], 3)


def test_a_batch_that_a_cleaner_has_emptied_moves_the_offset() -> None:
    emptied = bytes(batch(0, base_offset=3, records=b"", last_offset_delta=1))
    assert len(emptied) == HEADER_SIZE
    assert replayed(bytes(three()) + emptied) == (["a", "b", "c"], 5)


@pytest.mark.parametrize("codec_id", [0, 1])
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_an_old_format_are_read(magic: int, codec_id: int) -> None:
    old = [Record(at, 0 if magic else -1, key, b"") for at, key in enumerate(KEYS)]
    old_set = bytes(legacy.build_set(old, magic, codec_id=codec_id))
    assert replayed(old_set + bytes(three(3))) == (["a", "b", "c"] * 2, 6)


def test_a_message_of_an_old_format_may_be_smaller_than_the_header_of_a_batch() -> None:
    tombstone = bytes(legacy.build_set([Record(0, -1, b"a", None)], 0))
    assert len(tombstone) < HEADER_SIZE
    assert replayed(tombstone) == (["a"], 1)
