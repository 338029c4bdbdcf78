"""What a test asks of its broker or cluster, in words that read well: topics, records, groups, a clean slate.

Mixed into `Broker` and `Cluster`. Every question goes to the broker that has the answer, over the wire, and sees what a
client would see.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kbroker.broker.coordinator_types import COORDINATOR_TYPES
from kbroker.metadata.cache import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker.security.recipes import Recipe
from kbroker.testing._client import Connection, Connections
from kbroker.testing._groups import CLASSIC, SHARE, Group, ShareGroup, delete_groups, described, listed, share_offsets
from kbroker.testing._users import rule_request, user_request
from kbroker.usage import UsageError
from protocol.errors import ErrorCode
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.group_offsets import OffsetFetchRequest
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, DeleteTopicsRequest
from protocol.namedtuple import NamedTuple
from protocol.records import Record as Written
from protocol.records import RecordError
from protocol.records.content import build_batch, parse_set

WAIT_S = 10.0
LOOK_AGAIN_S = 0.002
TIMEOUT_MS = 10_000
FETCH_BYTES = 8 << 20
EARLIEST, LATEST = -2, -1
GROUPS, TRANSACTIONS = 0, 1  # key types of FindCoordinator
COORDINATED_BY = {key_type: kind.topic for key_type, kind in COORDINATOR_TYPES.items()}
BATCH_START = struct.Struct(">qi")  # base offset, and the length of what follows

Headers = Sequence[tuple[str, bytes | str | None]]


class Record(NamedTuple):
    """A record as it is in the log. timestamp_ms: since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Helpers:
    """Questions and answers. Needs `bootstrap`."""

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker."""
        raise NotImplementedError

    @property
    def _asked(self) -> str:
        """`bootstrap` of those who can be asked."""
        return self.bootstrap

    def _connections(self) -> Connections:
        """To those who can be asked."""
        return Connections(self._asked)

    # -- topics and records

    def topics(self) -> dict[str, int]:
        """The topics that clients have made, and how many partitions each has."""
        with self._connections() as all_of_them:
            return {name: len(parts) for name, parts in _leaders(all_of_them).items() if not name.startswith("__")}

    def create_topic(self, name: str, partitions: int = 1, *, replication_factor: int = 1, **configs: object) -> str:
        """Make a topic. configs: with `_` for each dot. Returns: its name. Raises: UsageError."""
        settings = [
            CreatableTopicConfig(name=key.replace("_", "."), value=str(value)) for key, value in configs.items()
        ]
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            assignments=[],
            configs=settings,
        )
        with self._connections() as all_of_them:
            connection = controller_of(all_of_them)
            answer = connection.ask(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS), 4)
            result = answer.topics[0]
            if result.error_code:
                raise UsageError(f"cannot make topic {name!r}: {result.error_message or _why(result.error_code)}")
            _await_leaders(all_of_them, name)
        return name

    def produce(
        self,
        topic: str,
        *values: bytes | str | None,
        key: bytes | str | None = None,
        partition: int = 0,
        headers: Headers | Mapping[str, bytes | str] = (),
        timestamp_ms: int | None = None,
    ) -> list[int]:
        """Append records to a partition, made if missing. headers: pairs, or a dict. Returns: their offsets.

        Raises: UsageError.
        """
        if not values:
            raise UsageError(f'there is nothing to produce: write produce("{topic}", b"...")')
        now_ms = round(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        packed = tuple((name.encode(), _bytes(value)) for name, value in pairs)
        written = [Written(at, now_ms, _bytes(key), _bytes(value), packed) for at, value in enumerate(values)]
        data = PartitionProduceData(index=partition, records=bytes(build_batch(written)))
        request = ProduceRequest(
            acks=-1, timeout_ms=TIMEOUT_MS, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        with self._connections() as all_of_them:
            leaders = _await_leaders(all_of_them, topic, partition=partition, make=True)
            answer = all_of_them.to(_leader(leaders, topic, partition)).ask(request, 8)
            result = answer.responses[0].partition_responses[0]
        if result.error_code:
            raise UsageError(f"cannot produce to {topic}-{partition}: {_why(result.error_code)}")
        return list(range(result.base_offset, result.base_offset + len(values)))

    def records(self, topic: str, partition: int | None = None, *, committed: bool = False) -> list[Record]:
        """All records of a topic, or of one partition, by partition and offset.

        committed: only those of transactions that are committed. Raises: UsageError if there is no such topic.
        """
        with self._connections() as all_of_them:
            leaders = _leaders(all_of_them)
            if topic not in leaders:
                raise _no_topic(topic, leaders)
            wanted = range(len(leaders[topic])) if partition is None else [partition]
            return [
                record
                for index in wanted
                for record in _read(all_of_them.to(_leader(leaders, topic, index)), topic, index, committed=committed)
            ]

    def wait_for_records(self, topic: str, count: int, *, timeout: float = WAIT_S) -> list[Record]:
        """The records of a topic once there are so many. Raises: AssertionError after `timeout` seconds."""
        found: list[Record] = []
        for _ in looks(timeout):
            found = self.records(topic) if topic in self.topics() else []
            if len(found) >= count:
                return found
        raise AssertionError(f"topic {topic} has {len(found)} records after {timeout:g} s, not {count}")

    # -- groups

    def groups(self) -> dict[str, Group]:
        """All groups by name, of every kind. Raises: UsageError if a coordinator does not know its groups in time."""
        with self._connections() as all_of_them:
            kinds = _kinds(all_of_them)
            return {name: _group(all_of_them, name, kinds[name]) for name in kinds}

    def share_group(self, name: str) -> ShareGroup:
        """A share group: who reads, where it is, how many records are not over. Raises: UsageError if there is none."""
        with self._connections() as all_of_them:
            kinds = _kinds(all_of_them)
            if kinds.get(name) != SHARE:
                others = ", ".join(sorted(each for each, kind in kinds.items() if kind == SHARE)) or "none"
                raise UsageError(f"there is no share group {name!r}: there are {others}")
            found = _group(all_of_them, name, SHARE)
            _, start, lag = share_offsets(all_of_them.to(_coordinator(all_of_them, name)), name)
            return ShareGroup(name, found.state, found.members, start, lag, found.epoch or 0)

    def lag(self, group: str, topic: str | None = None) -> int:
        """How many records a group has not committed, over the partitions that it has committed offsets of. Records
        of a share group count from where it begins, those among them that are over too.

        topic: of that one alone, all its partitions, committed or not. Raises: UsageError if there is no such group, or
        no such topic.
        """
        with self._connections() as all_of_them:
            kinds = _kinds(all_of_them)
            found = _group(all_of_them, group, kinds.get(group, CLASSIC))
            if found.state == "Dead":
                raise UsageError(f"there is no group {group!r}: there are {', '.join(sorted(kinds)) or 'none'}")
            leaders = _leaders(all_of_them)
            wanted = dict(found.committed)
            if topic is not None and topic not in leaders:
                raise _no_topic(topic, leaders)  # a lag of 0 would pass for one that is caught up
            if topic is not None:
                wanted = {(topic, at): wanted.get((topic, at), -1) for at in range(len(leaders[topic]))}
            lag = 0
            for (name, index), at in wanted.items():
                connection = all_of_them.to(_leader(leaders, name, index))
                start = at if at >= 0 else _offset(connection, name, index, EARLIEST)
                lag += _offset(connection, name, index, LATEST) - start
            return lag

    def assert_lag(self, group: str, lag: int, topic: str | None = None) -> None:
        """Fail unless a group's lag is this. Raises: AssertionError."""
        found = self.lag(group, topic)
        assert found == lag, f"group {group} has a lag of {found}, not {lag}"

    def wait_for_group(
        self,
        group: str,
        *,
        lag: int | None = None,
        members: int | None = None,
        state: str | None = None,
        timeout: float = WAIT_S,
    ) -> Group:
        """The group once it is as wanted: at most this lag, with offsets committed; so many members; this state.

        Raises: AssertionError after `timeout` seconds, with how it is.
        """
        if (lag, members, state) == (None, None, None):
            raise UsageError(f'say what to wait for: wait_for_group("{group}", lag=0), members=1 or state="Stable"')
        found: Group | None = None
        left: int | None = None
        for _ in looks(timeout):
            found = self.groups().get(group)
            if found is None:
                continue
            left = self.lag(group) if lag is not None and found.committed else None
            is_caught_up = lag is None or (left is not None and left <= lag)
            if is_caught_up and members in (None, len(found.members)) and state in (None, found.state):
                return found
        if found is None:
            raise AssertionError(f"there is no group {group} after {timeout:g} s")
        how = f"is {found.state} with {len(found.members)} members"
        tail = "" if lag is None else " and no committed offset" if left is None else f" and a lag of {left}"
        raise AssertionError(f"group {group} {how}{tail} after {timeout:g} s")

    # -- who may do what

    @property
    def clients(self) -> Recipe:
        """What clients are told, by kind: `KafkaProducer(**b.clients.kafka_python())`. Of a secured broker as admin."""
        return Recipe(self.bootstrap, "PLAINTEXT")

    def create_user(self, name: str, password: str = "secret") -> Recipe:
        """Let a user log in, who may do nothing yet. Returns: what its clients are told. Raises: UsageError."""
        request = user_request(name, password)
        with self._connections() as all_of_them:
            answer = controller_of(all_of_them).ask(request, 0)
        for each in answer.results:
            if each.error_code:
                raise UsageError(f"user {name!r} is not made: {each.error_message or _why(each.error_code)}")
        return self.clients._replace(user=name, password=password)

    def allow(self, user: str, operation: str, *, topic: str | None = None, group: str | None = None) -> None:
        """Let a user do something: "READ", "WRITE", ... as Kafka calls it. topic, group: "*" for all; neither: cluster.

        Raises: UsageError.
        """
        request = rule_request(user, operation, topic=topic, group=group)
        with self._connections() as all_of_them:
            (result,) = controller_of(all_of_them).ask(request, 2).results
        if result.error_code:
            raise UsageError(f"the rule is not made: {result.error_message or _why(result.error_code)}")

    # -- a clean slate

    def reset(self) -> None:
        """Drop all topics, groups and transactions. Returns once their names are free again.

        Coordinators that were there are there again, and know nothing: some clients that outlive a test never ask again
        where theirs is. So their topics stay, with tombstones, unless something in them is still under way: to remove a
        topic and make it again takes twice as long as all the rest.
        """
        with self._connections() as all_of_them:
            leaders = _leaders(all_of_them)
            names = [name for name in leaders if name not in COORDINATED_BY.values()]
            if "" in leaders.get(TRANSACTION_STATE, []) or not self._forget_transactional_ids():
                names.append(TRANSACTION_STATE)
            if not _delete_groups(all_of_them, leaders):
                names.append(CONSUMER_OFFSETS)
            if names:
                request = DeleteTopicsRequest(topic_names=names, timeout_ms=TIMEOUT_MS)
                answer = controller_of(all_of_them).ask(request, 5)
                for each in answer.responses:
                    if each.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                        raise UsageError(f"topic {each.name} is not deleted: {_why(each.error_code)}")
            for key_type, name in COORDINATED_BY.items():
                if name in names:
                    _coordinator(all_of_them, "reset", key_type)

    def _forget_transactional_ids(self) -> bool:
        """Whether no coordinator that runs knows of any now: there is no request for that."""
        raise NotImplementedError


