"""One entry of log.dirs: whose it is, its lock, its checkpoints, and the partitions in it, in and out.

Called by the manager only. `inspect` looks without touching; `LogDirectory.take` locks; `load` opens every partition
and may run on a thread of its own, since directories share nothing; `close` is the clean stop. Decides nothing about
where a partition goes. Errors: OSError is this directory's, and takes it offline; DirectoryRefusedError is the
broker's, and keeps it from starting.

Source: Kafka documentation, implementation, "Log"; KIP-112 (several directories), KAFKA-10471 (the marker goes first).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kbroker.config.limits import VACATED_NAMES
from kbroker.log.checkpoints import (
    check_offsets_version,
    format_clean_shutdown,
    format_offsets,
    parse_clean_shutdown,
    parse_offsets,
    read_text,
    replace_file,
)
from kbroker.log.config import LogConfig
from kbroker.log.errors import CorruptFileError, NewerFormatError, lacks_descriptors
from kbroker.log.folder import OpenFiles, put_aside
from kbroker.log.gaps import gaps
from kbroker.log.log import Log
from kbroker.log.metaproperties import MetaProperties, check_agreement, format_meta_properties, parse_meta_properties
from kbroker.log.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    NOT_OURS,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    PartitionFolder,
    TopicPartition,
    is_known_file,
    parse_folder_name,
)
from kbroker.log.recovery import RecoveryProgress, open_log
from kbroker.log.sealed import Sealed, seal, segments_checksum
from kbroker.ports import Disk, Lock, Random
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records import crc32c

CHECKSUMMED = (*OFFSET_CHECKPOINTS, META_PROPERTIES)
"""The files whose checksums the clean-shutdown marker carries, since their own format has none."""


_TELL_EVERY = 64  # partitions, after a clean stop: none of them takes long


class DirectoryRefusedError(Exception):
    """A log directory that this broker must not use: somebody else's, a newer broker's, or contradicting another.

    One line for the operator, which names the place. Nothing has been changed in any directory.
    """


class DirectoryUnusableError(DirectoryRefusedError):
    """A log directory that no broker could use just now: it cannot be made or written, or another broker has it."""


class LoadProgress(NamedTuple):
    """How far the loading of one directory is. recovering: a partition whose segments are being read, and how far."""

    directory: str
    partitions_done: int
    partitions: int
    recovering: tuple[TopicPartition, RecoveryProgress] | None = None


class Loaded(NamedTuple):
    """What a directory had in it.

    deleted: paths of folders that an earlier life was about to delete. strays: folders moved aside, left alone.
    notices: lines for the operator about what was found wrong or foreign.
    """

    logs: dict[TopicPartition, Log]
    futures: dict[TopicPartition, Log]
    deleted: list[str]
    strays: list[str]
    was_clean: bool
    notices: list[str]


class Inspected(NamedTuple):
    """What can be said of a directory without touching it. meta: None if it is new, as `exists` if it is missing."""

    exists: bool
    meta: MetaProperties | None


def inspect(disk: Disk, path: str) -> Inspected:
    """Whose directory it is. Raises OSError where it cannot be read; DirectoryRefusedError if it must not be used."""
    entry = disk.stat(path)
    if entry is None:
        return Inspected(False, None)
    if not entry.is_dir:
        raise NotADirectoryError(20, "is not a directory", path)
    try:
        text = read_text(disk, path, META_PROPERTIES)
        meta = None if text is None else parse_meta_properties(text)
    except CorruptFileError as error:
        raise DirectoryRefusedError(str(error.at(f"{path}/{META_PROPERTIES}"))) from None
    for name in OFFSET_CHECKPOINTS:
        with suppress(CorruptFileError), _refusing_newer(f"{path}/{name}"):
            check_offsets_version(read_text(disk, path, name) or "")
    return Inspected(True, meta)


@contextmanager
def _refusing_newer(path: str) -> Iterator[None]:
    """A block in which a newer broker's file keeps the broker from starting."""
    try:
        yield
    except NewerFormatError as error:
        raise DirectoryRefusedError(str(error.at(path))) from None


