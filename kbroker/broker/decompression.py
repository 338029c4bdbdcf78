"""What decompresses clients' batches, or reads them one record after the other: beside the loop, one job at a time.

A batch of a kilobyte may become a hundred megabytes. So that memory is taken for one at a time, that a processor is
left to the loop and the pool's other threads to the disk, these jobs stand in line; addresses have their turn one after
the other, however many jobs each of them has.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from kbroker.broker.jobs import Job, Owner


class Decompression:
    """The jobs in line, by the address of the client that they are for."""

    def __init__(self, give: Callable[[Job, Owner], None]) -> None:
        self._give = give
        self._lines: dict[str, deque[tuple[Job, Owner]]] = {}  # the first address is next
        self._owner: Owner | None = None  # of the job that is under way

    def __len__(self) -> int:
        """How many wait for their turn."""
        return sum(map(len, self._lines.values()))

    def add(self, address: str, job: Job, owner: Owner) -> None:
        """Have a job run when it is its turn; `owner` hears of its end."""
        self._lines.setdefault(address, deque()).append((job, owner))
        if self._owner is None:
            self._next()

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A job has ended."""
        owner, self._owner = self._owner, None
        assert owner is not None, job
        try:
            owner.finished(job, error, now_ms)  # first: what came of it is gone before memory is taken for another
        finally:
            if self._owner is None:
                self._next()

    def _next(self) -> None:
        address = next(iter(self._lines), None)
        if address is None:
            return
        line = self._lines.pop(address)
        job, self._owner = line.popleft()
        if line:
            self._lines[address] = line  # at the end
        self._give(job, self)
