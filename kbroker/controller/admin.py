"""What admins ask of the cluster, as far as it is written into the metadata store: topics and settings.

Called by the handlers of `api/`. Each call is a procedure of its own, checked as far as this broker can and then
written; the controller's watches do the rest. A call gives back a `Pending`, which is filled in when the store has
answered, and told to the waiting request. Topics are created, grown and deleted by the active controller
only, behind its fence; settings by any broker.

Source: ZkAdminManager and AdminZkClient of Apache Kafka 3.9, by behaviour; the topic's settings and its replicas are
written in one transaction here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar, cast

from kbroker.config import check_topic
from kbroker.config.limits import NEW_PARTITIONS_PER_REQUEST, WRITTEN_AT_ONCE
from kbroker.controller.assignment import assign, check_replicas
from kbroker.controller.controller import Controller
from kbroker.controller.epoch import ControllerEpoch, ControllerMovedError, check_size, fault_of, pieces
from kbroker.controller.topics import new_topic_id
from kbroker.log.names import METADATA_LOG, topic_name_fault
from kbroker.metadata.cache import MetadataCache
from kbroker.metadata.configs import Configs
from kbroker.metadata.entities import GROUPS
from kbroker.metadata.steps import (
    Ask,
    PeerFaultError,
    Procedure,
    SessionLostError,
    Steps,
    StoreRefusedError,
    ask,
    one_by_one,
)
from kbroker.metadata.store import (
    CONFIG_CHANGES,
    DELETE_TOPICS,
    TOPICS,
    Assignment,
    TopicInfo,
    config_path,
    decode_config,
    decode_topic,
    delete_topic_path,
    encode_config,
    encode_config_change,
    encode_topic,
    topic_path,
)
from kbroker.metadata.tree import ancestors
from kbroker.ports import (
    Children,
    Create,
    Exists,
    Get,
    Multi,
    Outcome,
    Random,
    SetData,
    StoreFault,
)
from kbroker.timing import Touched
from protocol.errors import ErrorCode, KafkaError
from protocol.message import ZERO_UUID
from protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.namedtuple import NamedTuple

log = logging.getLogger("kbroker.admin")

T = TypeVar("T")

CHANGE_ATTEMPTS = 10
FROM_BROKER = -1  # partitions and replication factor of a topic that leaves them to the broker
OF_TOPICS = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_CONTROLLER,
    }
)
"""What another controller says of a new topic, and who asked for the topic is told."""


class Pending(Generic[T]):
    """Something under way in the store; its own key for the waiting request. value, error: None until it is over."""

    __slots__ = ("error", "value")

    def __init__(self) -> None:
        self.value: T | None = None
        self.error: KafkaError | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is an outcome."""
        return self.value is not None or self.error is not None


class NewTopic(NamedTuple):
    """A topic to be made. assignments: replicas by partition, {} for the broker to choose."""

    name: str
    partitions: int
    replication_factor: int
    assignments: Mapping[int, tuple[int, ...]]
    configs: Mapping[str, str]


class MadeTopic(NamedTuple):
    """A topic that was made, or would have been. topic_id: zero if it was only checked."""

    topic_id: bytes
    replicas: Mapping[int, Assignment]
    configs: Mapping[str, str]


class Growth(NamedTuple):
    """More partitions for a topic.

    total: how many it is to have. assignments: replicas of the new ones in order; None for the broker to choose.
    """

    topic: str
    total: int
    assignments: Sequence[tuple[int, ...]] | None


Made: TypeAlias = dict[str, MadeTopic | KafkaError]
Grown: TypeAlias = dict[str, int | KafkaError]
Deleted: TypeAlias = dict[str, KafkaError | None]
Charge: TypeAlias = Callable[[int], None]
"""What so many partitions cost who asks for them. Raises: KafkaError if that is too much."""
Change: TypeAlias = Callable[[dict[str, str]], dict[str, str]]
"""From the settings of an entity to what they are to become. Raises: KafkaError if they may not."""


