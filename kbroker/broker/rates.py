"""Rates and buckets as Kafka measures quotas by them: what has been used, and how long it takes until that is allowed.

Used by `client_quotas.py` alone. Pure: time is an argument. Nothing here knows whose quota it is.

A meter whose bound is another one gives way to one that goes on with what was used (`renewed`): who has kept it finds
it closed, and looks for the other.

A rate (`Rate`) is what came in the last windows (`quota.window.num` of `quota.window.size.seconds`) by their time. The
newest window is not over yet, and the time counts as at least one window less than all of them, so that a client which
begins may send what ten windows bring. What is over the quota is waited for.

A bucket (`TokenBucket`, KIP-599) fills at the quota's pace up to what all windows bring, and what is used is taken from
it. It may fall below zero by one use.

Source: Rate, SampledStat, WindowedSum, TokenBucket and QuotaUtils of Apache Kafka 3.9, by behaviour. As long as a rate
cannot be over its quota, windows are neither cut nor added up: that is the way of nearly every request, and it is one
subtraction. The outcome is the same. Unlike Kafka: a client that may use nothing waits until all windows are over.
"""

from __future__ import annotations

MOST_BYTES = 1 << 62  # a quota may be any number
MOST_MS = (1 << 31) - 1  # what an answer can say


class Windows:
    """How many windows there are, and how long each is."""

    __slots__ = ("count", "remembered_ms", "size_ms")

    def __init__(self, count: int, size_seconds: int) -> None:
        self.count, self.size_ms = count, size_seconds * 1000
        self.remembered_ms = count * self.size_ms

    @property
    def least_ms(self) -> int:
        """The time that a rate is taken over, at least; 1 where there is but one window."""
        return max((self.count - 1) * self.size_ms, 1)


