"""Producer state: what a log remembers of each producer, so that nothing is appended twice or out of turn.

Owns the entries in memory and their `.snapshot` format; the log decides when a snapshot is written and when entries
expire. `check` is asked before an append and changes nothing; `update` is told after the write. The rules:

- A batch whose sequence range is one of the producer's last five was appended before: it is answered, not appended.
- Otherwise its first sequence must follow the last one (0 follows 2^31-1). An unknown producer may start anywhere,
  with the two exceptions below.
- A smaller epoch than the last seen is a zombie's; a larger one starts again at sequence 0.
- While a producer has an open transaction, all it writes must be transactional. Whether it may begin one here is the
  question of the caller that appends (KIP-890).

- While it is being verified that a producer may begin a transaction here, no batch goes before the one with the lowest
  sequence that was to be verified: else that one, refused for now and sent again, would be out of order for ever. An
  idempotent producer without transactions has no such help, in Kafka neither: where it is unknown it starts anywhere.
- In the second protocol of transactions (KIP-890) a producer that is unknown here begins with sequence 0.
- A log remembers 10,000 producers, and all logs of a broker 100,000 (`producer_limits.py`). Beyond that those without a
  transaction that wrote longest ago are forgotten, as if they had expired. Kafka has no such limit.

    .snapshot   0  2  version, 1
                2  4  CRC-32C of everything behind it
                6  4  number of entries
               10  46 each: producer_id 8, epoch 2, last_sequence 4, last_offset 8, offset_delta 4, timestamp 8,
                   coordinator_epoch 4, current_txn_first_offset 8 (-1: no open transaction)

Source: KIP-98, KIP-360; Kafka documentation, "Message delivery semantics".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812
from typing import Protocol

from kbroker.config.limits import PRODUCERS_PER_PARTITION
from kbroker.log.errors import CorruptFileError, NewerFormatError
from protocol.errors import ErrorCode, KafkaError
from protocol.namedtuple import NamedTuple
from protocol.records import crc32c
from protocol.records.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    CONTROL,
    LARGEST_SEQUENCE,
    LAST_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    TRANSACTIONAL,
    HeaderTuple,
)

BATCHES_KEPT = 5
"""Kafka's max.in.flight.requests.per.connection for idempotent producers: a retry is never older than this."""

NONE = -1
LARGEST_EPOCH = 0x7FFF
RAISES = 2  # transaction.version from which on the end of a transaction raises the epoch (KIP-890)
FORGOTTEN = 8  # this part of a log's producers is forgotten at once when they are too many: to look for them takes 5 ms
_VERSION = 1
_SNAPSHOT_HEAD = Struct(">hIi")
_ENTRY = Struct(">qhiqiqiq")


class Origin(IntEnum):
    """Who appends, which decides what is checked."""

    CLIENT = 0  # everything
    COORDINATOR = 1  # epochs, not sequences: coordinators write what has no sequence
    REPLICATION = 2  # nothing: the leader has checked
    PREPARED = 3  # as a client, whose records `prepare.py` has checked and rebuilt


_CLIENT, _REPLICATION = Origin.CLIENT, Origin.REPLICATION  # looked up once


class BatchSpan(NamedTuple):
    """One of a producer's last batches: what a duplicate of it is answered with."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        """Offset of the batch's first record."""
        return self.last_offset - self.offset_delta


LAST_SEQUENCE, LAST_OFFSET, OFFSET_DELTA, TIMESTAMP = range(4)  # the places in it, for what is done with each batch
_span = tuple.__new__  # a BatchSpan of four values, without its constructor's detour


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended. last_offset: the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class Marker(NamedTuple):
    """The content of an end-of-transaction control record.

    transaction_version: 2 where the end has raised the producer's epoch; of what is written already it is not known.
    """

    is_commit: bool
    coordinator_epoch: int
    timestamp: int
    transaction_version: int = 0


