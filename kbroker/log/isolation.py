"""Isolation levels of a fetch: how far it sees into a log, the bound that each reader names."""

from __future__ import annotations

from enum import Enum
from typing import Final

READ_COMMITTED = 1
"""The isolation level of requests that Kafka calls so; any other is read uncommitted."""


class FetchIsolation(Enum):
    """Whose reads end where."""

    LOG_END = "followers, and coordinators that load: everything that is there"
    HIGH_WATERMARK = "consumers: what every in-sync replica has"
    TXN_COMMITTED = "consumers that read committed: below the first open transaction, and told of aborted ones"

    @staticmethod
    def of(isolation_level: int) -> FetchIsolation:
        """A consumer's."""
        return TXN_COMMITTED if isolation_level == READ_COMMITTED else HIGH_WATERMARK


LOG_END: Final = FetchIsolation.LOG_END
HIGH_WATERMARK: Final = FetchIsolation.HIGH_WATERMARK
TXN_COMMITTED: Final = FetchIsolation.TXN_COMMITTED
