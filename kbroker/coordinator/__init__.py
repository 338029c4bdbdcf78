"""What every coordinator is made of: a shard of state for each partition of a topic, and one way into it."""

from kbroker.coordinator.effects import (
    Caller,
    CancelTimer,
    CoordinatorEvent,
    Effect,
    Forward,
    Operation,
    Reply,
    SetTimer,
    TimerKey,
)
from kbroker.coordinator.routing import java_hash, partition_for
from kbroker.coordinator.runtime import Runtime
from kbroker.coordinator.shard import Shard
from kbroker.coordinator.store import Appended, KeyValue, Store, TopicStore

__all__ = [
    "Appended",
    "Caller",
    "CancelTimer",
    "CoordinatorEvent",
    "Effect",
    "Forward",
    "KeyValue",
    "Operation",
    "Reply",
    "Runtime",
    "SetTimer",
    "Shard",
    "Store",
    "TimerKey",
    "TopicStore",
    "java_hash",
    "partition_for",
]
