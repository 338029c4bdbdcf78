"""Transaction verification (KIP-890): whether a producer may write to a partition, as its coordinator says.

Asked by Produce and TxnOffsetCommit before the first batch of a transaction in a partition (KIP-890): one that only the
partition knew of would never end, and hold readers back for ever. Clients of the second protocol (Produce 12,
TxnOffsetCommit 5) have the partition added by it. Where the coordinator is another broker, or what it adds is not
committed yet, the request waits, and is handled again with the answer (`Call.verified`); a marker that came meanwhile
makes the answer void. Source: AddPartitionsToTxnManager and ReplicaManager of Apache Kafka 3.9, by behaviour.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kbroker.broker.transaction_partitions import Question, Verified
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kbroker.api.call import Call
    from kbroker.log.log import Log
    from kbroker.txn import Producer

    Where = tuple[str, int]

ASK_AGAIN = frozenset(  # of a coordinator; old clients only repeat a produce for what they know from produces
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def asks_elsewhere(call: Call, name: str, *, adds: bool) -> bool:
    """Whether `verify` does not do: something is to be added, or another broker coordinates the transaction."""
    if adds:
        return True
    broker = call.broker
    return broker.config.transaction_partition_verification_enable and (
        broker.transaction_runtime.find(name) is ErrorCode.NOT_COORDINATOR
    )


def ask(
    call: Call,
    name: str,
    wanted: Iterable[tuple[Producer, Where, Log | None, int]],
    go_on: Callable[[], None],
    *,
    adds: bool,
) -> bool:
    """Ask a coordinator about partitions, for `call.verified`. Returns: whether it is known; else `go_on` is called.

    wanted: also of the batch that is to begin the transaction its sequence, -1 if it has none.
    """
    verified = call.verified = Verified()
    by_producer: dict[Producer, list[Where]] = {}
    wall_ms = call.broker.clock.wall_ms()
    for producer, where, log, sequence in wanted:
        by_producer.setdefault(producer, []).append(where)
        if log is not None:
            verified.tokens[producer, where] = log.producers.expect(*producer, sequence, wall_ms, second_protocol=adds)
    left = len(by_producer)
    is_late = False

    def answered(producer: Producer, codes: Mapping[Where, ErrorCode], now_ms: int) -> None:
        nonlocal left
        left -= 1
        verified.codes.update({(producer, where): code for where, code in codes.items()})
        if is_late and not left:
            go_on()

    for producer, places in by_producer.items():
        question = Question(name, producer, places, adds=adds)
        codes = call.broker.transaction_partitions.ask(question, partial(answered, producer), call.now_ms)
        if codes is not None:
            answered(producer, codes, call.now_ms)
    is_late = left > 0
    return not is_late


def verify(
    call: Call, transactional_id: str, producer: Producer, where: Where, log: Log | None, *, knows_abortable: bool
) -> ErrorCode:
    """Whether a partition takes part in a producer's open transaction: NONE, or what its client is told.

    log: of the partition, None if it is not led here. knows_abortable: the client knows TRANSACTION_ABORTABLE; older
    ones are told INVALID_TXN_STATE.
    """
    broker = call.broker
    if call.verified is not None:
        code = call.verified.code(producer, where, log)
    elif not broker.config.transaction_partition_verification_enable:
        return ErrorCode.NONE
    else:
        code = broker.transactions.verify(transactional_id, producer, where)
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code
