"""A failure nobody foresaw still reaches the client as a code: every API's refusal, in every version."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kbroker.api.routes import ROUTES, load
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.groups import FindCoordinatorRequest
from tests.judges.values import messages

load()
SERVED = [(api, version) for api, route in sorted(ROUTES.items()) for version in range(route.first, route.last + 1)]


@pytest.mark.parametrize(("api", "version"), SERVED, ids=[f"{ROUTES[api].name}-v{version}" for api, version in SERVED])
@settings(max_examples=2, deadline=None)
@given(data=st.data())
def test_a_refusal_can_be_written(api: int, version: int, data: st.DataObject) -> None:
    route = ROUTES[api]
    request = data.draw(messages(route.request, version))
    if isinstance(request, FindCoordinatorRequest) and version >= 4:
        assume(request.coordinator_keys)  # without a key nothing is done that could fail
    answer = route.refuse(request, ErrorCode.UNKNOWN_SERVER_ERROR, "a reason")
    if isinstance(answer, Message):
        answer.encode(version)
