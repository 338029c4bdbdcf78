"""Loading of log directories at a start: whose they are, which are taken, and all partitions in them loaded.

Called by the manager, at a start. It waits for the disk. Nothing is changed before it is known that every directory may
be taken. A directory with an OSError starts offline; one that this broker must not use keeps it from starting.

Source: Kafka documentation, implementation, "Log"; KIP-112 (several directories), KAFKA-10471 (the marker goes first).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kbroker.log.checkpoints import (
    Sealed,
    check_offsets_version,
    checksums,
    parse_clean_shutdown,
    parse_offsets,
    read_text,
    replace_file,
)
from kbroker.log.config import LogConfig
from kbroker.log.directory import DirectoryRefusedError, DirectoryUnusableError, LogDirectory
from kbroker.log.errors import CorruptFileError, NewerFormatError, fault_of, lacks_descriptors
from kbroker.log.folder import put_aside
from kbroker.log.gaps import gaps
from kbroker.log.jobs import DeleteJob
from kbroker.log.log import Log
from kbroker.log.log_jobs import RunAll
from kbroker.log.metaproperties import MetaProperties, check_agreement, parse_meta_properties
from kbroker.log.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    META_PROPERTIES,
    METADATA_STORE,
    NOT_OURS,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINTS,
    PartitionFolder,
    TopicPartition,
    is_known_file,
    parse_folder_name,
)
from kbroker.log.recovery import RecoveryProgress, open_log
from kbroker.log.sealed import segments_checksum
from kbroker.ports import Disk, Random
from protocol.errors import KafkaError
from protocol.namedtuple import NamedTuple

_TELL_EVERY = 64  # partitions, after a clean stop: none of them takes long


class LoadProgress(NamedTuple):
    """How far the loading of one directory is. recovering: a partition whose segments are being read, and how far."""

    directory: str
    partitions_done: int
    partitions: int
    recovering: tuple[TopicPartition, RecoveryProgress] | None = None


class Loaded(NamedTuple):
    """What a directory had in it, beside its logs.

    deleted: paths of folders that an earlier life was about to delete. notices: lines for the operator about what was
    found wrong or foreign.
    """

    deleted: list[str]
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
    """Which broker each directory belongs to (none if it is new), and those that cannot be read."""
    metas: dict[str, MetaProperties] = {}
    failed: dict[str, OSError] = {}
    for path in paths:
        try:
            metas[path] = inspect(disk, path).meta or MetaProperties()
        except OSError as error:
            failed[path] = error
    return metas, failed


def claim(
    directories: Sequence[LogDirectory], disk: Disk, random: Random, cluster_id: str | None, node_id: int
) -> None:
    """Check, lock and mark the directories: all of them, or none is touched. Raises DirectoryRefusedError."""
    metas, failed = whose(disk, (directory.path for directory in directories))
    fault = check_agreement(metas, cluster_id=cluster_id, node_id=node_id)
    if fault is not None:
        raise DirectoryRefusedError(str(fault))
    if not metas:
        raise DirectoryUnusableError("; ".join(fault_of(error, path) for path, error in failed.items()))
    for directory in directories:
        if directory.path in failed:
            _fail(directories, directory, failed[directory.path])
    try:
        for directory in [each for each in directories if each.online]:
            _lock_and_identify(directories, directory, metas[directory.path], random, cluster_id, node_id)
    except DirectoryRefusedError:
        for directory in directories:
            directory.release()
        raise
    require_a_directory(directories)


def require_a_directory(directories: Sequence[LogDirectory]) -> None:
    """Raises DirectoryRefusedError if none is left."""
    if not any(directory.online for directory in directories):
        reasons = "; ".join(directory.reason for directory in directories)
        raise DirectoryUnusableError(f"no log directory can be used: {reasons}")


def _lock_and_identify(
    directories: Sequence[LogDirectory],
    directory: LogDirectory,
    meta: MetaProperties,
    random: Random,
    cluster_id: str | None,
    node_id: int,
) -> None:
    try:
        directory.lock()
        directory.meta = meta
        is_new = meta == MetaProperties()
        directory_id = random.token(16) if is_new else meta.directory_id
        wanted = meta._replace(cluster_id=meta.cluster_id or cluster_id, node_id=node_id, directory_id=directory_id)
        directory.identify(wanted)
    except OSError as error:
        _fail(directories, directory, error)


def _fail(directories: Sequence[LogDirectory], directory: LogDirectory, error: OSError) -> None:
    """A start with too few descriptors is none: later it would go offline with all that could not be opened."""
    if lacks_descriptors(error):
        for each in directories:
            each.abandon()
        raise DirectoryRefusedError(f"{fault_of(error, directory.path)}: allow more open files (ulimit -n)")
    directory.fail(error)


def load(
    directories: Sequence[LogDirectory],
    config_of: Callable[[str], LogConfig],
    random: Random,
    now_ms: int,
    wall_ms: int,
    delete_delay_ms: int,
    run_all: RunAll,
    progress: Callable[[LoadProgress], None] | None,
) -> None:
    """Open all partitions, directory by directory, side by side. Arguments and errors as of `open_logs`.

    delete_delay_ms: of folders that an earlier life was about to delete.
    """
    outcomes: dict[LogDirectory, Loaded | Exception] = {}

    def task(directory: LogDirectory) -> Callable[[], None]:
        def load_one() -> None:
            loader = _Loader(directory, config_of, random, wall_ms, progress)
            try:
                outcomes[directory] = loader.load()
            except (OSError, DirectoryRefusedError) as error:
                outcomes[directory] = error

        return load_one

    run_all([task(directory) for directory in directories if directory.online])
    for directory, outcome in [(each, outcomes[each]) for each in directories if each.online]:
        if isinstance(outcome, OSError):
            _fail(directories, directory, outcome)
        elif isinstance(outcome, Exception):
            for each in directories:
                each.abandon()
            raise outcome
        else:
            for notice in outcome.notices:
                directory.notice(notice)
            directory.partitions += len(directory.logs) + len(directory.futures)
            for path in outcome.deleted:
                directory.delete_later(DeleteJob(directory.disk, [], delete_delay_ms, path), now_ms)


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
        self._found = Loaded([], [])

    def load(self) -> Loaded:
        """Open every partition there is. Raises OSError; DirectoryRefusedError for files of a newer broker."""
        try:
            self._load()
        except (OSError, NewerFormatError) as error:
            self._directory.close_files()
            self._directory.logs, self._directory.futures = {}, {}
            if isinstance(error, NewerFormatError):
                self._put_marker_back()
                raise DirectoryRefusedError(str(error)) from None
            if lacks_descriptors(error):  # the broker will not start
                with suppress(OSError):
                    self._put_marker_back()
            raise
        return self._found

    def _load(self) -> None:
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
            if sealed is not None and segments_checksum(log.segments) == sealed.segments:
                log.id_checksum = sealed.topic_id
            elif clean:
                self._found.notices.extend(gaps(log.segments, cleaned.get(partition, 0)))
            trusted_too_far = trusted_too_far or log.recovery_point < trusted.get(partition, 0)
            log.set_high_watermark(high_watermarks.get(partition, 0))
            log.cleaned_to = min(cleaned.get(partition, 0), log.log_end_offset)
            log.is_configured = False
            durable[partition] = min(trusted.get(partition, 0), log.recovery_point)
            self._keep(partition, folder, log)
            if self._progress is not None and (not clean or done % _TELL_EVERY == 0 or done + 1 == len(folders)):
                self._progress(LoadProgress(self._path, done + 1, len(folders)))
        self._directory.loaded(durable, was_clean=clean)
        if trusted_too_far:  # or another crash would trust what is appended below the old recovery point
            self._directory.write_checkpoint(RECOVERY_POINTS)

    def _folders(self) -> list[tuple[str, PartitionFolder]]:
        """The partitions to open, in order; everything else is sorted out here."""
        found, folders = self._found, []
        for entry in sorted(self._disk.list(self._path)):
            if entry.name in NOT_OURS:
                continue
            path = f"{self._path}/{entry.name}"
            folder = parse_folder_name(entry.name) if entry.is_dir else None
            if is_known_file(entry.name):
                if (entry.is_dir or entry.is_odd) and entry.name not in METADATA_STORE:
                    found.notices.append(put_aside(self._disk, self._path, entry.name))
            elif folder is None:
                kind = "folder" if entry.is_dir else "file"
                found.notices.append(f"{path}: a foreign {kind} in a log directory, left alone")
            elif folder.state == "delete":
                found.deleted.append(path)
            elif folder.state == "stray":
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

    def _put_marker_back(self) -> None:
        """Nothing was changed after all: the directory is to be as it was."""
        if self._marker is not None:
            replace_file(self._disk, self._path, CLEAN_SHUTDOWN, self._marker.encode())

    def _config(self, topic: str) -> LogConfig:
        config = self._configs.get(topic)
        if config is None:
            config = self._configs[topic] = self._config_of(topic)
        return config

    def _keep(self, partition: TopicPartition, folder: PartitionFolder, log: Log) -> None:
        logs = self._directory.logs if folder.state == "live" else self._directory.futures
        if partition in logs:
            raise DirectoryRefusedError(f"{log.folder.path}: there is another copy at {logs[partition].folder.path}")
        logs[partition] = log

    def _recovery_progress(
        self, partition: TopicPartition, done: int, total: int
    ) -> Callable[[RecoveryProgress], None]:
        progress = self._progress
        assert progress is not None
        return lambda recovered: progress(LoadProgress(self._path, done, total, (partition, recovered)))
