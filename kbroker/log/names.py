"""Names on the disk: which folder holds which partition, which file holds which part of which segment.

Used by all that list a log directory (log, manager, verify, the tools). Never looks at a disk: text in, values out.

| what | name |
|---|---|
| a partition | `topic-partition` |
| a partition whose deletion is under way | `topic-partition.uuid-delete`, topic cut so that it fits 255 |
| a copy that is moving between directories | `topic-partition.uuid-future` |
| a partition without a topic, moved aside | `topic-partition.uuid-stray`, topic cut likewise |
| a part of a segment | `00000000000000000042.log`, also .index .timeindex .txnindex .snapshot |
| ... on its way out, in, or being compacted | the same with .deleted, .swap, .cleaned at the end |
| ... that stood behind lost batches, kept aside | `00000000000000000042.log.after-gap`, also -2, -3 and so on |

Source: Kafka documentation, implementation, "Log"; KIP-113 (future), KIP-966 era brokers (stray).
"""

from __future__ import annotations

import re
import sys
from typing import Literal, cast

from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

MAX_NAME_LENGTH = 255
"""Bytes in a file name that every file system of note takes (NAME_MAX)."""

MAX_TOPIC_LENGTH = 249
"""Kafka's limit: a topic's name, a dash and a five-digit partition still fit MAX_NAME_LENGTH."""

MAX_PARTITION = 2**31 - 1
MAX_OFFSET = 2**63 - 1

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
MOVED = "replaces-other-copy"
"""In a partition's folder while it takes the place of another in another log directory: it has all records of that."""

PARTITION_FILES = (LEADER_EPOCHS, PARTITION_METADATA, MOVED)
"""What a partition's folder holds beside segments."""

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

PENDING_SUFFIX = ".pending"
"""Of the next content of a checkpoint, until it takes the checkpoint's name."""

AFTER_GAP_SUFFIX = ".after-gap"
"""Of a .log file that stood behind lost batches: kept for a person to look at, no part of the log."""

OFFSET_CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)
"""The files of a log directory that map partitions to offsets."""

METADATA_LOG = "__cluster_metadata"
"""The topic of a metadata quorum: no other topic may have this name."""

NOT_OURS = frozenset({f"{METADATA_LOG}-0", "remote-log-index-cache"})
"""Folders that Apache's brokers keep in a log directory and that are no partition of ours: KRaft's own log, and the
indices fetched from tiered storage."""

METADATA_STORE = ("metadata.db", "metadata.db-wal", "metadata.db-journal")
"""A lone broker's, in its first log directory: its opener judges what is in their place."""

_SET_ASIDE = re.compile(r"metadata\.db\.old(-[0-9]+)?")  # by `kbroker metadata rebuild`
SECURE_FILES = (
    "secure.properties", "secure-admin.properties", "secure-authority.key", "secure-authority.pem",
    "secure-broker.pem", "secure-client.pem",
)  # fmt: skip
"""What a secured start keeps beside the logs (`runtime/secure.py`)."""

_KNOWN_FILES = frozenset(
    (
        *OFFSET_CHECKPOINTS,
        META_PROPERTIES,
        CLEAN_SHUTDOWN,
        LOCK,
        "bootstrap.checkpoint",
        *METADATA_STORE,
        *SECURE_FILES,
    )
)

FolderState = Literal["live", "delete", "future", "stray"]
SegmentPart = Literal["log", "index", "timeindex", "txnindex", "snapshot"]
FileState = Literal["live", "deleted", "swap", "cleaned"]

SEGMENT_PARTS: tuple[SegmentPart, ...] = ("log", "index", "timeindex", "txnindex", "snapshot")

_STATES: dict[str, FileState] = {"": "live", ".deleted": "deleted", ".swap": "swap", ".cleaned": "cleaned"}
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LIVE_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})", re.ASCII)
_OTHER_FOLDER = re.compile(
    r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,9})\.(?P<unique>[^.\s]+)-(?P<state>delete|future|stray)", re.ASCII
)
_OFFSET_DIGITS = 20
_BEHIND_OFFSET: dict[str, tuple[SegmentPart, FileState]] = {
    f".{part}{suffix}": (part, state) for part in SEGMENT_PARTS for suffix, state in _STATES.items()
}


