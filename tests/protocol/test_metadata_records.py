"""Metadata records carry a frame, and what is not known is refused with one sentence."""

from __future__ import annotations

import pytest

from protocol.message import Message
from protocol.messages import metadata_records
from protocol.messages.metadata_records import (
    TYPES,
    MetadataRecordError,
    NoOpRecord,
    PartitionChangeRecord,
    TopicRecord,
    decode_record,
    encode_record,
)

TOPIC = TopicRecord(name="orders", topic_id=b"t" * 16)


def test_every_record_of_the_file_has_a_type() -> None:
    declared = [
        each for each in vars(metadata_records).values() if isinstance(each, type) and issubclass(each, Message)
    ]
    assert set(declared) - {Message} == set(TYPES.values())


def test_a_frame_is_laid_out_as_documented() -> None:
    assert encode_record(TOPIC, 0) == b"\1\2\0" + TOPIC.encode(0)
    assert encode_record(NoOpRecord(), 0) == b"\1\x14\0\0"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_record_reads_back_with_its_version(version: int) -> None:
    record = PartitionChangeRecord(partition_id=3, topic_id=b"t" * 16, isr=[1, 2], leader=-1)
    assert decode_record(memoryview(encode_record(record, version))) == (record, version)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (None, "frame: of a metadata record is cut short or has a number too large"),
        (b"\1\2", "frame: of a metadata record is cut short or has a number too large"),
        (b"\xff\xff\xff\xff\xff\1\2\0", "frame: of a metadata record is cut short or has a number too large"),
        (b"\0\2\0", "frame: of a metadata record has version 0, known is 1"),
        (b"\1\x1e\0\0", "type: 30 of a metadata record, in version 0, is not known"),
        (b"\1\6\0\0", "type: 6 of a metadata record, in version 0, is not known"),
        (b"\1\x05\3\0", "version: 3 of PartitionChangeRecord is not known, 0 to 2 are"),
        (encode_record(TOPIC, 0) + b"more", "TopicRecord: has 4 bytes behind it"),
        (encode_record(TOPIC, 0)[:-3], "TopicRecord.topic_id: needs 16 bytes at position 10, and 14 are left"),
    ],
)
def test_what_is_not_known_is_one_sentence(value: bytes | None, sentence: str) -> None:
    with pytest.raises(MetadataRecordError) as caught:
        decode_record(value)
    assert str(caught.value) == sentence
