"""What the logs of a broker find out by themselves, told to the other parts as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.log.log import Log
    from kbroker.log.names import TopicPartition


class LogDirectoryFailed(NamedTuple):
    """A log directory went offline, and these partitions' logs with it. is_last: there is no other one left."""

    path: str
    partitions: Sequence[TopicPartition]
    is_last: bool


class LogFlushed(NamedTuple):
    """An fsync has ended that flush.messages asked for."""

    partition: TopicPartition


class LogMoved(NamedTuple):
    """A log is in another log directory from now on (AlterReplicaLogDirs)."""

    partition: TopicPartition


class LogTruncated(NamedTuple):
    """A log that was cut back is durably so: it may be appended to."""

    partition: TopicPartition
    log: Log


class Notice(NamedTuple):
    """A line for the operator."""

    text: str


class SegmentsDeleted(NamedTuple):
    """Segments were dropped at the beginning of a log. name: of its folder. why: in Kafka's words."""

    name: str
    segments: int
    first_offset: int
    log_start_offset: int
    size_bytes: int
    why: str


class LogCleaned(NamedTuple):
    """A log was compacted, up to an offset: bytes of its segments before and after, records kept, how long it took."""

    partition: TopicPartition
    cleaned_to: int
    bytes_before: int
    bytes_after: int
    records: int
    took_ms: int
