"""FindCoordinator and the APIs of classic groups: who coordinates, who is a member, who reads what, how far.

Served: FindCoordinator 0-6, JoinGroup 0-9, SyncGroup 0-5, Heartbeat 0-4, LeaveGroup 0-5, DescribeGroups 0-6,
ListGroups 0-5, DeleteGroups 0-3, OffsetCommit 0-10, OffsetFetch 0-10 (v0 in `store_offsets.py`), OffsetDelete 0.
Groups are `kbroker.groups`; these handlers hand requests over, and have the coordinator's runtime carry out what
comes back.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, cast

from kbroker.api.authorization import Asking, Hides, Right, Special, Whole, for_each, topic_name, with_items
from kbroker.api.call import LATER
from kbroker.api.chunks import in_pieces, in_portions, is_break, jointly
from kbroker.api.coordinator_ready import once_loaded, once_there
from kbroker.api.routes import Route
from kbroker.api.store_offsets import commit_to_store, fetch_from_store
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.coordinator_types import COORDINATOR_TYPES, SHARE, is_share_key
from kbroker.broker.coordinator_types import GROUP as GROUP_COORDINATOR
from kbroker.broker.facts import Joint
from kbroker.config.limits import (
    ELEMENTS_PER_REQUEST,
    GROUPS_DELETED_AT_ONCE,
    OFFSETS_COMMITTED_AT_ONCE,
    OFFSETS_FETCHED_AT_ONCE,
    OFFSETS_PER_COMMIT,
)
from kbroker.coordinator import Caller
from kbroker.groups.group import GroupType
from kbroker.groups.offsets import NOWHERE
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from protocol.messages.groups import (
    Coordinator,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from typing import TypeVar

    from kbroker.api.authorization import Left
    from kbroker.api.call import Call, InSlices, Result
    from kbroker.broker.facts import JointPart
    from kbroker.coordinator import Effect
    from kbroker.groups.offsets import TopicPartition
    from protocol.message import Message
    from protocol.messages.group_offsets import OffsetFetchRequestGroup, OffsetFetchRequestTopics

    Partition = TypeVar("Partition", OffsetFetchResponsePartition, OffsetFetchResponsePartitions)

BATCHED_SINCE = 4  # FindCoordinator: several keys a request
SHARE_SINCE = 6  # FindCoordinator (KIP-932)
MESSAGE_SINCE = 6  # of DescribeGroups
HAS_ERROR_SINCE, MANY_GROUPS_SINCE = 2, 8  # OffsetFetch
TOPIC_IDS_SINCE = 10  # OffsetCommit, OffsetFetch


# -- who coordinates


def find_coordinator(request: FindCoordinatorRequest, call: Call) -> Result:
    """The broker that leads the partition an id hashes to; the topic is made for the first one who asks."""
    kind = COORDINATOR_TYPES.get(request.key_type)
    if kind is None:
        return _found_coordinators(request, call)
    keys = [request.key] if call.version < BATCHED_SINCE else request.coordinator_keys
    if kind is SHARE and (call.version < SHARE_SINCE or not any(map(is_share_key, keys))):
        return _found_coordinators(request, call)  # refused, and nothing is made for them
    return once_there(kind, keys, call, lambda: _found_coordinators(request, call))


def _found_coordinators(request: FindCoordinatorRequest, call: Call) -> Result:
    if call.version < BATCHED_SINCE:
        found = _coordinator(request.key, request.key_type, call)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    return _find_many(request, call)


def _find_many(request: FindCoordinatorRequest, call: Call) -> InSlices:
    """A key named twice is looked up, and answered, once."""
    found: dict[str, Coordinator] = {}
    for key in request.coordinator_keys:
        if key not in found:
            found[key] = _coordinator(key, request.key_type, call)
            yield
    return FindCoordinatorResponse(coordinators=list(found.values()))


def _coordinator(key: str, key_type: int, call: Call) -> Coordinator:
    kind, plane = COORDINATOR_TYPES.get(key_type), call.broker.plane
    if kind is None or (kind is SHARE and (call.version < SHARE_SINCE or not is_share_key(key))):
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST)
    state = plane.cache.partition(kind.topic, call.broker.coordinators[key_type].runtime.partition_of(key))
    node = plane.cache.node(state.leader, call.session.listener) if state is not None else None
    if state is None or node is None:
        return _no_coordinator(key, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return Coordinator(key=key, node_id=state.leader, host=node.host, port=node.port, error_code=0, error_message=None)


def _no_coordinator(key: str, code: ErrorCode) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=code.message)


# -- membership


def join_group(request: JoinGroupRequest, call: Call) -> Result:
    """Take part in the next generation; answered when it begins."""
    return _run(call, call.broker.groups.join(request, call.caller, call.now_ms))


def sync_group(request: SyncGroupRequest, call: Call) -> Result:
    """Bring or fetch the assignment; answered when it is committed."""
    return _run(call, call.broker.groups.sync(request, call.caller, call.now_ms))


def _names_its_protocol(request: SyncGroupRequest, call: Call) -> bool:
    """One that does not is refused for that, before rights are asked for, as in Kafka."""
    from kbroker.groups.coordinator import names_no_protocol

    return not names_no_protocol(request, call.version)


def heartbeat(request: HeartbeatRequest, call: Call) -> Result:
    """Stay a member, and hear of rebalances."""
    return _run(call, call.broker.groups.heartbeat(request, call.caller, call.now_ms))


def leave_group(request: LeaveGroupRequest, call: Call) -> Result:
    """Members go by themselves, or are removed by an administrator."""
    return _run(call, call.broker.groups.leave(request, call.caller, call.now_ms))


def _run(call: Call, effects: Iterable[Effect]) -> Result:
    call.broker.group_runtime.carry_out(effects, call.now_ms)
    return LATER


# -- offsets


def offset_commit(request: OffsetCommitRequest, call: Call) -> Result:
    """Keep offsets; answered when they are committed. Partitions that do not exist are refused one by one.

    A commit of many is written as several; whether the sender may commit is asked for each of them.
    """
    if call.version == 0:
        return commit_to_store(request, call)
    if call.is_large and sum(len(topic.partitions) for topic in request.topics) > OFFSETS_COMMITTED_AT_ONCE:
        return in_portions(
            request,
            call,
            OFFSETS_COMMITTED_AT_ONCE,
            lambda portion, ticket: _commit(portion, call, call.caller._replace(call=ticket)),
            lambda topics: OffsetCommitResponse(topics=topics),
        )
    return _commit(request, call, call.caller)


def _commit(request: OffsetCommitRequest, call: Call, caller: Caller) -> Result:
    cache = call.broker.plane.cache
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if call.version >= TOPIC_IDS_SINCE:
            name = cache.topic_name(topic.topic_id)
            topic.name = name or ""
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else unknown
        else:
            topic.topic_id = cache.topic_id(topic.name)
        for partition in topic.partitions:
            if cache.partition(topic.name, partition.partition_index) is None:
                refused[topic.name, partition.partition_index] = unknown
    return _run(call, call.broker.groups.commit_offsets(request, caller, call.now_ms, refused))


def offset_fetch(request: OffsetFetchRequest, call: Call) -> Result:
    """How far groups have got; from version 8 on of several groups."""
    if call.version == 0:
        return fetch_from_store(request, call)
    if call.version < MANY_GROUPS_SINCE:
        return _fetch_one(request, call)
    return _fetch_many(request, call)


def _first_group(request: OffsetFetchRequest) -> str | None:
    """The group whose shard is waited for; of several it is the first, as many clients have one."""
    return request.groups[0].group_id if request.groups else request.group_id or None


def _fetch_many(request: OffsetFetchRequest, call: Call) -> InSlices:
    """A group named twice is answered twice, as in Kafka: it may be with other partitions. With all, it is once."""
    cache = call.broker.plane.cache
    answers = []
    whole: set[str] = set()
    for group in request.groups:
        unknown: list[OffsetFetchResponseTopics] = []
        asked: list[TopicPartition] | None = None
        if group.topics is None:
            if group.group_id in whole:
                continue
            whole.add(group.group_id)
        else:
            asked = []
            for topic in group.topics:
                name = topic.name if call.version < TOPIC_IDS_SINCE else cache.topic_name(topic.topic_id)
                if name is None:
                    unknown.append(_no_offsets(topic, topic.partition_indexes, ErrorCode.UNKNOWN_TOPIC_ID))
                else:
                    asked += [(name, index) for index in topic.partition_indexes]
        found = yield from _found(
            call,
            group.group_id,
            asked,
            OffsetFetchResponsePartitions,
            require_stable=request.require_stable,
            member=(group.member_id, group.member_epoch),
        )
        if isinstance(found, ErrorCode):
            answers.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=[], error_code=found))
            continue
        topics = [
            OffsetFetchResponseTopics(name=name, topic_id=cache.topic_id(name), partitions=partitions)
            for name, partitions in found.items()
            if call.version < TOPIC_IDS_SINCE or cache.topic_id(name) != ZERO_UUID  # else there is no way to name it
        ]
        answers.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics + unknown))
    return OffsetFetchResponse(groups=answers)


def _fetch_one(request: OffsetFetchRequest, call: Call) -> InSlices:
    asked = (
        None
        if request.topics is None
        else [(topic.name, index) for topic in request.topics for index in topic.partition_indexes]
    )
    found = yield from _found(
        call, request.group_id, asked, OffsetFetchResponsePartition, require_stable=request.require_stable
    )
    if isinstance(found, ErrorCode):
        return _refuse_offset_fetch(request, found, "", call.version)
    topics = [OffsetFetchResponseTopic(name=name, partitions=partitions) for name, partitions in found.items()]
    return OffsetFetchResponse(topics=topics)


def _found(
    call: Call,
    group_id: str,
    asked: list[TopicPartition] | None,
    kind: type[Partition],
    *,
    require_stable: bool,
    member: tuple[str | None, int] = (None, -1),
) -> Generator[None, None, ErrorCode | dict[str, list[Partition]]]:
    """The answers of a group's partitions by topic, some at a time; or the group's error. asked: None for all.

    kind: what the answer's version has for a partition. member: who asks, and its epoch.
    """
    groups, topic_id = call.broker.groups, call.broker.plane.cache.topic_id
    places = groups.committed_places(group_id) if asked is None else asked
    topics: dict[str, list[Partition]] = {}
    for start in range(0, len(places) or 1, OFFSETS_FETCHED_AT_ONCE):
        some = places[start : start + OFFSETS_FETCHED_AT_ONCE]
        member_id, epoch = member
        found = groups.fetch_offsets(
            group_id, some, require_stable=require_stable, member_id=member_id, member_epoch=epoch
        )
        if isinstance(found, ErrorCode):
            return found
        for (name, index), (commit, code) in found.items():
            if call.version >= TOPIC_IDS_SINCE and not commit.is_of(topic_id(name)):
                commit = NOWHERE  # of an earlier topic of that name
            partition = kind(
                partition_index=index,
                committed_offset=commit.offset,
                committed_leader_epoch=commit.leader_epoch,
                metadata=commit.metadata,
                error_code=code,
            )
            topics.setdefault(name, []).append(partition)
        yield
    return topics


def _no_offsets(topic: OffsetFetchRequestTopics, indexes: Iterable[int], code: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=-1, metadata="", error_code=code)
            for index in indexes
        ],
    )


def offset_delete(request: OffsetDeleteRequest, call: Call) -> Result:
    """Forget offsets of partitions that exist and no member subscribes to; answered when that is committed."""
    cache = call.broker.plane.cache
    refused = {
        (topic.name, each.partition_index): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for topic in request.topics
        for each in topic.partitions
        if cache.partition(topic.name, each.partition_index) is None
    }
    return _run(call, call.broker.groups.delete_offsets(request, call.caller, call.now_ms, refused))


# -- administration


def describe_groups(request: DescribeGroupsRequest, call: Call) -> InSlices:
    """Groups in detail, each with its own error, and once, however often it is named."""
    groups: dict[str, DescribedGroup] = {}
    for group_id in request.groups:
        if group_id not in groups:
            groups[group_id] = _described(group_id, request, call)
            yield
    return DescribeGroupsResponse(groups=list(groups.values()))


def _described(group_id: str, request: DescribeGroupsRequest, call: Call) -> DescribedGroup:
    group = call.broker.groups.describe_group(group_id, call.version)
    if request.include_authorized_operations and not group.error_code:
        group.authorized_operations = call.broker.auth_helper.operations(call.session, ResourceType.GROUP, group_id)
    return group


def list_groups(request: ListGroupsRequest, call: Call) -> ListGroupsResponse:
    """The groups that this broker coordinates, by state and type if asked for."""
    return call.broker.groups.list_groups(request)


def delete_groups(request: DeleteGroupsRequest, call: Call) -> Result:
    """Forget empty groups with their offsets; answered when that is committed. Many are forgotten some at a time.

    What share coordinators keep of share groups is forgotten first.
    """
    names = list(dict.fromkeys(request.groups_names))
    has_met_share = any(shard.has_met(GroupType.SHARE) for shard in call.broker.group_runtime.shards.values())
    of_share = [name for name in names if has_met_share and _is_empty_share_group(name, call)]
    if of_share:
        return _forget_states_and_delete(names, of_share, call)
    return _delete(request, names, call, call.caller)


def _is_empty_share_group(group_id: str, call: Call) -> bool:
    shard = call.broker.group_runtime.find(group_id)
    group = None if isinstance(shard, ErrorCode) else shard.groups.get(group_id)
    return group is not None and group.TYPE is GroupType.SHARE and not group.size


def _forget_states_and_delete(names: list[str], of_share: list[str], call: Call) -> Result:
    broker, waiting = call.broker, set(of_share)
    failed: dict[str, ErrorCode] = {}

    def make() -> DeleteGroupsResponse:
        results = [DeletableGroupResult(group_id=group_id, error_code=code) for group_id, code in failed.items()]
        return DeleteGroupsResponse(results=[*results, *deleted])

    deleted: list[DeletableGroupResult] = []
    joint = Joint(call.ticket, 1, make)

    def forgotten(group_id: str, code: ErrorCode, codes: Mapping[bytes, ErrorCode], now_ms: int) -> None:
        failed.update((group_id, each) for each in (*codes.values(), code) if each)
        waiting.discard(group_id)
        if waiting:
            return
        left = [name for name in names if name not in failed]
        part = joint.part(lambda response: deleted.extend(cast("DeleteGroupsResponse", response).results))
        if left:
            request = DeleteGroupsRequest(groups_names=left)
            effects = broker.groups.delete_groups(request, call.caller._replace(call=part), now_ms)
            broker.group_runtime.carry_out(effects, now_ms)
        else:
            broker.tell(part.answered(None))

    for group_id in of_share:
        try:
            broker.share_groups.delete_state(group_id, None, partial(forgotten, group_id), call.now_ms)
        except KafkaError as error:
            forgotten(group_id, error.code, {}, call.now_ms)
    return LATER


def _delete(request: DeleteGroupsRequest, names: list[str], call: Call, caller: Caller) -> Result:
    if len(names) <= GROUPS_DELETED_AT_ONCE:
        return _run(call, call.broker.groups.delete_groups(request, caller, call.now_ms))

    def delete_some(portion: DeleteGroupsRequest, ticket: JointPart) -> Result:
        return _run(call, call.broker.groups.delete_groups(portion, caller._replace(call=ticket), call.now_ms))

    portions = in_pieces(request, "groups_names", names, GROUPS_DELETED_AT_ONCE)
    return jointly(
        call,
        portions,
        "results",
        delete_some,
        lambda found: DeleteGroupsResponse(results=list(chain.from_iterable(found))),
    )


# -- refusals


def _refuse_find(request: FindCoordinatorRequest, code: ErrorCode, text: str, version: int) -> FindCoordinatorResponse:
    """From version 4 on the code is beside each key, and nowhere else."""
    if keys := dict.fromkeys(request.coordinator_keys):
        return FindCoordinatorResponse(coordinators=[_no_coordinator(key, code) for key in keys])
    return FindCoordinatorResponse(error_code=code, error_message=text, node_id=-1, port=-1)


def _refuse_join(request: JoinGroupRequest, code: ErrorCode, text: str, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=code,
        generation_id=-1,
        protocol_name="",
        leader="",
        member_id=request.member_id,
        members=[],
    )


def _refuse_commit(request: OffsetCommitRequest, code: ErrorCode, text: str, version: int) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _refuse_offset_fetch(request: OffsetFetchRequest, code: ErrorCode, text: str, version: int) -> OffsetFetchResponse:
    """Before version 2 the response has no error of its own: every partition carries it."""
    if HAS_ERROR_SINCE <= version < MANY_GROUPS_SINCE:
        return OffsetFetchResponse(error_code=code, topics=[])
    if version >= MANY_GROUPS_SINCE:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(group_id=group.group_id, topics=[], error_code=code)
                for group in request.groups
            ]
        )
    return _refuse_named_offsets(request, code, text, version)


def _refuse_named_offsets(request: OffsetFetchRequest, code: ErrorCode, text: str, version: int) -> OffsetFetchResponse:
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(partition_index=index, committed_offset=-1, metadata="", error_code=code)
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return OffsetFetchResponse(error_code=code, topics=topics)


def _refuse_describe(
    request: DescribeGroupsRequest, code: ErrorCode, text: str, version: int
) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[
            DescribedGroup(
                error_code=code,
                error_message=text if version >= MESSAGE_SINCE else None,
                group_id=group_id,
                group_state="",
                protocol_type="",
                protocol_data="",
                members=[],
            )
            for group_id in request.groups
        ]
    )


def _refuse_delete(request: DeleteGroupsRequest, code: ErrorCode, text: str, version: int) -> DeleteGroupsResponse:
    results = [DeletableGroupResult(group_id=group_id, error_code=code) for group_id in request.groups_names]
    return DeleteGroupsResponse(results=results)


def _with_code(make: Callable[[ErrorCode], Message]) -> Callable[[object, ErrorCode, str, int], Message]:
    """A refusal by the response's own error code alone."""
    return lambda request, code, text, version: make(code)


