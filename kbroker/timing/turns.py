"""Work that takes long, done a slice at a time, so that what else comes up has its turn in between.

A handler over many items is a generator that yields after each: `core.py` puts it here, runs a slice between events,
and so does nothing for longer than that. Owners (a client's address, say) get their slices in turn, however many tasks
each of them has; an owner's tasks are done one after the other, so that the memory of only one is in use. Nothing here
knows what a task is about, or reads a clock: whoever runs a slice brings one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable
from contextlib import AbstractContextManager
from typing import TypeAlias, TypeVar

SLICE_MS = 3  # of real time, from the first millisecond that a slice sees pass
SLICE_STEPS = 256  # where time does not move (a simulation), and where steps cost next to nothing
FIRST_STEPS = 16  # at once, when a task comes in and no other waits: most are over by then

Steps: TypeAlias = Generator[None, None, None]
Outcome = TypeVar("Outcome")


def begun(
    steps: Generator[None, None, Outcome], first_steps: int | None = None
) -> Outcome | Generator[None, None, Outcome]:
    """What a task comes to, if its first steps are all that it has; else the others, for `Turns`.

    first_steps: how many; FIRST_STEPS unless each may take long.
    """
    try:
        for _ in range(FIRST_STEPS if first_steps is None else first_steps):
            next(steps)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome
    return steps


class Turns:
    """Tasks under way, by owner. context: what a slice is run in; None for nothing."""

    __slots__ = ("_owners", "context")

    def __init__(self) -> None:
        self.context: AbstractContextManager[None] | None = None
        self._owners: dict[Hashable, deque[Steps]] = {}  # the first one is next

    def __bool__(self) -> bool:
        """Whether there is work."""
        return bool(self._owners)

    def __len__(self) -> int:
        """How many tasks are under way."""
        return sum(map(len, self._owners.values()))

    def begin(self, owner: Hashable, steps: Steps, first_steps: int | None = None) -> None:
        """Do a task: at once, if nothing else waits and a few steps are enough; else in slices.

        steps: they deal with their failures themselves. first_steps: as for `begun`.
        """
        if not self._owners and begun(steps, first_steps) is not steps:
            return
        self._owners.setdefault(owner, deque()).append(steps)

    def run(self, now_ms: Callable[[], int]) -> None:
        """One slice: of the next owner's next task, and of others' if there is time left."""
        if self.context is None:
            self._slice(now_ms)
        else:
            with self.context:
                self._slice(now_ms)

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
