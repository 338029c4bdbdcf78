"""The rules of transactions: from what is known of a transactional id and what is asked, to what is known next.

Called by shard.py. Each function is pure: it returns the next `Transaction`, None where nothing is to be written, or
raises KafkaError. Behaviour and error codes are Apache Kafka 3.9's; PRODUCER_FENCED is for the handler to put into the
words of older clients. KIP-98; KIP-360 (a producer raises its own epoch); KIP-588 (fencing and time-outs); KIP-890 (an
epoch for every transaction).
"""

from __future__ import annotations

from collections.abc import Callable

from kbroker.txn import Producer
from kbroker.txn.state import (
    AT_REST,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    DECIDED,
    EMPTY,
    LAST_EPOCH,
    NEVER,
    NO_EPOCH,
    NO_ID,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARED,
    RAISES,
    State,
    TopicPartition,
    Transaction,
)
from protocol.errors import ErrorCode, KafkaError

NOTHING: frozenset[TopicPartition] = frozenset()


def init(
    name: str,
    known: Transaction | None,
    asker: Producer | None,
    timeout_ms: int,
    now_ms: int,
    new_id: Callable[[], int],
    *,
    raises: bool = False,
) -> Transaction:
    """InitProducerId: give the id to the asker, in an epoch above all before.

    asker: a producer that holds it and wants to go on after an error (KIP-360), None for a new one. new_id: a producer
    id that was never given out. raises: whether transaction.version is 2, see `fence_and_raise`. Returns: in state
    PREPARE_ABORT an open transaction has to be ended before, and the asker comes again. Raises: KafkaError
    CONCURRENT_TRANSACTIONS, PRODUCER_FENCED, and what new_id raises.
    """
    if known is None:
        return Transaction(name, new_id(), 0, timeout_ms, EMPTY, NOTHING, NEVER, now_ms)
    if asker is not None and _has_been_promised(known, asker):
        raise _busy(known)
    if asker is not None and not _may_go_on(known, asker):
        raise _fenced(known, asker)
    if known.state in PREPARED:
        raise _busy(known)
    if known.state is ONGOING:
        return fence_and_raise(known, now_ms, new_id) if raises else fence(known, now_ms)
    assert known.state in AT_REST, known
    given = {
        "timeout_ms": timeout_ms,
        "partitions": NOTHING,
        "started_ms": NEVER,
        "previous_id": known.producer_id,
        "client_version": 0,
    }
    if known.producer_epoch >= LAST_EPOCH and (asker is None or asker.epoch == known.producer_epoch):
        last_epoch = NO_EPOCH if asker is None else known.producer_epoch
        return known.become(EMPTY, now_ms, producer_id=new_id(), producer_epoch=0, last_epoch=last_epoch, **given)
    epoch, last_epoch = _raised(known, asker)
    return known.become(EMPTY, now_ms, producer_epoch=epoch, last_epoch=last_epoch, **given)


def _may_go_on(known: Transaction, asker: Producer) -> bool:
    """Whether the asker holds the id, or held it before its epochs ran out and has not heard of its new one."""
    return asker.producer_id == known.producer_id or (
        asker.producer_id == known.previous_id and asker.epoch >= LAST_EPOCH
    )


def _raised(known: Transaction, asker: Producer | None) -> tuple[int, int]:
    """The next epoch, and the one before; the present one again for a retry of the call that gave it."""
    if asker is None:
        return known.producer_epoch + 1, NO_EPOCH
    if asker.epoch == known.producer_epoch:
        return known.producer_epoch + 1, known.producer_epoch
    if asker.epoch == known.last_epoch:
        return known.producer_epoch, known.last_epoch
    raise _fenced(known, asker)


def add_partitions(
    known: Transaction | None, producer: Producer, partitions: frozenset[TopicPartition], now_ms: int
) -> Transaction | None:
    """AddPartitionsToTxn and AddOffsetsToTxn: these take part; the first ones begin the transaction.

    Raises: KafkaError INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS.
    """
    known = _held_by(known, producer)
    if known.state in PREPARED:
        raise _busy(known)
    if known.state is ONGOING and partitions <= known.partitions:
        return None
    started_ms = known.started_ms if known.state is ONGOING else now_ms
    return known.become(ONGOING, now_ms, partitions=known.partitions | partitions, started_ms=started_ms)


def verify(known: Transaction | None, producer: Producer, partition: TopicPartition) -> None:
    """Whether a partition takes part, so that the producer may write to it (KIP-890).

    Raises: KafkaError as `add_partitions`, and TRANSACTION_ABORTABLE if it does not.
    """
    known = _held_by(known, producer)
    if known.state in PREPARED:
        raise _busy(known)
    if partition not in known.partitions:
        raise KafkaError(
            ErrorCode.TRANSACTION_ABORTABLE, f"{partition[0]}-{partition[1]} is not in the transaction of {known.name}"
        )


def end(known: Transaction | None, producer: Producer, *, commit: bool, now_ms: int) -> Transaction | None:
    """EndTxn: decide the outcome. None: it has been decided so, and is in all partitions already.

    Raises: KafkaError INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, INVALID_TXN_STATE.
    """
    known = _held_by(known, producer)
    if known.state is ONGOING:
        return known.become(PREPARE_COMMIT if commit else PREPARE_ABORT, now_ms)
    if known.state is EMPTY or known.is_commit != commit:
        raise _not_so(known, commit=commit)
    if known.state in PREPARED:
        raise _busy(known)
    return None


