"""A writer that goes on until it is told to stop, for stories in which brokers die and networks part.

Shared by the drivers of Python clients; like `driver.py`, imports nothing of kbroker. Records go to all partitions in
turn; each says who wrote it and its number among that writer's. What the client acknowledges is kept with its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

Done = Callable[[Any, int | None], None]
"""Takes what failed, or None, and the offset, None if the client does not know it."""


class Writer(threading.Thread):
    """send: hands a value for a partition to the client, which calls back. flush: returns once all is settled."""

    def __init__(
        self,
        name: str,
        partitions: int,
        pause_ms: float,
        size: int,
        send: Callable[[bytes, int, Done], None],
        flush: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self._writer, self._partitions, self._pause_s, self._size = name, partitions, pause_ms / 1000, size
        self._send, self._flush = send, flush
        self._acknowledged: list[list[int]] = []
        self._failed: list[str] = []
        self._stopping = threading.Event()

    def run(self) -> None:
        """The thread."""
        number = 0
        try:
            while not self._stopping.is_set():
                partition = number % self._partitions
                value = b"%s %d " % (self._writer.encode(), number)
                self._send(value.ljust(self._size, b"."), partition, self._settle(number, partition))
                number += 1
                time.sleep(self._pause_s)
            self._flush()
        except Exception as error:
            self._failed.append(f"{type(error).__name__}: {error}")

    def written(self) -> list[int]:
        """How many records are acknowledged in each partition."""
        counts = [0] * self._partitions
        for _, partition, _ in list(self._acknowledged):
            counts[partition] += 1
        return counts

    def stop(self) -> dict[str, Any]:
        """Settle what is under way; (number, partition, offset) of each acknowledged record, and what failed."""
        self._stopping.set()
        self.join()
        return {"acknowledged": self._acknowledged, "failed": self._failed}

    def _settle(self, number: int, partition: int) -> Done:
        def done(error: Any, offset: int | None) -> None:
            if error is None:
                self._acknowledged.append([number, partition, offset])
            else:
                self._failed.append(f"{number}: {error!r}")

        return done
