"""A small client of Kafka's protocol: what topics there are, where they begin and end, fetching, appending, groups.

Used by the driver to look before it reads, and by tasks on the workers to fetch log bytes and to append batches with
timestamps and sequence numbers that Spark's connector cannot set. Each call asks the partition's leader, and asks
again while an error is one that passes. `security.py` has TLS and SASL.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any, Self

import pyarrow as pa

from kbroker.log.checkpoints import format_uuid
from kbroker.pipeline.columns import Damage, Producer, Span, decoded, last_offset, position_of
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.security import log_in, security_of, wrapped
from kbroker.pipeline.settings import check_settings
from kbroker.runtime.blocking import BlockingConnection, connect
from kbroker.security.client import ClientSecurity
from protocol.errors import ErrorCode
from protocol.message import ZERO_UUID, Message
from protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
)
from protocol.messages.groups import FindCoordinatorRequest, ListGroupsRequest
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, DeleteTopicsRequest
from protocol.messages.transactions import InitProducerIdRequest
from protocol.namedtuple import NamedTuple
from protocol.records import RecordError

EARLIEST, LATEST = -2, -1
CONNECT_S, ANSWER_S = 10.0, 60.0
HEAD_START_S = 0.25
"""How long a broker is asked alone whether it is there, until the next is asked, too."""
PATIENCE_S = 60.0
"""How long a call is repeated while its error is one that passes: a broker may be starting again. It is Kafka's
default.api.timeout.ms, as shipped."""
UNKNOWN_S = 5.0
"""How long that error may be that a topic is not there: a new one takes a moment, a missing one stays away."""
IN_FLIGHT = 4
"""Produce requests sent and not answered: fewer than the five batches that a broker remembers of a producer."""
FETCH_BYTES = 8 << 20
TOLD = 4
"""Addresses that an error tells of: it is to remain a line."""
_HIGHEST = {0: 8, 1: 11, 2: 7, 3: 12, 8: 7, 9: 5, 10: 2, 16: 4, 17: 1, 19: 4, 20: 1, 22: 1, 32: 1, 36: 0}
"""The newest version that is used of each request: brokers since Apache's 2.4 have them, and they suffice.
Topics' ids are in Metadata from 2.8 on."""
FETCH_BY_ID = 13
"""The version of Fetch that names topics by their ids: since Apache's 3.1. What it brings is of no topic made since."""

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

Place = tuple[str, int]
"""A topic and a partition."""


class Settings(NamedTuple):
    """Where a cluster is. bootstrap: host:port, several with commas. patience_s: how long it may be away."""

    bootstrap: str
    security: ClientSecurity = ClientSecurity()
    client_id: str = "kbroker-pipeline"
    patience_s: float = PATIENCE_S

    @classmethod
    def of(cls, bootstrap: str, options: Mapping[str, str]) -> Settings:
        """From Kafka's client settings, without the prefix `kafka.`. Raises PipelineError for what is not spoken."""
        check_settings(options)
        timeout_ms = options.get("default.api.timeout.ms", "60000")
        if not 0 < int(timeout_ms) < 1 << 31:
            raise PipelineError(f"default.api.timeout.ms={timeout_ms}: it is a number of ms, 1 at least")
        name = options.get("client.id", "kbroker-pipeline")
        return cls(bootstrap, security_of(options), name, int(timeout_ms) / 1000)


class PartitionEnd(NamedTuple):
    """Where a partition begins and ends: offsets of the first record and behind the last."""

    start: int
    end: int


class AwayError(PipelineError):
    """No broker answers."""


class AnswerError(PipelineError):
    """A broker answered with an error. code: which."""

    def __init__(self, code: int, what: str) -> None:
        self.code = ErrorCode.of(code)
        super().__init__(f"{what}: {self.code.name}: {self.code.message}")


class MadeAnewError(AnswerError):
    """A topic that was to be read is not there any more; another one of its name is."""

    def __init__(self, what: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_ID, f"{what}: the topic was deleted and made again")


