"""What compaction leaves of batches and old messages: of each key the last record, as bytes that replace the old ones.

Pure: bytes in, bytes out, on any thread. The cleaner of `kbroker.log` notes the keys of the part of a log that is new
(`OffsetMap`, `note`), then has everything up to there rewritten (`kept_of_batch`, `kept_of_messages`). What a batch
covers never changes: base offset, last offset, producer, sequence, leader epoch and codec stay, so offsets keep their
meaning and a follower's copy agrees. The loops over records are in `_cleaner`.

A v2 batch with a tombstone, or a marker of a transaction without records, gets a delete horizon: from that time on they
may go, and consumers had the time between to see them. It takes the place of the base timestamp, from which the
records' timestamps are counted then. Old messages have no such field; the caller says when their tombstones go.

Source: Kafka documentation, "Log Compaction"; KIP-534 (delete horizon).
"""

from __future__ import annotations

from io import BytesIO

from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple
from protocol.records import legacy
from protocol.records._built import use_or_refuse
from protocol.records._errors import RecordError
from protocol.records._record import HeaderTuple, Readable
from protocol.records._walker import walk
from protocol.records.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    CODEC_MASK,
    CONTROL,
    COUNT,
    CRC,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LAST_DELTA,
    LEADER_EPOCH,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAGIC,
    MAGIC_AT,
    MAX_TIMESTAMP,
    NO_TIMESTAMP,
    PRODUCER_ID,
    TRANSACTIONAL,
    check,
    last_offset_of,
    size_of,
    write_crc,
)
from protocol.records.compression import LIMIT_BYTES, codec_of
from protocol.records.content import batch_body

for _name in ("_cleaner", "_converter"):  # here, not in the package: a broker that compacts nothing loads none
    use_or_refuse(__package__, _name)

from protocol.records._cleaner import keep_records, put_keys, shifted  # noqa: E402
from protocol.records._converter import walk_messages  # noqa: E402

SLOT_BYTES = 24
"""Memory that a key takes in an OffsetMap, as in Apache's."""

_RUN_BYTES = 16 << 10  # old messages that are rewritten at a time: an index entry for each of them
_SIP = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)  # "somepseudorandomly..."
_UINT64 = 2**64 - 1
_SAFE_TIMES = range(-(2**61), 2**61)  # differences of these stay within 64 bits


class OffsetMap:
    """The latest offset of each key of a stretch of a log, in fixed memory.

    used: keys in it. latest_offset: it is complete from where it began up to here; -1: of nothing.
    """

    __slots__ = ("_most", "_room", "_secret", "latest_offset", "table", "used")

    def __init__(self, memory_bytes: int, load_factor: float, secret: bytes, keys: int) -> None:
        """secret: 16 random bytes. keys: no more than this many will come, so that less memory may do."""
        slots = max(2, min(memory_bytes // SLOT_BYTES, int(keys / load_factor) + 2))
        # Zeros straight from the operating system, a page at a time as they are used: a bytearray would write them all
        # at once, with all other threads waiting.
        self._room = BytesIO(bytes(slots * SLOT_BYTES))
        self.table = self._room.getbuffer().cast("Q")
        self._most = max(1, min(slots - 1, int(slots * load_factor)))
        first, second = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:16], "little")
        self._secret = (first ^ _SIP[0], second ^ _SIP[1] ^ 0xEE, first ^ _SIP[2], second ^ _SIP[3])
        self.used = 0
        self.latest_offset = -1

    @property
    def utilization(self) -> float:
        """Which part of it is taken."""
        return self.used * 3 / len(self.table)

    def put(
        self, body: Readable, start: int, end: int, count: int, *, magic: int, base_offset: int, from_offset: int
    ) -> bool:
        """Note checked records; whether there was room for all of their keys. Arguments as of `_cleaner.put_keys`."""
        self.used, refused = put_keys(
            body,
            start,
            end,
            count,
            magic=magic,
            base_offset=base_offset,
            from_offset=from_offset,
            table=self.table,
            secret=self._secret,
            used=self.used,
            most=self._most,
        )
        if refused < 0:
            return True
        self.latest_offset = max(self.latest_offset, refused - 1)
        return False

    def keep(
        self,
        body: Readable,
        start: int,
        end: int,
        count: int,
        *,
        magic: int,
        base_offset: int,
        drop_tombstones: bool,
        out: bytearray,
    ) -> tuple[int, int, int, int, int]:
        """Copy checked records that stay. Arguments and result as of `_cleaner.keep_records`."""
        return keep_records(
            body,
            start,
            end,
            count,
            magic=magic,
            base_offset=base_offset,
            latest_offset=self.latest_offset,
            drop_tombstones=drop_tombstones,
            table=self.table,
            secret=self._secret,
            out=out,
        )