class Admin:
    """Admin requests on their way through the store. Who waits for one is told when it is over."""

    def __init__(
        self,
        steps: Steps,
        cache: MetadataCache,
        configs: Configs,
        controller: Controller,
        random: Random,
        tell: Callable[[Touched], None],
    ) -> None:
        self._steps = steps
        self._cache = cache
        self._configs = configs
        self._controller = controller
        self._random = random
        self._tell = tell
        self.ignores_case = False  # whether names of topics must differ in more than that, for the sake of folders
        self._auto: dict[str, Pending[Made]] = {}
        self._on_the_way: set[str] = set()  # topics that the store has been told to make

    # -- topics

    def create(self, topics: Sequence[NewTopic], *, validate_only: bool, charge: Charge | None = None) -> Pending[Made]:
        """Make topics; each succeeds or fails by itself. charge: for the partitions of each that is made."""
        return self.start(self._create(topics, validate_only, charge))

    def auto_create(self, topics: Sequence[NewTopic], charge: Charge | None = None) -> dict[str, Pending[Made]]:
        """Make topics because a client asked for them; once, however many ask. The controller does, if it is another.

        charge: for the partitions of each that is made here.
        Returns: by name; those that are begun by the same call come together.
        """
        found = {topic.name: self._auto.get(topic.name) for topic in topics}
        new = [topic for topic in topics if found[topic.name] is None]
        begun = self.start(self._create_for_use(new, charge)) if new else None
        if begun is not None and not begun.is_over:
            self._auto |= dict.fromkeys((topic.name for topic in new), begun)
        return {name: pending or cast("Pending[Made]", begun) for name, pending in found.items()}

    def delete(self, topics: Sequence[str]) -> Pending[Deleted]:
        """Ask for the deletion of topics. The value says which requests were taken down; the controller obeys them."""
        return self.start(self._delete(topics))

    def grow(self, growths: Sequence[Growth], *, validate_only: bool, charge: Charge | None = None) -> Pending[Grown]:
        """Give topics more partitions; each succeeds or fails by itself. The value: how many they have.

        charge: for the new ones of each.
        """
        return self.start(self._grow(growths, validate_only, charge))

    # -- settings

    def read_configs(self, entities: Sequence[tuple[str, str]]) -> Pending[dict[tuple[str, str], dict[str, str]]]:
        """What is set for some entities. entities: (kind, name), as in `/config/KIND/NAME`."""
        return self.start(self._read_configs(entities))

    def change_configs(
        self, changes: Mapping[tuple[str, str], Change], *, validate_only: bool
    ) -> Pending[dict[tuple[str, str], dict[str, str] | KafkaError]]:
        """Change what is set for some entities, and notify all brokers. The value: what is set now, or why not."""
        return self.start(self._change_configs(changes, validate_only))

    # -- running

    def start(self, procedure: Procedure[T]) -> Pending[T]:
        """Run a procedure on the store, for a request that waits for it."""
        pending: Pending[T] = Pending()

        def done(value: T) -> None:
            pending.value = value
            self._tell(Touched([pending]))

        def failed(error: Exception) -> None:
            if isinstance(error, KafkaError):
                pending.error = error
            elif isinstance(error, ControllerMovedError):
                pending.error = KafkaError(ErrorCode.NOT_CONTROLLER)
            elif isinstance(error, PeerFaultError):
                pending.error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"the controller did not answer: {error}")
            elif isinstance(error, SessionLostError):
                pending.error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the metadata store's session ended meanwhile")
            elif isinstance(error, StoreRefusedError):
                pending.error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
            else:
                pending.error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
                log.error("an admin request failed", exc_info=error)
            self._tell(Touched([pending]))

        self._steps.start(procedure, done, failed)
        return pending

    def _epoch(self) -> ControllerEpoch:
        if self._controller.epoch is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return self._controller.epoch

    # -- creating

    def _create_for_use(self, topics: Sequence[NewTopic], charge: Charge | None) -> Procedure[Made]:
        try:
            if self._controller.epoch is None:
                return (yield from self._have_created(topics))
            return (yield from self._create(topics, False, charge))
        finally:
            for topic in topics:
                self._auto.pop(topic.name, None)  # it is not there yet if this ended without waiting

    def _have_created(self, topics: Sequence[NewTopic]) -> Procedure[Made]:
        """Ask the controller to make topics, as a client would."""
        patience_ms = self._configs.broker.request_timeout_ms
        request = creation_elsewhere(topics, patience_ms)
        response: CreateTopicsResponse = yield from ask(
            Ask(self._controller.active_id, request, timeout_ms=2 * patience_ms)
        )
        return made_elsewhere(topics, response)

    def _create(self, topics: Sequence[NewTopic], validate_only: bool, charge: Charge | None = None) -> Procedure[Made]:
        epoch = self._epoch()
        _check_many(sum(len(topic.assignments) or max(topic.partitions, 1) for topic in topics))
        outcomes: Made = {}
        for some in pieces(topics, WRITTEN_AT_ONCE):
            outcomes |= yield from self._create_some(
                epoch, some, outcomes.keys() if validate_only else (), validate_only, charge
            )
        return outcomes

    def _create_some(
        self,
        epoch: ControllerEpoch,
        topics: Sequence[NewTopic],
        before: Iterable[str],
        validate_only: bool,
        charge: Charge | None,
    ) -> Procedure[Made]:
        """before: names that topics of the same request would have."""
        lookups = [Exists(_config(topic.name)) for topic in topics]
        (there, being_deleted, *found) = yield [Children(TOPICS), Children(DELETE_TOPICS), *lookups]
        # a deletion that outlived its topic, since a controller died between the two, would take the new one away
        # and what another request is making shows nowhere yet
        like = _without_case if self.ignores_case else _plain
        names = {like(name): name for name in (*before, *self._on_the_way, *there.names, *being_deleted.names)}
        outcomes: Made = {}
        writes: dict[str, Multi] = {}
        for topic, config in zip(topics, found, strict=True):
            try:
                check_new_name(topic.name, names, being_deleted.names, like)
                made = self._plan(topic)
                if not validate_only:
                    made = made._replace(topic_id=new_topic_id(self._random))
                write = _fitting(_creation(epoch, topic.name, made, has_config=config.stat is not None))
                if charge is not None and not validate_only:
                    charge(len(made.replicas))
            except KafkaError as error:
                outcomes[topic.name] = error
                continue
            names[like(topic.name)] = topic.name
            outcomes[topic.name] = made
            if not validate_only:
                writes[topic.name] = write
        self._on_the_way |= writes.keys()
        del there, being_deleted, names  # of all topics, and many of these procedures may wait for the store together
        try:
            answers = yield from one_by_one(list(writes.values()))
        finally:  # the store answers in order: who has read before this was written has planned by now
            self._on_the_way -= writes.keys()
        for name, answer in zip(writes, answers, strict=True):
            if answer.fault is not None:
                outcomes[name] = _failure(name, answer, 2)
        return outcomes

    def _plan(self, topic: NewTopic) -> MadeTopic:
        """Everything about a new topic but its id. Raises: KafkaError for whatever is wrong with it but its name."""
        configs = self._configs
        if topic.assignments:
            if (topic.partitions, topic.replication_factor) != (FROM_BROKER, FROM_BROKER):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "A manual partition assignment was specified, but "
                    + (
                        "numPartitions was not set to -1."
                        if topic.partitions != FROM_BROKER
                        else "replication factor was not set to -1."
                    ),
                )
            replicas = dict(topic.assignments)
        else:
            count = configs.broker.num_partitions if topic.partitions == FROM_BROKER else topic.partitions
            factor = topic.replication_factor
            factor = configs.broker.default_replication_factor if factor == FROM_BROKER else factor
            replicas = {index: tuple(each) for index, each in enumerate(self._assign(count, factor))}
        check_assignment(replicas, self._cache.brokers)
        faults = check_topic(topic.configs, configs.broker)
        if faults:
            raise KafkaError(ErrorCode.INVALID_CONFIG, "; ".join(faults))
        assignments = {index: Assignment(each) for index, each in sorted(replicas.items())}
        return MadeTopic(ZERO_UUID, assignments, topic.configs)

    def _assign(self, partitions: int, replication_factor: int, first: int = 0, leader: int = -1) -> list[list[int]]:
        """Replicas for partitions from `first` on. leader: of partition 0, to go on from; -1: anywhere."""
        racks = {broker.id: broker.rack for broker in self._cache.brokers.values()}
        count = max(len(racks), 1)
        ids = sorted(racks)
        start = ids.index(leader) if leader in racks else self._random.below(count)
        shift = start if leader in racks else self._random.below(count)
        return assign(racks, partitions, replication_factor, start=start, shift=shift, first=first)

    # -- deleting

    def _delete(self, topics: Sequence[str]) -> Procedure[Deleted]:
        epoch = self._epoch()
        outcomes: Deleted = {topic: KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for topic in topics}
        for some in pieces(topics):
            found = yield [Exists(topic_path(topic)) for topic in some]
            there = [topic for topic, answer in zip(some, found, strict=True) if answer.stat is not None]
            answers = yield [epoch.fenced(Create(delete_topic_path(topic))) for topic in there]
            for topic, answer in zip(there, answers, strict=True):
                fault = fault_of(answer)
                if answer.fault is None or fault is StoreFault.NODE_EXISTS:  # asked before: wait for it, too
                    outcomes[topic] = None
                else:
                    outcomes[topic] = _failure(topic, answer)
        return outcomes

    # -- growing

    def _grow(self, growths: Sequence[Growth], validate_only: bool, charge: Charge | None) -> Procedure[Grown]:
        epoch = self._epoch()
        outcomes: Grown = {}
        remaining = list(growths)
        for _ in range(CHANGE_ATTEMPTS):
            found = yield [Get(topic_path(growth.topic)) for growth in remaining]
            writes = self._growth_writes(remaining, found, epoch, outcomes, None if validate_only else charge)
            if validate_only:
                break
            charge = None  # who has to try again has been charged
            answers = dict(zip(writes, (yield from one_by_one(list(writes.values()))), strict=True))
            outcomes |= {
                topic: _failure(topic, answer) for topic, answer in answers.items() if answer.fault is not None
            }
            # another writer was faster: what it wrote is what this growth starts from
            slower = {topic for topic, answer in answers.items() if fault_of(answer) is StoreFault.BAD_VERSION}
            remaining = [growth for growth in remaining if growth.topic in slower]
            if not remaining:
                break
        return outcomes

    def _growth_writes(
        self,
        growths: Sequence[Growth],
        found: Sequence[Outcome],
        epoch: ControllerEpoch,
        outcomes: Grown,
        charge: Charge | None,
    ) -> dict[str, Multi]:
        """What to write for each topic that may grow; what becomes of each topic goes into `outcomes`."""
        writes: dict[str, Multi] = {}
        for growth, answer in zip(growths, found, strict=True):
            try:
                if answer.stat is None:
                    raise KafkaError(
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{growth.topic}' does not exist."
                    )
                info = decode_topic(answer.data)
                grown = TopicInfo(info.topic_id, {**info.partitions, **self._more(growth, info)})
                path = topic_path(growth.topic)
                write = _fitting(epoch.fenced(SetData(path, encode_topic(grown), answer.stat.version)))
                if charge is not None:
                    charge(len(grown.partitions) - len(info.partitions))
            except KafkaError as error:
                outcomes[growth.topic] = error
                continue
            outcomes[growth.topic] = growth.total
            writes[growth.topic] = write
        return writes

    def _more(self, growth: Growth, info: TopicInfo) -> dict[int, Assignment]:
        """The new partitions of a topic. Raises: KafkaError for whatever is wrong with the request."""
        old = info.partitions
        if any(each.adding or each.removing for each in old.values()):
            raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"partitions of {growth.topic} are being moved")
        added = growth.total - len(old)
        if added <= 0:
            text = f"Topic already has {len(old)} partition(s)."
            if added:
                text = (
                    f"The topic {growth.topic} currently has {len(old)} partition(s); "
                    f"{growth.total} would not be an increase."
                )
            raise KafkaError(ErrorCode.INVALID_PARTITIONS, text)
        _check_many(added)
        factor = len(old[0].replicas)
        if growth.assignments is None:
            chosen = [tuple(each) for each in self._assign(added, factor, len(old), old[0].replicas[0])]
        else:
            chosen = list(growth.assignments)
            self._check_growth(chosen, added, factor)
        return {len(old) + at: Assignment(replicas) for at, replicas in enumerate(chosen)}

    def _check_growth(self, chosen: Sequence[tuple[int, ...]], added: int, factor: int) -> None:
        if len(chosen) != added:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), "
                f"but only {len(chosen)} assignment(s) were specified.",
            )
        for replicas in chosen:
            check_replicas(replicas, set(replicas) - self._cache.brokers.keys())
            if len(replicas) != factor:
                raise KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{len(replicas)} replicas; allowed: {factor}, as the other partitions have",
                )

    # -- settings

    def _read_configs(self, entities: Sequence[tuple[str, str]]) -> Procedure[dict[tuple[str, str], dict[str, str]]]:
        answers = yield [Get(config_path(*entity)) for entity in entities]
        return {
            entity: decode_config(answer.data) if answer.fault is None else {}
            for entity, answer in zip(entities, answers, strict=True)
        }

    def _change_configs(
        self, changes: Mapping[tuple[str, str], Change], validate_only: bool
    ) -> Procedure[dict[tuple[str, str], dict[str, str] | KafkaError]]:
        outcomes: dict[tuple[str, str], dict[str, str] | KafkaError] = {}
        for some in pieces(list(changes), WRITTEN_AT_ONCE):
            outcomes |= yield from self._change_some({entity: changes[entity] for entity in some}, validate_only)
        return outcomes

    def _change_some(
        self, changes: Mapping[tuple[str, str], Change], validate_only: bool
    ) -> Procedure[dict[tuple[str, str], dict[str, str] | KafkaError]]:
        outcomes: dict[tuple[str, str], dict[str, str] | KafkaError] = {}
        remaining = list(changes)
        if not validate_only:  # clients of a user are two nodes below the user's; few clusters have settings of groups
            deep = [config_path(*entity) for entity in changes if "/" in entity[1] or entity[0] == GROUPS]
            above = {path: None for path_of_one in deep for path in ancestors(path_of_one)}
            yield [Create(path) for path in above]
        for _ in range(CHANGE_ATTEMPTS):
            found = yield [Get(config_path(*entity)) for entity in remaining]
            writes: dict[tuple[str, str], Multi] = {}
            for entity, answer in zip(remaining, found, strict=True):
                try:
                    wanted = changes[entity](decode_config(answer.data) if answer.fault is None else {})
                    write = _fitting(_config_write(entity, wanted, answer.stat.version if answer.stat else None))
                except KafkaError as error:
                    outcomes[entity] = error
                    continue
                outcomes[entity] = wanted
                writes[entity] = write
            if validate_only:
                return outcomes
            answers = dict(zip(writes, (yield from one_by_one(list(writes.values()))), strict=True))
            refused = {entity: answer for entity, answer in answers.items() if answer.fault is StoreFault.REFUSED}
            outcomes |= {entity: _refusal(answer) for entity, answer in refused.items()}
            # another writer was faster: what it wrote is part of what ours changes
            remaining = [each for each, answer in answers.items() if answer.fault is not None and each not in refused]
            if not remaining:
                return outcomes
        text = "another client changes these settings all the time"
        return outcomes | dict.fromkeys(remaining, KafkaError(ErrorCode.REQUEST_TIMED_OUT, text))


