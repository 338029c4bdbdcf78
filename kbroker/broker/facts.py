"""What one part of a broker tells the others, and how: one queue of typed facts.

A part is given `tell` when it is made. What it finds out beyond the answer to its caller it tells as a fact, a small
frozen value; it never calls whom it concerns. `core.py` takes facts from the queue, in the order they were told, until
there are none: it acts on `Reply` and `Touched` itself, and `Broker.handle` hands every other one to the parts that
take facts of its type. What comes from outside (the store's answers, ends of jobs) is a fact likewise.

Facts of lower layers are declared there: `log/facts.py`, `replica/facts.py`, `metadata/cache.py`,
`timing/purgatory.py`, `controller/`, `ports.py`.
Partitions that moved are no facts: they are so many that they have a list of their own, `ReplicaManager.touched`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kbroker.log.errors import UnforeseenError
from kbroker.timing import Touched as Touched
from protocol.namedtuple import NamedTuple

if TYPE_CHECKING:
    from kbroker.broker.jobs import Errand
    from kbroker.coordinator.effects import Again
    from kbroker.metadata.store import Endpoint
    from protocol.message import Message

FactQueue: TypeAlias = deque[object]
Tell: TypeAlias = Callable[[object], None]
Handler: TypeAlias = Callable[[Any, int], None]
"""Takes a fact and the monotonic time in ms."""


class Part(Protocol):
    """A part of a broker that facts reach. What it does in time it asks the scheduler for.

    handlers: by type of fact, what it does with one.
    """

    @property
    def handlers(self) -> Mapping[type, Handler]:
        """The facts that it takes; asked for once, when the broker is put together."""


class Ticket(Protocol):
    """The place of one answer in its connection's order; opaque to everything but `core.py`."""


class Reply(NamedTuple):
    """What was LATER: the ticket its request came with, and the response, or what else a handler may give back.

    again: as a coordinator says it (`coordinator/effects.py`).
    """

    ticket: Ticket
    response: object
    again: Again | None = None


class HangUp(NamedTuple):
    """The connection of a request ends, behind what was answered before."""

    ticket: Ticket
    why: str


class Joint:
    """An answer that several make together. waiting: how many of them are not there yet."""

    __slots__ = ("_make", "ticket", "waiting")

    def __init__(self, ticket: Ticket, waiting: int, make: Callable[[], Message]) -> None:
        self.ticket = ticket
        self.waiting = waiting
        self._make = make

    def part(self, take: Callable[[Message], None] | None = None) -> JointPart:
        """The place of one of them, instead of a ticket; take: is given what it says."""
        return JointPart(self, take)

    def response(self) -> Message:
        """What all of them make."""
        return self._make()


class PartialAnswer:
    """What a coordinator is asked by something that is no request: it is told the answer, and makes something of it."""

    __slots__ = ()

    def answered(self, response: Message | None) -> object | None:
        """The answer is there; returns a fact to be told, if there is one."""
        raise NotImplementedError


class JointPart(PartialAnswer):
    """The place of one of the answers that a Joint waits for."""

    __slots__ = ("_joint", "_take")

    def __init__(self, joint: Joint, take: Callable[[Message], None] | None) -> None:
        self._joint = joint
        self._take = take

    def answered(self, response: Message | None) -> Reply | None:
        """It is there; returns the whole answer if it was the last."""
        if self._take is not None and response is not None:
            self._take(response)
        self._joint.waiting -= 1
        return None if self._joint.waiting else Reply(self._joint.ticket, self._joint.response())


class BrokerConfigChanged(NamedTuple):
    """Dynamic settings of this broker are other ones."""


class SettingsChanged(NamedTuple):
    """Settings of topics, or of all brokers, have changed: perhaps who may lead by them."""


class QuotasChanged(NamedTuple):
    """Other kinds of quotas than before count for clients of this broker."""


class EndpointsChanged(NamedTuple):
    """Clients and brokers are to be told other addresses of this one from now on."""

    endpoints: tuple[Endpoint, ...]


class Leave(NamedTuple):
    """This broker is about to stop, as soon as it has handed its leaders over."""


class JobDone(NamedTuple):
    """Work for the disk has ended. error: None if it went well."""

    errand: Errand
    error: OSError | None


def tell_of_end(errand: Errand, error: BaseException | None, tell: Callable[[JobDone], object]) -> None:
    """Tell whose errand it was, who would wait for it for ever. error: what the job let out, if anything.

    Raises: what no job should let out; to the loop, which reports it: a bug.
    """
    told = error if error is None or isinstance(error, OSError) else UnforeseenError(repr(error))
    try:
        tell(JobDone(errand, told))
    finally:
        if error is not None and error is not told:
            raise error