class Awaited:
    """A producer that is to begin a transaction, once its coordinator has said that it may; a token by its identity.

    lowest_sequence: of the batches that were to be verified in this epoch, -1 of those without. begins_at_zero: it
    speaks the second protocol. asked_ms: wall clock, when it was asked for first.
    """

    __slots__ = ("asked_ms", "begins_at_zero", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, asked_ms: int, *, begins_at_zero: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        self.asked_ms = asked_ms
        self.begins_at_zero = begins_at_zero


class ProducerEntry:
    """The state of one producer on one partition."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "marker_offset", "txn_first_offset")

    def __init__(self, epoch: int = NONE, coordinator_epoch: int = NONE, last_timestamp: int = NONE) -> None:
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp  # of the last batch or marker, ms; entries expire by it
        self.txn_first_offset = NONE
        self.marker_offset = NONE  # of the last one
        self.batches: list[BatchSpan] = []  # oldest first

    @property
    def last_offset(self) -> int:
        """Of what the producer, or its coordinator, has written last, as far as that is known."""
        return max(self.marker_offset, self.batches[-1][LAST_OFFSET]) if self.batches else self.marker_offset

    def duplicate_of(self, epoch: int, base_sequence: int, last_offset_delta: int) -> BatchSpan | None:
        """The kept batch with exactly this sequence range, if any."""
        if epoch != self.epoch:
            return None
        last_sequence = (base_sequence + last_offset_delta) & LARGEST_SEQUENCE
        for batch in self.batches:
            if batch[LAST_SEQUENCE] == last_sequence and batch[OFFSET_DELTA] == last_offset_delta:
                return batch
        return None

    def add(self, epoch: int, span: BatchSpan) -> None:
        """Remember an appended batch."""
        batches = self.batches
        if epoch != self.epoch:
            batches.clear()
            self.epoch = epoch
        elif len(batches) == BATCHES_KEPT:
            del batches[0]
        batches.append(span)
        self.last_timestamp = span[TIMESTAMP]


class Account(Protocol):
    """Where the producers of all logs are counted."""

    def one_more(self) -> None:
        """Called before a log remembers one more; these may be told to forget some."""


class Producers:
    """All producers of one log.

    end_offset: everything below it is in here. A snapshot taken now is named by it. ended: transactions whose markers
    the high watermark has still to pass, first offset -> marker's offset. known: the account of the broker, if any.
    """

    __slots__ = ("_awaited", "_entries", "_most", "_ongoing", "end_offset", "ended", "known")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._ongoing: dict[int, int] = {}  # first offset of an open transaction -> producer id; ascending
        self.ended: dict[int, int] = {}
        self._awaited: dict[int, Awaited] = {}
        self.known: Account | None = None
        self._most = PRODUCERS_PER_PARTITION
        self.end_offset = 0

    def of_the_same_log(self, end_offset: int) -> Producers:
        """Others, none yet, in their place."""
        made = Producers()
        made.known, made.end_offset = self.known, end_offset
        return made

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def held(self) -> int:
        """How many it remembers, those counted twice of which a transaction is awaited."""
        return len(self._entries) + len(self._awaited)

    def get(self, producer_id: int) -> ProducerEntry | None:
        """One producer's entry."""
        return self._entries.get(producer_id)

    def items(self) -> Iterable[tuple[int, ProducerEntry]]:
        """Producer ids and entries, for DescribeProducers and snapshots."""
        return self._entries.items()

    # ---- before an append

    def check(self, header: HeaderTuple, origin: Origin) -> BatchSpan | None:
        """Whether a data batch may be appended; the batch it repeats, if it is a duplicate.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_TXN_STATE.
        """
        producer_id, epoch, base_sequence = header[PRODUCER_ID], header[PRODUCER_EPOCH], header[BASE_SEQUENCE]
        entry = self._entries.get(producer_id)
        if self._awaited and origin is _CLIENT:
            self._check_awaited(header, entry)
        if entry is None or origin is _REPLICATION:
            return None
        batches = entry.batches
        if not (
            batches and base_sequence == batches[-1][LAST_SEQUENCE] + 1 and epoch == entry.epoch
        ):  # not next, as nearly always
            if origin is _CLIENT:
                duplicate = entry.duplicate_of(epoch, base_sequence, header[LAST_DELTA])
                if duplicate is not None:
                    return duplicate
            _check_epoch(producer_id, entry, epoch)
            if origin is _CLIENT:
                _check_sequence(producer_id, entry, epoch, base_sequence)
        if entry.txn_first_offset != NONE and not header[ATTRIBUTES] & TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has a transaction open, the batch is in none"
            )
        return None

    def check_marker(self, header: HeaderTuple, marker: Marker) -> None:
        """Whether an end-of-transaction marker may be appended by a coordinator.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self._entries.get(header[PRODUCER_ID])
        if entry is None:
            return
        _check_epoch(header[PRODUCER_ID], entry, header[PRODUCER_EPOCH])
        is_raised = marker.transaction_version < RAISES or header[PRODUCER_EPOCH] != entry.epoch
        if not is_raised and entry.epoch != LARGEST_EPOCH and entry.txn_first_offset != NONE:
            raise KafkaError(  # with none open it has come before, and its answer was lost (KAFKA-19999)
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {header[PRODUCER_ID]} in epoch {entry.epoch}, in which a transaction is open",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch}, last seen {entry.coordinator_epoch}",
            )

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has a transaction open here, in this epoch or a later one: then `check` decides."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.txn_first_offset != NONE and epoch <= entry.epoch

    def expect(
        self, producer_id: int, epoch: int, sequence: int, wall_ms: int, *, second_protocol: bool = False
    ) -> Awaited:
        """A broker begins to verify that a producer may begin a transaction here. Returns: a token for `is_expected`.

        sequence: of the batch that is to begin it, -1 if it has none.
        """
        found = self._awaited.get(producer_id)
        if found is None:
            if len(self._awaited) >= PRODUCERS_PER_PARTITION:
                del self._awaited[next(iter(self._awaited))]  # its client is told to ask again
            self._count_one()
            found = self._awaited[producer_id] = Awaited(epoch, sequence, wall_ms, begins_at_zero=second_protocol)
        elif epoch > found.epoch:
            found.epoch, found.lowest_sequence = epoch, sequence
        elif epoch == found.epoch and _goes_before(sequence, found.lowest_sequence):
            found.lowest_sequence = sequence
        return found

    def is_expected(self, producer_id: int, token: Awaited) -> bool:
        """Whether no transaction of the producer has begun or ended here since."""
        return self._awaited.get(producer_id) is token

    def _check_awaited(self, header: HeaderTuple, entry: ProducerEntry | None) -> None:
        """Whether a batch may be the first of a transaction that waits to begin. Raises KafkaError."""
        producer_id, epoch, base_sequence = header[PRODUCER_ID], header[PRODUCER_EPOCH], header[BASE_SEQUENCE]
        awaited = self._awaited.get(producer_id)
        delta = header[LAST_DELTA]
        if awaited is None or (entry is not None and entry.duplicate_of(epoch, base_sequence, delta) is not None):
            return
        if entry is not None:
            _check_epoch(producer_id, entry, epoch)  # a zombie is told that it is one, whatever its sequence
        is_unknown = entry is None or not entry.batches
        begins_at_zero = awaited.begins_at_zero and is_unknown
        first = 0 if begins_at_zero else awaited.lowest_sequence
        if base_sequence > 0 if begins_at_zero else _goes_before(first, base_sequence):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} epoch {epoch} sent sequence {base_sequence}, {first} comes first",
            )

    # ---- after an append

    def update(self, header: HeaderTuple, base_offset: int, max_timestamp: int) -> None:
        """Remember an appended data batch. base_offset, max_timestamp: as written, which the header need not say."""
        producer_id, epoch, base_sequence = header[PRODUCER_ID], header[PRODUCER_EPOCH], header[BASE_SEQUENCE]
        delta = header[LAST_DELTA]
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._begin(producer_id)
        last_sequence = (base_sequence + delta) & LARGEST_SEQUENCE if base_sequence >= 0 else NONE
        entry.add(epoch, _span(BatchSpan, (last_sequence, base_offset + delta, delta, max_timestamp)))
        if header[ATTRIBUTES] & TRANSACTIONAL and entry.txn_first_offset == NONE:
            self._awaited.pop(producer_id, None)
            entry.txn_first_offset = base_offset
            self._ongoing[base_offset] = producer_id

    def end_transaction(self, header: HeaderTuple, base_offset: int, marker: Marker) -> CompletedTransaction | None:
        """Apply an appended marker; the transaction that it ended, None if that had written nothing here."""
        assert header[ATTRIBUTES] & CONTROL, header
        self._awaited.pop(header[PRODUCER_ID], None)
        producer_id, epoch = header[PRODUCER_ID], header[PRODUCER_EPOCH]
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._begin(producer_id)
        entry.marker_offset = base_offset
        if epoch != entry.epoch:
            entry.batches.clear()
            entry.epoch = epoch
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = marker.timestamp
        first_offset, entry.txn_first_offset = entry.txn_first_offset, NONE
        if first_offset == NONE:
            return None
        return CompletedTransaction(producer_id, first_offset, base_offset, not marker.is_commit)

    def recall(self, header: HeaderTuple) -> bool:
        """Remember a batch that the log has, if it came just before the oldest known of its producer.

        Returns: whether there may be one more to remember before it.
        """
        entry = self._entries.get(header[PRODUCER_ID])
        batches = [] if entry is None else entry.batches
        if entry is None or not batches or header[PRODUCER_EPOCH] != entry.epoch or header[ATTRIBUTES] & CONTROL:
            return False
        oldest, base_sequence, delta = batches[0], header[BASE_SEQUENCE], header[LAST_DELTA]
        last_offset, last_sequence = header[BASE_OFFSET] + delta, (base_sequence + delta) & LARGEST_SEQUENCE
        if last_offset < oldest.last_offset and base_sequence >= 0 and len(batches) < BATCHES_KEPT:
            if (oldest.last_sequence - oldest.offset_delta - last_sequence) & LARGEST_SEQUENCE != 1:
                return False  # what came between is gone
            batches.insert(0, BatchSpan(last_sequence, last_offset, delta, header[MAX_TIMESTAMP]))
        return base_sequence > 0 and len(batches) < BATCHES_KEPT

    @property
    def last_offset(self) -> int:
        """Of all that they have written, as far as that is known; -1 if there are none."""
        return max((entry.last_offset for entry in self._entries.values()), default=NONE)

    def _begin(self, producer_id: int) -> ProducerEntry:
        """Remember one more producer."""
        if len(self._entries) >= self._most:
            self._keep_within_limit(PRODUCERS_PER_PARTITION - PRODUCERS_PER_PARTITION // FORGOTTEN)
        self._count_one()
        entry = self._entries[producer_id] = ProducerEntry()
        return entry

    def _count_one(self) -> None:
        if self.known is not None:
            self.known.one_more()

    def last_stable_offset_after(self, completed: CompletedTransaction) -> int:
        """The last stable offset once `completed` no longer holds it back: what the aborted index records."""
        for first_offset, producer_id in self._ongoing.items():
            if producer_id != completed.producer_id:
                return first_offset
        return completed.last_offset + 1

    def forget_completed(self, completed: CompletedTransaction) -> None:
        """The transaction is over; it stays unstable until the high watermark is past its marker."""
        del self._ongoing[completed.first_offset]
        self.ended[completed.first_offset] = completed.last_offset

    # ---- stability

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the first transaction starts that is open, or ended by a marker that is not committed yet."""
        first = next(iter(self._ongoing), None)
        if self.ended:
            ended = min(self.ended)
            return ended if first is None else min(first, ended)
        return first

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Markers below it are committed: their transactions hold nothing back any more."""
        if self.ended:
            self.ended = {first: last for first, last in self.ended.items() if last >= high_watermark}

    # ---- forgetting

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that wrote nothing for so long and have no open transaction; tells how many.

        now_ms: wall clock, as the timestamps are.
        """
        gone = [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.txn_first_offset == NONE and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in gone:
            del self._entries[producer_id]
        if self._awaited:  # those that were never verified
            waits = self._awaited.items()
            self._awaited = {each: it for each, it in waits if now_ms - it.asked_ms < expiration_ms}
        return len(gone)

    def forget_oldest(self, count: int) -> None:
        """Forget so many producers, those first that wrote longest ago; but none with an open transaction.

        And as many at most that were to be verified: if they still wait for that, they are told to ask again.
        """
        idle = [(it.last_offset, each) for each, it in self._entries.items() if it.txn_first_offset == NONE]
        idle.sort()
        for _, producer_id in idle[:count]:
            del self._entries[producer_id]
        for producer_id in list(self._awaited)[:count]:
            del self._awaited[producer_id]

    def _keep_within_limit(self, most: int) -> None:
        """Forget what is over; where transactions are open there may be more, and then it is not tried each time."""
        self.forget_oldest(len(self._entries) - most)
        self._most = max(PRODUCERS_PER_PARTITION, len(self._entries) + PRODUCERS_PER_PARTITION // FORGOTTEN)

    def clear(self, end_offset: int) -> None:
        """Forget everything; the next batch is at `end_offset`."""
        self._entries.clear()
        self._ongoing.clear()
        self._awaited.clear()
        self.ended.clear()
        self.end_offset = end_offset

    # ---- snapshots

    def snapshot(self) -> bytes:
        """The content of a snapshot file."""
        rows = b"".join(_packed(producer_id, entry) for producer_id, entry in self._entries.items())
        behind_crc = len(self._entries).to_bytes(4, "big") + rows
        return _SNAPSHOT_HEAD.pack(_VERSION, crc32c(behind_crc), len(self._entries)) + rows

    def load(self, content: bytes, end_offset: int, now_ms: int, expiration_ms: int) -> None:
        """Replace everything by a snapshot's entries, without those that have expired.

        Raises CorruptFileError, NewerFormatError; then nothing has changed.
        """
        loaded = parse_snapshot(content)
        self.clear(end_offset)
        for producer_id, entry in sorted(loaded, key=lambda item: item[1].txn_first_offset):
            if entry.txn_first_offset != NONE:
                self._ongoing[entry.txn_first_offset] = producer_id
            elif now_ms - entry.last_timestamp >= expiration_ms:
                continue
            self._entries[producer_id] = entry
        if len(self._entries) > PRODUCERS_PER_PARTITION:
            self._keep_within_limit(PRODUCERS_PER_PARTITION)


def _goes_before(sequence: int, other: int) -> bool:
    """Whether a sequence is the earlier one of two that are not far from each other: 2^31-1 goes before 0."""
    return 0 < (other - sequence) & LARGEST_SEQUENCE <= LARGEST_SEQUENCE >> 1


def _check_epoch(producer_id: int, entry: ProducerEntry, epoch: int) -> None:
    """Whether a batch or marker is not a zombie's."""
    if epoch < entry.epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH, f"producer {producer_id} epoch {epoch}, last seen {entry.epoch}"
        )


def _check_sequence(producer_id: int, entry: ProducerEntry, epoch: int, base_sequence: int) -> None:
    """Whether a batch comes next in its producer's sequence."""
    if epoch != entry.epoch:
        if base_sequence != 0 and entry.epoch != NONE:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} starts its epoch {epoch} with sequence {base_sequence}",
            )
        return
    last = entry.batches[-1][LAST_SEQUENCE] if entry.batches else NONE
    if base_sequence != last + 1 and not (base_sequence == 0 and last == LARGEST_SEQUENCE):
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} epoch {epoch} sent sequence {base_sequence}, last was {last}",
        )


