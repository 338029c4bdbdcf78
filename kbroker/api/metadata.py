"""Metadata, DescribeCluster, DescribeTopicPartitions: brokers, topics, leaders, from this broker's own image of them.

Served: Metadata 0-13, DescribeCluster 0-2, DescribeTopicPartitions 0. Brokers are named by the listener that the
question came in by, and a leader without it is no leader to this client. Topics that do not exist are created if both
sides agree (`auto.create.topics.enable`, allow_auto_topic_creation).

Unlike Kafka: a broker that has started, and was not told of the cluster yet, lets these requests of clients wait for
that, 10 s at most; Kafka's tells of a cluster without brokers. The answer to a Metadata that creates topics waits for
their leaders, AUTO_CREATE_WAIT_MS at most; only then is it the LEADER_NOT_AVAILABLE that Kafka answers at once, so that
a client's first send need not wait out its retry backoff. A broker that is not the controller has that one make the
topics. More topics at once than one CreateTopics may make are POLICY_VIOLATION, and none is created.
REBOOTSTRAP_REQUIRED is never sent. That brokers are fenced, and replicas eligible leaders out of sync, comes with a
metadata quorum. Apache 3.9 serves DescribeTopicPartitions with a metadata quorum only. Authorized operations are all
there are, as in Kafka without an authorizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, cast

from kbroker.api.authorization import Asking, Right, Special, for_each, once_touched, topic_name, with_items
from kbroker.api.call import mutation_charge
from kbroker.api.chunks import is_break
from kbroker.api.routes import Route
from kbroker.api.topic_ready import once_all_know, why_not_made
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.coordinator_types import topic_on_demand
from kbroker.config.limits import (
    ELEMENTS_PER_REQUEST,
    METADATA_PATIENCE_MS,
    NEW_PARTITIONS_PER_REQUEST,
    WRITTEN_AT_ONCE,
)
from kbroker.log.names import topic_name_fault
from kbroker.metadata.cache import CLUSTER_TOLD, INTERNAL_TOPICS, MetadataCache, TopicImage, TopicKey
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID
from protocol.messages.control import UpdateMetadataPartitionState
from protocol.messages.metadata import (
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    TopicRequest,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kbroker.api.authorization import Handle, Left, Refuse
    from kbroker.api.call import Call, InSlices, Result, Waiting
    from kbroker.broker.control_plane import ControlPlane
    from kbroker.controller.admin import Made, Pending
    from protocol.message import Message
    from protocol.messages.metadata import MetadataRequestTopic

AUTO_CREATE_WAIT_MS = 1000

NO_LEADER = -1
NOT_ASKED = -(2**31)  # for authorized operations
IDS_SINCE = 12  # of Metadata: topics may be asked for by id
LISTENER_NOT_FOUND_SINCE = 6
CLUSTER_OPERATIONS = range(8, 11)  # versions of Metadata that may ask for them

BROKERS = 1  # endpoint types of DescribeCluster
CONTROLLERS = 2


def _once_told(handle: Handle, refuse: Refuse) -> Handle:
    """The handler, once this broker has been told of the cluster. Until then it could only tell of an empty one.

    librdkafka passes such an answer by, and goes on asking the controller that it knew, which may be dead. Brokers are
    answered at once, the controller among them: their lines ask before they say anything.
    """

    def wait_first(request: Message, call: Call) -> Result:
        if call.broker.plane.cache.brokers or call.session.says_it_is_a_broker:
            return handle(request, call)
        return once_touched(CLUSTER_TOLD, METADATA_PATIENCE_MS, request, call, handle, refuse)

    return wait_first


# -- Metadata


def metadata(request: MetadataRequest, call: Call) -> Result:
    """Tell of the brokers and the topics asked for; create those that are missing, if that is wanted."""
    asked = request.topics
    cache = call.broker.plane.cache
    if asked is None or (call.version == 0 and not asked):
        return _answer(request, call, cache.topics, [])
    if call.version < IDS_SINCE:
        _refuse_ids(request, call.version)
    ids = {topic.topic_id: None for topic in asked if topic.topic_id != ZERO_UUID}
    if ids:
        known = [name for name in map(cache.topic_name, ids) if name is not None]
        unknown = [topic_id for topic_id in ids if cache.topic_name(topic_id) is None]
        return _answer(request, call, known, unknown)
    names = list({topic.name: None for topic in asked if topic.name is not None})
    missing = [name for name in names if name not in cache.topics]
    if not missing or not (
        request.allow_auto_topic_creation and call.broker.plane.configs.broker.auto_create_topics_enable
    ):
        return _answer(request, call, names, [])
    return _create(request, call, names, missing)


def _refuse_ids(request: MetadataRequest, version: int) -> None:
    for topic in request.topics or ():
        if topic.name is None or topic.topic_id != ZERO_UUID:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"version {version} asks for topics by name, not by id")


def _create(request: MetadataRequest, call: Call, names: list[str], missing: list[str]) -> InSlices:
    """Start the creation of missing topics, and answer when their leaders are known."""
    plane = call.broker.plane
    legal = [name for name in missing if topic_name_fault(name) is None]
    if len(legal) > NEW_PARTITIONS_PER_REQUEST:
        return (yield from _answer(request, call, names, [], dict.fromkeys(missing, ErrorCode.POLICY_VIOLATION)))
    creations: dict[str, Pending[Made]] = {}
    charge = mutation_charge(call)
    config = plane.configs.broker
    at_once = max(1, min(WRITTEN_AT_ONCE, NEW_PARTITIONS_PER_REQUEST // config.num_partitions))
    for start in range(0, len(legal), at_once):
        some = legal[start : start + at_once]
        creations |= plane.auto_create([topic_on_demand(name, config) for name in some], charge)
        yield
    waiting = AwaitTopics(request, call, names, creations)
    answer = waiting.answer(call.now_ms)
    if isinstance(answer, GeneratorType):
        return cast("Message", (yield from answer))
    return cast("Message | Waiting", answer or waiting)


class AwaitTopics:
    """A Metadata whose topics are being created."""

    __slots__ = ("_call", "_creations", "_names", "_open", "_request", "deadline_ms")

    def __init__(
        self, request: MetadataRequest, call: Call, names: list[str], creations: dict[str, Pending[Made]]
    ) -> None:
        self._request = request
        self._call = call
        self._names = names
        self._creations = creations
        self._open = list(reversed(creations.items()))
        self.deadline_ms = call.now_ms + AUTO_CREATE_WAIT_MS

    @property
    def keys(self) -> Sequence[Hashable]:
        """The store's answers, and news of the topics."""
        return [*dict.fromkeys(self._creations.values()), *(TopicKey(name) for name in self._creations)]

    def answer(self, now_ms: int) -> Result | None:
        """Once every topic has leaders that all brokers know, or will not be there."""
        while self._open:
            name, creation = self._open[-1]
            if not creation.is_over or (why_not_made(name, creation) is None and self._may_still_come(name)):
                return None
            self._open.pop()  # looked at once: there may be thousands, and each is a reason to look again
        return once_all_know(self._call.broker.plane, self.deadline_ms, now_ms, lambda: self.expired(now_ms))

    def _may_still_come(self, name: str) -> bool:
        """Whether a topic has no leaders yet; one of its name that is being deleted is nothing to wait for."""
        plane = self._call.broker.plane
        controller = plane.controller
        is_going = controller is not None and controller.is_to_be_deleted(name)
        return not _is_led(plane.cache.topics.get(name)) and not is_going

    def expired(self, now_ms: int) -> InSlices:
        """What is known now; a topic under way has no leader yet."""
        codes = {}
        for name, creation in self._creations.items():
            error = why_not_made(name, creation)
            codes[name] = ErrorCode.LEADER_NOT_AVAILABLE if error is None else error.code
        return _answer(self._request, self._call, self._names, [], codes)


