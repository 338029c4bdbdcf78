"""A simulated ZooKeeper: one tree of nodes for all brokers of a simulated cluster, and a session for each.

Satisfies `kbroker.ports.MetadataStore` through `SimSession`. The world (`sim/world.py`) owns time and rng: an
`Ensemble` is given `later(delay_ms, job)`, which runs a job in the world's future, and `delay_ms()`, which draws how
long one way takes; without them everything happens at once. Messages of one session keep their order, as on a
connection. Faults come from outside: `expire` ends a session as ZooKeeper would, and the broker hears of it late;
`cut` keeps a broker's messages back until `heal`, and expires the session if that takes too long; `lose_connection`
loses what is under way, writes that were done and whose answers were on their way back among it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from kbroker.metadata.tree import Tree
from kbroker.ports import (
    Operation,
    Outcome,
    Post,
    SessionExpired,
    SessionStarted,
    StoreAnswer,
    StoreEvent,
    StoreFault,
)

Job = Callable[[], None]
Message = tuple[Job, Job]
"""What arrives, and what happens instead if the connection is lost while it is under way."""

Later = Callable[[int, Job], None]

SESSION_TIMEOUT_MS = 18_000  # zookeeper.session.timeout.ms


class Ensemble:
    """The tree, and who is connected to it."""

    def __init__(self, later: Later | None = None, delay_ms: Callable[[], int] | None = None) -> None:
        self.tree = Tree()
        self.sessions: dict[int, SimSession] = {}
        self.later: Later = later if later is not None else lambda _, job: job()
        self.delay_ms: Callable[[], int] = delay_ms if delay_ms is not None else lambda: 0
        self._last_session = 0

    def connect(self, post: Post) -> SimSession:
        """A broker opens its store."""
        return SimSession(self, post)

    def start_session(self, client: SimSession) -> int:
        """A client gets a session of its own."""
        self._last_session += 1
        self.sessions[self._last_session] = client
        return self._last_session

    def end_session(self, session: int) -> None:
        """A session is over: its client closed it, or it timed out."""
        if self.sessions.pop(session, None) is not None:
            self.tree.end_session(session)
            self.spread()

    def spread(self) -> None:
        """Tell each session of its watches that went off."""
        for session, event in self.tree.take_fired():
            client = self.sessions.get(session)
            if client is not None:
                client.send(session, event)


class SimSession:
    """One broker's store: a connection to the ensemble, with one session after the other.

    Everything on it travels in order; `cut` holds both directions up.
    """

    def __init__(self, ensemble: Ensemble, post: Post) -> None:
        self._ensemble = ensemble
        self._post = post
        self._closed = False
        self._is_cut = False
        self._held: deque[Message] = deque()  # what travels, in order; ours and the ensemble's alike
        self._on_the_way: deque[Message] = deque()
        self._done_when_lost = 0
        self.session = ensemble.start_session(self)
        self.send(self.session, SessionStarted(self.session))

    # -- the port

    def submit(self, operations: Sequence[Operation], token: object) -> None:
        """Send these to the ensemble."""
        assert not self._closed, "the store is closed"
        session, wanted = self.session, tuple(operations)
        self._travel(lambda: self._arrive(session, wanted, token), lambda: self._lose(session, wanted, token))

    def close(self) -> None:
        """End the session: the last message that the ensemble gets."""
        self._closed = True
        self._ensemble.end_session(self.session)

    # -- faults, from the world

    def crash(self) -> None:
        """The broker's process is gone: nothing is posted any more, the session lives until its timeout."""
        self._closed = True
        self._ensemble.later(SESSION_TIMEOUT_MS, lambda session=self.session: self._ensemble.end_session(session))  # type: ignore[misc]

    def expire(self) -> None:
        """The ensemble ends the session; the broker hears of it when its next message gets through."""
        ended = self.session
        self._ensemble.end_session(ended)
        self._travel(lambda: self._start_again(ended))

    def cut(self) -> None:
        """No message gets through, either way, until `heal`; after the session's timeout it is over."""
        self._is_cut = True
        session = self.session

        def out_of_patience() -> None:
            if self._is_cut and session == self.session and not self._closed:
                self.expire()

        self._ensemble.later(SESSION_TIMEOUT_MS, out_of_patience)

    def heal(self) -> None:
        """Messages get through again, those that were held up first."""
        self._is_cut = False
        while self._held and not self._is_cut:
            self._held.popleft()[0]()

    def lose_connection(self, done: int = 0) -> None:
        """The connection breaks, and there is a new one at once, in the same session.

        Answers on their way are lost, and operations on theirs; of each submit so many first ones had got through.
        """
        for line in (self._held, self._on_the_way):
            for at, (_, lost) in enumerate(line):
                line[at] = lost, lost
        self._done_when_lost = done

    # -- what travels

    def send(self, session: int, event: StoreEvent) -> None:
        """From the ensemble to the broker; lost if the session is over by then, as the broker would not believe it."""
        if isinstance(event, StoreAnswer):
            unknown = StoreAnswer(event.token, _unknown(len(event.outcomes)))
            self._travel(lambda: self._deliver(session, event), lambda: self._deliver(session, unknown))
        else:  # a client that is back is told of the watches that went off meanwhile
            self._travel(lambda: self._deliver(session, event))

    def _travel(self, job: Job, lost: Job | None = None) -> None:
        self._on_the_way.append((job, lost or job))
        self._ensemble.later(self._ensemble.delay_ms(), self._next_arrives)

    def _next_arrives(self) -> None:
        message = self._on_the_way.popleft()  # the first that left, whichever's delay is over: order is kept
        if self._is_cut:
            self._held.append(message)
        else:
            message[0]()

    def _lose(self, session: int, operations: tuple[Operation, ...], token: object) -> None:
        """Of a submit some operations are done; the broker is not told which."""
        if session in self._ensemble.sessions:
            for operation in operations[: self._done_when_lost]:
                self._ensemble.tree.apply(operation, session)
            self._ensemble.spread()
        self._deliver(session, StoreAnswer(token, _unknown(len(operations))))

    def _arrive(self, session: int, operations: tuple[Operation, ...], token: object) -> None:
        if session not in self._ensemble.sessions:
            if not self._closed:
                lost = tuple(Outcome(StoreFault.SESSION_EXPIRED, "") for _ in operations)
                self._post(StoreAnswer(token, lost))
            return
        outcomes = tuple(self._ensemble.tree.apply(operation, session) for operation in operations)
        self._ensemble.spread()
        self.send(session, StoreAnswer(token, outcomes))

    def _deliver(self, session: int, event: StoreEvent) -> None:
        if self._closed:
            return
        if session == self.session:
            self._post(event)
        elif isinstance(event, StoreAnswer):
            lost = tuple(Outcome(StoreFault.SESSION_EXPIRED, each.path) for each in event.outcomes)
            self._post(StoreAnswer(event.token, lost))

    def _start_again(self, ended: int) -> None:
        if self._closed or self.session != ended:
            return
        self._post(SessionExpired())
        self.session = self._ensemble.start_session(self)
        self.send(self.session, SessionStarted(self.session))


def _unknown(count: int) -> tuple[Outcome, ...]:
    return tuple(Outcome(StoreFault.CONNECTION_LOST, "") for _ in range(count))
