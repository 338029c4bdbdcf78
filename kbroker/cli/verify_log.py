"""`kbroker verify-log`: check log directories, or single partition folders, and say what is wrong where.

Changes nothing and needs no broker. Each finding is one line: file, position, what. Exit code: 0 nothing wrong, 1 at
least one fault, 2 something could not be judged.
"""

from __future__ import annotations

import json
import os

import click

from kbroker.cli import complain, said_by_system
from kbroker.cli._files import is_locked, progress_bar
from kbroker.log.tools.verify import Finding, Progress, verify
from kbroker.runtime.files import SystemDisk


@click.command("verify-log")
@click.argument("directories", nargs=-1, required=True, type=click.Path())
@click.option("--shallow", is_flag=True, help="Look at batches, not at the records in them: faster.")
@click.option("--quiet", is_flag=True, help="Leave out notes: say only what is wrong.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def verify_log(directories: tuple[str, ...], shallow: bool, quiet: bool, form: str) -> int:
    """Check every file of log directories, and files against one another. Nothing is ever changed.

    Give all directories of a broker at once to have them compared. Exit code: 0 nothing wrong, 1 at least one fault,
    2 something could not be judged.
    """
    disk = SystemDisk()
    paths = [os.path.abspath(directory) for directory in directories]
    for path in paths:
        if not os.path.isdir(path):
            what = "is not a directory" if os.path.exists(path) else "there is no such directory"
            return complain(f"{path}: {what}")
        if is_locked(disk, path):
            complain(f"{path}: is in use by a broker: what it is writing may look broken")
    counts = dict.fromkeys(("fault", "note", "unreadable"), 0)
    with progress_bar("verifying") as show:
        try:
            for item in verify(disk, paths, deep=not shallow):
                if isinstance(item, Progress):
                    show(item)
                    continue
                counts[item.level] += 1
                if item.level != "note" or not quiet:
                    print(_json(item) if form == "json" else f"{item.level}: {item}")
        except BrokenPipeError:
            raise
        except OSError as error:
            return complain(said_by_system(error))
    if form == "text":
        print(f"{', '.join(paths)}: {_summary(counts)}")
    return 2 if counts["unreadable"] else min(counts["fault"], 1)


def _summary(counts: dict[str, int]) -> str:
    if not counts["fault"] and not counts["unreadable"]:
        return "nothing wrong"
    said = [f"{counts['fault']} faults" if counts["fault"] != 1 else "1 fault"]
    if counts["unreadable"]:
        said.append(f"{counts['unreadable']} files could not be judged")
    return ", ".join(said)


def _json(finding: Finding) -> str:
    return json.dumps({"level": finding.level, "file": finding.path, "where": finding.where, "text": finding.text})
