"""ShareFetch and ShareAcknowledge: records one by one for the members of a share group, and what became of them.

Served: ShareFetch 1-2, ShareAcknowledge 1-2 (KIP-932, KIP-1206, KIP-1222). A request is part of a share session
(`share_sessions.py`). Its acknowledgements go first; then records are acquired for its member and sent as Fetch sends
them, as regions of files, from the batch that holds the first one to the batch that holds the last one. If there is
too little the request waits for its partitions, and for its share-partitions, where records may be given back. It is
answered when its acknowledgements are written, too. An error of a partition is answered with what others have, or when
the time is up; at once if all have failed.

Where records are is read from the headers of batches: beside the loop, unless they were appended a moment ago. What the
disk has to bring first is waited for, whatever the wait of the request: a part without records has none to give.

Unlike Kafka: acknowledgements of a request that cannot be written in 20 s are COORDINATOR_NOT_AVAILABLE; Kafka tries
five times.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kbroker.api.authorization import Whole
from kbroker.api.call import LATER
from kbroker.api.leaders import current_leader
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.facts import Reply, Touched
from kbroker.broker.share_sessions import FINAL_EPOCH, INITIAL_EPOCH
from kbroker.config.limits import COLD_PATIENCE_MS, ELEMENTS_PER_REQUEST
from kbroker.log.index_warmup import NotReadyError
from kbroker.log.scan import headers
from kbroker.ports import Region
from kbroker.share.share_partition import RENEW, Acknowledgement, LogBatch
from kbroker.share.share_records import Place
from protocol.errors import ErrorCode, KafkaError
from protocol.flat import place
from protocol.messages.share_groups import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from protocol.records.batch import ATTRIBUTES, BASE_OFFSET, CONTROL, PRODUCER_ID, TRANSACTIONAL, last_offset_of, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
    from typing import TypeAlias

    from kbroker.api.call import Call, Result, Signal
    from kbroker.broker.jobs import Job
    from kbroker.broker.share_partitions import LedSharePartition, SharePartitions
    from kbroker.broker.share_sessions import Key, ShareSession
    from kbroker.log.aborted import AbortedTransaction
    from kbroker.log.index_warmup import Cold
    from kbroker.log.isolation import FetchIsolation
    from kbroker.share.share_partition import Acquired, SharePartition
    from protocol.flat import Flat

    Outcome: TypeAlias = tuple[ErrorCode, str]

LONGEST_MEMBER_ID = 36  # characters: a UUID with its hyphens
RENEWS_SINCE = 2
RECORD_LIMIT = 1  # ShareAcquireMode
LOOKS = 16  # at a partition in one answer, where no record that was read is delivered
HOT_BYTES = 4 << 20  # at the end of a log: appended lately, and still in the page cache
HEADERS_AT_ONCE = 10_000  # read for one answer
ASKED_THE_WRONG = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
NO_LEADER = (0, 0)
GROUP_ID = place(ShareFetchRequest, "group_id")  # in ShareAcknowledge, too
OK: Outcome = (ErrorCode.NONE, "")


# -- acknowledgements


class Acknowledging:
    """The acknowledgements of one request. outcomes: by topic id and partition; waiting: how many are being written.

    It is a key of the purgatory, touched when all are there.
    """

    def __init__(self, call: Call) -> None:
        self._tell = call.broker.tell
        self.outcomes: dict[Key, Outcome] = {}
        self.waiting = 0

    def refuse(self, key: Key, code: ErrorCode, text: str = "") -> None:
        """One that goes no further."""
        self.outcomes[key] = code, text or code.message

    def add_write(self, key: Key) -> Callable[[ErrorCode, str], None]:
        """One that is being written; what is to be told of it."""
        self.waiting += 1
        self.outcomes[key] = OK

        def done(code: ErrorCode, text: str) -> None:
            self.outcomes[key] = code, text
            self.waiting -= 1
            if not self.waiting:
                self._tell(Touched([self]))

        return done


def _acknowledge(
    topics: Iterable[Flat], call: Call, group_id: str, member_id: str, *, may_renew: bool, renews: bool
) -> Acknowledging:
    """Begin with what a request acknowledges. may_renew: whether its version knows that; renews: whether it says so."""
    acknowledging, share = Acknowledging(call), call.broker.share_partitions
    cache, now_ms = call.broker.plane.cache, call.now_ms
    unreadable = _unreadable(call, [cache.topic_name(topic_id) for topic_id, partitions in topics for _ in partitions])
    for topic_id, partitions in topics:
        name = cache.topic_name(topic_id)
        for index, batches in partitions:
            key = topic_id, index
            if name is None:
                acknowledging.refuse(key, ErrorCode.UNKNOWN_TOPIC_ID)
            elif not _are_well_formed(batches, RENEW if may_renew else RENEW - 1, renews=renews):
                acknowledging.refuse(key, ErrorCode.INVALID_REQUEST)
            elif name in unreadable:
                acknowledging.refuse(key, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif cache.partition(name, index) is None:
                acknowledging.refuse(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            elif not batches:
                acknowledging.outcomes[key] = OK
            else:
                said = [Acknowledgement(*each) for each in batches]
                place, done = Place(group_id, topic_id, index), acknowledging.add_write(key)
                share.acknowledge(place, member_id, said, now_ms, done)
                led = share.find(place)
                if renews and led is not None and led.state is not None:
                    share.acquired(led, now_ms)
    return acknowledging


def _are_well_formed(batches: Iterable[Flat], last_type: int, *, renews: bool) -> bool:
    """Whether batches rise, and each says one thing of all its offsets, or one of each."""
    end = -1
    for first, last, types in batches:
        if first > last or first < end or not types:
            return False
        if len(types) > 1 and last - first != len(types) - 1:
            return False
        if min(types) < 0 or max(types) > last_type or (RENEW in types and not renews):
            return False
        end = last
    return True


def _unreadable(call: Call, topics: Iterable[str | None]) -> set[str]:
    """Of these topics, named once for each partition, those that the session may not read."""
    helper = call.broker.auth_helper
    if not helper.has_rules:
        return set()
    right = Operation.READ, ResourceType.TOPIC
    return {
        name
        for name, times in Counter(topics).items()
        if name is not None and not helper.allows(call.session, *right, name, times=times)
    }


def _check_member(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Raises: KafkaError INVALID_REQUEST."""
    if group_id is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > LONGEST_MEMBER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return group_id, member_id


