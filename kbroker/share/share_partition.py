"""A share-partition: what its leader knows of the records that one share group reads from one partition (KIP-932).

A pure state machine; `broker/share_partitions.py` reads the log, keeps the time, and has written what this says:

    next_fetch_offset -> the log is read from there -> `acquire`: locked for a member, until a time
    `acknowledge`, `release` -> a `Change` to be written -> `written`: it counts, or all is as it was
    `expire`: the locks whose time is up -> a `Change` that counts already
    `Change.dead` -> the dead letter queue (KIP-1191) -> `archived`

                     acquire                  accept
       AVAILABLE -----------------> ACQUIRED --------> ACKNOWLEDGED
           ^   release, time is up  |    |    reject, gap, or given back and delivered too often
           +------------------------+    +---------------------------------------> ARCHIVED
                                         |    the same, with a dead letter queue      ^
                                         +----------> ARCHIVING ----------------------+

Everything below `start_offset` is over, everything from `end_offset` on has never been delivered. What lies between is
in flight, at most so much of it as the group has record locks; offsets between them of which nothing is known (the
state was read again) count as never delivered. A delivery is not written: it counts for as long as this leader leads.

Records that have failed often are given out in small numbers, and alone at their last delivery, so that one bad record
does not take its neighbours along. Source: SharePartition of Apache Kafka 4.4, by behaviour. Unlike it: a renewal
counts only if its whole request does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.share.in_flight import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    TERMINAL,
    InFlight,
    RecordState,
    Stretch,
)
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

NEVER = 2**63 - 1
GAP, ACCEPT, RELEASE, REJECT, RENEW = 0, 1, 2, 3, 4
"""The types of an acknowledgement. A gap: there is no record of this offset (it was compacted, or is a marker)."""

CLIENT_REJECT = "Offset rejected by client."
DELIVERY_COUNT_EXCEEDED = "Offset delivery count exceeded the threshold."
"""Why a record is in the dead letter queue, in the words that Kafka's tools look for."""

LEAST_THROTTLED = 2  # deliveries from which on records are given out in small numbers, at the least


