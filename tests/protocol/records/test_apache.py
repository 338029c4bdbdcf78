"""Apache's own MemoryRecords as judge: they read what we write, we read what they write, and both refuse the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import lz4.frame
import pytest

from protocol.records import Record, RecordError, batch, legacy
from protocol.records.compression import codec_named, codec_names
from protocol.records.content import build_batch, parse_set
from tests.judges.java import RELEASES, Judge, require

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

FORMATS = [(2, name) for name in codec_names()] + [(m, name) for m in (0, 1) for name in codec_names()[:4]]


@pytest.fixture(scope="module", params=RELEASES)
def apache(request: pytest.FixtureRequest) -> Judge:
    """Apache's classes, in turn of each release."""
    return require(request.param)


def some_records(seed: int, magic: int) -> list[Record]:
    """Records of all shapes that a format can carry, the same for the same seed."""
    rng = random.Random(seed)
    offset = rng.choice([0, 5, 2**40])
    records = []
    for _ in range(rng.randint(1, 7)):
        parts = [None, b"", rng.randbytes(rng.randint(1, 300))]
        headers = tuple(
            (rng.choice([b"", b"name", "grün".encode()]), rng.choice(parts))
            for _ in range(rng.choice([0, 0, 1, 3]) if magic == 2 else 0)
        )
        timestamp = rng.choice([-1, 0, 1_700_000_000_000 + rng.randint(-(10**6), 10**6)]) if magic else -1
        records.append(Record(offset, timestamp, rng.choice(parts), rng.choice(parts), headers))
        offset += rng.choice([1, 1, 1, 70])
    return records


def described(records: Sequence[Record], magic: int, codec: str, **fields: Any) -> dict[str, Any]:
    """What the judge is asked to build."""
    description = {
        "magic": magic,
        "codec": codec,
        "timestamp_type": "NoTimestampType" if magic == 0 else "CreateTime",
        "base_offset": records[0].offset,
        "log_append_time": -1,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "transactional": False,
        "control": False,
        "leader_epoch": -1,
        "delete_horizon": -1,
        "records": [
            {
                "offset": r.offset,
                "timestamp": r.timestamp,
                "key": hexed(r.key),
                "value": hexed(r.value),
                "headers": [[name.decode(), hexed(value)] for name, value in r.headers],
            }
            for r in records
        ],
    }
    assert description.keys() >= fields.keys()
    return description | fields


def hexed(data: bytes | None) -> str | None:
    return None if data is None else data.hex()


def read_by_apache(answer: dict[str, Any]) -> list[Record] | None:
    """The records of a judge's answer; None if it stopped or found anything invalid."""
    found: list[Record] = []
    if "error" in answer or "stopped" in answer or any("stopped" in b or "invalid" in b for b in answer["batches"]):
        return None
    for record in (r for b in answer["batches"] for r in b["records"]):
        if "invalid" in record:
            return None
        key, value = (None if record[part] is None else bytes.fromhex(record[part]) for part in ("key", "value"))
        headers = tuple((n.encode(), None if v is None else bytes.fromhex(v)) for n, v in record["headers"])
        found.append(Record(record["offset"], record["timestamp"], key, value, headers))
    return found


def build(records: Sequence[Record], magic: int, codec: str) -> bytes:
    codec_id = codec_named(codec).codec_id
    if magic == 2:
        return bytes(build_batch(records, codec_id=codec_id))
    return bytes(legacy.build_set(records, magic, codec_id=codec_id))


def parse(data: bytes | bytearray, magic: int) -> list[Record]:
    if magic < 2:
        return legacy.parse_set(data)
    return [record for _, records in parse_set(data) for record in records]


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_apache_reads_what_we_write(apache: Judge, magic: int, codec: str) -> None:
    sets = [some_records(seed, magic) for seed in range(60)]
    answers = apache.parse([build(records, magic, codec) for records in sets])
    assert [read_by_apache(answer) for answer in answers] == sets


@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_we_read_what_apache_writes(apache: Judge, magic: int, codec: str) -> None:
    sets = [some_records(seed, magic) for seed in range(60)]
    for records, data in zip(sets, apache.build([described(r, magic, codec) for r in sets]), strict=True):
        assert isinstance(data, bytes), data
        assert parse(data, magic) == records


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_uncompressed_our_bytes_are_apaches(apache: Judge, magic: int) -> None:
    sets = [some_records(seed, magic) for seed in range(60)]
    theirs = apache.build([described(records, magic, "none") for records in sets])
    assert [build(records, magic, "none") for records in sets] == theirs


FIELDS: list[dict[str, Any]] = [
    {"producer_id": 7, "producer_epoch": 3, "base_sequence": 2**31 - 2, "leader_epoch": 5},
    {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True},
    {"timestamp_type": "LogAppendTime", "log_append_time": 4711},
    {"delete_horizon": 99},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: next(iter(fields)))
def test_header_fields_land_where_apache_puts_them(apache: Judge, fields: dict[str, Any]) -> None:
    names = {"log_append_time": "append_time", "delete_horizon": "delete_horizon_ms"}
    ours = {names.get(name, name): value for name, value in fields.items() if name != "timestamp_type"}
    records = some_records(3, 2)
    assert apache.build([described(records, 2, "none", **fields)]) == [bytes(build_batch(records, **ours))]


