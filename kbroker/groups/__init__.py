"""Groups: who reads what, and how far; kept in __consumer_offsets."""

from kbroker.groups.coordinator import GroupCoordinator, java_hash, partition_for
from kbroker.groups.effects import (
    Append,
    Caller,
    CancelTimer,
    Effect,
    Happened,
    Record,
    Reply,
    SetTimer,
    TimerKey,
    Write,
)
from kbroker.groups.offsets import Commit, TopicPartition

__all__ = [
    "Append",
    "Caller",
    "CancelTimer",
    "Commit",
    "Effect",
    "GroupCoordinator",
    "Happened",
    "Record",
    "Reply",
    "SetTimer",
    "TimerKey",
    "TopicPartition",
    "Write",
    "java_hash",
    "partition_for",
]
