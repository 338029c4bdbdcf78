"""ShareGroupHeartbeat, ShareGroupDescribe, DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets.

Served: 76 and 77 in version 1, 90 in 0-1, 91 and 92 in 0 (KIP-932, KIP-1226). A member is answered when what its
heartbeat changed is committed. Offsets of a share group are kept by share coordinators, which the group's coordinator
asks (`broker/share_groups.py`); they change only while the group has no members. How far the group is behind follows
from where partitions end, which their leaders are asked (`broker/end_offsets.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.api.authorization import Asking, Right, Special, Whole, for_each
from kbroker.api.call import LATER
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.facts import Reply
from kbroker.config.limits import ELEMENTS_PER_REQUEST
from kbroker.groups.share import check_heartbeat, not_described, refuse, rules
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID
from protocol.messages.share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from protocol.messages.share_groups import (
    DescribedShareGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kbroker.api.authorization import Left
    from kbroker.api.call import Call, InSlices, Result
    from kbroker.broker.end_offsets import End

GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
NO_GROUP = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID)
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def share_group_heartbeat(request: ShareGroupHeartbeatRequest, call: Call) -> Result:
    """Join, live, hear what to read from, leave."""
    broker = call.broker
    check_heartbeat(request)
    shard = broker.share_groups.shard(request.group_id)
    operation = shard.operation(call.now_ms)
    rules(shard).heartbeat_of_share(operation, request, call.caller)
    broker.group_runtime.carry_out(operation.effects, call.now_ms)
    return LATER


def share_group_describe(request: ShareGroupDescribeRequest, call: Call) -> InSlices:
    """Groups in detail, each with its own error, and once, however often it is named."""
    groups: dict[str, DescribedShareGroup] = {}
    for group_id in request.group_ids:
        if group_id not in groups:
            groups[group_id] = _described(group_id, request, call)
            yield
    return ShareGroupDescribeResponse(groups=list(groups.values()))


def _described(group_id: str, request: ShareGroupDescribeRequest, call: Call) -> DescribedShareGroup:
    helper = call.broker.auth_helper
    try:
        group = call.broker.share_groups.describe(group_id)
    except KafkaError as error:
        return not_described(group_id, error.code, error.message)
    if not group.error_code and request.include_authorized_operations:
        group.authorized_operations = helper.operations(call.session, GROUP, group_id)
    topics = {name for member in group.members for name in member.subscribed_topic_names}
    if helper.has_rules and not all(
        helper.allows(call.session, Operation.DESCRIBE, TOPIC, name) for name in sorted(topics)
    ):
        return not_described(group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS)
    return group


# -- offsets


def describe_share_group_offsets(request: DescribeShareGroupOffsetsRequest, call: Call) -> Result:
    """The start offset, and the lag, of each share-partition that is asked for."""
    groups: list[DescribeShareGroupOffsetsResponseGroup] = []
    response = DescribeShareGroupOffsetsResponse(groups=groups)
    waiting = len(request.groups)
    if not waiting:
        return response

    def done(group: DescribeShareGroupOffsetsResponseGroup) -> None:
        nonlocal waiting
        groups.append(group)
        waiting -= 1
        if not waiting:
            call.broker.tell(Reply(call.ticket, response))

    for asked in request.groups:
        _describe_offsets(asked, call, done)
    return LATER


def _describe_offsets(asked: DescribeShareGroupOffsetsRequestGroup, call: Call, done: Any) -> None:
    broker, share = call.broker, call.broker.share_groups
    cache, helper = broker.plane.cache, broker.auth_helper
    hidden: list[tuple[str, int]] = []  # named, of topics that the session may not describe
    try:
        group = share.find(asked.group_id)
    except KafkaError as error:
        if asked.topics is None and error.code in NO_GROUP:  # what a group that is not there has begun with: nothing
            done(DescribeShareGroupOffsetsResponseGroup(group_id=asked.group_id, topics=[]))
        else:
            done(_offsets_error(asked.group_id, error.code, error.message))
        return
    if asked.topics is None:
        names = {
            topic_id: name
            for topic_id, (name, _) in group.initialized.items()
            if helper.allows(call.session, Operation.DESCRIBE, TOPIC, name, hidden=True)
        }
        wanted = [(topic_id, partition) for topic_id in names for partition in sorted(group.assignable(topic_id))]
        unknown: list[tuple[str, int]] = []
    else:
        shown = [
            topic for topic in asked.topics if helper.allows(call.session, Operation.DESCRIBE, TOPIC, topic.topic_name)
        ]
        told = {id(topic) for topic in shown}
        hidden = [(each.topic_name, at) for each in asked.topics if id(each) not in told for at in each.partitions]
        names = {cache.topic_id(topic.topic_name): topic.topic_name for topic in shown}
        named = [(topic.topic_name, partition) for topic in shown for partition in topic.partitions]
        wanted = [(cache.topic_id(name), index) for name, index in named if cache.partition(name, index) is not None]
        unknown = [(name, index) for name, index in named if cache.partition(name, index) is None]

    kept_back = {name for name, _ in hidden}

    def summarized(results: Mapping[tuple[bytes, int], Any], now_ms: int) -> None:
        wanted = {(names[topic_id], index) for (topic_id, index), summary in results.items() if _has_lag(summary)}
        broker.share_partitions.ends.ask(wanted, lambda ends, now_ms: ended(results, ends), now_ms)

    def ended(results: Mapping[tuple[bytes, int], Any], ends: Mapping[tuple[str, int], End]) -> None:
        topics: dict[str, list[DescribeShareGroupOffsetsResponsePartition]] = {}
        for (topic_id, index), summary in results.items():
            name = names[topic_id]
            topics.setdefault(name, []).append(_described_offset(index, summary, ends.get((name, index))))
        for name, index in unknown:
            topics.setdefault(name, []).append(
                DescribeShareGroupOffsetsResponsePartition(partition_index=index, start_offset=-1, leader_epoch=0)
            )
        for name, index in hidden:
            topics.setdefault(name, []).append(_hidden(index))
        done(
            DescribeShareGroupOffsetsResponseGroup(
                group_id=asked.group_id,
                topics=[
                    DescribeShareGroupOffsetsResponseTopic(
                        topic_name=name,
                        topic_id=ZERO_UUID if name in kept_back else cache.topic_id(name),
                        partitions=sorted(found, key=lambda each: each.partition_index),
                    )
                    for name, found in topics.items()
                ],
            )
        )

    share.summarize(asked.group_id, wanted, summarized, call.now_ms)


def _has_lag(summary: Any) -> bool:
    """Whether it is known of a share-partition where it begins."""
    return not summary.error_code and summary.start_offset >= 0


def _described_offset(index: int, summary: Any, end: End | None) -> DescribeShareGroupOffsetsResponsePartition:
    """A share-partition. end: of the partition; None if it was not asked for."""
    if end is not None and end.code is not ErrorCode.NONE:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=0, leader_epoch=0, error_code=end.code, error_message=end.code.message
        )
    if summary.error_code:
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            start_offset=-1,
            leader_epoch=0,
            error_code=summary.error_code,
            error_message=summary.error_message,
        )
    over = summary.start_offset + max(summary.delivery_complete_count, 0)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=summary.start_offset,
        leader_epoch=summary.leader_epoch,
        lag=-1 if end is None else max(end.offset - over, 0),
    )


def _hidden(index: int) -> DescribeShareGroupOffsetsResponsePartition:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=-1, leader_epoch=0, lag=-1, error_code=code, error_message=code.message
    )


def _offsets_error(group_id: str, code: ErrorCode, text: str) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id, topics=[], error_code=code, error_message=text or code.message
    )


def alter_share_group_offsets(request: AlterShareGroupOffsetsRequest, call: Call) -> Result:
    """Begin share-partitions again, of a group without members, in a new epoch of their state."""
    broker, cache = call.broker, call.broker.plane.cache
    topics, starts = list[AlterShareGroupOffsetsResponseTopic](), dict[bytes, tuple[str, dict[int, int]]]()
    parts: dict[tuple[bytes, int], AlterShareGroupOffsetsResponsePartition] = {}
    for topic in request.topics:
        topic_id, results = cache.topic_id(topic.topic_name), []
        for asked in topic.partitions:
            part = AlterShareGroupOffsetsResponsePartition(partition_index=asked.partition_index, error_code=0)
            results.append(part)
            if cache.partition(topic.topic_name, asked.partition_index) is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                part.error_code, part.error_message = code, code.message
            else:
                starts.setdefault(topic_id, (topic.topic_name, {}))[1][asked.partition_index] = asked.start_offset
                parts[topic_id, asked.partition_index] = part
        topics.append(
            AlterShareGroupOffsetsResponseTopic(topic_name=topic.topic_name, topic_id=topic_id, partitions=results)
        )
    response = AlterShareGroupOffsetsResponse(error_code=ErrorCode.NONE, responses=topics)

    def done(code: ErrorCode, results: Mapping[tuple[bytes, int], Any], now_ms: int) -> None:
        for key, result in results.items():
            parts[key].error_code, parts[key].error_message = result.error_code, result.error_message
        told = response if code is ErrorCode.NONE else _refuse_alter(request, code, "", call.version)
        broker.tell(Reply(call.ticket, told))

    broker.share_groups.alter(request.group_id, starts, done, call.now_ms)
    return LATER


def delete_share_group_offsets(request: DeleteShareGroupOffsetsRequest, call: Call) -> Result:
    """Forget all that is kept of some topics, of a group without members."""
    broker, cache, share = call.broker, call.broker.plane.cache, call.broker.share_groups
    group = share.find(request.group_id)
    if group.members:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
    results: list[DeleteShareGroupOffsetsResponseTopic] = []
    wanted: dict[bytes, DeleteShareGroupOffsetsResponseTopic] = {}
    for topic in request.topics:
        topic_id = cache.topic_id(topic.topic_name)
        result = DeleteShareGroupOffsetsResponseTopic(
            topic_name=topic.topic_name, topic_id=ZERO_UUID, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        results.append(result)
        if topic.topic_name not in cache.topics:
            result.error_message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.message
        elif topic_id not in group.initialized and topic_id not in group.deleting:
            result.error_message = "There is no offset information to delete."
        else:
            result.topic_id, result.error_code = topic_id, ErrorCode.NONE
            wanted[topic_id] = result
    response = DeleteShareGroupOffsetsResponse(error_code=ErrorCode.NONE, responses=results)
    if not wanted:
        return response

    def done(code: ErrorCode, codes: Mapping[bytes, ErrorCode], now_ms: int) -> None:
        for topic_id, failure in codes.items():
            if failure:
                wanted[topic_id].error_code, wanted[topic_id].error_message = failure, failure.message
        told = response if code is ErrorCode.NONE else _refuse_delete(request, code, "", call.version)
        broker.tell(Reply(call.ticket, told))

    share.delete_state(request.group_id, wanted, done, call.now_ms)
    return LATER


# -- refusals and rights


def _refuse_heartbeat(
    request: ShareGroupHeartbeatRequest, code: ErrorCode, text: str, version: int
) -> ShareGroupHeartbeatResponse:
    return refuse(code, text)


def _refuse_describe(
    request: ShareGroupDescribeRequest, code: ErrorCode, text: str, version: int
) -> ShareGroupDescribeResponse:
    return ShareGroupDescribeResponse(groups=[not_described(each, code, text) for each in request.group_ids])


def _refuse_offsets(
    request: DescribeShareGroupOffsetsRequest, code: ErrorCode, text: str, version: int
) -> DescribeShareGroupOffsetsResponse:
    return DescribeShareGroupOffsetsResponse(
        groups=[_offsets_error(each.group_id, code, text) for each in request.groups]
    )


def _refuse_alter(
    request: AlterShareGroupOffsetsRequest, code: ErrorCode, text: str, version: int
) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(error_code=code, error_message=text or code.message, responses=[])


def _refuse_delete(
    request: DeleteShareGroupOffsetsRequest, code: ErrorCode, text: str, version: int
) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(error_code=code, error_message=text or code.message, responses=[])


def _refuse_altered_topics(
    request: AlterShareGroupOffsetsRequest, code: ErrorCode, text: str, version: int
) -> AlterShareGroupOffsetsResponse:
    return AlterShareGroupOffsetsResponse(
        error_code=ErrorCode.NONE,
        responses=[
            AlterShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name,
                topic_id=ZERO_UUID,
                partitions=[
                    AlterShareGroupOffsetsResponsePartition(
                        partition_index=each.partition_index, error_code=code, error_message=code.message
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _refuse_deleted_topics(
    request: DeleteShareGroupOffsetsRequest, code: ErrorCode, text: str, version: int
) -> DeleteShareGroupOffsetsResponse:
    return DeleteShareGroupOffsetsResponse(
        error_code=ErrorCode.NONE,
        responses=[
            DeleteShareGroupOffsetsResponseTopic(
                topic_name=topic.topic_name, topic_id=ZERO_UUID, error_code=code, error_message=code.message
            )
            for topic in request.topics
        ],
    )


def _ask_for_topics(request: ShareGroupHeartbeatRequest, asking: Asking) -> Left:
    """A member may subscribe to what it may describe; else it is refused as a whole."""
    yield from ()
    names = dict.fromkeys(request.subscribed_topic_names or ())
    refused = [name for name in names if not asking.allows(Operation.DESCRIBE, TOPIC, name)]  # each has its audit line
    if refused:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED.message)
    return request


def _group(operation: Operation) -> Whole:
    return Whole((operation,), GROUP, lambda request: request.group_id)


MEMBERS_NEED = (_group(Operation.READ), Special((Right(Operation.DESCRIBE, TOPIC),), _ask_for_topics))
DESCRIPTIONS = (for_each(Operation.DESCRIBE, GROUP, "group_ids", "groups", lambda group_id, call: group_id),)
OFFSETS_NEED = (for_each(Operation.DESCRIBE, GROUP, "groups", "groups", lambda group, call: group.group_id),)
ALTERING_NEEDS = (
    _group(Operation.READ),
    for_each(
        Operation.READ,
        TOPIC,
        "topics",
        "responses",
        lambda topic, call: topic.topic_name,
        by=_refuse_altered_topics,
    ),
)
DELETING_NEEDS = (
    _group(Operation.DELETE),
    for_each(
        Operation.READ,
        TOPIC,
        "topics",
        "responses",
        lambda topic, call: topic.topic_name,
        by=_refuse_deleted_topics,
    ),
)
MANY = ELEMENTS_PER_REQUEST
ROUTES = (
    Route(76, ShareGroupHeartbeatRequest, 1, 1, share_group_heartbeat, _refuse_heartbeat, MEMBERS_NEED),
    Route(77, ShareGroupDescribeRequest, 1, 1, share_group_describe, _refuse_describe, DESCRIPTIONS, elements=MANY),
    Route(90, DescribeShareGroupOffsetsRequest, 0, 1, describe_share_group_offsets, _refuse_offsets, OFFSETS_NEED),
    Route(91, AlterShareGroupOffsetsRequest, 0, 0, alter_share_group_offsets, _refuse_alter, ALTERING_NEEDS),
    Route(92, DeleteShareGroupOffsetsRequest, 0, 0, delete_share_group_offsets, _refuse_delete, DELETING_NEEDS),
)
