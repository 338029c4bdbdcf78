"""The group coordinator at work: its effects carried out, its partitions loaded, its appends followed to their commit.

Between the handlers of `groups.py` (and the core's clock) on one side, and the pure `kbroker.groups` on the other:
a handler hands over the effects of an operation, and this turns Append into batches in __consumer_offsets, SetTimer
into timers, Reply into answers. It decides nothing about groups.

An append's answer leaves when the partition's high watermark has passed it, in the order of the log; with one broker
that is at once. A partition that this broker begins to lead is replayed in slices between other requests, since a
large one takes long; until then its groups answer COORDINATOR_LOAD_IN_PROGRESS.

Unlike Kafka: a batch that cannot be read is passed by, with a line in the log, instead of all that is in the partition.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from kbroker.broker.facts import Reply
from kbroker.groups import Append, CancelTimer, Happened, SetTimer
from kbroker.groups import Reply as GroupReply
from kbroker.log import Origin
from kbroker.timing import KeyedTimers
from protocol.errors import ErrorCode, KafkaError
from protocol.message import DecodeError
from protocol.records import Record, RecordError
from protocol.records.batch import HEADER_SIZE, BatchHeader, unpack_header
from protocol.records.content import build_batch, parse_records
from protocol.records.control_records import ControlType, parse_marker

if TYPE_CHECKING:
    from kbroker.groups import Effect, GroupCoordinator, TimerKey, Write
    from kbroker.groups.shard import GroupShard
    from kbroker.log.log import Log
    from kbroker.ports import Clock
    from kbroker.replica import Partition, ReplicaManager

log = logging.getLogger("kbroker.groups")

OFFSETS_TOPIC = "__consumer_offsets"
SLICE_BYTES = 256 << 10  # replayed between two other requests: some 3 ms


class _Appended(NamedTuple):
    """An append that waits for the high watermark."""

    end_offset: int
    first_offset: int
    write: Write


class _Loading:
    """A partition being replayed."""

    __slots__ = ("epoch", "offset", "partition")

    def __init__(self, partition: Partition, offset: int) -> None:
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.offset = offset


class Coordination:
    """Carries out what the group coordinator wants. replies: answers for the core to send."""

    def __init__(
        self, groups: GroupCoordinator, replicas: ReplicaManager, clock: Clock, codec_id: int, now_ms: int
    ) -> None:
        self.groups = groups
        self.replies: list[Reply] = []
        self._replicas = replicas
        self._clock = clock
        self._codec_id = codec_id
        self._timers: KeyedTimers[TimerKey] = KeyedTimers(now_ms)
        self._appended: dict[int, deque[_Appended]] = {}  # by partition, in the order of the log
        self._led: dict[int, Log] = {}  # by partition that is led here: the log that its groups are in
        self._loading: deque[_Loading] = deque()

    # -- effects

    def carry_out(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Do what an operation wants, in order."""
        for effect in effects:
            if isinstance(effect, GroupReply):
                self.replies.append(Reply(effect.call, effect.response))
            elif isinstance(effect, Append):
                self._append(effect, now_ms)
            elif isinstance(effect, SetTimer):
                self._timers.set(effect.key, effect.deadline_ms)
            elif isinstance(effect, CancelTimer):
                self._timers.cancel(effect.key)
            else:
                assert isinstance(effect, Happened), effect
                log.info("group %s: %s", effect.group_id, effect.what)

    def _append(self, effect: Append, now_ms: int) -> None:
        try:
            partition = self._replicas.find(OFFSETS_TOPIC, effect.partition)
            batch = memoryview(self._batch(effect))
            plan = self._replicas.append(partition, batch, -1, Origin.COORDINATOR, self._clock.wall_ms())
        except KafkaError as error:
            log.warning("cannot write to %s-%d: %s", OFFSETS_TOPIC, effect.partition, error)
            self._conclude(effect.write, error.code, -1, now_ms)
            return
        waiting = self._appended.setdefault(effect.partition, deque())
        waiting.append(_Appended(plan.last_offset + 1, plan.first_offset, effect.write))
        self._commit(partition, now_ms)

    def _batch(self, effect: Append) -> bytearray:
        wall_ms = self._clock.wall_ms()
        return build_batch(
            [Record(at, wall_ms, record.key, record.value) for at, record in enumerate(effect.records)],
            codec_id=self._codec_id,
            producer_id=effect.producer_id,
            producer_epoch=effect.producer_epoch,
            transactional=effect.producer_id >= 0,
        )

    def _conclude(self, write: Write, code: ErrorCode, position: int, now_ms: int) -> None:
        self.carry_out(self.groups.written(write, code, now_ms, position), now_ms)

    def _commit(self, partition: Partition, now_ms: int) -> None:
        """Let go of the appends that the high watermark has passed."""
        waiting = self._appended.get(partition.index)
        if not waiting or partition.log is None:
            return
        while waiting and waiting[0].end_offset <= partition.log.high_watermark:
            done = waiting.popleft()
            self._conclude(done.write, ErrorCode.NONE, done.first_offset, now_ms)

    # -- time

    def next_deadline_ms(self) -> int | None:
        """When to call `expire` next; 0 while a partition is being loaded."""
        return 0 if self._loading else self._timers.next_deadline_ms()

    def expire(self, now_ms: int) -> None:
        """Timers that are due; a slice of what is being loaded."""
        while (key := self._timers.pop_due(now_ms)) is not None:
            self.carry_out(self.groups.timer(key, now_ms), now_ms)
        if self._loading:
            self._load_slice(now_ms)

    # -- partitions of __consumer_offsets

    def moved(self, partition: Partition, now_ms: int) -> None:
        """A partition of __consumer_offsets has records, another leader, or another high watermark.

        A new epoch under the same leader (a follower has gone, replicas are moved) leaves its groups as they are.
        """
        log = partition.log if partition.is_leader else None
        led = self._led.get(partition.index)
        if led is not log and led is not None:
            self._resign(partition.index, now_ms)
        if led is not log and log is not None:
            self._take_over(partition, log, now_ms)
        self._commit(partition, now_ms)

    def _take_over(self, partition: Partition, log: Log, now_ms: int) -> None:
        self._led[partition.index] = log
        self.carry_out(self.groups.elected(partition.index, partition.leader_epoch, now_ms), now_ms)
        self._loading.append(_Loading(partition, log.log_start_offset))

    def _resign(self, index: int, now_ms: int) -> None:
        del self._led[index]
        self._loading = deque(loading for loading in self._loading if loading.partition.index != index)
        self.carry_out(self.groups.resigned(index, None, now_ms), now_ms)
        for waiting in self._appended.pop(index, ()):
            self._conclude(waiting.write, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, now_ms)

    def _load_slice(self, now_ms: int) -> None:
        """Replay about SLICE_BYTES of the first partition in line; when it is at its end, its groups are served."""
        loading = self._loading[0]
        shard = self.groups.shard_to_load(loading.partition.index, loading.epoch)
        source = loading.partition.log
        if shard is None or source is None:
            self._loading.popleft()
            return
        try:
            loading.offset = max(loading.offset, source.log_start_offset)  # it moves where the topic is not compacted
            fetched = source.read(loading.offset, SLICE_BYTES, source.log_end_offset)
            if fetched.region is not None:
                loading.offset = _replay(shard, memoryview(fetched.region.read()), loading.offset)
                return
        except RecordError as error:
            log.error("%s-%d: stopped loading groups at %s", OFFSETS_TOPIC, loading.partition.index, error)
        except OSError as error:  # the directory goes offline, and this broker resigns from the partition
            self._loading.popleft()
            self._replicas.storage_error(loading.partition, error)
            return
        self._loading.popleft()
        self.carry_out(self.groups.loaded(loading.partition.index, loading.epoch, now_ms), now_ms)


