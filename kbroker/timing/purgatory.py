"""Operations that cannot be answered yet: parked under the keys that may complete them, until one does or time is up.

Core parks a fetch under its partitions, a produce under the partitions whose high watermark it waits for, and so on.
When a key moved, the owner of that fact calls `check`, which gives the operations that are over; of those whose time is
up it is told. So each operation is over once in its life. Nothing here knows what an operation is, answers one, or
reads a clock.

Kafka's purgatory leaves finished operations in the watch lists of their other keys and sweeps all lists now and then
(`*.purgatory.purge.interval.requests`). Here a watch list is a dict, so leaving it is one deletion a key, done at
once: no sweep, no memory kept by what is over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from kbroker.timing.wheel import Timer, TimingWheel
from protocol.namedtuple import NamedTuple

Key = TypeVar("Key", bound=Hashable)
Operation = TypeVar("Operation")
Result = TypeVar("Result")


class Touched(NamedTuple):
    """Something has moved: parked requests under these keys are looked at again."""

    keys: Sequence[Hashable]


class Parked(Timer[Operation], Generic[Key, Operation]):
    """One parked operation, its own timer: the receipt with which it can be taken out by hand.

    payload: the operation. pending: false once it was completed, expired or cancelled.
    """

    __slots__ = ("_purgatory", "keys")

    def __init__(
        self, purgatory: Purgatory[Key, Operation], operation: Operation, keys: tuple[Key, ...], deadline_ms: int
    ) -> None:
        self.deadline_ms, self.payload, self._bucket = deadline_ms, operation, None
        self.keys, self._purgatory = keys, purgatory

    def ring(self, now_ms: int) -> None:
        """Its time is up."""
        self._purgatory.time_is_up(self, now_ms)


class Purgatory(Generic[Key, Operation]):
    """Parked operations by key and by deadline. watchers: those under each key, empty if nothing waits; to be read."""

    __slots__ = ("_size", "_time_is_up", "_wheel", "watchers")

    def __init__(self, wheel: TimingWheel[Any], time_is_up: Callable[[Operation, int], None]) -> None:
        """wheel: has the deadlines. time_is_up: told of each operation whose deadline has passed, and the time."""
        self._wheel = wheel
        self._time_is_up = time_is_up
        self._size = 0
        self.watchers: dict[Key, dict[Parked[Key, Operation], None]] = {}

    def __len__(self) -> int:
        """How many operations wait."""
        return self._size

    def operations(self) -> set[Operation]:
        """Those that wait; put together each time."""
        return {parked.payload for watching in self.watchers.values() for parked in watching}

    def watching(self, key: Key) -> int:
        """How many operations wait under a key."""
        return len(self.watchers.get(key, ()))

    def under(self, key: Key) -> tuple[Parked[Key, Operation], ...]:
        """What waits under a key now, oldest first; each may be over by the time it is looked at."""
        return tuple(self.watchers.get(key, ()))

    def park(self, operation: Operation, keys: Iterable[Key], deadline_ms: int) -> Parked[Key, Operation]:
        """Keep an operation until a check of one of its keys says it is ready, or until its deadline.

        The caller has just found it not ready: a single thread owns the state, so nothing can have moved in between.
        """
        parked = Parked(self, operation, tuple(dict.fromkeys(keys)), deadline_ms)
        for key in parked.keys:
            self.watchers.setdefault(key, {})[parked] = None
        self._wheel.put(parked)
        self._size += 1
        return parked

    def check(self, key: Key, answer: Callable[[Operation], Result | None]) -> Iterator[tuple[Operation, Result]]:
        """Complete the operations under `key` for which there is an answer, oldest first, each when the next is wanted.

        The caller does what it likes in between: an operation that is over by then is left out, and one that is parked
        then has just been found not ready.
        """
        for parked in self.under(key):
            if parked.pending and (result := answer(parked.payload)) is not None:
                self.cancel(parked)
                yield parked.payload, result

    def cancel(self, parked: Parked[Key, Operation]) -> bool:
        """Take an operation out (its connection closed, or the caller answers it): true if it still waited."""
        if not self._wheel.cancel(parked):
            return False
        self._forget(parked)
        return True

    def time_is_up(self, parked: Parked[Key, Operation], now_ms: int) -> None:
        """Its deadline has passed; it is in the wheel no more."""
        self._forget(parked)
        self._time_is_up(parked.payload, now_ms)

    def _forget(self, parked: Parked[Key, Operation]) -> None:
        self._size -= 1
        for key in parked.keys:
            watching = self.watchers[key]
            del watching[parked]
            if not watching:
                del self.watchers[key]