class Connection(BlockingConnection):
    """One connection to one broker, which asks in the newest versions that both know."""

    def __init__(self, settings: Settings, host: str, port: int, answer_s: float = ANSWER_S) -> None:
        """answer_s: how long an answer is waited for. Raises OSError; PipelineError if it does not let us in."""
        security = settings.security
        sock = wrapped(security, connect(host, port, min(CONNECT_S, answer_s)), host)
        super().__init__(
            sock, settings.client_id, answer_s=answer_s, negotiates=True, authenticates=security.login is not None
        )
        try:
            self.negotiate()
            if security.login is not None:
                log_in(security, self.ask, f"{host}:{port}")
                self.protocol.authenticated()
        except BaseException:
            self.close()
            raise

    def send(self, request: Message, version: int | None = None) -> None:
        """Without waiting. Raises OSError."""
        assert request.api is not None
        if version is None:
            version = min(_HIGHEST[request.api], self.protocol.served.get(request.api, (0, _HIGHEST[request.api]))[1])
        super().send(request, version)

    def ask(self, request: Message, version: int | None = None) -> Any:
        """Send, and wait for the answer. Raises OSError."""
        self.send(request, version)
        return self.receive()


class Cluster:
    """A cluster as a client sees it; a context manager. One thread."""

    def __init__(self, settings: Settings, *, patient: bool = False) -> None:
        """patient: wait for a broker that is away already, as a task does whose driver has found it. Raises
        PipelineError."""
        self._settings, self._answer_s = settings, min(ANSWER_S, settings.patience_s / 2)
        self._connections: dict[int, Connection] = {}
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[Place, int] = {}
        self._partitions: dict[str, int] = {}
        self._ids: dict[str, bytes] = {}
        try:
            self._connections[-1] = self._first()
        except AwayError as error:
            if not patient:
                raise
            self._again(OSError(str(error)), None, [])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections.values():
            connection.close()

    def _first(self) -> Connection:
        problems = []
        for address in self._settings.bootstrap.split(","):
            host, port = split_address(address)
            try:
                return Connection(self._settings, host, port, self._answer_s)
            except OSError as error:
                problems.append(f"{address.strip()}: {_reason(error)}")
        raise _silent(problems)

    def _any(self, answer_s: float) -> Connection:
        """To whichever broker answers first, of those named to us and those learned. Raises PipelineError.

        Where one hangs, or its machine is gone, the others are asked beside it, one after another.
        """
        named = [split_address(each) for each in self._settings.bootstrap.split(",")]
        addresses = list(dict.fromkeys([*named, *self._brokers.values()]))
        asked: list[futures.Future[Connection]] = []
        waiting: set[futures.Future[Connection]] = set()
        left, pool = iter(addresses), futures.ThreadPoolExecutor(len(addresses))
        while (address := next(left, None)) or waiting:
            if address:
                asked.append(pool.submit(Connection, self._settings, *address, answer_s))
                waiting.add(asked[-1])
            done, waiting = futures.wait(waiting, HEAD_START_S if address else None, futures.FIRST_COMPLETED)
            if found := [each for each in done if each.exception() is None]:
                for spare in (*found[1:], *waiting):
                    spare.add_done_callback(_close)
                pool.shutdown(wait=False)
                return found[0].result()
        pool.shutdown()
        failed = [each.exception() for each in asked]
        raise _silent([f"{host}:{port}: {_reason(why)}" for (host, port), why in zip(addresses, failed, strict=True)])

    # ---- topics

    def topics(self) -> list[str]:
        """The names of all topics that are not the brokers' own."""
        answer = self._metadata(None)
        return sorted(each.name for each in answer.topics if not each.is_internal)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises PipelineError if there is no such topic."""
        if topic not in self._partitions:
            self.learn_leaders([topic])
        return self._partitions[topic]

    def has(self, topic: str) -> bool:
        """Whether there is such a topic."""
        try:
            self.partitions(topic)
        except AnswerError as error:
            if error.code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
                return False
            raise
        return True

    def learn_leaders(self, topics: Iterable[str]) -> None:
        """Learn who leads the topics' partitions. Raises AnswerError."""
        asked = [MetadataRequestTopic(name=topic) for topic in topics]
        answer = self._metadata(asked)
        for topic in answer.topics:
            if topic.error_code:
                raise AnswerError(topic.error_code, f"topic {topic.name} at {self._settings.bootstrap}")
            self._partitions[topic.name], self._ids[topic.name] = len(topic.partitions), topic.topic_id
            for each in topic.partitions:
                self._leaders[topic.name, each.partition_index] = each.leader_id

    def _metadata(self, topics: list[MetadataRequestTopic] | None) -> Any:
        """The answer, None asking for all topics; the brokers in it are learned."""
        answer = self._named().ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False))
        self._brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        return answer

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids, as Kafka spells them, of those topics that are there now; "" from a broker that tells none."""
        found: dict[str, str] = {}
        for topic in topics:
            self._partitions.pop(topic, None)
            if self.has(topic):
                found[topic] = "" if self._ids[topic] == ZERO_UUID else format_uuid(self._ids[topic])
        return found

    def create(self, topic: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Make a topic with the cluster's default number of replicas, and wait until it can be used."""
        given = [CreatableTopicConfig(name=name, value=value) for name, value in (configs or {}).items()]
        wanted = CreatableTopic(
            name=topic, num_partitions=partitions, replication_factor=-1, assignments=[], configs=given
        )
        result = self._at_controller(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)).topics[0]
        if result.error_code:
            raise AnswerError(
                result.error_code, f"topic {topic} cannot be made ({result.error_message or 'no reason'})"
            )
        self._repeat(lambda: self.learn_leaders([topic]), [topic])

    def remove(self, topics: Sequence[str]) -> None:
        """Delete topics, whether there are such or not."""
        self._at_controller(DeleteTopicsRequest(topic_names=list(topics), timeout_ms=30_000))
        for topic in topics:
            self._partitions.pop(topic, None)

    def configs(self, topic: str) -> dict[str, str]:
        """The settings that a topic has of its own."""
        asked = DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=None)
        answer = self._named().ask(DescribeConfigsRequest(resources=[asked])).results[0]
        if answer.error_code:
            raise AnswerError(answer.error_code, f"settings of {topic}")
        of_topic = 1  # config_source: set for this topic
        return {each.name: each.value for each in answer.configs if each.config_source == of_topic and each.value}

    def _at_controller(self, request: Message) -> Any:
        answer = self._metadata([])
        node = answer.controller_id
        return self._to(node if node in self._brokers else -1).ask(request)

    # ---- offsets and records

    def offsets(self, places: Sequence[Place], timestamp: int, *, committed: bool = False) -> dict[Place, int]:
        """An offset of each place. timestamp: EARLIEST, LATEST, or ms: the first record not before it, -1 for none.

        committed: LATEST ends before the first transaction that is open.
        """
        ask = self._offset
        return {place: self._repeat(partial(ask, place, timestamp, committed), [place[0]]) for place in places}

    def _offset(self, place: Place, timestamp: int, committed: bool) -> int:
        partition = ListOffsetsPartition(partition_index=place[1], timestamp=timestamp)
        topic = ListOffsetsTopic(name=place[0], partitions=[partition])
        request = ListOffsetsRequest(replica_id=-1, isolation_level=int(committed), topics=[topic])
        found = self._leader(place).ask(request).topics[0].partitions[0]
        if found.error_code:
            raise AnswerError(found.error_code, f"{place[0]}-{place[1]}")
        return int(found.offset)

    def ends(self, topics: Iterable[str], *, committed: bool = False) -> dict[Place, PartitionEnd]:
        """Where each partition of the topics begins and ends now, those that were added since too."""
        topics = list(topics)
        self._repeat(partial(self.learn_leaders, topics), topics)
        places = [(topic, index) for topic in topics for index in range(self.partitions(topic))]
        first, last = self.offsets(places, EARLIEST), self.offsets(places, LATEST, committed=committed)
        return {place: PartitionEnd(first[place], last[place]) for place in places}

    def fetch(
        self, place: Place, offset: int, *, topic_id: str = "", committed: bool = False, wait_ms: int = 500
    ) -> Any:
        """The answer for one partition, from `offset` on; its `records` may be empty. topic_id: of this topic alone.

        Raises AnswerError, UNKNOWN_TOPIC_ID where there is another one of that name.
        """
        partition = FetchPartition(partition=place[1], fetch_offset=offset, partition_max_bytes=FETCH_BYTES)

        def fetched() -> Any:
            line = self._leader(place)
            if topic_id and topic_id != format_uuid(self._ids[place[0]]):
                raise MadeAnewError(f"{place[0]}-{place[1]} at offset {offset}")
            request = FetchRequest(
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=FETCH_BYTES,
                isolation_level=int(committed),
                topics=[FetchTopic(topic=place[0], topic_id=self._ids[place[0]], partitions=[partition])],
            )
            by_id = topic_id and line.protocol.serves(FetchRequest, FETCH_BY_ID)
            answer = line.ask(request, FETCH_BY_ID if by_id else None)
            found = answer.responses[0].partitions[0]
            if answer.error_code or found.error_code:
                raise AnswerError(answer.error_code or found.error_code, f"{place[0]}-{place[1]} at offset {offset}")
            return found

        return self._repeat(fetched, [place[0]])

    # ---- groups

    def groups(self) -> list[str]:
        """The ids of all groups of all brokers."""
        self.learn_leaders([])
        found = [each for node in self._brokers for each in self._repeat(partial(self._groups_of, node), [])]
        return sorted({each.group_id for each in found if each.protocol_type in ("", "consumer")})

    def _groups_of(self, node: int) -> Any:
        """All groups of one broker. Raises AnswerError, while it is loading some of them too."""
        answer = self._to(node).ask(ListGroupsRequest())
        if answer.error_code:
            raise AnswerError(answer.error_code, f"groups of broker {node}")
        return answer.groups

    def committed(self, group: str) -> dict[Place, int]:
        """All that a group has committed."""
        return {
            (topic.name, each.partition_index): each.committed_offset
            for topic in self._repeat(partial(self._offsets_of, group), [])
            for each in topic.partitions
            if each.committed_offset >= 0
        }

    def _offsets_of(self, group: str) -> Any:
        answer = self._coordinator(group).ask(OffsetFetchRequest(group_id=group, topics=None))
        if answer.error_code:
            raise AnswerError(answer.error_code, f"group {group}")
        return answer.topics

    def commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Commit for a group that has no members. Raises AnswerError."""
        self._repeat(partial(self._commit, group, offsets), [])

    def _commit(self, group: str, offsets: Mapping[Place, int]) -> None:
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in offsets.items():
            entry = OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(topic, []).append(entry)
        asked = [OffsetCommitRequestTopic(name=name, partitions=each) for name, each in topics.items()]
        answer = self._coordinator(group).ask(OffsetCommitRequest(group_id=group, topics=asked))
        for topic in answer.topics:
            for each in topic.partitions:
                if each.error_code:
                    raise AnswerError(each.error_code, f"group {group}, {topic.name}-{each.partition_index}")

    def _coordinator(self, group: str) -> Connection:
        def found() -> Connection:
            answer = self._named().ask(FindCoordinatorRequest(key=group, key_type=0))
            if answer.error_code:
                raise AnswerError(answer.error_code, f"group {group}")
            self._brokers[answer.node_id] = (answer.host, answer.port)
            return self._to(answer.node_id)

        return self._repeat(found, [])

    # ---- writing

    def producer(self) -> Producer:
        """A producer id that was never given out."""

        def given() -> Producer:
            answer = self._named().ask(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000))
            if answer.error_code:
                raise AnswerError(answer.error_code, "no producer id")
            return Producer(answer.producer_id, answer.producer_epoch)

        return self._repeat(given, [])

    def append(self, place: Place, batches: Iterable[bytes | bytearray]) -> tuple[int, int]:
        """Append batches in order, acks=all, several on the way at a time; first offset and how many batches.

        Batches of an idempotent producer are there once, whatever breaks in between. Raises AnswerError, and
        PipelineError after a minute without an answer.
        """
        waiting: deque[bytes | bytearray] = deque()  # sent, not answered
        first, count, source, ended = -1, 0, iter(batches), False
        sent = 0  # of those waiting, on this connection
        trouble: float | None = None
        while True:
            try:
                line = self._leader(place)
                while not ended and sent == len(waiting) < IN_FLIGHT:
                    batch = next(source, None)
                    if batch is None:
                        ended = True
                        break
                    waiting.append(batch)
                    line.send(_produce(place, batch))
                    sent += 1
                while sent < len(waiting):
                    line.send(_produce(place, waiting[sent]))
                    sent += 1
                if not waiting:
                    return first, count
                base = _appended(place, line.receive())
                waiting.popleft()
                sent -= 1
                first, count, trouble = (base if count == 0 else first), count + 1, None
            except (OSError, AnswerError) as error:
                trouble = self._again(error, self._since(error, trouble), [place[0]])
                sent = 0

    # ---- connections

    def _leader(self, place: Place) -> Connection:
        if place not in self._leaders:
            self.learn_leaders([place[0]])
        if place not in self._leaders:
            raise AnswerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{place[0]}-{place[1]}")
        return self._to(self._leaders[place])

    def _named(self) -> Connection:
        """To the broker that is asked what any can answer. Raises PipelineError."""
        if -1 not in self._connections:  # a call before this one has given them all up
            self._connections[-1] = self._any(CONNECT_S)
            self._connections[-1].wait(self._answer_s)
        return self._connections[-1]

    def _to(self, node: int) -> Connection:
        if node not in self._connections:
            if node not in self._brokers:
                raise AnswerError(ErrorCode.LEADER_NOT_AVAILABLE, f"broker {node}")
            self._connections[node] = Connection(self._settings, *self._brokers[node], self._answer_s)
        return self._connections[node]

    def _repeat(self, call: Callable[[], Any], topics: Sequence[str]) -> Any:
        """The call's result, repeated while its errors are of those that pass."""
        trouble: float | None = None
        while True:
            try:
                return call()
            except (OSError, AnswerError) as error:
                trouble = self._again(error, self._since(error, trouble), topics)

    def _since(self, error: Exception, trouble: float | None) -> float | None:
        """Since when a call goes wrong, as patience has it; None if it has just begun. Raises an error that stays."""
        if not isinstance(error, AnswerError):
            return trouble
        if isinstance(error, MadeAnewError) or not error.code.retriable:
            raise error
        if trouble is None and error.code in _UNKNOWN:
            return time.monotonic() - self._settings.patience_s + UNKNOWN_S
        return trouble

    def _again(self, error: Exception, trouble: float | None, topics: Sequence[str]) -> float:
        """Connect again. trouble: since when it goes wrong, None if it has just begun. Raises PipelineError."""
        now = time.monotonic()
        since = now if trouble is None else trouble
        if now - since > self._settings.patience_s:
            if isinstance(error, AnswerError):
                raise error
            raise PipelineError(
                f"the broker at {self._settings.bootstrap} does not answer any more ({error}): start it, then start "
                "this job again; it goes on where it stopped"
            ) from error
        threading.Event().wait(0.2)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        try:
            self._named()
            self.learn_leaders(topics)
        except (OSError, PipelineError) as again:
            if -1 not in self._connections:
                return self._again(OSError(str(again)), since, topics)
        return since


