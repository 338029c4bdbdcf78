"""The per-record loops, both as the compiled extension and as the same file interpreted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import protocol.records
from protocol.errors import ErrorCode
from protocol.records import Record, RecordError, _no_cython, _walker, walker_kind
from protocol.records._built import hash_of
from protocol.records.batch import (
    BASE_OFFSET,
    COUNT,
    LAST_DELTA,
    MAX_TIMESTAMP,
    assign,
    check,
    unpack_header,
    write_crc,
)
from protocol.records.content import DISORDERED, LATEST, build_batch, check_records
from tests.protocol.records.loops import KINDS, interpreted, skip_if_not_compiled

WALKERS = {"interpreted": interpreted("_walker")}
if walker_kind() == "compiled":
    WALKERS["compiled"] = _walker


@pytest.fixture(params=KINDS)
def walker(request: pytest.FixtureRequest) -> Any:
    """Each kind of walker that there is."""
    if request.param not in WALKERS:
        skip_if_not_compiled()
    return WALKERS[request.param]


def test_an_extension_of_another_source_is_refused(tmp_path: Path) -> None:
    skip_if_not_compiled()
    package = Path(protocol.records.__file__).parent
    copy = shutil.copytree(package.parent, tmp_path / "protocol", ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "records" / "_walker.py").open("a") as source:
        source.write("\nCHANGED = True\n")
    with (copy / "records" / "_folding.pxd").open("a") as source:  # a part of the converter
        source.write("# changed\n")
    ask = "from protocol.records import _walker, convert, walker_kind; print(walker_kind(), _walker.CHANGED)"
    told = subprocess.run([sys.executable, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert told.stdout == "interpreted True\n"
    for changed in ("_walker.py", "_converter.py"):
        assert f"{changed} has changed since it was compiled" in told.stderr


@pytest.mark.parametrize("module", ["_walker", "_converter", "_cleaner"])
def test_an_extension_is_refused_where_the_numbers_that_all_loops_share_have_changed(
    module: str, tmp_path: Path
) -> None:
    copy = shutil.copytree(Path(protocol.records.__file__).parent, tmp_path / "records")
    before = hash_of(str(copy), module)
    with (copy / "_numbers.py").open("a") as source:
        source.write("# changed\n")
    assert hash_of(str(copy), module) != before


# Two records by hand. First: timestamp +1, key "k", value null, header h -> null. Second: timestamp +3, key null,
# value "vv", no header.
FIRST = bytes([2 * 10, 0, 2, 0, 2, *b"k", 1, 2, 2, *b"h", 1])
SECOND = bytes([2 * 8, 0, 6, 2, 1, 4, *b"vv", 0])
TWO = FIRST + SECOND

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
BYTES = st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
HEADERS = st.lists(st.tuples(st.binary(max_size=70), st.none() | BYTES), max_size=3).map(tuple)
RECORD = st.builds(
    Record, offset=INT32, timestamp=INT64, key=st.none() | BYTES, value=st.none() | BYTES, headers=HEADERS
)


def walk(walker: Any, body: bytes, count: int = 2, base_timestamp: int = 100) -> tuple[int, ...]:
    facts: tuple[int, ...] = walker.walk(body, 0, len(body), count, base_timestamp)
    return facts


def test_a_pure_installation_needs_no_cython() -> None:
    names = {"cfunc", "inline", "exceptval", "compiled"}
    assert names <= set(vars(_no_cython))


def test_facts_of_two_records(walker: Any) -> None:
    assert walk(walker, TWO) == (103, 1, 101, 1, -1)


def test_parsed_records_are_what_was_written_by_hand(walker: Any) -> None:
    assert walker.parse(TWO, 0, len(TWO), 2, 50, 100, None) == [
        Record(50, 101, b"k", None, ((b"h", None),)),
        Record(51, 103, None, b"vv"),
    ]


def test_packed_records_are_the_bytes_written_by_hand(walker: Any) -> None:
    records = [Record(50, 101, b"k", None, ((b"h", None),)), Record(51, 103, None, b"vv")]
    assert walker.pack(records, 50, 100) == TWO


def test_append_time_replaces_every_timestamp(walker: Any) -> None:
    assert [r.timestamp for r in walker.parse(TWO, 0, len(TWO), 2, 50, 100, 7)] == [7, 7]


def test_only_the_given_range_is_read(walker: Any) -> None:
    around = b"\xff\xff" + TWO + b"\xff"
    assert walker.walk(memoryview(around), 2, 2 + len(TWO), 2, 100) == (103, 1, 101, 1, -1)


def test_an_empty_body_holds_no_records(walker: Any) -> None:
    assert walker.walk(b"", 0, 0, 0, 100) == (-1, -1, -1, -1, -1)


def test_records_without_timestamp_count_for_neither_end(walker: Any) -> None:
    body = walker.pack([Record(0, -1, b"", b""), Record(1, 70, b"", b""), Record(2, -1, b"", b"")], 0, -1)
    assert walk(walker, body, 3, -1)[:3] == (70, 1, 70)


def test_gaps_in_offsets_are_reported_not_refused(walker: Any) -> None:
    body = walker.pack([Record(0, 0, b"", b""), Record(5, 0, b"", b"")], 0, 0)
    assert walk(walker, body, 2, 0)[4] == 1


def test_timestamps_beyond_64_bits_are_refused(walker: Any) -> None:
    with pytest.raises(RecordError) as caught:
        walk(walker, TWO, 2, 2**63 - 2)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP


STAMPED = [
    Record(at, timestamp, key, b"") for at, (timestamp, key) in enumerate([(5, b"k"), (9, None), (-1, b""), (20, b"k")])
]


@pytest.mark.parametrize(
    ("needs_key", "limits", "most", "found"),
    [
        (False, None, 9, []),
        (True, None, 9, [(1, None)]),
        (False, (5, 20), 9, []),
        (False, (6, 19), 9, [(0, 5), (3, 20)]),
        (True, (10, 19), 9, [(0, 5), (1, None), (3, 20)]),
        (True, (10, 19), 2, [(0, 5), (1, None)]),
        (True, (10, 19), 0, []),
        (False, (-(2**63), 2**63 - 1), 9, []),
    ],
)
def test_records_that_a_topic_refuses_are_found(
    walker: Any, needs_key: bool, limits: tuple[int, int] | None, most: int, found: list[tuple[int, int | None]]
) -> None:
    body = b"x" + walker.pack(STAMPED, 0, 5)
    assert walker.refused(memoryview(body), 1, len(body), 4, 5, needs_key, limits, most) == found


@pytest.mark.parametrize("cut", range(len(TWO)))
def test_every_truncation_is_an_invalid_record(walker: Any, cut: int) -> None:
    with pytest.raises(RecordError) as caught:
        walk(walker, TWO[:cut])
    assert (caught.value.code, caught.value.index) == (ErrorCode.INVALID_RECORD, 0 if cut < len(FIRST) else 1)


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 2**31 - 1])
def test_a_count_that_does_not_use_up_the_bytes_is_refused(walker: Any, count: int) -> None:
    with pytest.raises(RecordError):
        walk(walker, TWO, count)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (bytes([10, 0, 0, 0, 1, 1]), "its size is"),  # says 5
        (bytes([1, 0, 0, 0, 1, 1, 0]), "its size is"),  # says -1
        (bytes([0x80] * 5 + [0] * 8), "its size is"),  # six bytes long
        (bytes([12, 0, 0, 0, 4, 65, 1]), "value does not fit"),  # the key took the value's bytes
        (bytes([12, 0, 0, 0, 12, 65, 1]), "key does not fit"),
        (bytes([12, 0, 0, 0, 1, 1, 1]), "headers"),  # -1 of them
        (bytes([12, 0, 0, 0, 1, 1, 2]), "header's key"),
        (bytes([16, 0, 0, 0, 1, 1, 2, 1, 1]), "header's key"),  # null
        (bytes([16, 0, 0, 0, 1, 1, 2, 0, 2]), "header's key"),
        (bytes([14, 0, 0, 0, 1, 1, 0, 0]), "more than its fields"),
        (bytes([0x80 | 22, 0] + [0x80] * 11), "timestamp_delta"),
    ],
)
def test_structures_that_cannot_be(walker: Any, body: bytes, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        walk(walker, body, 1)


def test_bits_of_a_varint_beyond_its_type_are_dropped_as_in_kafka(walker: Any) -> None:
    longest = bytes([0x81, 0x80, 0x80, 0x80, 0x70])  # -1 in 5 bytes, three bits too many
    body = bytes([2 * (1 + 10 + 1 + 5 + 1 + 1), 0]) + bytes([0x82] + [0x80] * 8 + [0x7E]) + b"\0" + longest + b"\1\0"
    assert walk(walker, body, 1) == (101, 0, 101, 0, -1)


def test_offsets_too_far_apart_cannot_be_packed(walker: Any) -> None:
    with pytest.raises(OverflowError):
        walker.pack([Record(2**31, 0, None, None)], 0, 0)


def test_timestamps_too_far_apart_cannot_be_packed(walker: Any) -> None:
    with pytest.raises(OverflowError):
        walker.pack([Record(0, 2**63 - 1, None, None)], 0, -(2**63))


@settings(max_examples=150)
@given(st.lists(RECORD, max_size=8), st.data())
def test_pack_then_parse_is_identity_and_both_kinds_agree(records: list[Record], data: Any) -> None:
    low = min((r.timestamp for r in records), default=0)
    high = max((r.timestamp for r in records), default=0)
    base = data.draw(st.integers(max(-(2**63), high - 2**63 + 1), min(2**63 - 1, low + 2**63)))
    bodies = [walker.pack(records, 0, base) for walker in WALKERS.values()]
    walks = [walker.walk(bodies[0], 0, len(bodies[0]), len(records), base) for walker in WALKERS.values()]
    for walker in WALKERS.values():
        assert walker.parse(bodies[0], 0, len(bodies[0]), len(records), 0, base, None) == records
    assert all(body == bodies[0] for body in bodies)
    assert all(facts == walks[0] for facts in walks)


def outcome(walker: Any, body: bytes, count: int, base: int) -> Any:
    """Facts, or the error's whole content."""
    try:
        return walker.walk(body, 0, len(body), count, base)
    except RecordError as error:
        return error.code, error.position, error.reason, error.index


