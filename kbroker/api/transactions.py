"""Transactions: producers that add partitions and end them, brokers that verify and mark, tools that look.

Served: AddPartitionsToTxn 0-5, AddOffsetsToTxn 0-4, EndTxn 0-5, TxnOffsetCommit 0-6, WriteTxnMarkers 0-2,
DescribeTransactions 0, ListTransactions 0-2; InitProducerId is in `producer_ids.py`, DescribeProducers in
`producers.py`. Transactions are `kbroker.txn`; these handlers hand requests over, and have the coordinator's runtime
carry out what comes back.

The second protocol (KIP-890: Produce 12, TxnOffsetCommit 5 and EndTxn 5, without AddPartitionsToTxn of clients) is
spoken by clients that see transaction.version 2 among the finalized features (`metadata/features.py`).

Unlike Kafka: without access rules only a broker's address may have internal topics added by AddPartitionsToTxn 4 and 5
(CLUSTER_AUTHORIZATION_FAILED), which Kafka lets any client do; a request without partitions begins no transaction; and
a marker of a coordinator epoch that none has yet is refused (NOT_LEADER_OR_FOLLOWER).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kbroker.api.authorization import Asking, Hides, Right, Special, Whole, cluster, for_each, topic_name
from kbroker.api.call import LATER
from kbroker.api.chunks import in_portions, is_break
from kbroker.api.routes import Route
from kbroker.api.transaction_verification import ask, asks_elsewhere, verify
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.broker.coordinator_types import create_if_missing
from kbroker.broker.facts import Joint, Reply
from kbroker.config.limits import ELEMENTS_PER_REQUEST, OFFSETS_COMMITTED_AT_ONCE, OFFSETS_PER_COMMIT
from kbroker.coordinator import Caller
from kbroker.groups.effects import commit_error, loading_error
from kbroker.metadata.cache import CONSUMER_OFFSETS, INTERNAL_TOPICS, TRANSACTION_STATE
from kbroker.txn import Producer
from kbroker.txn.coordinator import topic_results, undescribed
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Iterable, Sequence

    from kbroker.api.authorization import Left
    from kbroker.api.call import Call, InSlices, Result
    from kbroker.coordinator import Effect
    from kbroker.log.log import Log
    from kbroker.replica import Partition
    from protocol.messages.transactions import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction

    TopicPartition = tuple[str, int]

BATCHED_SINCE = 4  # AddPartitionsToTxn: made for brokers, and sent by clients that take the newest version
KNOWS_ABORTABLE_SINCE = 4  # TxnOffsetCommit
ADDS_OFFSETS_SINCE = 5  # TxnOffsetCommit: the group's partition of __consumer_offsets, to the transaction (KIP-890)
TOPIC_IDS_SINCE = 6  # TxnOffsetCommit
MARKER_PATIENCE_MS = 30_000  # request.timeout.ms, which a coordinator waits for its answer
NO_SEQUENCE = -1  # of what coordinators write


# -- producers


def add_partitions_to_txn(request: AddPartitionsToTxnRequest, call: Call) -> Result:
    """These partitions are about to be written to; answered when that is committed."""
    if call.version >= BATCHED_SINCE:
        return _add_for_many(request, call)
    name = request.v3_and_below_transactional_id
    partitions = _partitions(request.v3_and_below_topics)
    refused = _refused(partitions, call, may_be_internal=False)
    if refused:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topic_results(refused))
    if not partitions:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_names(request.v3_and_below_topics))
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    return _run(call, call.broker.transactions.add_partitions(name, producer, partitions, call.caller, call.now_ms))


def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return [(topic.name, index) for topic in topics for index in topic.partitions]


def _names(topics: Iterable[AddPartitionsToTxnTopic]) -> list[AddPartitionsToTxnTopicResult]:
    """The answer to topics without partitions: nothing to add, as in Kafka, which names them."""
    return [AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=[]) for topic in topics]


def _is_of_a_broker(request: AddPartitionsToTxnRequest, call: Call) -> bool:
    """By its version; without rules clients may use that, too, but not to have internal topics take part."""
    return call.version >= BATCHED_SINCE and (
        call.broker.auth_helper.has_rules
        or any(
            topic.name in INTERNAL_TOPICS
            for transaction in request.transactions
            if not transaction.verify_only
            for topic in transaction.topics
        )
    )


def _refused(
    partitions: list[TopicPartition], call: Call, *, may_be_internal: bool, denied: Container[str] = ()
) -> dict[TopicPartition, ErrorCode]:
    """Codes for all of them if any may not take part, else none. denied: topics that the session may not write to.

    may_be_internal: if brokers ask, or nothing is added. Else its marker would be left in __transaction_state,
    which an Apache broker takes for a record when it loads that.
    """
    cache = call.broker.plane.cache
    refused: dict[TopicPartition, ErrorCode] = {}
    for where in partitions:
        if where[0] in denied or (where[0] in INTERNAL_TOPICS and not may_be_internal):
            refused[where] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif cache.partition(*where) is None:
            refused[where] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not refused:
        return {}
    return {where: refused.get(where, ErrorCode.OPERATION_NOT_ATTEMPTED) for where in partitions}


def _add_for_many(request: AddPartitionsToTxnRequest, call: Call) -> Result:
    """Several transactions, to verify or to add to; answered when the last of them is."""
    results: list[AddPartitionsToTxnResult] = []
    joint = Joint(
        call.ticket,
        len(request.transactions),
        lambda: AddPartitionsToTxnResponse(error_code=0, results_by_transaction=results),
    )
    if not request.transactions:
        return joint.response()
    for each in request.transactions:
        part = AddPartitionsToTxnResult(transactional_id=each.transactional_id, topic_results=[])
        results.append(part)
        _add_for_one(each, part, joint, call)
    return LATER


def _add_for_one(each: AddPartitionsToTxnTransaction, part: AddPartitionsToTxnResult, joint: Joint, call: Call) -> None:
    transactions = call.broker.transactions
    partitions = _partitions(each.topics)
    producer = Producer(each.producer_id, each.producer_epoch)
    codes = _refused(partitions, call, may_be_internal=True)
    if not codes and each.verify_only:
        codes = {where: transactions.verify(each.transactional_id, producer, where) for where in partitions}
    if codes or not partitions:
        part.topic_results = topic_results(codes) if codes or each.verify_only else _names(each.topics)
        whole = joint.part().answered(None)
        if whole is not None:
            call.broker.tell(whole)
        return

    def fill_part(response: object) -> None:
        assert isinstance(response, AddPartitionsToTxnResponse), response
        part.topic_results = response.results_by_topic_v3_and_below

    caller = Caller(joint.part(fill_part), call.version)
    _run(call, transactions.add_partitions(each.transactional_id, producer, partitions, caller, call.now_ms))


def add_offsets_to_txn(request: AddOffsetsToTxnRequest, call: Call) -> Result:
    """Offsets of a group are about to be committed: its partition of __consumer_offsets takes part."""
    partition = CONSUMER_OFFSETS, call.broker.group_runtime.partition_of(request.group_id)
    if partition[1] < 0:
        # A client asks for the group's coordinator behind this request only: it would ask here again for ever.
        create_if_missing(CONSUMER_OFFSETS, call.broker.plane)
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    producer = Producer(request.producer_id, request.producer_epoch)
    name = request.transactional_id
    return _run(call, call.broker.transactions.add_offsets(name, producer, partition, call.caller, call.now_ms))


def end_txn(request: EndTxnRequest, call: Call) -> Result:
    """Commit or abort; answered when that is decided, while markers are still on their way."""
    producer = Producer(request.producer_id, request.producer_epoch)
    ended = call.broker.transactions.end(
        request.transactional_id,
        producer,
        call.caller,
        call.now_ms,
        commit=request.committed,
    )
    return _run(call, ended)


def txn_offset_commit(request: TxnOffsetCommitRequest, call: Call) -> Result:
    """Keep offsets that count if the transaction commits; answered when they are written."""
    broker = call.broker
    where = CONSUMER_OFFSETS, broker.group_runtime.partition_of(request.group_id)
    adds = call.version >= ADDS_OFFSETS_SINCE
    if where[1] >= 0 and asks_elsewhere(call, request.transactional_id, adds=adds):
        producer = Producer(request.producer_id, request.producer_epoch)
        wanted = [(producer, where, _led(call, where), NO_SEQUENCE)]

        def commit_verified() -> None:
            result = _commit_all(request, call, where)
            if result is not LATER:
                broker.tell(Reply(call.ticket, result))

        if not ask(call, request.transactional_id, wanted, commit_verified, adds=adds):
            return LATER
    return _commit_all(request, call, where)


def _commit_all(request: TxnOffsetCommitRequest, call: Call, where: TopicPartition) -> Result:
    """Many offsets are written some at a time: the transaction makes them one."""
    if call.is_large and sum(len(topic.partitions) for topic in request.topics) > OFFSETS_COMMITTED_AT_ONCE:
        return in_portions(
            request,
            call,
            OFFSETS_COMMITTED_AT_ONCE,
            lambda portion, ticket: _commit_offsets(portion, call, call.caller._replace(call=ticket), where),
            lambda topics: TxnOffsetCommitResponse(topics=topics),
        )
    _commit_offsets(request, call, call.caller, where)
    return LATER


def _led(call: Call, where: TopicPartition) -> Log | None:
    partition = call.broker.replicas.partitions.get(where)
    return partition.log if partition is not None and partition.is_leader else None


def _commit_offsets(request: TxnOffsetCommitRequest, call: Call, caller: Caller, where: TopicPartition) -> None:
    """where: the partition of __consumer_offsets that the group belongs to; a negative one is not known yet."""
    broker = call.broker
    cache = broker.plane.cache
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in request.topics:
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if call.version >= TOPIC_IDS_SINCE:
            name = cache.topic_name(topic.topic_id)
            topic.name = name or ""
            unknown = ErrorCode.UNKNOWN_TOPIC_ID if name is None else unknown
        else:
            topic.topic_id = cache.topic_id(topic.name)
        for each in topic.partitions:
            if cache.partition(topic.name, each.partition_index) is None:
                refused[topic.name, each.partition_index] = unknown
    producer = Producer(request.producer_id, request.producer_epoch)
    knows_abortable = call.version >= KNOWS_ABORTABLE_SINCE
    code, log = ErrorCode.NONE, _led(call, where)
    if where[1] >= 0:  # else there is nothing to ask about, and the group's coordinator is not here
        code = verify(call, request.transactional_id, producer, where, log, knows_abortable=knows_abortable)
    if code is not ErrorCode.NONE:
        told = loading_error(commit_error(code), call.version)
        for topic in request.topics:
            for each in topic.partitions:
                refused.setdefault((topic.name, each.partition_index), told)
    effects = broker.groups.commit_offsets_in_transaction(request, caller, call.now_ms, refused)
    broker.group_runtime.carry_out(effects, call.now_ms)


def _run(call: Call, effects: Iterable[Effect]) -> Result:
    call.broker.transaction_runtime.carry_out(effects, call.now_ms)
    return LATER


# -- brokers


def write_txn_markers(request: WriteTxnMarkersRequest, call: Call) -> InSlices:
    """Append the outcome of transactions to partitions led here; answered when the high watermark has passed them."""
    waiting: list[tuple[Partition, int, WritableTxnMarkerPartitionResult]] = []
    results = []
    newest = _newest_coordinator_epoch(call)
    for marker in request.markers:
        producer = Producer(marker.producer_id, marker.producer_epoch)
        topics = []
        for topic in marker.topics:
            parts = []
            for index in topic.partition_indexes:
                part = WritableTxnMarkerPartitionResult(partition_index=index, error_code=ErrorCode.NONE)
                parts.append(part)
                try:
                    if marker.coordinator_epoch > newest:
                        raise KafkaError(
                            ErrorCode.NOT_LEADER_OR_FOLLOWER,
                            f"a marker of coordinator epoch {marker.coordinator_epoch}, the newest is {newest}",
                        )
                    partition, end_offset = call.broker.markers.append(
                        (topic.name, index),
                        producer,
                        marker.coordinator_epoch,
                        call.now_ms,
                        commit=marker.transaction_result,
                        transaction_version=marker.transaction_version,
                    )
                    waiting.append((partition, end_offset, part))
                except KafkaError as error:
                    part.error_code = error.code
                yield
            topics.append(WritableTxnMarkerTopicResult(name=topic.name, partitions=parts))
        results.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
    await_markers = AwaitMarkers(WriteTxnMarkersResponse(markers=results), waiting, call.now_ms + MARKER_PATIENCE_MS)
    return await_markers.answer(call.now_ms) or await_markers


def _newest_coordinator_epoch(call: Call) -> int:
    """The largest leader epoch of __transaction_state that this broker has heard of; 0 if it has of none.

    Partitions fence coordinators by it: after a marker in an epoch that none has, no producer's transaction would end.
    A coordinator that has just been elected may be ahead of what its peers know, and sends its markers again.
    """
    image = call.broker.plane.cache.topics.get(TRANSACTION_STATE)
    return max((state.leader_epoch for state in image.partitions.values()), default=0) if image is not None else 0


class AwaitMarkers:
    """A WriteTxnMarkers whose markers are not committed yet."""

    __slots__ = ("_response", "_waiting", "deadline_ms")

    def __init__(
        self,
        response: WriteTxnMarkersResponse,
        waiting: list[tuple[Partition, int, WritableTxnMarkerPartitionResult]],
        deadline_ms: int,
    ) -> None:
        self._response = response
        self._waiting = waiting
        self.deadline_ms = deadline_ms

    @property
    def keys(self) -> Sequence[Hashable]:
        """The partitions that still wait."""
        return [partition for partition, _, _ in self._waiting]

    def answer(self, now_ms: int) -> WriteTxnMarkersResponse | None:
        """Once all markers are committed, or their partitions led elsewhere."""
        self._waiting = [
            (partition, end_offset, part)
            for partition, end_offset, part in self._waiting
            if not _is_settled(partition, end_offset, part)
        ]
        return None if self._waiting else self._response

    def expired(self, now_ms: int) -> WriteTxnMarkersResponse:
        """What is not committed by now has timed out, and is sent again."""
        for _, _, part in self._waiting:
            part.error_code = ErrorCode.REQUEST_TIMED_OUT
        return self._response


def _is_settled(partition: Partition, end_offset: int, part: WritableTxnMarkerPartitionResult) -> bool:
    if partition.log is None or not partition.is_leader:
        part.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return True
    return partition.log.high_watermark >= end_offset


# -- tools


def describe_transactions(request: DescribeTransactionsRequest, call: Call) -> DescribeTransactionsResponse:
    """Transactions in detail, each with its own error."""
    described = [call.broker.transactions.describe(name) for name in request.transactional_ids]
    return DescribeTransactionsResponse(transaction_states=described)


def list_transactions(request: ListTransactionsRequest, call: Call) -> ListTransactionsResponse | InSlices:
    """The transactions that this broker coordinates, by state, producer, age and the look of their ids if asked for."""
    if request.transactional_id_pattern:
        return _list_alike(request, request.transactional_id_pattern, call)
    return call.broker.transactions.list_transactions(request, call.now_ms)


def _list_alike(request: ListTransactionsRequest, pattern: str, call: Call) -> InSlices:
    """The same, of the ids that match an expression as a whole (KIP-1152)."""
    from kbroker.groups.topic_regex import BadRegexError, TopicRegex  # hardly ever asked for

    try:
        regex = TopicRegex(pattern)
    except BadRegexError as error:
        return _refuse_list(request, ErrorCode.INVALID_REGULAR_EXPRESSION, str(error), call.version)
    listed: ListTransactionsResponse = call.broker.transactions.list_transactions(request, call.now_ms)
    alike = []
    for at, each in enumerate(listed.transaction_states):
        if is_break(at):
            yield
        if regex.matches(each.transactional_id):
            alike.append(each)
    listed.transaction_states = alike
    return listed


# -- refusals


def _refuse_add(
    request: AddPartitionsToTxnRequest, code: ErrorCode, text: str, version: int
) -> AddPartitionsToTxnResponse:
    if version >= BATCHED_SINCE:
        return AddPartitionsToTxnResponse(error_code=code)
    codes = dict.fromkeys(_partitions(request.v3_and_below_topics), code)
    return AddPartitionsToTxnResponse(error_code=code, results_by_topic_v3_and_below=topic_results(codes))


def _refuse_offsets(
    request: AddOffsetsToTxnRequest, code: ErrorCode, text: str, version: int
) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=code)


def _refuse_end(request: EndTxnRequest, code: ErrorCode, text: str, version: int) -> EndTxnResponse:
    return EndTxnResponse(error_code=code)


def _refuse_commit(
    request: TxnOffsetCommitRequest, code: ErrorCode, text: str, version: int
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def _refuse_markers(
    request: WriteTxnMarkersRequest, code: ErrorCode, text: str, version: int
) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )


def _refuse_describe(
    request: DescribeTransactionsRequest, code: ErrorCode, text: str, version: int
) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[undescribed(name, code) for name in request.transactional_ids]
    )


def _refuse_list(
    request: ListTransactionsRequest, code: ErrorCode, text: str, version: int
) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=code, unknown_state_filters=[], transaction_states=[])


# -- rights


def _ask_to_add(request: AddPartitionsToTxnRequest, asking: Asking) -> Left:
    """All partitions are added, or none: the others are OPERATION_NOT_ATTEMPTED."""
    if asking.call.version >= BATCHED_SINCE:
        return request
    denied, times = set(), Counter(name for name, _ in _partitions(request.v3_and_below_topics))
    for at, (name, count) in enumerate(times.items()):
        if is_break(at):
            yield
        if name not in INTERNAL_TOPICS and not asking.allows(Operation.WRITE, ResourceType.TOPIC, name, times=count):
            denied.add(name)
    if not denied:
        return request
    codes = _refused(_partitions(request.v3_and_below_topics), asking.call, may_be_internal=False, denied=denied)
    asking.say(AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topic_results(codes)))
    return None


def _ask_for_partitions(request: DescribeTransactionsRequest, asking: Asking) -> Left:
    """Of a transaction's partitions those show whose topics the session may describe."""
    yield from ()

    def shown(answer: DescribeTransactionsResponse) -> DescribeTransactionsResponse:
        for state in answer.transaction_states:
            state.topics = SHOWN_TOPICS.seen(state.topics, asking)
        return answer

    asking.then(shown)
    return request