def _close(connected: futures.Future[Connection]) -> None:
    """Hang up: no caller waits any more."""
    if connected.exception() is None:
        connected.result().close()


def _reason(error: BaseException | None) -> str:
    return str(getattr(error, "strerror", None) or error)


def _silent(problems: Sequence[str]) -> AwayError:
    """problems: of each address."""
    told = [*problems[:TOLD], f"{len(problems) - TOLD} more"] if len(problems) > TOLD else problems
    return AwayError(f"no broker answers at {'; '.join(told)}. Start it, or name another: HOST:PORT")


def _produce(place: Place, batch: bytes | bytearray) -> ProduceRequest:
    data = PartitionProduceData(index=place[1], records=batch)
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=place[0], partition_data=[data])]
    )


def _appended(place: Place, answer: Any) -> int:
    found = answer.responses[0].partition_responses[0]
    if found.error_code and found.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        what = f"{place[0]}-{place[1]} refuses records"
        raise AnswerError(found.error_code, f"{what} ({found.error_message})" if found.error_message else what)
    return int(found.base_offset)


def chunks(
    cluster: Cluster, place: Place, start: int, end: int, *, committed: bool, topic_id: str = ""
) -> Iterator[tuple[memoryview, list[tuple[int, int]]]]:
    """Log bytes that hold the records from `start` up to, not with, `end`, with the aborted transactions in each.

    Raises AnswerError, OFFSET_OUT_OF_RANGE among them; PipelineError where nothing comes that should be there.
    """
    offset = start
    idle = 0
    while offset < end:
        found = cluster.fetch(place, offset, topic_id=topic_id, committed=committed)
        data = memoryview(found.records or b"")
        last = last_offset(data)
        if last is None or last < offset:
            idle += 1
            if idle > 20:
                raise PipelineError(
                    f"{place[0]}-{place[1]}: nothing comes from offset {offset} on, {end} being the end"
                )
            continue
        idle = 0
        yield data, [(each.producer_id, each.first_offset) for each in found.aborted_transactions or ()]
        offset = last + 1


