"""The records of __transaction_state: one for each transactional id, to bytes and back.

Keys and values begin with an int16 that is the version. Written as Apache Kafka 3.9 with ZooKeeper writes them (key 0,
value 0; value 1 of a transaction whose end has raised the epoch, KIP-890), so either broker can load the other's; a
key of a newer version is passed by.
"""

from __future__ import annotations

from kbroker.coordinator import KeyValue
from kbroker.txn.state import EMPTY, NO_EPOCH, NO_ID, RAISES, STATUS, STATUS_OF, Transaction
from protocol.flat import Flat
from protocol.message import DecodeError
from protocol.messages.stored import (
    TransactionLogKey,
    TransactionLogValue,
    decode_versioned,
    encode_flat,
    version_of,
)
from protocol.namedtuple import NamedTuple

KEY_VERSION = 0
VALUE_VERSION, RAISING_VALUE_VERSION = 0, 1


class TransactionRecord(NamedTuple):
    """What is known of a transactional id; None: it is forgotten."""

    name: str
    transaction: Transaction | None


def encode(record: TransactionRecord) -> KeyValue:
    """A record as it is stored; a value of None is a tombstone."""
    key = encode_flat(TransactionLogKey, (record.name,), KEY_VERSION)
    if record.transaction is None:
        return key, None
    version = RAISING_VALUE_VERSION if record.transaction.client_version == RAISES else VALUE_VERSION
    return key, encode_flat(TransactionLogValue, _value(record.transaction, version), version)


def _value(transaction: Transaction, version: int) -> Flat:
    """The fields of TransactionLogValue."""
    ids, client_version = (NO_ID, NO_ID), 0
    if version == RAISING_VALUE_VERSION:
        ids, client_version = (transaction.previous_id, transaction.next_id), transaction.client_version
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(index)
    return (
        transaction.producer_id,
        *ids,
        transaction.producer_epoch,
        NO_EPOCH,
        transaction.timeout_ms,
        STATUS_OF[transaction.state],
        None if transaction.state is EMPTY else list(topics.items()),
        transaction.updated_ms,
        transaction.started_ms,
        client_version,
    )


def decode(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """What a record says; None for a kind that this broker does not know. Raises: DecodeError."""
    if version_of(key) != KEY_VERSION:
        return None
    name = decode_versioned(TransactionLogKey, key).transactional_id
    if value is None:
        return TransactionRecord(name, None)
    read = decode_versioned(TransactionLogValue, value)
    state = STATUS.get(read.transaction_status)
    if state is None:
        raise DecodeError("transaction_status", f"{read.transaction_status} is no state of a transaction")
    partitions = frozenset(
        (topic.topic, index) for topic in read.transaction_partitions or () for index in topic.partition_ids
    )
    return TransactionRecord(
        name,
        Transaction(
            name,
            read.producer_id,
            read.producer_epoch,
            read.transaction_timeout_ms,
            state,
            partitions,
            read.transaction_start_timestamp_ms,
            read.transaction_last_update_timestamp_ms,
            previous_id=read.previous_producer_id,
            next_id=read.next_producer_id,
            client_version=read.client_transaction_version,
        ),
    )
