"""Bars of a start that takes long: one for each log directory, gone when its partitions are loaded.

Imported when the first is due; a start that takes no time loads nothing for it.
"""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from kbroker.runtime.loading import DirectoryLoad, in_bytes, in_time


class LoadingBars:
    """Satisfies `kbroker.runtime.loading.Show`: a directory, how many of its partitions are loaded, what is read again
    at which rate, and the time left.
    """

    def __init__(self, console: Console | None = None) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[read]}"),
            TextColumn("{task.fields[left]}"),
        )
        self._bars = Progress(*columns, console=console or Console(stderr=True), transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, load: DirectoryLoad) -> None:
        """Move a directory's bar; with the last one the terminal is as it was."""
        task = self._tasks.get(load.path)
        if load.is_done:
            if task is not None:
                self._bars.remove_task(task)
                if not self._bars.tasks:
                    self._bars.stop()
            return
        read = f"{in_bytes(load.bytes_read)}, {in_bytes(load.bytes_read / load.seconds)}/s" if load.bytes_read else ""
        left = "" if load.seconds_left is None else f"{in_time(load.seconds_left)} left"
        if task is None:
            task = self._bars.add_task(load.path, completed=load.done, total=load.partitions, read=read, left=left)
            self._tasks[load.path] = task
            self._bars.start()
        else:
            self._bars.update(task, completed=load.done, read=read, left=left)