def _read_offsets(disk: Disk, path: str, name: str, notices: list[str]) -> dict[TopicPartition, int]:
    """An offset checkpoint; {} where there is none, or, with a notice, where it makes no sense."""
    try:
        with _refusing_newer(f"{path}/{name}"):
            return parse_offsets(read_text(disk, path, name) or "")
    except CorruptFileError as error:
        notices.append(f"{error.at(f'{path}/{name}')}; the file is ignored")
        return {}


def stored_identity(disk: Disk, paths: Iterable[str]) -> MetaProperties:
    """Cluster and node id that the directories agree on, as far as they say; touches nothing.

    Directories that cannot be read are left out. Raises DirectoryRefusedError if they contradict one another.
    """
    known = MetaProperties()
    metas = whose(disk, paths)[0]
    fault = check_agreement(metas)
    if fault is not None:
        raise DirectoryRefusedError(str(fault))
    for meta in metas.values():
        known = MetaProperties(
            0, known.cluster_id or meta.cluster_id, meta.node_id if known.node_id is None else known.node_id
        )
    return known


def whose(disk: Disk, paths: Iterable[str]) -> tuple[dict[str, MetaProperties], dict[str, OSError]]:
    """Whose each directory is (nobody's if it is new), and those that cannot be read."""
    metas: dict[str, MetaProperties] = {}
    failed: dict[str, OSError] = {}
    for path in paths:
        try:
            metas[path] = inspect(disk, path).meta or MetaProperties()
        except OSError as error:
            failed[path] = error
    return metas, failed