def _replay(shard: GroupShard, data: memoryview, offset: int) -> int:
    """Feed the whole batches in `data` to a shard; returns the offset that follows them.

    Raises: RecordError for bytes that are no batch.
    """
    at = 0
    while len(data) - at >= HEADER_SIZE:
        header = BatchHeader(*unpack_header(data, at))
        if header.size_bytes > len(data) - at:
            break
        try:
            _replay_batch(shard, data, at, header, offset)
        except (RecordError, DecodeError) as error:
            where = f"{OFFSETS_TOPIC}-{shard.partition}"
            log.error("%s: offsets %d to %d passed by: %s", where, header.base_offset, header.last_offset, error)
        offset = header.last_offset + 1
        at += header.size_bytes
    assert at > 0, f"no whole batch at offset {offset}"
    return offset


def _replay_batch(shard: GroupShard, data: memoryview, at: int, header: BatchHeader, offset: int) -> None:
    """Feed the records from `offset` on. Raises: RecordError, DecodeError if no coordinator can have written them."""
    records = parse_records(data, at, header)
    if header.is_control:
        # a cleaner leaves a batch without records in place of a marker whose transaction is gone
        commits = bool(records) and parse_marker(records[0]).control_type is ControlType.COMMIT
        shard.replay_marker(header.producer_id, commit=commits)
        return
    producer_id = header.producer_id if header.is_transactional else -1
    for record in records:
        if record.offset >= offset and record.key is not None:
            shard.replay(record.key, record.value, position=header.base_offset, producer_id=producer_id)
