"""Where partitions end for consumers, of whichever leader: what lag is told from. ListOffsets, to other brokers.

Made by `share_partitions.py`, called for DescribeShareGroupOffsets. What is led here is looked up, and the leaders of
the others are asked, each about all that came up while its last request was under way. A leader that gives no answer
is asked again for a while, or another one that has taken over.

Source: NetworkPartitionMetadataClient of Apache Kafka 4.4, by behaviour. Unlike it: who leads is looked up again before
each try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.ports import END_OFFSETS, PeerAnswer
from protocol.errors import ErrorCode
from protocol.messages.offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from typing import Any, TypeAlias

    from kbroker.metadata.cache import MetadataCache
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import PeerEvent
    from kbroker.replica import ReplicaManager

    TopicPartition: TypeAlias = tuple[str, int]

PATIENCE_MS = 20_000  # as of who asks share coordinators
CONSUMER, READ_UNCOMMITTED, LATEST = -1, 0, -1
VERSIONS = 1, 9  # ListOffsets: what brokers of Apache 3.9 and 4.4 serve


class End(NamedTuple):
    """Of a partition, the offset behind its last record that a consumer may read; or why that is not known."""

    offset: int
    code: ErrorCode = ErrorCode.NONE


class _Question:
    """Who wants to know, and what is known so far. count: of partitions."""

    __slots__ = ("count", "deadline_ms", "done", "ends")

    def __init__(self, count: int, done: Callable[[Mapping[TopicPartition, End], int], None], deadline_ms: int) -> None:
        self.count, self.done, self.deadline_ms = count, done, deadline_ms
        self.ends: dict[TopicPartition, End] = {}


class EndOffsets:
    """Questions to leaders, this broker among them."""

    def __init__(self, broker_id: int, cache: MetadataCache, replicas: ReplicaManager, requester: Requester) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._replicas = replicas
        self._requester = requester
        self._waiting: dict[int, list[tuple[_Question, TopicPartition]]] = {}  # by leader

    def ask(
        self,
        partitions: Collection[TopicPartition],
        done: Callable[[Mapping[TopicPartition, End], int], None],
        now_ms: int,
    ) -> None:
        """Have `done` told where these end, and the time: now, if all are led here."""
        question = _Question(len(partitions), done, now_ms + PATIENCE_MS)
        if not partitions:
            done({}, now_ms)
        for each in partitions:
            self._look_up(question, each, now_ms)
        self._ask_waiting(now_ms)

    def _look_up(self, question: _Question, where: TopicPartition, now_ms: int) -> None:
        state = self._cache.partition(*where)
        if state is None or state.leader < 0:
            self._found(question, where, End(-1, ErrorCode.LEADER_NOT_AVAILABLE), now_ms)
        elif state.leader == self._broker_id:
            self._found(question, where, self._own(where), now_ms)
        else:
            self._waiting.setdefault(state.leader, []).append((question, where))

    def _own(self, where: TopicPartition) -> End:
        replica = self._replicas.partitions.get(where)
        if replica is None or not replica.is_leader or replica.log is None:
            return End(-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return End(replica.log.high_watermark)

    def _found(self, question: _Question, where: TopicPartition, end: End, now_ms: int) -> None:
        question.ends[where] = end
        if len(question.ends) == question.count:
            question.done(question.ends, now_ms)

    def _ask_waiting(self, now_ms: int) -> None:
        """Each leader about all that waits for it, unless a request to it is under way."""
        for leader in [each for each in self._waiting if not self._requester.is_asking(each, END_OFFSETS)]:
            asked = self._waiting.pop(leader)
            if not self._requester.ask(self, leader, END_OFFSETS, _request(asked), asked, version=VERSIONS):
                for question, where in asked:
                    self._found(question, where, End(-1, ErrorCode.LEADER_NOT_AVAILABLE), now_ms)

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """What a leader says, or nothing."""
        about: Any = asked.token
        response: Any = event.response if isinstance(event, PeerAnswer) else None
        said = (
            {}
            if response is None
            else {(topic.name, each.partition_index): each for topic in response.topics for each in topic.partitions}
        )
        for question, where in about:
            part = said.get(where)
            if part is not None:
                code = ErrorCode.of(part.error_code)
                self._found(question, where, End(-1 if code else part.offset, code), now_ms)
            elif response is not None:
                self._found(question, where, End(-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), now_ms)
            elif now_ms < question.deadline_ms:
                self._look_up(question, where, now_ms)
            else:
                self._found(question, where, End(-1, ErrorCode.NETWORK_EXCEPTION), now_ms)
        self._ask_waiting(now_ms)


def _request(asked: Collection[tuple[object, TopicPartition]]) -> ListOffsetsRequest:
    """About each of these once."""
    topics: dict[str, ListOffsetsTopic] = {}
    for name, index in dict.fromkeys(where for _, where in asked):
        topic = topics.setdefault(name, ListOffsetsTopic(name=name, partitions=[]))
        topic.partitions.append(ListOffsetsPartition(partition_index=index, timestamp=LATEST))
    return ListOffsetsRequest(replica_id=CONSUMER, isolation_level=READ_UNCOMMITTED, topics=list(topics.values()))