class TopicPartition(NamedTuple):
    """A partition by its topic's name. Equal to, and hashed like, the plain tuple."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class PartitionFolder(NamedTuple):
    """What a partition folder's name says. `unique` is the random part of all states but live, else empty.

    In the states delete and stray `topic_partition.topic` may be only the beginning of the topic's name.
    """

    topic_partition: TopicPartition
    state: FolderState
    unique: str


class SegmentFile(NamedTuple):
    """What a segment file's name says. For part `snapshot` base_offset is the first offset the snapshot excludes."""

    base_offset: int
    part: SegmentPart
    state: FileState


def is_topic_name(name: str) -> bool:
    """Whether Kafka takes `name` for a topic: 1 to 249 of a-z A-Z 0-9 . _ -, and neither "." nor ".."."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def topic_name_fault(name: str) -> str | None:
    """Why `name` cannot be a topic's, in one line, as Kafka says it; None if it can."""
    why = None
    if not name:
        why = "the empty string is not allowed"
    elif name in (".", ".."):
        why = f"'{name}' is not allowed"
    elif len(name) > MAX_TOPIC_LENGTH:
        why = f"the length of '{name}' is longer than the max allowed length {MAX_TOPIC_LENGTH}"
    elif not is_topic_name(name):
        why = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None if why is None else f"Topic name is invalid: {why}"


def name_too_long(name: str) -> KafkaError:
    """What is said where the operating system has no room for the name of a partition's folder."""
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name}: is too long for the name of a folder")


def same_but_for_case(path: str) -> KafkaError:
    """What is said where a partition's folder would be another's."""
    return KafkaError(
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        f"{path}: the file system does not tell capital letters from small ones, and has the folder of another topic "
        "there that differs in nothing else; give the topic another name",
    )


def folder_name(topic_partition: tuple[str, int]) -> str:
    """The folder of a partition in use."""
    topic, partition = topic_partition
    return f"{topic}-{partition}"


def folder_name_in_state(topic_partition: tuple[str, int], state: FolderState, unique: str) -> str:
    """The folder a partition is renamed to.

    unique: 32 hexadecimal digits, drawn by the caller. The topic is cut for delete and stray, whose names need not
    be mapped back; a future copy's name must stay whole, so it may be too long for the disk.
    """
    assert state != "live", "a partition in use has no unique part"
    topic, partition = topic_partition
    tail = f"-{partition}.{unique}-{state}"
    if state != "future":
        topic = topic[: MAX_NAME_LENGTH - len(tail)]
    return topic + tail


def parse_folder_name(name: str) -> PartitionFolder | None:
    """What the folder `name` holds, or None if no Kafka broker would have named one so.

    The topic is one string for all its folders: a broker may have thousands.
    """
    is_other = name.endswith(("-delete", "-future", "-stray"))
    found = (_OTHER_FOLDER if is_other else _LIVE_FOLDER).fullmatch(name)
    if found is None:
        return None
    topic, partition = found["topic"], int(found["partition"])
    if partition > MAX_PARTITION or not is_topic_name(topic):
        return None
    state, unique = (cast(FolderState, found["state"]), found["unique"]) if is_other else ("live", "")
    return PartitionFolder(TopicPartition(sys.intern(topic), partition), state, unique)


def is_known_file(name: str) -> bool:
    """Whether a file of this name belongs into a log directory (not into a partition's folder)."""
    return (
        name.removesuffix(".tmp").removesuffix(PENDING_SUFFIX) in _KNOWN_FILES or _SET_ASIDE.fullmatch(name) is not None
    )


def segment_file_name(base_offset: int, part: SegmentPart, state: FileState = "live") -> str:
    """The name of one part of the segment that starts at `base_offset`."""
    assert 0 <= base_offset <= MAX_OFFSET, base_offset
    name = f"{base_offset:020d}.{part}"
    return name if state == "live" else f"{name}.{state}"


def parse_segment_file_name(name: str) -> SegmentFile | None:
    """Which segment's which part the file `name` is, or None if it is not a segment's."""
    behind, digits = _BEHIND_OFFSET.get(name[_OFFSET_DIGITS:]), name[:_OFFSET_DIGITS]
    if behind is None or not (digits.isdecimal() and digits.isascii()):
        return None
    base_offset = int(digits)
    return SegmentFile(base_offset, *behind) if base_offset <= MAX_OFFSET else None