def check_new_name(
    name: str, names: Mapping[str, str], being_deleted: Container[str], like: Callable[[str], str]
) -> None:
    """Whether a topic may be called this beside the others. Raises: KafkaError.

    `.` and `_` count as the same letter, for the sake of metrics that are named after topics; and where the file system
    ignores case, so do small and capital letters. like: from a name to what may be there once. names: of the others,
    by that. being_deleted: those of them that are marked for deletion.
    """
    fault = topic_name_fault(name)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if name == METADATA_LOG:  # its folder would be taken for a quorum's at the next start, and left alone
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Creation of internal topic {name} is prohibited.")
    other = names.get(like(name))
    if other == name:
        why = "is marked for deletion" if name in being_deleted else "already exists"
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' {why}.")
    if other is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, _collision(name, other))


def _collision(name: str, other: str) -> str:
    why = f"Topic '{name}' collides with existing topic: {other}"
    if _plain(name) == _plain(other):
        return why
    return (
        f"{why}; a log directory of this broker is on a file system that does not tell capital letters from small ones"
    )


def _plain(name: str) -> str:
    return name.replace(".", "_")


def _without_case(name: str) -> str:
    return _plain(name).lower()


def check_assignment(replicas: Mapping[int, Sequence[int]], brokers: Container[int]) -> None:
    """Whether these can be the replicas of a new topic. Raises: KafkaError INVALID_REPLICA_ASSIGNMENT.

    brokers: those that live.
    """
    if len({len(each) for each in replicas.values()}) != 1:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "allowed: as many replicas for each partition")
    for each in replicas.values():
        check_replicas(each, {broker for broker in each if broker not in brokers})
    if sorted(replicas) != list(range(len(replicas))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )


