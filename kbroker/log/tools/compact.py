"""What compaction would save in one partition: the cleaner's own passes over its files, with nowhere to write to.

Called by `kbroker log compact --dry-run`. Reads only, through the Disk port, and needs no broker: what a running one
has in memory is worked out from the batches' headers. As the cleaner does it leaves alone the active segment, and all
from an open transaction on. Not known here are the settings of the topic, and what of the log is durable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from kbroker.log.checkpoints import parse_offsets, read_text
from kbroker.log.cleaner.compaction import Compaction, LastOfProducer, Plan, Source
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.cleaner.errors import UncleanableError
from kbroker.log.config import LogConfig
from kbroker.log.errors import CorruptFileError
from kbroker.log.names import CLEANER_OFFSETS, parse_folder_name, parse_segment_file_name, segment_file_name
from kbroker.log.tools.verify_partition import Progress
from kbroker.log.tools.walk import batches
from kbroker.ports import Buffer, Disk, Entry, File, Lock, OpenMode, Volume
from protocol.namedtuple import NamedTuple
from protocol.records import RecordError
from protocol.records.batch import CONTROL, MAGIC, TRANSACTIONAL, BatchHeader

_STEP_BYTES = 4 << 20  # looked at between two signs of progress


class NoPartitionError(Exception):
    """A folder is not a partition's: why, in a few words."""


class Savings(NamedTuple):
    """What a compaction would leave. All but active_bytes are of the segments that it may touch.

    first_dirty: what lies before it is clean already. end_offset: it would be clean to here; less than segments_end if
    the keys do not fit into the cleaner's memory: then another pass would follow. Records include markers.
    """

    segments: int
    first_dirty: int
    end_offset: int
    segments_end: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    active_bytes: int


class _Folder(NamedTuple):
    """A partition's files. sizes: of each .log, by base offset, in order. aborted_in: segments with a .txnindex."""

    path: str
    sizes: dict[int, int]
    aborted_in: list[int]
    cleaned_to: int


def dry_run(
    disk: Disk, path: str, *, now_ms: int, secret: bytes, delete_retention_ms: int, map_bytes: int
) -> Iterator[Progress | Savings]:
    """Compact the partition in the folder `path`, and write nothing. Yields progress, at the end what would be saved.

    now_ms: wall clock. secret: 16 random bytes. map_bytes: memory for keys. Raises NoPartitionError, UncleanableError,
    GoneError if the folder is changed meanwhile, CorruptFileError for a checkpoint, OSError.
    """
    folder = _folder(disk, path)
    survey = _Survey(disk, folder)
    total = sum(folder.sizes.values())
    yield Progress(0, total * 2)
    for done in survey.scan():
        yield Progress(done, total * 2)
    sources = survey.sources()
    plan = Plan(
        folder=path,
        config=LogConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=delete_retention_ms),
        sources=sources,
        first_dirty=survey.first_dirty(),
        end_offset=sources[-1].following if sources else 0,
        aborted_in=folder.aborted_in,
        now_ms=now_ms,
        map_bytes=map_bytes,
        load_factor=CleanerConfig().load_factor,
        chunk_bytes=CleanerConfig().chunk_bytes,
        secret=secret,
    )
    compaction = Compaction(_NothingWritten(disk), plan)
    try:
        passes = sum(each.size * (1 + (each.following > plan.first_dirty)) for each in sources)
        for _ in _compact(compaction, plan, survey.last_of_producers):
            yield Progress(total + compaction.read_bytes, total + passes)
        yield _savings(compaction, plan, survey)
    finally:
        compaction.close()


def _compact(compaction: Compaction, plan: Plan, producers: dict[int, LastOfProducer]) -> Iterator[None]:
    """Both passes, segment by segment: how they are grouped changes no batch."""
    if not plan.sources or plan.first_dirty >= plan.end_offset:
        return
    while not compaction.note_some():
        yield
    for source in plan.sources:
        if source.base_offset >= compaction.end_offset:
            return
        compaction.begin_group(source.base_offset)
        while not compaction.rewrite_some(source.following, producers):
            yield
        yield


def _savings(compaction: Compaction, plan: Plan, survey: _Survey) -> Savings:
    untouched = [each for each in plan.sources if each.base_offset >= compaction.end_offset]
    if plan.first_dirty >= plan.end_offset:
        untouched = list(plan.sources)
    return Savings(
        segments=len(plan.sources),
        first_dirty=plan.first_dirty,
        end_offset=compaction.end_offset,
        segments_end=plan.end_offset,
        records_before=survey.records_of(plan.sources),
        records_after=compaction.kept_records + survey.records_of(untouched),
        bytes_before=sum(each.size for each in plan.sources),
        bytes_after=compaction.written_bytes + sum(each.size for each in untouched),
        active_bytes=survey.bytes_behind(plan.sources),
    )


