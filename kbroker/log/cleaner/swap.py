"""A cleaned segment takes the place of those it was made of, in the folder and in the log, by renames alone.

On the log's thread, between whatever else happens to it. A crash at any step leaves names that recovery brings to one
of both ends: see `cleaner`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kbroker.log.jobs import DeleteJob
from kbroker.log.log import Log
from kbroker.log.segment import Segment, parts_of


def put_in_place(log: Log, old: Sequence[Segment], cleaned: Segment) -> DeleteJob:
    """Put a segment whose files end in .cleaned, durable, in the place of some of the log's. Raises OSError."""
    disk = log.folder.disk
    names = [log.folder.file_path(cleaned.base_offset, part) for part in parts_of(cleaned)]
    for name in names:
        disk.rename(f"{name}.cleaned", f"{name}.swap")
    at = log.segments.index(old[0])
    log.segments[at : at + len(old)] = [cleaned]
    log.forget_places()
    log.names_changed = True
    paths = [path for each in old for path in log.set_aside(each, snapshot=each is not old[0])]
    for name in names:
        disk.rename(f"{name}.swap", name)
    return DeleteJob(disk, paths, log.config.file_delete_delay_ms)