@settings(max_examples=400)
@given(st.lists(RECORD, max_size=4), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4), INT64)
def test_both_kinds_say_the_same_of_damaged_records(
    records: list[Record], damage: list[tuple[int, int]], base: int
) -> None:
    body = bytearray(WALKERS["interpreted"].pack([r._replace(timestamp=0) for r in records], 0, 0))
    for at, value in damage:
        if body:
            body[at % len(body)] = value
    outcomes = [outcome(walker, bytes(body), len(records), base) for walker in WALKERS.values()]
    assert all(o == outcomes[0] for o in outcomes)


@settings(max_examples=400)
@given(st.binary(max_size=60), st.integers(-2, 6), INT64)
def test_both_kinds_say_the_same_of_any_bytes(body: bytes, count: int, base: int) -> None:
    outcomes = [outcome(walker, body, count, base) for walker in WALKERS.values()]
    assert all(o == outcomes[0] for o in outcomes)


# accept: what it takes must be what the patient checks take, and then it stamps as `batch.assign` does


def accepted(walker: Any, batch: bytes, most_bytes: int = 1 << 20) -> tuple[Any, bytes]:
    """The header, or None, and the bytes afterwards."""
    buffer = bytearray(batch)
    return walker.accept(memoryview(buffer), most_bytes, 2**40 + 3, 7), bytes(buffer)


