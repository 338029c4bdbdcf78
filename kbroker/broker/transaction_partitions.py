"""Whether partitions take part in a producer's transaction: asked of its coordinator, here or at another broker.

Called by Produce and TxnOffsetCommit before the first batch of a transaction in a partition (KIP-890): one that only
the partition knew of would never end, and hold readers back for ever. Clients of the second protocol have the partition
added by the same question. The own coordinator answers at once, or when what it added is committed; of another broker
it is asked with AddPartitionsToTxn, one request at a time, in which all questions are that came up meanwhile.

Whoever waits for an answer is told it as a fact of its own, and then makes sure that no marker has come in between
(`Producers.expect`). Source: AddPartitionsToTxnManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from kbroker.coordinator import Caller
from kbroker.metadata.cache import TRANSACTION_STATE
from kbroker.ports import TRANSACTIONS, PeerAnswer, PeerFault
from kbroker.txn import Producer
from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.broker.facts import Handler, Tell
    from kbroker.coordinator import Runtime
    from kbroker.log.log import Log
    from kbroker.log.producers import Awaited
    from kbroker.metadata.cache import MetadataCache
    from kbroker.ports import Peers
    from kbroker.txn.coordinator import TransactionCoordinator
    from kbroker.txn.shard import TransactionShard
    from kbroker.txn.state import TopicPartition
    from protocol.message import Message
    from protocol.messages.transactions import AddPartitionsToTxnTopicResult, AddPartitionsToTxnTransaction

    Codes = Mapping[TopicPartition, ErrorCode]

log = logging.getLogger("kbroker.transactions")

ADD_PARTITIONS_VERSION = 5
OF_CLIENTS = 3  # the newest version of which the answer is about one transaction
ANSWER_MS = 30_000  # request.timeout.ms
MOST_TRANSACTIONS = 1_000  # in one request
OF_TRANSACTION = frozenset(
    {
        ErrorCode.NONE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }
)
"""What a coordinator says of a transaction, and its client is told."""


class Question:
    """Whether a transaction has these partitions, or to add them. codes: the answer, None while it is under way."""

    __slots__ = ("adds", "codes", "done", "name", "partitions", "producer")

    def __init__(self, name: str, producer: Producer, partitions: Iterable[TopicPartition], *, adds: bool) -> None:
        self.name = name
        self.producer = producer
        self.partitions = list(partitions)
        self.adds = adds
        self.codes: Codes | None = None
        self.done: Callable[[Codes, int], None] | None = None  # who waits

    def all(self, code: ErrorCode) -> Codes:
        """The same for each partition."""
        return dict.fromkeys(self.partitions, code)

    def answered(self, response: Message | None) -> Answered | None:
        """The own coordinator's answer, as `JointPart.answered`; a fact for who waits."""
        from protocol.messages.transactions import AddPartitionsToTxnResponse  # as below: most brokers never need it

        assert isinstance(response, AddPartitionsToTxnResponse), response
        self.codes = _codes(response.results_by_topic_v3_and_below)
        return None if self.done is None else Answered(self)


class Verified:
    """What coordinators have said of a request's partitions. codes: by producer and partition."""

    __slots__ = ("codes", "tokens")

    def __init__(self) -> None:
        self.codes: dict[tuple[Producer, TopicPartition], ErrorCode] = {}
        self.tokens: dict[tuple[Producer, TopicPartition], Awaited] = {}

    def code(self, producer: Producer, where: TopicPartition, log: Log | None) -> ErrorCode:
        """What the coordinator said; CONCURRENT_TRANSACTIONS if a transaction has ended meanwhile: ask again.

        Asked for each portion of a large request: the first one begins the transaction here.
        """
        asked = producer, where
        token = self.tokens.get(asked)
        still_holds = (
            log is None
            or token is None
            or log.producers.is_expected(producer.producer_id, token)
            or log.producers.is_in_transaction(*producer)
        )
        code = self.codes.get(asked, ErrorCode.CONCURRENT_TRANSACTIONS)
        return ErrorCode.CONCURRENT_TRANSACTIONS if code is ErrorCode.NONE and not still_holds else code


class Answered(NamedTuple):
    """Fact: the coordinator has answered, and somebody waits for it."""

    question: Question


class _Batch(NamedTuple):
    """The token of a request."""

    broker_id: int
    questions: list[Question]