def _check_many(partitions: int) -> None:
    """As Kafka's own limit since 3.0 (without ZooKeeper), and its code. Raises: KafkaError."""
    if partitions > NEW_PARTITIONS_PER_REQUEST:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"Excessively large number of partitions per request: {partitions}; allowed: {NEW_PARTITIONS_PER_REQUEST}",
        )


def _config(topic: str) -> str:
    return config_path("topics", topic)


def _creation(epoch: ControllerEpoch, name: str, made: MadeTopic, *, has_config: bool) -> Multi:
    """A topic's settings, over what an earlier topic of the name may have left, and its replicas."""
    content = encode_config(made.configs)
    config = SetData(_config(name), content) if has_config else Create(_config(name), content)
    return epoch.fenced(config, Create(topic_path(name), encode_topic(TopicInfo(made.topic_id, made.replicas))))


def _config_write(entity: tuple[str, str], settings: Mapping[str, str], version: int | None) -> Multi:
    """Settings over the version they were read in, None if there were none, and the notice to all brokers."""
    path, content = config_path(*entity), encode_config(settings)
    notice = Create(f"{CONFIG_CHANGES}/config_change_", encode_config_change("/".join(entity)), sequential=True)
    return Multi((Create(path, content) if version is None else SetData(path, content, version), notice))


