"""The share-partitions of this broker: what its partitions are to share groups, while it leads them (KIP-932).

A part of the broker from the first ShareFetch on. `api/share_fetch.py` asks for one (`lead`), reads the log and
acquires; `acknowledge` and `release` say what became of records. Owned here is what `share/share_partition.py` needs
around it: that its state is read first, that changes are written, one write at a time for each share-partition, with
everything in it that came up meanwhile; that locks expire; and when it goes: with the leadership, with the last session
of the group, or if another leader has taken over. A share-partition is its own key in the purgatory, touched when
records may be acquired that could not be before.

Unlike Apache Kafka: where a group begins (`share.auto.offset.reset`) is written before the first record is acquired,
and not with the first acknowledgement. After a crash between the two, `latest` would be another offset, and what was
acquired would be lost to the group.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kbroker.broker.end_offsets import EndOffsets
from kbroker.broker.facts import Touched
from kbroker.broker.share_sessions import ShareSessions
from kbroker.broker.share_state import READ, WRITE, ShareStateRequests
from kbroker.config.share_groups import ShareGroupConfig
from kbroker.log.isolation import READ_COMMITTED, FetchIsolation
from kbroker.log.times import TimeScan, TimeSearch
from kbroker.metadata.features import SHARE_VERSION
from kbroker.replica.facts import RoleChanged
from kbroker.share.share_partition import NEVER, Change, DeadLetter, Limits, SharePartition, StateBatch
from kbroker.share.share_records import Place
from kbroker.share.state_batches import combine
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.share_group_state import ReadStatePartition, WriteStatePartition
from protocol.messages.share_group_state import StateBatch as SentStateBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kbroker.broker.broker import Broker
    from kbroker.broker.dead_letters import DeadLetters
    from kbroker.broker.facts import Handler
    from kbroker.broker.jobs import Job
    from kbroker.broker.share_sessions import ShareSession
    from kbroker.log.times import Found
    from kbroker.metadata.requester import Requester
    from kbroker.replica import Partition
    from kbroker.share.share_partition import Acknowledgement

    Written = Callable[[ErrorCode, str], None]
    """Is told what became of a change."""

log = logging.getLogger("kbroker.share")

UNKNOWN_START = -1
HAS_DEAD_LETTERS = 2  # share.version, from which on groups have dead letter queues
_OF_PERSISTER = {
    ErrorCode.NOT_COORDINATOR: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.GROUP_ID_NOT_FOUND: ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_STATE_EPOCH: ErrorCode.NOT_LEADER_OR_FOLLOWER,
}
"""What a client is told of what the share coordinator says; of the rest, UNKNOWN_SERVER_ERROR."""

FENCING = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""After which a share-partition is loaded again by who asks next."""


