"""CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders: changes that only the controller can make.

Served: CreateTopics 0-7, DeleteTopics 0-6, CreatePartitions 0-3, ElectLeaders 0-2. A broker that is not the controller
answers NOT_CONTROLLER. Each topic or partition succeeds or fails by itself. An answer leaves when the change shows in
this broker's own image of the cluster, or at the request's timeout with REQUEST_TIMED_OUT for what does not show yet;
with a timeout of 0 or less as soon as the change is written, and then with REQUEST_TIMED_OUT, as Kafka does. A new
topic or partition is told of once all live brokers know it (`topic_ready.py`), in three quarters of the timeout.

Unlike Kafka: replicas of a new topic are never refused by a policy class. One request makes
10,000 partitions at most (POLICY_VIOLATION), as with a metadata quorum. A replica assignment that names a partition
twice, a broker that is not registered, or a partition without replicas, is refused, as with a metadata quorum; with
ZooKeeper Kafka makes such a topic, and its partitions have no leader. Of two names at once that differ in a dot only,
one is refused, also if two clients sent them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import GeneratorType
from typing import TYPE_CHECKING, TypeVar, cast

from kbroker.api.authorization import Asking, Right, Special, cluster, for_each, topic_name, with_items
from kbroker.api.call import mutation_charge
from kbroker.api.chunks import is_break
from kbroker.api.routes import Route
from kbroker.api.topic_ready import once_all_know
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.facts import Touched
from kbroker.config import describe_topic
from kbroker.config.limits import ELEMENTS_PER_REQUEST
from kbroker.controller.admin import Charge, Growth, MadeTopic, NewTopic, Pending
from kbroker.controller.events import ElectionType, ElectLeaders
from kbroker.log.names import METADATA_LOG, topic_name_fault
from kbroker.metadata.cache import TopicKey
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Hashable, Mapping

    from kbroker.api.authorization import Left
    from kbroker.api.call import Call, InSlices, Result, Waiting
    from kbroker.broker.store_plane import StorePlane
    from protocol.message import Message

CREATE_REFUSES_SINCE, GROW_REFUSES_SINCE, DELETE_REFUSES_SINCE = 6, 3, 5  # THROTTLING_QUOTA_EXCEEDED (KIP-599)

T = TypeVar("T")
R = TypeVar("R")
Asked = TypeVar("Asked", CreatableTopic, CreatePartitionsTopic)

IDS_SINCE = 6  # DeleteTopics
DELETION_DISABLED_SINCE = 3  # DeleteTopics: the client knows TOPIC_DELETION_DISABLED
WHOLE_ELECTION_SINCE = 1  # ElectLeaders: the answer has a code of its own
PREFERRED_STRATEGY = "PreferredReplicaPartitionLeaderElectionStrategy"
NO_LEADER_FOUND = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)
ELECTION_TEXTS = {
    ErrorCode.NONE: None,
    ErrorCode.NOT_CONTROLLER: None,
    ErrorCode.REQUEST_TIMED_OUT: None,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "The partition does not exist.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The topic is being deleted",
}
WAITS_FOR_REASSIGNMENT = "The topic is marked for deletion, which waits for the reassignment of its partitions to end."
TOLD_AT_ONCE = 4  # new topics whose settings are told without a break: a millisecond
STORE_PATIENCE_MS = 30_000  # how long a request without a timeout of its own waits for the metadata store


class AwaitChange:
    """An admin request on its way: first into the store, then into this broker's image of the cluster.

    seen: whether the change of a topic, once written, shows. answer_with: the response, given what shows. tell_all: the
    control plane, where other brokers are to know it as well.
    """

    __slots__ = (
        "_answer_with", "_pending", "_seen", "_shown", "_tell_all", "_timeout_ms", "_topics", "_unseen", "deadline_ms",
    )  # fmt: skip

    def __init__(
        self,
        pending: Pending[T],
        topics: Iterable[str],
        seen: Callable[[str], bool],
        answer_with: Callable[[set[str]], Message | InSlices],
        timeout_ms: int,
        now_ms: int,
        tell_all: StorePlane | None = None,
    ) -> None:
        self._pending = pending
        self._tell_all = tell_all
        self._topics = list(topics)
        self._seen = seen
        self._answer_with = answer_with
        self._timeout_ms = timeout_ms
        self._shown: set[str] = set()
        self._unseen: list[str] | None = None  # once the store has answered
        self.deadline_ms = now_ms + (timeout_ms if timeout_ms > 0 else STORE_PATIENCE_MS)

    @property
    def keys(self) -> Sequence[Hashable]:
        """The store's answer, and news of the topics."""
        return [self._pending, *(TopicKey(topic) for topic in self._topics)]

    def answer(self, now_ms: int) -> Result | None:
        """Once the change shows for every topic that has one, and other brokers have heard of it."""
        if not self._pending.is_over:
            return None
        if self._unseen is None:
            self._unseen = _changing(self._pending, self._topics) if self._timeout_ms > 0 else []
        unseen = self._unseen
        while unseen:  # of thousands of topics each brings a look here: it ends at the first that does not show
            if not self._seen(unseen[-1]):
                return None
            self._shown.add(unseen.pop())
        if self._tell_all is None or not self._shown:
            return self._answer_with(self._shown)
        soon_enough_ms = self.deadline_ms - self._timeout_ms // 4  # the client hears of it before it gives up
        return once_all_know(self._tell_all, soon_enough_ms, now_ms, lambda: self._answer_with(self._shown))

    def expired(self, now_ms: int) -> Message | InSlices:
        """With what shows now."""
        seen = {topic for topic in self._topics if self._pending.is_over and self._seen(topic)}
        return self._answer_with(seen | self._shown)


