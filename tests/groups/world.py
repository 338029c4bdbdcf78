"""A coordinator with everything around it that it has to be told: time, timers, a log that commits, clients that wait.

Everything is in memory and moves only when told to, so a test is a list of what happens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from kbroker.config import BrokerConfig, BrokerLayers, Given, resolve_broker
from kbroker.coordinator import Caller, CoordinatorEvent, Effect, Reply, Runtime
from kbroker.coordinator.effects import Again
from kbroker.coordinator.loading import replay_batches
from kbroker.groups.coordinator import GroupCoordinator
from kbroker.groups.kinds import Surroundings
from kbroker.groups.memory import GroupMemory
from kbroker.groups.shard import GroupShard
from kbroker.metadata.cache import LEADER_DURING_DELETE, MetadataCache, MetadataDelta
from kbroker.metadata.configs import NOTHING_SET
from kbroker.timing import Scheduler
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.control import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from protocol.records import Record
from tests.coordinator.memory import MemoryStore, at_once

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


def plain(effects: Iterable[Effect]) -> list[Effect]:
    """The same, where it does not matter how long answers hold."""
    return [each._replace(again=None) if isinstance(each, Reply) else each for each in effects]


def again_of(effects: Iterable[Effect]) -> Again:
    """How long the answer among these holds."""
    (again,) = [each.again for each in effects if isinstance(each, Reply)]
    assert again is not None
    return again


class World:
    """One broker that leads the only partition of __consumer_offsets.

    store.hold: appends stay uncommitted until `commit_appends`. replies: answers by call. observe: told of each at
    once. lines: what the log was told.
    """

    def __init__(self, config: BrokerConfig | None = None, seed: int = 1) -> None:
        self.config = config or config_of()
        self.rng = SeededChance(seed)
        self.image = MetadataCache()
        self.group_configs: dict[str, dict[str, str]] = {}
        self._topic_ids: dict[str, bytes] = {}
        self.now_ms = START_MS
        self.slept_ms = 0  # as long as the machine slept since the process began
        self.store = MemoryStore()
        self.store.wall_ms = lambda: self.now_ms + self.slept_ms
        self.replies: dict[object, Message] = {}
        self.lines: list[str] = []
        self.observe: Callable[[], None] = lambda: None
        self._calls = 0
        self.groups = self.coordinator()
        self.elect()
        self.load()

    def coordinator(self) -> GroupCoordinator:
        """A coordinator over the same log, which knows nothing yet."""
        memory = GroupMemory(
            lambda: (group for shard in self.runtime.shards.values() for group in shard.groups.values()), self.config
        )

        around = Surroundings(
            self.config, self.rng, memory, self.image, lambda group: self.group_configs.get(group, NOTHING_SET)
        )

        def make(partition: int, epoch: int) -> GroupShard:
            return GroupShard(partition, epoch, self.store, around)

        self.scheduler = Scheduler(self.now_ms)
        self.runtime: Runtime[GroupShard] = Runtime(
            "__consumer_offsets", self.store, make, self._reply, self._log_event, self.scheduler
        )
        self.runtime.resize(1)
        self.runtime.give = at_once
        return GroupCoordinator(self.runtime, memory)

    @property
    def shard(self) -> GroupShard:
        return self.groups.runtime.shards[0]

    # --- clients

    def call(self, version: int = 9, client_id: str = "client") -> Caller:
        self._calls += 1
        return Caller(self._calls, version, client_id, "/10.0.0.1")

    def ask(self, effects: list[Effect], caller: Caller) -> Message | None:
        """Carry out an operation's effects: the answer, None if the call is parked."""
        self.run(effects)
        return self.replies.get(caller.call)

    def run(self, effects: list[Effect]) -> None:
        self.runtime.carry_out(effects, self.now_ms)

    def topics(self, **counts: int) -> None:
        """Topics have so many partitions from now on; 0: a topic is gone."""
        states = [
            UpdateMetadataTopicState(
                topic_name=name,
                topic_id=self._topic_id(name),
                partition_states=[
                    UpdateMetadataPartitionState(
                        partition_index=index,
                        controller_epoch=1,
                        leader=LEADER_DURING_DELETE if index >= count else 0,
                        leader_epoch=1,
                        isr=[0],
                        zk_version=1,
                        replicas=[0],
                        offline_replicas=[],
                    )
                    for index in range(count or len(self.image.topics[name].partitions))
                ],
            )
            for name, count in counts.items()
        ]
        delta = self.image.update(
            UpdateMetadataRequest(controller_id=0, controller_epoch=1, topic_states=states, live_brokers=[])
        )
        self.runtime.new_metadata_image(delta, self.now_ms)

    def _topic_id(self, name: str) -> bytes:
        """The same one in every run."""
        return self._topic_ids.setdefault(name, bytes(15) + bytes([len(self._topic_ids) + 1]))

    def delete_partitions(self, *gone: tuple[str, int]) -> None:
        """Partitions of deleted topics leave the cluster's image."""
        self.runtime.new_metadata_image(MetadataDelta([], deleted=gone), self.now_ms)

    def _reply(self, reply: Reply) -> None:
        assert reply.call not in self.replies, f"{reply.call} answered twice: {reply.response}"
        self.replies[reply.call] = reply.response
        self.observe()

    def _log_event(self, event: CoordinatorEvent) -> None:
        self.lines.append(f"{event.name} {event.what}")

    # --- the log

    @property
    def log(self) -> list[tuple[Record, int]]:
        return self.store.records(0)

    @property
    def has_uncommitted(self) -> bool:
        return self.store.end(0) > self.store.high_watermark(0)

    def hold_appends(self) -> None:
        self.store.hold = True

    def commit_appends(self) -> None:
        self.store.hold = False
        self.runtime.advanced(0, self.store.commit(0), self.now_ms)

    def refuse_appends(self, error: ErrorCode | None) -> None:
        """From now on appends are refused; None: no more."""
        self.store.refuse = error

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        record_offset = self.store.append_marker(0, producer_id, commit=commit)
        self.shard.advance(self.store.high_watermark(0))
        self.shard.replay_marker(producer_id, commit=commit, record_offset=record_offset)

    # --- time

    def wait(self, delay_ms: int) -> None:
        """Let time pass, from one timer to the next."""
        until_ms = self.now_ms + delay_ms
        while (next_ms := self.scheduler.next_ms) is not None and next_ms <= until_ms:
            self.now_ms = max(self.now_ms, next_ms)
            self.scheduler.ring(self.now_ms)
        self.now_ms = until_ms

    # --- the life of a broker

    def elect(self) -> None:
        self.runtime.elected(0, 1, self.now_ms)

    def load(self) -> None:
        while any(shard.loading for shard in self.runtime.shards.values()):
            self.scheduler.ring_wanted(self.now_ms)

    def resign(self) -> None:
        self.runtime.resigned(0, self.now_ms)

    def restart(self) -> None:
        """The process dies; a new one, whose time is the wall clock's, reads what was committed."""
        self.now_ms, self.slept_ms = self.now_ms + self.slept_ms, 0
        self.store.cut(0)
        self.groups = self.coordinator()
        self.elect()
        self.load()

    def reader(self) -> GroupShard:
        """Another broker's shard, which has replayed the log and serves nobody yet."""
        runtime, scheduler = self.runtime, self.scheduler
        try:
            shard = self.coordinator().runtime._make(0, 1)
        finally:
            self.runtime, self.scheduler = runtime, scheduler
        shard.advance(self.store.high_watermark(0))
        part = self.store.read(0, 0)
        if part is not None:
            replay_batches(shard, "__consumer_offsets", part.data, 0)
        return shard
