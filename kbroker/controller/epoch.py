"""One controller epoch: what it knows, what it has to say, and the fence around what it writes.

Made when a broker is elected, dropped when it is not controller any more. The procedures of this package take it as
their first argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from kbroker.controller.context import Context
from kbroker.controller.outbox import Batch, Outbox
from kbroker.metadata.configs import Configs
from kbroker.metadata.store import CONTROLLER_EPOCH
from kbroker.ports import Check, Create, Delete, Multi, Outcome, SetData, StoreFault

Write: TypeAlias = Create | SetData | Delete


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
        outbox: Outbox,
        configs: Configs,
        listener: str,
        tell: Callable[[object], None],
    ) -> None:
        self.broker_id = broker_id
        self.context = context
        self.outbox = outbox
        self.configs = configs
        self.listener = listener
        self.tell = tell

    def batch(self) -> Batch:
        """A new batch of requests to brokers."""
        return Batch(self.broker_id, self.listener, self.context, self.outbox)

    def fenced(self, *writes: Write) -> Multi:
        """Writes that are done only while this epoch lasts."""
        return Multi((Check(CONTROLLER_EPOCH, self.context.epoch_version), *writes))


def stat_of(outcome: Outcome, part: int = 1) -> int:
    """The version of the node that a fenced write has left behind."""
    stat = outcome.parts[part].stat
    assert stat is not None, outcome
    return stat.version


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
