"""The transaction coordinator of a broker: finds the shard that a transactional id belongs to, and answers for it.

API handlers call one function a request, and have the runtime carry out the effects that it returns; a call that got no
Reply gets it from a later step. `marked` is called by the sender of WriteMarkers. Nothing here looks into the
log, the metadata or the time.

Version 2 of the protocol (KIP-890, an epoch for every transaction) is spoken with clients that ask in EndTxn 5.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.coordinator import Caller, Effect, Operation, Runtime
from kbroker.txn import Producer
from kbroker.txn.shard import TransactionShard, WriteMarkers
from kbroker.txn.state import DEAD, State, TopicPartition, Transaction
from kbroker.txn.transactional_id_limits import has_room
from protocol.errors import ErrorCode
from protocol.messages.transactions import (
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    DescribedTransactionState,
    EndTxnResponse,
    InitProducerIdResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TopicData,
)

FENCED_SINCE_INIT, FENCED_SINCE = 4, 2  # the versions from which clients know PRODUCER_FENCED (KIP-588)
RAISES_SINCE = 5  # EndTxn: the end of a transaction raises the epoch (KIP-890)


class TransactionCoordinator:
    """All transactions of a broker. runtime: of __transaction_state, with a shard for each partition led here."""

    def __init__(self, runtime: Runtime[TransactionShard]) -> None:
        self.runtime = runtime

    # --- producers

    def init(
        self,
        name: str,
        asker: Producer | None,
        timeout_ms: int,
        caller: Caller,
        now_ms: int,
    ) -> list[Effect]:
        """InitProducerId with a transactional id."""

        def response(code: ErrorCode, producer_id: int, epoch: int) -> InitProducerIdResponse:
            code = _for_version(code, caller.version, FENCED_SINCE_INIT)
            return InitProducerIdResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)

        shard = self.runtime.find(name)
        operation = _operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(caller.call, response(shard, -1, -1))
        elif name not in shard.transactions and not self._has_room(caller.client_host):
            operation.reply(caller.call, response(ErrorCode.POLICY_VIOLATION, -1, -1))
        else:
            shard.init(operation, name, asker, timeout_ms, caller, response)
        return operation.effects

    def add_partitions(
        self, name: str, producer: Producer, partitions: Iterable[TopicPartition], caller: Caller, now_ms: int
    ) -> list[Effect]:
        """AddPartitionsToTxn 0-3, of partitions that exist: each gets the same code."""
        asked = list(dict.fromkeys(partitions))

        def response(code: ErrorCode) -> AddPartitionsToTxnResponse:
            code = _for_version(code, caller.version, FENCED_SINCE)
            results = topic_results(dict.fromkeys(asked, code))
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)

        shard = self._shard(name)
        operation = _operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(caller.call, response(shard))
        else:
            shard.add_partitions(operation, name, producer, frozenset(asked), caller, response)
        return operation.effects

    def add_offsets(
        self, name: str, producer: Producer, partition: TopicPartition, caller: Caller, now_ms: int
    ) -> list[Effect]:
        """AddOffsetsToTxn. partition: of __consumer_offsets, that the group belongs to."""

        def response(code: ErrorCode) -> AddOffsetsToTxnResponse:
            code = _for_version(code, caller.version, FENCED_SINCE)
            return AddOffsetsToTxnResponse(error_code=code)

        shard = self._shard(name)
        operation = _operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(caller.call, response(shard))
        else:
            shard.add_partitions(operation, name, producer, frozenset({partition}), caller, response)
        return operation.effects

    def end(
        self,
        name: str,
        producer: Producer,
        caller: Caller,
        now_ms: int,
        *,
        commit: bool,
    ) -> list[Effect]:
        """EndTxn: answered when the outcome is committed."""

        def response(code: ErrorCode, producer_id: int, epoch: int) -> EndTxnResponse:
            code = _for_version(code, caller.version, FENCED_SINCE)
            if caller.version < RAISES_SINCE:
                return EndTxnResponse(error_code=code)
            return EndTxnResponse(error_code=code, producer_id=producer_id, producer_epoch=epoch)

        shard = self._shard(name)
        operation = _operation(shard, now_ms)
        if isinstance(shard, ErrorCode):
            operation.reply(caller.call, response(shard, -1, -1))
        else:
            raises = caller.version >= RAISES_SINCE
            shard.end(operation, name, producer, caller, response, commit=commit, raises=raises)
        return operation.effects

    # --- brokers

    def verify(self, name: str, producer: Producer, partition: TopicPartition) -> ErrorCode:
        """Whether a partition takes part in a producer's open transaction (KIP-890): NONE, or why not."""
        shard = self._shard(name)
        return shard if isinstance(shard, ErrorCode) else shard.verify(name, producer, partition)

    def marked(self, partition: int, epoch: int, transaction: Transaction, now_ms: int) -> list[Effect]:
        """Every partition of a decided transaction has its marker. partition, epoch: as WriteMarkers said."""
        shard = self.runtime.shards.get(partition)
        if shard is None or shard.loading or shard.epoch != epoch:
            return []
        operation = shard.operation(now_ms)
        shard.marked(operation, transaction)
        return operation.effects

    def have_marked(self, markers: WriteMarkers, now_ms: int) -> None:
        """`marked`, and what follows from it."""
        done = self.marked(markers.partition, markers.coordinator_epoch, markers.transaction, now_ms)
        self.runtime.carry_out(done, now_ms)

    # --- tools

    def describe(self, name: str) -> DescribedTransactionState:
        """DescribeTransactions of one transactional id."""
        shard = self._shard(name)
        if isinstance(shard, ErrorCode):
            return undescribed(name, shard)
        known = shard.transactions.get(name)
        if known is None or known.state is DEAD:
            return undescribed(name, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(known.partitions):
            topics.setdefault(topic, []).append(index)
        return DescribedTransactionState(
            error_code=ErrorCode.NONE,
            transactional_id=name,
            transaction_state=known.state.value,
            transaction_timeout_ms=known.timeout_ms,
            transaction_start_time_ms=known.started_ms,
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
            topics=[TopicData(topic=topic, partitions=indexes) for topic, indexes in topics.items()],
        )

    def list_transactions(self, request: ListTransactionsRequest, now_ms: int) -> ListTransactionsResponse:
        """ListTransactions: of the states, producers and durations asked for."""
        shards = self.runtime.shards.values()
        if any(shard.loading for shard in shards):
            return ListTransactionsResponse(
                error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                unknown_state_filters=[],
                transaction_states=[],
            )
        names = {state.value for state in State}
        states, producers = set(request.state_filters), set(request.producer_id_filters)
        listed = [
            ListedTransactionState(
                transactional_id=known.name, producer_id=known.producer_id, transaction_state=known.state.value
            )
            for shard in shards
            for known in shard.transactions.values()
            if (not states or known.state.value in states)
            and (not producers or known.producer_id in producers)
            and (request.duration_filter < 0 or now_ms - known.started_ms > request.duration_filter)
        ]
        return ListTransactionsResponse(
            error_code=ErrorCode.NONE,
            unknown_state_filters=[state for state in request.state_filters if state not in names],
            transaction_states=listed,
        )

    # ---

    def _has_room(self, host: str) -> bool:
        """Whether a client of this address may have an id more."""
        shards = self.runtime.shards.values()
        return has_room(sum(len(each.transactions) for each in shards), [each.creators for each in shards], host)

    def _shard(self, name: str) -> TransactionShard | ErrorCode:
        return self.runtime.find(name) if name else ErrorCode.INVALID_REQUEST


def topic_results(codes: dict[TopicPartition, ErrorCode]) -> list[AddPartitionsToTxnTopicResult]:
    """Codes of partitions, as AddPartitionsToTxn answers them."""
    topics: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, index), code in codes.items():
        result = AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        topics.setdefault(topic, []).append(result)
    return [
        AddPartitionsToTxnTopicResult(name=topic, results_by_partition=results) for topic, results in topics.items()
    ]


def _operation(shard: TransactionShard | ErrorCode, now_ms: int) -> Operation:
    return Operation(now_ms) if isinstance(shard, ErrorCode) else shard.operation(now_ms)


def _for_version(code: ErrorCode, version: int, fenced_since: int) -> ErrorCode:
    """Clients that do not know PRODUCER_FENCED are told INVALID_PRODUCER_EPOCH, on which they stop as well."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def undescribed(name: str, code: ErrorCode) -> DescribedTransactionState:
    """What is told of a transactional id whose state is not: the error, and nothing else."""
    return DescribedTransactionState(
        error_code=code,
        transactional_id=name,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )
