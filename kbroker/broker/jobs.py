"""Work that waits for a disk, and whose it is.

Any part, a parked request included, gives a job to the broker with itself as the owner (`Broker.give`); the runner of
the broker takes it, runs it on any thread, and brings it back as a `JobDone` fact; the owner then hears of its end. A
job holds files and values of its own and touches no part's state.
"""

from __future__ import annotations

from typing import Protocol

from protocol.namedtuple import NamedTuple


class Job(Protocol):
    """Something that waits for a disk."""

    def run(self) -> None:
        """On any thread, once. Raises: OSError, which its owner gets."""


class Owner(Protocol):
    """Who gave a job."""

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """On the broker's thread. error: None if it went well; UnforeseenError for what no job should raise."""


class Errand(NamedTuple):
    """A job on its way through the pool, and back."""

    job: Job
    owner: Owner

    def run(self) -> None:
        """The job's."""
        self.job.run()
