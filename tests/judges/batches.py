"""Record batches and message sets as the judge describes them, as we build them, and strategies for both.

Called by the records' judge tests and by the fuzz seeds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from protocol.primitives import utf8
from protocol.records import Record, legacy
from protocol.records.batch import BatchHeader
from protocol.records.content import build_batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
KINDS = [(magic, codec_id) for magic in (0, 1, 2) for codec_id in range(5 if magic == 2 else 4)]  # zstd came with v2
Json = Any


class Set(NamedTuple):
    """One v2 batch, or one message set of format v0 or v1 (a wrapper message if it is compressed)."""

    magic: int
    codec_id: int
    records: tuple[Record, ...]
    base_offset: int
    append_time: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False
    control: bool = False
    leader_epoch: int = -1
    delete_horizon: int | None = None


def build(one: Set) -> bytes:
    """Our bytes."""
    if one.magic < 2:
        times = {"append_time": one.append_time} if one.magic else {}
        return bytes(
            legacy.build_set(one.records, one.magic, base_offset=one.base_offset, codec_id=one.codec_id, **times)
        )
    return bytes(
        build_batch(
            one.records,
            base_offset=one.base_offset,
            codec_id=one.codec_id,
            append_time=one.append_time,
            producer_id=one.producer_id,
            producer_epoch=one.producer_epoch,
            base_sequence=one.base_sequence,
            transactional=one.transactional,
            control=one.control,
            leader_epoch=one.leader_epoch,
            delete_horizon_ms=one.delete_horizon,
        )
    )


def described(one: Set) -> Json:
    """What the judge builds it from."""
    return {
        "magic": one.magic,
        "codec": CODECS[one.codec_id],
        "timestamp_type": "CreateTime" if one.append_time is None else "LogAppendTime",
        "log_append_time": -1 if one.append_time is None else one.append_time,
        "base_offset": one.base_offset,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "base_sequence": one.base_sequence,
        "transactional": one.transactional,
        "control": one.control,
        "leader_epoch": one.leader_epoch,
        "delete_horizon": -1 if one.delete_horizon is None else one.delete_horizon,
        "records": [record_tree(record) for record in one.records],
    }


def record_tree(record: Record) -> Json:
    """A record as the judge writes one down, without its sequence."""
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": _hex(record.key),
        "value": _hex(record.value),
        "headers": [[utf8(name), _hex(value)] for name, value in record.headers],
    }


def header_tree(header: BatchHeader) -> Json:
    """A v2 header as the judge writes one down."""
    return {
        "magic": 2,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "size": header.size_bytes,
        "checksum": header.crc,
        "codec": CODECS[header.codec_id],
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "last_sequence": header.last_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "leader_epoch": header.partition_leader_epoch,
        "delete_horizon": -1 if header.delete_horizon_ms is None else header.delete_horizon_ms,
        "count": header.records_count,
    }


def expected_records(one: Set) -> list[Json]:
    """The records that a reader must find."""
    trees = [record_tree(record) for record in one.records]
    for tree in trees:
        if one.magic == 0:
            tree["timestamp"] = -1
        elif one.append_time is not None:
            tree["timestamp"] = one.append_time
    return trees


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


_BYTES = (
    st.none()
    | st.binary(max_size=12)
    | st.sampled_from((63, 64, 127, 128, 8191, 8192, 70_000)).map(lambda size: b"k" * size)
)
_TIMES = st.just(-1) | st.integers(0, 10) | st.integers(0, 2**62)
_HEADERS = st.lists(st.tuples(st.text(max_size=6).map(str.encode), _BYTES), max_size=2).map(tuple)
_GAPS = st.just(1) | st.integers(1, 300) | st.just(2**24)


@st.composite
def sets(draw: st.DrawFn, magic: int, codec_id: int) -> Set:
    """Sets of a format and codec."""
    base_offset = offset = draw(st.sampled_from((0, 1, 2**31, 2**62)))
    records = []
    for index in range(draw(st.integers(1, 5) | st.just(40))):
        offset += draw(_GAPS) if index else 0
        headers = draw(_HEADERS) if magic == 2 else ()
        records.append(Record(offset, draw(_TIMES), draw(_BYTES), draw(_BYTES), headers))
    append_time = draw(st.none() | st.integers(0, 2**62)) if magic else None
    one = Set(magic, codec_id, tuple(records), base_offset, append_time)
    return draw(_with_producer(one)) if magic == 2 else one


def some_sets(magic: int, codec_id: int, count: int) -> list[Set]:
    """Small ones, the same at each call as long as the same modules are loaded (see tests/conftest.py)."""
    found: list[Set] = []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(sets(magic, codec_id))
    def each(one: Set) -> None:
        if len(build(one)) < 4000:
            found.append(one)

    each()
    return found


def _with_producer(one: Set) -> SearchStrategy[Set]:
    epochs = {"leader_epoch": st.integers(-1, 2**31 - 1), "delete_horizon": st.none() | st.integers(0, 2**62)}
    producer = {
        "producer_id": st.integers(0, 2**63 - 1),
        "producer_epoch": st.integers(0, 2**15 - 1),
        "base_sequence": st.integers(0, 2**31 - 1),
    }
    plain: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(epochs)
    idempotent = st.fixed_dictionaries({**epochs, **producer, "transactional": st.booleans()})
    marker = st.fixed_dictionaries({**epochs, **producer, "transactional": st.just(True), "control": st.just(True)})
    return (plain | idempotent | marker).map(lambda chosen: _legal(one._replace(**chosen)))


def _legal(one: Set) -> Set:
    """Markers have keys that Kafka's builder looks into, and no sequence; a control batch holds only them."""
    if not one.control:
        return one
    records = tuple(record._replace(key=b"\0\0\0\1", value=b"\0\0\0\0\0\7", headers=()) for record in one.records)
    return one._replace(records=records, base_sequence=-1)
