"""Procedures of several steps on the metadata store and other brokers, written as generators.

A procedure yields the operations of its next step and gets their outcomes back, or asks another broker something and
gets its answer; `Steps` sends them and resumes it when the answer comes. So what needs five round trips reads from top
to bottom, and nothing waits. Used by the controller, which runs one procedure at a time, and by admin requests, each a
procedure of its own.

    def rename(old, new):
        (found,) = yield [Get(old)]
        created, deleted = yield [Create(new, found.data), Delete(old)]
        answer = yield from ask(Ask(2, request, timeout_ms=30_000))
        return created.stat, answer.error_code
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from kbroker.metadata.ambiguous_writes import Asking, is_in_doubt, resolve
from kbroker.ports import (
    TO_CONTROLLER,
    MetadataStore,
    Operation,
    Outcome,
    PeerAnswer,
    PeerFault,
    StoreAnswer,
    StoreFault,
)
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kbroker.metadata.requester import Asked, Requester
    from kbroker.ports import PeerEvent
    from protocol.message import Message

T = TypeVar("T")


class Ask:
    """A step that is a request to the controller, which is another broker."""

    __slots__ = ("broker_id", "request", "timeout_ms")

    def __init__(self, broker_id: int, request: Message, *, timeout_ms: int) -> None:
        self.broker_id = broker_id
        self.request = request
        self.timeout_ms = timeout_ms


Step: TypeAlias = Sequence[Operation] | Ask
Procedure: TypeAlias = Generator[Step, Sequence[Outcome], T]


class SessionLostError(Exception):
    """Raised in a procedure whose session ended under it: it is unknown what its last step did."""


class StoreRefusedError(Exception):
    """Raised in a procedure one of whose operations the store refuses. The session goes on, and so may all others.

    outcomes: of all operations of the step; none where some of them are in doubt.
    """

    def __init__(self, outcome: Outcome, outcomes: Sequence[Outcome] = ()) -> None:
        super().__init__(f"the metadata store refuses what is asked of {outcome.path or 'several nodes'}")
        self.outcomes = outcomes


class PeerFaultError(Exception):
    """Raised in a procedure whose request to another broker got no answer. fault: why, and whether it was sent."""

    def __init__(self, fault: PeerFault) -> None:
        super().__init__(f"{fault.kind.value}: {fault.why}")
        self.fault = fault


def ask(request: Ask) -> Generator[Step, Any, Any]:
    """Ask the controller, as part of a procedure. Returns: the response.

    Raises: PeerFaultError; KafkaError (NOT_CONTROLLER) if it is this broker, or it is not known where it is.
    """
    return (yield request)


def one_by_one(operations: Sequence[Operation]) -> Procedure[Sequence[Outcome]]:
    """A step of which each operation has an outcome of its own, also where the store refuses some."""
    try:
        return (yield operations)
    except StoreRefusedError as error:
        if not error.outcomes:
            raise
        return error.outcomes


class Steps:
    """The procedures under way on one store. requester: None where no procedure asks other brokers.

    session: with the store, to be told by the part that hears of it.
    """

    def __init__(self, store: MetadataStore, requester: Requester | None = None) -> None:
        self.session = 0
        self._store = store
        self._requester = requester
        self._running = 0

    @property
    def busy(self) -> bool:
        """Whether a procedure waits for an answer."""
        return self._running > 0

    def start(
        self,
        procedure: Procedure[T],
        done: Callable[[T], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Start a procedure. done: gets what it returns. failed: gets what it raises; without it, errors go up."""
        self._resume(_Running(procedure, done, failed), None)

    def resume(self, answer: StoreAnswer) -> None:
        """The outcomes of a step are there."""
        running = answer.token
        assert isinstance(running, _Running), answer
        outcomes = answer.outcomes
        if any(outcome.fault is StoreFault.SESSION_EXPIRED for outcome in outcomes):
            self._running -= 1
            running.asking = None
            self._resume(running, None, SessionLostError())
        elif refused := [outcome for outcome in outcomes if outcome.fault is StoreFault.REFUSED]:
            known = () if running.asking is not None or is_in_doubt(outcomes) else outcomes
            self._running -= 1
            running.asking = None
            self._resume(running, None, StoreRefusedError(refused[0], known))
        elif running.asking is not None or is_in_doubt(outcomes):
            self._doubt(running, outcomes)
        else:
            self._running -= 1
            self._resume(running, outcomes)

    def _doubt(self, running: _Running, outcomes: Sequence[Outcome]) -> None:
        """The connection was lost under a step: first find out what became of it."""
        try:
            if running.asking is None:
                running.asking = resolve(running.operations, outcomes, self.session)
                operations = next(running.asking)
            else:
                operations = running.asking.send(outcomes)
        except StopIteration as known:
            running.asking = None
            self._running -= 1
            self._resume(running, known.value)
        else:
            self._store.submit(operations, running)

    def heard(self, asked: Asked, event: PeerEvent, now_ms: int) -> None:
        """What became of a request to another broker."""
        running = asked.token
        assert isinstance(running, _Running), asked
        self._running -= 1
        if isinstance(event, PeerAnswer):
            self._resume(running, event.response)
        else:
            self._resume(running, None, PeerFaultError(event))

    def _resume(self, running: _Running, value: Any, error: Exception | None = None) -> None:
        """Go on with a procedure. value: what its step came to, None at its beginning."""
        try:
            step: Step = ()
            while not step:  # a step without operations is answered here, and so is one that cannot be asked
                step = running.procedure.send(value) if error is None else running.procedure.throw(error)
                value, error = (), None
                if isinstance(step, Ask) and not self._ask(step, running):
                    error = KafkaError(ErrorCode.NOT_CONTROLLER)
                    step = ()
        except StopIteration as stop:
            if running.done is not None:
                running.done(stop.value)
        except Exception as failure:
            if running.failed is None:
                raise
            running.failed(failure)
        else:
            self._running += 1
            if not isinstance(step, Ask):
                running.operations = step
                self._store.submit(step, running)

    def _ask(self, step: Ask, running: _Running) -> bool:
        assert self._requester is not None, "there is none to ask by"
        return self._requester.ask(
            self, step.broker_id, TO_CONTROLLER, step.request, running, timeout_ms=step.timeout_ms
        )


class _Running:
    """A procedure between two steps; the token of its step."""

    __slots__ = ("asking", "done", "failed", "operations", "procedure")

    def __init__(
        self,
        procedure: Procedure[Any],
        done: Callable[[Any], None] | None,
        failed: Callable[[Exception], None] | None,
    ) -> None:
        self.procedure = procedure
        self.done = done
        self.failed = failed
        self.operations: Sequence[Operation] = ()  # of the step under way
        self.asking: Asking | None = None  # what finds out what became of a step
