"""Checkpoint files (recovery point, high watermark and others): text <-> values, and replaced as a whole or not at all.

| file | first line | then | one line each |
|---|---|---|---|
| recovery-point-, log-start-, replication-, cleaner-offset-checkpoint | 0 | count | `topic partition offset` |
| leader-epoch-checkpoint | 0 | count | `epoch start_offset` |
| partition.metadata | `version: 0` | | `topic_id: <base64>` |
| .kafka_cleanshutdown | JSON: version, brokerEpoch; ours: checksums, partitions | | |

Called by the log, its manager, verification and the tools. The parsers and formatters are pure; only `replace_file`,
`write_file` and `read_text` touch a disk, through the port. meta.properties has its own file: metaproperties.py.

Source: Kafka documentation, implementation, "Log"; KIP-101 (leader epochs), KIP-516 (topic ids), KIP-966 (broker epoch
in the clean-shutdown marker).
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.names import (
    MAX_OFFSET,
    MAX_PARTITION,
    META_PROPERTIES,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    TopicPartition,
)
from kbroker.ports import Disk
from protocol.namedtuple import NamedTuple
from protocol.records import crc32c

MAX_TEXT_BYTES = 256 * 1024 * 1024
"""A checkpoint larger than this is no checkpoint: a million partitions with the longest names take 270 MB."""

ZERO_UUID = bytes(16)
# What pipes, sockets, and links that lead to themselves are told by.
_NO_FILE = (errno.ESPIPE, errno.ENXIO, errno.ELOOP)
_MOST_AT_FIRST = 4096  # read without asking for the size: a start reads two texts of each partition, all of them short
_OFFSET_LINE = re.compile(r"(\S+)\s+([0-9]{1,10})\s+([0-9]{1,19})\s*", re.ASCII)
_EPOCH_LINE = re.compile(r"([0-9]{1,10})\s+([0-9]{1,19})\s*", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_METADATA_LINE = re.compile(r"(version|topic_id):\s+(\S+)\s*", re.ASCII)


class EpochStart(NamedTuple):
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


class PartitionMetadata(NamedTuple):
    """What partition.metadata says. topic_id: 16 bytes, never all zero."""

    version: int
    topic_id: bytes


# ---- partitions -> offsets


def parse_offsets(text: str) -> dict[TopicPartition, int]:
    """The offset of each partition in an offset checkpoint; empty for a file that was made and never written.

    Raises NewerFormatError, CorruptFileError (naming the line).
    """
    offsets: dict[TopicPartition, int] = {}
    lines = _entries(text)
    for number, line in enumerate(lines, start=3):
        found = _OFFSET_LINE.fullmatch(line)
        if found is None:
            raise CorruptFileError(
                f"expected topic, partition and offset, found {_shown(line)}", where=f"line {number}"
            )
        topic, partition, offset = found[1], int(found[2]), int(found[3])
        if partition > MAX_PARTITION or offset > MAX_OFFSET:
            raise CorruptFileError(f"a number is out of range in {_shown(line)}", where=f"line {number}")
        offsets[TopicPartition(topic, partition)] = offset
    if len(offsets) != len(lines):
        raise CorruptFileError(f"{len(lines) - len(offsets)} partitions appear more than once")
    return offsets


def check_offsets_version(text: str) -> None:
    """Raise what `parse_offsets` raises for an offset checkpoint of a version that is not known, whatever is in it."""
    lines = text.splitlines()
    if lines:
        _check_version(lines[0])


def format_offsets(offsets: Mapping[tuple[str, int], int]) -> str:
    """The text of an offset checkpoint."""
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    return f"0\n{len(lines)}\n{''.join(lines)}"


# ---- leader epochs


def parse_leader_epochs(text: str) -> list[EpochStart]:
    """The epochs of one partition, ascending in both epoch and start offset.

    Raises NewerFormatError, CorruptFileError (naming the line); the latter also for entries that do not ascend, which
    no broker writes.
    """
    epochs: list[EpochStart] = []
    for number, line in enumerate(_entries(text), start=3):
        found = _EPOCH_LINE.fullmatch(line)
        if found is None:
            raise CorruptFileError(
                f"expected an epoch and its start offset, found {_shown(line)}", where=f"line {number}"
            )
        entry = EpochStart(int(found[1]), int(found[2]))
        if entry.epoch > MAX_PARTITION or entry.start_offset > MAX_OFFSET:
            raise CorruptFileError(f"a number is out of range in {_shown(line)}", where=f"line {number}")
        if epochs and (entry.epoch <= epochs[-1].epoch or entry.start_offset <= epochs[-1].start_offset):
            raise CorruptFileError(
                f"epoch {entry.epoch} from offset {entry.start_offset} follows epoch {epochs[-1].epoch} "
                f"from offset {epochs[-1].start_offset}",
                where=f"line {number}",
            )
        epochs.append(entry)
    return epochs


def format_leader_epochs(epochs: Iterable[tuple[int, int]]) -> str:
    """The text of a leader-epoch-checkpoint."""
    lines = [f"{epoch} {start_offset}\n" for epoch, start_offset in epochs]
    return f"0\n{len(lines)}\n{''.join(lines)}"


def _entries(text: str) -> list[str]:
    """The lines behind version and count, after checking both."""
    lines = text.splitlines()
    if not lines:
        return []
    _check_version(lines[0])
    if len(lines) == 1:
        return []
    count, entries = _number(lines[1], where="line 2"), lines[2:]
    if count != len(entries):
        raise CorruptFileError(f"promises {count} entries and holds {len(entries)}", where="line 2")
    return entries


def _check_version(line: str) -> None:
    if line == "0":  # no other one was ever written
        return
    version = _number(line, where="line 1")
    if version > 0:
        raise NewerFormatError(f"has version {version}, this program knows version 0", where="line 1")
    if version < 0:
        raise CorruptFileError(f"has version {version}", where="line 1")


def _number(text: str, *, where: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise CorruptFileError(f"expected a number, found {_shown(text)}", where=where)
    return int(text)


def _shown(text: str) -> str:
    """Foreign text, made fit for one line."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