def _is_led(topic: TopicImage | None) -> bool:
    return topic is not None and all(state.leader >= 0 for state in topic.partitions.values())


def _answer(
    request: MetadataRequest,
    call: Call,
    names: Iterable[str],
    unknown_ids: Iterable[bytes],
    missing: Mapping[str, ErrorCode] | None = None,
) -> InSlices:
    """missing: why topics that were to be created are not there."""
    plane = call.broker.plane
    era = 0 if call.version == 0 else 1 if call.version < LISTENER_NOT_FOUND_SINCE else 2
    topics = []
    for name in list(names):
        yield
        known = name in plane.cache.topics
        topic = _topic(plane.cache, name, call.session.listener, era) if known else _missing_topic(name, missing or {})
        topics.append(_with_operations(topic, call) if request.include_topic_authorized_operations else topic)
    asks_for_cluster = request.include_cluster_authorized_operations and call.version in CLUSTER_OPERATIONS
    return MetadataResponse(
        brokers=_brokers(plane.cache, call.session.listener),
        cluster_id=plane.cluster_id,
        controller_id=plane.cache.controller_id,
        topics=[*map(_missing_id, unknown_ids), *topics],
        cluster_authorized_operations=_cluster_operations(call) if asks_for_cluster else NOT_ASKED,
    )


