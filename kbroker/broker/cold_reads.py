"""Segments that a fetch wants to read and that are not ready: what they need first is done beside the loop.

Told by fetches; when a segment is ready, or its disk has failed, its partition is touched, and who waits asks again.
Nothing else waits: not the partition's appends, nor its readers elsewhere in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.broker.facts import Touched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kbroker.broker.facts import Tell
    from kbroker.broker.jobs import Job, Owner
    from kbroker.log.index_warmup import Cold, NotReadyError
    from kbroker.replica import Partition, ReplicaManager


class ColdReads:
    """The jobs under way, one for a segment, however many wait for it."""

    def __init__(self, give: Callable[[Job, Owner], None], replicas: ReplicaManager, tell: Tell) -> None:
        self._give = give
        self._replicas = replicas
        self._tell = tell
        self._jobs: dict[Job, tuple[Partition, Cold]] = {}
        self._segments: set[Cold] = set()

    def __len__(self) -> int:
        """How many segments are being made ready."""
        return len(self._segments)

    def isdisjoint(self, segments: Iterable[Cold]) -> bool:
        """Whether none of these segments is being made ready."""
        return self._segments.isdisjoint(segments)

    def warm(self, partition: Partition, wanted: NotReadyError) -> None:
        """Have a segment made ready; the partition is touched when it is."""
        if wanted.segment not in self._segments:
            self._segments.add(wanted.segment)
            self._jobs[wanted.job] = partition, wanted.segment
            self._give(wanted.job, self)

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A segment is ready, or its disk has failed."""
        partition, segment = self._jobs.pop(job)
        self._segments.remove(segment)
        try:
            if error is not None:
                raise error
            segment.finish_job(job)  # type: ignore[arg-type]  # it is one of its own
        except OSError as reason:
            if partition.log is not None and segment in partition.log.segments:
                self._replicas.storage_error(partition, reason)
        self._tell(Touched([partition]))