# -- rights


def _refuse_topics(request: OffsetDeleteRequest, code: ErrorCode, text: str, version: int) -> OffsetDeleteResponse:
    """Partition by partition."""
    return OffsetDeleteResponse(
        error_code=ErrorCode.NONE,
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _ask_for_offsets(request: OffsetFetchRequest, asking: Asking) -> Left:
    """Offsets in topics that the session may not describe are refused where it names them, else left out."""
    yield from ()
    if asking.call.version >= MANY_GROUPS_SINCE:
        return (yield from _ask_for_groups(request, asking))
    if request.topics is None:
        return (yield from SHOWN_OFFSETS.ask(request, asking))
    left = yield from NAMED_OFFSETS.ask(request, asking)
    # the group's own error, if there is one, comes of nothing being left to ask for, too
    return with_items(request, "topics", []) if left is None else left


def _ask_for_groups(request: OffsetFetchRequest, asking: Asking) -> Left:
    """The same for several groups, whose answers stand in the order of the request: of all partitions there is one."""
    groups: list[OffsetFetchRequestGroup] = []
    denied: list[list[OffsetFetchResponseTopics] | None] = []  # by group; None: those that it has are filtered
    whole: set[str] = set()
    for group in request.groups:
        if group.topics is None:
            if group.group_id not in whole:
                whole.add(group.group_id)
                groups.append(group)
                denied.append(None)
            continue
        left: list[OffsetFetchRequestTopics] = []
        refused: list[OffsetFetchRequestTopics] = []
        for at, topic in enumerate(group.topics):
            if is_break(at):
                yield
            name = topic_name(topic, asking.call)
            (left if name is None or asking.allows(*DESCRIBE_TOPIC, name) else refused).append(topic)
        groups.append(with_items(group, "topics", left))
        denied.append(
            [_no_offsets(each, each.partition_indexes, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in refused]
        )

    def answered(answer: OffsetFetchResponse) -> OffsetFetchResponse:
        for group, refused in zip(answer.groups, denied, strict=True):
            if refused is None:
                group.topics = SHOWN_OFFSETS.seen(group.topics, asking)
            elif not group.error_code:
                group.topics = [*group.topics, *refused]
        return answer

    asking.then(answered)
    return with_items(request, "groups", groups)


def _ask_to_find(request: FindCoordinatorRequest, asking: Asking) -> Left:
    """What is coordinated: DESCRIBE of each group or transactional id."""
    kind, call = COORDINATOR_TYPES.get(request.key_type), asking.call
    if kind is None:
        return request
    if kind is SHARE:
        call.broker.auth_helper.require(call.session, Operation.CLUSTER_ACTION)
        return request
    resource = kind.resource
    if call.version < BATCHED_SINCE:
        call.broker.auth_helper.require(call.session, Operation.DESCRIBE, resource=resource, name=request.key)
        return request
    keys = for_each(Operation.DESCRIBE, resource, "coordinator_keys", "coordinators", lambda key, call: key)
    return (yield from keys.ask(request, asking))


GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
DESCRIBE_GROUP, DESCRIBE_TOPIC = Right(Operation.DESCRIBE, GROUP), Right(Operation.DESCRIBE, TOPIC)
READ_GROUP = Whole((Operation.READ,), GROUP, lambda request: request.group_id)
MEMBERS_NEED = (READ_GROUP,)
SYNCS_NEED = (READ_GROUP._replace(when=_names_its_protocol),)
COMMITS_NEED = READ_GROUP, for_each(Operation.READ, TOPIC, "topics", "topics", topic_name)
SHOWN_OFFSETS = Hides(*DESCRIBE_TOPIC, "topics", lambda topic: topic.name)
NAMED_OFFSETS = for_each(*DESCRIBE_TOPIC, "topics", "topics", topic_name, by=_refuse_named_offsets)
FETCHES_NEED = (
    Whole(
        (Operation.DESCRIBE,),
        GROUP,
        lambda request: request.group_id,
        lambda request, call: call.version < MANY_GROUPS_SINCE,
    ),
    for_each(
        *DESCRIBE_GROUP,
        "groups",
        "groups",
        lambda group, call: group.group_id,
        when=lambda request, call: call.version >= MANY_GROUPS_SINCE,
    ),
    Special((DESCRIBE_TOPIC,), _ask_for_offsets),
)
FINDERS_NEED = (
    Special(tuple(Right(Operation.DESCRIBE, kind.resource) for kind in COORDINATOR_TYPES.values()), _ask_to_find),
)
DESCRIPTIONS_NEED = (for_each(*DESCRIBE_GROUP, "groups", "groups", lambda group_id, call: group_id),)
LISTS_NEED = (Hides(*DESCRIBE_GROUP, "groups", lambda group: group.group_id, (Operation.DESCRIBE,)),)
GROUPS_GO_BY = (for_each(Operation.DELETE, GROUP, "groups_names", "results", lambda group_id, call: group_id),)
OFFSETS_GO_BY = (
    Whole((Operation.DELETE,), GROUP, lambda request: request.group_id),
    for_each(Operation.READ, TOPIC, "topics", "topics", topic_name, by=_refuse_topics),
)
MANY = ELEMENTS_PER_REQUEST
_refuse_heartbeat = _with_code(lambda code: HeartbeatResponse(error_code=code))
_refuse_leave = _with_code(lambda code: LeaveGroupResponse(error_code=code, members=[]))
_refuse_sync = _with_code(lambda code: SyncGroupResponse(error_code=code, assignment=b""))
_refuse_to_list = _with_code(lambda code: ListGroupsResponse(error_code=code, groups=[]))
_refuse_offset_delete = _with_code(lambda code: OffsetDeleteResponse(error_code=code, topics=[]))
ROUTES = (
    Route(8, OffsetCommitRequest, 0, 10, offset_commit, _refuse_commit, COMMITS_NEED, elements=OFFSETS_PER_COMMIT),
    Route(
        9,
        OffsetFetchRequest,
        0,
        10,
        offset_fetch,
        _refuse_offset_fetch,
        FETCHES_NEED,
        elements=MANY,
        before=once_loaded(GROUP_COORDINATOR, _first_group),
    ),
    Route(10, FindCoordinatorRequest, 0, 6, find_coordinator, _refuse_find, FINDERS_NEED, elements=MANY),
    Route(
        11,
        JoinGroupRequest,
        0,
        9,
        join_group,
        _refuse_join,
        MEMBERS_NEED,
        before=once_loaded(GROUP_COORDINATOR, lambda request: request.group_id),
    ),
    Route(12, HeartbeatRequest, 0, 4, heartbeat, _refuse_heartbeat, MEMBERS_NEED),
    Route(13, LeaveGroupRequest, 0, 5, leave_group, _refuse_leave, MEMBERS_NEED),
    Route(14, SyncGroupRequest, 0, 5, sync_group, _refuse_sync, SYNCS_NEED),
    Route(15, DescribeGroupsRequest, 0, 6, describe_groups, _refuse_describe, DESCRIPTIONS_NEED, elements=MANY),
    Route(16, ListGroupsRequest, 0, 5, list_groups, _refuse_to_list, LISTS_NEED),
    Route(42, DeleteGroupsRequest, 0, 3, delete_groups, _refuse_delete, GROUPS_GO_BY),
    Route(47, OffsetDeleteRequest, 0, 0, offset_delete, _refuse_offset_delete, OFFSETS_GO_BY),
)