def _awaited(waiting: AwaitChange | AwaitElection, now_ms: int) -> InSlices:
    """The answer, if it is there already."""
    answer = waiting.answer(now_ms)
    if isinstance(answer, GeneratorType):
        return cast("Message", (yield from answer))
    return cast("Message | Waiting", answer or waiting)


def _changing(pending: Pending[T], topics: Iterable[str]) -> list[str]:
    """The topics whose change was written."""
    if not isinstance(pending.value, dict):
        return []
    return [topic for topic in topics if not isinstance(pending.value.get(topic), KafkaError)]


def _outcome(pending: Pending[dict[str, T]], topic: str) -> T | KafkaError:
    """What became of one topic; REQUEST_TIMED_OUT if the store has not answered."""
    if pending.error is not None:
        return pending.error
    if pending.value is None:
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    return pending.value[topic]


def _sorted_out(
    topics: Sequence[Asked], want: Callable[[Asked, int], T]
) -> Generator[None, None, tuple[dict[str, T], dict[str, KafkaError]]]:
    """What is wanted, and what is refused before the store is asked, by topic.

    want: given a topic and how often the request names it, what the store is to do. Raises: KafkaError.
    """
    times = Counter(topic.name for topic in topics)
    wanted: dict[str, T] = {}
    refused: dict[str, KafkaError] = {}
    for at, topic in enumerate(topics):
        if is_break(at):
            yield
        try:
            wanted[topic.name] = want(topic, times[topic.name])
        except KafkaError as error:
            refused[topic.name] = error
    return wanted, refused


def _results(
    names: Iterable[str],
    refused: Mapping[str, KafkaError],
    pending: Pending[dict[str, T | KafkaError]],
    shown: Container[str],
    result: Callable[[str, T | KafkaError], R],
) -> Generator[None, None, list[R]]:
    """Of each topic what became of it; REQUEST_TIMED_OUT if it was done and is not shown."""
    results = []
    for at, name in enumerate(names):
        if is_break(at, TOLD_AT_ONCE):
            yield
        outcome = refused[name] if name in refused else _outcome(pending, name)
        if not isinstance(outcome, KafkaError) and name not in shown:
            outcome = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "")
        results.append(result(name, outcome))
    return results


def _charged(names: Iterable[str], charge: Charge | None, plane: StorePlane) -> dict[str, KafkaError]:
    """Topics that are not deleted, since their client has nothing left of its quota."""
    refused: dict[str, KafkaError] = {}
    for name in names if charge is not None else ():
        try:
            charge(len(plane.cache.topics[name].partitions))  # type: ignore[misc]
        except KafkaError as error:
            refused[name] = error
    return refused


# -- CreateTopics