class Limits(NamedTuple):
    """What a group's settings say. record_locks: records in flight; deliveries: of a record."""

    record_locks: int
    deliveries: int
    lock_duration_ms: int
    has_dead_letter_queue: bool = False
    may_renew: bool = True

    @property
    def throttled_from(self) -> int:
        """Of how many deliveries on records are given out in small numbers."""
        return max(LEAST_THROTTLED, -(-self.deliveries // 2))


class StateBatch(NamedTuple):
    """Records in a row, as they are stored."""

    first: int
    last: int
    state: int
    deliveries: int


class LogBatch(NamedTuple):
    """A batch of the log; its offsets, both included. Not all of them need have a record."""

    base: int
    last: int


class Acquired(NamedTuple):
    """Records in a row that are a member's now."""

    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """What a member says of records in a row. types: one for each offset, or one for all."""

    first: int
    last: int
    types: Sequence[int]


class DeadLetter(NamedTuple):
    """Records in a row for the dead letter queue."""

    first: int
    last: int
    deliveries: int
    why: str


class Change:
    """What is to be written of a share-partition. batches: the records; dead: those that go into the queue then.

    stretches: which wait for it; none if it counts already.
    """

    __slots__ = ("dead", "stretches")

    def __init__(self) -> None:
        self.stretches: list[tuple[Stretch, StateBatch]] = []
        self.dead: list[DeadLetter] = []

    def add(self, stretch: Stretch, state: RecordState, why: str) -> None:
        """One more. why: the reason if it goes into the dead letter queue."""
        batch = StateBatch(stretch.first, stretch.last, state, stretch.count)
        self.stretches.append((stretch, batch))
        if state is ARCHIVING:
            self.dead.append(DeadLetter(batch.first, batch.last, batch.deliveries, why))

    @property
    def batches(self) -> list[StateBatch]:
        """As they are stored: neighbours of one fate together."""
        joined: list[StateBatch] = []
        for _, batch in self.stretches:
            before = joined[-1] if joined else None
            if before and before.last + 1 == batch.first and (before.state, before.deliveries) == batch[2:]:
                joined[-1] = before._replace(last=batch.last)
            else:
                joined.append(batch)
        return joined


class SharePartition:
    """One share-partition, from its loading on. limits: as they are now; its owner sets them."""

    __slots__ = ("_free_from", "_in_flight", "end_offset", "limits", "start_offset")

    def __init__(self, start_offset: int, batches: Iterable[StateBatch], limits: Limits) -> None:
        """batches: as they were stored. Raises: ValueError if they cannot have been."""
        self.limits = limits
        self.start_offset = self.end_offset = start_offset
        self._free_from = start_offset  # nothing below can be acquired
        self._in_flight = InFlight()
        for first, last, state, count in batches:
            if first < self.end_offset or last < first:
                raise ValueError(f"offsets {first} to {last} are stored behind {self.end_offset}")
            found = RecordState(state)
            self._in_flight.add(Stretch(first, last, AVAILABLE if found is ACQUIRED else found, count))
            self.end_offset = last + 1
        self._move_start()

    # --- what there is

    @property
    def stretches(self) -> Sequence[Stretch]:
        """What is in flight, in order; to be read."""
        return self._in_flight.stretches

    @property
    def next_fetch_offset(self) -> int:
        """The first offset that can be acquired, whether or not the log has it yet."""
        stretches, offset = self._in_flight.stretches, max(self._free_from, self.start_offset)
        for at in range(self._in_flight.at_or_behind(offset), len(stretches)):
            stretch = stretches[at]
            if stretch.first > offset or stretch.is_free:
                break
            offset = stretch.last + 1
        self._free_from = offset
        return offset

    @property
    def may_acquire(self) -> bool:
        """Whether there may be a lock for one more record."""
        return self.next_fetch_offset < self.end_offset or self._room > 0

    @property
    def _room(self) -> int:
        return self.limits.record_locks - (self.end_offset - self.start_offset)

    @property
    def delivery_complete_count(self) -> int:
        """How many records from the start offset on are over, or will be when what is being written is (KIP-1226)."""
        start = self.start_offset
        return sum(
            each.last - max(each.first, start) + 1
            for each in self._in_flight
            if (each.state if each.pending is None else each.pending) in TERMINAL and each.last >= start
        )

    @property
    def archiving(self) -> list[DeadLetter]:
        """What was on its way into the dead letter queue when the state was stored."""
        most = self.limits.deliveries
        return [
            DeadLetter(
                each.first, each.last, each.count, DELIVERY_COUNT_EXCEEDED if each.count >= most else CLIENT_REJECT
            )
            for each in self._in_flight
            if each.state is ARCHIVING
        ]

    @property
    def next_deadline_ms(self) -> int:
        """When the first lock's time is up; NEVER without locks. What is being written is waited for."""
        locks = (each.deadline_ms for each in self._in_flight if each.state is ACQUIRED and each.pending is None)
        return min(locks, default=NEVER)

    # --- acquiring

    def acquire(
        self,
        member_id: str,
        batches: Sequence[LogBatch],
        fetch_offset: int,
        *,
        most: int,
        batch_size: int,
        exactly: bool,
        now_ms: int,
        aborted: Sequence[LogBatch] = (),
    ) -> list[Acquired]:
        """Lock records of these batches of the log, which were read from `fetch_offset` on, for a member.

        most: records; whole batches may be more, unless `exactly`. batch_size: of what is acquired for the first time,
        records together. aborted: batches of transactions that came to nothing, which no member is to see.
        """
        if not batches or batches[-1].last < self.start_offset:
            return []
        last, room = batches[-1].last, self._room
        most = min(most, room) if room > 0 else min(most, self.end_offset - fetch_offset)
        if most <= 0:
            return []
        if room <= 0:
            last = min(last, self.end_offset - 1)
        self._skip(fetch_offset, batches[0].base)
        acquiring = _Acquiring(self, member_id, batches, most, batch_size, now_ms, exactly=exactly)
        found = acquiring.walk(max(fetch_offset, batches[0].base, self.start_offset), last)
        for batch in aborted:
            self._archive_acquired(found, batch)
        if aborted:
            found = [each for each in found if each.state is ACQUIRED]
            self._move_start()
        return _answer(found)

    def _skip(self, fetch_offset: int, base: int) -> None:
        """The log has nothing from `fetch_offset` on before `base`."""
        if fetch_offset >= base:
            return
        if not len(self._in_flight):
            self.start_offset = self.end_offset = self._free_from = max(base, self.start_offset)
            return
        offset = max(fetch_offset, self.start_offset)
        while offset < base:
            at = self._in_flight.at_or_behind(offset)
            stretch = self.stretches[at] if at < len(self._in_flight) else None
            if stretch is None or stretch.first > offset:
                end = base - 1 if stretch is None else min(stretch.first - 1, base - 1)
                self._in_flight.add(Stretch(offset, end, ARCHIVED, 0))
                self.end_offset = max(self.end_offset, end + 1)
            else:
                end = min(stretch.last, base - 1)
                if stretch.is_free:
                    self.stretches[self._in_flight.cut(at, offset, end)].become(ARCHIVED)
            offset = end + 1
        self._move_start()

    def _acquire_again(self, at: int, first: int, last: int, member_id: str, now_ms: int) -> Stretch:
        """Lock a part of a stretch that was delivered before."""
        stretch = self.stretches[self._in_flight.cut(at, first, last)]
        stretch.acquire(member_id, now_ms + self.limits.lock_duration_ms)
        return stretch

    def _acquire_new(self, first: int, last: int, member_id: str, now_ms: int) -> Stretch:
        """Lock what was never delivered."""
        stretch = Stretch(first, last, AVAILABLE, 0)
        stretch.acquire(member_id, now_ms + self.limits.lock_duration_ms)
        self._in_flight.add(stretch)
        self.end_offset = max(self.end_offset, last + 1)
        return stretch

    def _archive_acquired(self, found: list[Stretch], batch: LogBatch) -> None:
        """Of what was acquired just now, a batch is never delivered."""
        for stretch in list(found):
            first, last = max(stretch.first, batch.base), min(stretch.last, batch.last)
            if first > last or stretch.state is not ACQUIRED:
                continue
            at = self.stretches.index(stretch)
            before = len(self._in_flight)
            at = self._in_flight.cut(at, first, last)
            self.stretches[at].become(ARCHIVED)
            if len(self._in_flight) > before:  # what it was cut from is acquired still
                beside = self.stretches[max(at - 1, 0) : at + 2]
                known = set(map(id, found))
                found += [each for each in beside if id(each) not in known and each.state is ACQUIRED]
        found.sort(key=lambda each: each.first)

    # --- what comes of them

    def acknowledge(self, member_id: str, batches: Iterable[Acknowledgement], now_ms: int) -> Change:
        """What a member says; all of it counts, or none. Its effect comes with `written`, but renewals, which are now.

        Raises: KafkaError INVALID_REQUEST, INVALID_RECORD_STATE.
        """
        change, renewed = Change(), list[Stretch]()
        try:
            for batch in batches:
                self._acknowledge(member_id, batch, change, renewed)
        except KafkaError:
            for stretch, _ in change.stretches:
                stretch.pending = None
            raise
        for stretch in renewed:
            stretch.deadline_ms = now_ms + self.limits.lock_duration_ms
        return change

    def _acknowledge(self, member_id: str, batch: Acknowledgement, change: Change, renewed: list[Stretch]) -> None:
        if any(not GAP <= each <= RENEW for each in batch.types):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid acknowledge type: {list(batch.types)}")
        if batch.last < self.start_offset:
            return  # it was over before
        first = max(batch.first, self.start_offset)
        at = self._in_flight.at_or_behind(first)
        if at == len(self._in_flight) and not at:
            raise _lost("The request batch offsets are not found in the cache.")
        if at == len(self._in_flight):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The first offset in request is past acquired records.",
            )
        if not at and self.stretches[0].first > first:
            raise _lost("The request batch offsets are not found in the cache.")
        if batch.last >= self._in_flight.end_offset:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Batch record not found. The last offset in request is past acquired records.",
            )
        for start, end, kind in _runs(batch, first):
            self._acknowledge_run(member_id, start, end, kind, change, renewed)

    def _acknowledge_run(
        self, member_id: str, first: int, last: int, kind: int, change: Change, renewed: list[Stretch]
    ) -> None:
        at = self._in_flight.at_or_behind(first)
        while at < len(self._in_flight) and self.stretches[at].first <= last:
            stretch = self.stretches[at]
            _check_owner(stretch, member_id)
            if kind == RENEW and not self.limits.may_renew:
                raise KafkaError(
                    ErrorCode.INVALID_RECORD_STATE, "Renewing acquisition locks is not enabled for the group."
                )
            at = self._in_flight.cut(at, max(stretch.first, first), min(stretch.last, last))
            stretch = self.stretches[at]
            if kind == RENEW:
                renewed.append(stretch)
            elif kind == RELEASE:
                self._give_back(stretch, change)
            else:
                state = ACKNOWLEDGED if kind == ACCEPT else ARCHIVED
                if kind == REJECT and self.limits.has_dead_letter_queue:
                    state = ARCHIVING
                stretch.pending = state
                change.add(stretch, state, CLIENT_REJECT)
            at += 1

    def _given_back(self, stretch: Stretch) -> RecordState:
        """What becomes of records whose delivery came to nothing."""
        if stretch.count < self.limits.deliveries:
            return AVAILABLE
        return ARCHIVING if self.limits.has_dead_letter_queue else ARCHIVED

    def _give_back(self, stretch: Stretch, change: Change) -> None:
        stretch.pending = state = self._given_back(stretch)
        change.add(stretch, state, DELIVERY_COUNT_EXCEEDED)

    def release(self, member_id: str) -> Change:
        """A member is gone: what it has acquired is given back, once that is written."""
        change = Change()
        for stretch in self.stretches:
            if stretch.state is ACQUIRED and stretch.member_id == member_id and stretch.pending is None:
                self._give_back(stretch, change)
        return change

    def written(self, change: Change, now_ms: int, *, is_written: bool) -> bool:
        """A change has been written, or cannot be: then all is as before, but for locks whose time is up meanwhile.

        Returns: whether records can be acquired that could not be before.
        """
        frees = False
        for stretch, batch in change.stretches:
            if stretch.pending is None:
                continue
            if is_written:
                stretch.become(RecordState(batch.state))
            else:
                stretch.pending = None
                if stretch.deadline_ms <= now_ms:
                    over = stretch.count >= self.limits.deliveries
                    stretch.become(ARCHIVED if over else AVAILABLE)
            if stretch.state is AVAILABLE:
                self._free_from = min(self._free_from, stretch.first)
                frees = True
        return self._move_start() or frees

    def expire(self, now_ms: int) -> Change:
        """Take the locks whose time is up away, at once; what is to be written of it."""
        change = Change()
        for stretch in self.stretches:
            if stretch.state is ACQUIRED and stretch.pending is None and stretch.deadline_ms <= now_ms:
                state = self._given_back(stretch)
                now = Stretch(stretch.first, stretch.last, stretch.state, stretch.count)
                change.add(now, state, DELIVERY_COUNT_EXCEEDED)  # which may have another change under way by then
                stretch.become(state)
                if state is AVAILABLE:
                    self._free_from = min(self._free_from, stretch.first)
        self._move_start()
        return change

    def archived(self, letter: DeadLetter) -> list[StateBatch]:
        """Records are in the dead letter queue, or will not be: they are over; what is to be written of it."""
        done = []
        for stretch in self.stretches:
            if stretch.state is ARCHIVING and letter.first <= stretch.first and stretch.last <= letter.last:
                stretch.become(ARCHIVED)
                done.append(StateBatch(stretch.first, stretch.last, ARCHIVED, stretch.count))
        self._move_start()
        return done

    def log_starts_at(self, log_start_offset: int) -> None:
        """The log has nothing below an offset any more."""
        if log_start_offset <= self.start_offset:
            return
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        self._move_start()

    def _move_start(self) -> bool:
        """Let the start offset pass what is over; whether it has moved."""
        self._in_flight.join()
        self._in_flight.drop_below(self.start_offset)
        stretches, moved = self._in_flight.stretches, False
        while stretches and stretches[0].first <= self.start_offset and stretches[0].is_over:
            self.start_offset, moved = max(self.start_offset, stretches.pop(0).last + 1), True
        self._free_from = max(self._free_from, self.start_offset)
        return moved


