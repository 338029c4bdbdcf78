"""The logs' part in a broker: their background work becomes jobs, and ends; what they notice is said.

Between the log manager, which knows no broker, and the rest: its jobs get an owner, directories that were lost reach
the replicas.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.broker.facts import BrokerConfigChanged
from kbroker.broker.jobs import Errand
from kbroker.log.cleaner.config import CleanerConfig
from kbroker.log.facts import LogCleaned, LogDirectoryFailed, LogFlushed, Notice, SegmentsDeleted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.broker.facts import Handler
    from kbroker.broker.jobs import Job
    from kbroker.log.manager import LogManager
    from kbroker.metadata.configs import Configs
    from kbroker.ports import Clock
    from kbroker.replica import ReplicaManager

log = logging.getLogger("kbroker.logs")


class LogBackground:
    """Turns the log manager on behalf of the pool."""

    def __init__(self, logs: LogManager, replicas: ReplicaManager, clock: Clock, configs: Configs) -> None:
        self._logs = logs
        self._replicas = replicas
        self._clock = clock
        self._configs = configs

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """What the logs have found out."""
        return {
            LogDirectoryFailed: lambda fact, now_ms: self._replicas.went_offline(fact.partitions),
            LogFlushed: lambda fact, now_ms: self._replicas.became_durable(fact.partition),
            LogCleaned: lambda fact, now_ms: _say_cleaned(fact),
            SegmentsDeleted: lambda fact, now_ms: _say_deleted(fact),
            BrokerConfigChanged: lambda fact, now_ms: self._reconfigure(),
            Notice: lambda fact, now_ms: log.warning("%s", fact.text),
        }

    def _reconfigure(self) -> None:
        self._logs.cleaner.reconfigure(CleanerConfig.of(self._configs.broker))

    def take_jobs(self) -> list[Errand]:
        """What the logs want done."""
        return [Errand(job, self) for job in self._logs.take_jobs(self._clock.now_ms())]

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """One of their jobs has ended."""
        self._logs.finished(job, error, now_ms)


def _say_deleted(fact: SegmentsDeleted) -> None:
    log.info(
        "%s: %d segments deleted, offsets %d to %d, %d bytes: %s breached",
        fact.name,
        fact.segments,
        fact.first_offset,
        fact.log_start_offset - 1,
        fact.size_bytes,
        fact.why,
    )


def _say_cleaned(fact: LogCleaned) -> None:
    log.info(
        "compacted %s up to offset %d: %d bytes are %d now, %d records, in %d ms",
        fact.partition,
        fact.cleaned_to,
        fact.bytes_before,
        fact.bytes_after,
        fact.records,
        fact.took_ms,
    )