def _packed(producer_id: int, entry: ProducerEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else BatchSpan(NONE, NONE, 0, NONE)
    return _ENTRY.pack(
        producer_id,
        entry.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )


def parse_snapshot(content: bytes) -> list[tuple[int, ProducerEntry]]:
    """Producer ids and entries of a snapshot file, each entry with its last batch only.

    Raises CorruptFileError (sizes or checksum), NewerFormatError.
    """
    try:
        version, crc, count = _SNAPSHOT_HEAD.unpack_from(content, 0)
    except StructError:
        raise CorruptFileError(f"is {len(content)} bytes long, shorter than a snapshot's head") from None
    computed = crc32c(memoryview(content)[6:])
    if computed != crc:  # first: random bytes are more often of a high version than of a low one
        raise CorruptFileError(f"checksum {crc:#010x} stored, {computed:#010x} computed")
    has_right_size = len(content) == _SNAPSHOT_HEAD.size + count * _ENTRY.size
    if version > _VERSION and not has_right_size:
        raise NewerFormatError(f"has version {version}, this program knows version {_VERSION}")
    if version != _VERSION:  # the one thing that is not under the checksum
        raise CorruptFileError(f"has version {version}")
    if not has_right_size:
        raise CorruptFileError(f"promises {count} entries in {len(content)} bytes")
    return [_unpacked(row) for row in _ENTRY.iter_unpack(memoryview(content)[_SNAPSHOT_HEAD.size :])]


def _unpacked(row: tuple[int, ...]) -> tuple[int, ProducerEntry]:
    producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn_first_offset = row
    entry = ProducerEntry(epoch, coordinator_epoch, timestamp)
    entry.txn_first_offset = txn_first_offset if txn_first_offset >= 0 else NONE
    if last_offset >= 0:
        entry.batches.append(BatchSpan(last_sequence, last_offset, delta, timestamp))
    return producer_id, entry