# ---- topic ids


def parse_partition_metadata(text: str) -> PartitionMetadata:
    """The topic id a partition folder belongs to.

    A newer version is accepted, as Kafka accepts it: the file promises that topic_id stays its second line.
    Raises CorruptFileError (naming the line).
    """
    lines = text.splitlines()
    version = _metadata_field(lines, 0, "version")
    if _NUMBER.fullmatch(version) is None or int(version) < 0:
        raise CorruptFileError(f"expected a version, found {_shown(version)}", where="line 1")
    topic_id = parse_uuid(_metadata_field(lines, 1, "topic_id"))
    if topic_id is None or topic_id == ZERO_UUID:
        raise CorruptFileError(f"expected a topic id, found {_shown(lines[1])}", where="line 2")
    return PartitionMetadata(int(version), topic_id)


def format_partition_metadata(topic_id: bytes) -> str:
    """The text of partition.metadata."""
    assert len(topic_id) == 16, len(topic_id)
    assert topic_id != ZERO_UUID
    return f"version: 0\ntopic_id: {format_uuid(topic_id)}"


def _metadata_field(lines: list[str], index: int, key: str) -> str:
    found = _METADATA_LINE.fullmatch(lines[index]) if index < len(lines) else None
    if found is None or found[1] != key:
        shown = _shown(lines[index]) if index < len(lines) else "the end of the file"
        raise CorruptFileError(f"expected {key}, found {shown}", where=f"line {index + 1}")
    return found[2]


def parse_uuid(text: str) -> bytes | None:
    """The 16 bytes of an id in Kafka's spelling (URL-safe base64, padding optional); None if it is none."""
    if len(text) > 24 or "+" in text or "/" in text:
        return None
    try:
        value = base64.b64decode(text.rstrip("=") + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if len(value) == 16 else None


def format_uuid(value: bytes) -> str:
    """An id in Kafka's spelling: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def read_topic_id(disk: Disk, folder: str, notice: Callable[[str], None]) -> bytes | None:
    """The topic id in a partition's folder, None if there is none or, with a notice, if it cannot be read.

    Raises OSError.
    """
    try:
        text = read_text(disk, folder, PARTITION_METADATA)
        return None if text is None else _topic_id_in(text)
    except CorruptFileError as error:
        notice(f"{error.at(f'{folder}/{PARTITION_METADATA}')}; the file is ignored")
        return None


@lru_cache(1)  # a start asks for one partition of a topic after the other, and they say the same
def _topic_id_in(text: str) -> bytes:
    return parse_partition_metadata(text).topic_id


# ---- the clean-shutdown marker


UNKNOWN = -1


class Sealed(NamedTuple):
    """What a clean stop leaves in a partition's folder (`sealed.py`). Checksums are CRC-32C.

    segments: of which segments there are, and how long each is. indices: of the sizes of all indices. epochs: of the
    leader epochs' file, -1 if there is none. aborted: of the indices of aborted transactions. snapshot: the offset of
    the newest one, -1 if there is none. topic_id: of the topic's id, -1 if it is not known.
    """

    segments: int
    indices: int
    epochs: int
    aborted: int
    snapshot: int
    topic_id: int


class CleanShutdown(NamedTuple):
    """What a clean-shutdown marker says: that it is there matters, the rest is a courtesy.

    broker_epoch: of the broker that shut down, None in the empty marker of Kafka before 3.8 and in an unreadable one.
    checksums: our addition, which Kafka ignores: CRC-32C by file name of the text files beside the marker, so that a
    bit that changed at rest in one of them is noticed. {} in a marker that Kafka wrote. partitions: likewise, what is
    in each partition's folder, by the folder's name.
    """

    broker_epoch: int | None
    checksums: Mapping[str, int]
    partitions: Mapping[str, Sealed]


def parse_clean_shutdown(text: str) -> CleanShutdown:
    """What the marker says; a text that says nothing is still a marker, as for Kafka. Raises nothing."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return CleanShutdown(None, {}, {})
    if not isinstance(content, dict):
        return CleanShutdown(None, {}, {})
    epoch = content.get("brokerEpoch")
    if not isinstance(epoch, int) or isinstance(epoch, bool):
        epoch = None
    checksums, partitions = (_object(content.get(name)) for name in ("checksums", "partitions"))
    return CleanShutdown(
        epoch,
        {name: value for name, value in checksums.items() if isinstance(value, int)},
        {name: Sealed(*value) for name, value in partitions.items() if _seals(value)},
    )


def _object(content: object) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}


