"""What happens by and by in one broker: timers that ring when they are due, and work that takes long, in slices.

There is one scheduler, and `core.py` turns it. A part asks it for its alarms when it is put together, sets and cancels
them as it likes, and is called when one rings; state machines that name their timers have one alarm a name. Alarms that
are due together ring in the order in which their parts asked for them, whenever they were set.

Work over many items is a generator that yields after each of them: a slice of it is done between events, so that what
else comes up has its turn in between. Owners (a client's address, say) get their slices in turn, however many tasks
each of them has; an owner's tasks are done one after the other, so that the memory of only one is in use. When a slice
is due is decided here alone. Nothing here knows what an alarm or a task is about, or reads a clock: the runner of a
slice brings one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeAlias, TypeVar, cast

from kbroker.timing.wheel import NEVER, Timer, TimingWheel

SLICE_MS = 3  # of real time, from the first millisecond that a slice sees pass
SLICE_STEPS = 256  # where time does not move (a simulation), and where steps cost next to nothing
FIRST_STEPS = 16  # at once, when a task comes in and no other waits: most are over by then

Key = TypeVar("Key", bound=Hashable)
Steps: TypeAlias = Generator[None, None, None]
Outcome = TypeVar("Outcome")


def begun(
    steps: Generator[None, None, Outcome], first_steps: int | None = None
) -> Outcome | Generator[None, None, Outcome]:
    """What a task comes to, if its first steps are all that it has; else the others, for `Scheduler.start_task`.

    first_steps: how many; FIRST_STEPS unless each may take long.
    """
    try:
        for _ in range(FIRST_STEPS if first_steps is None else first_steps):
            next(steps)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    return steps


class Alarm(Timer[Callable[[int], None]]):
    """A part's timer: at most one deadline at a time. It calls the part, with the time, at or after that."""

    __slots__ = ("_scheduler", "rank")

    def __init__(self, scheduler: Scheduler, rank: int, rings: Callable[[int], None]) -> None:
        super().__init__(0, rings)
        self._scheduler = scheduler
        self.rank = rank

    @property
    def pending(self) -> bool:
        """Whether it is going to ring."""
        return self._bucket is not None or self in self._scheduler.wanted

    def set(self, deadline_ms: int) -> None:
        """Have it ring at or after a time, and no more at the time set before."""
        self.cancel()
        self.deadline_ms = deadline_ms
        self._scheduler.wheel.put(self)

    def by(self, deadline_ms: int, now_ms: int) -> None:
        """Have it ring at or after a time, `soon` if that has come, unless it is to ring earlier anyway."""
        if self in self._scheduler.wanted or deadline_ms >= NEVER:
            return
        if deadline_ms <= now_ms:
            self.soon()
        elif self._bucket is None or deadline_ms < self.deadline_ms:
            self.set(deadline_ms)

    def soon(self) -> None:
        """Have it ring at once, but behind the requests that are there already: it is for work that goes on and on."""
        self.cancel()
        self._scheduler.wanted[self] = None
        self._scheduler.has_work = True

    def cancel(self) -> None:
        """Have it not ring."""
        self._scheduler.wheel.cancel(self)
        self._scheduler.wanted.pop(self, None)

    def ring(self, now_ms: int) -> None:
        """Its time has come."""
        self.payload(now_ms)


class _Movable(Alarm):
    """An alarm of `KeyedAlarms`. wanted_ms: when its owner wants it; it may ring earlier, for nothing."""

    __slots__ = ("wanted_ms",)
    wanted_ms: int


class KeyedAlarms(Generic[Key]):
    """At most one timer a key; setting it again moves it.

    Most are moved on before they are due, as a session with each heartbeat. So one that is moved to a later time only
    notes that, stays where it is in the wheel, and is put in again when it rings there.
    """

    __slots__ = ("_alarms", "_rank", "_rings", "_scheduler")

    def __init__(self, scheduler: Scheduler, rank: int, rings: Callable[[Key, int], None]) -> None:
        self._scheduler = scheduler
        self._rank = rank
        self._rings = rings
        self._alarms: dict[Key, _Movable] = {}

    def __len__(self) -> int:
        return len(self._alarms)

    def set(self, key: Key, deadline_ms: int) -> None:
        """Have the owner called with `key` at or after a time, and no more at the time set before."""
        alarm = self._alarms.get(key)
        if alarm is None:
            alarm = self._alarms[key] = _Movable(self._scheduler, self._rank, lambda now_ms: self._ring(key, now_ms))
        elif alarm.deadline_ms <= deadline_ms:
            alarm.wanted_ms = deadline_ms
            return
        alarm.wanted_ms = deadline_ms
        alarm.set(deadline_ms)

    def cancel(self, key: Key) -> bool:
        """Forget a timer: true if there was one."""
        alarm = self._alarms.pop(key, None)
        if alarm is None:
            return False
        alarm.cancel()
        return True

    def _ring(self, key: Key, now_ms: int) -> None:
        alarm = self._alarms[key]
        if alarm.wanted_ms > now_ms:
            alarm.set(alarm.wanted_ms)
            return
        del self._alarms[key]
        self._rings(key, now_ms)