def rows(
    settings: Settings,
    span: Span,
    *,
    topic_id: str = "",
    headers: bool = True,
    committed: bool = True,
    lossy: Callable[[str], str] | None = None,
    damaged: Callable[[Damage], pa.RecordBatch] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of a span, as columns has them. topic_id: of the topic that it is of.

    lossy: what to say where records are gone that were to be read, given which; None to go on with what is there.
    damaged: rows for a batch that is damaged; None to end there. Raises AnswerError, PipelineError.
    """
    place, start = (span.topic, span.partition), span.start
    found: Damage | None = None
    with Cluster(settings, patient=True) as cluster:
        aborted: list[tuple[int, int]] = []
        chunk = memoryview(b"")

        def data() -> Iterator[memoryview]:
            nonlocal chunk
            for chunk, gone in chunks(cluster, place, start, span.end, committed=committed, topic_id=topic_id):
                aborted[:] = gone
                cut = None if found is None else position_of(chunk, found.offset)
                yield chunk[:cut]
                if cut is not None:
                    return

        while start < span.end:
            try:
                ask: Callable[[], Sequence[tuple[int, int]]] | None = (lambda: aborted) if committed else None
                for batch in decoded(data(), span._replace(start=start), headers=headers, aborted=ask):
                    yield batch
                    start = batch.column("offset")[batch.num_rows - 1].as_py() + 1
            except AnswerError as error:
                if error.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                if lossy is not None:
                    raise PipelineError(lossy(str(error))) from error
                first = cluster.offsets([place], EARLIEST)[place]
                if first <= start:
                    return
                start = first
            except RecordError as error:
                found = Damage.of(chunk, error)
                if damaged is None:
                    raise PipelineError(f"{place[0]}-{place[1]}, offset {found.offset}: {found.reason}") from error
            else:
                if found is None or damaged is None:
                    return
                if span.start <= found.offset < span.end:  # or it is another task's
                    yield damaged(found)
                start, found = found.after, None


def split_address(address: str) -> tuple[str, int]:
    """host:port apart. Raises PipelineError."""
    found = re.fullmatch(r"\s*(\[[^\]]+\]|[^:\s/]+):([0-9]{1,5})\s*", address)
    if not found or not 0 < int(found[2]) < 1 << 16:
        raise PipelineError(f"{address!r} is no HOST:PORT")
    return found[1].strip("[]"), int(found[2])
