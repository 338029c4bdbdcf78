"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: the groups whose coordinator assigns (KIP-848).

Served: ConsumerGroupHeartbeat 0-1, ConsumerGroupDescribe 0-1. Groups are `kbroker.groups`; these handlers hand requests
over, and have the coordinator's runtime carry out what comes back. A member is answered when what its heartbeat changed
is committed. What a regular expression matches is told only of topics that the member may describe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.authorization import Asking, Right, Special, Whole, for_each
from kbroker.api.call import LATER
from kbroker.api.coordinator_ready import once_loaded
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.coordinator_types import GROUP as GROUP_COORDINATOR
from kbroker.config.limits import ELEMENTS_PER_REQUEST
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedGroup,
)

if TYPE_CHECKING:
    from kbroker.api.authorization import Left
    from kbroker.api.call import Call, InSlices, Result

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def consumer_group_heartbeat(request: ConsumerGroupHeartbeatRequest, call: Call) -> Result:
    """Join, live, take over and let go of partitions, leave."""
    broker, session = call.broker, call.session

    def may_describe(topic: str) -> bool:
        return broker.auth_helper.allows(session, Operation.DESCRIBE, TOPIC, topic, hidden=True)

    effects = broker.groups.consumer_group_heartbeat(request, call.caller, call.now_ms, may_describe)
    broker.group_runtime.carry_out(effects, call.now_ms)
    return LATER


def consumer_group_describe(request: ConsumerGroupDescribeRequest, call: Call) -> InSlices:
    """Groups in detail, each with its own error, and once, however often it is named."""
    groups: dict[str, DescribedGroup] = {}
    for group_id in request.group_ids:
        if group_id not in groups:
            groups[group_id] = _described(group_id, request, call)
            yield
    return ConsumerGroupDescribeResponse(groups=list(groups.values()))


def _described(group_id: str, request: ConsumerGroupDescribeRequest, call: Call) -> DescribedGroup:
    helper = call.broker.auth_helper
    group = call.broker.groups.describe_consumer_group(group_id)
    if not group.error_code and request.include_authorized_operations:
        group.authorized_operations = helper.operations(call.session, GROUP, group_id)
    if not all(helper.allows(call.session, Operation.DESCRIBE, TOPIC, name) for name in sorted(_topics(group))):
        return _not_described(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS)
    return group


def _topics(group: DescribedGroup) -> set[str]:
    """The topics that an answer names."""
    return {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }.union(*(member.subscribed_topic_names for member in group.members))


def _not_described(group_id: str, code: ErrorCode, text: str | None) -> DescribedGroup:
    return DescribedGroup(
        error_code=code,
        error_message=text,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


# -- refusals and rights


def _refuse_heartbeat(
    request: ConsumerGroupHeartbeatRequest, code: ErrorCode, text: str, version: int
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=code, error_message=text, member_epoch=0, heartbeat_interval_ms=0, assignment=None
    )


def _refuse_describe(
    request: ConsumerGroupDescribeRequest, code: ErrorCode, text: str, version: int
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_not_described(each, code, text) for each in request.group_ids])


def _ask_for_topics(request: ConsumerGroupHeartbeatRequest, asking: Asking) -> Left:
    """A member may subscribe by name to what it may describe; else it is refused as a whole."""
    yield from ()
    names = dict.fromkeys(request.subscribed_topic_names or ())
    if not all(asking.allows(Operation.DESCRIBE, TOPIC, name) for name in names):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED.message)
    return request


MEMBERS_NEED = (
    Whole((Operation.READ,), GROUP, lambda request: request.group_id),
    Special((Right(Operation.DESCRIBE, TOPIC),), _ask_for_topics),
)
DESCRIPTIONS_NEED = (for_each(Operation.DESCRIBE, GROUP, "group_ids", "groups", lambda group_id, call: group_id),)
ROUTES = (
    Route(
        68,
        ConsumerGroupHeartbeatRequest,
        0,
        1,
        consumer_group_heartbeat,
        _refuse_heartbeat,
        MEMBERS_NEED,
        before=once_loaded(GROUP_COORDINATOR, lambda request: request.group_id),
    ),
    Route(
        69,
        ConsumerGroupDescribeRequest,
        0,
        1,
        consumer_group_describe,
        _refuse_describe,
        DESCRIPTIONS_NEED,
        elements=ELEMENTS_PER_REQUEST,
    ),
)
