"""A failure nobody foresaw still reaches the client as a code: every API's refusal, in every version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kbroker.api.routes import ROUTES, load
from protocol.errors import ErrorCode
from protocol.flat import flattened, message_of
from protocol.message import Message, Struct
from protocol.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse
from protocol.messages.groups import DescribeGroupsRequest, DescribeGroupsResponse, FindCoordinatorRequest
from protocol.schema import fields_at
from tests.judges.values import messages

load()
SERVED = [(api, version) for api, route in sorted(ROUTES.items()) for version in range(route.first, route.last + 1)]


@pytest.mark.parametrize(("api", "version"), SERVED, ids=[f"{ROUTES[api].name}-v{version}" for api, version in SERVED])
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_a_refusal_can_be_written_and_no_part_of_it_is_a_success(api: int, version: int, data: st.DataObject) -> None:
    route = ROUTES[api]
    request = data.draw(messages(route.request, version))
    if isinstance(request, FindCoordinatorRequest) and version >= 4:
        assume(request.coordinator_keys)  # without a key nothing is done that could fail
    if route.flat is None:
        answer = route.refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, "a reason", version)
    else:
        values = route.refuse(flattened(request), ErrorCode.UNKNOWN_SERVER_ERROR, "a reason", version)
        answer = message_of(route.flat, values) if isinstance(values, tuple) else values
    if isinstance(answer, Message):
        answer.encode(version)
        assert set(codes_in(answer, version)) <= {ErrorCode.UNKNOWN_SERVER_ERROR}


def codes_in(part: object, version: int) -> Iterator[int]:
    """Every error code that a version of an answer and its parts has."""
    if isinstance(part, list):
        for each in part:
            yield from codes_in(each, version)
    elif isinstance(part, Struct):
        for field in fields_at(type(part), version):
            value = getattr(part, field.name)
            if field.name == "error_code":
                yield value
            else:
                yield from codes_in(value, version)


@pytest.mark.parametrize(("version", "text"), [(5, None), (6, "a reason")])
def test_a_group_that_cannot_be_described_says_why_if_it_can(version: int, text: str | None) -> None:
    request = DescribeGroupsRequest(groups=["g"])
    answer = ROUTES[15].refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, "a reason", version)
    assert isinstance(answer, DescribeGroupsResponse)
    assert answer.groups[0].error_message == text


@pytest.mark.parametrize("version", [7, 8])
def test_offsets_that_cannot_be_fetched_are_refused_by_group_where_there_may_be_many(version: int) -> None:
    request = OffsetFetchRequest(group_id="g", topics=[], groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    answer = ROUTES[9].refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, "a reason", version)
    assert isinstance(answer, OffsetFetchResponse)
    assert (len(answer.groups), answer.error_code != ErrorCode.NONE) == ((0, True) if version == 7 else (1, False))