def _folder(disk: Disk, path: str) -> _Folder:
    """What is in a partition's folder. Raises NoPartitionError, CorruptFileError, OSError."""
    directory, _, name = path.rpartition("/")
    folder = parse_folder_name(name)
    if folder is None or folder.state != "live":
        raise NoPartitionError("is not a partition's folder, whose name is TOPIC-NUMBER")
    sizes: dict[int, int] = {}
    aborted_in: list[int] = []
    for entry in disk.list(path):
        file = parse_segment_file_name(entry.name)
        if file is not None and file.state == "live" and file.part == "log":
            sizes[file.base_offset] = entry.size
        elif file is not None and file.state == "live" and file.part == "txnindex":
            aborted_in.append(file.base_offset)
    if not sizes:
        raise NoPartitionError("is not a partition's folder: there is no .log file in it")
    try:
        cleaned = parse_offsets(read_text(disk, directory, CLEANER_OFFSETS) or "")
    except CorruptFileError as error:
        raise error.at(f"{directory}/{CLEANER_OFFSETS}") from None
    return _Folder(path, dict(sorted(sizes.items())), sorted(aborted_in), cleaned.get(folder.topic_partition, 0))


class _Survey:
    """What a broker would have in memory of the log: its producers and open transactions; and how many records."""

    def __init__(self, disk: Disk, folder: _Folder) -> None:
        self.last_of_producers: dict[int, LastOfProducer] = {}
        self._disk = disk
        self._folder = folder
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction
        self._records = dict.fromkeys(folder.sizes, 0)

    def scan(self) -> Iterator[int]:
        """Look at the header of every batch; yields bytes done. Raises UncleanableError, OSError."""
        done = said = 0
        active = max(self._folder.sizes)
        for base_offset, size in self._folder.sizes.items():
            path = f"{self._folder.path}/{segment_file_name(base_offset, 'log')}"
            file = self._disk.open(path, "read")
            try:
                for batch in batches(file, 0, size):
                    self._see(batch.header)
                    if batch.header.magic == MAGIC:
                        self._records[base_offset] += batch.header.records_count
                    elif base_offset != active:
                        self._records[base_offset] += len(batch.records())
                    if done + batch.end - said >= _STEP_BYTES:
                        said = done + batch.end
                        yield said
            except RecordError as error:
                raise UncleanableError(f"{path}: {error.reason}") from None
            finally:
                file.close()
            done += size
        yield done

    def _see(self, header: BatchHeader) -> None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        if header.magic != MAGIC or producer_id < 0:
            return
        if not header.attributes & CONTROL:
            self.last_of_producers[producer_id] = LastOfProducer(header.last_offset, epoch)
            if header.attributes & TRANSACTIONAL:
                self._open.setdefault(producer_id, header.base_offset)
            return
        self._open.pop(producer_id, None)
        last = self.last_of_producers.get(producer_id)
        if last is None or last.epoch != epoch:
            self.last_of_producers[producer_id] = LastOfProducer(-1, epoch)

    def sources(self) -> list[Source]:
        """The segments that may be compacted: not the active one, and none that an open transaction reaches."""
        found = []
        starts = list(self._folder.sizes)
        for base_offset, following in pairwise(starts):
            if self._open and following > min(self._open.values()):
                break
            found.append(Source(base_offset, self._folder.sizes[base_offset], following))
        return found

    def first_dirty(self) -> int:
        """Where the cleaner's checkpoint says; the log's start, if that is nowhere in the log."""
        cleaned_to, starts = self._folder.cleaned_to, list(self._folder.sizes)
        return cleaned_to if starts[0] <= cleaned_to <= starts[-1] else starts[0]

    def records_of(self, sources: Sequence[Source]) -> int:
        """Records in some segments."""
        return sum(self._records[each.base_offset] for each in sources)

    def bytes_behind(self, sources: Sequence[Source]) -> int:
        """Bytes of the segments that are left alone."""
        return sum(self._folder.sizes.values()) - sum(each.size for each in sources)


class _Nowhere:
    """A new file that takes everything and keeps nothing."""

    def size(self) -> int:
        return 0

    def read(self, position: int, size: int) -> bytes:
        return b""

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Let it go."""

    def resize(self, size: int) -> None:
        """Nothing to cut."""

    def sync(self) -> None:
        """Nothing to make durable."""

    def map(self) -> memoryview:
        return memoryview(b"")

    def close(self) -> None:
        """Nothing is held."""


class _NothingWritten:
    """A disk that is read as it is, and that nothing changes: new files lead nowhere."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def open(self, path: str, mode: OpenMode) -> File:
        return self._disk.open(path, "read") if mode == "read" else _Nowhere()

    def list(self, path: str) -> list[Entry]:
        return self._disk.list(path)

    def stat(self, path: str) -> Entry | None:
        return self._disk.stat(path)

    def rename(self, old: str, new: str) -> None:
        """Nothing is renamed."""

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Nothing is set."""

    def remove(self, path: str) -> None:
        """Nothing is removed."""

    def make_dir(self, path: str) -> None:
        """Nothing is made."""

    def remove_dir(self, path: str) -> None:
        """Nothing is removed."""

    def sync_dir(self, path: str) -> None:
        """Nothing is to be made durable."""

    def lock(self, path: str) -> Lock:
        raise BlockingIOError(f"{path}: is only read")

    def volume(self, path: str) -> Volume:
        return self._disk.volume(path)
