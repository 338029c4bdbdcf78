"""Whether partitions take part in a producer's transaction: asked of its coordinator, here or at another broker.

Called by Produce and TxnOffsetCommit before the first batch of a transaction in a partition (KIP-890): one that only
the partition knew of would never end, and hold readers back for ever. Clients of the second protocol have the partition
added by the same question. The own coordinator answers at once, or when what it added is committed; of another broker
it is asked with AddPartitionsToTxn, one request at a time, in which all questions are that came up meanwhile.

The waiting request is told the answer as a fact of its own, and then makes sure that no marker has come in between
(`Producers.expect`). Source: AddPartitionsToTxnManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from kbroker.broker.facts import PartialAnswer
from kbroker.coordinator import Caller
from kbroker.metadata.cache import TRANSACTION_STATE
from kbroker.ports import TRANSACTIONS, PeerAnswer
from kbroker.txn import Producer
from protocol.errors import ErrorCode
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kbroker.broker.facts import Handler, Tell
    from kbroker.coordinator import Runtime
    from kbroker.log.log import Log
    from kbroker.log.producer_state import Awaited
    from kbroker.metadata.cache import MetadataCache
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import PeerEvent
    from kbroker.txn.coordinator import TransactionCoordinator
    from kbroker.txn.shard import TransactionShard
    from kbroker.txn.state import TopicPartition
    from protocol.message import Message
    from protocol.messages.transactions import AddPartitionsToTxnTopicResult, AddPartitionsToTxnTransaction

    Codes = Mapping[TopicPartition, ErrorCode]

log = logging.getLogger("kbroker.transactions")

OF_CLIENTS = 3  # the newest version of which the answer is about one transaction
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


class Question(PartialAnswer):
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
    """Fact: the coordinator has answered, and a request waits for it."""

    question: Question


class TransactionPartitions:
    """Questions to coordinators. A part of the broker. transactions, coordinator: this broker's own."""

    def __init__(
        self,
        broker_id: int,
        transactions: Runtime[TransactionShard],
        coordinator: Callable[[], TransactionCoordinator],
        cache: MetadataCache,
        requester: Requester,
        tell: Tell,
    ) -> None:
        self._broker_id = broker_id
        self._transactions = transactions
        self._coordinator = coordinator
        self._cache = cache
        self._requester = requester
        self._tell = tell
        self._waiting: defaultdict[int, list[Question]] = defaultdict(list)  # by coordinator

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
        self._waiting[state.leader].append(question)
        self._ask_next(state.leader)
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

    def _ask_next(self, broker_id: int) -> None:
        """What has come up, each transaction once, unless a request is under way."""
        if self._requester.is_asking(broker_id, TRANSACTIONS):
            return
        chosen: dict[str, Question] = {}
        later: list[Question] = []
        for question in self._waiting.pop(broker_id, ()):
            if question.name in chosen or len(chosen) == MOST_TRANSACTIONS:
                later.append(question)
            else:
                chosen[question.name] = question
        if not chosen:
            return
        from protocol.messages.transactions import AddPartitionsToTxnRequest

        request = AddPartitionsToTxnRequest(transactions=[_transaction(each) for each in chosen.values()])
        if not self._requester.ask(self, broker_id, TRANSACTIONS, request, chosen):
            for question in (*chosen.values(), *later):
                question.codes = question.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                self._tell(Answered(question))
        elif later:
            self._waiting[broker_id] = later

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """Answers, for who waits."""
        return {Answered: self._answered}

    def _answered(self, fact: Answered, now_ms: int) -> None:
        question = fact.question
        assert question.done is not None, question
        assert question.codes is not None, question
        question.done(question.codes, now_ms)

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """What a coordinator says, or nothing: then the client is to ask again."""
        from protocol.messages.transactions import AddPartitionsToTxnResponse

        questions = cast("dict[str, Question]", asked.token)
        for question in questions.values():
            question.codes = question.all(ErrorCode.NETWORK_EXCEPTION)
        if isinstance(event, PeerAnswer):
            response = event.response
            assert isinstance(response, AddPartitionsToTxnResponse), event
            for question in questions.values() if response.error_code else ():
                log.warning("broker %d refuses: %s", asked.broker_id, ErrorCode.of(response.error_code).name)
                question.codes = question.all(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            for result in response.results_by_transaction:
                if result.transactional_id in questions:
                    questions[result.transactional_id].codes = _of_peer(_codes(result.topic_results))
        self._ask_next(asked.broker_id)
        for question in questions.values():
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