def _brokers(cache: MetadataCache, listener: str) -> list[MetadataResponseBroker]:
    key = ("brokers", listener)
    found: list[MetadataResponseBroker] | None = cache.memo.get(key)
    if found is None:
        found = [
            MetadataResponseBroker(node_id=broker.id, host=node.host, port=node.port, rack=broker.rack)
            for broker in cache.brokers.values()
            if (node := broker.endpoint(listener)) is not None
        ]
        cache.memo[key] = found
    return found


def _topic(cache: MetadataCache, name: str, listener: str, era: int) -> MetadataResponseTopic:
    """A topic as clients of this listener see it; worked out once between two updates. Read only."""
    key = (name, listener, era)
    found: MetadataResponseTopic | None = cache.memo.get(key)
    if found is None:
        image = cache.topics[name]
        found = cache.memo[key] = MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=name,
            topic_id=image.topic_id,
            is_internal=name in INTERNAL_TOPICS,
            partitions=[_partition(cache, state, listener, era) for _, state in sorted(image.partitions.items())],
        )
    return found


def _partition(
    cache: MetadataCache, state: UpdateMetadataPartitionState, listener: str, era: int
) -> MetadataResponsePartition:
    """era: 0 for version 0, which leaves out dead replicas and says so; 2 once LISTENER_NOT_FOUND is known."""
    replicas, isr = state.replicas, state.isr
    if era == 0:
        replicas = [replica for replica in replicas if cache.node(replica, listener)]
        isr = [replica for replica in isr if cache.node(replica, listener)]
    code = ErrorCode.NONE
    leader = state.leader
    if cache.node(leader, listener) is None:
        no_listener = leader in cache.brokers and era == 2
        code = ErrorCode.LISTENER_NOT_FOUND if no_listener else ErrorCode.LEADER_NOT_AVAILABLE
        leader = NO_LEADER
    elif len(replicas) < len(state.replicas) or len(isr) < len(state.isr):
        code = ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=code,
        partition_index=state.partition_index,
        leader_id=leader,
        leader_epoch=state.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=state.offline_replicas,
    )


def _missing_id(topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id, partitions=[])


def _missing_topic(name: str, codes: Mapping[str, ErrorCode]) -> MetadataResponseTopic:
    code = codes.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic_name_fault(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS, partitions=[])


def _with_operations(topic: MetadataResponseTopic, call: Call) -> MetadataResponseTopic:
    allowed = call.broker.auth_helper.operations(call.session, ResourceType.TOPIC, topic.name or "")
    return MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=allowed,
    )


def _refuse_metadata(request: MetadataRequest, code: ErrorCode, text: str, version: int) -> Result:
    topics = [
        MetadataResponseTopic(
            error_code=code,
            name=None if version >= IDS_SINCE and topic.topic_id != ZERO_UUID else topic.name or "",
            topic_id=topic.topic_id,
            partitions=[],
        )
        for topic in request.topics or ()
    ]
    return MetadataResponse(brokers=[], topics=topics, error_code=code)


