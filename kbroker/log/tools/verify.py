"""Whether a log directory is what it should be: every invariant of every file, and of files among one another.

Called by `kbroker verify-log` and by tests. Reads only, through the Disk port; takes no lock, changes nothing, needs no
broker. What is wrong comes out as a `Finding` that names file, position and fault; the walk goes on behind it.

| level | checked here |
|---|---|
| fault | an invariant does not hold: a broker would serve something wrong, refuse to start, or has to repair |
| note | worth knowing, and harmless: leftovers, foreign files, what a crash leaves |
| unreadable | could not be judged: permission, I/O error, a newer format |

A partition's own files are `PartitionCheck`'s; this file has the directory, and what ties partitions to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from kbroker.log.checkpoints import (
    UNKNOWN,
    Sealed,
    checksums,
    parse_clean_shutdown,
    parse_offsets,
    read_text,
    read_topic_id,
)
from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.metaproperties import MetaProperties, check_agreement, parse_meta_properties
from kbroker.log.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    NOT_OURS,
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    PartitionFolder,
    TopicPartition,
    is_known_file,
    parse_folder_name,
)
from kbroker.log.tools.verify_partition import (
    Finding,
    PartitionCheck,
    Progress,
    fault,
    harmless,
    unreadable,
)
from kbroker.ports import Disk, Entry
from protocol.records import crc32c

__all__ = ["Finding", "Progress", "verify"]

CHECKED = (*OFFSET_CHECKPOINTS, META_PROPERTIES, CLEAN_SHUTDOWN)
"""Files that are read, and so found to be none."""


def verify(disk: Disk, paths: Sequence[str], *, deep: bool = True) -> Iterator[Finding | Progress]:
    """Check log directories, which belong to one broker, or single partition folders.

    deep: look at every record, not only at batches. Yields findings, and progress between files. Raises nothing but
    FileNotFoundError and NotADirectoryError for a path itself.
    """
    partitions = [path for path in paths if _is_partition(disk, path)]
    directories = [path for path in paths if path not in partitions]
    total = sum(_size(disk, path) for path in paths)
    yield Progress(0, total)
    done = 0
    metas: dict[str, MetaProperties] = {}
    for path in directories:
        for item in _Directory(disk, path, deep, metas).verify():
            if isinstance(item, Progress):
                done += item.bytes_done
                yield Progress(done, total)
            else:
                yield item
    for path in partitions:
        check = PartitionCheck(disk, path, is_clean=False, deep=deep, log_start_offset=_start_of(disk, path))
        for item in check.verify():
            if isinstance(item, Progress):
                done += item.bytes_done
                yield Progress(done, total)
            else:
                yield item
    disagreement = check_agreement(metas)
    if disagreement is not None:
        yield fault(disagreement.path, disagreement.reason)


def _is_partition(disk: Disk, path: str) -> bool:
    """Whether a path is one partition's folder. Raises FileNotFoundError, NotADirectoryError."""
    names = [entry.name for entry in disk.list(path)]
    is_directory = any(name in names for name in (META_PROPERTIES, *OFFSET_CHECKPOINTS))
    return not is_directory and parse_folder_name(path.rpartition("/")[2]) is not None


def _start_of(disk: Disk, path: str) -> int:
    """Where the log of a partition given alone starts, if the directory around it says."""
    directory, _, name = path.rpartition("/")
    folder = parse_folder_name(name)
    try:
        starts = parse_offsets(read_text(disk, directory, LOG_START_OFFSETS) or "")
    except (OSError, CorruptFileError):
        return 0
    return 0 if folder is None else starts.get(folder.topic_partition, 0)


def _size(disk: Disk, path: str) -> int:
    """Bytes below a path, as far as it can be read."""
    try:
        entries = disk.list(path)
    except OSError:
        return 0
    return sum(_size(disk, f"{path}/{entry.name}") if entry.is_dir else entry.size for entry in entries)