def stamped(batch: bytes) -> bytes:
    buffer = bytearray(batch)
    assign(buffer, 0, 2**40 + 3, len(batch) - 12, 7)
    return bytes(buffer)


def plain_batch(count: int = 3, **settings: Any) -> bytes:
    return bytes(build_batch([Record(at, 1000 + at, b"k", b"v" * 70) for at in range(count)], **settings))


def patched(batch: bytes, at: int, new: bytes) -> bytes:
    """The batch with other bytes at `at`, and a checksum that holds."""
    buffer = bytearray(batch)
    buffer[at : at + len(new)] = new
    write_crc(buffer, 0, len(buffer))
    return bytes(buffer)


@pytest.mark.parametrize("count", [1, 2, 100])
def test_a_plain_batch_is_accepted_and_stamped(walker: Any, count: int) -> None:
    batch = plain_batch(count)
    assert accepted(walker, batch) == (unpack_header(batch, 0), stamped(batch))


def test_an_idempotent_and_a_transactional_batch_are_accepted(walker: Any) -> None:
    batch = plain_batch(producer_id=2**62, producer_epoch=9, base_sequence=2**31 - 2, transactional=True)
    assert accepted(walker, batch) == (unpack_header(batch, 0), stamped(batch))


def test_records_without_timestamps_are_accepted(walker: Any) -> None:
    batch = bytes(build_batch([Record(0, -1, None, None)]))
    assert accepted(walker, batch) == (unpack_header(batch, 0), stamped(batch))


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        plain_batch()[:60],
        plain_batch()[:-1],
        plain_batch() + b"\0",
        plain_batch() + plain_batch(),
        plain_batch(base_offset=0, last_offset=3),
        plain_batch(codec_id=1),
        plain_batch(append_time=5),
        plain_batch(producer_id=1, control=True),
        plain_batch(producer_id=1),  # no sequence
        plain_batch(max_timestamp=5000),
        plain_batch(max_timestamp=-1),
        patched(plain_batch(), 0, b"\0" * 7 + b"\1"),  # base offset
        patched(plain_batch(), 16, b"\3"),  # magic
        patched(plain_batch(), 21, b"\1\0"),  # an attribute nobody has defined
        patched(plain_batch(), 27, b"\x7f" + b"\xff" * 7),  # base timestamp
        patched(plain_batch(), 35, b"\x80" + b"\0" * 7),  # largest timestamp
        patched(plain_batch(), 57, b"\0\0\0\0"),
        patched(plain_batch(), 57, b"\0\0\0\4"),
        patched(plain_batch(), 61, b"\0"),  # first record's size
        patched(plain_batch(), 65, b"\2"),  # first record's offset delta
    ],
)
def test_any_other_batch_is_left_as_it_is_for_others_to_judge(walker: Any, batch: bytes) -> None:
    assert accepted(walker, batch) == (None, batch)