class Rate:
    """What one client uses a second. bound: how much it may. most: what all windows may bring, but for the newest."""

    __slots__ = ("_current", "_opened", "_windows", "bound", "last_ms", "most", "room", "samples", "until_ms")

    def __init__(self, windows: Windows, bound: float) -> None:
        self._windows = windows
        self.bound, self.most = bound, _most(windows, bound)
        self.samples: list[list[float]] = []  # when each window began, when it got something last, how much
        self._current = 0
        # The quick way: until then so much may come in without a look at the windows.
        self.room, self.until_ms, self.last_ms = -1.0, -1, 0
        self._opened = 0.0  # the room when it was opened

    def record(self, amount: float, now_ms: int) -> int:
        """So much has been used; returns how many milliseconds it takes until the rate is allowed, 0 if it is."""
        room = self.room - amount
        if room >= 0 and now_ms < self.until_ms:
            self.room, self.last_ms = room, now_ms
            return 0
        self._add(amount, now_ms)
        total = self._total(now_ms)
        over_ms = self._over_ms(now_ms)
        over = total / (over_ms / 1000) - self.bound
        self._open(total)
        if over <= 0:
            return 0
        return round_half_up(over / self.bound * over_ms) if self.bound > 0 else self._windows.remembered_ms

    def add(self, amount: float, now_ms: int) -> None:
        """So much has been used, and is allowed whatever the rate is; below 0: it was not used after all."""
        room = self.room - amount
        if room >= 0 and now_ms < self.until_ms:
            self.room, self.last_ms = room, now_ms
        else:
            self._add(amount, now_ms)

    def _add(self, amount: float, now_ms: int) -> None:
        self._close()
        samples, windows = self.samples, self._windows
        if not samples:
            samples.append([now_ms, now_ms, 0.0])
        if now_ms - samples[self._current][0] >= windows.size_ms:
            self._current = (self._current + 1) % (windows.count + 1)
            if self._current >= len(samples):
                samples.append([now_ms, now_ms, 0.0])
            else:
                samples[self._current] = [now_ms, now_ms, 0.0]
        sample = samples[self._current]
        sample[2] += amount
        sample[1] = now_ms

    def measure(self, now_ms: int) -> float:
        """The rate now."""
        self._close()
        return self._total(now_ms) / (self._over_ms(now_ms) / 1000) if self.samples else 0.0

    def set_bound(self, bound: float) -> None:
        """It may use so much from now on."""
        self._close()
        self.bound, self.most = bound, _most(self._windows, bound)

    def renewed(self, bound: float) -> Rate:
        """One that goes on with what was used, and may use so much; this one is not quick again, and allows nothing."""
        self._close()
        made = Rate(self._windows, bound)
        made.samples, made._current, made.last_ms = self.samples, self._current, self.last_ms
        self.samples, self.most = [], -1
        return made

    def _total(self, now_ms: int) -> float:
        remembered_ms, total = self._windows.remembered_ms, 0.0
        for at, (_, last_ms, amount) in enumerate(self.samples):
            if now_ms - last_ms >= remembered_ms:
                self.samples[at] = [now_ms, now_ms, 0.0]
            else:
                total += amount
        return total

    def _over_ms(self, now_ms: int) -> int:
        """The time that the rate is taken over."""
        windows = self._windows
        elapsed_ms = now_ms - int(min(sample[0] for sample in self.samples))
        missing = windows.count - 1 - elapsed_ms // windows.size_ms
        return max(elapsed_ms + max(missing, 0) * windows.size_ms, 1)

    def _open(self, total: float) -> None:
        """Open the quick way, if there is room for more: until a window is full, or one is forgotten."""
        windows = self._windows
        self.room = self.bound * windows.least_ms / 1000 - total
        began_ms = self.samples[self._current][0]
        forgotten_ms = min(
            (last_ms for at, (_, last_ms, _) in enumerate(self.samples) if at != self._current), default=began_ms
        )
        self.until_ms = int(min(began_ms + windows.size_ms, forgotten_ms + windows.remembered_ms))
        self.last_ms = int(self.samples[self._current][1])
        if self.room < 0:
            self.until_ms = -1
        self._opened = self.room

    def _close(self) -> None:
        """Note what came the quick way in its window."""
        if self.until_ms >= 0:
            sample = self.samples[self._current]
            sample[1], sample[2] = self.last_ms, sample[2] + self._opened - self.room
            self.until_ms = -1


def _most(windows: Windows, bound: float) -> int:
    return int(min(bound * ((windows.count - 1) * windows.size_ms / 1000), MOST_BYTES))


class TokenBucket:
    """What one client may still use. bound: how much it may a second."""

    __slots__ = ("_windows", "bound", "last_ms", "tokens")

    def __init__(self, windows: Windows, bound: float) -> None:
        self._windows = windows
        self.bound = bound
        self.tokens = 0.0
        self.last_ms = 0

    def add(self, amount: float, now_ms: int) -> None:
        """So much has been used."""
        self.tokens = min(self._burst, self.measure(now_ms) - amount)

    def measure(self, now_ms: int) -> float:
        """How many tokens there are; below 0: too much has been used."""
        self.tokens = min(self._burst, self.tokens + self.bound * (now_ms - self.last_ms) / 1000)
        self.last_ms = now_ms
        return self.tokens

    def wait_ms(self, now_ms: int) -> int:
        """How long it takes until there are tokens again, 0 if there are."""
        tokens = self.measure(now_ms)
        if tokens >= 0:
            return 0
        return round_half_up(-tokens / self.bound * 1000) if self.bound > 0 else self._windows.remembered_ms

    def renewed(self, bound: float) -> TokenBucket:
        """As of a rate; no session keeps a bucket, so it is the same one."""
        self.bound = bound
        return self

    @property
    def _burst(self) -> float:
        return self._windows.remembered_ms / 1000 * self.bound


def round_half_up(number: float) -> int:
    """As Java's Math.round does it; no more than an answer can say."""
    return min(int((number + 0.5) // 1), MOST_MS)