class Kept(NamedTuple):
    """What is left: bytes to be written, and of those the last offset, the largest timestamp, the number of records.

    A batch that is kept without records counts none.
    """

    content: Readable
    last_offset: int
    max_timestamp: int
    records: int


# ---- which keys there are


def note_batch(
    offsets: OffsetMap,
    buffer: memoryview,
    position: int,
    header: HeaderTuple,
    from_offset: int,
    limit: int = LIMIT_BYTES,
) -> bool:
    """Note the keys of the v2 batch at `position`; whether there was room. Not for markers and aborted batches.

    Raises: RecordError for a batch that is not whole, its checksum included.
    """
    check(buffer, position, len(buffer))
    if not header[COUNT]:
        return True
    body, start, end = batch_body(buffer, position, header, limit)
    walk(body, start, end, header[COUNT], header[BASE_TIMESTAMP])
    first = header[BASE_OFFSET]
    return offsets.put(body, start, end, header[COUNT], magic=MAGIC, base_offset=first, from_offset=from_offset)


def note_messages(
    offsets: OffsetMap, buffer: memoryview, position: int, from_offset: int, limit: int = LIMIT_BYTES
) -> tuple[bool, int, int]:
    """Note the keys of the old messages at `position`, some of them or one wrapper's.

    Returns: whether there was room, the position behind them, the last one's offset. Raises: RecordError.
    """
    opened = _open_messages(buffer, position, limit)
    fits = offsets.put(
        opened.body,
        opened.start,
        opened.end,
        opened.records_count,
        magic=opened.magic,
        base_offset=opened.base_offset,
        from_offset=from_offset,
    )
    return fits, opened.behind, opened.last_offset


# ---- what stays of them


class Scratch:
    """Room for the records that stay of one batch after the other. The largest batch says how much it is."""

    __slots__ = ("room",)

    def __init__(self) -> None:
        self.room = bytearray(64 << 10)

    def of(self, size: int) -> bytearray:
        """At least so many bytes."""
        if len(self.room) < size:
            self.room = bytearray(size)
        return self.room


def kept_of_batch(
    offsets: OffsetMap,
    buffer: memoryview,
    position: int,
    header: HeaderTuple,
    *,
    discard: bool,
    marks_nothing: bool,
    keep_empty: bool,
    now_ms: int,
    horizon_ms: int,
    scratch: Scratch,
    limit: int = LIMIT_BYTES,
) -> Kept | None:
    """What is left of the v2 batch at `position`, None if nothing: a view of it if that is all of it.

    discard: all its records go, being aborted, or a marker whose time is over. marks_nothing: it is a marker of a
    transaction without records. keep_empty: the header stays even if no record does. horizon_ms: the delete horizon
    that a batch gets now, if it needs one. limit: bytes that compressed records may become. Raises: RecordError.
    """
    check(buffer, position, len(buffer))
    attributes, count = header[ATTRIBUTES], header[COUNT]
    whole = buffer[position : position + size_of(header)]
    if discard or not count:
        return _emptied(whole, header) if keep_empty else None
    if attributes & CONTROL and not marks_nothing:
        return Kept(whole, last_offset_of(header), header[MAX_TIMESTAMP], count)
    body, start, end = batch_body(buffer, position, header, limit)
    latest, _latest_at, earliest, _keyless, _disordered = walk(body, start, end, count, header[BASE_TIMESTAMP])
    kept, tombstones, highest = count, 0, latest - header[BASE_TIMESTAMP]
    if not attributes & CONTROL:
        drop_tombstones = bool(attributes & DELETE_HORIZON) and now_ms >= header[BASE_TIMESTAMP]
        room = scratch.of(end - start)
        size, kept, tombstones, highest, _ = offsets.keep(
            body,
            start,
            end,
            count,
            magic=MAGIC,
            base_offset=header[BASE_OFFSET],
            drop_tombstones=drop_tombstones,
            out=room,
        )
        if not kept:
            return _emptied(whole, header) if keep_empty else None
        if kept < count:
            body, start, end = room, 0, size
    may_be_marked = earliest in _SAFE_TIMES and latest in _SAFE_TIMES and header[BASE_TIMESTAMP] in _SAFE_TIMES
    is_marked = (tombstones > 0 or marks_nothing) and not attributes & DELETE_HORIZON and may_be_marked
    if kept == count and not is_marked:
        return Kept(whole, last_offset_of(header), header[MAX_TIMESTAMP], count)
    base_timestamp = header[BASE_TIMESTAMP]
    max_timestamp = header[MAX_TIMESTAMP]
    if not attributes & LOG_APPEND_TIME:
        max_timestamp = max(NO_TIMESTAMP, base_timestamp + highest)
    if is_marked:
        body = shifted(body, start, end, kept, base_timestamp - horizon_ms)
        start, end, base_timestamp, attributes = 0, len(body), horizon_ms, attributes | DELETE_HORIZON
    return _rebuilt(header, attributes, base_timestamp, max_timestamp, kept, memoryview(body)[start:end])