def _seals(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == len(Sealed._fields) and all(isinstance(each, int) for each in value)
    )


def format_clean_shutdown(
    broker_epoch: int, checksums: Mapping[str, int] | None = None, partitions: Mapping[str, Sealed] | None = None
) -> str:
    """The text of the marker. broker_epoch: -1 if there is none."""
    content: dict[str, object] = {"version": 0, "brokerEpoch": broker_epoch}
    if checksums:
        content["checksums"] = dict(checksums)
    if partitions:
        content["partitions"] = dict(partitions)
    return json.dumps(content, separators=(",", ":"))


# ---- on the disk


def replace_file(disk: Disk, folder: str, name: str, content: bytes, *, durable: bool = True) -> None:
    """Put `content` into the file `name` of `folder` so that a crash leaves either the old file or the new one.

    durable=False skips making the new name durable (the content always is), for files whose loss of one update costs
    nothing. Raises OSError; then the old file is still there, and perhaps a `.tmp` beside it.
    """
    path, temporary = f"{folder}/{name}", f"{folder}/{name}.tmp"
    write_file(disk, temporary, content)
    disk.rename(temporary, path)
    if durable:
        disk.sync_dir(folder)


def write_file(disk: Disk, path: str, content: bytes) -> None:
    """Write a file, durably, that is to take another's name. Raises OSError."""
    file = disk.open(path, "create")
    try:
        file.resize(0)
        file.write([content], 0)
        file.sync()
    finally:
        file.close()


def read_text(disk: Disk, folder: str, name: str) -> str | None:
    """The text in the file `name` of `folder`, or None where there is none.

    Raises OSError; CorruptFileError if the file cannot be text: no file, far too long, or not UTF-8.
    """
    path = f"{folder}/{name}"
    try:
        content = _content(disk, path)
    except FileNotFoundError:
        if disk.stat(path) is None:
            return None
        raise CorruptFileError("is no file", path=path) from None  # but a link that leads nowhere
    except IsADirectoryError:
        raise CorruptFileError("is a folder", path=path) from None
    except OSError as error:
        if error.errno in _NO_FILE:
            raise CorruptFileError("is no file", path=path) from None
        raise OSError(error.errno, error.strerror, path) from error
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise CorruptFileError("is not text", where=f"position {error.start}", path=path) from None


def _content(disk: Disk, path: str) -> bytes:
    """All of a file. Raises: OSError; CorruptFileError if it is far too long."""
    file = disk.open(path, "read")
    try:
        content = file.read(0, _MOST_AT_FIRST)
        if len(content) == _MOST_AT_FIRST:
            size = file.size()
            if size > MAX_TEXT_BYTES:
                raise CorruptFileError(f"is {size} bytes long, no such file is", path=path)
            content += file.read(_MOST_AT_FIRST, size - _MOST_AT_FIRST)
        return content
    finally:
        file.close()


CHECKSUMMED = (*OFFSET_CHECKPOINTS, META_PROPERTIES)
"""The files whose checksums the clean-shutdown marker carries, since their own format has none."""


def checksums(disk: Disk, path: str) -> dict[str, int]:
    """CRC-32C of those text files that have no checksum of their own, by name. Raises OSError."""
    found = {}
    for name in CHECKSUMMED:
        try:
            text = read_text(disk, path, name)
        except CorruptFileError:
            found[name] = -1
        else:
            if text is not None:
                found[name] = crc32c(text.encode())
    return found
