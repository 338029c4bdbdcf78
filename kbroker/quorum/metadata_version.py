"""metadata.version: the levels that a cluster with a quorum can agree on, and what each of them changes.

The controllers finalize a level (FeatureLevelRecord) once all members have said, by registering, that they know it;
from then on records and requests are written as that level has them. Asked by the image and its snapshots for versions
of records, by registration for the range that this broker knows. It decides nothing about when a level changes.

Source: KIP-778, KIP-1022; `kafka-features.sh version-mapping` of Apache Kafka 4.4 lists the same levels.
"""

from __future__ import annotations

from kbroker.metadata.features import SUPPORTED
from kbroker.metadata.store import SupportedFeature
from protocol.message import Message
from protocol.messages.metadata_records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
"""0: voters are a setting, controller.quorum.voters. 1: they are records of the metadata log (KIP-853)."""
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"
"""1: partitions remember who left the in-sync replicas with all committed records (KIP-966)."""

LEVELS: dict[int, str] = {
    21: "3.9-IV0",  # kraft.version 1; ListOffsets 9, Fetch 17
    22: "4.0-IV0",  # group.version 1
    23: "4.0-IV1",  # eligible leader replicas in records of partitions, ClearElrRecord
    24: "4.0-IV2",  # transaction.version 2
    25: "4.0-IV3",  # ListOffsets 10
    26: "4.1-IV0",  # eligible.leader.replicas.version 1 in new clusters
    27: "4.1-IV1",  # Fetch 18
    28: "4.2-IV0",  # share.version 1
    29: "4.2-IV1",  # streams.version 1; ListOffsets 11
    30: "4.3-IV0",  # cordoned log directories in registrations
    31: "4.4-IV0",  # share.version 2
    32: "4.4-IV1",  # hosts of access rules may be networks in CIDR notation (KIP-1276)
    33: "4.4-IV2",  # UnregisterControllerRecord
}
"""Names by level: those that Apache Kafka 3.9 to 4.4 finalize."""
LOWEST, HIGHEST = min(LEVELS), max(LEVELS)

# (level, version) of records that have more than one, the newest first; the rest is always written in version 0
_RECORD_VERSIONS: dict[type[Message], tuple[tuple[int, int], ...]] = {
    RegisterBrokerRecord: ((30, 4), (LOWEST, 3)),
    BrokerRegistrationChangeRecord: ((30, 3), (LOWEST, 2)),
    PartitionRecord: ((23, 2), (LOWEST, 1)),
    PartitionChangeRecord: ((23, 2), (LOWEST, 1)),
}


def describe(level: int) -> str:
    """A level as people read it: its number and its name, if it has one here."""
    return f"{level} ({LEVELS[level]})" if level in LEVELS else str(level)


def why_not(level: int) -> str | None:
    """Why this broker cannot be in a cluster of this level, in a sentence; None if it can."""
    if level in LEVELS:
        return None
    known = f"this broker knows {describe(LOWEST)} to {describe(HIGHEST)}"
    if level < LOWEST:
        return f"metadata.version {level} is too old, {known}: raise it with kafka-features.sh first"
    return f"metadata.version {level} is too new, {known}"


def record_version(record: type[Message], level: int) -> int:
    """The version in which a record is written at this level."""
    for since, version in _RECORD_VERSIONS.get(record, ()):
        if level >= since:
            return version
    return 0


def supported_features() -> tuple[SupportedFeature, ...]:
    """What a broker tells by its registration: all features with the levels that it knows."""
    return (
        SupportedFeature(METADATA_VERSION, LOWEST, HIGHEST),
        SupportedFeature(KRAFT_VERSION, 0, 1),
        SupportedFeature(ELIGIBLE_LEADER_REPLICAS_VERSION, 0, 1),
        *SUPPORTED,
    )
