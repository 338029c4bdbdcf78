"""A judge that never objects is no judge: messages declared wrongly on purpose are objected to."""

from __future__ import annotations

import pytest

from protocol.message import Array, Int16, Int32, Message, String, since
from tests.judges.java import Judge
from tests.judges.verdicts import apache_objects, kio_objects


class HeartbeatRequest(Message, api=12, versions="0-4", flexible="4+"):
    """Two fields swapped."""

    generation_id: Int32
    group_id: String
    member_id: String
    group_instance_id: String | None = since(3, default=None)


class SyncGroupRequest(Message, api=14, versions="0-5", flexible="4+"):
    """A default that is not Kafka's."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: String | None = since(3, default=None)
    protocol_type: String | None = since(5, default="consumer")
    assignments: Array[Int32]  # left empty: what it holds does not matter here


class HeartbeatResponse(Message, api=12, versions="0-4", flexible="4+"):
    """The throttle time comes a version early."""

    throttle_time_ms: Int32 = since(0, default=0)
    error_code: Int16


def _swapped() -> HeartbeatRequest:
    return HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def test_kio_sees_swapped_fields() -> None:
    with pytest.raises(Exception, match=r".+"):  # it reads a length out of the number, and may stumble on it
        assert kio_objects(_swapped(), 0) == []


@pytest.mark.java
def test_apache_sees_swapped_fields(apache: Judge) -> None:
    assert len(apache_objects(apache, _swapped(), 0)) == 2


@pytest.mark.java
def test_apache_sees_a_wrong_default(apache: Judge) -> None:
    assert apache_objects(
        apache, SyncGroupRequest(group_id="g", generation_id=1, member_id="m", assignments=[]), 0
    ) == ["protocol_type: ours 'consumer', theirs None"]


@pytest.mark.java
def test_apache_sees_a_field_too_early(apache: Judge) -> None:
    assert apache_objects(apache, HeartbeatResponse(throttle_time_ms=0, error_code=3), 0) != []