# -- within


def looks(timeout: float) -> Iterator[None]:
    """Now, and again and again until so many seconds are over."""
    until = time.monotonic() + timeout
    while True:
        yield
        if time.monotonic() >= until:
            return
        time.sleep(LOOK_AGAIN_S)


def _bytes(text: bytes | str | None) -> bytes | None:
    if not isinstance(text, bytes | str | None):
        raise UsageError(f'{text!r} is no value: write b"..." or "...", or None')
    return text.encode() if isinstance(text, str) else text


def _why(code: int) -> str:
    error = ErrorCode.of(code)
    return f"{error.name} ({error.message})"


def _metadata(all_of_them: Connections, *names: str, make: bool = False) -> Any:
    topics = [MetadataRequestTopic(name=name) for name in names] if names else None
    return all_of_them.any().ask(MetadataRequest(topics=topics, allow_auto_topic_creation=make), 8)


def _brokers(all_of_them: Connections) -> list[str]:
    return [f"{each.host}:{each.port}" for each in _metadata(all_of_them).brokers]


def controller_of(all_of_them: Connections) -> Connection:
    """The connection to the controller. Raises: UsageError if there is none."""
    found = _metadata(all_of_them)
    for each in found.brokers:
        if each.node_id == found.controller_id:
            return all_of_them.to(f"{each.host}:{each.port}")
    raise UsageError("the cluster has no controller at the moment: start a broker first")