def _fitting(transaction: Multi) -> Multi:
    """The same. Raises: KafkaError if it is larger than the store takes."""
    check_size(sum(len(each.data) for each in transaction.operations if isinstance(each, Create | SetData)))
    return transaction


def _failure(name: str, answer: Outcome, part: int = 1) -> KafkaError:
    """Why a fenced write about a topic failed, as a client is told. part: of the write, the topic's own."""
    if answer.fault is StoreFault.REFUSED:
        return _refusal(answer)
    if fault_of(answer, 0) is not None:
        return KafkaError(ErrorCode.NOT_CONTROLLER)
    fault = fault_of(answer, part)
    if fault is StoreFault.NODE_EXISTS:
        return KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if fault is StoreFault.NO_NODE:
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{name} was changed by another client meanwhile; try again")


def _refusal(answer: Outcome) -> KafkaError:
    """Of one of several that the store does not let us write: a node of it is another owner's."""
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(StoreRefusedError(answer)))


def creation_elsewhere(topics: Iterable[NewTopic], timeout_ms: int) -> CreateTopicsRequest:
    """What asks another controller for topics without assignments."""
    return CreateTopicsRequest(topics=[_creatable(topic) for topic in topics], timeout_ms=timeout_ms)


def made_elsewhere(topics: Sequence[NewTopic], response: CreateTopicsResponse) -> Made:
    """What another controller has made.

    What it thinks of this broker (that it may not create topics, say) is no concern of a client, who asks again.
    """
    results = {each.name: each for each in response.topics}
    made: Made = {}
    for topic in topics:
        result = results.get(topic.name)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if result is None else ErrorCode.of(result.error_code)
        if result is not None and code is ErrorCode.NONE:
            made[topic.name] = MadeTopic(result.topic_id, {}, topic.configs)
        elif result is not None and code in OF_TOPICS:
            made[topic.name] = KafkaError(code, result.error_message or "")
        else:
            log.warning("the controller makes no topic %s for this broker: %s", topic.name, code.name)
            text = f"the controller answers this broker with {code.name}"
            made[topic.name] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    return made


def _creatable(topic: NewTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
    )