class _Acquiring:
    """One acquisition under way."""

    __slots__ = ("_batch_size", "_batches", "_exactly", "_left", "_member_id", "_now_ms", "_of", "_taken")

    def __init__(
        self,
        of: SharePartition,
        member_id: str,
        batches: Sequence[LogBatch],
        most: int,
        batch_size: int,
        now_ms: int,
        *,
        exactly: bool,
    ) -> None:
        self._of, self._member_id, self._batches, self._now_ms = of, member_id, batches, now_ms
        self._left, self._batch_size, self._exactly = most, max(batch_size, 1), exactly
        self._taken: list[Stretch] = []

    def walk(self, offset: int, last: int) -> list[Stretch]:
        """What is locked of `offset` to `last`."""
        of = self._of
        while offset <= last and self._left > 0:
            at = of._in_flight.at_or_behind(offset)
            stretch = of.stretches[at] if at < len(of.stretches) else None
            if stretch is None or stretch.first > offset:
                end = last if stretch is None else min(last, stretch.first - 1)
                offset = self._acquire_new(offset, end) + 1
                continue
            end = min(stretch.last, last)
            if stretch.is_free and not self._take_again(at, stretch, offset, end):
                break
            offset = end + 1
        return self._taken

    def _acquire_new(self, first: int, last: int) -> int:
        """Take what was never delivered, up to `last` at most; returns the last offset taken."""
        if self._left < last - first + 1:
            wanted = first + self._left - 1
            last = wanted if self._exactly else min(last, self._end_of_batch(wanted))
        self._left -= last - first + 1
        for start, end in self._portions(first, last):
            self._taken.append(self._of._acquire_new(start, end, self._member_id, self._now_ms))
        return last

    def _end_of_batch(self, offset: int) -> int:
        """The last offset of the batch of the log that holds an offset."""
        return next((each.last for each in self._batches if each.base <= offset <= each.last), offset)

    def _portions(self, first: int, last: int) -> list[tuple[int, int]]:
        """In batches of about batch_size, which begin where batches of the log do: so they are acknowledged."""
        portions = []
        if not self._exactly and last - first + 1 > self._batch_size:
            for batch in self._batches:
                if batch.base > last:
                    break
                if batch.base - first >= self._batch_size:
                    portions.append((first, batch.base - 1))
                    first = batch.base
        portions.append((first, last))
        return portions

    def _take_again(self, at: int, stretch: Stretch, first: int, last: int) -> bool:
        """Take what was delivered before; whether more may be taken along with it."""
        limits = self._of.limits
        too_often = stretch.count - limits.throttled_from
        size = last - first + 1
        if too_often >= 0:
            if self._taken:
                return False
            is_last = limits.deliveries > LEAST_THROTTLED and stretch.count >= limits.deliveries - 1
            size = min(size, 1 if is_last else max(1, stretch.fetched >> (too_often + 1)))
        if self._exactly:
            size = min(size, self._left)
        self._taken.append(self._of._acquire_again(at, first, first + size - 1, self._member_id, self._now_ms))
        self._left -= size
        return too_often < 0


