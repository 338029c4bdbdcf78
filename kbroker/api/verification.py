"""Whether a producer may write to a partition in a transaction: what its coordinator says, in words of the client.

Asked by Produce and TxnOffsetCommit before the first batch of a transaction in a partition (KIP-890): one that only the
partition knew of would never end, and hold readers back for ever. Source: AddPartitionsToTxnManager of Apache Kafka
3.9, by behaviour. Unlike Kafka: a transaction that another broker coordinates is believed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.api.call import Call
    from kbroker.txn import Producer


def verify(
    call: Call, transactional_id: str, producer: Producer, where: tuple[str, int], *, knows_abortable: bool
) -> ErrorCode:
    """Whether a partition takes part in a producer's open transaction: NONE, or what its client is told.

    knows_abortable: the client knows TRANSACTION_ABORTABLE; older ones are told INVALID_TXN_STATE.
    """
    broker = call.broker
    if not broker.config.transaction_partition_verification_enable:
        return ErrorCode.NONE
    code = broker.transactions.verify(transactional_id, producer, where)
    if code is ErrorCode.NOT_COORDINATOR:
        return ErrorCode.NONE
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    return code
