"""Records that are kept carry their version in front, and refuse the versions they do not have."""

from __future__ import annotations

import pytest

from protocol.message import DecodeError
from protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription, TopicPartition
from protocol.messages.stored import (
    ControlRecordTypeSchema,
    EndTxnMarker,
    GroupMetadataKey,
    LeaderChangeMessage,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogValue,
    decode_versioned,
    encode_versioned,
    version_of,
)
from protocol.messages.stored_consumer_groups import ClassicMemberMetadata, ConsumerGroupMemberMetadataValue

COMMIT = OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=1000)


def test_key_of_an_offset_has_kafkas_bytes() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert encode_versioned(key, 1) == bytes.fromhex("0001 0001 67 0001 74 00000003")


def test_version_in_front_tells_the_kind_of_key() -> None:
    assert version_of(encode_versioned(GroupMetadataKey(group="g"), 2)) == 2


def test_end_of_transaction_has_kafkas_bytes() -> None:
    key = encode_versioned(ControlRecordTypeSchema(type=1), 0)
    assert (key, encode_versioned(EndTxnMarker(coordinator_epoch=5), 0)) == (bytes([0, 0, 0, 1]), bytes([0] * 5 + [5]))


@pytest.mark.parametrize("version", [3, 4])
def test_stored_value_comes_back(version: int) -> None:
    assert decode_versioned(OffsetCommitValue, encode_versioned(COMMIT, version)) == COMMIT


def test_old_value_has_no_leader_epoch() -> None:
    assert decode_versioned(OffsetCommitValue, encode_versioned(COMMIT, 2)).leader_epoch == -1


NO_PROTOCOLS = ClassicMemberMetadata(session_timeout_ms=1, supported_protocols=[])


@pytest.mark.parametrize(("classic", "tag"), [(None, "00 01 00"), (NO_PROTOCOLS, "00 07 01 00000001 01 00")])
def test_member_of_the_newer_protocol_says_so(classic: ClassicMemberMetadata | None, tag: str) -> None:
    """Kafka's classes take a tag that is not there for an empty struct, and the member for a classic one."""
    value = ConsumerGroupMemberMetadataValue(
        instance_id=None,
        rack_id=None,
        client_id="",
        client_host="",
        subscribed_topic_names=[],
        subscribed_topic_regex=None,
        rebalance_timeout_ms=1,
        server_assignor=None,
        classic_member_metadata=classic,
    )
    written = encode_versioned(value, 0)
    assert written == bytes.fromhex("0000 00 00 01 01 01 00 00000001 00 01" + tag)
    assert decode_versioned(ConsumerGroupMemberMetadataValue, written) == value


def test_tags_of_later_kafkas_survive() -> None:
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=2,
        transaction_timeout_ms=3,
        transaction_status=0,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=4,
        transaction_start_timestamp_ms=-1,
        next_producer_id=9,
        unknown_tags={17: b"later"},
    )
    assert decode_versioned(TransactionLogValue, encode_versioned(value, 1)) == value


@pytest.mark.parametrize("raw", [b"", b"\0", b"\x00\x05", b"\xff\xff"])
def test_missing_or_unknown_version_is_refused(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="version"):
        decode_versioned(OffsetCommitValue, raw)


def test_later_subscription_is_read_as_the_newest_known() -> None:
    known = ConsumerProtocolSubscription(
        topics=["a"],
        user_data=None,
        owned_partitions=[TopicPartition(topic="a", partitions=[0, 1])],
        generation_id=4,
        rack_id="r",
    )
    later = b"\x00\x09" + encode_versioned(known, 3)[2:] + b"fields of version 9"
    assert decode_versioned(ConsumerProtocolSubscription, later, newer_as_newest=True) == known


def test_negative_version_is_never_read() -> None:
    with pytest.raises(DecodeError, match="version"):
        decode_versioned(ConsumerProtocolAssignment, b"\xff\xff\0\0\0\0", newer_as_newest=True)


def test_leader_change_carries_its_version_as_a_field() -> None:
    change = LeaderChangeMessage(version=0, leader_id=1, voters=[], granting_voters=[])
    assert version_of(change.encode(0)) == 0
