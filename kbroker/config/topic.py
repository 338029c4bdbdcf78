"""Every setting of a topic that this broker honours, and those it accepts because tools and applications set them.

A topic's value is its own override, else the broker's default for all topics (`broker=`), so a changed broker default
reaches every topic without an override. Held by the log and the partitions; changed by CreateTopics and AlterConfigs.
"""

from __future__ import annotations

import re

from kbroker.config.broker import (
    COMPRESSION_TYPES,
    GZIP_LEVELS,
    VERSIONS,
)
from kbroker.config.settings import (
    LONG_MAX,
    NOT_TRUE,
    Boolean,
    Check,
    Double,
    Int,
    List,
    Long,
    Settings,
    String,
    at_least,
    between,
    each_of,
    one_of,
    setting,
)

NO_TIERS = "there is no tiered storage"
COMPACT = "compact"
THROTTLED = Check(
    "partition:broker, comma-separated, or *",
    # all of them at once: there may be as many as a topic has replicas
    lambda items: items == ("*",) or re.fullmatch(r"(?:[0-9]+:[0-9]+,)*", ",".join((*items, ""))) is not None,
)


class TopicConfig(Settings):
    """One topic's settings, resolved."""

    cleanup_policy: List = setting(
        ("delete",),
        each_of("compact", "delete"),
        broker="log.cleanup.policy",
        doc="delete drops old segments, compact keeps the last record of each key; both may be given.",
    )
    compression_type: String = setting(
        "producer", COMPRESSION_TYPES, broker="compression.type", doc="Codec in the log; producer keeps what arrives."
    )
    compression_gzip_level: Int = setting(
        -1, GZIP_LEVELS, broker="compression.gzip.level", doc="Level of gzip where the broker compresses."
    )
    compression_lz4_level: Int = setting(
        9, between(1, 17), broker="compression.lz4.level", doc="Level of lz4 where the broker compresses."
    )
    compression_zstd_level: Int = setting(
        3, between(-131_072, 22), broker="compression.zstd.level", doc="Level of zstd where the broker compresses."
    )
    delete_retention_ms: Long = setting(
        86_400_000,
        at_least(0),
        broker="log.cleaner.delete.retention.ms",
        doc="How long a deleted key's tombstone stays.",
    )
    errors_deadletterqueue_group_enable: Boolean = setting(
        False, doc="Whether groups may have this topic as their dead letter queue (KIP-1191)."
    )
    file_delete_delay_ms: Long = setting(
        60_000,
        at_least(0),
        broker="log.segment.delete.delay.ms",
        doc="How long a deleted segment's files remain, for readers inside.",
    )
    flush_messages: Long = setting(
        LONG_MAX,
        at_least(1),
        broker="log.flush.interval.messages",
        doc="Records after which the log is synced to disk, before they are acknowledged or shown.",
    )
    flush_ms: Long = setting(
        LONG_MAX, at_least(0), broker="log.flush.interval.ms", doc="Longest that a record stays unsynced."
    )
    index_interval_bytes: Int = setting(
        4096, at_least(0), broker="log.index.interval.bytes", doc="Bytes of log between two entries of an index."
    )
    max_compaction_lag_ms: Long = setting(
        LONG_MAX,
        at_least(1),
        broker="log.cleaner.max.compaction.lag.ms",
        doc="Age at which a record must be compacted.",
    )
    max_message_bytes: Int = setting(
        1_048_588, at_least(0), broker="message.max.bytes", doc="Largest batch of records."
    )
    message_downconversion_enable: Boolean = setting(
        True,
        broker="log.message.downconversion.enable",
        doc="Whether clients too old for v2 batches are served converted ones.",
    )
    message_format_version: String = setting(
        "3.0-IV1",
        VERSIONS,
        broker="log.message.format.version",
        doc="Version of Kafka whose format the log is to have; heeded if inter.broker.protocol.version is below 3.0.",
    )
    message_timestamp_type: String = setting(
        "CreateTime",
        one_of("CreateTime", "LogAppendTime"),
        broker="log.message.timestamp.type",
        doc="Whether a record's timestamp is its producer's or the time of its append.",
    )
    message_timestamp_before_max_ms: Long = setting(
        LONG_MAX,
        at_least(0),
        fallbacks=(("message.timestamp.difference.max.ms", 1),),
        broker="log.message.timestamp.before.max.ms",
        doc="Most that a producer's timestamp may lie behind the broker's clock.",
    )
    message_timestamp_after_max_ms: Long = setting(
        LONG_MAX,
        at_least(0),
        fallbacks=(("message.timestamp.difference.max.ms", 1),),
        broker="log.message.timestamp.after.max.ms",
        doc="Most that a producer's timestamp may lie ahead of the broker's clock.",
    )
    message_timestamp_difference_max_ms: Long = setting(
        LONG_MAX,
        at_least(0),
        broker="log.message.timestamp.difference.max.ms",
        doc="Older name of both timestamp limits, before and after.",
    )
    min_cleanable_dirty_ratio: Double = setting(
        0.5,
        between(0, 1),
        broker="log.cleaner.min.cleanable.ratio",
        doc="Uncompacted share of the log that starts work.",
    )
    min_compaction_lag_ms: Long = setting(
        0,
        at_least(0),
        broker="log.cleaner.min.compaction.lag.ms",
        doc="Age below which a record is left alone.",
    )
    min_insync_replicas: Int = setting(
        1, at_least(1), broker="min.insync.replicas", doc="Replicas that must be in sync for a write with acks=all."
    )
    preallocate: Boolean = setting(
        False, broker="log.preallocate", doc="Whether a new segment's file gets its whole size at once."
    )
    retention_bytes: Long = setting(
        -1,
        broker="log.retention.bytes",
        doc="Size of a partition above which old segments are deleted; -1 for no bound.",
    )
    retention_ms: Long = setting(
        604_800_000,
        at_least(-1),
        broker="log.retention.ms",
        doc="Age at which records are deleted; -1 keeps them for ever.",
    )
    segment_bytes: Int = setting(
        1_073_741_824, at_least(14), broker="log.segment.bytes", doc="Size at which a segment is full."
    )
    segment_index_bytes: Int = setting(
        10_485_760,
        at_least(4),
        broker="log.index.size.max.bytes",
        doc="Space set aside for the index of the active segment.",
    )
    segment_jitter_ms: Long = setting(
        0, at_least(0), broker="log.roll.jitter.ms", doc="Most that a segment's age limit is shortened by chance."
    )
    segment_ms: Long = setting(604_800_000, at_least(1), broker="log.roll.ms", doc="Age at which a segment is closed.")
    unclean_leader_election_enable: Boolean = setting(
        False,
        broker="unclean.leader.election.enable",
        doc="Whether a replica that is behind may lead when no other is left; loses records.",
    )
    leader_replication_throttled_replicas: List = setting(
        (), THROTTLED, doc="Leaders that send no faster than they may: partition:broker, or * for all."
    )
    follower_replication_throttled_replicas: List = setting(
        (), THROTTLED, doc="Followers that take no faster than they may: partition:broker, or * for all."
    )
    remote_storage_enable: Boolean = setting(
        False, NOT_TRUE, doc="Whether old segments move to remote storage; must be false, as there is no such storage."
    )
    remote_log_copy_disable: Boolean = setting(False, unused=NO_TIERS, doc="Whether tiering of the topic is paused.")
    remote_log_delete_on_disable: Boolean = setting(
        False, unused=NO_TIERS, doc="Whether remote data is deleted when tiering is switched off."
    )
    local_retention_bytes: Long = setting(-2, at_least(-2), unused=NO_TIERS, doc="Size kept locally of a tiered log.")
    local_retention_ms: Long = setting(-2, at_least(-2), unused=NO_TIERS, doc="Age kept locally of a tiered log.")

    @property
    def compacts(self) -> bool:
        """Whether records need keys, because the log keeps the last of each."""
        return COMPACT in self.cleanup_policy


def contradictions(config: TopicConfig) -> list[str]:
    """Values that are legal alone and not together, a line each. Source: the rules of Apache Kafka 3.9."""
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        return [
            f"min.compaction.lag.ms={config.min_compaction_lag_ms}: allowed: at most max.compaction.lag.ms "
            f"({config.max_compaction_lag_ms})"
        ]
    return []