def create_topics(request: CreateTopicsRequest, call: Call) -> InSlices:
    """Make topics, or see whether they could be made."""
    plane = call.broker.store_plane
    if not plane.controller.is_active:
        return _refuse_create(request, ErrorCode.NOT_CONTROLLER, "", call.version)
    wanted, refused = yield from _sorted_out(request.topics, lambda topic, times: _new_topic(topic, times, plane))
    charge = mutation_charge(call, CREATE_REFUSES_SINCE)
    pending = plane.admin.create(list(wanted.values()), validate_only=request.validate_only, charge=charge)

    def result(name: str, made: MadeTopic | KafkaError) -> CreatableTopicResult:
        return _failed_topic(name, made) if isinstance(made, KafkaError) else _made_topic(name, made, plane)

    def answer_with(shown: set[str]) -> InSlices:
        names = dict.fromkeys(topic.name for topic in request.topics)
        results = yield from _results(names, refused, pending, names if request.validate_only else shown, result)
        return CreateTopicsResponse(topics=results)

    timeout_ms = 0 if request.validate_only else request.timeout_ms
    waiting = AwaitChange(
        pending, wanted, lambda name: _has_leaders(plane, pending, name), answer_with, timeout_ms, call.now_ms, plane
    )
    return (yield from _awaited(waiting, call.now_ms))


def _new_topic(topic: CreatableTopic, times: int, plane: StorePlane) -> NewTopic:
    """A topic as asked for. times: how often, in one request. Raises: KafkaError for what shows without the store."""
    if topic.name == METADATA_LOG:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {METADATA_LOG} is prohibited.")
    if times > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    if topic.name in plane.cache.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    without = [config.name for config in topic.configs if config.value is None]
    if without:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(without)}")
    times_assigned = Counter(each.partition_index for each in topic.assignments)
    for index, count in times_assigned.items():
        if count > 1:
            text = f"Found multiple manual partition assignments for partition {index}"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, text)
    fault = topic_name_fault(topic.name)
    if fault is not None:  # nor may the store be asked for such a path
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {each.partition_index: tuple(each.broker_ids) for each in topic.assignments},
        {config.name: config.value for config in topic.configs if config.value is not None},
    )


def _has_leaders(plane: StorePlane, pending: Pending[dict[str, MadeTopic | KafkaError]], name: str) -> bool:
    """Whether all partitions of a new topic have a leader that clients will be told of."""
    made = pending.value.get(name) if pending.value else None
    image = plane.cache.topics.get(name)
    if not isinstance(made, MadeTopic) or image is None:
        return False
    states = [image.partitions.get(index) for index in made.replicas]
    return all(state is not None and state.leader >= 0 for state in states)


def _made_topic(name: str, made: MadeTopic, plane: StorePlane) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        topic_id=made.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(made.replicas),
        replication_factor=len(made.replicas[0].replicas),
        configs=[
            CreatableTopicConfigs(
                name=entry.name,
                value=entry.value,
                read_only=entry.read_only,
                config_source=entry.source.wire,
                is_sensitive=entry.sensitive,
            )
            for entry in describe_topic(made.configs, plane.configs.layers, plane.configs.broker)
        ],
    )


def _failed_topic(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message or None)


def _refuse_create(request: CreateTopicsRequest, code: ErrorCode, text: str, version: int) -> CreateTopicsResponse:
    error = KafkaError(code, text)
    return CreateTopicsResponse(topics=[_failed_topic(topic.name, error) for topic in request.topics])


# -- DeleteTopics


def delete_topics(request: DeleteTopicsRequest, call: Call) -> InSlices:
    """Delete topics, named or numbered, with all their data."""
    plane = call.broker.store_plane
    if not plane.controller.is_active:
        return _refuse_delete(request, ErrorCode.NOT_CONTROLLER, "", call.version)
    if not plane.configs.broker.delete_topic_enable:
        knows = call.version >= DELETION_DISABLED_SINCE
        return _refuse_delete(
            request, ErrorCode.TOPIC_DELETION_DISABLED if knows else ErrorCode.INVALID_REQUEST, "", call.version
        )
    asked = []
    for at, topic in enumerate(_wanted(request)):
        if is_break(at):
            yield
        asked.append(_resolved(topic, plane))
    names = {name: plane.cache.topic_id(name) for name, _ in asked if name is not None and name in plane.cache.topics}
    refused = _charged(names, mutation_charge(call, DELETE_REFUSES_SINCE), plane)
    deleting = [name for name in names if name not in refused]
    pending = plane.admin.delete(deleting)

    def answer_with(shown: set[str]) -> InSlices:
        results = []
        for at, (name, topic_id) in enumerate(asked):
            if is_break(at):
                yield
            error = refused.get(str(name))
            if error is None:
                error = _unknown(name, topic_id) if name not in names else _outcome(pending, str(name))
            if error is None and name not in shown:
                waits = plane.controller.waits_for_reassignment(str(name))
                error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, WAITS_FOR_REASSIGNMENT if waits else "")
            results.append(_deleted(name, topic_id, error))
        return DeleteTopicsResponse(responses=results)

    def gone(name: str) -> bool:
        """Whether the name is free, unless a dead broker has a replica: who has the answer may use it again at once.

        Or is another topic's: clients that still want the deleted one may have had it created again.
        """
        if name in plane.cache.topics:
            return plane.cache.topic_id(name) != names[name]
        return not plane.controller.is_being_deleted(name)

    waiting = AwaitChange(pending, deleting, gone, answer_with, request.timeout_ms, call.now_ms)
    return (yield from _awaited(waiting, call.now_ms))