def end_and_raise(
    known: Transaction | None, producer: Producer, *, commit: bool, now_ms: int, new_id: Callable[[], int]
) -> Transaction | None:
    """EndTxn from version 5 on: decide the outcome, and raise the epoch for the next transaction (KIP-890).

    An abort may find nothing to abort: the producer cannot know whether its first batch has come so far. Returns: None,
    and raises, as `end`; and what new_id raises, when the epochs have run out.
    """
    if known is not None and _has_ended(known, producer):
        if known.is_commit != commit:
            raise _not_so(known, commit=commit)
        if known.state in PREPARED:
            raise _busy(known)
        return None
    known = _held_by(known, producer)
    if known.state in PREPARED:
        raise _busy(known)
    if known.state is not ONGOING and commit:
        raise _not_so(known, commit=commit)
    return _raise(known, PREPARE_COMMIT if commit else PREPARE_ABORT, now_ms, new_id)


def _raise(known: Transaction, state: State, now_ms: int, new_id: Callable[[], int]) -> Transaction:
    """The outcome is decided, and the producer goes on in the next epoch, or under a new id when they have run out."""
    return known.become(
        state,
        now_ms,
        started_ms=known.started_ms if known.state is ONGOING else now_ms,
        producer_epoch=known.producer_epoch + 1,
        last_epoch=known.producer_epoch,
        next_id=new_id() if known.producer_epoch >= LAST_EPOCH else NO_ID,
        client_version=RAISES,
    )


def _has_ended(known: Transaction, producer: Producer) -> bool:
    """Whether a producer asks again for the end that has raised its epoch, having missed the answer."""
    if known.client_version != RAISES or known.state not in DECIDED:
        return False
    if producer.producer_id == known.producer_id:
        return producer.epoch == known.producer_epoch - 1
    return producer == (known.previous_id, LAST_EPOCH) and known.producer_epoch == 0


def fence(known: Transaction, now_ms: int) -> Transaction:
    """Abort an open transaction without its producer, who finds its epoch gone: a new holder, or a time-out.

    Apache's coordinator lets a producer begin one in the largest epoch of all: that is aborted in its own.
    """
    epoch = min(known.producer_epoch + 1, LAST_EPOCH + 1)
    return known.become(PREPARE_ABORT, now_ms, producer_epoch=epoch, last_epoch=NO_EPOCH, client_version=0)


def fence_and_raise(known: Transaction, now_ms: int, new_id: Callable[[], int]) -> Transaction:
    """The same where transaction.version is 2: it is the abort that the producer itself would have asked for (KIP-890).

    Until another producer takes the id over, it may still ask for that, or for its epoch, and goes on in the next one.
    Raises: what new_id raises, when the epochs have run out.
    """
    return fence(known, now_ms) if known.producer_epoch > LAST_EPOCH else _raise(known, PREPARE_ABORT, now_ms, new_id)


def complete(known: Transaction, now_ms: int) -> Transaction:
    """Every partition has its marker."""
    state = COMPLETE_COMMIT if known.is_commit else COMPLETE_ABORT
    if known.next_id == NO_ID:
        return known.become(state, now_ms, partitions=NOTHING)
    producer_id, epoch = known.goes_on_as
    return known.become(
        state,
        now_ms,
        partitions=NOTHING,
        producer_id=producer_id,
        producer_epoch=epoch,
        previous_id=known.producer_id,
        next_id=NO_ID,
    )


def is_timed_out(known: Transaction, now_ms: int) -> bool:
    """Whether an open transaction has taken longer than its producer asked for."""
    return known.state is ONGOING and known.started_ms + known.timeout_ms < now_ms


def is_old(known: Transaction, wall_ms: int, expiration_ms: int) -> bool:
    """Whether an id may be forgotten: unused for transactional.id.expiration.ms."""
    return known.state in AT_REST and known.updated_ms <= wall_ms - expiration_ms


def _held_by(known: Transaction | None, producer: Producer) -> Transaction:
    if known is not None and _has_been_promised(known, producer):
        raise _busy(known)
    if known is None or known.producer_id != producer.producer_id:
        holder = "no producer" if known is None else f"producer {known.producer_id}"
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"the transactional id is held by {holder}, not {producer}"
        )
    if known.producer_epoch != producer.epoch or producer.epoch > LAST_EPOCH:  # which fencing leaves behind
        raise _fenced(known, producer)
    return known


def _has_been_promised(known: Transaction, producer: Producer) -> bool:
    """Whether a producer goes on under the new id that its end gave it, before all partitions have their marker."""
    return known.next_id != NO_ID and producer == known.goes_on_as


def _fenced(known: Transaction, producer: Producer) -> KafkaError:
    holder = Producer(known.producer_id, known.producer_epoch)
    return KafkaError(ErrorCode.PRODUCER_FENCED, f"{known.name} is held by {holder}, not {producer}")


def _not_so(known: Transaction, *, commit: bool) -> KafkaError:
    what = "committed" if commit else "aborted"
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"{known.name} is in state {known.state.value}, and cannot be {what}"
    )


def _busy(known: Transaction) -> KafkaError:
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{known.name} is in state {known.state.value}")


__all__ = [
    "NO_ID",
    "Producer",
    "add_partitions",
    "complete",
    "end",
    "end_and_raise",
    "fence",
    "fence_and_raise",
    "init",
    "is_old",
    "is_timed_out",
    "verify",
]