class LedSharePartition:
    """A share-partition that this broker leads. state: None while it is being read. failure: why it is no more.

    leader_epoch: in which it was begun; later ones of the same leader are fenced by no other. state_epoch: as read.
    """

    __slots__ = (
        "archiving",
        "failure",
        "is_leaving",
        "leader_epoch",
        "partition",
        "place",
        "queue",
        "state",
        "state_epoch",
        "writing",
    )

    def __init__(self, place: Place, partition: Partition) -> None:
        self.place = place
        self.partition = partition
        self.leader_epoch = partition.leader_epoch
        self.state_epoch = 0
        self.state: SharePartition | None = None
        self.failure: KafkaError | None = None
        self.queue: list[tuple[Change | list[StateBatch], Written | None]] = []
        self.writing: list[tuple[Change | list[StateBatch], Written | None]] = []
        self.archiving = 0  # stretches on their way into the dead letter queue
        self.is_leaving = False  # goes as soon as nothing is under way

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way."""
        return not (self.queue or self.writing or self.archiving) and self.state is not None

    def __repr__(self) -> str:
        return f"<{self.place.group_id}: {self.partition.topic}-{self.partition.index}>"


class SharePartitions:
    """All of them, and the share sessions. A part of the broker."""

    def __init__(self, broker: Broker, requester: Requester) -> None:
        self._broker = broker
        self._tell = broker.tell
        plane = broker.plane
        self.sessions = ShareSessions()
        self.requests = ShareStateRequests(
            plane.broker_id, broker.share_coordinator, plane, requester, broker.scheduler, broker.tell
        )
        self.ends = EndOffsets(plane.broker_id, plane.cache, broker.replicas, requester)
        self._requester = requester
        self._led: dict[Place, LedSharePartition] = {}
        self._alarms = broker.scheduler.alarms_by_key(self._expire)
        self._armed: dict[Place, int] = {}  # when each alarm rings
        self._configs: dict[str, tuple[Mapping[str, str], ShareGroupConfig]] = {}
        self._dead_letters: DeadLetters | None = None
        self._searches: dict[Job, tuple[LedSharePartition, TimeSearch]] = {}

    # --- settings

    def config(self, group_id: str) -> ShareGroupConfig:
        """What is set for a group, or for all."""
        said = self._broker.plane.configs.group(group_id)
        known = self._configs.get(group_id)
        if known is None or known[0] != said:
            known = self._configs[group_id] = said, ShareGroupConfig.of(said, self._broker.config)
        return known[1]

    def _limits(self, group_id: str) -> Limits:
        config = self.config(group_id)
        return Limits(
            config.partition_max_record_locks,
            config.delivery_count_limit,
            config.record_lock_duration_ms,
            bool(config.dead_letter_topic) and self._broker.features.is_on(SHARE_VERSION, HAS_DEAD_LETTERS),
            config.renew_acknowledge_enable,
        )

    def isolation(self, group_id: str) -> FetchIsolation:
        """How far members of a group see into logs."""
        return FetchIsolation.of(READ_COMMITTED if self.config(group_id).reads_committed else 0)

    # --- which there are

    @property
    def led(self) -> Sequence[LedSharePartition]:
        """Those that are here."""
        return list(self._led.values())

    def find(self, place: Place) -> LedSharePartition | None:
        """A share-partition that is here."""
        return self._led.get(place)

    def lead(self, place: Place, topic: str, now_ms: int) -> LedSharePartition:
        """A share-partition of a partition that is led here; it may have to be read first. Raises: KafkaError."""
        led = self._led.get(place)
        if led is not None:
            led.is_leaving = False
            return led
        partition = self._broker.replicas.find(topic, place.partition)
        if partition.is_of_another(place.topic_id):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        partition.led()
        led = self._led[place] = LedSharePartition(place, partition)
        said = ReadStatePartition(partition=place.partition, leader_epoch=led.leader_epoch)
        self.requests.ask(READ, place, said, lambda result, now_ms: self._read(led, result, now_ms), now_ms)
        return led

    def _read(self, led: LedSharePartition, result: Any, now_ms: int) -> None:
        """Its state has been read, or cannot be."""
        if led.failure is not None:
            return
        code = ErrorCode.of(result.error_code)
        if code is not ErrorCode.NONE:
            self._drop(led, KafkaError(_told(code), result.error_message or code.message))
            return
        led.state_epoch = result.state_epoch
        if result.start_offset == UNKNOWN_START:
            self._begin(led, now_ms)
            return
        batches = [
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in result.state_batches
        ]
        try:
            led.state = SharePartition(result.start_offset, batches, self._limits(led.place.group_id))
        except ValueError as error:
            log.error("%r: its state cannot be used: %s", led, error)
            self._drop(led, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the state of {led!r} cannot be used"))
            return
        self._tell(Touched([led]))
        for letter in led.state.archiving:
            self._send_dead(led, letter, now_ms)

    # --- where a group begins

    def _begin(self, led: LedSharePartition, now_ms: int) -> None:
        """The group has read nothing of the partition yet."""
        reset = self.config(led.place.group_id).auto_offset_reset
        try:
            partition_log = led.partition.led()
        except KafkaError as error:
            self._drop(led, error)
            return
        if reset.since_ms is None:
            start = partition_log.log_start_offset if reset.is_earliest else partition_log.high_watermark
            self._begin_at(led, start, now_ms)
            return
        search = TimeSearch(partition_log, self._broker.clock.wall_ms() - reset.since_ms)
        job = search.first_job()
        if job is None:
            self._search_on(led, search, now_ms)
        else:
            self._searches[job] = led, search
            self._broker.give(job, self)

    def _search_on(self, led: LedSharePartition, search: TimeSearch, now_ms: int) -> None:
        try:
            scan = search.next_scan()
        except OSError as error:
            self._drop(led, self._broker.replicas.storage_error(led.partition, error))
            return
        if scan is None:
            self._found(led, None, now_ms)
        else:
            self._searches[scan] = led, search
            self._broker.give(scan, self)

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """A stretch of a log has been read for a time."""
        led, search = self._searches.pop(job)
        if led.failure is not None:
            return
        if error is not None:
            self._drop(led, self._broker.replicas.storage_error(led.partition, error))
        elif isinstance(job, TimeScan) and job.error is not None:
            self._drop(led, job.error)
        elif isinstance(job, TimeScan) and job.found is not None:
            self._found(led, job.found, now_ms)
        else:
            self._search_on(led, search, now_ms)

    def _found(self, led: LedSharePartition, found: Found | None, now_ms: int) -> None:
        """The first record that is not too old; none: the group begins with what comes next."""
        try:
            partition_log = led.partition.led()
        except KafkaError as error:
            self._drop(led, error)
            return
        end = partition_log.high_watermark
        self._begin_at(led, end if found is None else min(found.offset, end), now_ms)

    def _begin_at(self, led: LedSharePartition, start_offset: int, now_ms: int) -> None:
        """Have that written first; see the head of this file."""
        said = WriteStatePartition(
            partition=led.place.partition,
            state_epoch=led.state_epoch,
            leader_epoch=led.leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=0,
            state_batches=[],
        )

        def begun(result: Any, now_ms: int) -> None:
            if led.failure is not None:
                return
            code = ErrorCode.of(result.error_code)
            if code is ErrorCode.NONE:
                led.state = SharePartition(start_offset, (), self._limits(led.place.group_id))
                self._tell(Touched([led]))
            else:
                self._drop(led, KafkaError(_told(code), result.error_message or code.message))

        self.requests.ask(WRITE, led.place, said, begun, now_ms)

    # --- records

    def acquired(self, led: LedSharePartition, now_ms: int) -> None:
        """Records have been locked, or locks renewed."""
        assert led.state is not None, led
        deadline_ms = led.state.next_deadline_ms
        armed_ms = self._armed.get(led.place)
        if deadline_ms < NEVER and (armed_ms is None or deadline_ms < armed_ms):
            self._armed[led.place] = deadline_ms
            self._alarms.set(led.place, deadline_ms)

    def refresh(self, led: LedSharePartition) -> SharePartition:
        """Its state, with the limits that are set now, from where the log starts now. Raises: KafkaError."""
        assert led.state is not None, led
        led.state.limits = self._limits(led.place.group_id)
        led.state.log_starts_at(led.partition.led().log_start_offset)
        return led.state

    def acknowledge(
        self, place: Place, member_id: str, batches: Iterable[Acknowledgement], now_ms: int, done: Written
    ) -> None:
        """What a member says of records. done: is told, now or later."""
        led = self._led.get(place)
        if led is None or led.state is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            done(code, code.message)
            return
        led.state.limits = self._limits(place.group_id)
        try:
            change = led.state.acknowledge(member_id, batches, now_ms)
        except KafkaError as error:
            done(error.code, error.message)
            return
        if change.stretches:
            self._write(led, change, done, now_ms)
        else:
            done(ErrorCode.NONE, "")

    def end(self, session: ShareSession, now_ms: int) -> None:
        """A session is over: what its member has acquired here is given back."""
        self.sessions.close(session.group_id, session.member_id)
        for topic_id, index in session.partitions:
            led = self._led.get(Place(session.group_id, topic_id, index))
            if led is not None and led.state is not None:
                change = led.state.release(session.member_id)
                if change.stretches:
                    self._write(led, change, None, now_ms)
        if not self.sessions.has_any(session.group_id):
            for led in [each for each in self._led.values() if each.place.group_id == session.group_id]:
                led.is_leaving = True
                self._leave(led)

    def disconnected(self, connection: object) -> None:
        """A connection has gone, and with it the sessions on it."""
        for session in self.sessions.of(connection):
            self.end(session, self._broker.clock.now_ms())

    def _expire(self, place: Place, now_ms: int) -> None:
        """The time of some locks is up."""
        self._armed.pop(place, None)
        led = self._led.get(place)
        if led is None or led.state is None:
            return
        led.state.limits = self._limits(place.group_id)
        change = led.state.expire(now_ms)
        if change.stretches:
            self._write(led, change, None, now_ms)
            self._tell(Touched([led]))
        self.acquired(led, now_ms)

    # --- writing

    def _write(
        self, led: LedSharePartition, change: Change | list[StateBatch], done: Written | None, now_ms: int
    ) -> None:
        led.queue.append((change, done))
        if not led.writing:
            self._write_next(led, now_ms)

    def _write_next(self, led: LedSharePartition, now_ms: int) -> None:
        """All that has come up, in one write."""
        state = led.state
        assert state is not None, led
        led.writing, led.queue = led.queue, []
        batches = [
            batch
            for change, _ in led.writing
            for batch in (change if isinstance(change, list) else change.batches)
            if batch.last >= state.start_offset
        ]
        said = WriteStatePartition(
            partition=led.place.partition,
            state_epoch=led.state_epoch,
            leader_epoch=led.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.delivery_complete_count,
            state_batches=[
                SentStateBatch(first_offset=first, last_offset=last, delivery_state=what, delivery_count=count)
                for first, last, what, count in combine((), batches, state.start_offset)
            ],
        )
        self.requests.ask(WRITE, led.place, said, lambda result, now_ms: self._written(led, result, now_ms), now_ms)

    def _written(self, led: LedSharePartition, result: Any, now_ms: int) -> None:
        state, code = led.state, ErrorCode.of(result.error_code)
        assert state is not None, led
        told = _told(code)
        is_written = code is ErrorCode.NONE
        if not is_written:
            log.info("%r: what became of records is not written: %s", led, result.error_message)
        written, led.writing = led.writing, []
        frees = False
        for change, done in written:
            if isinstance(change, Change):
                frees = state.written(change, now_ms, is_written=is_written) or frees
            if done is not None:
                done(told, result.error_message or "")
        if is_written and led.failure is None:  # else it is the next leader that sends them, by that state
            for letter in [letter for change, _ in written if isinstance(change, Change) for letter in change.dead]:
                self._send_dead(led, letter, now_ms)
        elif told in FENCING:
            self._drop(led, KafkaError(told, result.error_message or told.message))
        if frees:
            self._tell(Touched([led]))
        if led.failure is None:
            self.acquired(led, now_ms)  # a lock may be back whose time is not up
        if led.queue:
            self._write_next(led, now_ms)
        else:
            self._leave(led)

    # --- the dead letter queue

    @property
    def awaits_dead_letters(self) -> bool:
        """Whether something appended to a dead letter queue here is not committed yet."""
        return self._dead_letters is not None and bool(self._dead_letters.uncommitted)

    def moved(self, partition: Partition, now_ms: int) -> None:
        """A partition has another high watermark: to be told while dead letters are awaited."""
        assert self._dead_letters is not None, partition
        self._dead_letters.moved(partition, now_ms)

    def _send_dead(self, led: LedSharePartition, letter: DeadLetter, now_ms: int) -> None:
        if self._dead_letters is None:
            from kbroker.broker.dead_letters import DeadLetters  # most groups have no queue

            self._dead_letters = DeadLetters(self._broker, self._requester, self.config)
            self._broker.add(self._dead_letters)
        led.archiving += 1

        def sent(now_ms: int) -> None:
            led.archiving -= 1
            if led.failure is None and led.state is not None:
                batches = led.state.archived(letter)
                if batches:
                    self._write(led, batches, None, now_ms)
                self._tell(Touched([led]))
            self._leave(led)

        self._dead_letters.send(led.place, led.partition, letter, sent, now_ms)

    # --- the end

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Who leads what."""
        return {RoleChanged: self._role_changed}

    def _role_changed(self, fact: RoleChanged, now_ms: int) -> None:
        if fact.is_leader or not self._led:
            return
        partition = fact.partition
        why = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.topic}-{partition.index} is led elsewhere now")
        for led in [each for each in self._led.values() if each.partition is partition]:
            self._drop(led, why)

    def _leave(self, led: LedSharePartition) -> None:
        """Let go of one that no member uses any more, once nothing is under way."""
        if led.is_leaving and led.is_quiet and led.failure is None:
            self._drop(led, KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{led!r} is not used any more"))

    def _drop(self, led: LedSharePartition, why: KafkaError) -> None:
        """Forget one; who waits for it is told why. What is being written comes to its end."""
        led.failure = why
        if self._led.get(led.place) is led:
            del self._led[led.place]
            self._alarms.cancel(led.place)
            self._armed.pop(led.place, None)
        self._tell(Touched([led]))


def _told(code: ErrorCode) -> ErrorCode:
    return code if code is ErrorCode.NONE else _OF_PERSISTER.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)