def _wanted(request: DeleteTopicsRequest) -> list[DeleteTopicState]:
    if request.topics:
        return request.topics
    return [DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in request.topic_names]


def _resolved(topic: DeleteTopicState, plane: StorePlane) -> tuple[str | None, bytes]:
    """(name, id) of a topic to be deleted; no name if no topic has the id."""
    if topic.topic_id == ZERO_UUID:
        return topic.name, plane.cache.topic_id(topic.name or "")
    if topic.name is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a topic is named or numbered, not both")
    return plane.cache.topic_name(topic.topic_id), topic.topic_id


def _unknown(name: str | None, topic_id: bytes) -> KafkaError:
    """In the words that scripts know."""
    if name is None and topic_id != ZERO_UUID:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition.")


def _deleted(name: str | None, topic_id: bytes, error: KafkaError | None) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name,
        topic_id=topic_id,
        error_code=error.code if error else ErrorCode.NONE,
        error_message=(error.message or error.code.message) if error else None,
    )


def _refuse_delete(request: DeleteTopicsRequest, code: ErrorCode, text: str, version: int) -> DeleteTopicsResponse:
    error = KafkaError(code, text)
    return DeleteTopicsResponse(responses=[_deleted(each.name, each.topic_id, error) for each in _wanted(request)])


# -- CreatePartitions


def create_partitions(request: CreatePartitionsRequest, call: Call) -> InSlices:
    """Give topics more partitions, or see whether they could have them."""
    plane = call.broker.store_plane
    if not plane.controller.is_active:
        return _refuse_grow(request, ErrorCode.NOT_CONTROLLER, "", call.version)
    wanted, refused = yield from _sorted_out(request.topics, lambda topic, times: _growth(topic, times, plane))
    charge = mutation_charge(call, GROW_REFUSES_SINCE)
    pending = plane.admin.grow(list(wanted.values()), validate_only=request.validate_only, charge=charge)

    def result(name: str, outcome: int | KafkaError) -> CreatePartitionsTopicResult:
        return _grown(name, outcome if isinstance(outcome, KafkaError) else None)

    def answer_with(shown: set[str]) -> InSlices:
        names = dict.fromkeys(topic.name for topic in request.topics)
        results = yield from _results(names, refused, pending, names if request.validate_only else shown, result)
        return CreatePartitionsResponse(results=results)

    def seen(name: str) -> bool:
        image = plane.cache.topics.get(name)
        total = pending.value.get(name) if pending.value else None
        if image is None or not isinstance(total, int):
            return False
        return all(index in image.partitions and image.partitions[index].leader >= 0 for index in range(total))

    timeout_ms = 0 if request.validate_only else request.timeout_ms
    waiting = AwaitChange(pending, wanted, seen, answer_with, timeout_ms, call.now_ms, plane)
    return (yield from _awaited(waiting, call.now_ms))


def _growth(topic: CreatePartitionsTopic, times: int, plane: StorePlane) -> Growth:
    """More partitions as asked for. times, raises: as of `_new_topic`."""
    if times > 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
    if plane.controller.is_to_be_deleted(topic.name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
    if topic_name_fault(topic.name) is not None:  # its path may be that of another node, or none at all
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{topic.name}' does not exist.")
    assignments = None if topic.assignments is None else [tuple(each.broker_ids) for each in topic.assignments]
    return Growth(topic.name, topic.count, assignments)


def _grown(name: str, error: KafkaError | None) -> CreatePartitionsTopicResult:
    if error is None:
        return CreatePartitionsTopicResult(name=name, error_code=ErrorCode.NONE)
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=error.message or None)


def _refuse_grow(
    request: CreatePartitionsRequest, code: ErrorCode, text: str, version: int
) -> CreatePartitionsResponse:
    error = KafkaError(code, text)
    return CreatePartitionsResponse(results=[_grown(topic.name, error) for topic in request.topics])


# -- ElectLeaders