ID, DESCRIBE = ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE
SHOWN_TOPICS = Hides(DESCRIBE, ResourceType.TOPIC, "topics", lambda topic: topic.topic)
WRITE_ID = Whole((Operation.WRITE,), ID, lambda request: request.transactional_id)
READ_GROUP = Whole((Operation.READ,), ResourceType.GROUP, lambda request: request.group_id)
ADDING_NEEDS = (
    cluster(Operation.CLUSTER_ACTION, when=_is_of_a_broker),
    Whole(
        (Operation.WRITE,),
        ID,
        lambda request: request.v3_and_below_transactional_id,
        lambda request, call: call.version < BATCHED_SINCE,
    ),
    Special((Right(Operation.WRITE, ResourceType.TOPIC),), _ask_to_add),
)
COMMITS_NEED = WRITE_ID, READ_GROUP, for_each(Operation.READ, ResourceType.TOPIC, "topics", "topics", topic_name)
MARKERS_NEED = (cluster(Operation.ALTER, Operation.CLUSTER_ACTION),)
DESCRIPTIONS_NEED = (
    for_each(DESCRIBE, ID, "transactional_ids", "transaction_states", lambda name, call: name),
    Special((Right(DESCRIBE, ResourceType.TOPIC),), _ask_for_partitions),
)
LISTS_NEED = (Hides(DESCRIBE, ID, "transaction_states", lambda state: state.transactional_id),)
MANY = ELEMENTS_PER_REQUEST
ROUTES = (
    Route(24, AddPartitionsToTxnRequest, 0, 5, add_partitions_to_txn, _refuse_add, ADDING_NEEDS),
    Route(25, AddOffsetsToTxnRequest, 0, 4, add_offsets_to_txn, _refuse_offsets, (WRITE_ID, READ_GROUP)),
    Route(26, EndTxnRequest, 0, 5, end_txn, _refuse_end, (WRITE_ID,)),
    Route(27, WriteTxnMarkersRequest, 0, 2, write_txn_markers, _refuse_markers, MARKERS_NEED, elements=MANY),
    Route(
        28, TxnOffsetCommitRequest, 0, 6, txn_offset_commit, _refuse_commit, COMMITS_NEED, elements=OFFSETS_PER_COMMIT
    ),
    Route(65, DescribeTransactionsRequest, 0, 0, describe_transactions, _refuse_describe, DESCRIPTIONS_NEED),
    Route(66, ListTransactionsRequest, 0, 2, list_transactions, _refuse_list, LISTS_NEED),
)
