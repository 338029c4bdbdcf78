"""How a broker's logs come up and go down: directories taken, all partitions loaded; and at a stop everything durable.

Part of the manager, whose maps it fills. Both wait for the disk, and run before a broker serves and after it served.
A start changes nothing before it knows that every directory may be taken. A directory with an OSError starts, or ends,
offline; one that this broker must not use keeps it from starting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.config.limits import LOGS_CLOSED_AT_ONCE
from kbroker.log.background import Flush, Timers
from kbroker.log.config import NEVER
from kbroker.log.directory import DirectoryRefusedError, DirectoryUnusableError, Loaded, whose
from kbroker.log.errors import fault_of, lacks_descriptors
from kbroker.log.jobs import DeleteJob
from kbroker.log.metaproperties import MetaProperties, check_agreement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kbroker.log.background import Later, ManagerConfig, RunAll, Work
    from kbroker.log.cleaner.cleaner import Cleaner
    from kbroker.log.config import LogConfig
    from kbroker.log.directory import LoadProgress, LogDirectory
    from kbroker.log.log import Log
    from kbroker.log.moves import Moves
    from kbroker.log.names import TopicPartition
    from kbroker.ports import Disk, Random


class Keeper(Protocol):
    """The manager, as far as it keeps what comes up and goes down; see there."""

    directories: list[LogDirectory]
    cleaner: Cleaner
    _disk: Disk
    _random: Random
    _config: ManagerConfig
    _logs: dict[TopicPartition, Log]
    _futures: dict[TopicPartition, Log]
    _reasons: list[str]
    _jobs: list[Work]
    _later: Later[Work]
    _timers: Timers

    @property
    def moves(self) -> Moves:
        """Copies on their way between directories."""

    @property
    def has_online_directory(self) -> bool:
        """Whether the broker can go on."""

    def _online(self) -> list[LogDirectory]: ...

    def _logs_in(
        self, directory: LogDirectory, logs: Mapping[TopicPartition, Log] | None = None
    ) -> dict[TopicPartition, Log]: ...

    def _fail(self, directory: LogDirectory, error: OSError) -> None: ...

    def _notice(self, text: str) -> None: ...

    def _delete_later(self, directory: LogDirectory, job: DeleteJob, now_ms: int) -> None: ...

    def _flush_if_wanted(self, partition: TopicPartition, log: Log) -> None: ...


class Lifetime:
    """Start and stop of a manager's logs: `claim`, then `load`; in the end `close`, or `abandon`."""

    def __init__(self, manager: Keeper) -> None:
        self._manager = manager

    # ---- coming up

    def claim(self, cluster_id: str | None, node_id: int) -> None:
        """Check, lock and mark the directories: all of them, or none is touched. Raises DirectoryRefusedError."""
        manager = self._manager
        metas, failed = whose(manager._disk, (directory.path for directory in manager.directories))
        fault = check_agreement(metas, cluster_id=cluster_id, node_id=node_id)
        if fault is not None:
            raise DirectoryRefusedError(str(fault))
        if not metas:
            raise DirectoryUnusableError("; ".join(fault_of(error, path) for path, error in failed.items()))
        for directory in manager.directories:
            if directory.path in failed:
                self._fail(directory, failed[directory.path])
        try:
            for directory in manager._online():
                self._take(directory, metas[directory.path], cluster_id, node_id)
        except DirectoryRefusedError:
            for directory in manager.directories:
                directory.release()
            raise
        self._require_a_directory()

    def _require_a_directory(self) -> None:
        if not self._manager.has_online_directory:
            raise DirectoryUnusableError(f"no log directory can be used: {'; '.join(self._manager._reasons)}")

    def _take(self, directory: LogDirectory, meta: MetaProperties, cluster_id: str | None, node_id: int) -> None:
        try:
            directory.take()
            directory.meta = meta
            is_new = meta == MetaProperties()
            directory_id = self._manager._random.token(16) if is_new else meta.directory_id
            wanted = meta._replace(cluster_id=meta.cluster_id or cluster_id, node_id=node_id, directory_id=directory_id)
            directory.identify(wanted)
        except OSError as error:
            self._fail(directory, error)

    def _fail(self, directory: LogDirectory, error: OSError) -> None:
        """A start with too few descriptors is none: later it would go offline with all that could not be opened."""
        if lacks_descriptors(error):
            self.abandon()
            raise DirectoryRefusedError(f"{fault_of(error, directory.path)}: allow more open files (ulimit -n)")
        self._manager._fail(directory, error)

    def load(
        self,
        config_of: Callable[[str], LogConfig],
        now_ms: int,
        wall_ms: int,
        run_all: RunAll,
        progress: Callable[[LoadProgress], None] | None,
    ) -> None:
        """Open all partitions, directory by directory, side by side. Arguments and errors as of `open_logs`."""
        manager = self._manager
        outcomes: dict[str, Loaded | Exception] = {}

        def task(directory: LogDirectory) -> Callable[[], None]:
            def load() -> None:
                try:
                    outcomes[directory.path] = directory.load(config_of, manager._random, wall_ms, progress)
                except (OSError, DirectoryRefusedError) as error:
                    outcomes[directory.path] = error

            return load

        run_all([task(directory) for directory in manager._online()])
        copies: list[tuple[TopicPartition, Log]] = []
        for directory in manager._online():
            outcome = outcomes[directory.path]
            if isinstance(outcome, OSError):
                self._fail(directory, outcome)
            elif isinstance(outcome, Exception):
                self.abandon()
                raise outcome
            else:
                copies += self._adopt(directory, outcome, now_ms)
        if copies or manager._futures:
            manager.moves.settle(copies, now_ms)
        for partition, log in list(manager._logs.items()):
            if partition in manager._logs:  # a directory that fails takes its others along
                manager._flush_if_wanted(partition, log)
        self._require_a_directory()
        manager._timers = Timers(manager._config, now_ms)

    def _adopt(self, directory: LogDirectory, loaded: Loaded, now_ms: int) -> list[tuple[TopicPartition, Log]]:
        """Count what was loaded as the manager's, but for logs of partitions that other directories have, too."""
        manager = self._manager
        for notice in loaded.notices:
            manager._notice(notice)
        directory.partitions += len(loaded.logs) + len(loaded.futures)
        copies = [(partition, log) for partition, log in loaded.logs.items() if partition in manager._logs]
        for partition, log in loaded.logs.items():
            manager._logs.setdefault(partition, log)
        copies += [(partition, log) for partition, log in loaded.futures.items() if partition in manager._futures]
        for partition, log in loaded.futures.items():
            manager._futures.setdefault(partition, log)
        for path in loaded.deleted:
            job = DeleteJob(manager._disk, [], manager._config.file_delete_delay_ms, path)
            manager._delete_later(directory, job, now_ms)
        return copies

    # ---- going down

    def abandon(self) -> None:
        """Let go of everything as it lies."""
        manager = self._manager
        for log in (*manager._logs.values(), *manager._futures.values()):
            log.close_files()
        for directory in manager.directories:
            directory.release()

    def close(self, broker_epoch: int, run_all: RunAll) -> None:
        """Make everything durable, then write checkpoints and markers, and release the locks."""
        manager = self._manager
        for job in (*manager._jobs, *manager._later.take(NEVER)):
            if isinstance(job, Flush):
                job.log.flush_failed(job.job)  # never begun: closing does it
        for future in manager._futures.values():
            if future._flushing is not None:
                future.flush_failed(future._flushing)  # nor was this, whose job is not the manager's
        manager._jobs.clear()
        manager.cleaner.stop()
        errors: dict[str, OSError] = {}
        several = max(manager._config.threads, LOGS_CLOSED_AT_ONCE)
        tasks = []
        for directory in [each for each in manager._online() if each.path not in errors]:
            logs = [*manager._logs_in(directory).values(), *manager._logs_in(directory, manager._futures).values()]
            tasks += directory.closing(logs, several, errors)
        run_all(tasks)
        for directory in manager._online():
            if directory.path not in errors:
                try:
                    directory.seal(manager._logs_in(directory), broker_epoch)
                except OSError as error:
                    errors[directory.path] = error
            if directory.path in errors:
                manager._fail(directory, errors[directory.path])
                directory.release()
