"""Apache agrees with the headers of every request and answer, and with which version of a header goes where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.apis import APIS, BY_KEY, Api
from protocol.headers import (
    encode_request_header,
    encode_response_header,
    parse_request_header,
    parse_response_header,
    request_header_version,
    response_header_version,
    skip_tags,
)
from tests.judges.java import NEWEST, Judge, require

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]
_INT32 = st.integers(-(2**31), 2**31 - 1)
_CLIENTS = st.none() | st.text(max_size=20) | st.just("x" * 32_767)
_TAGS = st.dictionaries(st.integers(0, 300), st.binary(max_size=5), max_size=3)
_ASKED = [(BY_KEY[key], version) for key, version in [(7, 0), (7, 1), (7, 3), (12, 0), (12, 4), (18, 0), (18, 3)]]


def test_every_request_and_answer_has_apaches_header_version(apache: Judge) -> None:
    theirs = {
        (api["key"], int(version)): versions
        for api in apache.has["apis"]
        for version, versions in api["headers"].items()
    }
    ours = {
        (api.key, version): [
            request_header_version(api.request, version),
            response_header_version(api.response, version),
        ]
        for api in APIS
        for version in range(api.versions[0], api.versions[1] + 1)
        if (api.key, version) in theirs
    }
    assert ours == {pair: versions for pair, versions in theirs.items() if pair in ours}
    assert len(ours) > 200


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(_ASKED), _INT32, _CLIENTS)
def test_request_headers_are_written_as_apache_writes_them(
    asked: tuple[Api, int], number: int, client: str | None
) -> None:
    api, version = asked
    header = request_header_version(api.request, version)
    tree: dict[str, object] = {"requestapikey": api.key, "requestapiversion": version, "correlationid": number}
    if header > 0:
        tree["clientid"] = client
    assert _judge(header).encode([("RequestHeader", header, tree)]) == [
        encode_request_header(api.request, version, number, client)
    ]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.sampled_from(_ASKED), _INT32, _CLIENTS, _TAGS)
def test_request_headers_of_apache_are_read(
    asked: tuple[Api, int], number: int, client: str | None, tags: dict[int, bytes]
) -> None:
    api, version = asked
    header = request_header_version(api.request, version)
    tree: dict[str, object] = {"requestapikey": api.key, "requestapiversion": version, "correlationid": number}
    if header > 0:
        tree["clientid"] = client
    if header > 1:
        tree["_tags"] = {str(tag): data.hex() for tag, data in sorted(tags.items())}
    (data,) = _judge(header).encode([("RequestHeader", header, tree)])
    assert isinstance(data, bytes), data
    *fields, end = parse_request_header(data)
    assert fields == [api.key, version, number, client if header else None]
    assert (skip_tags(data, end) if header > 1 else end) == len(data)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.sampled_from(_ASKED), _INT32)
def test_answer_headers_are_written_as_apache_writes_them(asked: tuple[Api, int], number: int) -> None:
    api, version = asked
    header = response_header_version(api.response, version)
    (data,) = _judge(header).encode([("ResponseHeader", header, {"correlationid": number})])
    assert data == encode_response_header(api.response, version, number)
    assert parse_response_header(api.response, version, data) == (number, len(data))


def _judge(header: int) -> Judge:
    return require("3.9.1" if header == 0 else NEWEST)  # the later release has lost header version 0
