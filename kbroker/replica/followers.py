"""What a leader knows of one follower replica, by its fetches: how far it has come, and when it was last caught up.

A value for each follower, kept by `partition.py` while it leads. A fetch from an offset says that the follower has
everything below it: that is all the acknowledgement there is. A follower is caught up while it reads to the end of the
log; it also counts if it comes, with each fetch, to where the log ended at the fetch before, for under steady small
appends no follower ever reads to the very end.

Source: Replica and ReplicaState of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

from collections.abc import Callable

UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1
NEVER_MS = -(1 << 62)
"""The monotonic time of what has not happened: longer ago than any lag that is allowed."""


class InSyncRules:
    """What decides who is in sync, the same for all partitions of a broker.

    now_ms: the monotonic clock. max_lag_ms: replica.lag.time.max.ms. is_alive: whether the cluster has this broker now,
    as this one was told last.
    """

    __slots__ = ("is_alive", "max_lag_ms", "now_ms")

    def __init__(self, now_ms: Callable[[], int], max_lag_ms: int) -> None:
        self.now_ms = now_ms
        self.max_lag_ms = max_lag_ms
        self.is_alive: Callable[[int], object] = lambda broker_id: True


class Follower:
    """A follower as its leader sees it.

    log_end_offset, log_start_offset: as its last fetch said; -1 before one in this leadership. broker_epoch: the life
    that fetched, -1 unknown. caught_up_ms: monotonic; the last time at which it had everything.
    """

    __slots__ = (
        "_fetched_ms",
        "_leader_end_then",
        "broker_epoch",
        "broker_id",
        "caught_up_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.broker_epoch = UNKNOWN_EPOCH
        self.caught_up_ms = NEVER_MS
        self._fetched_ms = NEVER_MS  # its last fetch, and where our log ended then
        self._leader_end_then = UNKNOWN_OFFSET

    def __repr__(self) -> str:
        return f"<follower {self.broker_id} at {self.log_end_offset}>"

    def begin_epoch(self, now_ms: int, leader_end: int, *, in_sync: bool) -> None:
        """A leader epoch begins: one that is in sync has the benefit of the doubt for as long as it may lag."""
        self._leader_end_then = leader_end
        self._fetched_ms = self.caught_up_ms = now_ms if in_sync else NEVER_MS

    def fetched(self, offset: int, log_start_offset: int, broker_epoch: int, now_ms: int, leader_end: int) -> None:
        """It has asked for what lies from `offset` on. leader_end: where our log ends now."""
        if offset >= leader_end:
            self.caught_up_ms = now_ms
        elif offset >= self._leader_end_then and self._fetched_ms > self.caught_up_ms:
            self.caught_up_ms = self._fetched_ms
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self._fetched_ms = now_ms
        if leader_end > self._leader_end_then:
            self._leader_end_then = leader_end

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        """Whether it has everything, or had not so long ago."""
        return self.log_end_offset == leader_end or now_ms - self.caught_up_ms <= max_lag_ms
