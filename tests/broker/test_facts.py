"""Answers that several make together."""

from __future__ import annotations

from kbroker.broker.facts import Joint, Reply
from protocol.message import Message
from protocol.messages.groups import HeartbeatResponse


def test_the_last_part_makes_the_whole_and_what_was_said_is_taken() -> None:
    taken: list[Message] = []
    one, two = HeartbeatResponse(error_code=1), HeartbeatResponse(error_code=2)
    joint = Joint("ticket", 3, lambda: two)
    assert joint.part(taken.append).answered(one) is None
    assert joint.part(taken.append).answered(None) is None  # nobody could be asked
    assert joint.part().answered(one) == Reply("ticket", two)
    assert taken == [one]
