"""The hostile shapes of the live fuzz."""

from __future__ import annotations

from random import Random

from kbroker.api.routes import load
from protocol.messages.groups import DescribeGroupsRequest, FindCoordinatorRequest
from protocol.messages.handshake import ApiVersionsRequest
from tests.fuzz.hostile import MOST_BYTES, arrays, encoded, grown
from tests.fuzz.live import malformed
from tests.requests import produce


def test_a_grown_request_is_well_formed_and_long() -> None:
    load()
    rng = Random(1)
    for request, version in (
        (FindCoordinatorRequest(key_type=0, coordinator_keys=["key"]), 4),
        (DescribeGroupsRequest(groups=["g"]), 5),
        (produce(b"v"), 9),
    ):
        frame = encoded(request, version)
        longest = max((grown(rng, frame) or b"" for _ in range(5)), key=len)
        assert 10 * len(frame) < len(longest) <= 2 * MOST_BYTES
        assert not malformed(longest)


def test_a_request_without_arrays_does_not_grow() -> None:
    load()
    assert grown(Random(1), encoded(ApiVersionsRequest(), 0)) is None


def test_arrays_within_arrays_are_found() -> None:
    assert [name for _, name in arrays(produce(b"v"))] == ["topic_data", "partition_data"]