def _answer(found: Iterable[Stretch]) -> list[Acquired]:
    """What is acquired, as its member is told: neighbours of later deliveries together."""
    answer: list[Acquired] = []
    for each in found:
        before = answer[-1] if answer else None
        if before and each.count > 1 and before.last + 1 == each.first and before.deliveries == each.count:
            answer[-1] = before._replace(last=each.last)
        else:
            answer.append(Acquired(each.first, each.last, each.count))
    return answer


def _runs(batch: Acknowledgement, first: int) -> Iterable[tuple[int, int, int]]:
    """From `first` on, the stretches of offsets of which the same is said."""
    types = batch.types
    if len(types) == 1:
        yield first, batch.last, types[0]
        return
    start = first
    for offset in range(first, batch.last + 1):
        if offset == batch.last or types[offset + 1 - batch.first] != types[start - batch.first]:
            yield start, offset, types[start - batch.first]
            start = offset + 1


def _check_owner(stretch: Stretch, member_id: str) -> None:
    """Raises: KafkaError INVALID_RECORD_STATE unless these are the member's to speak of."""
    if stretch.state is not ACQUIRED:
        raise KafkaError(
            ErrorCode.INVALID_RECORD_STATE,
            "The batch cannot be acknowledged. The batch is not in the acquired state.",
        )
    if stretch.member_id != member_id:
        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, "Member is not the owner of batch record")
    if stretch.pending is not None:
        raise KafkaError(
            ErrorCode.INVALID_RECORD_STATE,
            "The record state is invalid. The acknowledgement of delivery could not be completed.",
        )


def _lost(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD_STATE, f"Batch record not found. {why}")
