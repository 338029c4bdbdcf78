"""A transactional id: who holds it, where its last transaction stands, and which moves between states are legal.

`Transaction` is a value: rules.py makes the next one, shard.py writes it, and replay puts it in place of the last.

Empty -> Ongoing (partitions are added) -> PrepareCommit or PrepareAbort (the outcome is decided, markers are being
written) -> CompleteCommit or CompleteAbort (all partitions have their marker) -> Ongoing or Empty again.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from protocol.namedtuple import NamedTuple

TopicPartition: TypeAlias = tuple[str, int]

NO_ID = -1
NO_EPOCH = -1
NEVER = -1
LAST_EPOCH = (1 << 15) - 2
"""The largest epoch that a producer is given: the one above is kept for fencing it."""


class State(Enum):
    """Kafka's states; the value is the word that tools show."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"

    __hash__ = object.__hash__  # each is one object; Enum's own, in Python, was asked for fifteen times a transaction


EMPTY, ONGOING, DEAD = State.EMPTY, State.ONGOING, State.DEAD
PREPARE_COMMIT, PREPARE_ABORT = State.PREPARE_COMMIT, State.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = State.COMPLETE_COMMIT, State.COMPLETE_ABORT
PREPARE_EPOCH_FENCE = State.PREPARE_EPOCH_FENCE

STATUS = dict(enumerate(State))
"""By the number in a record."""
STATUS_OF = {state: number for number, state in STATUS.items()}

MAY_FOLLOW = {
    EMPTY: {EMPTY, ONGOING, PREPARE_ABORT, DEAD},
    ONGOING: {ONGOING, PREPARE_COMMIT, PREPARE_ABORT},
    PREPARE_COMMIT: {COMPLETE_COMMIT},
    PREPARE_ABORT: {COMPLETE_ABORT},
    COMPLETE_COMMIT: {EMPTY, ONGOING, PREPARE_ABORT, DEAD},
    COMPLETE_ABORT: {EMPTY, ONGOING, PREPARE_ABORT, DEAD},
    DEAD: set[State](),
    PREPARE_EPOCH_FENCE: set[State](),  # a word that tools know; fencing and aborting are one move here
}

AT_REST = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""Without a transaction: a new one may begin, the id may be taken over, and may be forgotten when it is old."""

PREPARED = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
"""The outcome is decided, and not in all partitions yet."""

DECIDED = frozenset({PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT})

RAISES = 2
"""`client_version` of a transaction whose end has raised the epoch: transaction.version of KIP-890."""


class Transaction(NamedTuple):
    """What is known of a transactional id.

    last_epoch: the epoch before this one, if the producer raised it by itself (KIP-360) or by ending its transaction
    (KIP-890), else -1; it is not stored. previous_id: the producer id before this one, whose epochs ran out; -1 none.
    next_id: what the producer has been told to go on with, once all partitions have their marker; -1 this one.
    client_version: 2 if the last end raised the epoch (KIP-890). The last three are stored if that is so.
    partitions: those that take part, until all have their marker. started_ms: of the transaction, -1 if none began.
    updated_ms: when this was decided; as it is stored, by the wall clock.
    """

    name: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State
    partitions: frozenset[TopicPartition]
    started_ms: int
    updated_ms: int
    last_epoch: int = NO_EPOCH
    previous_id: int = NO_ID
    next_id: int = NO_ID
    client_version: int = 0

    def become(self, state: State, now_ms: int, **changed: object) -> Transaction:
        """The same in a state that may follow."""
        assert state in MAY_FOLLOW[self.state], f"{self.name}: {self.state.name} -> {state.name}"
        return self._replace(state=state, updated_ms=now_ms, **changed)  # type: ignore[arg-type]

    @property
    def goes_on_as(self) -> tuple[int, int]:
        """The producer id and epoch of the next transaction."""
        return (self.producer_id, self.producer_epoch) if self.next_id == NO_ID else (self.next_id, 0)

    @property
    def is_commit(self) -> bool:
        """Which way a prepared or complete transaction goes."""
        return self.state in (PREPARE_COMMIT, COMPLETE_COMMIT)