Leaders = dict[str, list[str]]
"""By topic, the address of each partition's leader; empty where there is none."""


def _leaders(all_of_them: Connections) -> Leaders:
    return _leaders_in(_metadata(all_of_them))


def _leaders_in(found: Any) -> Leaders:
    address = {each.node_id: f"{each.host}:{each.port}" for each in found.brokers}
    return {
        topic.name: [
            "" if each.error_code == ErrorCode.LEADER_NOT_AVAILABLE else address.get(each.leader_id, "")
            for each in sorted(topic.partitions, key=lambda part: part.partition_index)
        ]
        for topic in found.topics
        if topic.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)
    }


def _await_leaders(
    all_of_them: Connections, topic: str, *, partition: int | None = None, make: bool = False
) -> Leaders:
    """The leaders of a topic once every partition has one, or the one that is asked for; or no broker leads that."""
    found: Leaders = {}
    for _ in looks(WAIT_S):
        told = _metadata(all_of_them, topic, make=make)
        found = _leaders_in(told)
        wanted = found.get(topic, [])
        if wanted and all(wanted if partition is None else wanted[partition : partition + 1]):
            return found
        if partition is not None and _is_offline(told.topics[0], partition):
            return found
    if partition is not None:
        return found
    raise UsageError(f"topic {topic!r} has no leader for every partition: is a broker stopped, or the name not legal?")