def test_a_v1_wrapper_of_append_time_is_apaches(apache: Judge) -> None:
    records = some_records(5, 1)
    description = described(records, 1, "none", timestamp_type="LogAppendTime", log_append_time=4711)
    assert apache.build([description]) == [bytes(legacy.build_set(records, 1, append_time=4711))]
    (wrapped,) = apache.build([description | {"codec": "lz4"}])
    assert isinstance(wrapped, bytes)
    assert {record.timestamp for record in legacy.parse_set(wrapped)} == {4711}


def test_headers_are_described_as_apache_does(apache: Judge) -> None:
    data = build_batch(
        some_records(3, 2), codec_id=2, leader_epoch=9, producer_id=4, producer_epoch=1, base_sequence=2**31 - 1
    )
    header = batch.BatchHeader(*batch.check(memoryview(data), 0, len(data)))
    (theirs,) = apache.parse([bytes(data)])[0]["batches"]
    ours = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "last_sequence": header.last_sequence,
        "max_timestamp": header.max_timestamp,
        "size": header.size_bytes,
        "checksum": header.crc,
        "count": header.records_count,
        "leader_epoch": 9,
        "codec": "snappy",
        "transactional": False,
        "control": False,
    }
    assert {name: theirs[name] for name in ours} == ours


def damaged(magic: int, codec: str, per_seed: int) -> Iterator[bytes]:
    """Sets with a few bytes replaced, then compressed, and checksums that hold."""
    for seed in range(40):
        rng = random.Random(seed)
        records = some_records(seed, magic)
        if magic == 1 and codec != "none":
            records = [r._replace(offset=r.offset - records[0].offset) for r in records]
        good = build(records, magic, "none")
        for _ in range(per_seed):
            bad = bytearray(good)
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(batch.RECORDS_COUNT_AT if magic == 2 else batch.LEGACY_ATTRIBUTES_AT, len(bad))
                bad[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, bad[at] ^ 1 << rng.randrange(8)])
            if magic < 2:
                mend(bad)
            yield bytes(bad) if codec == "none" and magic < 2 else wrapped(bad, magic, codec)


def wrapped(plain: bytearray, magic: int, codec: str) -> bytes:
    """The batch or set, compressed as it is."""
    kind = codec_named(codec)
    if magic < 2:
        out = bytearray()
        legacy._append(out, 10**6, magic, kind.codec_id, 5, None, kind.compress(plain))
        return bytes(out)
    out = plain[: batch.RECORDS_AT] + kind.compress(plain[batch.RECORDS_AT :])
    out[batch.LENGTH_AT : batch.LENGTH_AT + 4] = (len(out) - batch.LENGTH_OVERHEAD).to_bytes(4, "big")
    out[batch.ATTRIBUTES_AT + 1] |= kind.codec_id
    batch.write_crc(out, 0, len(out))
    return bytes(out)


def mend(data: bytearray) -> None:
    try:
        for message in legacy.scan(bytes(data)):
            legacy._write_crc(data, message.position, message.position + message.size_bytes)
    except RecordError:
        pass  # what comes behind cannot be told apart


def test_lz4_blocks_that_depend_on_one_another_are_read_by_neither(apache: Judge) -> None:
    records = [Record(0, 0, None, bytes(100_000))]  # more than one block
    data = build_batch(records, codec_id=3)[:61]
    data += lz4.frame.compress(build_batch(records)[61:], block_linked=True)
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    batch.write_crc(data, 0, len(data))
    (answer,) = apache.parse([bytes(data)])
    assert "Dependent block stream is unsupported" in answer["batches"][0]["stopped"]
    with pytest.raises(RecordError, match="depend on one another"):
        parse(data, 2)


# Where we refuse and Apache does not, in words that our errors contain. None of it is made by any client.
STRICTER = (
    "left behind 0 records",  # a batch that says it is empty and is not
    "do not fit in 64 bits",  # timestamps and offsets: Java's wrap around
    "left behind the value",  # a v0 or v1 message larger than its key and value
    "bytes left",  # half a message behind the last whole one: Apache ignores it, and so does whoever calls scan
    "a v0 message in a v1 wrapper",  # Apache refuses it on append only
    "a v1 message in a v0 wrapper",
)


@pytest.mark.parametrize(("magic", "codec"), [*product((0, 1, 2), ("none",)), (1, "snappy"), (2, "lz4")])
def test_damage_that_apache_refuses_we_refuse_and_what_it_reads_we_read(apache: Judge, magic: int, codec: str) -> None:
    sets = list(damaged(magic, codec, per_seed=30))
    for data, answer in zip(sets, apache.parse(sets), strict=True):
        theirs = read_by_apache(answer)
        if "OutOfMemoryError" in answer.get("error", "") + answer.get("stopped", ""):
            continue  # no verdict: Apache allocates what a message inside a wrapper, or a block of snappy, claims
        try:
            ours = parse(data, magic)
        except RecordError as error:
            reason = str(error)
            assert theirs is None or any(words in reason for words in STRICTER), (reason, data.hex())
        else:
            assert theirs is not None, (answer, data.hex())
            assert [r[:4] for r in ours] == [r[:4] for r in theirs], data.hex()