def _ask_to_describe(request: MetadataRequest, asking: Asking) -> Left:
    """Of all topics only those show that the session may describe; of one that it names nothing is revealed."""
    call = asking.call

    def shown(answer: MetadataResponse) -> MetadataResponse:
        answer.topics = [each for each in answer.topics if asking.allows(*DESCRIBE_TOPIC, each.name or "")]
        return answer

    def without_topics(answer: MetadataResponse) -> MetadataResponse:
        answer.topics = []
        return answer

    if request.topics is None or (call.version == 0 and not request.topics):
        asking.then(shown)
        return request
    left: list[MetadataRequestTopic] = []
    refused: list[MetadataRequestTopic] = []
    for at, topic in enumerate(request.topics):
        if is_break(at):
            yield
        name = topic_name(topic, call)
        (left if name is None or asking.allows(*DESCRIBE_TOPIC, name) else refused).append(topic)
    if not left and call.version == 0:
        asking.then(without_topics)  # which would be all
    if refused:
        asking.refuse(with_items(request, "topics", refused), ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topics")
    return with_items(request, "topics", left)


def _ask_to_create(request: MetadataRequest, asking: Asking) -> Left:
    """To create what is missing takes a right as well; without it what is missing is not there."""
    plane = asking.call.broker.plane
    if (
        not request.topics
        or not request.allow_auto_topic_creation
        or not plane.configs.broker.auto_create_topics_enable
        or asking.allows(Operation.CREATE)
    ):
        return request
    left: list[MetadataRequestTopic] = []
    refused: list[MetadataRequestTopic] = []
    for at, topic in enumerate(request.topics):
        if is_break(at):
            yield
        is_missing = topic.topic_id == ZERO_UUID and topic.name is not None and topic.name not in plane.cache.topics
        is_allowed = not is_missing or asking.allows(Operation.CREATE, ResourceType.TOPIC, topic.name or "")
        (left if is_allowed else refused).append(topic)
    codes = {topic.name or "": ErrorCode.TOPIC_AUTHORIZATION_FAILED for topic in refused}
    asking.say(MetadataResponse(brokers=[], topics=[_missing_topic(name, codes) for name in codes]), "topics")
    if not left and asking.call.version == 0:
        return with_items(request, "allow_auto_topic_creation", False)  # no topics at all would be all of them
    return with_items(request, "topics", left)


# -- DescribeCluster


def _cluster_operations(call: Call) -> int:
    return call.broker.auth_helper.operations(call.session, ResourceType.CLUSTER)


def describe_cluster(request: DescribeClusterRequest, call: Call) -> DescribeClusterResponse:
    """The live brokers and the controller."""
    if request.endpoint_type != BROKERS:
        if request.endpoint_type == CONTROLLERS:
            text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
            return _refuse_cluster(request, ErrorCode.MISMATCHED_ENDPOINT_TYPE, text, call.version)
        text = f"Unsupported endpoint type {request.endpoint_type}"
        return _refuse_cluster(request, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, text, call.version)
    plane = call.broker.plane
    return DescribeClusterResponse(
        error_code=ErrorCode.NONE,
        cluster_id=plane.cluster_id or "",
        controller_id=plane.cache.controller_id,
        brokers=[
            DescribeClusterBroker(broker_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in _brokers(plane.cache, call.session.listener)
        ]
        + (_fenced_brokers(plane, call.session.listener) if request.include_fenced_brokers else []),
        cluster_authorized_operations=(
            _cluster_operations(call) if request.include_cluster_authorized_operations else NOT_ASKED
        ),
    )


def _fenced_brokers(plane: ControlPlane, listener: str) -> list[DescribeClusterBroker]:
    return [
        DescribeClusterBroker(broker_id=each.id, host=at.host, port=at.port, rack=each.rack, is_fenced=True)
        for each in plane.fenced_brokers()
        if (at := each.endpoint(listener)) is not None
    ]


def _refuse_cluster(
    request: DescribeClusterRequest, code: ErrorCode, text: str, version: int
) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_code=code, error_message=text, endpoint_type=BROKERS, cluster_id="", brokers=[]
    )


# -- DescribeTopicPartitions


def describe_topic_partitions(request: DescribeTopicPartitionsRequest, call: Call) -> DescribeTopicPartitionsResponse:
    """A page of partitions, topics by name in order."""
    cache = call.broker.plane.cache
    start = request.cursor
    if start is not None and start.partition_index < 0:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cursor names partition {start.partition_index}")
    names = sorted({topic.name for topic in request.topics}) or cache.sorted_names()
    if start is not None:
        if request.topics and start.topic_name not in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"the cursor names {start.topic_name}, the request does not")
        names = [name for name in names if name >= start.topic_name]
    limit = min(call.broker.plane.configs.broker.max_request_partition_size_limit, request.response_partition_limit)
    left = max(limit, 1)
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    cursor = None
    for name in names:
        if left <= 0:
            cursor = Cursor(topic_name=name, partition_index=0)
            break
        first = start.partition_index if start is not None and start.topic_name == name else 0
        topic, rest = _page(cache, name, call, first, left)
        topics.append(topic)
        left -= len(topic.partitions)
        if rest is not None:
            cursor = Cursor(topic_name=name, partition_index=rest)
            break
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)


