"""Varints: known forms, round trips, ends and excess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.primitives import (
    read_uvarint,
    read_uvarlong,
    read_varint,
    read_varlong,
    uvarint,
    varint,
    zigzag,
)

KNOWN = [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (2**32 - 1, b"\xff\xff\xff\xff\x0f")]


@pytest.mark.parametrize(("value", "data"), KNOWN)
def test_known_forms(value: int, data: bytes) -> None:
    assert (uvarint(value), read_uvarint(b"." + data, 1)) == (data, (value, 1 + len(data)))


@pytest.mark.parametrize(("value", "unsigned"), [(0, 0), (-1, 1), (1, 2), (-2, 3), (2**31 - 1, 2**32 - 2)])
def test_zigzag_counts_away_from_zero(value: int, unsigned: int) -> None:
    assert zigzag(value) == unsigned


@given(st.integers(0, 2**32 - 1))
def test_uvarint_round_trip(value: int) -> None:
    assert read_uvarint(uvarint(value), 0)[0] == value


@given(st.integers(0, 2**64 - 1))
def test_uvarlong_round_trip(value: int) -> None:
    assert read_uvarlong(uvarint(value), 0)[0] == value


@given(st.integers(-(2**31), 2**31 - 1))
def test_varint_round_trip(value: int) -> None:
    assert read_varint(varint(value), 0)[0] == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_round_trip(value: int) -> None:
    assert read_varlong(varint(value), 0)[0] == value


@pytest.mark.parametrize("read", [read_uvarint, read_varint, read_uvarlong, read_varlong])
@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff\xff"])
def test_end_inside_a_varint_is_an_index_error(read, data: bytes) -> None:
    with pytest.raises(IndexError):
        read(data, 0)


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x10", b"\x80\x80\x80\x80\x80\x01"])
def test_more_than_32_bits_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="more than 32 bits"):
        read_uvarint(data, 0)


@pytest.mark.parametrize("data", [b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01"])
def test_more_than_64_bits_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):
        read_uvarlong(data, 0)