def _rebuilt(
    header: HeaderTuple, attributes: int, base_timestamp: int, max_timestamp: int, count: int, body: memoryview
) -> Kept:
    """A batch of other records, with all else as it is."""
    codec_id = attributes & CODEC_MASK
    out = bytearray(HEADER_SIZE)
    out += codec_of(codec_id).compress(body) if codec_id else body
    length = len(out) - LENGTH_OVERHEAD
    producer = header[PRODUCER_ID:COUNT]
    HEADER.pack_into(
        out,
        0,
        header[BASE_OFFSET],
        length,
        *header[LEADER_EPOCH:CRC],
        0,
        attributes,
        header[LAST_DELTA],
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )
    write_crc(out, 0, len(out))
    return Kept(out, last_offset_of(header), max_timestamp, count)


def _emptied(whole: memoryview, header: HeaderTuple) -> Kept:
    """The header alone: who wrote the batch, its sequence, and which offsets it covers."""
    if not header[COUNT] and len(whole) == HEADER_SIZE:
        return Kept(whole, last_offset_of(header), header[MAX_TIMESTAMP], 0)
    attributes = header[ATTRIBUTES] & (LOG_APPEND_TIME | TRANSACTIONAL | CONTROL)
    return _rebuilt(header, attributes, NO_TIMESTAMP, header[MAX_TIMESTAMP], 0, memoryview(b""))


def kept_of_messages(
    offsets: OffsetMap,
    buffer: memoryview,
    position: int,
    *,
    drop_tombstones: bool,
    scratch: Scratch,
    limit: int = LIMIT_BYTES,
) -> tuple[Kept | None, int]:
    """What is left of the old messages at `position`, some of them or one wrapper, and the position behind those.

    limit: bytes that a wrapper may decompress to. Raises: RecordError.
    """
    opened = _open_messages(buffer, position, limit)
    room = scratch.of(opened.end - opened.start)
    size, kept, _, highest, last_offset = offsets.keep(
        opened.body,
        opened.start,
        opened.end,
        opened.records_count,
        magic=opened.magic,
        base_offset=opened.base_offset,
        drop_tombstones=drop_tombstones,
        out=room,
    )
    if not kept:
        return None, opened.behind
    if kept == opened.records_count:
        whole = buffer[position : opened.behind]
        return Kept(whole, opened.last_offset, opened.max_timestamp, kept), opened.behind
    content = bytes(memoryview(room)[:size])
    max_timestamp = max(NO_TIMESTAMP, highest)
    wrapper = opened.wrapper
    if wrapper is None:
        return Kept(content, last_offset, max_timestamp, kept), opened.behind
    append_time = wrapper.timestamp if wrapper.is_log_append_time else None
    max_timestamp = max_timestamp if append_time is None else append_time
    wrapped = legacy.wrapped(content, opened.magic, last_offset, wrapper.codec_id, max_timestamp, append_time)
    return Kept(wrapped, last_offset, max_timestamp, kept), opened.behind


class _Opened(NamedTuple):
    """Checked messages of one format: `records_count` in body[start:end], whose offsets count from base_offset."""

    magic: int
    body: Readable
    start: int
    end: int
    records_count: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    behind: int  # in the buffer that they come from
    wrapper: legacy.Message | None


def _open_messages(buffer: memoryview, position: int, limit: int) -> _Opened:
    """The messages at `position`: some that lie open, or those in a wrapper."""
    magic = buffer[position + MAGIC_AT]
    if magic > 1:
        raise RecordError(ErrorCode.CORRUPT_MESSAGE, position, f"magic {magic} is not 0, 1 or 2")
    for end in (min(len(buffer), position + _RUN_BYTES), len(buffer)):
        count, stop, latest, _earliest, _keyless, _stamped, last_offset = walk_messages(buffer, position, end, magic)
        if count:
            return _Opened(magic, buffer, position, stop, count, 0, last_offset, latest, stop, None)
    wrapper = next(legacy.scan(buffer, position))
    legacy.check_crc(buffer, wrapper)
    body = legacy.decompressed(buffer, wrapper, limit)
    count, stop, latest, _earliest, _keyless, _stamped, last = walk_messages(body, 0, len(body), magic)
    if not count:
        raise RecordError(ErrorCode.INVALID_RECORD, position, "a wrapper without messages")
    base_offset = legacy.base_of(wrapper, last) if magic else 0
    latest = wrapper.timestamp if wrapper.is_log_append_time else latest
    behind = position + wrapper.size_bytes
    return _Opened(magic, body, 0, stop, count, base_offset, base_offset + last, latest, behind, wrapper)