class LogDirectory:
    """A log directory in use.

    online: whether it may still be used. partitions: how many it holds, of all kinds. names: how often partition
    folders were made or renamed in it; durable_names: the same when its names were last made durable. vacated: names of
    folders that were moved away and may come back at a crash, or what checkpoints say of them; None where it may be any
    name: after an unclean start, where an earlier life may have moved some, or once there are too many to remember.
    durable_points: what its recovery-point checkpoint says.
    """

    __slots__ = (
        "_lock",
        "_points_written",
        "_saved",
        "_sealed",
        "_start_is_clean",
        "disk",
        "durable_names",
        "durable_points",
        "meta",
        "names",
        "online",
        "open_files",
        "partitions",
        "path",
        "vacated",
        "writing",
    )

    def __init__(self, disk: Disk, path: str, open_files: OpenFiles) -> None:
        self.disk = disk
        self.path = path
        self.open_files = open_files
        self.meta = MetaProperties()
        self.online = True
        self.partitions = 0
        self.names = 0
        self.durable_names = 0
        self.vacated: set[str] | None = set()
        self.writing: dict[str, bool] = {}
        self.durable_points: Mapping[tuple[str, int], int] = {}
        self._points_written: Mapping[tuple[str, int], int] = {}
        self._start_is_clean = False
        self._lock: Lock | None = None
        self._sealed: dict[str, Sealed] = {}  # what closed logs leave, by the names of their folders
        self._saved: dict[str, int] = {}  # hash of what each checkpoint says on the disk

    def __repr__(self) -> str:
        return f"LogDirectory({self.path!r}, {'online' if self.online else 'offline'})"

    # ---- coming up

    def take(self) -> None:
        """Make the directory if it is missing, and lock it. Raises OSError; DirectoryRefusedError if it is taken."""
        make_dirs(self.disk, self.path)
        try:
            self._lock = self.disk.lock(f"{self.path}/{LOCK}")
        except BlockingIOError:
            raise DirectoryUnusableError(f"{self.path}: is in use by another broker, which holds {LOCK}") from None

    def release(self) -> None:
        """Unlock; idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def identify(self, meta: MetaProperties) -> None:
        """Write down whose directory this is, unless it says so already. Raises OSError."""
        if meta != self.meta:
            replace_file(self.disk, self.path, META_PROPERTIES, format_meta_properties(meta).encode())
            self.meta = meta

    def load(
        self,
        config_of: Callable[[str], LogConfig],
        random: Random,
        wall_ms: int,
        progress: Callable[[LoadProgress], None] | None = None,
    ) -> Loaded:
        """Open every partition there is. Raises OSError; DirectoryRefusedError for files of a newer broker."""
        loader = _Loader(self, config_of, random, wall_ms, progress)
        try:
            loaded = loader.run()
        except NewerFormatError as error:
            loader.put_marker_back()
            raise DirectoryRefusedError(str(error)) from None
        except OSError as error:
            if lacks_descriptors(error):  # the broker will not start
                with suppress(OSError):
                    loader.put_marker_back()
            raise
        self.names += not loaded.was_clean  # an earlier life may have made folders and not synced their names
        self.vacated = set() if loaded.was_clean else None
        self._start_is_clean = True
        return loaded

    def make_folder(self, name: str) -> list[str]:
        """Make a partition's folder; lines about what was in its place. Raises OSError."""
        path, lines = f"{self.path}/{name}", []
        try:
            self.disk.make_dir(path)
        except FileExistsError:
            found = self.disk.stat(path)
            if found is None or found.is_dir:
                lines.append(f"{path}: was there already; the new partition takes it over")
            else:
                lines.append(put_aside(self.disk, self.path, name))
                self.disk.make_dir(path)
        self.names += 1
        return lines

    def moved_away(self, name: str) -> None:
        """The folder of this name was renamed."""
        self.names += 1
        if self.vacated is not None:
            self.vacated.add(name)
            if len(self.vacated) > VACATED_NAMES:
                self.vacated = None

    def may_have_had(self, name: str) -> bool:
        """Whether a folder of this name was moved away, and may come back at a crash, or its offsets may."""
        return self.vacated is None or name in self.vacated

    def sync_names(self) -> None:
        """Make the names of partition folders durable; waits for the disk. Raises OSError."""
        self.disk.sync_dir(self.path)
        self.durable_names = self.names
        self.vacated = set()

    def sync_names_of(self, names: int) -> None:
        """Make the names durable that it had at `names`, unless they are. On any thread. Raises OSError."""
        if self.durable_names < names:
            self.disk.sync_dir(self.path)

    # ---- checkpoints

    def changed_checkpoint(self, name: str, offsets: Mapping[tuple[str, int], int]) -> str | None:
        """The text that an offset checkpoint must have, or None if the file has it already."""
        text = format_offsets(offsets)
        if name == RECOVERY_POINTS:
            self._points_written = offsets
        return None if self._saved.get(name) == hash(text) else text

    def saved_checkpoint(self, name: str, text: str) -> None:
        """A checkpoint was written."""
        self._saved[name] = hash(text)
        if name == RECOVERY_POINTS:
            self.durable_points = self._points_written

    def write_checkpoint(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Write an offset checkpoint if it changed; waits for the disk. Raises OSError."""
        text = self.changed_checkpoint(name, offsets)
        if text is not None:
            replace_file(self.disk, self.path, name, text.encode())
            self.durable_names = self.names
            self.saved_checkpoint(name, text)

    # ---- going down

    def closing(self, logs: Sequence[Log], several: int, errors: dict[str, OSError]) -> list[Callable[[], None]]:
        """Tasks that close these logs, so many at a time; each gives up at the first error, which goes into `errors`.

        Waits for the disk.
        """
        try:
            self.sync_names()  # a log that is called durable is in a folder that is
        except OSError as error:
            errors[self.path] = error
            return []

        def task(share: Sequence[Log]) -> Callable[[], None]:
            def close() -> None:
                try:
                    for log in share:
                        log.close()
                        self._sealed[log.folder.path.rpartition("/")[2]] = seal(log)
                except OSError as error:
                    errors[self.path] = error

            return close

        return [task(logs[first::several]) for first in range(min(several, len(logs)))]

    def seal(self, logs: Mapping[TopicPartition, Log], broker_epoch: int) -> None:
        """End a clean stop, all logs being closed: exact checkpoints, then the marker. Raises OSError: no marker."""
        self.write_checkpoint(RECOVERY_POINTS, recovery_points(logs))
        self.write_checkpoint(LOG_START_OFFSETS, log_start_offsets(logs))
        self.write_checkpoint(HIGH_WATERMARKS, high_watermarks(logs))
        self.write_checkpoint(CLEANER_OFFSETS, cleaner_offsets(logs))
        if self._start_is_clean:
            marker = format_clean_shutdown(broker_epoch, checksums(self.disk, self.path), self._sealed)
            replace_file(self.disk, self.path, CLEAN_SHUTDOWN, marker.encode())
        self.release()


def check_is_nowhere(partition: TopicPartition, directories: Iterable[LogDirectory]) -> None:
    """A partition without a log is known not to be there only if every directory can be looked at.

    Raises KafkaError KAFKA_STORAGE_ERROR if one is offline.
    """
    offline = [directory.path for directory in directories if not directory.online]
    if offline:
        reason = f"{partition} may be in a directory that is offline: {', '.join(offline)}"
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, reason)


def recovery_points(logs: Mapping[TopicPartition, Log]) -> dict[tuple[str, int], int]:
    """What recovery-point-offset-checkpoint says of these logs."""
    return {partition: log.recovery_point for partition, log in logs.items()}


def log_start_offsets(logs: Mapping[TopicPartition, Log]) -> dict[tuple[str, int], int]:
    """What log-start-offset-checkpoint says: only of logs that begin behind their first file's beginning."""
    return {
        partition: log.log_start_offset
        for partition, log in logs.items()
        if log.log_start_offset > log.segments[0].base_offset
    }


def high_watermarks(logs: Mapping[TopicPartition, Log]) -> dict[tuple[str, int], int]:
    """What replication-offset-checkpoint says of these logs."""
    return {partition: log.high_watermark for partition, log in logs.items()}


def cleaner_offsets(logs: Mapping[TopicPartition, Log]) -> dict[tuple[str, int], int]:
    """What cleaner-offset-checkpoint says: only of logs that were compacted."""
    return {partition: log.cleaned_to for partition, log in logs.items() if log.cleaned_to > 0}


OFFSETS_OF: dict[str, Callable[[Mapping[TopicPartition, Log]], dict[tuple[str, int], int]]] = {
    RECOVERY_POINTS: recovery_points,
    LOG_START_OFFSETS: log_start_offsets,
    HIGH_WATERMARKS: high_watermarks,
    CLEANER_OFFSETS: cleaner_offsets,
}
"""What each checkpoint says of a directory's logs."""


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


def make_dirs(disk: Disk, path: str) -> None:
    """Make a folder and those above it, as far as they are missing, durably. Raises OSError."""
    if disk.stat(path) is not None:
        return
    parent = path.rpartition("/")[0]
    if parent:
        make_dirs(disk, parent)
    disk.make_dir(path)
    disk.sync_dir(parent or "/")


class _Loader:
    """The loading of one directory: marker, checkpoints, then folder by folder."""

    def __init__(
        self,
        directory: LogDirectory,
        config_of: Callable[[str], LogConfig],
        random: Random,
        wall_ms: int,
        progress: Callable[[LoadProgress], None] | None,
    ) -> None:
        self._directory = directory
        self._disk = directory.disk
        self._path = directory.path
        self._config_of = config_of
        self._random = random
        self._wall_ms = wall_ms
        self._progress = progress
        self._configs: dict[str, LogConfig] = {}
        self._marker: str | None = None
        self._sealed: Mapping[str, Sealed] = {}  # what the last clean stop left, as far as it said so
        self._found = Loaded({}, {}, [], [], False, [])

    def run(self) -> Loaded:
        folders = self._folders()
        changed = self._take_marker()
        clean = changed == []
        trusted = self._checkpoint(RECOVERY_POINTS, changed)
        trusted_too_far = False
        start_offsets = self._checkpoint(LOG_START_OFFSETS, changed)
        high_watermarks = self._checkpoint(HIGH_WATERMARKS, changed)
        cleaned = self._checkpoint(CLEANER_OFFSETS, changed)
        durable: dict[tuple[str, int], int] = {}
        for done, (name, folder) in enumerate(folders):
            partition, sealed = folder.topic_partition, self._sealed.get(name)
            try:
                log = open_log(
                    self._disk,
                    f"{self._path}/{name}",
                    self._config(partition.topic),
                    open_files=self._directory.open_files,
                    random=self._random,
                    wall_ms=self._wall_ms,
                    clean=clean,
                    recovery_point=trusted.get(partition, 0),
                    log_start_offset=start_offsets.get(partition, 0),
                    cleaned_to=cleaned.get(partition, 0),
                    sealed=sealed,
                    progress=self._recovery_progress(partition, done, len(folders)) if self._progress else None,
                    notices=self._found.notices,
                )
            except KafkaError as error:  # records below the recovery point that cannot be read
                raise OSError(errno.EIO, f"{name}: {error.message}; verify-log says where") from error
            if clean and (sealed is None or segments_checksum(log.segments) != sealed.segments):
                self._found.notices.extend(gaps(log.segments, cleaned.get(partition, 0)))
            trusted_too_far = trusted_too_far or log.recovery_point < trusted.get(partition, 0)
            log.set_high_watermark(high_watermarks.get(partition, 0))
            log.cleaned_to = min(cleaned.get(partition, 0), log.log_end_offset)
            log.is_configured = False
            durable[partition] = min(trusted.get(partition, 0), log.recovery_point)
            self._keep(partition, folder, log)
            if self._progress is not None and (not clean or done % _TELL_EVERY == 0 or done + 1 == len(folders)):
                self._progress(LoadProgress(self._path, done + 1, len(folders)))
        self._directory.durable_points = durable
        if trusted_too_far:  # or another crash would trust what is appended below the old recovery point
            self._directory.write_checkpoint(RECOVERY_POINTS, recovery_points(self._found.logs))
        return self._found._replace(was_clean=clean)

    def _folders(self) -> list[tuple[str, PartitionFolder]]:
        """The partitions to open, in order; everything else is sorted out here."""
        found, folders = self._found, []
        for entry in sorted(self._disk.list(self._path)):
            if entry.name in NOT_OURS:
                continue
            path = f"{self._path}/{entry.name}"
            folder = parse_folder_name(entry.name) if entry.is_dir else None
            if is_known_file(entry.name):
                if entry.is_dir or entry.is_odd:
                    found.notices.append(put_aside(self._disk, self._path, entry.name))
            elif folder is None:
                kind = "folder" if entry.is_dir else "file"
                found.notices.append(f"{path}: a foreign {kind} in a log directory, left alone")
            elif folder.state == "delete":
                found.deleted.append(path)
            elif folder.state == "stray":
                found.strays.append(path)
                found.notices.append(f"{path}: a stray partition of an earlier life, left alone")
            else:
                folders.append((entry.name, folder))
        return folders

    def _take_marker(self) -> list[str] | None:
        """The checkpoints that are not what the last clean stop wrote; None if the last stop was not clean.

        The marker goes before anything is opened, so that a crash while loading counts as one.
        """
        try:
            self._marker = read_text(self._disk, self._path, CLEAN_SHUTDOWN)
        except CorruptFileError:
            self._marker = ""
        if self._marker is None:
            return None
        marker, now = parse_clean_shutdown(self._marker), checksums(self._disk, self._path)
        self._sealed = marker.partitions
        changed = [name for name, checksum in marker.checksums.items() if now.get(name) != checksum]
        self._disk.remove(f"{self._path}/{CLEAN_SHUTDOWN}")
        self._disk.sync_dir(self._path)
        return changed

    def _checkpoint(self, name: str, changed: list[str] | None) -> dict[TopicPartition, int]:
        """What an offset checkpoint says, {} if it cannot be trusted."""
        if changed and name in changed:
            self._found.notices.append(f"{self._path}/{name}: changed since the last clean stop; the file is ignored")
            return {}
        return _read_offsets(self._disk, self._path, name, self._found.notices)

    def put_marker_back(self) -> None:
        """Nothing was changed after all: the directory is to be as it was."""
        if self._marker is not None:
            replace_file(self._disk, self._path, CLEAN_SHUTDOWN, self._marker.encode())

    def _config(self, topic: str) -> LogConfig:
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = self._config_of(topic)
        return config

    def _keep(self, partition: TopicPartition, folder: PartitionFolder, log: Log) -> None:
        logs = self._found.logs if folder.state == "live" else self._found.futures
        if partition in logs:
            raise DirectoryRefusedError(f"{log.folder.path}: there is another copy at {logs[partition].folder.path}")
        logs[partition] = log

    def _recovery_progress(
        self, partition: TopicPartition, done: int, total: int
    ) -> Callable[[RecoveryProgress], None]:
        progress = self._progress
        assert progress is not None
        return lambda recovered: progress(LoadProgress(self._path, done, total, (partition, recovered)))
