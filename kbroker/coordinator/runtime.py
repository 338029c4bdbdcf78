"""The runtime of one coordinator: its shards come, load, serve and go with the partitions that this broker leads.

Between the handlers (and the core's clock) on one side, and the shards of `groups` or `txn` on the other. A handler
asks `find` for the shard of a group or transaction, has it do something, and hands over the effects; this answers,
keeps the timers, follows the high watermark. It decides nothing about groups or transactions.

A partition that this broker begins to lead is read by jobs for the disk and replayed in slices between other requests,
since a large one takes long; until then its shard answers COORDINATOR_LOAD_IN_PROGRESS.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from kbroker.config.limits import DESCRIPTOR_RETRY_MS
from kbroker.coordinator.effects import (
    CancelTimer,
    CoordinatorEvent,
    Effect,
    Forward,
    Reply,
    SetTimer,
    TimerKey,
    Written,
)
from kbroker.coordinator.loading import replay_batches
from kbroker.coordinator.routing import partition_for
from kbroker.coordinator.shard import Shard
from kbroker.coordinator.store import Slice, Store
from protocol.errors import ErrorCode, KafkaError
from protocol.records import RecordError

if TYPE_CHECKING:
    from kbroker.metadata.cache import MetadataDelta
    from kbroker.replica import Partition
    from kbroker.timing import KeyedAlarms, Scheduler

S = TypeVar("S", bound=Shard[Any])

log = logging.getLogger("kbroker.coordinator")

LOAD = "load"  # the runtime's own kind of timer
KEYS_CHECKED = 1_000  # of a shard, whether they belong to it: some 3 ms

Give: TypeAlias = "Callable[[Slice, Runtime[Any]], None]"
"""Takes a job for the disk, and who is to hear of its end (`finished`)."""


class _Loading(Generic[S]):
    """A shard being replayed. offset: of the record to go on with. slice: the one that is being read."""

    __slots__ = ("offset", "shard", "slice")

    def __init__(self, shard: S) -> None:
        self.shard = shard
        self.offset = 0
        self.slice: Slice | None = None


class Runtime(Generic[S]):
    """The shards of one coordinator topic.

    make: a shard for (partition, leader epoch). answer: takes each Reply, in order. event: takes what an operator
    wants to know. forward: does what an effect carries that only this coordinator knows. settled: told when a shard is
    loaded or gone, or the partitions are counted. partitions: of the topic, over which keys are spread; 0 until
    `resize` says it.
    """

    def __init__(
        self,
        topic: str,
        store: Store,
        make: Callable[[int, int], S],
        answer: Callable[[Reply], None],
        event: Callable[[CoordinatorEvent], None],
        scheduler: Scheduler,
        forward: Callable[[Any, int], None] | None = None,
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self.topic = topic
        self.partitions = 0
        self.shards: dict[int, S] = {}
        self._store = store
        self._make = make
        self._answer = answer
        self._log_event = event
        self._forward = forward
        self._settled = settled
        self._timers: KeyedAlarms[TimerKey] = scheduler.alarms_by_key(self._rings)
        self._next_slice = scheduler.alarm(self._load_slice)
        self._led: dict[int, tuple[Partition, int]] = {}  # by index: whose log has its state; the epoch last told
        self._loading: deque[_Loading[S]] = deque()
        self._unread: dict[int, _Loading[S]] = {}  # by partition: what could not be read, and is tried again
        self.give: Give  # is put in by who runs jobs

    # --- whose is it

    def partition_of(self, key: str) -> int:
        """The partition of the topic that a group or transactional id belongs to; -1 while that is not known."""
        return partition_for(key, self.partitions) if self.partitions else -1

    def resize(self, partitions: int) -> None:
        """The number of partitions that keys are spread over from now on; 0: it is not known."""
        self.partitions = partitions
        for shard in self.shards.values():
            self._report_misplaced(shard)
        self._settled()

    def find(self, key: str) -> S | ErrorCode:
        """The shard of a group or transactional id, or why it cannot be asked here."""
        shard = self.shards.get(self.partition_of(key))
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if shard.loading else shard

    def is_loading(self, key: str) -> bool:
        """Whether the shard of a group or transactional id is here, or may be, and cannot be asked yet."""
        if not self.partitions:
            return bool(self.shards)  # they are being counted
        if not self._loading and not self._unread:
            return False
        shard = self.shards.get(partition_for(key, self.partitions))
        return shard is not None and shard.loading

    def _report_misplaced(self, shard: S) -> None:
        """Log what a shard holds of keys that belong to another one: the topic had another number of partitions."""
        if shard.loading or not self.partitions:
            return
        looked_at = list(islice(shard.keys, KEYS_CHECKED))
        misplaced = [key for key in looked_at if self.partition_of(key) != shard.partition]
        if misplaced:
            log.warning(
                "%s-%d: %d of %d ids found here, such as %r, belong to other partitions: the topic has %d partitions,"
                " and had another number when they were written. %s",
                self.topic,
                shard.partition,
                len(misplaced),
                len(looked_at),
                misplaced[0],
                self.partitions,
                shard.IF_MISPLACED,
            )

    # --- effects

    def carry_out(self, effects: Iterable[Effect], now_ms: int) -> None:
        """Do what an operation wants, in order, and what follows from what it has written."""
        for effect in effects:
            if isinstance(effect, Reply):
                self._answer(effect)
            elif isinstance(effect, SetTimer):
                self._timers.set(effect.key, effect.deadline_ms)
            elif isinstance(effect, CancelTimer):
                self._timers.cancel(effect.key)
            elif isinstance(effect, Written):
                shard = self.shards.get(effect.partition)
                if shard is not None:
                    self._tell_committed(shard, now_ms)
                    if shard.waiting:
                        self._arm_commit_timeout(shard, now_ms)
            elif isinstance(effect, CoordinatorEvent):
                self._log_event(effect)
            else:
                assert isinstance(effect, Forward), effect
                assert self._forward is not None, effect
                self._forward(effect.what, now_ms)

    def _tell_committed(self, shard: S, now_ms: int) -> None:
        """Carry out what follows from a shard's records being committed, until nothing does."""
        while (note := shard.take_committed()) is not None:
            operation = shard.operation(now_ms)
            shard.committed(operation, note)
            self.carry_out(operation.effects, now_ms)

    def _arm_commit_timeout(self, shard: S, now_ms: int) -> None:
        operation = shard.operation(now_ms)
        shard.uncommitted(operation)
        self.carry_out(operation.effects, now_ms)

    # --- time

    def _rings(self, key: TimerKey, now_ms: int) -> None:
        """A timer is due."""
        shard = self.shards.get(key.partition)
        if key.kind == LOAD:
            self._loading.append(self._unread.pop(key.partition))
            self._load_slice(now_ms)
        elif shard is not None and not shard.loading:
            operation = shard.operation(now_ms)
            shard.timer(operation, key)
            self.carry_out(operation.effects, now_ms)

    # --- partitions of the topic

    def role_changed(self, partition: Partition, now_ms: int, *, is_leader: bool) -> None:
        """This broker leads a partition of the topic from now on, or again, or no longer.

        A new epoch under the same leader (a follower has gone, replicas are reassigned) leaves its shard as it is; not
        if one was missed. The leader in that epoch may have told other partitions of it, and they fence lower ones.
        """
        index = partition.index
        leads, epoch = is_leader and partition.log is not None, partition.leader_epoch
        led, led_epoch = self._led.get(index, (None, epoch))
        if led is (partition if leads else None) and epoch <= led_epoch + 1:
            if leads:
                self._led[index] = partition, epoch
            return
        if led is not None:
            del self._led[index]
            self.resigned(index, now_ms)
        if leads:
            self._led[index] = partition, epoch
            self.elected(index, epoch, now_ms)

    def moved(self, partition: Partition, now_ms: int) -> None:
        """A partition of the topic has records, or another high watermark."""
        if partition.is_leader and partition.log is not None:
            self.advanced(partition.index, partition.log.high_watermark, now_ms)

    def advanced(self, partition: int, high_watermark: int, now_ms: int) -> None:
        """What is below the high watermark of a partition is committed."""
        shard = self.shards.get(partition)
        if shard is not None and not shard.loading:
            shard.advance(high_watermark)
            self._tell_committed(shard, now_ms)

    def marked(
        self, partition: int, producer_id: int, record_offset: int, high_watermark: int, now_ms: int, *, commit: bool
    ) -> None:
        """The marker that ends a producer's transaction has been appended to a partition, at `record_offset`.

        One that is being loaded meets it in the log.
        """
        shard = self.shards.get(partition)
        if shard is not None and not shard.loading:
            self.advanced(partition, high_watermark, now_ms)
            shard.replay_marker(producer_id, commit=commit, record_offset=record_offset)

    def new_metadata_image(self, delta: MetadataDelta, now_ms: int) -> None:
        """This broker's image of the cluster is another one: each shard hears of it, once it is loaded."""
        for shard in list(self.shards.values()):
            if shard.loading:
                shard.unheard.append(delta)
            else:
                self._tell_image(shard, delta, now_ms)

    def _tell_image(self, shard: S, delta: MetadataDelta, now_ms: int) -> None:
        operation = shard.operation(now_ms)
        shard.new_metadata_image(operation, delta)
        self.carry_out(operation.effects, now_ms)

    def elected(self, partition: int, epoch: int, now_ms: int) -> None:
        """This broker leads a partition from now on: its records are replayed, then it is served."""
        self.resigned(partition, now_ms)
        shard = self.shards[partition] = self._make(partition, epoch)
        shard.set_timer = self._timers.set
        self._loading.append(_Loading(shard))
        self._go_on_loading()

    def resigned(self, partition: int, now_ms: int) -> None:
        """This broker leads a partition no longer: parked calls are sent to the new coordinator."""
        shard = self.shards.pop(partition, None)
        if shard is None:
            return
        self._loading = deque(each for each in self._loading if each.shard is not shard)
        if self._unread.pop(partition, None) is not None:
            self._timers.cancel(TimerKey(LOAD, partition))
        self._go_on_loading()
        operation = shard.operation(now_ms)
        shard.drop(operation, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self.carry_out(operation.effects, now_ms)
        self._settled()

    # --- loading

    def finished(self, job: Any, error: OSError | None, now_ms: int) -> None:
        """A slice has been read, or cannot be: replay it, unless its partition was resigned meanwhile."""
        loading = self._loading[0] if self._loading else None
        read = loading.slice if loading is not None else None
        if loading is None or read is None or read is not job:
            return
        loading.slice = None
        shard = loading.shard
        shard.advance(self._store.high_watermark(shard.partition))
        try:
            if error is not None:
                raise error
            batches = read.batches()
            if batches is not None:
                loading.offset = replay_batches(shard, self.topic, batches, read.offset)
        except RecordError as broken:
            self._stop_loading(broken, now_ms)
        except OSError as failure:
            self._cannot_load(self._store.failed(shard.partition, failure), now_ms)
        self._go_on_loading()

    def _go_on_loading(self) -> None:
        """By and by: what else is to be done has its turn in between."""
        if self._loading and self._loading[0].slice is None:
            self._next_slice.soon()
        else:
            self._next_slice.cancel()

    def _load_slice(self, now_ms: int) -> None:
        """Have the next slice of the first partition in line read; at its end, its shard is served."""
        loading = self._loading[0] if self._loading else None
        if loading is None or loading.slice is not None:
            return
        shard = loading.shard
        shard.advance(self._store.high_watermark(shard.partition))
        try:
            loading.slice = self._store.read(shard.partition, loading.offset)
        except RecordError as error:
            self._stop_loading(error, now_ms)
        except KafkaError as error:
            self._cannot_load(error, now_ms)
        else:
            if loading.slice is not None:
                self.give(loading.slice, self)
            else:
                self._loaded(now_ms)
        self._go_on_loading()

    def _loaded(self, now_ms: int) -> None:
        shard = self._loading.popleft().shard
        shard.loading = False
        self._report_misplaced(shard)
        operation = shard.operation(now_ms)
        shard.loaded(operation)
        self.carry_out(operation.effects, now_ms)
        for delta in shard.unheard:
            self._tell_image(shard, delta, now_ms)
        shard.unheard.clear()
        self._settled()

    def _stop_loading(self, error: RecordError, now_ms: int) -> None:
        log.error("%s-%d: stopped loading at %s", self.topic, self._loading[0].shard.partition, error)
        self._loaded(now_ms)

    def _cannot_load(self, error: KafkaError, now_ms: int) -> None:
        """The directory goes offline, and this broker resigns; else, as for want of a descriptor, it tries again."""
        loading = self._loading.popleft()
        partition = loading.shard.partition
        log.error("%s-%d: cannot be loaded: %s", self.topic, partition, error)
        self._unread[partition] = loading
        self._timers.set(TimerKey(LOAD, partition), now_ms + DESCRIPTOR_RETRY_MS)