# -- ShareAcknowledge


def share_acknowledge(request: Flat, call: Call) -> Result:
    """Say what became of records; answered when that is written. request: the fields of ShareAcknowledgeRequest."""
    group, member, epoch, renews, topics = request
    try:
        group_id, member_id = _check_member(group, member)
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session = call.broker.share_partitions.sessions.session_for_request(group_id, member_id, epoch)
    except KafkaError as error:
        return _refuse_acknowledge(request, error.code, error.message, call.version)
    may_renew = call.version >= RENEWS_SINCE
    acknowledging = _acknowledge(topics, call, group_id, member_id, may_renew=may_renew, renews=renews)
    delayed = DelayedShareAcknowledge(acknowledging, call, session if epoch == FINAL_EPOCH else None, group_id)
    return delayed.answer(call.now_ms) or delayed


class DelayedShareAcknowledge:
    """A ShareAcknowledge that is being written. ending: the session that ends with it."""

    def __init__(self, acknowledging: Acknowledging, call: Call, ending: ShareSession | None, group_id: str) -> None:
        self._acknowledging, self._call, self._ending, self._group_id = acknowledging, call, ending, group_id
        self.keys: Sequence[Hashable] = [acknowledging]
        self.deadline_ms = call.now_ms + 3 * COLD_PATIENCE_MS  # longer than it is tried

    def answer(self, now_ms: int) -> Flat | None:
        """The response once all is written."""
        return None if self._acknowledging.waiting else self.expired(now_ms)

    def expired(self, now_ms: int) -> Flat:
        """What there is to say."""
        call, nodes = self._call, list[Any]()
        share = call.broker.share_partitions
        if self._ending is not None:
            share.end(self._ending, now_ms)
        topics: dict[bytes, list[Flat]] = {}
        for (topic_id, index), (code, text) in self._acknowledging.outcomes.items():
            leader = NO_LEADER
            if code in ASKED_THE_WRONG:
                leader = current_leader(call, call.broker.plane.cache.topic_name(topic_id), index, nodes)
            topics.setdefault(topic_id, []).append((index, code, text if code else None, leader))
        return 0, 0, None, share.config(self._group_id).record_lock_duration_ms, list(topics.items()), nodes


def _refuse_acknowledge(request: Flat, code: ErrorCode, text: str, version: int) -> Flat:
    return 0, code, text or code.message, 0, [], []


# -- ShareFetch