class Scheduler:
    """Timers and tasks of one broker.

    wheel: of all timers. wanted: the alarms that are to ring at once. has_work: whether there are such, or tasks; they
    have their turn behind the requests that are there. context: what a slice is run in; None for nothing.
    """

    __slots__ = ("_owners", "_ranks", "context", "has_work", "wanted", "wheel")

    def __init__(self, now_ms: int = 0) -> None:
        self.wheel: TimingWheel[Any] = TimingWheel(now_ms)
        self.context: AbstractContextManager[None] | None = None
        self.wanted: dict[Alarm, None] = {}
        self.has_work = False
        self._ranks = 0
        self._owners: dict[Hashable, deque[Steps]] = {}  # the first one is next

    # -- timers

    def alarm(self, rings: Callable[[int], None]) -> Alarm:
        """A timer for a part. rings: called with the time when it is due."""
        self._ranks += 1
        return Alarm(self, self._ranks, rings)

    def alarms_by_key(self, rings: Callable[[Key, int], None]) -> KeyedAlarms[Key]:
        """Timers for a part that names them. rings: called with the key and the time."""
        self._ranks += 1
        return KeyedAlarms(self, self._ranks, rings)

    @property
    def next_ms(self) -> int | None:
        """When to call `ring` next, None without timers."""
        return None if self.wheel.next_ms == NEVER else self.wheel.next_ms

    def ring(self, now_ms: int) -> None:
        """Time has moved on: let ring what is due, each only if no other has cancelled or moved it before its turn.

        What is set meanwhile rings the next time, even if it is due already.
        """
        for timer in self.wheel.due(now_ms):
            cast("Alarm", timer).ring(now_ms)

    def ring_wanted(self, now_ms: int) -> None:
        """As `ring`, and of what is wanted at once as well."""
        for alarm in tuple(self.wanted):
            alarm.set(now_ms)
        self.has_work = bool(self._owners)
        self.ring(now_ms)

    # -- tasks

    @property
    def is_slicing(self) -> bool:
        """Whether there are tasks under way."""
        return bool(self._owners)

    @property
    def tasks(self) -> int:
        """How many are under way."""
        return sum(map(len, self._owners.values()))

    def start_task(self, owner: Hashable, steps: Steps, first_steps: int | None = None) -> None:
        """Do a task: at once, if nothing else waits and a few steps are enough; else in slices.

        steps: they deal with their failures themselves. first_steps: as for `begun`.
        """
        if not self._owners and begun(steps, first_steps) is not steps:
            return
        self._owners.setdefault(owner, deque()).append(steps)
        self.has_work = True

    def run_slice(self, now_ms: Callable[[], int]) -> None:
        """One slice: of the next owner's next task, and of others' if there is time left."""
        if self.context is None:
            self._slice(now_ms)
        else:
            with self.context:
                self._slice(now_ms)
        self.has_work = bool(self.wanted or self._owners)

    def _slice(self, now_ms: Callable[[], int]) -> None:
        owners = self._owners
        end_ms = now_ms() + SLICE_MS
        left = SLICE_STEPS
        while owners and left > 0 and now_ms() < end_ms:
            owner = next(iter(owners))
            tasks = owners[owner]
            steps, ended = tasks[0], False
            try:
                while left > 0:
                    left -= 1
                    next(steps)
                    if now_ms() >= end_ms:
                        break
            except StopIteration:
                ended = True
            if ended:
                tasks.popleft()
            del owners[owner]
            if tasks:
                owners[owner] = tasks  # at the end of the line
