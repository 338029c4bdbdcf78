"""StreamsGroupHeartbeat, StreamsGroupDescribe, StreamsGroupTopologyDescriptionUpdate: streams groups (KIP-1071).

Served: 88 and 89 in versions 0-1, 93 in version 0. A heartbeat whose topology lacks internal topics has them created,
if the sender may: it needs CREATE of the cluster or of each of them. Why they could not be created, its next heartbeats
say. No plugin keeps topology descriptions here, so none is ever asked for, and who sends one all the same is told so in
the words of an Apache broker without a plugin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from kbroker.api.authorization import Right, Special, Whole, for_each
from kbroker.api.call import LATER
from kbroker.api.coordinator_ready import once_loaded
from kbroker.api.routes import Route
from kbroker.broker.authorizer import CLUSTER_NAME, Operation, ResourceType
from kbroker.broker.coordinator_types import GROUP as GROUP_COORDINATOR
from kbroker.config.limits import ELEMENTS_PER_REQUEST
from kbroker.controller.admin import NewTopic
from kbroker.groups.streams.describe import describe as described
from kbroker.groups.streams.describe import described_topics, refused
from kbroker.groups.streams.group import StreamsGroup
from kbroker.groups.streams.membership import refused_heartbeat
from kbroker.log.names import topic_name_fault
from kbroker.metadata.cache import INTERNAL_TOPICS
from protocol.errors import ErrorCode, KafkaError, shortened
from protocol.messages.streams_groups import (
    DescribedGroup,
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)

if TYPE_CHECKING:
    from kbroker.api.authorization import Asking, Left
    from kbroker.api.call import Call, InSlices, Result
    from kbroker.controller.admin import Made, Pending
    from kbroker.groups.streams.topology import InternalTopic

NO_PLUGIN = "The broker has no streams group topology description plugin configured."
TRIES_REMEMBERED = 10_000  # so many topics, about 1 MB
MAY_BE_THERE = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT)


class TopicCreation:
    """The internal topics of one heartbeat: which the sender may create, and what became of earlier tries."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._tries: dict[str, Pending[Made]] = call.broker.groups.creations

    def refused(self, names: Collection[str]) -> list[str]:
        """Those that the sender may not create."""
        helper, session = self._call.broker.auth_helper, self._call.session
        if helper.allows(session, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, hidden=True):
            return []
        return sorted(name for name in names if not helper.allows(session, Operation.CREATE, ResourceType.TOPIC, name))

    def failures(self, names: Collection[str]) -> list[str]:
        """Why the last try to create each of them failed."""
        found = []
        for name in sorted(names):
            tried = self._tries.get(name)
            outcome = None if tried is None else tried.error or (tried.value or {}).get(name)
            if isinstance(outcome, KafkaError) and outcome.code not in MAY_BE_THERE:
                found.append(f"{name} ({outcome.message})")
        return found

    def start(self, topics: Mapping[str, InternalTopic]) -> None:
        """Have them created; once, however many members ask."""
        wanted = topics.values()
        new = [NewTopic(each.name, each.partitions, each.replication_factor, {}, each.configs) for each in wanted]
        self._tries.update(self._call.broker.plane.auto_create(new))
        for name in list(self._tries)[: max(len(self._tries) - TRIES_REMEMBERED, 0)]:
            del self._tries[name]


def heartbeat(request: StreamsGroupHeartbeatRequest, call: Call) -> Result:
    """Keep a member alive, and bring it on towards its tasks; answered when what it is told is committed."""
    if (fault := _topic_fault(request)) is not None:
        return refused_heartbeat(ErrorCode.STREAMS_INVALID_TOPOLOGY, fault)
    creation = TopicCreation(call)
    effects, missing = call.broker.groups.streams_heartbeat(request, call.caller, call.now_ms, creation)
    call.broker.group_runtime.carry_out(effects, call.now_ms)
    if missing:
        creation.start(missing)
    return LATER


def _topic_fault(request: StreamsGroupHeartbeatRequest) -> str | None:
    """What is wrong with the names of topics, in Kafka's words."""
    names = list(_topics(request))
    if internal := [name for name in names if name in INTERNAL_TOPICS]:
        return f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
    if bad := [name for name in names if topic_name_fault(name) is not None]:
        return f"Topic names {','.join(bad)} are not valid topic names."
    return None


