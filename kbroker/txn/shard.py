"""The transactions of one partition of __transaction_state: every operation on them, replay, and unloading.

The coordinator (coordinator.py) has already found this shard for the transactional id. An operation asks rules.py for
what is known next, writes it through its operation, and is answered when that is committed. A decided outcome leaves as
`WriteMarkers` once it is committed, and again when the partition is loaded; `marked` is told when all partitions have
their marker. While something of an id is not committed, others are told CONCURRENT_TRANSACTIONS; but
COORDINATOR_NOT_AVAILABLE where the log takes nothing, as while too few replicas are in sync, or has not got on for as
long as the transaction may take: clients wait for a coordinator, and some give up on the other code after a while.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter

from kbroker.config import BrokerConfig
from kbroker.config.limits import MARKER_RETRY_MS
from kbroker.coordinator import Caller, Operation, Shard, Store, TimerKey
from kbroker.coordinator.effects import Call
from kbroker.metadata.features import TRANSACTION_VERSION, Features
from kbroker.txn import Producer, records, rules
from kbroker.txn.records import TransactionRecord
from kbroker.txn.state import PREPARE_ABORT, PREPARED, RAISES, TopicPartition, Transaction
from kbroker.txn.transactional_id_limits import Creators
from protocol.errors import ErrorCode, KafkaError
from protocol.message import Message
from protocol.namedtuple import NamedTuple

TOMBSTONES_PER_BATCH = 1_000
"""Those of all ids that are old in one look; more would make a batch larger than a topic takes."""

Answer = Callable[[ErrorCode], Message]


class WriteMarkers(NamedTuple):
    """Effect: have every partition of a decided transaction appended its marker; then call `marked`.

    partition, coordinator_epoch: of __transaction_state, and its leader epoch, by which partitions fence coordinators.
    """

    partition: int
    coordinator_epoch: int
    transaction: Transaction


class Decided(NamedTuple):
    """Something has been written about a transactional id.

    call: to be answered, None if there is none, or it has been told that it is not known. written_ms: when.
    """

    transaction: Transaction
    call: Call | None
    response: Message | None
    refusal: Answer
    written_ms: int = 0


class TransactionShard(Shard[TransactionRecord]):
    """Transactions by transactional id."""

    IF_MISPLACED = (
        "These transactional ids get new producer ids: their earlier producers are not fenced, and what those leave"
        " open is aborted by its timeout."
    )
    encode = staticmethod(records.encode)
    decode = staticmethod(records.decode)

    def __init__(
        self,
        partition: int,
        epoch: int,
        store: Store,
        config: Callable[[], BrokerConfig],
        new_id: Callable[[], int],
        features: Features,
    ) -> None:
        """new_id: a producer id that was never given out. Raises: KafkaError if there is none at the moment."""
        super().__init__(partition, epoch, store)
        self._new_id = new_id
        self.transactions: dict[str, Transaction] = {}
        self._config = config
        self._features = features
        self.creators = Creators()
        self._on_the_way: dict[str, int] = {}  # records that are not committed yet, by id
        self._timed_out: set[str] = set()  # ids of those that have been waited for too long
        self._in_doubt: dict[str, int] = {}  # offsets of those that were found so while this was loading

    @property
    def keys(self) -> Iterable[str]:
        """See Shard.keys."""
        return self.transactions

    # --- operations

    def init(
        self,
        operation: Operation,
        name: str,
        asker: Producer | None,
        timeout_ms: int,
        caller: Caller,
        answer: Callable[[ErrorCode, int, int], Message],
    ) -> None:
        """InitProducerId. answer: makes the response of a code, a producer id and an epoch."""
        refusal: Answer = lambda code: answer(code, -1, -1)  # noqa: E731
        try:
            self._check_settled(name)
            known = self.transactions.get(name)
            after = rules.init(name, known, asker, timeout_ms, operation.now_ms, self._new_id, raises=self._raises)
        except KafkaError as error:
            operation.reply(caller.call, refusal(self._refusal_code(error, name)))
            return
        if after.state is not PREPARE_ABORT:
            response = answer(ErrorCode.NONE, after.producer_id, after.producer_epoch)
            is_new = name not in self.transactions
            if self._decide(operation, after, caller.call, response, refusal) and is_new:
                self.creators.add(name, caller.client_host)
        elif self._decide(operation, after, caller.call, refusal(ErrorCode.CONCURRENT_TRANSACTIONS), refusal):
            operation.event(name, f"is taken over: the transaction of producer {after.producer_id} is aborted")

    def add_partitions(
        self,
        operation: Operation,
        name: str,
        producer: Producer,
        partitions: frozenset[TopicPartition],
        caller: Caller,
        answer: Answer,
    ) -> None:
        """AddPartitionsToTxn and AddOffsetsToTxn."""
        try:
            known = self._known(name, producer)
            after = rules.add_partitions(known, producer, partitions, operation.now_ms)
        except KafkaError as error:
            operation.reply(caller.call, answer(self._refusal_code(error, name)))
            return
        if after is None:
            operation.reply(caller.call, answer(ErrorCode.NONE))
        else:
            self._decide(operation, after, caller.call, answer(ErrorCode.NONE), answer)

    def end(
        self,
        operation: Operation,
        name: str,
        producer: Producer,
        caller: Caller,
        answer: Callable[[ErrorCode, int, int], Message],
        *,
        commit: bool,
        raises: bool,
    ) -> None:
        """EndTxn: answered when the outcome is committed; the markers follow by themselves.

        answer: as for `init`. raises: whether this raises the epoch of the client (KIP-890).
        """
        refusal: Answer = lambda code: answer(code, -1, -1)  # noqa: E731
        try:
            known = self._known(name, producer)
            if raises:
                after = rules.end_and_raise(
                    known, producer, commit=commit, now_ms=operation.now_ms, new_id=self._new_id
                )
            else:
                after = rules.end(known, producer, commit=commit, now_ms=operation.now_ms)
        except KafkaError as error:
            operation.reply(caller.call, refusal(self._refusal_code(error, name)))
            return
        if after is None:
            assert known is not None, name
            operation.reply(caller.call, answer(ErrorCode.NONE, *known.goes_on_as))
        else:
            self._decide(operation, after, caller.call, answer(ErrorCode.NONE, *after.goes_on_as), refusal)

    def verify(self, name: str, producer: Producer, partition: TopicPartition) -> ErrorCode:
        """Whether a partition takes part: NONE, or why not."""
        try:
            rules.verify(self.transactions.get(name), producer, partition)
        except KafkaError as error:
            return self._refusal_code(error, name)
        return ErrorCode.NONE

    def marked(self, operation: Operation, transaction: Transaction, *, is_retry: bool = False) -> None:
        """Every partition of a decided transaction has its marker. is_retry: it could not be written before."""
        known = self.transactions.get(transaction.name)
        if known is None or known.state not in PREPARED or known.producer_epoch != transaction.producer_epoch:
            return  # told twice, or by a sender of an earlier leadership
        after = rules.complete(known, operation.now_ms)
        code = self._write(operation, after, Decided(after, None, None, _no_asker))
        if code is not ErrorCode.NONE:  # decided all the same; the next leader, or the next look, writes the rest
            if not is_retry:
                operation.event(known.name, f"is complete, which could not be written: {code.name}")
            operation.set_timer("complete", known.name, MARKER_RETRY_MS)

    @property
    def _raises(self) -> bool:
        """Whether what aborts a transaction without its producer raises the epoch as an end of the producer's would."""
        return self._features.is_on(TRANSACTION_VERSION, RAISES)

    def _known(self, name: str, producer: Producer) -> Transaction | None:
        """What is known of an id. Raises: KafkaError CONCURRENT_TRANSACTIONS while that is not committed."""
        known = self.transactions.get(name)
        if known is not None and (
            (known.producer_id, known.producer_epoch) == producer or known.client_version == RAISES
        ):
            self._check_settled(name)
        return known

    def _check_settled(self, name: str) -> None:
        if name in self._on_the_way:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{name} is being written")

    def _refusal_code(self, error: KafkaError, name: str) -> ErrorCode:
        """What is told to a client that may not go on: whether it waits for a transaction, or for the log."""
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            return error.code
        if name in self._timed_out:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        code = self._store.append_error(self.partition)
        return error.code if code is ErrorCode.NONE else write_error(code)

    def _decide(
        self, operation: Operation, after: Transaction, call: Call | None, response: Message | None, refusal: Answer
    ) -> bool:
        """Write what is known next; the asker is answered when it is committed. Returns: whether it is written."""
        code = self._write(operation, after, Decided(after, call, response, refusal))
        if code is not ErrorCode.NONE and call is not None:
            operation.reply(call, refusal(write_error(code)))
        return code is ErrorCode.NONE

    def _write(self, operation: Operation, after: Transaction, note: Decided) -> ErrorCode:
        after = after._replace(updated_ms=operation.wall_ms)  # whether it is old may be for a later process to say
        note = note._replace(transaction=after, written_ms=operation.now_ms)
        code = operation.write([TransactionRecord(after.name, after)], note)
        if code is ErrorCode.NONE:
            self._on_the_way[after.name] = self._on_the_way.get(after.name, 0) + 1
        return code

    # --- time

    def timer(self, operation: Operation, key: TimerKey) -> None:
        """See Shard.timer."""
        if key.kind == "timeout":
            self._abort_timed_out_transactions(operation)
        elif key.kind == "expiry":
            self._remove_expired(operation)
        else:
            assert key.kind == "complete", key
            known = self.transactions.get(key.name)
            if known is not None and known.state in PREPARED:
                self.marked(operation, known, is_retry=True)  # the partitions have their markers already

    def _abort_timed_out_transactions(self, operation: Operation) -> None:
        operation.set_timer("timeout", "", self._config().transaction_abort_timed_out_transaction_cleanup_interval_ms)
        self._refuse_waiting_calls(operation)
        for known in [each for each in self.transactions.values() if rules.is_timed_out(each, operation.now_ms)]:
            if known.name in self._on_the_way:
                continue
            try:
                if self._raises:
                    after = rules.fence_and_raise(known, operation.now_ms, self._new_id)
                else:
                    after = rules.fence(known, operation.now_ms)
            except KafkaError:
                continue  # there is no producer id at the moment: at the next look
            if self._decide(operation, after, None, None, _no_asker):
                operation.event(known.name, f"is aborted: open for longer than its {known.timeout_ms} ms")

    def _refuse_waiting_calls(self, operation: Operation) -> None:
        """Answer calls that wait too long for replicas, or while too few are in sync: the outcome is not known.

        What was written stays in the log: it counts once it is committed, and nothing follows it before.
        """
        code = self._store.append_error(self.partition)
        for at, (end, note) in enumerate(self.waiting):
            assert isinstance(note, Decided), note
            is_timed_out = note.written_ms + note.transaction.timeout_ms <= operation.now_ms
            if is_timed_out:
                self._timed_out.add(note.transaction.name)
            if note.call is not None and (is_timed_out or code is not ErrorCode.NONE):
                operation.event(note.transaction.name, "still waits for its record to be on all in-sync replicas")
                self.abandoned(operation, note, ErrorCode.REQUEST_TIMED_OUT if code is ErrorCode.NONE else code)
                self.waiting[at] = end, note._replace(call=None)

    def _remove_expired(self, operation: Operation) -> None:
        config = self._config()
        operation.set_timer("expiry", "", config.transaction_remove_expired_transaction_cleanup_interval_ms)
        self.remove_expired_ids(operation, unused_for_ms=config.transactional_id_expiration_ms)

    def remove_expired_ids(self, operation: Operation, *, unused_for_ms: int) -> None:
        """Write tombstones for the ids at rest that were not used for so long."""
        old = [
            each.name
            for each in self.transactions.values()
            if rules.is_old(each, operation.wall_ms, unused_for_ms) and each.name not in self._on_the_way
        ]
        for at in range(0, len(old), TOMBSTONES_PER_BATCH):
            names = old[at : at + TOMBSTONES_PER_BATCH]
            if operation.write([TransactionRecord(name, None) for name in names], None) is ErrorCode.NONE:
                for name in names:
                    operation.event(name, f"is forgotten: unused for {unused_for_ms} ms")

    # --- what has been written

    def committed(self, operation: Operation, note: object) -> None:
        """See Shard.committed."""
        assert isinstance(note, Decided), note
        self._settle(note.transaction.name)
        if note.call is not None and note.response is not None:
            operation.reply(note.call, note.response)
        if note.transaction.state in PREPARED:
            self._have_marked(operation, note.transaction)

    def abandoned(self, operation: Operation, note: object, code: ErrorCode) -> None:
        """See Shard.abandoned."""
        assert isinstance(note, Decided), note
        if note.call is not None:
            operation.reply(note.call, note.refusal(write_error(code)))

    def passed(self) -> None:
        """See Shard.passed: nothing is kept apart here but what `_on_the_way` counts."""

    def _settle(self, name: str) -> None:
        left = self._on_the_way.pop(name) - 1
        if left:
            self._on_the_way[name] = left
        else:
            self._timed_out.discard(name)

    def _have_marked(self, operation: Operation, transaction: Transaction) -> None:
        operation.forward(WriteMarkers(self.partition, self.epoch, transaction))

    # --- replay

    def replay(self, record: TransactionRecord, *, record_offset: int, producer_id: int = -1) -> None:
        """See Shard.replay."""
        if self.loading and record_offset >= self.high_watermark:
            self._in_doubt[record.name] = record_offset
        if record.transaction is None:
            self.transactions.pop(record.name, None)
            self.creators.remove(record.name)
        else:
            self.transactions[record.name] = record.transaction

    def replay_marker(self, producer_id: int, *, commit: bool, record_offset: int) -> None:
        """See Shard.replay_marker: this topic is never written to in a transaction."""

    def loaded(self, operation: Operation) -> None:
        """See Shard.loaded. What had been decided is told to the partitions again: they may have heard of it or not.

        Not before it is committed, for a leader that does not have it may come yet, and decide otherwise.
        """
        config = self._config()
        for name, record_offset in sorted(self._in_doubt.items(), key=itemgetter(1)):
            if record_offset >= self.high_watermark and name in self.transactions:
                self._on_the_way[name] = 1
                note = Decided(self.transactions[name], None, None, _no_asker, operation.now_ms)
                self.waiting.append((record_offset + 1, note))
        self._in_doubt.clear()
        for known in self.transactions.values():
            if known.state in PREPARED and known.name not in self._on_the_way:
                self._have_marked(operation, known)
        operation.set_timer("timeout", "", config.transaction_abort_timed_out_transaction_cleanup_interval_ms)
        operation.set_timer("expiry", "", config.transaction_remove_expired_transaction_cleanup_interval_ms)

    def unload(self, operation: Operation) -> None:
        """See Shard.unload."""
        operation.cancel_timer("timeout", "")
        operation.cancel_timer("expiry", "")
        for known in self.transactions.values():
            if known.state in PREPARED:
                operation.cancel_timer("complete", known.name)
        self.transactions.clear()
        self.creators.clear()
        self._on_the_way.clear()
        self._timed_out.clear()
        self._in_doubt.clear()


def _no_asker(code: ErrorCode) -> Message:
    raise AssertionError(f"no client asked, and none is told {code.name}")


def write_error(code: ErrorCode) -> ErrorCode:
    """What a client is told when its record could not be written. Source: Apache Kafka 3.9, appendTransactionToLog."""
    return _WRITE_ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


_WRITE_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