def share_fetch(request: Flat, call: Call) -> Result:
    """Acquire records, or wait for some. request: the fields of ShareFetchRequest."""
    group, member, epoch, max_wait_ms, min_bytes, max_bytes, max_records, batch_size, mode, renews, topics, forgot = (
        request
    )
    share = call.broker.share_partitions
    acknowledges = any(batches for _, partitions in topics for _, batches in partitions)
    try:
        group_id, member_id = _check_member(group, member)
        if renews:
            _check_renewal(max_bytes, min_bytes, max_records, max_wait_ms)
        session = _session(topics, epoch, call, group_id, member_id, acknowledges=acknowledges)
    except KafkaError as error:
        if error.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED and max_wait_ms > 0:
            return ShareSessionLimit(call.now_ms + max_wait_ms)
        return _refuse_fetch(request, error.code, error.message, call.version)
    may_renew = call.version >= RENEWS_SINCE
    acknowledging = Acknowledging(call)
    if acknowledges:
        acknowledging = _acknowledge(topics, call, group_id, member_id, may_renew=may_renew, renews=renews)
    if epoch != FINAL_EPOCH:
        share.sessions.change(
            session, _keys(topics), ((topic_id, index) for topic_id, indexes in forgot for index in indexes)
        )
    fetching = ShareFetching(
        call,
        session,
        acknowledging,
        min_bytes=min_bytes,
        max_bytes=min(max_bytes, call.broker.config.fetch_max_bytes),
        max_records=max_records,
        batch_size=batch_size,
        exactly=mode == RECORD_LIMIT,
        fetches=epoch != FINAL_EPOCH and not renews,
        is_full=epoch == INITIAL_EPOCH,
        ends=epoch == FINAL_EPOCH,
    )
    if max_wait_ms <= 0 or not fetching.may_find_more:
        now = fetching.response(call.now_ms)
        return now or ColdShareFetch(fetching, call.now_ms)
    delayed = DelayedShareFetch(fetching, call.now_ms + 1 + max_wait_ms)
    return delayed.answer(call.now_ms) or delayed


def _keys(topics: Iterable[Flat]) -> list[Key]:
    return [(topic_id, index) for topic_id, partitions in topics for index, _ in partitions]


def _check_renewal(max_bytes: int, min_bytes: int, max_records: int, max_wait_ms: int) -> None:
    """Raises: KafkaError INVALID_REQUEST: renewals fetch nothing."""
    asked = {"maxBytes": max_bytes, "minBytes": min_bytes, "maxRecords": max_records, "maxWaitMs": max_wait_ms}
    wrong = "".join(f"{name} must be set to 0, " for name, value in asked.items() if value)
    if wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{wrong}if isRenewAck is true.")


def _session(
    topics: Iterable[Flat], epoch: int, call: Call, group_id: str, member_id: str, *, acknowledges: bool
) -> ShareSession:
    """The session of a fetch. Raises: KafkaError."""
    share = call.broker.share_partitions
    if epoch != INITIAL_EPOCH:
        return share.sessions.session_for_request(group_id, member_id, epoch)
    if acknowledges:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    most = call.broker.config.group_share_max_share_sessions
    return share.sessions.open(group_id, member_id, _keys(topics), call.session, most)


class ShareSessionLimit:
    """A fetch that gets no session: its client is to come back, and not at once."""

    keys: Sequence[Hashable] = ()

    def __init__(self, deadline_ms: int) -> None:
        self.deadline_ms = deadline_ms

    def answer(self, now_ms: int) -> Flat | None:
        """Never before its time."""
        return None

    def expired(self, now_ms: int) -> Flat:
        """That it gets none."""
        code = ErrorCode.SHARE_SESSION_LIMIT_REACHED
        return 0, code, code.message, 0, [], []


class _Wanted:
    """One partition of a fetch. led: None where there is an error instead."""

    __slots__ = ("error", "index", "led", "topic", "topic_id")

    def __init__(self, topic_id: bytes, topic: str | None, index: int) -> None:
        self.topic_id, self.topic, self.index = topic_id, topic, index
        self.led: LedSharePartition | None = None
        self.error: KafkaError | None = None


