"""Replication quotas (KIP-73): how fast replicas may be copied, so that clients keep the network and the disks.

Three rates of a broker, each of its own setting: what leaders send to throttled followers, what throttled followers
take, and what moves between log directories (KIP-113). Kept by `manager.py`; leaders and followers ask before they send
or fetch, and note afterwards what it was. Which partitions count says the topic (`is_throttled`). A replica in sync
always gets its records, or a throttle would take it out of the in-sync set; what it gets counts all the same.

Time is cut into windows (`replication.quota.window.size.seconds`), of which so many are remembered
(`replication.quota.window.num`): the rate is what they hold, by the time since the first of them began. A rate may be
exceeded by what one answer brings, and then nothing goes until time has brought it down.

Source: ReplicationQuotaManager, SimpleRate and SampledStat of Apache Kafka 3.9, by behaviour. Unlike Kafka: only
records count, not what an answer has around them; and nothing is noted while there is no limit.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kbroker.config.settings import LONG_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kbroker.metadata.configs import Configs

ALL_REPLICAS = ("*",)


class Throttle:
    """One rate. bytes_per_second: the limit now; LONG_MAX is none. windows: how many; window_ms: how long each is."""

    def __init__(self, bytes_per_second: Callable[[], int], windows: int, window_ms: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._window_ms = window_ms
        self._remembered_ms = windows * window_ms
        self._windows: deque[tuple[int, int, int]] = deque()  # when it began, when it got something last, bytes

    @property
    def is_on(self) -> bool:
        """Whether there is a limit."""
        return self._bytes_per_second() != LONG_MAX

    def record(self, size: int, now_ms: int) -> None:
        """So many bytes have been copied."""
        if not self.is_on:
            return
        windows = self._windows
        while windows and now_ms - windows[0][1] >= self._remembered_ms:
            windows.popleft()
        if windows and now_ms - windows[-1][0] < self._window_ms:
            began_ms, _, before = windows.pop()
            windows.append((began_ms, now_ms, before + size))
        else:
            windows.append((now_ms, now_ms, size))

    def free_ms(self) -> int:
        """From when on there is something to be had, if nothing is noted meanwhile; in the past if there is now."""
        limit = self._bytes_per_second()
        if limit == LONG_MAX:
            self._windows.clear()
            return 0
        left = sum(size for _, _, size in self._windows)
        free_ms = 0
        for began_ms, noted_ms, size in self._windows:
            if left * 1000 <= limit * self._window_ms:
                break
            forgotten_ms = noted_ms + self._remembered_ms
            enough_ms = began_ms - -left * 1000 // limit if limit else forgotten_ms
            if enough_ms < forgotten_ms:
                return max(free_ms, enough_ms)
            left -= size
            free_ms = forgotten_ms
        return free_ms


class Throttles:
    """Those of a broker. leaders: what they send. followers: what they take. moves: between log directories."""

    def __init__(self, configs: Configs) -> None:
        config = configs.broker
        windows, window_ms = config.replication_quota_window_num, config.replication_quota_window_size_seconds * 1000
        self.leaders = Throttle(lambda: configs.broker.leader_replication_throttled_rate, windows, window_ms)
        self.followers = Throttle(lambda: configs.broker.follower_replication_throttled_rate, windows, window_ms)
        self.moves = Throttle(
            lambda: configs.broker.replica_alter_log_dirs_io_max_bytes_per_second,
            config.alter_log_dirs_replication_quota_window_num,
            config.alter_log_dirs_replication_quota_window_size_seconds * 1000,
        )


class Throttled:
    """The replicas of one topic that are throttled on this broker, of those that its setting names.

    named: `partition:broker` each, or all of them. There may be as many as a topic has replicas: looked through once.
    """

    __slots__ = ("_are_all", "_indices")

    def __init__(self, named: Sequence[str], broker_id: int) -> None:
        here = f":{broker_id}"
        self._are_all = named == ALL_REPLICAS
        self._indices = frozenset(each.removesuffix(here) for each in named if each.endswith(here))

    def __contains__(self, index: int) -> bool:
        return self._are_all or str(index) in self._indices
