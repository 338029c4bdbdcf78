"""What a handler gets and what it may give back.

A handler is `handle(request, call) -> Result`. It asks the parts of `call.broker`, and gives back a response, or says
that the answer comes later (a `Waiting`, or `LATER`), or that there is none (`SILENCE`, `HANGUP`). It never sees a
socket, a frame or another connection's requests; `core.py` does.

A handler over many items is a generator that yields after each of them and returns its result (`InSlices`): others get
their turn in between, so it takes nothing for granted that it learnt before a yield. It has no clock.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kbroker.coordinator import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable, Sequence

    from kbroker.api.routes import Route
    from kbroker.broker.broker import Broker
    from kbroker.broker.client_quotas import ControllerMutationQuota
    from kbroker.broker.facts import Ticket
    from kbroker.broker.session import Session
    from kbroker.broker.transaction_partitions import Verified
    from kbroker.controller.admin import Charge
    from protocol.flat import Flat
    from protocol.message import Message


class Call:
    """One request's surroundings; `core.py` makes them.

    now_ms: monotonic milliseconds, for deadlines; never a record's timestamp. has_errors: set by what puts an error
    code into an answer of Produce, Fetch or ListOffsets, so that it is counted; in others the core looks for itself.
    is_large: whether it is handled in slices, for its size. opened_bytes: that its batches have been decompressed to.
    verified: what coordinators of transactions have said, where that had to be asked before. route: how its answer is
    encoded. may_read: of a fetch, whether a topic, which so many partitions are of (times), may be read; None:
    each may. mutations: what is left of the client's
    quota for topics that are made and deleted; None: there is no such quota.
    """

    __slots__ = (
        "broker",
        "client_id",
        "has_errors",
        "is_large",
        "may_read",
        "mutations",
        "now_ms",
        "opened_bytes",
        "route",
        "session",
        "verified",
        "version",
    )

    broker: Broker
    session: Session
    version: int
    client_id: str | None
    now_ms: int
    has_errors: bool
    is_large: bool
    opened_bytes: int
    verified: Verified | None
    route: Route
    may_read: Callable[..., bool] | None
    mutations: ControllerMutationQuota | None

    @property
    def ticket(self) -> Ticket:
        """What an answer that comes later is given to, as a `Reply`."""
        raise NotImplementedError

    @property
    def caller(self) -> Caller:
        """Who asks, as coordinators know it."""
        return Caller(self.ticket, self.version, self.client_id or "", f"/{self.session.peer_host}")


def mutation_charge(call: Call, refuses_since: int | None = None) -> Charge | None:
    """What counts partitions of this client's quota (KIP-599), if there is one.

    refuses_since: the request's version from which on what is over the quota is refused; None: it only counts, as for
    topics that are made on demand.
    """
    quotas = call.broker.quotas
    metered = None
    if quotas is not None and quotas.controller_mutation.is_on:
        metered = quotas.controller_mutation.of[call.session.principal.name, call.client_id]
    if metered is None:
        return None
    from kbroker.broker.client_quotas import ControllerMutationQuota  # loaded: there are quotas

    is_strict = refuses_since is not None and call.version >= refuses_since
    call.mutations = ControllerMutationQuota(metered, call.broker.clock, is_strict=is_strict)
    return call.mutations.record


class Waiting(Protocol):
    """A request whose answer waits for the state of some partitions, or for its deadline."""

    @property
    def deadline_ms(self) -> int:
        """Until when it may wait, on the clock of `call.now_ms`."""

    @property
    def keys(self) -> Sequence[Hashable]:
        """What it watches: it is asked again whenever one of these is touched."""

    def answer(self, now_ms: int) -> Result | None:
        """The response if it can leave now, else None. LATER: it comes as a `Reply`; it may wait for something else."""

    def expired(self, now_ms: int) -> Result:
        """The response at the deadline, whatever the state is; or as `answer`."""


class Signal(Enum):
    """What a handler gives back instead of an answer."""

    LATER = "the answer comes as a `Reply` to `call.ticket`, from the part that the handler gave the ticket to"
    FIRST = "as LATER, and no other request of the connection is begun before: the order of its records would suffer"
    SILENCE = "no answer, ever: Produce with acks=0"
    HANGUP = "no answer, and the connection is closed: an unacknowledged batch failed, and this tells the client"


LATER, FIRST, SILENCE, HANGUP = Signal
Answer: TypeAlias = "Message | Flat"
"""A tuple where the route is flat (`routes.py`)."""
InSlices: TypeAlias = "Generator[None, None, Answer | Waiting | Signal]"
Result: TypeAlias = "Answer | Waiting | Signal | InSlices"
