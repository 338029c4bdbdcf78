"""`kbroker log compact --dry-run`: what compaction would save in one partition. Changes nothing and needs no broker.

Exit code: 0 said what would be saved, 1 the partition cannot be compacted, for what is in its files, 2 it could not be
looked at.
"""

from __future__ import annotations

import os
import time

import click

from kbroker.cli import complain, said_by_system
from kbroker.cli._files import is_locked, progress_bar
from kbroker.cli._numbers import Number
from kbroker.cli._tables import show_json
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.cleaner.errors import GoneError, UncleanableError
from kbroker.log.config import LogConfig
from kbroker.log.errors import CorruptFileError
from kbroker.log.tools.compact import NoPartitionError, Savings, dry_run
from kbroker.log.tools.verify_partition import Progress
from kbroker.runtime.files import SystemDisk


@click.group("log")
def log() -> None:
    """The log of one partition."""


@log.command("compact")
@click.argument("partition_folder", type=click.Path())
@click.option("--dry-run", "is_dry", is_flag=True, help="Write nothing. Required: a broker compacts by itself.")
@click.option(
    "--delete-retention-ms",
    type=Number(0),
    default=LogConfig().delete_retention_ms,
    show_default=True,
    metavar="MS",
    help="The topic's delete.retention.ms.",
)
@click.option(
    "--dedupe-buffer-size",
    type=Number(1 << 20),
    default=CleanerConfig().dedupe_buffer_size,
    show_default=True,
    metavar="BYTES",
    help="Memory for keys, log.cleaner.dedupe.buffer.size.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def compact(
    partition_folder: str, is_dry: bool, delete_retention_ms: int, dedupe_buffer_size: int, as_json: bool
) -> int:
    """Say what compaction would save in a partition's folder. Nothing is ever changed.

    The active segment is left alone, as a broker does. Exit code: 0 said, 1 it cannot be compacted, for what is in its
    files, 2 it could not be looked at.
    """
    if not is_dry:
        raise click.UsageError("give --dry-run: a broker compacts topics with cleanup.policy=compact by itself")
    path = os.path.abspath(partition_folder)
    if not os.path.isdir(path):
        return complain(f"{path}: {'is not a directory' if os.path.exists(path) else 'there is no such directory'}")
    disk = SystemDisk()
    if is_locked(disk, os.path.dirname(path)):
        complain(f"{path}: is in use by a broker: what it is writing may be counted or not")
    try:
        with progress_bar("compacting") as show:
            for item in dry_run(
                disk,
                path,
                now_ms=time.time_ns() // 1_000_000,
                secret=os.urandom(16),
                delete_retention_ms=delete_retention_ms,
                map_bytes=dedupe_buffer_size,
            ):
                if isinstance(item, Progress):
                    show(item)
                else:
                    savings = item
    except NoPartitionError as error:
        return complain(f"{path}: {error}")
    except GoneError as error:
        return complain(f"{error}: went away while it was read: try again")
    except (UncleanableError, CorruptFileError) as error:
        complain(str(error))
        return 1
    except OSError as error:
        return complain(said_by_system(error))
    if as_json:
        show_json(_facts(path, savings))
    else:
        print("\n".join(_lines(path, savings)))
    return 0


def _lines(path: str, found: Savings) -> list[str]:
    if not found.segments:
        return [f"{path}: nothing to compact: all {found.active_bytes:,} bytes are in segments that are left alone"]
    saved_records, saved_bytes = found.records_before - found.records_after, found.bytes_before - found.bytes_after
    lines = [
        f"{path}: {found.segments} segments up to offset {found.segments_end}, dirty from {found.first_dirty} on",
        f"  before  {found.records_before:>15,} records  {found.bytes_before:>19,} bytes",
        f"  after   {found.records_after:>15,} records  {found.bytes_after:>19,} bytes",
        f"  saved   {saved_records:>15,} records  {saved_bytes:>19,} bytes  {_percent(found):.1f} %",
        f"  {found.active_bytes:,} bytes are left alone: the active segment, and what an open transaction reaches",
    ]
    if found.end_offset < found.segments_end:
        lines.append(
            f"  the keys up to offset {found.end_offset} fill the memory: a broker would go on in another pass"
        )
    return lines


def _percent(found: Savings) -> float:
    return 100 * (found.bytes_before - found.bytes_after) / found.bytes_before if found.bytes_before else 0.0


def _facts(path: str, found: Savings) -> dict[str, object]:
    saved = {
        "records_saved": found.records_before - found.records_after,
        "bytes_saved": found.bytes_before - found.bytes_after,
    }
    return {"partition_folder": path, **found._asdict(), **saved}