class TransactionPartitions:
    """Questions to coordinators. A part of the broker: it hears what becomes of requests.

    transactions, coordinator: this broker's own. listener: the name of the one where brokers find each other.
    peers: None where nobody speaks to other brokers.
    """

    def __init__(
        self,
        broker_id: int,
        transactions: Runtime[TransactionShard],
        coordinator: Callable[[], TransactionCoordinator],
        cache: MetadataCache,
        peers: Peers | None,
        listener: str,
        tell: Tell,
    ) -> None:
        self._broker_id = broker_id
        self._transactions = transactions
        self._coordinator = coordinator
        self._cache = cache
        self._peers = peers
        self._listener = listener
        self._tell = tell
        self._waiting: dict[int, deque[Question]] = {}  # by coordinator that has a request under way

    def ask(self, question: Question, done: Callable[[Codes, int], None], now_ms: int) -> Codes | None:
        """The answer if it is known at once; else None, and `done` is called with it, and the time, later."""
        runtime = self._transactions
        if runtime.find(question.name) is not ErrorCode.NOT_COORDINATOR:
            return self._ask_here(question, done, now_ms)
        partition = runtime.partition_of(question.name)
        state = self._cache.partition(TRANSACTION_STATE, partition)
        if state is None or state.leader < 0 or state.leader == self._broker_id:
            return question.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        question.done = done
        waiting = self._waiting.get(state.leader)
        if waiting is not None:
            waiting.append(question)
        elif not self._send(state.leader, [question]):
            return question.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return None

    def _ask_here(self, question: Question, done: Callable[[Codes, int], None], now_ms: int) -> Codes | None:
        transactions, name, producer = self._coordinator(), question.name, question.producer
        if not question.adds:
            return {where: transactions.verify(name, producer, where) for where in question.partitions}
        caller = Caller(question, OF_CLIENTS)
        transactions.runtime.carry_out(
            transactions.add_partitions(name, producer, question.partitions, caller, now_ms), now_ms
        )
        question.done = done
        return question.codes

    # --- other brokers

    def _send(self, broker_id: int, questions: list[Question]) -> bool:
        """Send one request with these questions; whether that was possible."""
        address = self._cache.peer_address(broker_id, self._listener)
        if self._peers is None or address is None:
            return False
        from protocol.messages.transactions import AddPartitionsToTxnRequest

        self._waiting.setdefault(broker_id, deque())
        request = AddPartitionsToTxnRequest(transactions=[_transaction(each) for each in questions])
        token = _Batch(broker_id, questions)
        self._peers.send(broker_id, address, TRANSACTIONS, request, ADD_PARTITIONS_VERSION, token, ANSWER_MS)
        return True

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """What becomes of requests, and answers of the own coordinator."""
        return {PeerAnswer: self._heard, PeerFault: self._heard, Answered: self._answered}

    def _answered(self, fact: Answered, now_ms: int) -> None:
        question = fact.question
        assert question.done is not None, question
        assert question.codes is not None, question
        question.done(question.codes, now_ms)

    def _heard(self, event: PeerAnswer | PeerFault, now_ms: int) -> None:
        batch = event.token
        if not isinstance(batch, _Batch):
            return
        from protocol.messages.transactions import AddPartitionsToTxnResponse

        for question in batch.questions:
            question.codes = question.all(ErrorCode.NETWORK_EXCEPTION)
        if isinstance(event, PeerAnswer):
            response = event.response
            assert isinstance(response, AddPartitionsToTxnResponse), event
            asked = {question.name: question for question in batch.questions}
            for question in batch.questions if response.error_code else ():
                log.warning("broker %d refuses: %s", batch.broker_id, ErrorCode.of(response.error_code).name)
                question.codes = question.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            for result in response.results_by_transaction:
                if result.transactional_id in asked:
                    asked[result.transactional_id].codes = _of_peer(_codes(result.topic_results))
        self._send_next(batch.broker_id)
        for question in batch.questions:
            self._tell(Answered(question))

    def _send_next(self, broker_id: int) -> None:
        """What came up meanwhile, each transaction once."""
        waiting = self._waiting.pop(broker_id)
        chosen: dict[str, Question] = {}
        later: deque[Question] = deque()
        for question in waiting:
            if question.name in chosen or len(chosen) == MOST_TRANSACTIONS:
                later.append(question)
            else:
                chosen[question.name] = question
        if not chosen:
            return
        if self._send(broker_id, list(chosen.values())):
            self._waiting[broker_id] = later
            return
        for question in (*chosen.values(), *later):
            question.codes = question.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            self._tell(Answered(question))


def _transaction(question: Question) -> AddPartitionsToTxnTransaction:
    from protocol.messages.transactions import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction

    topics: dict[str, list[int]] = {}
    for topic, index in question.partitions:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id=question.name,
        producer_id=question.producer.producer_id,
        producer_epoch=question.producer.epoch,
        verify_only=not question.adds,
        topics=[AddPartitionsToTxnTopic(name=name, partitions=indexes) for name, indexes in topics.items()],
    )


def _of_peer(codes: Codes) -> Codes:
    """What a peer says, but for what is not about the transaction: that is no concern of the client, who asks again."""
    return {
        where: code if code in OF_TRANSACTION else ErrorCode.COORDINATOR_NOT_AVAILABLE for where, code in codes.items()
    }


def _codes(topics: Iterable[AddPartitionsToTxnTopicResult]) -> Codes:
    return {
        (topic.name, each.partition_index): ErrorCode.of(each.partition_error_code)
        for topic in topics
        for each in topic.results_by_partition
    }