def _is_offline(topic: Any, index: int) -> bool:
    """Whether no broker that runs has a partition."""
    return any(
        each.partition_index == index and set(each.replica_nodes) <= set(each.offline_replicas)
        for each in topic.partitions
    )


def _no_topic(topic: str, leaders: Leaders) -> UsageError:
    known = ", ".join(sorted(name for name in leaders if not name.startswith("__"))) or "none"
    return UsageError(f"there is no topic {topic!r}: there are {known}")


def _leader(leaders: Leaders, topic: str, index: int) -> str:
    parts = leaders.get(topic, [])
    if not 0 <= index < len(parts):
        raise UsageError(f"there is no partition {topic}-{index}: {topic} has {len(parts)}")
    if not parts[index]:
        raise UsageError(f"{topic}-{index} has no leader: start the broker that has it")
    return parts[index]


def _offset(connection: Connection, topic: str, index: int, timestamp: int, *, committed: bool = False) -> int:
    partition = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=int(committed), topics=[ListOffsetsTopic(name=topic, partitions=[partition])]
    )
    for _ in looks(WAIT_S):
        found = connection.ask(request, 5).topics[0].partitions[0]
        if found.error_code != ErrorCode.OFFSET_NOT_AVAILABLE:  # a new leader soon knows what is committed
            break
    if found.error_code:
        raise UsageError(f"{topic}-{index} cannot be read: {_why(found.error_code)}")
    return int(found.offset)