def test_a_batch_larger_than_allowed_is_not_accepted(walker: Any) -> None:
    batch = plain_batch()
    assert accepted(walker, batch, len(batch))[0] is not None
    assert accepted(walker, batch, len(batch) - 1)[0] is None


@settings(max_examples=400)
@given(
    st.lists(RECORD, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=3),
    st.integers(-1, 2**61),
)
def test_what_is_accepted_passes_every_patient_check(
    records: list[Record], damage: list[tuple[int, int]], timestamp: int
) -> None:
    records = [
        record._replace(offset=at, timestamp=timestamp + record.timestamp % 9) for at, record in enumerate(records)
    ]
    buffer = build_batch(records)
    for at, value in damage:
        buffer[at % len(buffer)] = value
    write_crc(buffer, 0, len(buffer))
    batch = bytes(buffer)
    outcomes = [accepted(walker, batch) for walker in WALKERS.values()]
    assert all(each == outcomes[0] for each in outcomes)
    header = outcomes[0][0]
    if header is None:
        assert outcomes[0][1] == batch
        return
    assert check(memoryview(batch), 0, len(batch)) == header
    facts = check_records(memoryview(batch), 0, header)
    assert (facts[LATEST], facts[DISORDERED]) == (header[MAX_TIMESTAMP], -1)
    assert (header[BASE_OFFSET], header[LAST_DELTA]) == (0, header[COUNT] - 1)
    assert outcomes[0][1] == stamped(batch)
