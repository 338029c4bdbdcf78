"""What a clean stop leaves in a partition's folder, in six numbers, so that the next start sees what has changed.

A file that a person, a backup or a repair of the file system has emptied, removed, or cut where an entry ends may still
make sense, and show wrong data: an index of aborted transactions without its last entry shows what was aborted. The
clean-shutdown marker keeps the numbers (`checkpoints.py`), recovery compares them. They are made of sizes, and of what
a start reads anyway: nothing is read for them. A changed byte inside an index is found where it leads astray; snapshots
have a checksum of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.log.checkpoints import UNKNOWN, Sealed
from kbroker.log.errors import CorruptFileError
from protocol.records import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.log.log import Log
    from kbroker.log.segment import Segment


def seal(log: Log) -> Sealed:
    """Of a log that has been closed. Raises: OSError."""
    try:
        aborted = aborted_checksum(log.segments)
    except CorruptFileError:
        aborted = UNKNOWN  # the next start rebuilds it
    latest = log.snapshots.latest
    return Sealed(
        segments_checksum(log.segments),
        indices_checksum(log.segments),
        log.epochs.stored,
        aborted,
        UNKNOWN if latest is None else latest,
        log.id_checksum,
    )


def segments_checksum(segments: Iterable[Segment]) -> int:
    """See Sealed."""
    return crc32c(" ".join([f"{each.base_offset}:{each.size}" for each in segments]).encode())


def indices_checksum(segments: Iterable[Segment]) -> int:
    """See Sealed."""
    return crc32c(" ".join([f"{each.base_offset}:{each.index_bytes}" for each in segments]).encode())


def aborted_checksum(segments: Iterable[Segment]) -> int:
    """See Sealed. Raises: OSError; CorruptFileError."""
    there = [(each.base_offset, each.aborted.checksum()) for each in segments if each.aborted is not None]
    return crc32c(" ".join([f"{base_offset}:{checksum}" for base_offset, checksum in there if checksum]).encode())
