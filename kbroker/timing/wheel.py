"""Hierarchical timing wheels: very many timers, most of them cancelled, each operation at a constant price.

A broker has one wheel, and `scheduler.py` turns it: `next_ms` says how long it may sleep, `advance` and `due`
move time on and give back what is due. Nothing here reads a clock, calls a part or ticks: an hour in which nothing is
due costs one heap lookup.

Level 0 has 20 buckets of 1 ms, level 1 has 20 of 20 ms, level 2 has 20 of 400 ms, and so on; a level is made when the
first timer needs it. A timer lies in the lowest level that reaches its deadline. When the bucket of a higher level
starts, its timers are dealt to the levels below it (demotion), so a deadline is met to the millisecond after at most
one move a level. The buckets that hold anything are kept in a heap by start: a few hundred of them at most, whatever
the number of timers. Source: Varghese & Lauck, "Hashed and Hierarchical Timing Wheels", scheme 7.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

Payload = TypeVar("Payload")

TICK_MS = 1  # of the lowest level: deadlines are whole milliseconds, so none is rounded
BUCKETS_PER_LEVEL = 20  # Kafka's choice: five levels reach the 30 minutes of the longest session timeout

FEW_TIMERS = 8
"""In a bucket: so many are looked through for the earliest rather than moved down a level."""

NOT_QUEUED = -1
NEVER = 2**63 - 1  # as a deadline: of no timer, and Kafka's largest time


class Timer(Generic[Payload]):
    """A deadline and what its owner wants back then.

    deadline_ms: on the clock of `advance`. pending: false once it came back or was cancelled. rank: of those that are
    due together, the lowest comes back first.
    """

    __slots__ = ("_bucket", "deadline_ms", "payload")
    rank = 0

    def __init__(self, deadline_ms: int, payload: Payload) -> None:
        self.deadline_ms = deadline_ms
        self.payload = payload
        self._bucket: _Bucket[Payload] | None = None

    @property
    def pending(self) -> bool:
        """Whether it is still going to come back."""
        return self._bucket is not None

    def __repr__(self) -> str:
        return f"Timer({self.deadline_ms}, {self.payload!r}{'' if self.pending else ', over'})"


class _Bucket(dict[Timer[Payload], None]):
    """The timers of one slot of one level; a dict, because it forgets any of them at once and keeps their order."""

    __slots__ = ("starts_ms",)

    def __init__(self) -> None:
        super().__init__()
        self.starts_ms = NOT_QUEUED  # the start under which the heap knows it


class TimingWheel(Generic[Payload]):
    """Timers by deadline; time moves only through `advance`, and never back.

    size: how many are pending. next_ms: when to call `advance` next, NEVER without timers. Not later than the earliest
    deadline. Earlier only when that timer was cancelled, and when many timers are to be demoted then: of a few, the
    earliest is looked up instead, so that one waiting fetch wakes its broker once and not at every level.
    """

    __slots__ = ("_buckets", "_ends", "_queue", "_ticks", "next_ms", "now_ms", "size")

    def __init__(self, now_ms: int = 0) -> None:
        assert now_ms >= 0, now_ms
        self.now_ms = now_ms
        self.size = 0
        self._ticks: list[int] = []  # by level: the width of a bucket
        self._ends: list[int] = []  # by level: the first deadline out of its reach; rises with the level
        self._buckets: list[list[_Bucket[Payload]]] = []
        self.next_ms = NEVER
        self._queue: list[tuple[int, int]] = []  # (start, -level) of buckets in use; a higher level is dealt first
        self._add_level()

    def __len__(self) -> int:
        return self.size

    def add(self, deadline_ms: int, payload: Payload) -> Timer[Payload]:
        """Set a timer; `advance` returns it at or after its deadline. One that is due already comes back at once."""
        timer = Timer(deadline_ms, payload)
        self.put(timer)
        return timer

    def put(self, timer: Timer[Payload]) -> None:
        """As `add`, of a timer that its owner has made."""
        self._place(timer)
        self.size += 1
        if timer.deadline_ms < self.next_ms:
            self.next_ms = timer.deadline_ms

    def cancel(self, timer: Timer[Payload]) -> bool:
        """Take a timer back: true if it was pending. Its memory is free at once; no other timer is looked at."""
        bucket = timer._bucket
        if bucket is None:
            return False
        del bucket[timer]
        timer._bucket = None
        self.size -= 1
        if not self.size:
            self.next_ms = NEVER
        return True

    def _look_up(self) -> int:
        queue = self._queue
        while queue:
            starts_ms, level = queue[0]
            bucket = self._bucket_at(-level, starts_ms)
            if bucket:
                return starts_ms if not level or len(bucket) > FEW_TIMERS else self._earliest(bucket)
            heappop(queue)
            bucket.starts_ms = NOT_QUEUED
        return NEVER

    def _earliest(self, bucket: _Bucket[Payload]) -> int:
        """The deadline of the first timer in the first bucket, unless another bucket starts before it.

        A timer that lies in a bucket is not due before the bucket starts: in a heap, the second is one of two.
        """
        first_ms = min(timer.deadline_ms for timer in bucket)
        for starts_ms, _ in self._queue[1:3]:
            first_ms = min(first_ms, starts_ms)
        return first_ms

    def advance(self, now_ms: int) -> list[Timer[Payload]]:
        """Move time on and return what is due, by deadline; within one millisecond in a fixed order."""
        assert now_ms >= self.now_ms, f"time went back from {self.now_ms} to {now_ms}"
        expired: list[Timer[Payload]] = []
        queue = self._queue
        while queue and queue[0][0] <= now_ms:
            starts_ms, level = heappop(queue)
            bucket = self._bucket_at(-level, starts_ms)
            bucket.starts_ms = NOT_QUEUED
            self._move_to(starts_ms)
            timers = list(bucket)
            bucket.clear()
            if level:
                for timer in timers:
                    self._place(timer)
            else:
                for timer in timers:
                    timer._bucket = None
                expired += timers
        self._move_to(now_ms)
        self.size -= len(expired)
        assert self.size >= 0, self.size
        self.next_ms = self._look_up()
        return expired

    def due(self, now_ms: int) -> Iterator[Timer[Payload]]:
        """Move time on and give back what is due, by rank and deadline, each when the one before has been dealt with.

        One that is cancelled, or put in again, before its turn has come is left out. What is put in meanwhile is not
        given back, whatever its deadline.
        """
        timers = self.advance(now_ms)
        timers.sort(key=lambda timer: timer.rank)
        batch: _Bucket[Payload] = _Bucket()
        for timer in timers:
            batch[timer] = None
            timer._bucket = batch
        self.size += len(timers)
        try:
            for timer in timers:
                if timer._bucket is batch:
                    self.cancel(timer)
                    yield timer
        finally:  # who was given one has failed
            for timer in batch:
                self._place(timer)
                self.next_ms = min(self.next_ms, timer.deadline_ms)

    def _place(self, timer: Timer[Payload]) -> None:
        deadline_ms = timer.deadline_ms
        if deadline_ms < self.now_ms:
            deadline_ms = self.now_ms  # overdue: lies in the slot of this very millisecond
        level = bisect_right(self._ends, deadline_ms)
        while level == len(self._ends):
            self._add_level()
            level = bisect_right(self._ends, deadline_ms)
        slot = deadline_ms // self._ticks[level]
        bucket = self._buckets[level][slot % BUCKETS_PER_LEVEL]
        if bucket.starts_ms == NOT_QUEUED:
            bucket.starts_ms = slot * self._ticks[level]
            heappush(self._queue, (bucket.starts_ms, -level))
        bucket[timer] = None
        timer._bucket = bucket

    def _bucket_at(self, level: int, starts_ms: int) -> _Bucket[Payload]:
        bucket = self._buckets[level][starts_ms // self._ticks[level] % BUCKETS_PER_LEVEL]
        assert bucket.starts_ms == starts_ms, f"bucket of {bucket.starts_ms} in the slot of {starts_ms}, level {level}"
        return bucket

    def _move_to(self, now_ms: int) -> None:
        self.now_ms = now_ms
        for level, tick_ms in enumerate(self._ticks):
            end_ms = (now_ms // tick_ms + BUCKETS_PER_LEVEL) * tick_ms
            if self._ends[level] == end_ms:
                return  # a higher level's slot cannot have changed either
            self._ends[level] = end_ms

    def _add_level(self) -> None:
        tick_ms = TICK_MS * BUCKETS_PER_LEVEL ** len(self._ticks)
        self._ticks.append(tick_ms)
        self._ends.append((self.now_ms // tick_ms + BUCKETS_PER_LEVEL) * tick_ms)
        self._buckets.append([_Bucket() for _ in range(BUCKETS_PER_LEVEL)])
