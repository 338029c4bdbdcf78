"""What a topic's settings mean to its logs: one value, shared by all partitions of the topic.

Built by `kbroker.config` from server.properties and topic settings (names there: dots for underscores), replaced as a
whole when a setting changes, read by every file of this package. Checks nothing: the builder has done so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kbroker.config.formats import stored_format
from protocol.namedtuple import NamedTuple
from protocol.records.batch import MAGIC

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig, TopicConfig

NEVER = 2**63 - 1
"""What Kafka writes for "no limit" where -1 is not taken."""


class _Values(NamedTuple):
    """Settings of a log, defaults as in Apache Kafka 3.9. Sizes in bytes, times in ms."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20
    retention_ms: int = 7 * 24 * 3600 * 1000  # -1: forever
    retention_bytes: int = -1  # -1: any size
    flush_messages: int = NEVER  # appended offsets after which the log asks to be flushed
    flush_ms: int = NEVER
    max_message_bytes: int = 1_048_588  # of one batch, as stored
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"] = "CreateTime"
    message_timestamp_before_max_ms: int = NEVER
    message_timestamp_after_max_ms: int = NEVER
    cleanup_policy: frozenset[str] = frozenset({"delete"})  # of "delete" and "compact"
    compression_type: str = "producer"  # or a codec's name: none, gzip, snappy, lz4, zstd
    compression_level: int | None = None  # of that codec; None: its own default
    preallocate: bool = False
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 24 * 3600 * 1000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = NEVER
    min_cleanable_dirty_ratio: float = 0.5
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    message_downconversion_enable: bool = True
    message_format: int = MAGIC  # of what is stored; 0 and 1: messages of old formats
    check_records: bool = True  # parse every record that a producer sends, as Apache's broker does; False: only where
    # another setting needs a look at records

    compact: bool = False  # this and the rest follow from the above
    roll_ms: int = 0  # segment_ms, or max_compaction_lag_ms if that is less: compaction leaves the active segment alone
    delete: bool = False
    log_append_time: bool = False
    limits_timestamps: bool = False
    looks_at_records: bool = False
    plain_bytes: int = 0  # a batch up to this size that is as most are needs one look only; 0: none does with one
    own_bytes: int = 0  # up to this size, an uncompressed batch that the broker itself has made needs none


class LogConfig(_Values):
    """Settings of a log by keyword, and what follows from them, worked out once."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers take the keywords from the values

        def __new__(cls, **settings: Any) -> LogConfig:
            return super().__new__(cls, **settings)._concluded()

    def __getnewargs_ex__(self) -> tuple[tuple[()], dict[str, Any]]:
        """For pickle, which would give them by position: a log's settings go to the process that compacts it."""
        return (), self._asdict()

    @property
    def has_epochs(self) -> bool:
        """Whether records say in which leader epoch they were written: messages of old formats do not."""
        return self.message_format == MAGIC

    def _concluded(self) -> LogConfig:
        compact, log_append_time = "compact" in self.cleanup_policy, self.message_timestamp_type == "LogAppendTime"
        is_limited = min(self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms) != NEVER
        limits_timestamps = is_limited and not log_append_time
        looks_at_records = self.check_records or compact or limits_timestamps or self.compression_type != "producer"
        is_special = compact or limits_timestamps or log_append_time or self.compression_type != "producer"
        is_special = is_special or self.message_format != MAGIC
        changes_own = log_append_time or self.message_format != MAGIC
        changes_own = changes_own or self.compression_type not in ("producer", "uncompressed")
        return self._replace(
            compact=compact,
            roll_ms=min(self.segment_ms, self.max_compaction_lag_ms if compact else NEVER),
            delete="delete" in self.cleanup_policy,
            log_append_time=log_append_time,
            limits_timestamps=limits_timestamps,
            looks_at_records=looks_at_records,
            plain_bytes=0 if is_special or not looks_at_records else min(self.max_message_bytes, self.segment_bytes),
            own_bytes=0 if changes_own else min(self.max_message_bytes, self.segment_bytes),
        )

    @classmethod
    def of(cls, topic: TopicConfig, broker: BrokerConfig) -> LogConfig:
        """The same from a topic's resolved settings; producer.id.expiration.ms is the broker's."""
        levels = {
            "gzip": topic.compression_gzip_level,
            "lz4": topic.compression_lz4_level,
            "zstd": topic.compression_zstd_level,
        }
        return cls(
            segment_bytes=topic.segment_bytes,
            segment_ms=topic.segment_ms,
            segment_jitter_ms=topic.segment_jitter_ms,
            index_interval_bytes=topic.index_interval_bytes,
            segment_index_bytes=topic.segment_index_bytes,
            retention_ms=topic.retention_ms,
            retention_bytes=topic.retention_bytes,
            flush_messages=topic.flush_messages,
            flush_ms=topic.flush_ms,
            max_message_bytes=topic.max_message_bytes,
            message_timestamp_type="LogAppendTime" if topic.message_timestamp_type == "LogAppendTime" else "CreateTime",
            message_timestamp_before_max_ms=topic.message_timestamp_before_max_ms,
            message_timestamp_after_max_ms=topic.message_timestamp_after_max_ms,
            cleanup_policy=frozenset(topic.cleanup_policy),
            compression_type=topic.compression_type,
            compression_level=levels.get(topic.compression_type),
            preallocate=topic.preallocate,
            file_delete_delay_ms=topic.file_delete_delay_ms,
            delete_retention_ms=topic.delete_retention_ms,
            min_compaction_lag_ms=topic.min_compaction_lag_ms,
            max_compaction_lag_ms=topic.max_compaction_lag_ms,
            min_cleanable_dirty_ratio=topic.min_cleanable_dirty_ratio,
            producer_id_expiration_ms=broker.producer_id_expiration_ms,
            message_downconversion_enable=topic.message_downconversion_enable,
            message_format=stored_format(topic.message_format_version, broker.inter_broker_protocol_version),
        )
