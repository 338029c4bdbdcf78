"""A coordinator with everything around it that it has to be told: time, timers, a log that commits, clients that wait.

Everything is in memory and moves only when told to, so a test is a list of what happens.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from kbroker.config import BrokerConfig, BrokerLayers, Given, resolve_broker
from kbroker.groups import (
    Append,
    Caller,
    CancelTimer,
    Effect,
    GroupCoordinator,
    Happened,
    Record,
    Reply,
    SetTimer,
    TimerKey,
    Write,
)
from kbroker.timing import KeyedTimers
from protocol.errors import ErrorCode
from protocol.message import Message

START_MS = 1_000_000


class SeededChance:
    """The Random port from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)


def config_of(**static: str) -> BrokerConfig:
    values = {"group_initial_rebalance_delay_ms": "0", **static}
    return resolve_broker(
        BrokerLayers(static={key.replace("_", "."): Given(text, "test") for key, text in values.items()})
    )


class World:
    """One broker that leads the only partition of __consumer_offsets.

    hold: appends stay uncommitted until `commit_appends`. replies: answers by call. observe: told of each at once.
    lines: what the log was told.
    """

    def __init__(self, config: BrokerConfig | None = None, seed: int = 1) -> None:
        self.config = config or config_of()
        self.chance = SeededChance(seed)
        self.now_ms = START_MS
        self.epoch = 0
        self.log: list[tuple[Record, int]] = []
        self.replies: dict[object, Message] = {}
        self.lines: list[str] = []
        self.hold = False
        self.observe: Callable[[], None] = lambda: None
        self._calls = 0
        self._start()
        self.run(self.groups.elected(0, self.epoch, self.now_ms))
        self.run(self.groups.loaded(0, self.epoch, self.now_ms))

    def _start(self) -> None:
        self.groups = GroupCoordinator(self.config, self.chance, partitions=1)
        self._timers: KeyedTimers[TimerKey] = KeyedTimers(self.now_ms)
        self._uncommitted: deque[tuple[Write, int]] = deque()

    # --- clients

    def call(self, version: int = 9, client_id: str = "client") -> Caller:
        self._calls += 1
        return Caller(self._calls, version, client_id, "/10.0.0.1")

    def ask(self, effects: list[Effect], caller: Caller) -> Message | None:
        """Carry out an operation's effects: the answer, None if the call is parked."""
        self.run(effects)
        return self.replies.get(caller.call)

    # --- effects

    def run(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._do(effect)
        if not self.hold:
            self.commit_appends()

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            assert effect.call not in self.replies, f"{effect.call} answered twice: {effect.response}"
            self.replies[effect.call] = effect.response
            self.observe()
        elif isinstance(effect, Append):
            self._uncommitted.append((effect.write, len(self.log)))
            self.log += [(record, effect.producer_id) for record in effect.records]
        elif isinstance(effect, SetTimer):
            self._timers.set(effect.key, effect.deadline_ms)
        elif isinstance(effect, CancelTimer):
            self._timers.cancel(effect.key)
        else:
            assert isinstance(effect, Happened), effect
            self.lines.append(f"{effect.group_id} {effect.what}")

    def commit_appends(self) -> None:
        while self._uncommitted:
            write, position = self._uncommitted.popleft()
            for effect in self.groups.written(write, ErrorCode.NONE, self.now_ms, position):
                self._do(effect)

    def fail_appends(self, error: ErrorCode) -> None:
        """The records of all appends under way are cut off again."""
        failed, self._uncommitted = self._uncommitted, deque()
        if failed:
            del self.log[failed[0][1] :]
        for write, _ in failed:
            self.run(self.groups.written(write, error, self.now_ms))

    @property
    def appends_under_way(self) -> int:
        return len(self._uncommitted)

    # --- time

    def wait(self, delay_ms: int) -> None:
        """Let time pass, from one timer to the next."""
        until_ms = self.now_ms + delay_ms
        while (next_ms := self._timers.next_deadline_ms()) is not None and next_ms <= until_ms:
            self.now_ms = max(self.now_ms, next_ms)
            while (key := self._timers.pop_due(self.now_ms)) is not None:
                self.run(self.groups.timer(key, self.now_ms))
        self.now_ms = until_ms

    # --- the life of a broker

    def resign(self) -> None:
        self.epoch += 1
        self.run(self.groups.resigned(0, self.epoch, self.now_ms))

    def restart(self) -> None:
        """The process dies; a new one reads what was committed."""
        if self._uncommitted:
            del self.log[self._uncommitted[0][1] :]
        self.epoch += 1
        self._start()
        self.run(self.groups.elected(0, self.epoch, self.now_ms))
        replay(self.groups, self.log, self.epoch)
        self.run(self.groups.loaded(0, self.epoch, self.now_ms))


def replay(groups: GroupCoordinator, log: list[tuple[Record, int]], epoch: int) -> None:
    shard = groups.shard_to_load(0, epoch)
    assert shard is not None
    for position, (record, producer_id) in enumerate(log):
        shard.replay(record.key, record.value, position=position, producer_id=producer_id)
