"""The quorum's log on this machine: records and snapshots in `__cluster_metadata-0`, as Apache's brokers keep them.

Owned by the observer (`observer.py`), which says what comes in and what is committed. One thread owns it. What waits
until something is durable comes out as a job, run elsewhere, and its caller says when it has ended. In the folder:

| file | what it is |
|---|---|
| `00000000000000000042.log` and its like | a segment, as of any log |
| `00000000000000000100-0000000007.checkpoint` | a snapshot: all below offset 100, whose last record is of epoch 7 |
| ... `.checkpoint.part` | a snapshot that is being written, or fetched |
| ... `.checkpoint.deleted` | a snapshot that is to go |
| `quorum-state` | the last epoch and leader that this node knows, JSON |
| `partition.metadata` | the topic's id, which is the same in every cluster |

An observer's records need no fsync before it tells them: what is lost is fetched again. A segment is made durable
once it is full, as in Kafka, and all of them are looked through at each start. A snapshot is durable before it has
its name, and before the log that it stands for goes.

Source: KafkaRaftLog, Snapshots and FileQuorumStateStore of Apache Kafka 4.3, by behaviour; KIP-595, KIP-630.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING

from kbroker.log.checkpoints import ZERO_UUID, format_partition_metadata, format_uuid, read_text, replace_file
from kbroker.log.config import LogConfig
from kbroker.log.errors import CorruptFileError
from kbroker.log.folder import OpenFiles, make_dirs
from kbroker.log.jobs import DeleteJob, remove_if_there
from kbroker.log.names import AFTER_GAP_SUFFIX, METADATA_LOG, PARTITION_METADATA
from kbroker.log.recovery import open_log
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records import TornBatchError
from protocol.records.batch import BASE_OFFSET, last_offset_of, scan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.config import BrokerConfig
    from kbroker.log.jobs import FlushJob, Truncated
    from kbroker.log.log import Log
    from kbroker.ports import Buffer, Disk, File, Random

log = logging.getLogger("kbroker.quorum")

METADATA_TOPIC_ID = (1).to_bytes(16, "big")
"""Of `__cluster_metadata`, in every cluster (KIP-516)."""
FOLDER = f"{METADATA_LOG}-0"
QUORUM_STATE = "quorum-state"
LARGEST_BATCH_BYTES = 8 << 20
"""Of the metadata log (internal.metadata.max.batch.size.in.bytes)."""
OPEN_FILES = 8
NO_LEADER, NO_EPOCH = -1, 0
DELETE_DELAY_MS = 60_000

_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint(\.part|\.deleted)?", re.ASCII)


class SnapshotId(NamedTuple):
    """Which snapshot: it stands for all records below end_offset, the last of which is of this epoch."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        """Of its file, once it is whole."""
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"

    def __str__(self) -> str:
        return f"{self.end_offset}-{self.epoch}"


class QuorumState(NamedTuple):
    """What `quorum-state` says. A node without a vote has voted for none."""

    leader_id: int = NO_LEADER
    leader_epoch: int = NO_EPOCH


class Install:
    """Make a snapshot durable and give it its name: a job. Raises OSError, and may be run again."""

    def __init__(self, disk: Disk, folder: str, snapshot: SnapshotId) -> None:
        self.snapshot = snapshot
        self._disk = disk
        self._folder = folder

    def run(self) -> None:
        """On any thread."""
        path = f"{self._folder}/{self.snapshot.file_name}"
        file = self._disk.open(path + ".part", "write")
        try:
            file.sync()
        finally:
            file.close()
        self._disk.rename(path + ".part", path)
        self._disk.sync_dir(self._folder)


class WriteState(NamedTuple):
    """Write `quorum-state`: a job."""

    disk: Disk
    folder: str
    text: str

    def run(self) -> None:
        """On any thread. Raises OSError."""
        replace_file(self.disk, self.folder, QUORUM_STATE, self.text.encode())


class PartialSnapshot:
    """A snapshot that is being fetched or written. size: bytes so far."""

    def __init__(self, disk: Disk, folder: str, snapshot: SnapshotId) -> None:
        """Begins with nothing: what an earlier try has left is overwritten. Raises OSError."""
        self.id = snapshot
        self.size = 0
        self._disk = disk
        self._folder = folder
        self._file: File | None = disk.open(f"{folder}/{snapshot.file_name}.part", "create")
        self._file.resize(0)

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Bytes of it, which need not end with a batch. Raises OSError."""
        assert self._file is not None, self.id
        self._file.write(buffers, self.size)
        self.size += sum(len(each) for each in buffers)

    def close(self) -> None:
        """It is whole, or given up."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def install(self) -> Install:
        """The job that puts it in its place; to be told by `MetadataLog.installed`."""
        self.close()
        return Install(self._disk, self._folder, self.id)


def log_config(config: BrokerConfig) -> LogConfig:
    """The settings of the metadata log. Retention is by snapshots alone (`MetadataLog.clean`)."""
    return LogConfig(
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        max_message_bytes=LARGEST_BATCH_BYTES,
        retention_ms=-1,
        retention_bytes=-1,
        file_delete_delay_ms=DELETE_DELAY_MS,
    )


class MetadataLog:
    """The log and its snapshots. Made by `open_metadata_log`.

    log: what it is kept in. snapshots: those that are whole, the oldest first. state: as quorum-state said.
    """

    def __init__(self, disk: Disk, path: str, opened: Log, snapshots: list[SnapshotId], state: QuorumState) -> None:
        self.path = path
        self.log = opened
        self.snapshots = snapshots
        self.state = state
        self._disk = disk

    @property
    def end_offset(self) -> int:
        """Of the next record."""
        return self.log.log_end_offset

    @property
    def start_offset(self) -> int:
        """Of the first record; what was before is in a snapshot."""
        return self.log.log_start_offset

    @property
    def last_epoch(self) -> int:
        """Of the last record; 0 where there has been none."""
        latest = self.log.epochs.latest
        if latest >= 0:
            return latest
        return self.snapshots[-1].epoch if self.snapshots else NO_EPOCH

    @property
    def latest_snapshot(self) -> SnapshotId | None:
        """The newest."""
        return self.snapshots[-1] if self.snapshots else None

    # -- records

    def append(self, records: memoryview, wall_ms: int) -> FlushJob | None:
        """Append what the leader sent; a job, where a segment is full, to be told by `flushed`.

        Raises KafkaError for batches that are damaged, or not in order; OSError.
        """
        self._check_offsets(records)
        plan = self.log.append_as_follower(records, wall_ms)
        return self.log.start_flush(rolled_only=True) if plan is not None and plan.needs_flush else None

    def _check_offsets(self, records: memoryview) -> None:
        """That no record is left out: another log may have gaps, which compaction left. Raises: KafkaError."""
        next_offset = self.end_offset
        try:
            for _position, header in scan(records):
                if header[BASE_OFFSET] != next_offset:
                    why = f"offset {header[BASE_OFFSET]} comes where {next_offset} is due"
                    raise KafkaError(ErrorCode.INVALID_RECORD, why)
                next_offset = last_offset_of(header) + 1
        except TornBatchError:
            pass  # the answer cuts its last batch off

    def flushed(self, job: FlushJob, now_ms: int) -> None:
        """What was full is durable."""
        self.log.flushed(job, now_ms)

    def offset_to_truncate_to(self, *, epoch: int, end_offset: int) -> int:
        """Where to cut so that the log agrees with its leader's, or comes nearer to that.

        epoch, end_offset: the leader's largest epoch that is not above our last one, and where it ends there.
        """
        if epoch == NO_EPOCH:
            return min(end_offset, self.end_offset)
        ours = self.log.last_offset_of_epoch(epoch)
        if ours.epoch < 0:  # no record of that epoch or an earlier one is in the log: they are in a snapshot
            return self.start_offset if self.snapshots else 0
        return min(ours.end_offset, end_offset) if ours.epoch == epoch else ours.end_offset

    def truncate_to(self, offset: int, wall_ms: int) -> Truncated:
        """Cut all from `offset` on; nothing may be appended before what comes back has been synced. Raises OSError."""
        assert offset >= self.start_offset, (offset, self)
        self.log.distrust(offset)
        return self.log.truncate_to(offset, wall_ms)

    # -- snapshots

    def begin_snapshot(self, snapshot: SnapshotId) -> PartialSnapshot | None:
        """Where to put one that is to come; None if it is here. Raises OSError."""
        if snapshot in self.snapshots:
            return None
        return PartialSnapshot(self._disk, self.path, snapshot)

    def installed(self, snapshot: SnapshotId) -> None:
        """It is there, durably."""
        self.snapshots.append(snapshot)
        self.snapshots.sort()

    def open_snapshot(self, snapshot: SnapshotId) -> File:
        """To read. Raises OSError."""
        return self._disk.open(f"{self.path}/{snapshot.file_name}", "read")

    def start_at_latest_snapshot(self, wall_ms: int) -> Truncated | None:
        """Go on from the latest snapshot, if the log is behind it; what comes back is to be synced before appends.

        Older snapshots have no log behind them any more, and go. Raises OSError.
        """
        latest = self.latest_snapshot
        if latest is None or (latest.epoch, latest.end_offset) <= (self.last_epoch_of_log, self.end_offset):
            return None
        truncated = self.log.truncate_fully(latest.end_offset, wall_ms)
        self.log.set_high_watermark(latest.end_offset)
        return truncated

    @property
    def last_epoch_of_log(self) -> int:
        """Of the last record in the log itself; 0 where it has none."""
        return max(self.log.epochs.latest, NO_EPOCH)

    def forget_before(self, snapshot: SnapshotId, wall_ms: int) -> list[DeleteJob]:
        """Have all go that this snapshot stands for: older snapshots, and segments below its end. Raises OSError."""
        jobs = []
        if snapshot.end_offset <= self.log.high_watermark:
            self.log.advance_log_start(snapshot.end_offset)
            jobs = self.log.delete_old_segments(wall_ms)
        paths = []
        for each in [each for each in self.snapshots if each < snapshot]:
            path = f"{self.path}/{each.file_name}"
            self._disk.rename(path, f"{path}.deleted")
            paths.append(f"{path}.deleted")
            self.snapshots.remove(each)
        if paths:
            jobs.append(DeleteJob(self._disk, paths, DELETE_DELAY_MS))
        return jobs

    def clean(self, config: BrokerConfig, wall_ms: int) -> list[DeleteJob]:
        """Have old snapshots go, and the log before the newer ones, by metadata.max.retention.bytes and .ms.

        The newest always stays. The age of one is that of its file. Raises OSError.
        """
        jobs: list[DeleteJob] = []
        while len(self.snapshots) > 1:
            oldest, following = self.snapshots[0], self.snapshots[1]
            found = [self._disk.stat(f"{self.path}/{each.file_name}") for each in self.snapshots]
            total = self.log.size + sum(each.size for each in found if each is not None)
            age_ms = 0 if found[0] is None else wall_ms - found[0].modified_ms
            if 0 <= config.metadata_max_retention_bytes < total:
                why = f"log and snapshots have {total} bytes"
            elif 0 <= config.metadata_max_retention_ms < age_ms:
                why = f"it is {age_ms} ms old"
            else:
                break
            log.info("snapshot %s goes, and the metadata log before %s: %s", oldest, following, why)
            jobs += self.forget_before(following, wall_ms)
            if self.snapshots[0] == oldest:
                break
        return jobs

    # -- quorum-state

    def write_state(self, leader_id: int, epoch: int, *, kraft_version: int) -> WriteState:
        """The job that writes `quorum-state`. kraft_version: which of its two formats.

        An Apache node that takes the directory over wants a list of voters, which may be empty.
        """
        values: dict[str, object]
        if kraft_version == 0:
            values = {"clusterId": "", "leaderId": leader_id, "leaderEpoch": epoch, "votedId": -1, "appliedOffset": 0,
                      "currentVoters": [], "data_version": 0}  # fmt: skip
        else:
            no_one = format_uuid(ZERO_UUID)
            values = {"leaderId": leader_id, "leaderEpoch": epoch, "votedId": -1, "votedDirectoryId": no_one,
                      "data_version": 1}  # fmt: skip
        return WriteState(self._disk, self.path, json.dumps(values, separators=(",", ":")))

    def close(self) -> None:
        """Make the log durable, and give its files back; waits for the disk. Raises OSError."""
        self.log.give_flush_up()
        self.log.close()

    def abandon(self) -> None:
        """Give its files back, as they are."""
        self.log.close_files()


def open_metadata_log(disk: Disk, directory: str, config: LogConfig, random: Random, wall_ms: int) -> MetadataLog:
    """The metadata log in a directory, made if it is missing; waits for the disk, and recovers all of it.

    Raises: OSError; CorruptFileError, NewerFormatError for what cannot be used, naming the file.
    """
    path = f"{directory}/{FOLDER}"
    make_dirs(disk, path)
    if read_text(disk, path, PARTITION_METADATA) is None:
        replace_file(disk, path, PARTITION_METADATA, format_partition_metadata(METADATA_TOPIC_ID).encode())
    state = _read_state(disk, path)
    snapshots = _tidy_snapshots(disk, path)
    notices: list[str] = []
    opened = open_log(
        disk,
        path,
        config,
        open_files=OpenFiles(OPEN_FILES),
        random=random,
        wall_ms=wall_ms,
        clean=False,
        notices=notices,
    )
    for notice in notices:
        log.info("%s", notice)
    for entry in disk.list(path):
        if AFTER_GAP_SUFFIX in entry.name:  # kept for a person where it cannot be fetched again
            remove_if_there(disk, f"{path}/{entry.name}")
    found = MetadataLog(disk, path, opened, snapshots, state)
    useless = [each for each in snapshots if each.end_offset < opened.log_start_offset]
    for each in useless:
        remove_if_there(disk, f"{path}/{each.file_name}")
        snapshots.remove(each)
    if opened.log_start_offset and not snapshots:
        raise CorruptFileError(
            f"there is no snapshot of what is before offset {opened.log_start_offset}, where the log begins; removed "
            "as a whole, the folder is fetched again from the quorum",
            path=path,
        )
    truncated = found.start_at_latest_snapshot(wall_ms)
    for job in () if truncated is None else (truncated.sync, truncated.removed):
        if job is not None:
            job.run()
    if snapshots:
        opened.set_high_watermark(snapshots[-1].end_offset)  # what is in a snapshot is committed
    return found


def _tidy_snapshots(disk: Disk, path: str) -> list[SnapshotId]:
    """The whole ones, the oldest first; those that an earlier life has not ended, or was about to delete, go."""
    snapshots = []
    for entry in disk.list(path):
        match = _SNAPSHOT.fullmatch(entry.name)
        if match is None or entry.is_dir:
            continue
        if match[3]:
            remove_if_there(disk, f"{path}/{entry.name}")
        else:
            snapshots.append(SnapshotId(int(match[1]), int(match[2])))
    return sorted(snapshots)


def _read_state(disk: Disk, path: str) -> QuorumState:
    """Raises: CorruptFileError."""
    text = read_text(disk, path, QUORUM_STATE)
    if text is None:
        return QuorumState()
    where = f"{path}/{QUORUM_STATE}"
    try:
        values = json.loads(text)
        version, leader, epoch = (int(values[key]) for key in ("data_version", "leaderId", "leaderEpoch"))
    except (ValueError, TypeError, KeyError):
        raise CorruptFileError("says no leader and epoch of a quorum", path=where) from None
    if version not in (0, 1):
        raise CorruptFileError(f"has version {version}, this program knows versions 0 and 1", path=where)
    return QuorumState(leader, max(epoch, NO_EPOCH))
