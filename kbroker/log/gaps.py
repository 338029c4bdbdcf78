"""Gaps: offsets that a log should have and does not, because a file was lost or emptied, or no longer reads.

Called by recovery. A gap is never closed, for consumers step over it; it is said. What
stands behind one after an unclean stop cannot be told from what a cut left over, so the log ends there, as Kafka's
does; but the files are kept, under a name that says what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from kbroker.log.folder import Folder, free_name
from kbroker.log.jobs import remove_if_there
from kbroker.log.names import AFTER_GAP_SUFFIX
from kbroker.log.segment import Segment
from protocol.errors import KafkaError


def gaps(segments: Sequence[Segment], cleaned_to: int) -> Iterator[str]:
    """A line for each segment that does not begin where the one before ends: reads a little of each.

    Of a compacted log this says nothing: gaps are what compaction leaves. cleaned_to: nor does it below this offset, to
    which a log was compacted once, whatever its settings are now, or are known to be yet. Raises OSError.
    """
    for before, segment in pairwise(segments):
        if segment.config.compact:
            return
        if segment.base_offset <= cleaned_to:
            continue
        try:
            end = before.end()[0]
        except KafkaError:
            continue  # it cannot be read: its reader will say so
        if end < segment.base_offset:
            path = segment.folder.file_path(segment.base_offset, "log")
            yield f"{path}: offsets {end} to {segment.base_offset - 1} before it are missing: readers go on behind them"


def keep_aside(folder: Folder, segments: list[Segment]) -> list[str]:
    """Take segments behind a gap out of the log; a line for each that is kept. One without a byte in it is removed.

    The last one goes first, and durably: a crash in between leaves no hole. Raises OSError.
    """
    lines: list[str] = []
    for segment in reversed(segments):
        segment.close()
        path = folder.file_path(segment.base_offset, "log")
        if segment.size:
            kept = free_name(folder.disk, folder.path, path.rpartition("/")[2] + AFTER_GAP_SUFFIX)
            lines.insert(0, f"{path}: {segment.size} bytes behind lost batches: kept aside as {kept}")
        for part in ("txnindex", "timeindex", "index"):
            remove_if_there(folder.disk, folder.file_path(segment.base_offset, part))
        if segment.size:
            folder.disk.rename(path, f"{folder.path}/{kept}")
        else:
            remove_if_there(folder.disk, path)
    if segments:
        folder.disk.sync_dir(folder.path)
    return lines