def _page(
    cache: MetadataCache, name: str, call: Call, first: int, limit: int
) -> tuple[DescribeTopicPartitionsResponseTopic, int | None]:
    """A topic with at most `limit` partitions from `first` on, and the index of the next one, if there is one."""
    known = _topic(cache, name, call.session.listener, 2) if name in cache.topics else _missing_topic(name, {})
    partitions = [each for each in known.partitions if each.partition_index >= first]
    plane = call.broker.plane

    def eligible(index: int, *, last_known: bool) -> list[int]:  # not None: Apache's Java client would fail on it
        return list(plane.eligible_leaders(name, index)[last_known])

    topic = DescribeTopicPartitionsResponseTopic(
        error_code=known.error_code,
        name=name,
        topic_id=known.topic_id,
        is_internal=known.is_internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=each.error_code,
                partition_index=each.partition_index,
                leader_id=each.leader_id,
                leader_epoch=each.leader_epoch,
                replica_nodes=each.replica_nodes,
                isr_nodes=each.isr_nodes,
                eligible_leader_replicas=eligible(each.partition_index, last_known=False),
                last_known_elr=eligible(each.partition_index, last_known=True),
                offline_replicas=each.offline_replicas,
            )
            for each in partitions[:limit]
        ],
        topic_authorized_operations=call.broker.auth_helper.operations(call.session, ResourceType.TOPIC, name),
    )
    return topic, partitions[limit].partition_index if len(partitions) > limit else None


def _refuse_partitions(
    request: DescribeTopicPartitionsRequest, code: ErrorCode, text: str, version: int
) -> DescribeTopicPartitionsResponse:
    topics = [
        DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name, topic_id=ZERO_UUID, partitions=[])
        for topic in request.topics
    ]
    return DescribeTopicPartitionsResponse(topics=topics)


def _ask_for_page(request: DescribeTopicPartitionsRequest, asking: Asking) -> Left:
    """A page of all topics is one of those that the session may describe: neither it nor the cursor names another."""
    if request.topics:
        return request
    cursor, names = request.cursor, asking.call.broker.plane.cache.sorted_names()
    shown = []
    for at, name in enumerate(names):
        if is_break(at):
            yield
        if (cursor is None or name >= cursor.topic_name) and asking.allows(*DESCRIBE_TOPIC, name):
            shown.append(TopicRequest(name=name))
    if not shown:
        asking.say(DescribeTopicPartitionsResponse(topics=[]))
        return None
    if cursor is not None and shown[0].name != cursor.topic_name:
        request = with_items(request, "cursor", None)
    return with_items(request, "topics", shown)


DESCRIBE_TOPIC = Right(Operation.DESCRIBE, ResourceType.TOPIC)
NEEDS_FOR_TOPICS = (
    Special((DESCRIBE_TOPIC,), _ask_to_describe),
    Special((Right(Operation.CREATE), Right(Operation.CREATE, ResourceType.TOPIC)), _ask_to_create),
)
NEEDS_FOR_PAGES = (
    for_each(*DESCRIBE_TOPIC, "topics", "topics", topic_name),
    Special((DESCRIBE_TOPIC,), _ask_for_page),
)
ROUTES = (
    Route(
        3,
        MetadataRequest,
        0,
        13,
        metadata,
        _refuse_metadata,
        NEEDS_FOR_TOPICS,
        before=_once_told,
        elements=ELEMENTS_PER_REQUEST,
    ),
    Route(60, DescribeClusterRequest, 0, 2, describe_cluster, _refuse_cluster, (), before=_once_told),
    Route(
        75,
        DescribeTopicPartitionsRequest,
        0,
        0,
        describe_topic_partitions,
        _refuse_partitions,
        NEEDS_FOR_PAGES,
        before=_once_told,
    ),
)