def _read(connection: Connection, topic: str, index: int, *, committed: bool) -> Iterator[Record]:
    at = _offset(connection, topic, index, EARLIEST)
    end = _offset(connection, topic, index, LATEST, committed=committed)
    while at < end:
        partition = FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=FETCH_BYTES)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=1,
            isolation_level=int(committed),
            topics=[FetchTopic(topic=topic, partitions=[partition])],
        )
        found = connection.ask(request, 11).responses[0].partitions[0]
        if found.error_code:
            raise UsageError(f"{topic}-{index} cannot be read: {_why(found.error_code)}")
        aborted = {each.producer_id: each.first_offset for each in found.aborted_transactions or ()}
        try:
            batches = parse_set(_whole(found.records or b""))
        except RecordError as error:  # of an old format, or corrupt: the report of a failing test comes here, too
            raise UsageError(f"{topic}-{index} cannot be read: {error}") from None
        if not batches:
            return
        for header, records in batches:
            hidden = (
                committed
                and header.is_transactional
                and header.base_offset >= aborted.get(header.producer_id, header.base_offset + 1)
            )
            if not header.is_control and not hidden:
                for each in records:
                    if at <= each.offset < end:
                        yield _record(topic, index, each)
        at = batches[-1][0].last_offset + 1


def _whole(records: bytes | memoryview) -> memoryview:
    """The batches of an answer without the last one, where the limit of bytes has cut that off."""
    view, end = memoryview(records), 0
    while end + BATCH_START.size <= len(view):
        after = end + BATCH_START.size + BATCH_START.unpack_from(view, end)[1]
        if after > len(view):
            break
        end = after
    return view[:end]


def _record(topic: str, index: int, record: Written) -> Record:
    headers = tuple((bytes(name).decode(errors="replace"), value) for name, value in record.headers)
    return Record(topic, index, record.offset, record.timestamp, record.key, record.value, headers)


def _coordinator(all_of_them: Connections, name: str, key_type: int = GROUPS) -> str:
    """Of a group or transactional id; its topic is made if need be."""
    found: Any = None
    for _ in looks(WAIT_S):
        found = all_of_them.any().ask(FindCoordinatorRequest(key=name, key_type=key_type), 2)
        if not found.error_code:
            return f"{found.host}:{found.port}"
    raise UsageError(f"{COORDINATED_BY[key_type]} has no coordinator for {name!r}: {_why(found.error_code)}")


def _delete_groups(all_of_them: Connections, leaders: Leaders) -> bool:
    """Put all members out of their groups, and delete these. Returns: whether there is no group now."""
    coordinators = set(leaders.get(CONSUMER_OFFSETS, []))
    return "" not in coordinators and all(delete_groups(all_of_them.to(each)) for each in coordinators)


def _kinds(all_of_them: Connections) -> dict[str, str]:
    """The kind of each group, once its coordinator has loaded it."""
    return {name: kind for each in _brokers(all_of_them) for name, kind in _all_listed(all_of_them.to(each)).items()}


def _all_listed(connection: Connection) -> dict[str, str]:
    """The groups that a broker coordinates, once it has loaded them."""
    for _ in looks(WAIT_S):
        if (kinds := listed(connection)) is not None:
            return kinds
    raise UsageError(f"a broker is still loading its groups after {WAIT_S:g} s")


def _group(all_of_them: Connections, name: str, kind: str) -> Group:
    """The group, once its coordinator has loaded it: until then it would pass for one without any offsets."""
    found: Any = None
    code = 0
    committed: dict[tuple[str, int], int] = {}
    for _ in looks(WAIT_S):
        connection = all_of_them.to(_coordinator(all_of_them, name))
        found = described(connection, name, kind)
        code, committed = _offsets(connection, name, kind)
        code = found.error_code or code
        if not code:
            break
    if code:
        raise UsageError(f"group {name!r} cannot be looked at: {_why(code)}")
    members = tuple(sorted(each.client_id for each in found.members))
    return Group(name, found.group_state, members, committed, kind, None if kind == CLASSIC else found.group_epoch)


def _offsets(connection: Connection, name: str, kind: str) -> tuple[int, dict[tuple[str, int], int]]:
    """An error code, and what a group has committed; where it begins, of a share group."""
    if kind == SHARE:
        code, start, _ = share_offsets(connection, name)
        return code, start
    offsets = connection.ask(OffsetFetchRequest(group_id=name, topics=None), 5)
    return offsets.error_code, {
        (topic.name, part.partition_index): part.committed_offset
        for topic in offsets.topics
        for part in topic.partitions
    }
