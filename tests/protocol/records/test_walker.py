"""The per-record loops, both as the compiled extension and as the same file interpreted."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import protocol.records
from protocol.errors import ErrorCode
from protocol.records import Record, RecordError, _no_cython, walker_kind


def interpreted() -> ModuleType:
    """The walker's source as Python runs it, whatever is installed beside it."""
    source = Path(protocol.records.__file__).with_name("_walker.py")
    spec = importlib.util.spec_from_file_location("walker_interpreted", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed() -> ModuleType:
    """The extension, where installation made one."""
    import protocol.records._walker as module

    return module


KINDS = {"interpreted": interpreted()}
if walker_kind() == "compiled":
    KINDS["compiled"] = installed()


@pytest.fixture(params=["interpreted", "compiled"])
def walker(request: pytest.FixtureRequest) -> Any:
    """Each kind of walker that there is."""
    if request.param not in KINDS:
        pytest.skip("the walker was not compiled when this was installed: no C compiler")
    return KINDS[request.param]


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
    bodies = [walker.pack(records, 0, base) for walker in KINDS.values()]
    walks = [walker.walk(bodies[0], 0, len(bodies[0]), len(records), base) for walker in KINDS.values()]
    for walker in KINDS.values():
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
    body = bytearray(KINDS["interpreted"].pack([r._replace(timestamp=0) for r in records], 0, 0))
    for at, value in damage:
        if body:
            body[at % len(body)] = value
    outcomes = [outcome(walker, bytes(body), len(records), base) for walker in KINDS.values()]
    assert all(o == outcomes[0] for o in outcomes)


@settings(max_examples=400)
@given(st.binary(max_size=60), st.integers(-2, 6), INT64)
def test_both_kinds_say_the_same_of_any_bytes(body: bytes, count: int, base: int) -> None:
    outcomes = [outcome(walker, body, count, base) for walker in KINDS.values()]
    assert all(o == outcomes[0] for o in outcomes)
