"""What is set for a share group (resource type GROUP), or for all of them: the settings of leaders and coordinators.

Of text as it is stored, which was checked when it was set: what is out of the broker's bounds now counts as the nearest
bound, as in Apache Kafka 4.4.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.config.broker import BrokerConfig

LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration"
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+)(?:\.(?P<part>\d{1,9}))?S)?)?",
    re.IGNORECASE,
)


class AutoOffsetReset(NamedTuple):
    """Where a group begins. since_ms: with the records that are no older than this; None: with all, or with none."""

    is_earliest: bool = False
    since_ms: int | None = None


def parse_auto_offset_reset(text: str) -> AutoOffsetReset:
    """Of share.auto.offset.reset: earliest, latest, or by_duration:P1DT2H. Raises: ValueError."""
    kind, _, duration = text.strip().partition(":")
    if kind.lower() in (LATEST, EARLIEST) and not duration:
        return AutoOffsetReset(kind.lower() == EARLIEST)
    found = _DURATION.fullmatch(duration) if kind.lower() == BY_DURATION else None
    if found is None or not any(found.groups()) or duration[-1] in "tT":
        raise ValueError(f"{text!r}: allowed: earliest, latest, or by_duration: and a duration as P1DT2H30M")
    part = {name: int(value) for name, value in found.groupdict(default="0").items() if name != "part"}
    seconds = ((part["days"] * 24 + part["hours"]) * 60 + part["minutes"]) * 60 + part["seconds"]
    return AutoOffsetReset(since_ms=seconds * 1000 + int((found["part"] or "0").ljust(3, "0")[:3]))


class ShareGroupConfig(NamedTuple):
    """The settings of one share group that its share-partitions go by, resolved."""

    record_lock_duration_ms: int
    delivery_count_limit: int
    partition_max_record_locks: int
    auto_offset_reset: AutoOffsetReset
    reads_committed: bool
    renew_acknowledge_enable: bool
    dead_letter_topic: str
    copies_dead_letters: bool

    @classmethod
    def of(cls, said: Mapping[str, str], broker: BrokerConfig) -> ShareGroupConfig:
        """said: what is set for the group, by Kafka's names."""

        def number(name: str, default: int, low: int, high: int) -> int:
            return max(low, min(int(said.get(name, default)), high))

        def is_on(name: str, default: str) -> bool:
            return said.get(name, default).strip().lower() == "true"

        return cls(
            number(
                "share.record.lock.duration.ms",
                broker.group_share_record_lock_duration_ms,
                broker.group_share_min_record_lock_duration_ms,
                broker.group_share_max_record_lock_duration_ms,
            ),
            number(
                "share.delivery.count.limit",
                broker.group_share_delivery_count_limit,
                broker.group_share_min_delivery_count_limit,
                broker.group_share_max_delivery_count_limit,
            ),
            number(
                "share.partition.max.record.locks",
                broker.group_share_partition_max_record_locks,
                broker.group_share_min_partition_max_record_locks,
                broker.group_share_max_partition_max_record_locks,
            ),
            parse_auto_offset_reset(said.get("share.auto.offset.reset", LATEST)),
            said.get("share.isolation.level", "read_uncommitted").strip().lower() == "read_committed",
            is_on("share.renew.acknowledge.enable", "true"),
            said.get("errors.deadletterqueue.topic.name", "").strip(),
            is_on("errors.deadletterqueue.copy.record.enable", "false"),
        )
