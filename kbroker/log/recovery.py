"""Log recovery, when a log is opened: what is in its folder, and after an unclean stop, how much of it is whole.

`open_log` is called by the manager, once per partition at start and when a partition is made. After a clean stop
nothing is scanned: the end of the log is read from the last batches behind the last index entry. After an unclean stop
everything from the segment of the recovery point on is read, checksums included; the first batch that is torn, out of
order or of an older leader epoch than the one before it ends the log. What lies below the recovery point is trusted.

A crash at any point of this leaves a folder that the next recovery brings to the same end.

Source: Kafka documentation, implementation, "Log", "Recovery"; KAFKA-6264 and KIP-98 for the rest of the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from kbroker.log.checkpoints import Sealed, parse_leader_epochs, read_text
from kbroker.log.config import LogConfig
from kbroker.log.epochs import LeaderEpochs
from kbroker.log.errors import CorruptFileError, NewerFormatError
from kbroker.log.folder import Folder, OpenFiles, put_aside
from kbroker.log.gaps import gaps, keep_aside
from kbroker.log.index import MAX_RELATIVE_OFFSET
from kbroker.log.jobs import remove_if_there, sync_if_there
from kbroker.log.log import Log
from kbroker.log.names import (
    LEADER_EPOCHS,
    PARTITION_FILES,
    PENDING_SUFFIX,
    SegmentFile,
    SegmentPart,
    parse_segment_file_name,
)
from kbroker.log.producer_state import Producers
from kbroker.log.replay import replay_batch, replay_producers
from kbroker.log.scan import WALK_BYTES, headers, intact_batches
from kbroker.log.sealed import aborted_checksum, indices_checksum, segments_checksum
from kbroker.log.segment import Segment, draw_jitter
from kbroker.log.snapshots import Snapshots
from kbroker.log.split import overflowing, split
from kbroker.ports import Disk, Entry, Random
from protocol.errors import KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records import crc32c
from protocol.records.batch import BASE_OFFSET, LEADER_EPOCH, HeaderTuple, last_offset_of, size_of

_base_offset = attrgetter("base_offset")


class RecoveryProgress(NamedTuple):
    """How far the recovery of one log is: segments and bytes read, of how many."""

    segments_done: int
    segments: int
    bytes_done: int
    bytes: int


def open_log(
    disk: Disk,
    path: str,
    config: LogConfig,
    *,
    open_files: OpenFiles,
    random: Random,
    wall_ms: int,
    clean: bool,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    cleaned_to: int = 0,
    sealed: Sealed | None = None,
    progress: Callable[[RecoveryProgress], None] | None = None,
    notices: list[str] | None = None,
) -> Log:
    """The log in an existing folder, which may be empty.

    clean: whether the directory's last user stopped cleanly. recovery_point, log_start_offset, cleaned_to: from the
    checkpoints, 0 where they say nothing. sealed: what the last clean stop left here, as far as it said so; what has
    changed since is rebuilt from the batches. wall_ms: for expiry and rolls. progress: told of each segment that an
    unclean stop makes it read. notices: gets a line for everything that was not as it should be: path, position, what
    was done.
    If the log's recovery point is below the one given, the caller makes its checkpoint durable before anything is
    appended: the next recovery trusts it. Raises OSError; NewerFormatError for a file that a newer broker has written.
    """
    notices = [] if notices is None else notices
    folder = Folder(disk, path, open_files)
    found = _tidy(folder, notices)
    segments = _load_segments(folder, found, config, wall_ms, notices)
    mended = sealed is not None and _mend_indices(segments, sealed, notices)
    cleaned_to, log_end_offset, end = _split_overflowing(segments, cleaned_to, recovery_point, wall_ms, notices)
    snapshots = Snapshots(folder, [offset for offset, parts in found.parts.items() if "snapshot" in parts])
    unread = [] if clean else segments[: max(bisect_right(segments, recovery_point, key=_base_offset) - 1, 0)]
    producers, epochs = Producers(), _load_epochs(folder, segments, found.has_epochs, sealed, unread, notices)
    mended |= epochs.version > 0
    if clean and segments and not _ends_well(segments[-1], end, notices):
        clean, recovery_point = False, segments[-1].base_offset
    if segments and not clean:
        recovery = _Recovery(config, segments, epochs, producers, snapshots, notices, cleaned_to)
        recovery.recover(recovery_point, log_start_offset, wall_ms, progress)
        log_end_offset = segments[-1].end()[0]
    mended |= _mend_aborted(segments, notices, None if sealed is None else sealed.aborted, unread)
    notices.extend(_lost(path, max(log_end_offset, 0), log_start_offset, recovery_point))
    if log_end_offset < log_start_offset:
        _start_over(segments, log_start_offset, epochs, producers, snapshots)
        segments.append(_first_segment(folder, log_start_offset, config, random, wall_ms))
        log_end_offset, clean = log_start_offset, False
    segments[-1].jitter_ms = draw_jitter(config, random)
    segments[-1].close()  # an idle log holds no descriptor
    log_start_offset = max(log_start_offset, segments[0].base_offset)
    epochs.truncate_from_end(log_end_offset)
    epochs.truncate_from_start(log_start_offset)
    if clean:
        if _had_any_snapshot(snapshots, sealed, notices):
            notices += _load_producers(segments, producers, snapshots, log_start_offset, log_end_offset, wall_ms)
        producers.end_offset = log_end_offset  # without any snapshot there were no producers: no reason to scan
    return Log(
        folder,
        config,
        segments,
        log_start_offset=log_start_offset,
        log_end_offset=log_end_offset,
        recovery_point=log_end_offset if clean else min(recovery_point, log_end_offset),
        epochs=epochs,
        producers=producers,
        snapshots=snapshots,
        random=random,
        names_changed=not clean or mended,
    )


def _first_segment(folder: Folder, base_offset: int, config: LogConfig, random: Random, wall_ms: int) -> Segment:
    """The only segment of a log that begins at an offset."""
    segment = Segment.create(folder, base_offset, config, now_ms=wall_ms, jitter_ms=draw_jitter(config, random))
    if base_offset:
        folder.disk.sync_dir(
            folder.path
        )  # from now on this file alone says where it starts, and the checkpoint no more
    return segment


# ---- what is in the folder


class _Found(NamedTuple):
    """The files that matter: parts of segments by base offset (snapshots by theirs), and whether there are epochs."""

    parts: dict[int, dict[SegmentPart, Entry]]
    has_epochs: bool


def _tidy(folder: Folder, notices: list[str]) -> _Found:
    """Finish what a crash interrupted (deletions, the cleaner's swaps) and say what there is.

    What is no file is none of ours; what has a name of a file of ours all the same is put aside.
    """
    found, unfinished, foreign = _sort(folder.disk.list(folder.path))
    notices += [put_aside(folder.disk, folder.path, name) for name in foreign]
    if unfinished:
        _finish_swaps(folder, found, unfinished)
        found, _unfinished, _foreign = _sort(folder.disk.list(folder.path))
    return found


def _sort(listed: list[Entry]) -> tuple[_Found, list[tuple[Entry, SegmentFile]], list[str]]:
    """Files in use, files that are on their way in or out, and the names of what has a file's name and is none."""
    parts: dict[int, dict[SegmentPart, Entry]] = {}
    unfinished, foreign = [], []
    has_epochs = False
    for entry in listed:
        name, _size, _modified_ms, is_dir, is_odd = entry
        file = parse_segment_file_name(name)
        if is_dir or is_odd:
            if file is not None or name.removesuffix(".tmp").removesuffix(PENDING_SUFFIX) in PARTITION_FILES:
                foreign.append(name)
        elif file is None:
            has_epochs = has_epochs or name == LEADER_EPOCHS
        elif file.state == "live":
            parts.setdefault(file.base_offset, {})[file.part] = entry
        else:
            unfinished.append((entry, file))
    return _Found(parts, has_epochs), unfinished, foreign


def _finish_swaps(folder: Folder, found: _Found, unfinished: list[tuple[Entry, SegmentFile]]) -> None:
    """Remove what was deleted or half cleaned; put in place what was cleaned, in place of what it replaces.

    A swap at or behind the first half-cleaned segment belongs to a split that never finished: it goes as well.
    """
    first_cleaned = min((file.base_offset for _, file in unfinished if file.state == "cleaned"), default=None)
    swaps = []
    for entry, file in unfinished:
        if file.state == "swap" and (first_cleaned is None or file.base_offset < first_cleaned):
            swaps.append((entry, file))
        else:
            remove_if_there(folder.disk, f"{folder.path}/{entry.name}")
    logs = [(entry, file) for entry, file in swaps if file.part == "log"]
    if logs:
        low = min(file.base_offset for _, file in logs)
        high = max(_end_of_swap(folder, entry, file) for entry, file in logs)
        for base_offset, parts in found.parts.items():
            if low <= base_offset < high:
                for entry in parts.values():
                    remove_if_there(folder.disk, f"{folder.path}/{entry.name}")
    for entry, _ in swaps:
        path = f"{folder.path}/{entry.name}"
        folder.disk.rename(path, path.removesuffix(".swap"))
    folder.disk.sync_dir(folder.path)


def _end_of_swap(folder: Folder, entry: Entry, file: SegmentFile) -> int:
    handle = folder.disk.open(f"{folder.path}/{entry.name}", "read")
    try:
        end = file.base_offset
        for _, header in headers(handle, 0, entry.size):
            end = last_offset_of(header) + 1
        return end
    finally:
        handle.close()


def _load_segments(folder: Folder, found: _Found, config: LogConfig, wall_ms: int, notices: list[str]) -> list[Segment]:
    """The segments in order; indices without a log are removed, missing ones of a log with batches rebuilt."""
    segments = []
    for base_offset in sorted(found.parts):
        parts = found.parts[base_offset]
        log = parts.get("log")
        if log is None:
            for part, entry in parts.items():
                if part != "snapshot":
                    remove_if_there(folder.disk, f"{folder.path}/{entry.name}")
            continue
        index, times = parts.get("index"), parts.get("timeindex")
        segment = Segment(
            folder,
            base_offset,
            config,
            created_ms=wall_ms,
            size=log.size,
            index_bytes=(index.size if index else 0, times.size if times else 0),
            has_aborted="txnindex" in parts,
        )
        if index is None or times is None:
            segment.rebuild_indices()
            if segment.size:
                notices.append(f"{folder.file_path(base_offset, 'log')}: an index was missing: rebuilt")
        segments.append(segment)
    return segments


def _split_overflowing(
    segments: list[Segment], cleaned_to: int, recovery_point: int, wall_ms: int, notices: list[str]
) -> tuple[int, int, int]:
    """Divide segments that span more offsets than an index can tell, after whatever kind of stop: see `split`.

    Returns: to which offset the log is cleaned, and the `end` of its last segment, -1 and 0 if it has none. Only a
    cleaner makes such segments, so gaps before what came of them are its.
    """
    end_offset, end = segments[-1].end() if segments else (-1, 0)
    too_long = overflowing(segments, end_offset, recovery_point)
    if not too_long:
        return cleaned_to, end_offset, end
    for segment in too_long:
        at = segments.index(segment)
        _mend_aborted(segments[: at + 1], notices)
        parts = split(segment, [] if segment.aborted is None else segment.aborted.entries(), wall_ms)
        path = segment.folder.file_path(segment.base_offset, "log")
        notices.append(f"{path}: spans more than {MAX_RELATIVE_OFFSET} offsets: divided into {len(parts)} segments")
        segments[at : at + 1] = parts
        cleaned_to = max(cleaned_to, parts[-1].base_offset)
    return cleaned_to, *segments[-1].end()


def _ends_well(active: Segment, end: int, notices: list[str]) -> bool:
    """After a clean stop: whether the last segment ends with a whole batch, but for zeros that were never used.

    end: the position behind its last batch.
    """
    while end < active.size:
        rest = active.file.read(end, min(WALK_BYTES, active.size - end))
        if rest.strip(b"\0"):
            path = active.folder.file_path(active.base_offset, "log")
            notices.append(f"{path}: position {end}: no batch, although the last stop was clean: recovering")
            return False
        active.size -= len(rest)
    return True


def _lost(path: str, log_end_offset: int, log_start_offset: int, recovery_point: int) -> Iterator[str]:
    """Lines about a log that ends before it should."""
    if log_end_offset < recovery_point:
        lost = f"it was durable to {recovery_point}: what came between is lost"
        yield f"{path}: ends at offset {log_end_offset}, {lost}"
    if log_end_offset < log_start_offset:
        yield f"{path}: ends at offset {log_end_offset}, before its start {log_start_offset}: started empty there"


def _mend_indices(segments: list[Segment], sealed: Sealed, notices: list[str]) -> bool:
    """Rebuild the indices if their sizes are not those of the last clean stop; whether they were.

    Where segments are missing, that is said, and not this.
    """
    if not segments or indices_checksum(segments) == sealed.indices:
        return False
    for segment in segments:
        segment.rebuild_indices()
        for path in segment.paths_to_sync():
            sync_if_there(segment.folder.disk, path)
    if segments_checksum(segments) == sealed.segments:
        notices.append(f"{segments[0].folder.path}: an index is not as the last clean stop left it: all rebuilt")
    return True


def _load_epochs(
    folder: Folder,
    segments: list[Segment],
    has_file: bool,
    sealed: Sealed | None,
    unread: list[Segment],
    notices: list[str],
) -> LeaderEpochs:
    """The leader epochs as the file has them; from the batches, if it cannot be read, or is not what it was.

    unread: segments of which recovery will not find out their epochs.
    """
    path = f"{folder.path}/{LEADER_EPOCHS}"
    try:
        text = read_text(folder.disk, folder.path, LEADER_EPOCHS) if has_file else None
        epochs = LeaderEpochs(parse_leader_epochs(text or ""))
        epochs.stored = -1 if text is None else crc32c(text.encode())
        if sealed is not None and epochs.stored != sealed.epochs:
            raise CorruptFileError("is not as the last clean stop left it")
        if epochs.latest < 0 and _first_epoch(unread) >= 0:
            raise CorruptFileError("says nothing, though there are batches with epochs")
        return epochs
    except NewerFormatError as error:
        raise error.at(path) from None
    except CorruptFileError as error:
        notices.append(f"{error.at(path)}: rebuilt from the batches")
        epochs = LeaderEpochs()
    for segment in segments:
        for _, header in headers(segment.file, 0, segment.size):
            if header[LEADER_EPOCH] > epochs.latest:
                epochs.assign(header[LEADER_EPOCH], header[BASE_OFFSET])
    epochs.version += 1  # to be written at the next flush, even if there are none
    return epochs


def _first_epoch(segments: list[Segment]) -> int:
    """Of the log's first batch; -1 if there is none, or it has none."""
    for segment in segments:
        for _, header in headers(segment.file, 0, segment.size):
            return header[LEADER_EPOCH]
    return -1


def _load_producers(
    segments: list[Segment],
    producers: Producers,
    snapshots: Snapshots,
    log_start_offset: int,
    log_end_offset: int,
    wall_ms: int,
) -> list[str]:
    """After a clean stop: from the newest snapshot, and the batches behind it if it is not the end of the log.

    Returns: what there is to say.
    """
    snapshots.remove_strays({segment.base_offset for segment in segments})
    snapshots.keep_within(log_start_offset, log_end_offset)
    expiration_ms = segments[0].config.producer_id_expiration_ms
    lines = snapshots.load_latest(producers, log_start_offset, wall_ms, expiration_ms)
    replay_producers(segments, producers, log_end_offset)
    for segment in segments:
        segment.close()
    return lines


def _had_any_snapshot(snapshots: Snapshots, sealed: Sealed | None, notices: list[str]) -> bool:
    """Whether there were producers at the last clean stop, as far as can be told."""
    latest = -1 if snapshots.latest is None else snapshots.latest
    if sealed is None or latest == sealed.snapshot:
        return latest >= 0
    notices.append(f"{snapshots.path}: the newest snapshot is not that of the last clean stop: producers are rebuilt")
    return True


def _start_over(
    segments: list[Segment], log_start_offset: int, epochs: LeaderEpochs, producers: Producers, snapshots: Snapshots
) -> None:
    """Nothing is there, or so little that what the checkpoint says was lost."""
    if segments:
        _remove_segments(segments[0].folder, segments)
    epochs.clear()
    producers.clear(log_start_offset)
    snapshots.keep_within(log_start_offset, -1)


def _remove_segments(folder: Folder, segments: list[Segment]) -> None:
    """Remove segments' files, the last one first, durably: a crash in between leaves no hole."""
    while segments:
        segment = segments.pop()
        segment.close()
        for part in ("txnindex", "timeindex", "index", "log"):
            remove_if_there(folder.disk, folder.file_path(segment.base_offset, part))
    folder.disk.sync_dir(folder.path)


# ---- how much of it is whole


class _Recovery:
    """The walk over what may be torn, from the segment of the recovery point to the end."""

    def __init__(
        self,
        config: LogConfig,
        segments: list[Segment],
        epochs: LeaderEpochs,
        producers: Producers,
        snapshots: Snapshots,
        notices: list[str],
        cleaned_to: int,
    ) -> None:
        self._config = config
        self._cleaned_to = cleaned_to
        self._notices = notices
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._snapshots = snapshots
        self._next_offset = 0  # what the next batch must not lie below
        self._epoch = -1  # of the last batch
        self._trusted = 0

    def recover(
        self,
        recovery_point: int,
        log_start_offset: int,
        wall_ms: int,
        progress: Callable[[RecoveryProgress], None] | None,
    ) -> None:
        """Leave in `segments`, their files and everything else only what is whole."""
        segments, producers, snapshots = self._segments, self._producers, self._snapshots
        first = max(0, bisect_right(segments, recovery_point, key=_base_offset) - 1)
        start = self._next_offset = segments[first].base_offset
        self._trusted = recovery_point
        if first > 0 and start == recovery_point:
            segments[first - 1].finish_again()  # its batches are durable, what its roll did to its indices may not be
        self._notices.extend(gaps(segments[: first + 1], self._cleaned_to))
        self._epochs.truncate_from_end(start)
        snapshots.remove_strays({segment.base_offset for segment in segments})
        snapshots.keep_within(-1, start)
        expiration_ms = self._config.producer_id_expiration_ms
        self._notices += snapshots.load_latest(producers, log_start_offset, wall_ms, expiration_ms)
        replay_producers(segments[:first], producers, start)
        sizes = [segment.size for segment in segments]
        for at in range(first, len(segments)):
            whole = not self._is_behind_hole(at, first) and self._recover(segments[at])
            if progress is not None:
                done = at + 1 - first
                progress(RecoveryProgress(done, len(sizes) - first, sum(sizes[first : at + 1]), sum(sizes[first:])))
            if not whole:
                # what follows a cut or a hole makes no sense any more
                behind = segments[at + 1 :] if self._next_offset >= segments[at].base_offset else segments[at:]
                del segments[len(segments) - len(behind) :]
                self._notices.extend(keep_aside(segments[0].folder, behind))
                break

    def _is_behind_hole(self, at: int, first: int) -> bool:
        """Whether batches before this segment were lost, so that it must go as well.

        A compacted log may begin a segment with a gap: only its own broker can tell, and only before the crash. That it
        is one, settings say, which may not be known yet, or the checkpoint of how far it was cleaned.
        """
        base_offset = self._segments[at].base_offset
        may_be_cleaned = self._config.compact or base_offset <= self._cleaned_to
        return at > first and not may_be_cleaned and base_offset > self._next_offset

    def _recover(self, segment: Segment) -> bool:
        """Read a segment, rebuild its indices, cut it where it stops making sense; whether it was whole."""
        size, valid, last_entry = segment.size, 0, 0
        self._next_offset = max(self._next_offset, segment.base_offset)
        segment.forget_indices()
        if segment.aborted is not None:
            segment.aborted.clear()
        self._producers.end_offset = max(self._producers.end_offset, segment.base_offset)
        self._snapshots.take_snapshot(self._producers)
        for position, header in intact_batches(segment.file, 0, size):
            if not self._follows(segment, header) or not self._note_producer(segment, position, header):
                break
            if segment.index_batch(position, header, last_entry):
                last_entry = position
            if header[LEADER_EPOCH] >= 0 and header[LEADER_EPOCH] != self._epochs.latest:
                self._epochs.assign(header[LEADER_EPOCH], header[BASE_OFFSET])
            self._next_offset = last_offset_of(header) + 1
            self._epoch = header[LEADER_EPOCH]
            valid = position + size_of(header)
        segment.size = valid
        if valid < size:
            path = segment.folder.file_path(segment.base_offset, "log")
            self._notices.append(f"{path}: position {valid}: {size - valid} bytes that make no whole batch: cut")
            segment.file.resize(valid)
            segment.file.sync()  # or what was cut might come back behind what is appended next
        segment.finish()
        return valid == size

    def _follows(self, segment: Segment, header: HeaderTuple) -> bool:
        """Whether a whole batch can be the next one, and is not a leftover of what was cut before the crash.

        Leftovers are of an older leader epoch than what was written over them. Below the recovery point old brokers may
        have left epochs out of order: there they are let be.
        """
        base_offset = header[BASE_OFFSET]
        if base_offset < self._next_offset or last_offset_of(header) - segment.base_offset > MAX_RELATIVE_OFFSET:
            return False
        return base_offset < self._trusted or header[LEADER_EPOCH] < 0 or header[LEADER_EPOCH] >= self._epoch

    def _note_producer(self, segment: Segment, position: int, header: HeaderTuple) -> bool:
        """Bring the producers up to date; whether the batch made sense to them."""
        try:
            _replay_into(segment, self._producers, position, header)
        except KafkaError:
            return False
        return True


# ---- aborted transactions


def _mend_aborted(
    segments: list[Segment], notices: list[str], expected: int | None = None, unread: Sequence[Segment] = ()
) -> bool:
    """Rebuild indices of aborted transactions that make no sense, or all, if they are not what is expected.

    expected: their checksum at the last clean stop, None if it is not known. unread: segments of which a recovery has
    not rebuilt them: an empty one may have been emptied. Returns: whether any was rebuilt.
    """
    broken = []
    for segment in segments:
        try:
            _ = segment.aborted and segment.aborted.checksum()
        except NewerFormatError:
            raise
        except CorruptFileError as error:
            notices.append(f"{error}: rebuilt from the batches")
            broken.append(segment)
    for segment in [each for each in unread if each not in broken and each.aborted and not each.aborted.checksum()]:
        path = segment.folder.file_path(segment.base_offset, "txnindex")
        notices.append(f"{path}: is empty: rebuilt from the batches")
        broken.append(segment)
    _remake_aborted(segments, broken)
    if expected is None or not segments or aborted_checksum(segments) == expected:
        return bool(broken)
    _remake_aborted(segments, segments)
    path = segments[0].folder.path
    notices.append(f"{path}: aborted transactions are not as the last clean stop left them: rebuilt from the batches")
    return True


def _remake_aborted(segments: list[Segment], which: list[Segment]) -> None:
    """The indices of aborted transactions of some segments, from the batches of all, durably."""
    if not which:
        return
    producers = Producers()
    for segment in segments:
        replay = _replay_into if segment in which else replay_batch
        if segment in which and segment.aborted is not None:
            segment.aborted.clear()
        for position, header in segment.batches_from(0):
            replay(segment, producers, position, header)
        if segment in which and not segment.drop_empty_aborted():
            sync_if_there(segment.folder.disk, segment.folder.file_path(segment.base_offset, "txnindex"))
    segments[0].folder.disk.sync_dir(segments[0].folder.path)


def _replay_into(segment: Segment, producers: Producers, position: int, header: HeaderTuple) -> None:
    """`replay_batch`, and a segment's aborted transactions. Raises KafkaError for a bad marker."""
    completed = replay_batch(segment, producers, position, header)
    if completed is not None and completed.is_aborted:
        segment.note_aborted(completed, producers.last_stable_offset_after(completed))