def elect_leaders(request: ElectLeadersRequest, call: Call) -> InSlices:
    """Have leaders elected: the preferred ones, or any that live."""
    plane = call.broker.store_plane
    if request.election_type not in (ElectionType.PREFERRED.value, ElectionType.UNCLEAN.value):
        return (yield from _no_election(request, ErrorCode.INVALID_REQUEST, call.version))
    if request.topic_partitions is None:
        topics = plane.cache.topics.values()
        partitions = tuple((topic.name, index) for topic in topics for index in sorted(topic.partitions))
    else:
        partitions = tuple((each.topic, index) for each in request.topic_partitions for index in each.partitions)
    waiting = AwaitElection(request, call)
    plane.controller.put(ElectLeaders(partitions, ElectionType(request.election_type), waiting.elected))
    return (yield from _awaited(waiting, call.now_ms))


class AwaitElection:
    """An ElectLeaders: first the controller's turn comes, then the new leaders become known here."""

    __slots__ = ("_changed", "_codes", "_plane", "_request", "_tell", "_topics", "_unseen", "_version", "deadline_ms")

    def __init__(self, request: ElectLeadersRequest, call: Call) -> None:
        self._request = request
        self._version = call.version
        self._plane = plane = call.broker.store_plane
        self._tell = call.broker.tell
        self._codes: Mapping[tuple[str, int], ErrorCode] | None = None
        self._changed: Mapping[tuple[str, int], int] = {}
        self._unseen: list[tuple[str, int]] = []  # of those; but for the last one perhaps known by now
        self._topics = [each.topic for each in request.topic_partitions or ()] or list(plane.cache.topics)
        self.deadline_ms = call.now_ms + (request.timeout_ms if request.timeout_ms > 0 else STORE_PATIENCE_MS)

    def elected(self, codes: Mapping[tuple[str, int], ErrorCode], changed: Mapping[tuple[str, int], int]) -> None:
        """What became of each partition, and who leads those that changed."""
        self._codes, self._changed, self._unseen = codes, changed, list(changed)
        self._tell(Touched([self]))

    @property
    def keys(self) -> Sequence[Hashable]:
        """The controller's word, which touches this object, and news of the topics."""
        return [self, *(TopicKey(topic) for topic in dict.fromkeys(self._topics))]

    def answer(self, now_ms: int) -> InSlices | None:
        """Once every new leader is known here."""
        if self._codes is None:
            return None
        unseen = self._unseen if self._request.timeout_ms > 0 else []
        while unseen:  # each of many topics brings a look here: it ends at the first whose leader is not known
            if not self._is_known(unseen[-1]):
                return None
            unseen.pop()
        return self.expired(now_ms)

    def expired(self, now_ms: int) -> InSlices:
        """With REQUEST_TIMED_OUT for the leaders that are not known here."""
        if self._codes is None:
            return _no_election(self._request, ErrorCode.REQUEST_TIMED_OUT, self._version)
        unknown = [each for each in self._changed if not self._is_known(each)]
        codes = dict(self._codes) | dict.fromkeys(unknown, ErrorCode.REQUEST_TIMED_OUT)
        if self._request.topic_partitions is None:
            codes = {each: code for each, code in codes.items() if code is not ErrorCode.ELECTION_NOT_NEEDED}
        return _elections(codes, self._request.election_type)

    def _is_known(self, partition: tuple[str, int]) -> bool:
        state = self._plane.cache.partition(*partition)
        return state is not None and state.leader == self._changed[partition]


def _elections(
    codes: Mapping[tuple[str, int], ErrorCode], election_type: int, code: ErrorCode = ErrorCode.NONE
) -> Generator[None, None, ElectLeadersResponse]:
    """The answer, in the words that Apache's controller has for each code."""
    is_unclean = election_type == ElectionType.UNCLEAN.value
    strategy = "OfflinePartitionLeaderElectionStrategy(true)" if is_unclean else PREFERRED_STRATEGY
    topics: dict[str, ReplicaElectionResult] = {}
    for at, ((topic, index), outcome) in enumerate(codes.items()):
        if is_break(at):
            yield
        result = topics.setdefault(topic, ReplicaElectionResult(topic=topic, partition_result=[]))
        text = ELECTION_TEXTS.get(outcome, outcome.message)
        if outcome in NO_LEADER_FOUND:
            text = f"Failed to elect leader for partition {topic}-{index} under strategy {strategy}"
        result.partition_result.append(PartitionResult(partition_id=index, error_code=outcome, error_message=text))
    return ElectLeadersResponse(error_code=code, replica_election_results=list(topics.values()))


