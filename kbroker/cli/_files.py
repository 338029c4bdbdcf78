"""What the tools that read a broker's files share: a bar of progress, and whether a broker is at work there."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kbroker.log.names import LOCK
from kbroker.log.tools.verify_partition import Progress
from kbroker.runtime.files import SystemDisk


def is_locked(disk: SystemDisk, path: str) -> bool:
    """Whether a broker uses the directory; a lock file that is not there is not made."""
    lock = f"{path}/{LOCK}"
    if not os.path.exists(lock):
        return False
    try:
        disk.lock(lock).release()
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def progress_bar(doing: str) -> Iterator[Callable[[Progress], None]]:
    """A bar on a terminal's standard error, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda progress: bar.update(task, completed=progress.bytes_done, total=progress.bytes_total)