class _Directory:
    """One entry of log.dirs."""

    def __init__(self, disk: Disk, path: str, deep: bool, metas: dict[str, MetaProperties]) -> None:
        self._disk = disk
        self._path = path
        self._deep = deep
        self._metas = metas
        self._clean = False
        self._sealed: Mapping[str, Sealed] = {}

    def verify(self) -> Iterator[Finding | Progress]:
        entries = sorted(self._disk.list(self._path))
        yield from self._verify_meta()
        yield from self._verify_marker()
        checkpoints: dict[str, dict[TopicPartition, int]] = {}
        for name in OFFSET_CHECKPOINTS:
            yield from self._read_checkpoint(name, checkpoints)
        checks: dict[TopicPartition, PartitionCheck] = {}
        for entry in entries:
            folder = parse_folder_name(entry.name) if entry.is_dir else None
            if entry.name in NOT_OURS:
                yield Progress(_size(self._disk, self._file(entry.name)), 0)
            elif folder is None:
                yield from self._verify_stranger(entry)
            else:
                yield from self._verify_partition(entry.name, folder, checkpoints, checks)
        yield from self._compare(checkpoints, checks)

    def _file(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _verify_meta(self) -> Iterator[Finding]:
        try:
            text = read_text(self._disk, self._path, META_PROPERTIES)
            if text is None:
                yield fault(self._file(META_PROPERTIES), "is missing: nothing says whose directory this is")
            else:
                self._metas[self._path] = parse_meta_properties(text)
        except CorruptFileError as error:
            yield _unparsed(self._file(META_PROPERTIES), error)
        except OSError as error:
            yield unreadable(self._file(META_PROPERTIES), error)

    def _verify_marker(self) -> Iterator[Finding]:
        path = self._file(CLEAN_SHUTDOWN)
        try:
            text = read_text(self._disk, self._path, CLEAN_SHUTDOWN)
            if text is None:
                yield harmless(self._path, "was not stopped cleanly, or is in use: the last batches may be torn")
                return
            self._clean = True
            marker = parse_clean_shutdown(text)
            self._sealed = marker.partitions
            if text and marker.broker_epoch is None:
                yield fault(path, "holds neither nothing nor a broker epoch")
            now = checksums(self._disk, self._path)
            for name, checksum in marker.checksums.items():
                if now.get(name) != checksum:
                    yield fault(self._file(name), "is not what the last clean stop wrote")
        except CorruptFileError as error:
            self._clean = True
            yield _unparsed(path, error)
        except OSError as error:
            yield unreadable(path, error)

    def _read_checkpoint(self, name: str, checkpoints: dict[str, dict[TopicPartition, int]]) -> Iterator[Finding]:
        try:
            text = read_text(self._disk, self._path, name)
            checkpoints[name] = {} if text is None else parse_offsets(text)
        except CorruptFileError as error:
            yield _unparsed(self._file(name), error)
        except OSError as error:
            yield unreadable(self._file(name), error)

    def _verify_stranger(self, entry: Entry) -> Iterator[Finding]:
        path = self._file(entry.name)
        if entry.name not in CHECKED and (entry.is_dir or entry.is_odd) and is_known_file(entry.name):
            yield fault(path, "is no file")
        elif entry.is_odd and parse_folder_name(entry.name) is not None:
            yield fault(path, "is no folder: whether it led to records cannot be seen")
        elif entry.is_dir:
            yield harmless(path, "is a foreign folder; it is left alone")
        elif not is_known_file(entry.name):
            yield harmless(path, "is a foreign file; it is left alone")
        elif entry.name.endswith((".tmp", ".pending")):
            yield harmless(path, "is left over from a replacement that did not finish")

    def _verify_partition(
        self,
        name: str,
        folder: PartitionFolder,
        checkpoints: Mapping[str, Mapping[TopicPartition, int]],
        checks: dict[TopicPartition, PartitionCheck],
    ) -> Iterator[Finding | Progress]:
        path = self._file(name)
        if folder.state == "delete":
            yield harmless(path, "is marked for deletion; it is not looked into")
            yield Progress(_size(self._disk, path), 0)
            return
        partition = folder.topic_partition
        is_live = folder.state == "live"
        start = checkpoints.get(LOG_START_OFFSETS, {}).get(partition, 0) if is_live else 0
        check = PartitionCheck(self._disk, path, is_clean=self._clean, deep=self._deep, log_start_offset=start)
        yield from check.verify()
        yield from self._verify_topic_id(name)
        if is_live:
            checks[partition] = check

    def _verify_topic_id(self, name: str) -> Iterator[Finding]:
        """Any other one makes as much sense. That it cannot be read is said elsewhere."""
        sealed = self._sealed.get(name)
        if sealed is None or sealed.topic_id == UNKNOWN:
            return
        with suppress(OSError):
            topic_id = read_topic_id(self._disk, self._file(name), lambda notice: None)
            if topic_id is None or crc32c(topic_id) != sealed.topic_id:
                yield fault(self._file(f"{name}/{PARTITION_METADATA}"), "is not what the last clean stop wrote")

    def _compare(
        self, checkpoints: Mapping[str, Mapping[TopicPartition, int]], checks: Mapping[TopicPartition, PartitionCheck]
    ) -> Iterator[Finding]:
        """Checkpoints against what the partitions hold."""
        for name, offsets in checkpoints.items():
            path = self._file(name)
            for partition, offset in offsets.items():
                check = checks.get(partition)
                if check is None:
                    yield harmless(path, f"names {partition}, which is not in this directory")
                elif check.is_known and offset > check.log_end_offset:
                    if self._clean or name in (RECOVERY_POINTS, CLEANER_OFFSETS):
                        yield fault(path, f"{partition}: {offset} lies behind the log's end, {check.log_end_offset}")
                    else:
                        yield harmless(path, f"{partition}: {offset} lies behind the log's end, {check.log_end_offset}")
        if self._clean:
            yield from self._compare_clean(checkpoints, checks)

    def _compare_clean(
        self, checkpoints: Mapping[str, Mapping[TopicPartition, int]], checks: Mapping[TopicPartition, PartitionCheck]
    ) -> Iterator[Finding]:
        """After a clean stop everything is durable, and said to be."""
        recovery_points = checkpoints.get(RECOVERY_POINTS)
        if recovery_points is None:
            return
        path = self._file(RECOVERY_POINTS)
        for partition, check in checks.items():
            point = recovery_points.get(partition)
            if point is None:
                yield fault(path, f"{partition} is missing, after a clean stop")
            elif check.is_known and point < check.log_end_offset:
                yield fault(path, f"{partition}: {point}, but after a clean stop it is {check.log_end_offset}")
        high_watermarks = checkpoints.get(HIGH_WATERMARKS, {})
        for partition, check in checks.items():
            high_watermark = high_watermarks.get(partition)
            if high_watermark is not None and check.is_known and high_watermark < check.log_start_offset:
                where = f"{high_watermark} lies before the log's start, {check.log_start_offset}"
                yield fault(self._file(HIGH_WATERMARKS), f"{partition}: {where}")


def _unparsed(path: str, error: CorruptFileError) -> Finding:
    if isinstance(error, NewerFormatError):
        return Finding("unreadable", path, error.where, error.reason)
    return Finding("fault", path, error.where, error.reason)
