"""One million timers: the timing wheel beside the heap that everybody would write first.

Three lives of a timer. `answered`: parked with a deadline and cancelled before it, which is what nearly all timers of a
broker do (a steady number of them pending). `expired`: all of them come back. `kept`: memory while they are pending.
The heap cancels lazily (a mark), as heapq has no other way.
"""

from __future__ import annotations

import heapq
import random
import sys
import tracemalloc
from collections.abc import Callable
from time import perf_counter

from kbroker.timing.wheel import NEVER, TimingWheel

TIMERS = 1_000_000
PENDING = 10_000
DELAYS_MS = [500, 5_000, 30_000, 45_000, 300_000]


class HeapTimers:
    """A binary heap of [deadline, number, payload]; a cancelled entry loses its payload and waits to be popped."""

    def __init__(self) -> None:
        self.heap: list[list[object]] = []
        self.added = 0

    def add(self, deadline_ms: int, payload: object) -> list[object]:
        self.added += 1
        entry = [deadline_ms, self.added, payload]
        heapq.heappush(self.heap, entry)  # type: ignore[misc]
        return entry

    def cancel(self, entry: list[object]) -> None:
        entry[2] = None

    @property
    def next_ms(self) -> int:
        while self.heap and self.heap[0][2] is None:
            heapq.heappop(self.heap)  # type: ignore[misc]
        return self.heap[0][0] if self.heap else NEVER

    def advance(self, now_ms: int) -> list[object]:
        expired: list[object] = []
        heap = self.heap
        while heap and heap[0][0] <= now_ms:  # type: ignore[operator]
            entry = heapq.heappop(heap)  # type: ignore[misc]
            if entry[2] is not None:
                expired.append(entry)
        return expired


Timers = Callable[[], "TimingWheel[object] | HeapTimers"]


def delays(count: int) -> list[int]:
    rng = random.Random(1)
    return [rng.choice(DELAYS_MS) + rng.randrange(1_000) for _ in range(count)]


def answered(make: Timers) -> float:
    """Seconds for all timers, each cancelled when PENDING younger ones exist; time moves 1 ms every 100 timers."""
    timers = make()
    pending: list[object] = [None] * PENDING
    waits = delays(TIMERS)
    start = perf_counter()
    for number, delay_ms in enumerate(waits):
        now_ms = number // 100
        if number % 100 == 0:
            timers.advance(now_ms)
            assert timers.next_ms >= now_ms
        slot = number % PENDING
        if pending[slot] is not None:
            timers.cancel(pending[slot])  # type: ignore[arg-type]
        pending[slot] = timers.add(now_ms + delay_ms, number)
    return perf_counter() - start


def expired(make: Timers) -> tuple[float, float]:
    """Seconds to add all timers, and to let all come back, waking only when told to."""
    timers = make()
    waits = delays(TIMERS)
    start = perf_counter()
    for number, delay_ms in enumerate(waits):
        timers.add(delay_ms, number)
    added = perf_counter()
    back = 0
    while (next_ms := timers.next_ms) != NEVER:
        back += len(timers.advance(next_ms))
    assert back == TIMERS, back
    return added - start, perf_counter() - added


def kept(make: Timers) -> float:
    """Bytes a pending timer costs, its payload left out."""
    waits = delays(TIMERS // 10)
    tracemalloc.start()
    timers = make()
    for delay_ms in waits:
        timers.add(delay_ms, timers)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / len(waits)


def leftover(make: Timers) -> float:
    """Bytes left by timers that were all cancelled at once."""
    waits = delays(TIMERS // 10)
    tracemalloc.start()
    timers = make()
    for delay_ms in waits:
        timers.cancel(timers.add(delay_ms, timers))  # type: ignore[arg-type]
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return size / len(waits)


def main(_arguments: list[str]) -> int:
    """Print the table; exit code 1 if the wheel loses to the heap at what a broker does all day."""
    wheel: Timers = TimingWheel
    rows: list[tuple[str, float, float]] = []
    daily = answered(wheel), answered(HeapTimers)
    rows.append(("add and cancel, 10,000 pending: us a timer", *daily))
    adding, coming = expired(wheel), expired(HeapTimers)
    rows.append(("add, 1,000,000 pending: us a timer", adding[0], coming[0]))
    rows.append(("come back: us a timer", adding[1], coming[1]))
    print(f"{'':46}{'wheel':>9}{'heap':>9}{'ratio':>8}")
    for name, mine, peer in rows:
        print(f"{name:46}{mine / TIMERS * 1e6:9.2f}{peer / TIMERS * 1e6:9.2f}{mine / peer:8.2f}")
    for name, mine, peer in [
        ("pending: bytes a timer", kept(wheel), kept(HeapTimers)),
        ("cancelled: bytes a timer", leftover(wheel), leftover(HeapTimers)),
    ]:
        print(f"{name:46}{mine:9.1f}{peer:9.1f}{mine / peer:8.2f}")
    return int(daily[0] > daily[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
