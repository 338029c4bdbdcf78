"""One controller epoch: what it knows, what it has to say, and the fence around what it writes.

Made when a broker is elected, dropped when it is not controller any more. The procedures of this package take it as
their first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from kbroker.config.limits import TRANSACTION_BYTES
from kbroker.controller.context import Context
from kbroker.controller.controller_channel import Batch, ControllerChannelManager
from kbroker.metadata.configs import Configs
from kbroker.metadata.steps import Procedure, one_by_one
from kbroker.metadata.store import CONTROLLER_EPOCH
from kbroker.ports import Check, Create, Delete, Get, Multi, Outcome, Random, SetData, StoreFault
from protocol.errors import ErrorCode, KafkaError

Write: TypeAlias = Create | SetData | Delete
T = TypeVar("T")

STEP_PARTITIONS = 100
"""Partitions dealt with between two answers of the store: meanwhile all other work waits, for some milliseconds."""

WRITES_AT_ONCE = 200
"""Writes in one transaction: ZooKeeper takes 1 MiB (jute.maxbuffer), and each may have a path of some 300 bytes."""

NEW_PARTITIONS_AT_ONCE = 500
"""New partitions made by one event: all of a few topics, or some of a wide one. Others have their turn between."""


class ControllerMovedError(Exception):
    """Another broker has been elected since: nothing of this epoch counts any more."""


class ControllerEpoch:
    """What the procedures of one controller epoch share.

    listener: over which brokers speak to each other. tell: takes facts.
    """

    def __init__(
        self,
        broker_id: int,
        context: Context,
        channels: ControllerChannelManager,
        configs: Configs,
        random: Random,
        listener: str,
        tell: Callable[[object], None],
    ) -> None:
        self.broker_id = broker_id
        self.context = context
        self.channels = channels
        self.configs = configs
        self.random = random
        self.listener = listener
        self.tell = tell

    def batch(self) -> Batch:
        """A new batch of requests to brokers."""
        return Batch(self.broker_id, self.listener, self.context, self.channels)

    def send(self, batch: Batch) -> Procedure[None]:
        """Put what a batch holds in line, with pauses. Raises: ControllerMovedError."""
        for _ in batch.slices(STEP_PARTITIONS):
            yield from self.pause()

    def pause(self) -> Procedure[None]:
        """Let others have their turn, by a look at whether this epoch lasts. Raises: ControllerMovedError."""
        (found,) = yield [Get(CONTROLLER_EPOCH)]
        if found.stat is None or found.stat.version != self.context.epoch_version:
            raise ControllerMovedError(f"{CONTROLLER_EPOCH} has changed")

    def fenced(self, *writes: Write) -> Multi:
        """Writes that are done only while this epoch lasts."""
        return Multi((Check(CONTROLLER_EPOCH, self.context.epoch_version), *writes))

    def write(self, writes: Sequence[Write], *, may_be_refused: bool = True) -> Procedure[list[Outcome]]:
        """Do these behind the fence, in order; each succeeds or fails by itself. Raises: ControllerMovedError.

        may_be_refused: so does one that the store refuses, as a node may be another owner's; else StoreRefusedError.

        Many at a time in one transaction, which costs the store one fsync and both of us one message. Where one fails,
        so do all that are with it, though nothing is wrong with them: then these are done again, one by one.
        """
        groups = list(pieces(writes, WRITES_AT_ONCE))
        answers = yield from self._done([self.fenced(*group) for group in groups], may_be_refused)
        outcomes: list[Outcome] = []
        for group, answer in zip(groups, answers, strict=True):
            if answer.fault is None:
                outcomes += answer.parts[1:]
                continue
            alone: Sequence[Outcome] = (answer,)
            if len(group) > 1:
                alone = yield from self._done([self.fenced(write) for write in group], may_be_refused)
            outcomes += [Outcome(fault_of(each), each.path) if each.fault else each.parts[1] for each in alone]
        return outcomes

    def _done(self, writes: list[Multi], may_be_refused: bool) -> Procedure[Sequence[Outcome]]:
        if may_be_refused:
            answers = yield from one_by_one(writes)
        else:
            answers = yield writes
        check_fence(answers)
        return answers


def pieces(items: Sequence[T], most: int | None = None) -> Iterator[Sequence[T]]:
    """The same in order, at most so many at a time: unless told, as many partitions as make a step."""
    size = STEP_PARTITIONS if most is None else most
    return (items[start : start + size] for start in range(0, len(items), size))


def stat_of(outcome: Outcome) -> int:
    """The version of the node that a write has left behind."""
    assert outcome.stat is not None, outcome
    return outcome.stat.version


def check_size(size_bytes: int) -> None:
    """Raises: KafkaError if the store takes no transaction that writes so much."""
    if size_bytes > TRANSACTION_BYTES:
        text = f"{size_bytes} bytes for the metadata store; allowed: {TRANSACTION_BYTES}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, text)


def check_fence(outcomes: Iterable[Outcome]) -> None:
    """Raises: ControllerMovedError if a fenced write met the epoch of a newer controller."""
    for outcome in outcomes:
        if outcome.fault is not None and outcome.parts and fault_of(outcome, 0) is not None:
            raise ControllerMovedError(f"{CONTROLLER_EPOCH} has changed")


def fault_of(outcome: Outcome, part: int = 1) -> StoreFault | None:
    """Why one part of a fenced write failed by itself; None if it did not, or only fell with another."""
    fault = outcome.parts[part].fault if len(outcome.parts) > part else outcome.fault
    return None if fault is StoreFault.ROLLED_BACK else fault


def done(outcomes: Sequence[Outcome]) -> list[bool]:
    """Which of some writes were done. Raises: ControllerMovedError."""
    check_fence(outcomes)
    return [outcome.fault is None for outcome in outcomes]
