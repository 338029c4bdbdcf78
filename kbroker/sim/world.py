"""Time and events of a simulated world: one heap, one event after the other, all of it from one seed.

Machines, the network, clients and faults put their events here; the runner of a simulation lets them happen
(`run_until`). After each event the `watchers` look at the world. What happens is told in lines (`note`), which are
hashed: two runs of one seed have the same hash, or something in them reads real time, real chance or a set's order.

A failure is a `Broken` with its seed and the last lines. Nothing here knows what a broker is.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

MOST_EVENTS_AT_ONCE = 20_000
"""In one millisecond; more are a loop that waits for a time it has already reached."""

FOREVER_MS = 1 << 62

KEPT_LINES = 400
"""Lines of the transcript kept for a failure; the hash covers all of them."""


class Broken(AssertionError):  # noqa: N818 - a breach, found by a check
    """Something that must hold does not: what, and when."""


class Event:
    """Something that will happen; `cancel` undoes that."""

    __slots__ = ("_arguments", "_what", "at_ms")

    def __init__(self, at_ms: int, what: Callable[..., None], arguments: tuple[object, ...]) -> None:
        self.at_ms = at_ms
        self._what: Callable[..., None] | None = what
        self._arguments = arguments

    def cancel(self) -> None:
        """It does not happen; idempotent."""
        self._what = None
        self._arguments = ()

    def happen(self) -> bool:
        """Do it, once; false if it was cancelled."""
        what, self._what = self._what, None
        if what is None:
            return False
        what(*self._arguments)
        return True


class World:
    """One simulated world. seed: the only source of chance."""

    def __init__(self, seed: int | str, kept_lines: int | None = KEPT_LINES) -> None:
        """kept_lines: None keeps them all."""
        self.seed = seed
        self.now_ms = 0
        self.events = 0  # that have happened
        self.lines: deque[str] = deque(maxlen=kept_lines)
        self.watchers: list[Callable[[], None]] = []
        self._heap: list[tuple[int, int, Event]] = []
        self._numbered = 0
        self._at_once = 0  # events since time last moved on
        self._hash = hashlib.blake2b(digest_size=16)

    def rng(self, name: str) -> random.Random:
        """A random generator for the user of this name: a new client does not shift the luck of the others."""
        return random.Random(f"{self.seed}/{name}")

    def after(self, delay_ms: int, what: Callable[..., None], *arguments: object) -> Event:
        """Have something happen, after what is already planned for the same millisecond. delay_ms: >= 0."""
        assert delay_ms >= 0, delay_ms
        event = Event(self.now_ms + delay_ms, what, arguments)
        self._numbered += 1
        heappush(self._heap, (event.at_ms, self._numbered, event))
        return event

    def note(self, line: str) -> None:
        """Tell what happens. A line says no more than the seed decides: no addresses, no real time."""
        text = f"{self.now_ms / 1000:9.3f} {line}"
        self._hash.update(text.encode())
        self.lines.append(text)

    @property
    def digest(self) -> str:
        """Hash of every line so far, and of the number of events."""
        final = self._hash.copy()
        final.update(str(self.events).encode())
        return final.hexdigest()

    def step(self, until_ms: int = FOREVER_MS) -> bool:
        """Let the next event happen, and look at the world; false if nothing is left up to a time."""
        while self._heap and self._heap[0][0] <= until_ms:
            at_ms, _, event = heappop(self._heap)
            assert at_ms >= self.now_ms, (at_ms, self.now_ms)
            self._at_once = self._at_once + 1 if at_ms == self.now_ms else 0
            if self._at_once > MOST_EVENTS_AT_ONCE:
                raise self.broken("time stands still: events follow one another without end")
            self.now_ms = at_ms
            if event.happen():
                self.events += 1
                for watch in self.watchers:
                    watch()
                return True
        return False

    def run_until(self, time_ms: int) -> None:
        """Let everything happen that happens up to a time, which it is then."""
        while self.step(time_ms):
            pass
        self.now_ms = time_ms

    def broken(self, what: str) -> Broken:
        """The exception for something that must hold and does not."""
        return Broken(f"at {self.now_ms / 1000:.3f} s: {what}")


class LocalClock:
    """A machine's clock in a world; satisfies `kbroker.ports.Clock`. Its wall clock may be set."""

    __slots__ = ("_wall_offset_ms", "_world")

    def __init__(self, world: World, wall_ms: int = 1_700_000_000_000) -> None:
        self._world = world
        self._wall_offset_ms = wall_ms

    def now_ms(self) -> int:
        """Milliseconds since the world began."""
        return self._world.now_ms

    def wall_ms(self) -> int:
        """Milliseconds since 1970, as this machine believes."""
        return self._world.now_ms + self._wall_offset_ms

    def now_ns(self) -> int:
        """Nanoseconds: no work takes any time here."""
        return self._world.now_ms * 1_000_000

    def jump_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP would; timers do not notice."""
        self._wall_offset_ms += by_ms