def _topics(request: StreamsGroupHeartbeatRequest) -> Iterator[str]:
    """The topics of a topology, each once."""
    names: dict[str, None] = {}
    for part in () if request.topology is None else request.topology.subtopologies:
        names |= dict.fromkeys((*part.source_topics, *part.repartition_sink_topics))
        names |= dict.fromkeys(topic.name for topic in (*part.repartition_source_topics, *part.state_changelog_topics))
    yield from names


def describe(request: StreamsGroupDescribeRequest, call: Call) -> InSlices:
    """Groups in detail, each with its own error, and once, however often it is named."""
    groups = {}
    helper = call.broker.auth_helper
    for group_id in request.group_ids:
        if group_id in groups:
            continue
        group = groups[group_id] = _described(group_id, request, call)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = helper.operations(call.session, ResourceType.GROUP, group_id)
        yield
    return StreamsGroupDescribeResponse(groups=list(groups.values()))


def _described(group_id: str, request: StreamsGroupDescribeRequest, call: Call) -> DescribedGroup:
    found = call.broker.groups.streams_group(group_id)
    if isinstance(found, ErrorCode):
        return refused(group_id, found)
    if found is None or found.is_going:
        return refused(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if not isinstance(found, StreamsGroup):
        return refused(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group.")
    return described(found, with_description=request.include_topology_description)


def update_description(
    request: StreamsGroupTopologyDescriptionUpdateRequest, call: Call
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    """There is no plugin that would keep it."""
    return _refuse_update(request, ErrorCode.UNSUPPORTED_VERSION, NO_PLUGIN, call.version)


# -- refusals and rights


def _refuse_heartbeat(
    request: StreamsGroupHeartbeatRequest, code: ErrorCode, text: str, version: int
) -> StreamsGroupHeartbeatResponse:
    return refused_heartbeat(code)


def _refuse_describe(
    request: StreamsGroupDescribeRequest, code: ErrorCode, text: str, version: int
) -> StreamsGroupDescribeResponse:
    return StreamsGroupDescribeResponse(groups=[refused(group_id, code) for group_id in request.group_ids])


def _refuse_update(
    request: StreamsGroupTopologyDescriptionUpdateRequest, code: ErrorCode, text: str, version: int
) -> StreamsGroupTopologyDescriptionUpdateResponse:
    return StreamsGroupTopologyDescriptionUpdateResponse(error_code=code, error_message=shortened(text))


def _ask_for_topics(request: StreamsGroupHeartbeatRequest, asking: Asking) -> Left:
    """DESCRIBE of each topic of the topology, else the whole heartbeat is refused."""
    yield from ()
    helper, call = asking.call.broker.auth_helper, asking.call
    for name in _topics(request):
        helper.require(call.session, Operation.DESCRIBE, resource=ResourceType.TOPIC, name=name)
    return request


def _hide_topics(request: StreamsGroupDescribeRequest, asking: Asking) -> Left:
    """A group that uses a topic which the session may not describe is not described."""
    yield from ()

    def answered(answer: StreamsGroupDescribeResponse) -> StreamsGroupDescribeResponse:
        for at, group in enumerate(answer.groups):
            names = described_topics(group)
            if not all(asking.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, hidden=True) for name in names):
                why = "The described group uses topics that the client is not authorized to describe."
                answer.groups[at] = refused(group.group_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED, why)
        return answer

    asking.then(answered)
    return request


DESCRIBE_TOPIC = (Right(Operation.DESCRIBE, ResourceType.TOPIC),)
READ_GROUP = Whole((Operation.READ,), ResourceType.GROUP, lambda request: request.group_id)
DESCRIBE_GROUPS = for_each(
    Operation.DESCRIBE, ResourceType.GROUP, "group_ids", "groups", lambda group_id, call: group_id
)
HEARTBEATS_NEED = (READ_GROUP, Special(DESCRIBE_TOPIC, _ask_for_topics))
DESCRIPTIONS_NEED = (DESCRIBE_GROUPS, Special(DESCRIBE_TOPIC, _hide_topics))
ROUTES = (
    Route(
        88,
        StreamsGroupHeartbeatRequest,
        0,
        1,
        heartbeat,
        _refuse_heartbeat,
        HEARTBEATS_NEED,
        before=once_loaded(GROUP_COORDINATOR, lambda request: request.group_id),
    ),
    Route(
        89,
        StreamsGroupDescribeRequest,
        0,
        1,
        describe,
        _refuse_describe,
        DESCRIPTIONS_NEED,
        elements=ELEMENTS_PER_REQUEST,
    ),
    Route(93, StreamsGroupTopologyDescriptionUpdateRequest, 0, 0, update_description, _refuse_update, (READ_GROUP,)),
)
