"""What is in a snapshot of the metadata log: record batches that stand for the beginning of the log.

| batch | records |
|---|---|
| the first, a control batch | SnapshotHeader; where voters are records of the log, also KRaftVersion and KRaftVoters |
| the others | metadata records, as in the log |
| the last, a control batch | SnapshotFooter: without it the snapshot is not whole |

Offsets run from 0 on and mean nothing; the leader epoch of all is that of the snapshot. The log's owner names, writes
and reads the file. Source: KIP-630, KIP-853.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kbroker.quorum.image import MetadataImage
from protocol.message import Message
from protocol.messages.metadata_records import encode_record
from protocol.messages.quorum import KRaftVersionRecord, SnapshotFooterRecord, SnapshotHeaderRecord, VotersRecord
from protocol.namedtuple import NamedTuple
from protocol.records import Record
from protocol.records.content import build_batch
from protocol.records.control_records import build_quorum_batch

BATCH_RECORDS = 1024
"""In a batch, as many as Apache's brokers write."""
BATCH_BYTES = 1 << 20
"""Values in a batch; readers take batches of 8 MiB (internal.metadata.max.batch.size.in.bytes)."""


class SnapshotHead(NamedTuple):
    """What a snapshot says besides its records.

    epoch: of the last record that it stands for. last_timestamp: ms, when that was appended. kraft_version: 0 or 1.
    voters: None with version 0, or if they are not known.
    """

    epoch: int
    last_timestamp: int
    kraft_version: int = 0
    voters: VotersRecord | None = None


def snapshot_batches(head: SnapshotHead, values: Iterable[bytes], now_ms: int) -> Iterator[bytearray]:
    """The batches of a snapshot, in order. values: records in their frames. now_ms: the timestamp of all records."""
    control: list[Message] = [SnapshotHeaderRecord(version=0, last_contained_log_timestamp=head.last_timestamp)]
    if head.kraft_version:
        control.append(KRaftVersionRecord(version=0, k_raft_version=head.kraft_version))
        if head.voters is not None:
            control.append(head.voters)
    yield build_quorum_batch(control, timestamp=now_ms, offset=0, leader_epoch=head.epoch)
    offset, size = len(control), 0
    records: list[Record] = []
    for value in values:
        if records and (len(records) == BATCH_RECORDS or size + len(value) > BATCH_BYTES):
            yield build_batch(records, leader_epoch=head.epoch)
            records, size = [], 0
        records.append(Record(offset, now_ms, None, value))
        offset, size = offset + 1, size + len(value)
    if records:
        yield build_batch(records, leader_epoch=head.epoch)
    yield build_quorum_batch(
        [SnapshotFooterRecord(version=0)], timestamp=now_ms, offset=offset, leader_epoch=head.epoch
    )


def image_values(image: MetadataImage) -> Iterator[bytes]:
    """The image in frames, one a record. It may change while they are written: they are those of now."""
    return (encode_record(record, version) for record, version in image.records())
