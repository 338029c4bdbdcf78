"""Headers: which version a message has, and reading them from any bytes."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.headers import (
    encode_request_header,
    encode_response_header,
    parse_request_header,
    parse_response_header,
    request_header_version,
    response_header_version,
    skip_tags,
)
from protocol.message import DecodeError
from protocol.messages.control import ControlledShutdownRequest
from protocol.messages.handshake import ApiVersionsRequest
from protocol.messages.produce import ProduceRequest

int32 = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    ("message", "version", "request_version", "response_version"),
    [
        (ProduceRequest, 8, 1, 0),
        (ProduceRequest, 9, 2, 1),
        (ApiVersionsRequest, 2, 1, 0),
        (ApiVersionsRequest, 4, 2, 0),
        (ControlledShutdownRequest, 0, 0, 0),
        (ControlledShutdownRequest, 1, 1, 0),
        (ControlledShutdownRequest, 3, 2, 1),
    ],
)
def test_the_header_version_follows_from_api_and_version(message, version, request_version, response_version) -> None:
    assert request_header_version(message, version) == request_version
    assert response_header_version(message, version) == response_version


def test_a_request_header_byte_by_byte() -> None:
    assert encode_request_header(ProduceRequest, 9, 7, "ab") == b"\x00\x00\x00\x09\x00\x00\x00\x07\x00\x02ab\x00"
    assert encode_request_header(ProduceRequest, 8, 7, None) == b"\x00\x00\x00\x08\x00\x00\x00\x07\xff\xff"
    assert encode_request_header(ControlledShutdownRequest, 0, 7, "ab") == b"\x00\x07\x00\x00\x00\x00\x00\x07"


@given(int32, st.none() | st.text(max_size=40), st.sampled_from([3, 8, 9, 13]))
def test_what_is_written_is_read_back(correlation_id: int, client_id: str | None, version: int) -> None:
    frame = encode_request_header(ProduceRequest, version, correlation_id, client_id)
    assert parse_request_header(memoryview(frame))[:4] == (0, version, correlation_id, client_id)


@given(int32, st.sampled_from([8, 9]))
def test_an_answers_header_is_read_back(correlation_id: int, version: int) -> None:
    frame = encode_response_header(ProduceRequest, version, correlation_id)
    assert parse_response_header(ProduceRequest, version, frame) == (correlation_id, len(frame))


def test_the_oldest_controlled_shutdown_has_no_client_id() -> None:
    frame = encode_request_header(ControlledShutdownRequest, 0, 5, None)
    assert parse_request_header(frame) == (7, 0, 5, None, 8)
    assert parse_request_header(frame + b"\x00\x00\x00\x01") == (7, 0, 5, None, 8)


def test_tags_are_skipped() -> None:
    assert skip_tags(b"xx\x02\x00\x01a\x05\x02bcrest", 2) == 10


@given(st.binary(max_size=40))
def test_any_bytes_are_a_header_or_a_named_error(frame: bytes) -> None:
    with contextlib.suppress(DecodeError):
        end = parse_request_header(memoryview(frame))[4]
        assert end <= len(frame)
        assert skip_tags(frame, end) <= len(frame)


@pytest.mark.parametrize(
    ("frame", "path"),
    [
        (b"", "header"),
        (b"\x00\x03\x00\x01\x00\x00\x00\x07\x00", "header"),
        (b"\x00\x03\x00\x01\x00\x00\x00\x07\xff\xfe", "client_id"),
        (b"\x00\x03\x00\x01\x00\x00\x00\x07\x00\x05abc", "client_id"),
    ],
)
def test_a_malformed_header_names_what_is_wrong(frame: bytes, path: str) -> None:
    with pytest.raises(DecodeError) as caught:
        parse_request_header(frame)
    assert caught.value.path == path


def test_a_client_id_that_is_no_utf8_is_read_as_kafka_reads_it() -> None:
    assert parse_request_header(b"\x00\x03\x00\x01\x00\x00\x00\x07\x00\x03a\xffb")[3] == "a\ufffdb"