class ShareFetching:
    """One ShareFetch: what it wants, how much, and what it has to say of acknowledgements."""

    def __init__(
        self,
        call: Call,
        session: ShareSession,
        acknowledging: Acknowledging,
        *,
        min_bytes: int,
        max_bytes: int,
        max_records: int,
        batch_size: int,
        exactly: bool,
        fetches: bool,
        is_full: bool,
        ends: bool,
    ) -> None:
        self.call, self.acknowledging = call, acknowledging
        self._share: SharePartitions = call.broker.share_partitions
        self._session, self._ends, self._is_full = session, ends, is_full
        self._min_bytes, self._max_bytes = min(min_bytes, max_bytes), max_bytes
        self._max_records, self._batch_size, self._exactly = max_records, batch_size, exactly
        self._isolation: FetchIsolation = self._share.isolation(session.group_id)
        keys, name_of = list(session.rotated()) if fetches else [], call.broker.plane.cache.topic_name
        unreadable = _unreadable(call, [name_of(topic_id) for topic_id, _ in keys])
        self._wanted = [self._find(key, unreadable) for key in keys]
        self._scans: dict[LedSharePartition, _Scan] = {}
        self._cold: dict[LedSharePartition, Cold] = {}  # segments that were not ready when they were last asked
        self._gives_up = False
        self._left = self._records_left = self._regions_left = 0

    @property
    def may_find_more(self) -> bool:
        """Whether there is something to wait for."""
        has_some = any(each.led is not None for each in self._wanted)
        return bool(self.acknowledging.waiting) or (has_some and self._max_records > 0 and self._max_bytes > 0)

    def _find(self, key: Key, unreadable: Collection[str]) -> _Wanted:
        topic_id, index = key
        call = self.call
        wanted = _Wanted(topic_id, call.broker.plane.cache.topic_name(topic_id), index)
        try:
            if wanted.topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            if wanted.topic in unreadable:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if call.broker.plane.cache.partition(wanted.topic, index) is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            place = Place(self._session.group_id, topic_id, index)
            wanted.led = self._share.lead(place, wanted.topic, call.now_ms)
        except KafkaError as error:
            wanted.error = error
        return wanted

    def keys(self) -> list[Hashable]:
        """What it waits for."""
        found = [each.led for each in self._wanted if each.led is not None]
        return [self.acknowledging, self, *found, *(led.partition for led in found)]

    def is_open(self) -> bool:
        """Whether something is under way that the answer has to wait for."""
        return self.acknowledging.waiting > 0 or self._waits_for_disk()

    def _waits_for_disk(self) -> bool:
        """Whether the disk is to bring records first: an empty part says that there are none."""
        return any(not scan.is_done for scan in self._scans.values()) or not (
            self.call.broker.cold_reads.isdisjoint(self._cold.values())
        )

    def give_up(self) -> None:
        """From now on what the disk has still not brought is KAFKA_STORAGE_ERROR."""
        self._gives_up = True

    # --- is there enough?

    def may_answer(self) -> bool:
        """Whether there is something to be acquired, as much as is wanted, or nothing to wait for."""
        if not self._wanted or not self._max_records or not self._max_bytes:
            return True
        available, failed = 0, 0
        for wanted in self._wanted:
            led = wanted.led
            if led is None or led.failure is not None:
                failed += 1
                continue
            if led.state is None:
                continue
            try:
                available += self._available(led)
            except NotReadyError as error:
                self.call.broker.cold_reads.warm(led.partition, error)
            except KafkaError:
                failed += 1
            if available and available >= self._min_bytes:
                return True
        return failed == len(self._wanted)

    def _available(self, led: LedSharePartition) -> int:
        """How many bytes there are to be acquired from: 1 for any, if it does not matter. Raises: KafkaError."""
        state = self._share.refresh(led)
        if not state.may_acquire:
            return 0
        offset, bound = state.next_fetch_offset, led.partition.readable_end(self._isolation)
        if offset >= bound:
            return 0
        if self._min_bytes <= 1:
            return 1
        partition_log = led.partition.led()
        return max(1, partition_log.available_bytes(offset, bound))

    # --- the answer

    def response(self, now_ms: int) -> Flat | None:
        """Acquire now: the fields of ShareFetchResponse; None while something is under way."""
        if self.acknowledging.waiting:
            return None
        self._left, self._records_left = self._max_bytes, self._max_records
        self._regions_left = self.call.broker.fetch_regions
        if not self._are_scanned(now_ms):
            return None
        topics: dict[bytes, list[Flat]] = {}
        outcomes = dict(self.acknowledging.outcomes)
        nodes: list[Flat] = []
        for wanted in self._wanted:
            code, text, region, acquired = self._acquire(wanted, now_ms)
            said = outcomes.pop((wanted.topic_id, wanted.index), None)
            if not (code or acquired or said or self._is_full):
                continue
            leader = NO_LEADER
            if code in ASKED_THE_WRONG:
                leader = current_leader(self.call, wanted.topic, wanted.index, nodes)
            records = b"" if region is None else [region]
            part = (wanted.index, code, text, *_said(said), leader, records, acquired)
            topics.setdefault(wanted.topic_id, []).append(part)
        for (topic_id, index), said in outcomes.items():
            topics.setdefault(topic_id, []).append((index, 0, None, *_said(said), NO_LEADER, b"", []))
        if self._ends:
            self._share.end(self._session, now_ms)
        lock_ms = self._share.config(self._session.group_id).record_lock_duration_ms
        return 0, 0, None, lock_ms, list(topics.items()), nodes

    def _acquire(self, wanted: _Wanted, now_ms: int) -> tuple[int, str | None, Region | None, Sequence[Acquired]]:
        """Lock records of one partition: error code and text, where they are, which they are."""
        led = wanted.led
        error = wanted.error if led is None else led.failure
        if error is not None or led is None or led.state is None:
            return (0, None, None, ()) if error is None else (error.code, error.message, None, ())
        if self._records_left <= 0 or self._left <= 0 or not self._regions_left:
            return 0, None, None, ()
        if self._gives_up and (led in self._cold or (led in self._scans and not self._scans[led].is_done)):
            return ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR.message, None, ()
        try:
            region, acquired = self._acquire_from(led, now_ms)
        except KafkaError as reason:
            return reason.code, reason.message, None, ()
        except OSError as reason:
            failure = self.call.broker.replicas.storage_error(led.partition, reason)
            return failure.code, failure.message, None, ()
        if region is not None:
            self._left -= region.size
            self._regions_left -= 1
            self._records_left -= sum(each.last - each.first + 1 for each in acquired)
            self._share.acquired(led, now_ms)
        return 0, None, region, acquired

    def _acquire_from(self, led: LedSharePartition, now_ms: int) -> tuple[Region | None, Sequence[Acquired]]:
        """Raises: KafkaError, OSError."""
        state = self._share.refresh(led)
        for _ in range(LOOKS):
            offset = state.next_fetch_offset
            scan = self._scan(led, state)
            if scan is None or not scan.is_done or not scan.batches:
                break
            acquired = state.acquire(
                self._session.member_id,
                scan.batches,
                offset,
                most=self._records_left,
                batch_size=self._batch_size,
                exactly=self._exactly,
                now_ms=now_ms,
                aborted=scan.aborted,
            )
            self._scans.pop(led, None)
            if acquired:
                return scan.part(acquired[0].first, acquired[-1].last), acquired
            if state.next_fetch_offset == offset:
                break
        return None, ()

    # --- where records are

    def _are_scanned(self, now_ms: int) -> bool:
        """Have read what has to be read beside the loop; whether it has been."""
        for wanted in self._wanted:
            led = wanted.led
            if led is None or led.failure is not None or led.state is None:
                continue
            try:
                self._scan(led, self._share.refresh(led))
            except (KafkaError, OSError):  # which is said when it is acquired from
                continue
        return self._gives_up or not self._waits_for_disk()

    def _scan(self, led: LedSharePartition, state: SharePartition) -> _Scan | None:
        """The batches to acquire from, which may not have been read yet; None: there are none. Raises: KafkaError."""
        offset = state.next_fetch_offset
        known = self._scans.get(led)
        if known is not None and known.offset == offset:
            return known
        if not state.may_acquire or offset >= led.partition.readable_end(self._isolation):
            self._scans.pop(led, None)
            return None
        self._cold.pop(led, None)
        most = max(1, self._max_bytes // max(1, sum(each.led is not None for each in self._wanted)))
        try:
            region, aborted = led.partition.read(offset, most, self._isolation, True, False)
        except NotReadyError as error:
            self.call.broker.cold_reads.warm(led.partition, error)
            self._cold[led] = error.segment
            return None
        if region is None:
            return None
        wanted_end = max(state.end_offset, offset + self._max_records)
        scan = self._scans[led] = _Scan(region, offset, wanted_end, aborted or ())
        if region.position + region.size + HOT_BYTES >= region.file.size():
            scan.run()
            scan.is_done = True
        else:
            self.call.broker.give(scan, self)
        return scan

    def finished(self, job: Job, error: OSError | None, now_ms: int) -> None:
        """The headers of some batches have been read."""
        assert isinstance(job, _Scan), job
        job.is_done = True
        self.call.broker.tell(Touched([self]))


class _Scan:
    """A job: the headers of the batches in a region, up to an offset. is_done: whether they are here.

    batches, aborted: what the region has, and what of it is never delivered.
    """

    __slots__ = ("_aborted", "_end", "_places", "aborted", "batches", "is_done", "offset", "region")

    def __init__(self, region: Region, offset: int, end: int, aborted: Iterable[AbortedTransaction]) -> None:
        self.region, self.offset = region, offset
        self._end = end
        self._aborted = list(aborted)
        self._places: list[tuple[int, int]] = []  # position and size, of each batch
        self.batches: list[LogBatch] = []
        self.aborted: list[LogBatch] = []
        self.is_done = False

    def run(self) -> None:
        """Raises: OSError."""
        region = self.region
        for position, header in headers(region.file, region.position, region.position + region.size):
            batch = LogBatch(header[BASE_OFFSET], last_offset_of(header))
            self.batches.append(batch)
            self._places.append((position, size_of(header)))
            if self._aborted and header[ATTRIBUTES] & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
                producer_id = header[PRODUCER_ID]
                if any(
                    each.producer_id == producer_id and each.first_offset <= batch.base <= each.last_offset
                    for each in self._aborted
                ):
                    self.aborted.append(batch)
            if batch.last + 1 >= self._end or len(self.batches) >= HEADERS_AT_ONCE:
                return

    def part(self, first: int, last: int) -> Region:
        """Where the batches are that hold these offsets."""
        start = next(at for at, batch in enumerate(self.batches) if batch.last >= first)
        end = max(at for at, batch in enumerate(self.batches) if batch.base <= last)
        position, (last_position, size) = self._places[start][0], self._places[end]
        return Region(self.region.file, position, last_position + size - position)


def _said(outcome: Outcome | None) -> tuple[int, str | None]:
    """What is said of an acknowledgement in the answer to a fetch."""
    code, text = outcome or OK
    return (code, text) if code else (0, None)


class DelayedShareFetch:
    """A ShareFetch for which there is too little yet."""

    def __init__(self, fetching: ShareFetching, deadline_ms: int) -> None:
        self._fetching = fetching
        self.deadline_ms = deadline_ms
        self.keys: Sequence[Hashable] = fetching.keys()

    def answer(self, now_ms: int) -> Flat | None:
        """The response once there is enough, or nothing to wait for."""
        fetching = self._fetching
        if fetching.is_open() or not fetching.may_answer():
            return None
        return fetching.response(now_ms)

    def expired(self, now_ms: int) -> Flat | Signal:
        """The response at the deadline; LATER if something is under way."""
        response = self._fetching.response(now_ms)
        if response is None:
            call = self._fetching.call
            call.broker.tell(Reply(call.ticket, ColdShareFetch(self._fetching, now_ms)))
            return LATER
        return response


class ColdShareFetch(DelayedShareFetch):
    """A ShareFetch that waits for nothing but what is under way."""

    def __init__(self, fetching: ShareFetching, now_ms: int) -> None:
        super().__init__(fetching, now_ms + 3 * COLD_PATIENCE_MS)

    def answer(self, now_ms: int) -> Flat | None:
        """The response once it is over."""
        return None if self._fetching.is_open() else self._fetching.response(now_ms)

    def expired(self, now_ms: int) -> Flat | Signal:
        """The response without what the disk has not brought, which says so."""
        self._fetching.give_up()
        return super().expired(now_ms)


def _refuse_fetch(request: Flat, code: ErrorCode, text: str, version: int) -> Flat:
    return 0, code, text or code.message, 0, [], []


NEEDS = (Whole((Operation.READ,), ResourceType.GROUP, lambda request: request[GROUP_ID]),)
ROUTES = (
    Route(
        78,
        ShareFetchRequest,
        1,
        2,
        share_fetch,
        _refuse_fetch,
        NEEDS,
        flat=ShareFetchResponse,
        elements=ELEMENTS_PER_REQUEST,
    ),
    Route(
        79,
        ShareAcknowledgeRequest,
        1,
        2,
        share_acknowledge,
        _refuse_acknowledge,
        NEEDS,
        flat=ShareAcknowledgeResponse,
        elements=ELEMENTS_PER_REQUEST,
    ),
)