def _no_election(
    request: ElectLeadersRequest, code: ErrorCode, version: int
) -> Generator[None, None, ElectLeadersResponse]:
    """Why there was none: of each partition that was named, and of the whole request where that can be told."""
    asked = [(each.topic, index) for each in request.topic_partitions or () for index in each.partitions]
    whole = code if version >= WHOLE_ELECTION_SINCE else ErrorCode.NONE
    return _elections(dict.fromkeys(asked, code), request.election_type, whole)


def _refuse_elect(request: ElectLeadersRequest, code: ErrorCode, text: str, version: int) -> ElectLeadersResponse:
    steps = _no_election(request, code, version)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("ElectLeadersResponse", end.value)


# -- rights


def _is_controller(request: object, call: Call) -> bool:
    """Another broker says first of all that it is none, as in Kafka."""
    return call.broker.store_plane.controller.is_active


def _ask_for_configs(request: CreateTopicsRequest, asking: Asking) -> Left:
    """What was made is told to who may describe its configs."""
    yield from ()

    def told(answer: CreateTopicsResponse) -> CreateTopicsResponse:
        for topic in answer.topics:
            if not topic.error_code and not asking.allows(Operation.DESCRIBE_CONFIGS, TOPIC, topic.name):
                topic.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                topic.num_partitions = topic.replication_factor = -1
                topic.configs = []
        return answer

    asking.then(told)
    return request


def _ask_to_delete(request: DeleteTopicsRequest, asking: Asking) -> Left:
    """Who names a topic by its id, and may not describe it, does not learn its name."""
    call = asking.call
    plane = call.broker.store_plane
    if not plane.controller.is_active or not plane.configs.broker.delete_topic_enable:
        return request
    left, refused = [], []
    for at, topic in enumerate(_wanted(request)):
        if is_break(at):
            yield
        name = topic_name(topic, call)
        if name is None or asking.allows(Operation.DELETE, TOPIC, name):
            left.append(topic)
        else:
            shown = topic.name or (name if asking.allows(Operation.DESCRIBE, TOPIC, name) else None)
            refused.append(DeleteTopicState(name=shown, topic_id=topic.topic_id))
    if not refused:
        return request
    request = with_items(request, "topic_names", [])
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    asking.refuse(with_items(request, "topics", refused), code, "responses", code.message)
    return with_items(request, "topics", left) if left else None


def _ask_to_create(request: CreateTopicsRequest, asking: Asking) -> Left:
    """A name that comes twice is refused for that, as in Kafka, and not for want of a right."""
    times = Counter(topic.name for topic in request.topics)
    once = [topic for topic in request.topics if times[topic.name] == 1]
    if len(once) == len(request.topics):
        return (yield from MAY_CREATE.ask(request, asking))
    left = yield from MAY_CREATE.ask(with_items(request, "topics", once), asking)
    others = [topic for topic in request.topics if times[topic.name] > 1]
    return with_items(request, "topics", [*(left.topics if left else ()), *others])


TOPIC = ResourceType.TOPIC
MAY_CREATE = for_each(
    Operation.CREATE,
    TOPIC,
    "topics",
    "topics",
    topic_name,
    unless=(Operation.CREATE,),
    when=_is_controller,
    text="Authorization failed.",
)
NEEDS_TO_CREATE = (
    Special(MAY_CREATE.rights, _ask_to_create),
    Special((Right(Operation.DESCRIBE_CONFIGS, TOPIC),), _ask_for_configs),
)
NEEDS_TO_DELETE = (Special((Right(Operation.DELETE, TOPIC),), _ask_to_delete),)
NEEDS_TO_GROW = (
    for_each(
        Operation.ALTER,
        TOPIC,
        "topics",
        "results",
        topic_name,
        when=_is_controller,
        text="The topic authorization is failed.",
    ),
)
MANY = ELEMENTS_PER_REQUEST
ROUTES = (
    Route(19, CreateTopicsRequest, 0, 7, create_topics, _refuse_create, NEEDS_TO_CREATE, elements=MANY),
    Route(20, DeleteTopicsRequest, 0, 6, delete_topics, _refuse_delete, NEEDS_TO_DELETE),
    Route(37, CreatePartitionsRequest, 0, 3, create_partitions, _refuse_grow, NEEDS_TO_GROW, elements=MANY),
    Route(43, ElectLeadersRequest, 0, 2, elect_leaders, _refuse_elect, (cluster(Operation.ALTER),)),
)
