"""The records of `__share_group_state` as values, and their bytes: those of Apache Kafka 4.4.

A snapshot says all that is known of a share-partition, an update what has changed; a snapshot without a value says that
nothing is. `share_shard.py` makes and replays them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.log.checkpoints import format_uuid
from kbroker.share.share_partition import StateBatch
from protocol.message import Message
from protocol.messages.stored import decode_versioned, encode_versioned, version_of
from protocol.messages.stored_share_groups import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    StoredStateBatch,
)
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.coordinator import KeyValue

SNAPSHOT, UPDATE = 0, 1
RECORDS: dict[int, tuple[type[Message], type[Message]]] = {
    SNAPSHOT: (ShareSnapshotKey, ShareSnapshotValue),
    UPDATE: (ShareUpdateKey, ShareUpdateValue),
}
"""The classes of key and value, by the type of the key."""


class Place(NamedTuple):
    """A share-partition."""

    group_id: str
    topic_id: bytes
    partition: int

    @property
    def coordinator_key(self) -> str:
        """By which its share coordinator is found."""
        return f"{self.group_id}:{format_uuid(self.topic_id)}:{self.partition}"


class ShareState(NamedTuple):
    """What is kept of a share-partition. complete: records from the start offset on that are over; -1 unknown.

    created_ms, written_ms: wall clock, of the first and the last snapshot.
    """

    snapshot_epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    start_offset: int = -1
    complete: int = -1
    batches: tuple[StateBatch, ...] = ()
    created_ms: int = 0
    written_ms: int = 0


class ShareRecord(NamedTuple):
    """A record. state: None says that nothing is known any more; of an update, only what an update says."""

    place: Place
    state: ShareState | None
    is_update: bool = False


def encode(record: ShareRecord) -> KeyValue:
    """See Shard.encode."""
    place, state, is_update = record
    kind = UPDATE if is_update else SNAPSHOT
    make = ShareUpdateKey if is_update else ShareSnapshotKey
    key = make(group_id=place.group_id, topic_id=place.topic_id, partition=place.partition)
    stored = encode_versioned(key, kind)
    if state is None:
        return stored, None
    value: Message
    if is_update:
        value = ShareUpdateValue(
            snapshot_epoch=state.snapshot_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.complete,
            state_batches=_stored(state.batches),
        )
    else:
        value = ShareSnapshotValue(
            snapshot_epoch=state.snapshot_epoch,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.complete,
            create_timestamp=state.created_ms,
            write_timestamp=state.written_ms,
            state_batches=_stored(state.batches),
        )
    return stored, encode_versioned(value, 0)


def decode(key: bytes, value: bytes | None) -> ShareRecord | None:
    """See Shard.decode."""
    kind = version_of(key)
    if kind not in RECORDS:
        return None
    stored_key, stored_value = RECORDS[kind]
    named = decode_versioned(stored_key, key)
    assert isinstance(named, ShareSnapshotKey | ShareUpdateKey), named
    place = Place(named.group_id, bytes(named.topic_id), named.partition)
    if value is None:
        return ShareRecord(place, None, kind == UPDATE)
    said = decode_versioned(stored_value, value)
    if isinstance(said, ShareUpdateValue):
        state = ShareState(
            said.snapshot_epoch,
            -1,
            said.leader_epoch,
            said.start_offset,
            said.delivery_complete_count,
            _values(said.state_batches),
        )
        return ShareRecord(place, state, is_update=True)
    assert isinstance(said, ShareSnapshotValue), said
    return ShareRecord(
        place,
        ShareState(
            said.snapshot_epoch,
            said.state_epoch,
            said.leader_epoch,
            said.start_offset,
            said.delivery_complete_count,
            _values(said.state_batches),
            said.create_timestamp,
            said.write_timestamp,
        ),
    )


def _stored(batches: Iterable[StateBatch]) -> list[StoredStateBatch]:
    return [
        StoredStateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)
        for first, last, state, count in batches
    ]


def _values(batches: Iterable[StoredStateBatch]) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count) for each in batches
    )
