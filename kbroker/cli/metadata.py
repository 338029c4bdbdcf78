"""`kbroker metadata`: look at the metadata of a broker that is alone, and rebuild it from its log directories.

Neither works on directories that a broker uses. `check` prints a line for each fault; exit code 0 nothing wrong, 1
something is. `rebuild` prints what it made, and what to look after on standard error.
"""

from __future__ import annotations

import os
import sys

import click

from kbroker.cli import complain
from kbroker.cli._broker import say
from kbroker.cli._loading import LoadingBars
from kbroker.log.directory import DirectoryRefusedError
from kbroker.runtime.clock import SystemClock, SystemRandom
from kbroker.runtime.files import SystemDisk
from kbroker.runtime.loading import Loading


@click.group("metadata")
def metadata() -> None:
    """Check the metadata of a broker, or rebuild it.

    A broker without a cluster keeps its topics and settings in a file metadata.db in one of its log directories.
    """


@metadata.command("check")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
def check(directories: tuple[str, ...]) -> int:
    """Check metadata.db, and whether it and the partitions' folders say the same.

    Give all log directories of the broker. Nothing is changed. Exit code: 0 nothing wrong, 1 something is.
    """
    paths = _absolute(directories)
    if paths is None:
        return 2
    from kbroker.runtime.check_metadata import check as faults_in

    faults = 0
    for line in faults_in(SystemDisk(), paths):
        faults += 1
        print(line)
    if not faults:
        print(f"{', '.join(paths)}: nothing wrong")
    return min(faults, 1)


@metadata.command("rebuild")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
def rebuild(directories: tuple[str, ...]) -> int:
    """Rebuild metadata.db from the log directories: topics, their ids, their partitions.

    Give all log directories of the broker, which must not run. Logs of an unclean stop are recovered. Settings, and how
    far producer ids were handed out, are kept where the old file can still be read; it is renamed to metadata.db.old.
    Directories of Apache Kafka are taken over in the same way.
    """
    paths = _absolute(directories)
    if paths is None:
        return 2
    from kbroker.runtime.rebuild import rebuild as rebuilt

    try:
        made = rebuilt(SystemDisk(), SystemClock(), SystemRandom(), paths, Loading(_bars()))
    except DirectoryRefusedError as error:
        return complain(str(error))
    for line in made.lines:
        say(f"kbroker: {line}")
    kept = f"; the old one is {made.kept} now" if made.kept else ""
    print(f"{made.path}: rebuilt with {_count(made.topics, 'topic')}, {_count(made.partitions, 'partition')}{kept}")
    return 0


@metadata.command("add-scram")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
@click.option(
    "-S",
    "--add-scram",
    "users",
    multiple=True,
    required=True,
    metavar="USER",
    help="Such as SCRAM-SHA-256=[name=admin,password=...]; iterations=4096 to 16384. May be given more than once.",
)
def add_scram(directories: tuple[str, ...], users: tuple[str, ...]) -> int:
    """Make users that log in by SCRAM, while the broker does not run: the first one, for instance.

    Give all log directories of the broker; new ones may be empty. Users are written as for Apache's kafka-storage.
    """
    paths = _absolute(directories)
    if paths is None:
        return 2
    from kbroker.runtime.add_scram import add_users, read_user
    from kbroker.runtime.store_file import StoreMissingError

    try:
        read = [read_user(each, SystemRandom()) for each in users]
        path = add_users(SystemDisk(), paths, read)
    except (ValueError, StoreMissingError, OSError) as error:
        return complain(str(error))
    for each in read:
        print(f"{path}: {each.name} logs in by {each.mechanism}")
    return 0


def _absolute(directories: tuple[str, ...]) -> list[str] | None:
    """The directories from the root on; None, having said so, if one is not there."""
    paths = [os.path.abspath(directory) for directory in directories]
    for path in paths:
        if not os.path.isdir(path):
            complain(f"{path}: {'is not a directory' if os.path.exists(path) else 'there is no such directory'}")
            return None
    return paths


def _bars() -> LoadingBars | None:
    return LoadingBars() if sys.stderr.isatty() else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
